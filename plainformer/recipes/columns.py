"""Finding the columns of a recipe, checking what is in them, and naming the line of the file that is wrong."""

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from itertools import islice
from typing import Any

from datasets import Dataset, DatasetDict

from .arguments import DataArguments
from .data_files import file_format, json_layout, read_rows
from .errors import DataError

# Naming rows and columns


def where(data_args: DataArguments, split: str, row: int) -> str:
    """Where row number `row` (from 0) of a split, as loaded, comes from: `reviews.csv, line 7`."""
    path = data_args.file_of(split)
    kind = file_format(path, data_args.file_format) if path else "parquet"  # of the Hub, whose data sets have no lines
    if kind == "parquet":
        return f"{source_of(data_args, split)}, row {row + 1}"
    unit = "record" if kind == "json" and json_layout(path) == "whole" else "line"
    line, _ = next(islice(read_rows(kind, path), row, None))
    return f"{path}, {unit} {line}"


def source_of(data_args: DataArguments, split: str) -> str:
    """The name of a split for a message: its file, or the dataset of the Hub."""
    return data_args.file_of(split) or f"split {split!r} of {data_args.dataset_name}"


def find_column(
    data: DatasetDict, data_args: DataArguments, flag: str, given: str | None, usual: Iterable[str] = ()
) -> str:
    """The name of a column that every split has.

    Args:
        flag: what chooses the column, for the message: `"--label_column_name"`.
        given: the name that the user gave with it; None takes the first of `usual` that is there.

    Raises:
        DataError: there is no such column; the message has those that are there, and the nearest name.
    """
    for split, rows in data.items():
        names = rows.column_names
        if given is None:
            given = next((name for name in usual if name in names), None)
        if given is None:
            raise DataError(
                f"{source_of(data_args, split)} has none of the columns {', '.join(usual)}, only {', '.join(names)}: "
                f"say with {flag} which one it is.{_misspelt(names, usual)}"
            )
        if given not in names:
            raise DataError(
                f"{source_of(data_args, split)} has no column {given!r} ({flag}), only {', '.join(names)}."
                f"{did_you_mean(given, names)}"
            )
    return given


def labelled_splits(data: DatasetDict) -> DatasetDict:
    """The splits that must have labels: all but the test split."""
    return DatasetDict({split: rows for split, rows in data.items() if split != "test"})


def read_column(rows: Dataset, column: str) -> Iterator[Any]:
    """The values of a column, many at once: fifty times as fast as `for value in rows[column]`, which matters for
    millions of rows."""
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
    return f"{count} of {source_of(data_args, split)}: {problem} {'First: ' if len(wrong) > 3 else 'Here: '}{named}."


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
    problem = f"{column!r} is empty. Label these rows or remove them."
    check_rows(labelled_splits(data), data_args, [column], _lacks_label, problem)
    if known is not None:
        names = list(known)
    else:
        train = read_column(data["train"], column)
        names = sorted({name for label in train for name in as_labels(label)}, key=_label_order)
    if len(names) < 2:
        raise DataError(
            f"{source_of(data_args, 'train')} has only the labels {names} in {column!r}: there is nothing to tell "
            "apart. Is it the right column, and is the file complete?"
        )
    _check_known_labels(data, data_args, column, names, "the training data" if known is None else "the model")
    return names


def _lacks_label(label: Any) -> bool:
    return any(map(_lacks_label, label)) if isinstance(label, list) else not as_labels(label)


def _check_known_labels(data: DatasetDict, data_args: DataArguments, column: str, names: list[str], whose: str) -> None:
    known = set(names)
    for split, rows in data.items():
        for row, label in enumerate(read_column(rows, column) if column in rows.features else ()):
            unknown = next((name for name in as_labels(label) if name not in known), None)
            if unknown is not None:
                raise DataError(
                    f"{where(data_args, split, row)}: {whose} never has the label {unknown!r} ({column!r}), only "
                    f"{', '.join(names[:20])}.{did_you_mean(unknown, names)} Correct the label, or remove the row."
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
