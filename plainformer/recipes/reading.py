"""Texts that a tokenizer does not read as they stand: special tokens in them, unknown characters, nothing at all."""

from collections.abc import Iterable
from typing import Any

from datasets import Dataset, DatasetDict
from transformers import PreTrainedTokenizerBase

from .columns import check_rows, read_column
from .errors import RecipeError
from .run_folder import Run

NOTHING, UNKNOWN, READABLE = "nothing", "unknown", "readable"  # what a tokenizer makes of a text


def find_special(value: Any, special: Iterable[str]) -> list[str]:
    """Those of the `special` tokens whose text stands in a text, or in one of a list of texts."""
    texts = value if isinstance(value, list) else [value]
    return [token for token in special if any(token in text for text in texts if text)]


def report_special(
    data: DatasetDict, columns: list[str], tokenizer: PreTrainedTokenizerBase, run: Run, texts: str
) -> None:
    """Say how many `texts` (the word for them) hold the text of a special token, such as [SEP]."""
    special = tokenizer.all_special_tokens
    for split, rows in data.items():
        cells = zip(*(read_column(rows, column) for column in columns), strict=True)
        found = [[token for value in row for token in find_special(value, special)] for row in cells]
        if found := list(filter(None, found)):
            problem = f"{split}: {len(found)} of {len(rows)} {texts} hold the text of a special token, such as"
            run.say(f"{problem} {found[0][0]}: there the model reads that token")


def sort_sources(tokenizer: PreTrainedTokenizerBase, encoded: list[list[int]], columns: int = 1) -> list[str]:
    """Of each encoded text, or pair of texts: NOTHING but special tokens, nothing but UNKNOWN ones, or READABLE."""
    frame, unknown = tokenizer(*[""] * columns)["input_ids"], {tokenizer.unk_token_id}
    inside = [set(ids).difference(frame) for ids in encoded]
    return [READABLE if ids - unknown else UNKNOWN if ids else NOTHING for ids in inside]


def sort_targets(tokenizer: PreTrainedTokenizerBase, encoded: list[list[list[int]]]) -> list[str]:
    """Of the encoded targets of each row, without special tokens: NOTHING in one, UNKNOWN in all, or READABLE."""
    unknown = tokenizer.unk_token_id
    kinds = {False: READABLE, True: UNKNOWN}
    return [kinds[all(unknown in ids for ids in row)] if all(row) else NOTHING for row in encoded]


def report_reading(
    inputs: dict[str, Dataset],
    data: DatasetDict,
    read: DatasetDict,
    columns: list[str],
    kind: str,
    tokenizer: PreTrainedTokenizerBase,
    run: Run,
    unknown: str,
) -> dict[str, Dataset]:
    """Say how many rows are UNKNOWN; the inputs without the column `kind`, which says it.

    Args:
        inputs, data: the rows that are used, as tokenized and as texts.
        read: all rows of the files, in which the lines are counted.
        unknown: what it means for a text to be UNKNOWN, as in "targets hold unknown characters".

    Raises:
        DataError: rows of which the tokenizer leaves NOTHING.
        RecipeError: all training rows are UNKNOWN.
    """
    with_kinds = {split: rows for split, rows in inputs.items() if kind in rows.column_names}
    vanished: set[str] = set()
    for split, rows in with_kinds.items():
        wrong = [row for row, found in enumerate(rows[kind]) if found == NOTHING]
        texts = {text for row in wrong for text in _texts_of(data[split][row], columns)}
        vanished |= {text for text in texts if not tokenizer(text, add_special_tokens=False)["input_ids"]}
    for column in columns if vanished else ():
        problem = f"the tokenizer leaves nothing of {column!r}. Fill these rows in or remove them."
        check_rows(read, run.data_args, [column], lambda *values: vanished.intersection(_flatten(values)), problem)
    for split, rows in with_kinds.items():
        _report_unknown(rows[kind], split, data[split], columns, tokenizer, run, unknown)
    return {**inputs, **{split: rows.remove_columns(kind) for split, rows in with_kinds.items()}}


def _report_unknown(
    kinds: list[str],
    split: str,
    rows: Dataset,
    columns: list[str],
    tokenizer: PreTrainedTokenizerBase,
    run: Run,
    unknown: str,
) -> None:
    if not (count := kinds.count(UNKNOWN)):
        return
    text = _texts_of(rows[kinds.index(UNKNOWN)], columns)[0]
    example = next((sign for sign in text if tokenizer.unk_token_id in tokenizer(sign)["input_ids"]), text[:40])
    problem = f"{split}: {count} of {len(kinds)} {unknown}, such as {example!r}"
    if split == "train" and count == len(kinds):
        remedy = "give one that has them as --tokenizer_name, or leave that out, so that one is trained on the texts"
        if run.model_args.model_name_or_path:
            remedy = "start from a checkpoint that has them"
        raise RecipeError(f"{problem}: {remedy}.")
    run.say(problem)


def _texts_of(row: dict[str, Any], columns: list[str]) -> list[str]:
    return _flatten(row[column] for column in columns)


def _flatten(values: Iterable[str | list[str] | None]) -> list[str]:
    return [text for value in values for text in (value if isinstance(value, list) else [value]) if text]
