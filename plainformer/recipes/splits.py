"""From files, or a dataset of the Hub, to the splits `train`, `validation` and `test`; and samples of them.

The order in a recipe: `read_splits`, `find_column` for each column, the checks (they look at whole files, so that a row
can be traced to its line), and then `cut`, which cuts off a validation set and takes samples.
"""

import hashlib
import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value, load_dataset

from .arguments import DataArguments, check_at_least
from .columns import did_you_mean, lacks_label, read_column, source_of
from .data_files import COMPRESSED, DELIMITERS, FORMATS, QUOTINGS, file_format, find_schema, typed_rows
from .errors import DataError
from .run_folder import Run
from .training import MEASURED

SPLITS = ("train", "validation", "test")
READERS = 4  # raise it when a reader reads the same file in another way: it is a part of the cache's key
STRING = Value("string")
NO_ROWS = "holds no rows: give a file with data in it."


def read_splits(run: Run) -> DatasetDict:
    """The splits that the run needs, as they are in the files.

    A validation split that `cut` will take from the training data is not read here. A column of class numbers with
    names (`ClassLabel`, on the Hub and in some Parquet files) comes as the names. What cannot be read is a DataError.
    """
    data_args, args, cache_dir = run.data_args, run.training_args, run.model_args.cache_dir
    _check_arguments(data_args)
    cuts = args.do_eval and is_cut_off(data_args)
    needed = (args.do_train or cuts, args.do_eval and not cuts, args.do_predict)
    splits = [split for split, is_needed in zip(SPLITS, needed, strict=True) if is_needed]
    if data_args.dataset_name:
        data = _load_from_hub(data_args, splits, cache_dir)
    else:
        data = {split: _load_file(data_args, split, cache_dir, run.say) for split in splits}
    for split, rows in data.items():
        if not len(rows):
            raise DataError(f"{source_of(data_args, split)} {NO_ROWS}")
    return DatasetDict({split: _name_class_labels(rows) for split, rows in data.items()})


def is_cut_off(data_args: DataArguments) -> bool:
    """Whether the validation set is a part of the training data."""
    return data_args.validation_split_percentage is not None and data_args.validation_file is None


def _check_arguments(data_args: DataArguments) -> None:
    percentage = data_args.validation_split_percentage
    if data_args.dataset_name and any(map(data_args.file_of, SPLITS)):
        raise DataError("--dataset_name and files are given: leave out one of the two, to say which is meant.")
    if data_args.file_format not in (None, *FORMATS):
        raise DataError(f"--file_format {data_args.file_format} is not known: choose one of {', '.join(FORMATS)}.")
    if percentage is not None and not 1 <= percentage <= 99:
        raise DataError(f"--validation_split_percentage {percentage}: give a whole number from 1 to 99.")
    if percentage is not None and data_args.validation_file:
        raise DataError("--validation_split_percentage and --validation_file are given: leave out one of the two.")
    _check_csv_arguments(data_args)
    check_at_least(data_args, max_train_samples=1, max_eval_samples=1, max_predict_samples=1, early_stopping_patience=1)


def _check_csv_arguments(data_args: DataArguments) -> None:
    delimiter, files = data_args.reading_options()["delimiter"], filter(None, map(data_args.file_of, SPLITS))
    if data_args.quoting not in (None, *QUOTINGS):
        raise DataError(f"--quoting {data_args.quoting} is not known: choose one of {', '.join(QUOTINGS)}.")
    if delimiter is not None and (len(delimiter) != 1 or delimiter in '"\r\n'):
        raise DataError(f"--delimiter {delimiter}: give one character that is no quote, as in ';', or tab.")
    if data_args.delimiter or data_args.quoting:
        if not any(file_format(path, data_args.file_format) in DELIMITERS for path in files):
            raise DataError("--delimiter and --quoting are for CSV and TSV, and no file is: leave them out.")


def _load_from_hub(data_args: DataArguments, needed: list[str], cache_dir: str | None) -> dict[str, Dataset]:
    name = f"--dataset_name {data_args.dataset_name}"
    if os.path.exists(data_args.dataset_name) and re.search(r"[][*?]|::", os.path.abspath(data_args.dataset_name)):
        # `datasets` would take the path for a pattern and read what else it fits.
        raise DataError(f"{name} is a folder with one of [ ] * ? :: in its path: rename it, or give its files.")
    try:
        data = load_dataset(data_args.dataset_name, data_args.dataset_config_name, cache_dir=cache_dir)
    except Exception as error:  # whatever the network, the Hub or the dataset says
        raise DataError(f"{name} could not be loaded: {error}") from error
    missing = [split for split in needed if split not in data]
    if missing:
        problem = f"has no split {' and no '.join(map(repr, missing))}, only {', '.join(map(repr, data))}"
        remedy = "Give --validation_split_percentage, or say what to do with --do_train, --do_eval and --do_predict."
        raise DataError(f"{name} {problem}. {remedy}")
    return {split: data[split] for split in needed}


def _load_file(data_args: DataArguments, split: str, cache_dir: str | None, note: Callable[[str], None]) -> Dataset:
    path = data_args.file_of(split)
    check_file(path, split)
    kind, options = file_format(path, data_args.file_format), data_args.reading_options()
    schema = find_schema(kind, path, note, **options)
    if schema is None:
        raise DataError(f"{path} {NO_ROWS}")
    # A cached dataset is found again by these arguments, and a file that was changed has another stamp.
    stamp = (os.stat(path).st_size, os.stat(path).st_mtime_ns, READERS)
    arguments = {"kind": kind, "path": os.path.realpath(path), "stamp": stamp, "schema": schema, **options}
    try:
        features = Features.from_arrow_schema(schema)
        return Dataset.from_generator(_rows_for_cache, gen_kwargs=arguments, features=features, cache_dir=cache_dir)
    except Exception as error:
        causes = list(_causes(error))
        own = next((cause for cause in causes if isinstance(cause, DataError)), None)  # wrapped by `datasets`
        raise own or DataError(f"{path} could not be read as {kind}: {causes[-1]}") from error


def check_file(path: str | None, split: str) -> None:
    """Raise a DataError unless `path` is a file with something in it."""
    name = f"--{split}_file {path}"
    if path is None:
        raise DataError(f"there is no {split} data: give --{split}_file.")
    if not os.path.exists(path):
        close = did_you_mean(Path(path).name, [item.name for item in Path(path).absolute().parent.glob("*")])
        raise DataError(f"{name} does not exist (looked from {os.getcwd()}): check the path.{close}")
    if os.path.isdir(path):
        raise DataError(f"{name} is a folder: give a file.")
    if os.path.getsize(path) == 0:
        raise DataError(f"{name} is empty: give a file with data in it.")
    with open(path, "rb") as file:
        if COMPRESSED.match(file.read(16)):
            raise DataError(f"{name} is compressed, or a spreadsheet: give what is in it (unpacked, or saved as CSV).")


def _rows_for_cache(stamp: tuple[int, ...], **arguments: Any) -> Iterator[dict]:
    """The rows of a file. The stamp is only there to be part of the cache's key."""
    return typed_rows(**arguments)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what caused it, the first cause last."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _name_class_labels(rows: Dataset) -> Dataset:
    """Columns of class numbers as class names; -1, which means unlabelled, as None."""
    for column, feature in rows.features.items():
        inner = getattr(feature, "feature", feature)
        if isinstance(inner, ClassLabel):
            features = Features({**rows.features, column: STRING if inner is feature else Sequence(STRING)})
            rows = rows.map(_class_name, fn_kwargs={"column": column, "names": inner.names}, features=features)
    return rows


def _class_name(row: dict, column: str, names: list[str]) -> dict:
    value = row[column]

    def name(number: int | None) -> str | None:
        return names[number] if number is not None and number >= 0 else None

    return {column: list(map(name, value)) if isinstance(value, list) else name(value)}


def map_splits(data: dict[str, Dataset], function: Callable, run: Run, **options: Any) -> dict[str, Dataset]:
    """Each split with `function` applied to batches of its rows, whose columns take the place of the old ones."""
    options = {"num_proc": run.data_args.preprocessing_num_workers, "batched": True, **options}
    options["load_from_cache_file"] = not run.data_args.overwrite_cache
    mapped = {}
    for split, rows in data.items():
        with run.training_args.main_process_first(desc=split):  # so that the others find its cache
            mapped[split] = rows.map(function, remove_columns=rows.column_names, desc=split, **options)
    return mapped


def cut(data: DatasetDict, data_args: DataArguments, seed: int, same: list[str]) -> DatasetDict:
    """Cut off the validation set where `--validation_split_percentage` asks for it, and take the `--max_..._samples`.

    Samples for training and evaluation are drawn at random, since files are often sorted by label; for prediction they
    are the first rows. Both keep the order of the file. Rows that agree in the columns `same` are duplicates, and stay
    on one side of the cut.
    """
    data = DatasetDict(data)
    if is_cut_off(data_args) and "train" in data:
        data["train"], data["validation"] = _cut_off(data["train"], data_args, seed, same)
    samples = (data_args.max_train_samples, data_args.max_eval_samples, data_args.max_predict_samples)
    for split, most in zip(SPLITS, samples, strict=True):
        if split in data and most is not None and most < (count := len(data[split])):
            drawn = range(most) if split == "test" else random.Random(seed).sample(range(count), most)
            data[split] = data[split].select(sorted(drawn))
    return data


def _cut_off(rows: Dataset, data_args: DataArguments, seed: int, same: list[str]) -> tuple[Dataset, Dataset]:
    texts = zip(*(read_column(rows, name) for name in same), strict=True)
    keys = [hashlib.md5(repr(cells).encode()).digest() for cells in texts]
    distinct = list(dict.fromkeys(keys))
    random.Random(seed).shuffle(distinct)
    percentage = data_args.validation_split_percentage
    chosen = set(distinct[: round(len(distinct) * percentage / 100)])
    if not 0 < len(chosen) < len(distinct):
        problem = f"{percentage} of {len(distinct)} distinct rows in {source_of(data_args, 'train')}"
        remedy = "leaves one of the two sides empty: choose another or give a file."
        raise DataError(f"--validation_split_percentage {problem} {remedy}")
    sides = [[row for row, key in enumerate(keys) if (key in chosen) is side] for side in (False, True)]
    return rows.select(sides[0]), rows.select(sides[1])


def set_measured_apart(
    data: DatasetDict, column: str, is_empty: Callable[[Any], bool], run: Run, may_be_empty: bool = False
) -> DatasetDict:
    """The data; where some rows of the test split have no label, with those that have one as a split of their own.

    The test split is then without labels: it is predicted as a whole, and the split `MEASURED` gives the metrics. With
    `may_be_empty` an empty label is an answer too, and missing is None or NaN alone, unless all of them are empty.
    """
    if "test" not in data or column not in data["test"].column_names:
        return data
    rows = data["test"]
    labels = list(read_column(rows, column))
    is_missing = list(map(is_empty, labels))
    if may_be_empty and not all(is_missing):
        is_missing = list(map(lacks_label, labels))
    if not any(is_missing):
        return data
    labelled = [row for row, missing in enumerate(is_missing) if not missing]
    measured = f"; the metrics are of the other {len(labelled)}" if labelled else ""
    problem = f"test: {sum(is_missing)} of {len(rows)} rows have no {column!r}"
    run.say(f"{problem}: predicted, and not measured{measured}")
    split = {MEASURED: rows.select(labelled)} if labelled else {}
    return DatasetDict({**data, "test": rows.remove_columns(column), **split})
