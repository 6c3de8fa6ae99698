"""Which texts are longer than what is read of them, and a line that says how many."""

from datasets import Dataset
from transformers import BatchEncoding, PreTrainedTokenizerBase

from .run_folder import Run


def are_cut(
    tokenizer: PreTrainedTokenizerBase, columns: list[list[str]], encoded: BatchEncoding, length: int
) -> list[bool]:
    """Which of the texts (or pairs of texts, in two columns) are longer than `length` tokens."""
    if tokenizer.is_fast:
        return [bool(encoding.overflowing) for encoding in encoded.encodings]
    return [len(ids) > length for ids in tokenizer(*columns, verbose=False)["input_ids"]]


def report_truncation(rows: Dataset, split: str, run: Run, column: str, texts: str, flag: str, length: int) -> Dataset:
    """Say how many `texts` (the word for them) were cut at the `length` of this flag; the rows without `column`."""
    if count := sum(rows[column]):
        run.say(f"{split}: {count} of {len(rows)} {texts} are longer than {length} tokens and were cut (--{flag})")
    return rows.remove_columns(column)
