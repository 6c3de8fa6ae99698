"""Finding the columns of a recipe, checking what is in them, and naming the line of the file that is wrong."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

from datasets import Dataset, DatasetDict

from .arguments import DataArguments
from .data_files import file_format, read_rows
from .errors import DataError


def where(data_args: DataArguments, split: str, row: int) -> str:
    """Where row number `row` (from 0) of a split, as loaded, comes from: `reviews.csv, line 7`."""
    path = data_args.file_of(split)
    kind = file_format(path, data_args.file_format) if path else "parquet"  # of the Hub, whose data sets have no lines
    if kind == "parquet":
        return f"{source_of(data_args, split)}, row {row + 1}"
    place, _ = next(islice(read_rows(kind, path, **data_args.reading_options()), row, None))
    return f"{path}, {place}"


def source_of(data_args: DataArguments, split: str) -> str:
    """The name of a split for a message: its file, or the dataset of the Hub."""
    return data_args.file_of(split) or f"split {split!r} of {data_args.dataset_name}"


def find_column(
    data: DatasetDict, data_args: DataArguments, flag: str, usual: Iterable[str] = (), given: str | None = None
) -> str:
    """The name of a column that every split has, or a DataError with the columns that are there.

    The argument `flag` chooses it (`given` is one name of an argument that holds several), or else it is the first of
    the `usual` ones that is there.
    """
    given = given or getattr(data_args, flag)
    for split, rows in data.items():
        names, source = rows.column_names, source_of(data_args, split)
        given = given or next((name for name in usual if name in names), None)
        if given is None:
            problem = f"has none of the columns {', '.join(usual)}, only {', '.join(names)}"
            raise DataError(f"{source} {problem}: say with --{flag} which one it is.{_misspelt(names, usual)}")
        if given not in names:
            problem = f"has no column {given!r} (--{flag}), only {', '.join(names)}"
            raise DataError(f"{source} {problem}.{did_you_mean(given, names)}")
    return given


def find_label_column(
    data: DatasetDict, data_args: DataArguments, flag: str, usual: Sequence[str], note: Callable[[str], None]
) -> str:
    """The name of the column of labels, as in `find_column`; the test split may come without, which `note` is told."""
    labelled = labelled_splits(data)
    if labelled or flag in data_args.given:
        label = find_column(labelled or data, data_args, flag, usual)
    else:
        label = next((name for name in usual if name in data["test"].column_names), usual[0])
    if "test" in data and label not in (names := data["test"].column_names):
        meant = [label, *usual]
        near = [name for name in names if name in usual or get_close_matches(name.strip().lower(), meant, n=1)]
        others = f" (there is {', '.join(map(repr, near))})" if near else ""
        note(f"test: no column {label!r}{others}: predicted, and not measured")
    return label


def labelled_splits(data: DatasetDict) -> DatasetDict:
    """The splits that must have labels: all but the test split."""
    return DatasetDict({split: rows for split, rows in data.items() if split != "test"})


def read_column(rows: Dataset, column: str) -> Iterator[Any]:
    """The values of a column, many at once: fifty times as fast as `for value in rows[column]`."""
    for batch in rows.select_columns([column]).iter(batch_size=1000):
        yield from batch[column]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """` Did you mean 'label'?`, or nothing where no name is near."""
    close = get_close_matches(name, list(names), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _misspelt(names: Iterable[str], usual: Iterable[str]) -> str:
    """` Is 'lable' meant as 'label'?`, of the first of `names` that is near to one of `usual`."""
    pairs = ((name, get_close_matches(name, list(usual), n=1)) for name in names)
    return next((f" Is {name!r} meant as {close[0]!r}?" for name, close in pairs if close), "")


def check_rows(
    data: DatasetDict,
    data_args: DataArguments,
    columns: list[str],
    is_wrong: Callable[..., bool],
    problem: str,
    explain: Callable[[dict], str] | None = None,
) -> None:
    """Raise a DataError for rows of which `is_wrong(*values of the columns)` holds, all of them counted.

    `problem` says what is the matter, and what to do. The first are named by line; `explain` says more about the first.
    """
    for split, rows in data.items():
        if set(columns) <= set(rows.column_names):
            values = zip(*(read_column(rows, column) for column in columns), strict=True)
            wrong = [row for row, cells in enumerate(values) if is_wrong(*cells)]
            refuse_rows(data_args, split, wrong, problem, explain(rows[wrong[0]]) if wrong and explain else "")


def refuse_rows(data_args: DataArguments, split: str, wrong: list[int], problem: str, more: str = "") -> None:
    """Raise a DataError if there are any `wrong` rows."""
    if wrong:
        count = f"{len(wrong)} row{'s' if len(wrong) > 1 else ''} of {source_of(data_args, split)}"
        named = "; ".join(where(data_args, split, row) for row in wrong[:3])
        raise DataError(f"{count}: {problem} {'First' if len(wrong) > 3 else 'Here'}: {named}. {more}".rstrip())


def check_texts(data: DatasetDict, data_args: DataArguments, columns: list[str], may_be_empty: bool = False) -> None:
    """Raise a DataError for columns of something else than text, and for empty texts unless they may be empty."""
    for column in columns:
        problem = f"{column!r} is no text. Write strings there."
        check_rows(data, data_args, [column], lambda text: not isinstance(text, str | None), problem)
        if not may_be_empty:
            problem = f"{column!r} is empty. Fill these rows in or remove them."
            check_rows(data, data_args, [column], lambda text: not (text and text.strip()), problem)


def label_names(data: DatasetDict, data_args: DataArguments, column: str, known: list[str] | None = None) -> list[str]:
    """The sorted names of all classes in the training data, numbers in their order; or those that are `known` already.

    Labels are strings or numbers, one a row or a list of them, which may be empty. The test split may have none.
    Unlabelled rows, a single class, and a label that the training data (or the model) does not have are DataErrors.
    """
    problem = f"{column!r} is neither text nor number, nor a flat list of these. Write strings there."
    check_rows(data, data_args, [column], _is_no_label, problem)
    problem = f"{column!r} is empty. Label these rows or remove them."
    check_rows(labelled_splits(data), data_args, [column], lacks_label, problem)
    names, whose = known, "the model"
    if known is None:
        found = {name for label in read_column(data["train"], column) for name in as_labels(label)}
        names, whose = sorted(found, key=_label_order), "the training data"
        if len(names) < 2:
            problem = f"{source_of(data_args, 'train')} has only the labels {names} in {column!r}: there is nothing"
            raise DataError(f"{problem} to tell apart. Is it the right column, and the file complete?")
    classes = set(names)

    def unknown(label: Any) -> list[str]:
        return [name for name in as_labels(label) if name not in classes]

    def explain(row: dict) -> str:
        name = unknown(row[column])[0]
        same = next((known for known in names if _look_alike(known, name)), None)
        remedy = f" Write it {same!r}, as {whose} has it." if same else did_you_mean(name, names)
        return f"The first is {name!r}.{remedy}"

    problem = f"{column!r} has labels that {whose} never has, only {', '.join(names[:20])}. Correct or remove them."
    check_rows(data, data_args, [column], unknown, problem, explain)
    return names


def _is_no_label(label: Any) -> bool:
    items = label if isinstance(label, list) else [label]
    return any(isinstance(item, (list, dict, bytes)) for item in items)


def _look_alike(one: str, other: str) -> bool:
    """Whether two names differ only in how a number (1, 1.0) or a truth value (true, True) is written."""
    number = to_number(one)
    return one.lower() == other.lower() or (number is not None and number == to_number(other))


def lacks_label(label: Any) -> bool:
    """Whether a label is missing, or one in a list; an empty list is an answer: none of the labels."""
    return any(map(lacks_label, label)) if isinstance(label, list) else not as_labels(label)


def is_nan(value: Any) -> bool:
    """Whether a value is the NaN that stands for what is missing in a column of numbers."""
    return isinstance(value, float) and math.isnan(value)


def as_labels(label: Any) -> list[str]:
    """A label, or a list of labels, as a list of names; nothing for None, NaN and blanks.

    A whole number has one name, whether its column holds integers or, since others are missing, floats.
    """
    if isinstance(label, (list, tuple)):
        return [name for item in label for name in as_labels(item)]
    if is_nan(label):
        return []
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    name = "" if label is None else str(label).strip()
    return [name] if name else []


def _label_order(name: str) -> tuple:
    number = to_number(name)
    return (number is None, number or 0.0, name)


def to_number(value: Any) -> float | None:
    """A finite number, or None for everything else."""
    try:
        return float(value) if math.isfinite(float(value)) else None
    except (TypeError, ValueError):
        return None
