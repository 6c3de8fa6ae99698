"""Files in, checked datasets out: the half of every recipe that knows nothing about models.

`load_data` reads CSV, TSV, JSON, JSON lines, plain text, Parquet and CoNLL files, or a dataset of the Hub, into a
`DatasetDict` with the splits `train`, `validation` and `test`, one row per record, memory-mapped and cached by
`datasets`. What is wrong with a file is a `DataError` that names the file, the line and what to do, before training.

The order in a recipe: `load_data`, `find_column` for each column, the checks (they look at whole files, so that a row
can be traced to its line with `where`), and at the end `cut`, which cuts off a validation set and takes samples.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value, load_dataset

SPLITS = ("train", "validation", "test")
EXTENSIONS = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "json",
    ".txt": "text",
    ".text": "text",
    ".parquet": "parquet",
    ".conll": "conll",
    ".conllu": "conll",
    ".bio": "conll",
    ".iob": "conll",
    ".iob2": "conll",
}
FORMATS = tuple(dict.fromkeys(EXTENSIONS.values()))
READERS = 2  # raise it when a reader reads the same file in another way: it is a part of the cache's key
# Written without spaces, so that a run of characters is no word: those of Chinese, and of Japanese with its kana.
UNSPACED = (
    r"\u3005\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    r"\U00020000-\U0003ffff"
)
UNLABELLED = -100  # the label that torch's loss passes over
MAX_FIELD = 2**31 - 1  # characters in one CSV field; the csv module's own limit is 131,072, which a long text exceeds


class DataError(ValueError):
    """Something about the data that its owner has to mend; the message says where it is and what to do."""


@dataclass
class DataArguments:
    """Where the data is and how much of it is used. Each recipe adds the flags of its own."""

    dataset_name: str | None = field(default=None, metadata={"help": "A dataset of the Hub, instead of files."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration, where it has several."})
    train_file: str | None = field(
        default=None, metadata={"help": "Training data: .csv .tsv .json .jsonl .txt .parquet or .conll."}
    )
    validation_file: str | None = field(
        default=None, metadata={"help": "Data to evaluate on, in any of these formats."}
    )
    test_file: str | None = field(default=None, metadata={"help": "Data to predict on; labels are not needed."})
    file_format: str | None = field(
        default=None, metadata={"help": f"How to read the files whatever they are called: {', '.join(FORMATS)}."}
    )
    validation_split_percentage: int | None = field(
        default=None, metadata={"help": "Without validation data: cut off this percentage of the training data."}
    )
    max_train_samples: int | None = field(
        default=None, metadata={"help": "For a try-out: train on so many rows, drawn at random with --seed."}
    )
    max_eval_samples: int | None = field(default=None, metadata={"help": "The same for evaluation."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Predict the first so many rows only."})
    max_seq_length: int = field(default=128, metadata={"help": "Longer inputs are cut at so many tokens."})
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes that tokenize."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenize anew, whatever is cached."})
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after so many evaluations in a row without a better metric."}
    )
    # The flags that the user gave; `parse_args` fills it in, and it is none of the flags.
    given: tuple[str, ...] = field(default=(), init=False, repr=False)

    def file_of(self, split: str) -> str | None:
        """The file that a split is read from, if any."""
        return getattr(self, f"{split}_file")


# Reading


def load_data(data_args: DataArguments, needed: Iterable[str], cache_dir: str | None = None) -> DatasetDict:
    """Read the splits that are `needed` (of `train`, `validation`, `test`), as they are in the files.

    A validation split that `cut` will take from the training data is not asked for here. A column of class numbers
    with names (`ClassLabel`, on the Hub and in some Parquet files) comes as the names.

    Raises:
        DataError: a file is missing, empty, in another encoding, ragged, or not what its name says.
    """
    _check_arguments(data_args)
    wanted = [split for split in SPLITS if split in set(needed)]
    if "validation" in wanted and is_cut_off(data_args):
        wanted = ["train", *(split for split in wanted if split == "test")]
    if data_args.dataset_name:
        data = _load_from_hub(data_args, wanted, cache_dir)
    else:
        data = DatasetDict({split: _load_file(data_args, split, cache_dir) for split in wanted})
    for split, dataset in data.items():
        if not len(dataset):
            raise DataError(f"{_source(data_args, split)} holds no rows: give a file with data in it.")
    return DatasetDict({split: _name_class_labels(dataset) for split, dataset in data.items()})


def is_cut_off(data_args: DataArguments) -> bool:
    """Whether the validation set is a part of the training data."""
    return data_args.validation_split_percentage is not None and data_args.validation_file is None


def _check_arguments(data_args: DataArguments) -> None:
    if data_args.dataset_name and any(data_args.file_of(split) for split in SPLITS):
        raise DataError(
            "--dataset_name and files are given: leave out one of the two, or it is unclear which is meant."
        )
    if data_args.file_format not in (None, *FORMATS):
        raise DataError(f"--file_format {data_args.file_format} is not known: choose one of {', '.join(FORMATS)}.")
    percentage = data_args.validation_split_percentage
    if percentage is not None and not 1 <= percentage <= 99:
        raise DataError(f"--validation_split_percentage {percentage}: give a whole number from 1 to 99.")
    if percentage is not None and data_args.validation_file:
        raise DataError(
            f"--validation_split_percentage {percentage} and --validation_file {data_args.validation_file} are given: "
            "leave out one of the two."
        )
    for name in ("max_train_samples", "max_eval_samples", "max_predict_samples", "early_stopping_patience"):
        value = getattr(data_args, name)
        if value is not None and value < 1:
            raise DataError(f"--{name} {value}: give a whole number of at least 1, or leave it out.")


def _load_from_hub(data_args: DataArguments, wanted: list[str], cache_dir: str | None) -> DatasetDict:
    try:
        data = load_dataset(data_args.dataset_name, data_args.dataset_config_name, cache_dir=cache_dir)
    except Exception as error:  # whatever the network, the Hub or the dataset says
        raise DataError(f"--dataset_name {data_args.dataset_name} could not be loaded: {error}") from error
    missing = [split for split in wanted if split not in data]
    if missing:
        raise DataError(
            f"--dataset_name {data_args.dataset_name} has no split {' and no '.join(map(repr, missing))}, only "
            f"{', '.join(map(repr, data))}. For a validation split give --validation_split_percentage; otherwise say "
            "what to do with --do_train, --do_eval and --do_predict."
        )
    return DatasetDict({split: data[split] for split in wanted})


def _load_file(data_args: DataArguments, split: str, cache_dir: str | None) -> Dataset:
    path = data_args.file_of(split)
    if path is None:
        raise DataError(f"there is no {split} data: give --{split}_file.")
    check_file(path, f"--{split}_file")
    kind = file_format(data_args, path)
    options = {"cache_dir": cache_dir}
    if kind == "parquet":
        return _load_parquet(path, options)
    if kind == "json" and json_layout(path) == "lines":
        return _load_json_lines(path, options)
    # A cached dataset is found again by these arguments, and a file that was changed has another stamp.
    if next((row for row in _read_rows(kind, path, _stamp(path))), None) is None:
        raise DataError(f"{path} holds no rows: give a file with data in it.")
    arguments = {"kind": kind, "path": os.path.realpath(path), "stamp": _stamp(path)}
    features = _text_features(kind, path)
    try:
        return Dataset.from_generator(_read_rows, gen_kwargs=arguments, features=features, **options)
    except Exception as error:
        raise _own_error(error) or DataError(f"{path} could not be read as {kind}: {_root(error)}") from error


def check_file(path: str, flag: str) -> None:
    """Raise a DataError unless `path` is a file with something in it."""
    if not os.path.exists(path):
        close = _closest(Path(path).name, [item.name for item in Path(path).absolute().parent.glob("*")])
        raise DataError(f"{flag} {path} does not exist (looked from {os.getcwd()}): check the path.{close}")
    if os.path.isdir(path):
        raise DataError(f"{flag} {path} is a folder: give a file.")
    if os.path.getsize(path) == 0:
        raise DataError(f"{flag} {path} is empty: give a file with data in it.")


def file_format(data_args: DataArguments, path: str) -> str:
    """The name of the format that `path` is read as."""
    extension = Path(path).suffix.lower()
    if data_args.file_format is None and extension not in EXTENSIONS:
        raise DataError(
            f"{path}: what {extension or 'a file without extension'} holds is not known. Rename it to one of "
            f"{' '.join(EXTENSIONS)}, or give --file_format ({', '.join(FORMATS)})."
        )
    return data_args.file_format or EXTENSIONS[extension]


def _stamp(path: str) -> tuple[int, ...]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, READERS


def _own_error(error: BaseException | None) -> DataError | None:
    """The DataError that `datasets` wrapped in one of its own."""
    while error is not None and not isinstance(error, DataError):
        error = error.__cause__ or error.__context__
    return error


def _root(error: BaseException) -> BaseException:
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return error


def _load_parquet(path: str, options: dict) -> Dataset:
    try:
        return load_dataset("parquet", data_files=[path], split="train", **options)
    except Exception as error:
        raise DataError(f"{path} is not a readable Parquet file: {_root(error)}. Write it again.") from error


def _load_json_lines(path: str, options: dict) -> Dataset:
    try:
        return load_dataset("json", data_files=[path], split="train", **options)
    except Exception as error:
        _explain_json_lines(path)
        raise DataError(f"{path} could not be read as JSON lines: {_root(error)}") from error


def _explain_json_lines(path: str) -> None:
    """Raise a DataError for the first line that is no JSON object, or in which a value changes its type."""
    types: dict[str, tuple[type, int]] = {}
    for line, text in _numbered_lines(path):
        if not text.strip():
            continue
        for name, value in _parse_json_object(path, line, text).items():
            kind = float if isinstance(value, int) and not isinstance(value, bool) else type(value)
            seen, first = types.setdefault(name, (kind, line)) if value is not None else (kind, line)
            if seen is not kind:
                raise DataError(
                    f"{path}, line {line}: {name!r} is {value!r}, of type {kind.__name__}, but on line {first} it is "
                    f"of type {seen.__name__}. Give it one type throughout."
                )


def _parse_json_object(path: str, line: int, text: str) -> dict:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {line}, column {error.colno}: not JSON ({error.msg}). Mend the line.") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}, line {line}: {text.strip()[:40]!r} is no JSON object: write one {{...}} a line.")
    return value


def json_layout(path: str) -> str:
    """`"lines"` for one object a line; `"whole"` where the whole file is one array or one object."""
    _, first = next(_filled_lines(path), (0, ""))
    if first.lstrip().startswith("["):
        return "whole"
    try:
        value = json.loads(first)
    except json.JSONDecodeError as error:  # at its end: the object goes on in the next line
        return "whole" if error.pos >= len(first.rstrip()) else "lines"
    return "whole" if isinstance(value, dict) and isinstance(value.get("data"), list) else "lines"


# One generator per format. All of them count lines from 1 and stop at the first line that is not right.


def _read_rows(kind: str, path: str, stamp: tuple[int, ...]) -> Iterator[dict]:
    """The rows of a file as dictionaries. The stamp is only there to be part of the cache's key."""
    readers = {"csv": read_csv, "tsv": read_tsv, "text": read_text, "conll": read_conll, "json": read_json}
    for _, row in readers[kind](path):
        yield row


def _text_features(kind: str, path: str) -> Features | None:
    """The types of formats that hold nothing but strings; None for JSON, whose values have types of their own.

    A CSV file says nothing about types. Guessed ones depend on the rest of the column: a review "1984" would be a
    number, and the label "NA" a missing value.
    """
    if kind in ("csv", "tsv"):
        return Features({name: Value("string") for name in _csv_header(path, "\t" if kind == "tsv" else ",")})
    if kind == "text":
        return Features({"text": Value("string")})
    if kind == "conll":
        _, row = next(read_conll(path), (0, {"tokens": []}))
        return Features({name: Sequence(Value("string")) for name in row})
    return None


def read_csv(path: str, delimiter: str = ",") -> Iterator[tuple[int, dict[str, str]]]:
    """`(line, row)` of a CSV file with a header. A quoted field may span lines; the line is where the row starts."""
    csv.field_size_limit(MAX_FIELD)
    header = _csv_header(path, delimiter)
    reader = csv.reader((text for _, text in _numbered_lines(path)), delimiter=delimiter, strict=True)
    line = 1
    try:
        for cells in reader:
            if line > 1 and cells:
                if len(cells) != len(header):
                    remedy = "Fill in what is missing; an empty field needs its delimiter too."
                    if len(cells) > len(header):
                        remedy = "Put a field that holds the delimiter in double quotes."
                    raise DataError(
                        f"{path}, line {line}: {len(cells)} field{'s' * (len(cells) > 1)}, but the header has "
                        f"{len(header)} ({', '.join(header)}). {remedy}"
                    )
                yield line, dict(zip(header, cells, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, line {line}: {error}. Put a field that holds a quote in double quotes, and write the quote twice."
        ) from error


def read_tsv(path: str) -> Iterator[tuple[int, dict[str, str]]]:
    """As `read_csv`, with tabs."""
    return read_csv(path, "\t")


def _csv_header(path: str, delimiter: str) -> list[str]:
    _, first = next(_numbered_lines(path), (1, ""))
    header = next(csv.reader([first], delimiter=delimiter), [])
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated or "" in header:
        raise DataError(
            f"{path}, line 1: the header {', '.join(map(repr, header))} must name every column, and each once."
        )
    if not header:
        raise DataError(f"{path}, line 1 is blank: the first line must name the columns.")
    return header


def read_text(path: str) -> Iterator[tuple[int, dict[str, str]]]:
    """`(line, {"text": ...})` of every line that is not blank."""
    for line, text in _filled_lines(path):
        yield line, {"text": text.strip()}


def count_blank_lines(data_args: DataArguments, split: str) -> int:
    """The lines of a split's text file that `read_text` leaves out; 0 for other formats."""
    path = data_args.file_of(split)
    if path is None or file_format(data_args, path) != "text":
        return 0
    return sum(not text.strip() for _, text in _numbered_lines(path))


def read_conll(path: str) -> Iterator[tuple[int, dict[str, list[str]]]]:
    """`(first line, {"tokens": [...], "tags": [...]})` of every sentence.

    One token a line, in columns between tabs or blanks: the token first, its tag last; a blank line ends a sentence.
    `-DOCSTART-` lines and, as in CoNLL-U, comments that start with `# ` are left out; `# O` is the token `#`
    and its tag where others have that tag. A file of one column has no tags. CoNLL-U itself (`.conllu`, ten columns)
    has the word second and its part of speech, `UPOS`, fourth.
    """
    rows: list[list[str]] = []
    start, width, first = 0, 0, 0
    is_conllu = Path(path).suffix.lower() == ".conllu"
    shapes = set() if is_conllu else _shapes_between_blanks(path)
    for line, text in chain(_numbered_lines(path), [(0, "")]):
        is_comment = text.startswith("# ") and (len(text.split()), text.split()[-1]) not in shapes
        if text.strip() and not is_comment and not text.startswith("-DOCSTART-"):
            columns = text.rstrip().split("\t") if "\t" in text else text.split()
            width, first = width or len(columns), first or line
            _check_conll_line(path, line, columns, width, first)
            start = start if rows else line
            if not is_conllu or width != 10:
                rows.append(columns)
            elif columns[0].isdigit():  # 1-2 joins two words that have lines of their own, 2.1 is not in the text
                rows.append([columns[1], columns[3]])
        elif rows and not is_comment:
            yield start, _sentence(rows)
            rows = []


def _shapes_between_blanks(path: str) -> set[tuple[int, str]]:
    """The number of columns, and the tag, of each line that can be no comment and has blanks between its columns.

    `# O` is then a token where there are others of two columns with the tag O, and `# newdoc` a comment.
    """
    lines = (text.split() for _, text in _filled_lines(path) if not text.startswith("# ") and "\t" not in text)
    return {(len(columns), columns[-1]) for columns in lines}


def _check_conll_line(path: str, line: int, columns: list[str], width: int, first: int) -> None:
    if len(columns) != width or not all(column.strip() for column in columns):
        raise DataError(
            f"{path}, line {line}: {len([c for c in columns if c.strip()])} columns ({' '.join(columns)[:40]!r}), but "
            f"line {first} has {width}. Write one token a line with its tag last, and a blank line between sentences."
        )


def _sentence(rows: list[list[str]]) -> dict[str, list[str]]:
    tokens = {"tokens": [columns[0] for columns in rows]}
    return {**tokens, "tags": [columns[-1] for columns in rows]} if len(rows[0]) > 1 else tokens


def read_json(path: str) -> Iterator[tuple[int, dict]]:
    """`(record, row)` of a JSON file that is an array of objects, or an object that holds one as `data`.

    What SQuAD nests as `data`, `paragraphs`, `qas` comes as flat rows: `id`, `title`, `context`, `question`, `answers`.
    """
    try:
        content = json.loads("".join(text for _, text in _numbered_lines(path)))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}, column {error.colno}: not JSON ({error.msg}).") from error
    records = content.get("data") if isinstance(content, dict) else content
    if not isinstance(records, list):
        raise DataError(f"{path} holds neither an array of objects nor an object with one as 'data': rewrite it so.")
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise DataError(f"{path}, record {number}: {str(record)[:40]!r} is no object: write {{...}}.")
        for row in _flatten_squad(path, number, record) if "paragraphs" in record else [record]:
            yield number, row


def _flatten_squad(path: str, number: int, article: dict) -> Iterator[dict]:
    for paragraph in article["paragraphs"]:
        for question in paragraph.get("qas", []):
            try:
                answers = question.get("answers", [])
                yield {
                    "id": str(question["id"]),
                    "title": article.get("title", ""),
                    "context": paragraph["context"],
                    "question": question["question"],
                    "answers": {
                        "text": [answer["text"] for answer in answers],
                        "answer_start": [answer["answer_start"] for answer in answers],
                    },
                }
            except (KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"{path}, record {number}, question {str(question)[:60]}: {error} is missing. A question needs id, "
                    "question and answers (each with text and answer_start), its paragraph a context."
                ) from error


def _filled_lines(path: str) -> Iterator[tuple[int, str]]:
    return ((line, text) for line, text in _numbered_lines(path) if text.strip())


def _numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    """`(line, text with its line end)`. A byte order mark is left out; another encoding than UTF-8 is a DataError."""
    with open(path, "rb") as file:
        for line, data in enumerate(file, start=1):
            try:
                yield line, data.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {line}, byte {error.start + 1}: {data[error.start : error.end]!r} is not UTF-8. "
                    "Save the file as UTF-8."
                ) from error


def _name_class_labels(dataset: Dataset) -> Dataset:
    """Columns of class numbers as class names; -1, which means unlabelled, as None."""
    for name, feature in dataset.features.items():
        inner = getattr(feature, "feature", feature)
        if isinstance(inner, ClassLabel):
            plain = Value("string") if inner is feature else Sequence(Value("string"))
            features = Features({**dataset.features, name: plain})
            dataset = dataset.map(_class_name, fn_kwargs={"column": name, "names": inner.names}, features=features)
    return dataset


def _class_name(row: dict, column: str, names: list[str]) -> dict:
    value = row[column]
    if isinstance(value, list):
        return {column: [names[number] for number in value]}
    return {column: names[value] if value is not None and value >= 0 else None}


# Naming rows and columns


def where(data_args: DataArguments, split: str, row: int) -> str:
    """Where row number `row` (from 0) of a split, as loaded, comes from: `reviews.csv, line 7`."""
    path = data_args.file_of(split)
    if path is None:
        return f"{_source(data_args, split)}, row {row + 1}"
    kind = file_format(data_args, path)
    if kind == "parquet":
        return f"{path}, row {row + 1}"
    if kind == "json" and json_layout(path) == "lines":
        numbered, unit = _filled_lines(path), "line"
    else:
        readers = {"csv": read_csv, "tsv": read_tsv, "text": read_text, "conll": read_conll, "json": read_json}
        numbered, unit = readers[kind](path), "record" if kind == "json" else "line"
    line, _ = next(islice(numbered, row, None))
    return f"{path}, {unit} {line}"


def _source(data_args: DataArguments, split: str) -> str:
    return data_args.file_of(split) or f"split {split!r} of {data_args.dataset_name}"


def find_column(
    data: DatasetDict,
    data_args: DataArguments,
    flag: str,
    given: str | None,
    usual: Iterable[str] = (),
    splits: Iterable[str] | None = None,
) -> str:
    """The name of a column that every split (or each of `splits`) has.

    Args:
        flag: what chooses the column, for the message: `"--label_column_name"`.
        given: the name that the user gave with it; None takes the first of `usual` that is there.

    Raises:
        DataError: there is no such column; the message has those that are there, and the nearest name.
    """
    for split in data if splits is None else splits:
        names = data[split].column_names
        if given is None:
            given = next((name for name in usual if name in names), None)
        if given is None:
            raise DataError(
                f"{_source(data_args, split)} has none of the columns {', '.join(usual)}, only {', '.join(names)}: "
                f"say with {flag} which one it is.{_closest_pair(names, usual)}"
            )
        if given not in names:
            raise DataError(
                f"{_source(data_args, split)} has no column {given!r} ({flag}), only {', '.join(names)}."
                f"{_closest(given, names)}"
            )
    return given


def read_column(rows: Dataset, column: str) -> Iterator[Any]:
    """The values of a column, many at once: fifty times as fast as `for value in rows[column]`, which counts if there
    are millions."""
    for batch in rows.select_columns([column]).iter(batch_size=1000):
        yield from batch[column]


def _closest(name: str, names: Iterable[str]) -> str:
    close = _near(name, names)
    return f" Did you mean {close[0]!r}?" if close else ""


def _near(name: str, names: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(names), n=1)


def _closest_pair(names: Iterable[str], usual: Iterable[str]) -> str:
    """The first of `names` that looks like a misspelt one of `usual`."""
    return next((f" Is {name!r} meant as {close[0]!r}?" for name in names if (close := _near(name, usual))), "")


# Checks


def check_rows(
    data: DatasetDict, data_args: DataArguments, columns: list[str], is_wrong: Callable[..., bool], problem: str
) -> None:
    """Raise a DataError for rows of which `is_wrong(*values of the columns)` holds, all of them counted.

    `problem` completes "3 rows of reviews.csv ...": what is the matter, and what to do. The first are named by line.
    """
    for split, dataset in data.items():
        if not set(columns) <= set(dataset.column_names):
            continue
        values = zip(*(read_column(dataset, column) for column in columns), strict=True)
        wrong = [row for row, cells in enumerate(values) if is_wrong(*cells)]
        if wrong:
            raise DataError(rows_message(data_args, split, wrong, problem))


def rows_message(data_args: DataArguments, split: str, wrong: list[int], problem: str) -> str:
    """`1 row of reviews.csv has ... First: reviews.csv, line 7.`"""
    named = "; ".join(where(data_args, split, row) for row in wrong[:3])
    count = f"{len(wrong)} row{'s' if len(wrong) > 1 else ''}"
    return f"{count} of {_source(data_args, split)}: {problem} {'First: ' if len(wrong) > 3 else 'Here: '}{named}."


def check_texts(data: DatasetDict, data_args: DataArguments, column: str, may_be_empty: bool = False) -> None:
    """Raise a DataError for a column of something else than text, and for empty texts unless they may be empty."""

    def is_no_text(text: Any) -> bool:
        return text is not None and not isinstance(text, str)

    def is_empty(text: Any) -> bool:
        return text is None or not text.strip()

    check_rows(data, data_args, [column], is_no_text, f"{column!r} is no text. Write strings there.")
    if not may_be_empty:
        check_rows(data, data_args, [column], is_empty, f"{column!r} is empty. Fill these rows in or remove them.")


def label_names(
    data: DatasetDict, data_args: DataArguments, column: str, known: Iterable[str] | None = None
) -> list[str]:
    """The sorted names of all classes in the training data.

    Labels are strings or numbers, one a row or a list of them (tags, several labels; the list may be empty). Numbers
    sort as numbers. The test split may have no labels.

    Args:
        known: without training: the classes of the model, which are then the names, in this order.

    Raises:
        DataError: unlabelled rows; one class only; a label that the training data (or the model) does not have.
    """
    labelled = DatasetDict({split: rows for split, rows in data.items() if split != "test"})
    problem = f"{column!r} is empty. Label these rows or remove them."
    check_rows(labelled, data_args, [column], _is_unlabelled, problem)
    if known is not None:
        names = list(known)
    else:
        train = read_column(data["train"], column)
        names = sorted({name for label in train for name in as_labels(label)}, key=_label_order)
    if len(names) < 2:
        raise DataError(
            f"{_source(data_args, 'train')} has only the labels {names} in {column!r}: there is nothing to tell apart. "
            "Is it the right column, and is the file complete?"
        )
    _check_known_labels(data, data_args, column, names, "the training data" if known is None else "the model")
    return names


def _is_unlabelled(label: Any) -> bool:
    return any(map(_is_unlabelled, label)) if isinstance(label, list) else not as_labels(label)


def _check_known_labels(data: DatasetDict, data_args: DataArguments, column: str, names: list[str], whose: str) -> None:
    known = set(names)
    for split, rows in data.items():
        for row, label in enumerate(read_column(rows, column) if column in rows.features else ()):
            unknown = next((name for name in as_labels(label) if name not in known), None)
            if unknown is not None:
                raise DataError(
                    f"{where(data_args, split, row)}: {whose} never has the label {unknown!r} ({column!r}), only "
                    f"{', '.join(names[:20])}.{_closest(unknown, names)} Correct the label, or remove the row."
                )


def as_labels(label: Any) -> list[str]:
    """A label, or a list of labels, as a list of names; nothing for None and blanks."""
    if isinstance(label, (list, tuple)):
        return [name for item in label for name in as_labels(item)]
    if label is None or not str(label).strip():
        return []
    return [str(label).strip()]


def _label_order(name: str) -> tuple:
    try:
        return (0, float(name), name)
    except ValueError:
        return (1, 0.0, name)


# Samples


def cut(data: DatasetDict, data_args: DataArguments, seed: int, same: Iterable[str]) -> DatasetDict:
    """Cut off the validation set where `--validation_split_percentage` asks for it, and take the `--max_..._samples`.

    Samples for training and evaluation are drawn at random, since files are often sorted by label; for prediction they
    are the first rows. Both keep the order of the file.

    Args:
        same: rows that agree in these columns are duplicates, and stay on one side of the cut.
    """
    data = DatasetDict(data)
    if is_cut_off(data_args) and "train" in data:
        data["train"], data["validation"] = _cut_off(data["train"], data_args, seed, list(same))
    most = {
        "train": data_args.max_train_samples,
        "validation": data_args.max_eval_samples,
        "test": data_args.max_predict_samples,
    }
    for split, rows in data.items():
        if most[split] is not None and most[split] < len(rows):
            drawn = random.Random(seed).sample(range(len(rows)), most[split]) if split != "test" else range(most[split])
            data[split] = rows.select(sorted(drawn))
    return data


def _cut_off(rows: Dataset, data_args: DataArguments, seed: int, same: list[str]) -> tuple[Dataset, Dataset]:
    texts = zip(*(read_column(rows, name) for name in same), strict=True)
    keys = [hashlib.md5(repr(cells).encode()).digest() for cells in texts]
    distinct = list(dict.fromkeys(keys))
    random.Random(seed).shuffle(distinct)
    size = round(len(distinct) * data_args.validation_split_percentage / 100)
    if not 0 < size < len(distinct):
        raise DataError(
            f"--validation_split_percentage {data_args.validation_split_percentage} of {len(distinct)} distinct rows "
            f"in {_source(data_args, 'train')} leaves one of the two sides empty: choose another or give a file."
        )
    chosen = set(distinct[:size])
    sides: tuple[list[int], list[int]] = ([], [])
    for row, key in enumerate(keys):
        sides[key in chosen].append(row)
    return rows.select(sides[0]), rows.select(sides[1])
