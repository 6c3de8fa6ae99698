"""Labels that are lists: read out of text cells, and told apart, as names (or ids), or as a 0 or 1 for each label.

The form is decided over the whole training file, never by its first rows.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from datasets import Dataset, DatasetDict, Features, Sequence, Value

from .arguments import DataArguments
from .columns import as_labels, is_nan, read_column, refuse_rows, source_of, to_number
from .errors import RecipeError
from .run_folder import Run

MULTI_HOT, IDS = "multi_hot", "ids"
BITS = dict.fromkeys(("0", "0.", "0.0", "False"), 0) | dict.fromkeys(("1", "1.", "1.0", "True"), 1)

# What pandas and numpy write of a list into a text cell: ['a', 'b'], ('a',), {'a', 'b'}, [0 1 0], [np.int64(0)],
# array([0, 1]). Items stand between commas, or in numpy's way between blanks.
WRAPPED = re.compile(r"(?:np\.|numpy\.)?(?:array|tensor|set|frozenset)\((.*?)(?:,\s*\w+=[^)]*)?\)", re.DOTALL)
SCALAR = re.compile(r"(?:np\.|numpy\.)\w+\(([^()]*)\)")
BRACKETS = {"[": "]", "(": ")", "{": "}"}
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
ITEM = rf"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|{NUMBER}|True|False|true|false|None|null|nan)"""
ITEMS = re.compile(rf"{ITEM}(?:(?:\s*,\s*|\s+){ITEM})*\s*,?", re.DOTALL)
# [a, b] without quotes, {"a": 1}, a list within a list, [0 0 ... 1] as numpy shortens it, Index(['a'], dtype='object').
UNCLEAR = re.compile(r"\s*(?:\[.*(?:[,:]|\.\.\.).*\]|\[\s*\[.*\]|\{.*[,:].*\}|\w[\w.]*\(\s*[\[({].*\))\s*", re.DOTALL)
CONSTANTS = {"true": "True", "false": "False", "null": None, "nan": None, "None": None}


def parse_list(cell: str) -> list[str | None] | None:
    """The items of a list that was written as text; None for a text that is no list of strings and numbers."""
    text = cell.strip()
    if wrapped := WRAPPED.fullmatch(text):
        text = wrapped[1].strip() or "[]"
    text = SCALAR.sub(r"\1", text)
    if len(text) < 2 or BRACKETS.get(text[0]) != text[-1]:
        return None
    inside = text[1:-1].strip()
    is_tuple = text[0] != "(" or not inside or "," in inside  # (1) is a number between brackets
    if inside and not ITEMS.fullmatch(inside) or not is_tuple:
        return None
    return [_read_item(item) for item in re.findall(ITEM, inside)]


def _read_item(item: str) -> str | None:
    if item[0] in "'\"":
        return ast.literal_eval(item)
    return CONSTANTS.get(item, item)


def read_list_cells(data: DatasetDict, data_args: DataArguments, column: str, run: Run) -> DatasetDict:
    """The data with lists in the place of text cells that all hold one; a line says so.

    A split in which some cells hold a list and others do not is a DataError, and so is `[a, b]` without quotes, which
    may be a list or a name.
    """
    read = {}
    for split, rows in data.items():
        cells = list(read_column(rows, column)) if column in rows.column_names else []
        filled = {row: cell for row, cell in enumerate(cells) if isinstance(cell, str) and cell.strip()}
        others = [row for row, cell in filled.items() if parse_list(cell) is None]
        if len(others) < len(filled):
            problem = f"{column!r} is no list, and the other cells of the file are, such as"
            example = next(cell for row, cell in filled.items() if row not in set(others))
            refuse_rows(data_args, split, others, f"{problem} {example[:60]}. Write all of them in one way.")
            run.say(f"{split}: the text cells of {column!r} are read as lists, such as {example[:60]}")
            rows = with_lists(rows, column, lambda cell: parse_list(cell) if cell and cell.strip() else None)
        else:
            unclear = [row for row, cell in filled.items() if UNCLEAR.fullmatch(cell)]
            unclear += [row for row, cell in enumerate(cells) if isinstance(cell, dict)]
            remedy = "Put the names of a list in quotes, ['a', 'b'], or write a;b and give --label_delimiter \";\"."
            refuse_rows(data_args, split, unclear, f"{column!r} looks like a list, and cannot be read as one. {remedy}")
        read[split] = rows
    return DatasetDict(read)


def with_lists(rows: Dataset, column: str, to_list: Callable[[Any], list[str] | None]) -> Dataset:
    """The rows with `to_list(value)`, texts, in the place of each value of a column."""
    # The type is named, since the first rows may hold empty lists.
    features = Features({**rows.features, column: Sequence(Value("string"))})
    return rows.map(lambda row: {column: to_list(row[column])}, features=features)


def read_multi_hot(
    data: DatasetDict, data_args: DataArguments, column: str, run: Run, trained: list[str] | None
) -> tuple[DatasetDict, list[str] | None]:
    """The data with names in the place of lists of 0 and 1, and the names of all places; `trained` for other labels.

    Args:
        data_args: with `label_form` and `multi_hot_names`, which the user may have given.
        trained: the labels of a model that is not trained further.

    Raises:
        DataError: lists in several forms, or in one that cannot be told; the line is named.
        RecipeError: names that do not fit.
    """
    if not any(column in rows.column_names for rows in data.values()):
        return data, trained
    form, given = find_form(data, data_args, column, trained), data_args.multi_hot_names
    if form != MULTI_HOT:
        if given:
            raise RecipeError(
                f"--multi_hot_names {given}: there are no lists of 0 and 1 that it could name. Leave it out."
            )
        return data, trained
    lists = read_column(data["train" if "train" in data else next(iter(data))], column)
    length = Counter(len(value) for value in lists if isinstance(value, list)).most_common(1)[0][0]
    names = [name.strip() for name in given.split(",")] if given else trained or list(map(str, range(length)))
    if len(names) != length or len(set(names)) < length or not all(names):
        whose = f"--multi_hot_names {given}" if given else f"the model's labels {', '.join(names)}"
        raise RecipeError(
            f"{whose}: the lists in {column!r} have {length} places. Give each of them a name of its own."
        )
    remedy = f"Correct these rows, or give --label_form {IDS} if the numbers are the labels' names."
    problem = f"{column!r} is no list of {length} times 0 or 1, as the others are. {remedy}"
    for split, rows in data.items():
        if column in rows.column_names:
            values = enumerate(read_column(rows, column))
            wrong = [row for row, value in values if not _is_missing(value, split) and not _is_multi_hot(value, length)]
            refuse_rows(data_args, split, wrong, problem)
    run.say(f"{column!r}: multi-hot, a 0 or 1 for each of {length} labels (--label_form {IDS} would read names)")

    def to_names(value: list | None) -> list[str] | None:
        return [name for name, item in zip(names, value, strict=True) if BITS[str(item)]] if value else None

    splits = {split: column in rows.column_names for split, rows in data.items()}
    read = {split: with_lists(data[split], column, to_names) if has else data[split] for split, has in splits.items()}
    return DatasetDict(read), names


def _is_missing(value: Any, split: str) -> bool:
    return value is None or (value == [] and split == "test")


def _is_multi_hot(value: Any, length: int) -> bool:
    return isinstance(value, list) and len(value) == length and all(str(item) in BITS for item in value)


def find_form(data: DatasetDict, data_args: DataArguments, column: str, trained: list[str] | None = None) -> str | None:
    """MULTI_HOT or IDS, the form of the lists of the training data, or of all data where there is none; None: no lists.

    Only 0 and 1 and equal lengths are multi-hot, and as many as the `trained` labels are, where there are such. A list
    that has a number twice holds no ids.
    """
    splits = [split for split, rows in data.items() if column in rows.column_names]
    if "train" in splits:
        splits = ["train"]
    found = {(split, row): value for split in splits for row, value in enumerate(read_column(data[split], column))}
    lists = {row: value for row, value in found.items() if isinstance(value, list)}
    if not any(lists.values()):
        if data_args.label_form:
            raise RecipeError(f"--label_form {data_args.label_form}: there are no lists in {column!r}. Leave it out.")
        return None
    if data_args.label_form:
        return data_args.label_form
    has_bits = all(str(item) in BITS for value in lists.values() for item in value)
    repeats = [row for row, value in lists.items() if len(set(map(str, value))) < len(value)]
    if has_bits and trained and not repeats and set(map(len, lists.values())) != {len(trained)}:
        return IDS
    if has_bits and set(map(len, lists.values())) == {1}:
        problem = f"every list in {column!r} has one item, 0 or 1"
        remedy = f"{MULTI_HOT} (one label, which is there or not) or {IDS} (the label 0, or the label 1)"
        raise RecipeError(f"{source_of(data_args, splits[0])}: {problem}. Say with --label_form what it is: {remedy}.")
    if has_bits and (repeats or len(set(map(len, lists.values()))) == 1):
        return MULTI_HOT
    _refuse_other_numbers(data_args, column, lists, repeats)
    return IDS


def _refuse_other_numbers(data_args: DataArguments, column: str, lists: dict, repeats: list) -> None:
    """Raise a DataError for lists of numbers that are neither multi-hot nor ids: probabilities, counts."""
    remedy = f"Write 0 and 1, or names; --label_form {IDS} takes each number for the name of a label."
    parts = [row for row, value in lists.items() if any((to_number(item) or 0) % 1 for item in value)]
    twice = [row for row in repeats if all(to_number(item) is not None for item in lists[row])]
    for found, problem in ((parts, "has a number between whole ones"), (twice, "has a number twice")):
        for split in dict.fromkeys(split for split, _ in found):
            wrong = [row for other, row in found if other == split]
            refuse_rows(data_args, split, wrong, f"{column!r} {problem}, so it is no list of ids. {remedy}")


def split_cells(data: DatasetDict, data_args: DataArguments, column: str, delimiter: str) -> DatasetDict:
    """The data with a list in the place of each text `sports;politics`, and None where there is none.

    Cells that hold lists already are a DataError, also where all of them are lists that were written as text.
    """

    def split(value: Any) -> list[str] | None:
        if value is None or is_nan(value):
            return None
        return as_labels(value.split(delimiter) if isinstance(value, str) else value)

    splits = {name: column in rows.column_names for name, rows in data.items()}
    problem = f"{column!r} holds a list, which --label_delimiter {delimiter} cannot split. Leave the flag out."
    for name in filter(splits.get, data):
        cells = dict(enumerate(read_column(data[name], column)))
        lists = [row for row, cell in cells.items() if isinstance(cell, (list, dict))]
        texts = [row for row, cell in cells.items() if isinstance(cell, str) and cell.strip()]
        if texts and all(parse_list(cells[row]) is not None for row in texts):
            lists = texts
        refuse_rows(data_args, name, lists, problem)
    return DatasetDict(
        {name: with_lists(data[name], column, split) if has else data[name] for name, has in splits.items()}
    )
