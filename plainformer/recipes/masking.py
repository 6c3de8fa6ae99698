"""What masked-LM training needs between texts and batches, in the order data flows:

    Template         the special tokens that the tokenizer puts around a text
    tokenize_texts   texts -> token ids, and to which word of its text each token belongs
    pack             tokenized texts -> full rows in which no text sees another (`cut_apart`: a row for each)
    number_rows      gives each row its number
    MaskingCollator  rows -> a padded batch, masked as a pure function of (seed, epoch, row number)
    EpochClock       gives the collator, in whatever process it works, the number of the epoch

Masking draws nothing from a global generator: data loaders fetch batches ahead and in other processes, so that the
masks would depend on the number of workers, and a resumed run would not see those of the straight run.

L tokens of a row, N tokens that may be masked, W words.
"""

import importlib
import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from multiprocessing.sharedctypes import RawValue

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, TrainerCallback

from .errors import RecipeError
from .metrics import IGNORE_INDEX, UNSPACED

NO_WORD = -1  # the word of a special token
AS_MASK, AS_RANDOM = 0.8, 0.1  # of the chosen tokens (Devlin et al. 2018); the others stay as they are
IS_UNSPACED = re.compile(f"[{UNSPACED}]")

Segmenter = Callable[[str], Iterable[str]]  # text -> its words, in order
Columns = dict[str, list[list[int]]]  # as `datasets.map(batched=True)` takes and gives them


def load_segmenter(name: str) -> Segmenter:
    """The function that `name` stands for: "jieba:lcut", "snownlp.seg:seg", "my_module:my_function"."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise RecipeError(f"--segmenter {name!r}: give a module and a function, as in jieba:lcut or snownlp.seg:seg.")
    try:
        segment = getattr(importlib.import_module(module_name), function_name, None)
    except ImportError as error:
        remedy = f"Install it (pip install {module_name.split('.')[0]}), or put its folder on PYTHONPATH."
        raise RecipeError(f"--segmenter {name!r}: {error}. {remedy}") from error
    if not callable(segment):
        raise RecipeError(f"--segmenter {name!r}: {module_name} has no function {function_name!r}. Check its spelling.")
    return segment


@dataclass(frozen=True)
class Template:
    """The special tokens before and after a text, such as [CLS] and [SEP]: their ids."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "Template":
        """Those of a tokenizer, whatever its template is; a RecipeError where they cannot be told from a text.

        They are seen in an encoded text: `build_inputs_with_special_tokens`, which would say it, is gone from fast
        tokenizers in transformers 5.
        """
        ids, bare = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (True, False))
        before = next((at for at in range(len(ids)) if bare and ids[at : at + len(bare)] == bare), None)
        if before is None or len(ids) - len(bare) != tokenizer.num_special_tokens_to_add():
            tokens = f"{tokenizer.convert_ids_to_tokens(ids)} with special tokens, {bare} without"
            problem = f"{type(tokenizer).__name__} does not put its special tokens around a text ('a' is {tokens})"
            raise RecipeError(f"{problem}: give another --tokenizer_name.")
        return cls(tuple(ids[:before]), tuple(ids[before + len(bare) :]))

    def __len__(self) -> int:
        return len(self.before) + len(self.after)

    def inside(self, values: list) -> list:
        """The values of the tokens of the text, from those of all tokens."""
        return values[len(self.before) : len(values) - len(self.after)]

    def pieces(self, values: list[int], length: int) -> Iterator[list[int]]:
        """Pieces of at most `length` tokens, each of which has the special tokens of the whole; none of no text."""
        inside = self.inside(values)
        before, after = values[: len(self.before)], values[len(values) - len(self.after) :]
        for start in range(0, len(inside), length - len(self)):
            yield [*before, *inside[start : start + length - len(self)], *after]


def tokenize_texts(
    texts: list[str], tokenizer: PreTrainedTokenizerFast, template: Template, segment: Segmenter | None = None
) -> Columns:
    """Token ids of each text with its special tokens, and the word each token belongs to. Nothing is cut off.

    `word_ids` rise from 0 along a text. Without a segmenter, a word is what spaces and punctuation leave, with all its
    `##` pieces, and each Chinese character is a word: only a segmenter knows where Chinese words end.
    """
    # It is not verbose: it would warn of texts longer than the model, which `pack` cuts.
    encoded = tokenizer(texts, return_offsets_mapping=True, verbose=False)
    word_ids = []
    for text, spans, encoding in zip(texts, encoded["offset_mapping"], encoded.encodings, strict=True):
        spans = template.inside(spans)
        if segment:
            owner = words_of_characters(text, segment)
            words = [owner[start] for start, _ in spans]
        else:  # around characters of such scripts the tokenizer splits or not, so that each token is a word there
            tokens = enumerate(zip(spans, template.inside(encoding.word_ids), strict=True))
            words = [("token", index) if IS_UNSPACED.search(text, *span) else word for index, (span, word) in tokens]
        begins = [word != before for before, word in pairwise([None, *words])]
        numbers = [number - 1 for number in accumulate(begins)]
        word_ids.append([*[NO_WORD] * len(template.before), *numbers, *[NO_WORD] * len(template.after)])
    return {"input_ids": encoded["input_ids"], "word_ids": word_ids}


def words_of_characters(text: str, segment: Segmenter) -> list[int]:
    """The segmenter's word each character belongs to. What it leaves out, such as spaces, is a word of its own."""
    owner, position = list(range(-len(text), 0)), 0  # distinct numbers below 0 for what is left out
    for number, word in enumerate(segment(text)):
        start = text.find(word, position) if isinstance(word, str) else -1
        if start < 0:
            problem = f"The segmenter gave the word {word!r}, which does not stand after character {position}"
            remedy = "It must return the words of the text unchanged and in order, as strings."
            raise ValueError(f"{problem} of {text[:60]!r}. {remedy}")
        position = start + len(word)
        owner[start:position] = [number] * len(word)
    return owner


def check_row_length(row_length: int, template: Template) -> None:
    """A row needs room for a token of its own."""
    if row_length <= len(template):
        room = f"a row needs room for {len(template)} special tokens and one of the text: {len(template) + 1} or more."
        raise RecipeError(f"--max_seq_length {row_length}: {room}")


def cut_apart(documents: Columns, row_length: int, template: Template) -> Columns:
    """Rows of their own for each document, from the columns of `tokenize_texts`; not padded.

    A document longer than a row is cut into pieces that have its special tokens each. One without any other token is
    left out.
    """
    check_row_length(row_length, template)
    return {
        name: [piece for document in values for piece in template.pieces(document, row_length)]
        for name, values in documents.items()
    }


def pack(documents: Columns, row_length: int, template: Template) -> Columns:
    """The pieces of `cut_apart` side by side in rows of at most `row_length` tokens, as full as they get.

    Positions (`position_ids`) start at 0 for each piece: that is how Plainformer tells the documents of a row apart, so
    that none attends to another. Rows come in the order of their first pieces, and the same documents give the same.
    """
    pieces = cut_apart(documents, row_length, template)
    pieces["position_ids"] = [list(range(len(ids))) for ids in pieces["input_ids"]]
    rows: Columns = {name: [] for name in pieces}
    for chosen in fill_rows(list(map(len, pieces["input_ids"])), row_length):
        for name, values in pieces.items():
            parts = [values[piece] for piece in chosen]
            rows[name].append(renumber(parts) if name == "word_ids" else sum(parts, []))
    return rows


def fill_rows(lengths: list[int], row_length: int) -> list[list[int]]:
    """The pieces of each row: from long to short, each goes where it leaves the least room (best fit decreasing)."""
    rows: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (tokens left, row), sorted
    for piece in sorted(range(len(lengths)), key=lambda piece: -lengths[piece]):
        at = bisect_left(room, (lengths[piece], 0))
        if at == len(room):  # no row has so much room
            room.append((row_length, len(rows)))
            rows.append([])
        left, row = room.pop(at)
        rows[row].append(piece)
        insort(room, (left - lengths[piece], row))
    return sorted(sorted(row) for row in rows)


def renumber(pieces: list[list[int]]) -> list[int]:
    """Word numbers of several pieces after each other, so that each number belongs to one piece."""
    numbers, start = [], 0
    for words in pieces:
        numbers += [word if word == NO_WORD else word + start for word in words]
        start += max(words) + 1
    return numbers


def number_rows(dataset: Dataset, for_evaluation: bool = False) -> Dataset:
    """Add the column `row`, on which the masks depend; and for evaluation `epoch`, which keeps them what they are."""
    dataset = dataset.add_column("row", list(range(len(dataset))))
    return dataset.add_column("epoch", [0] * len(dataset)) if for_evaluation else dataset


class EpochClock(TrainerCallback):
    """The epoch of a `Trainer`, in memory that the processes which load its data read too.

    A worker that lives through several epochs keeps its first copy of the collator, and sees the epoch change anyway.
    """

    def __init__(self) -> None:
        self._epoch = RawValue("q", 0)

    @property
    def epoch(self) -> int:
        return self._epoch.value

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._epoch.value = epoch

    def on_epoch_begin(self, args, state, control, **kwargs) -> None:
        self.epoch = int(state.epoch or 0)  # 1.5 where a run is resumed in the middle of its second epoch


def check_probability(mlm_probability: float) -> None:
    """A fraction of the tokens is masked: not none and not all."""
    if not 0 < mlm_probability < 1:
        raise RecipeError(f"--mlm_probability {mlm_probability}: give a fraction above 0 and below 1; 0.15 is usual.")


@dataclass
class MaskingCollator:
    """Rows -> a batch for a masked LM: input_ids, attention_mask, position_ids and labels, padded on the right.

    Where the tokenizer has no special tokens, packed rows also have `seq_idx`, the number of each token's document.

    A row has `input_ids`, `row` and, as far as they matter, `position_ids` (of `pack`), `word_ids` (whole words are
    masked) and `epoch` (instead of the clock's: see `number_rows`). `Trainer` drops the columns that the model
    does not take, so that it needs `remove_unused_columns=False`; and the clock among its callbacks.
    """

    tokenizer: PreTrainedTokenizerBase
    mlm_probability: float = 0.15  # the fraction of tokens to predict, in expectation
    seed: int = 0  # another seed, other masks
    clock: EpochClock | None = None  # where the epoch is read; None: it is always 0

    def __post_init__(self) -> None:
        check_probability(self.mlm_probability)
        self.mask_id, self.pad_id = self.tokenizer.mask_token_id, self.tokenizer.pad_token_id
        if self.mask_id is None or self.pad_id is None:
            raise RecipeError("the tokenizer lacks [MASK] or [PAD]: give one like BERT's (plainformer.train_tokenizer)")
        template = Template.of(self.tokenizer)
        self.special_ids = np.array(sorted({*self.tokenizer.all_special_ids, *template.before, *template.after}))
        self.has_special = len(template) > 0
        self.ordinary_ids = np.setdiff1d(np.arange(len(self.tokenizer)), self.special_ids)

    def __call__(self, rows: list[dict[str, list[int] | int]]) -> dict[str, Tensor]:
        masked, labels = zip(*map(self.mask, rows), strict=True)
        batch = {
            "input_ids": pad(masked, self.pad_id),
            "attention_mask": pad(map(np.ones_like, masked), 0),
            "position_ids": pad((row.get("position_ids", range(len(row["input_ids"]))) for row in rows), 0),
            "labels": pad(labels, IGNORE_INDEX),
        }
        if not self.has_special and "position_ids" in rows[0]:
            # Documents of one token have position 0 each, and a row of nothing else would read as a single text.
            batch["seq_idx"] = (batch["position_ids"] == 0).cumsum(dim=1)
        return batch

    def mask(self, row: dict[str, list[int] | int]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of a row with its masks, and its labels, [L] each."""
        epoch = row.get("epoch", self.clock.epoch if self.clock else 0)
        generator = np.random.default_rng([self.seed, epoch, row["row"]])
        ids = np.array(row["input_ids"])
        ordinary = np.flatnonzero(~np.isin(ids, self.special_ids))  # [N]
        words = np.array(row["word_ids"])[ordinary] if "word_ids" in row else np.arange(len(ordinary))
        chosen = ordinary[choose(words, self.mlm_probability, generator)]
        labels = np.full_like(ids, IGNORE_INDEX)
        labels[chosen] = ids[chosen]
        ids[chosen] = self.replace(ids[chosen], generator)
        return ids, labels

    def replace(self, ids: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """What stands instead of the tokens that are to be predicted: [MASK], any ordinary token, or the same."""
        draw = generator.random(len(ids))
        others = generator.choice(self.ordinary_ids, len(ids))
        return np.where(draw < AS_MASK, self.mask_id, np.where(draw < AS_MASK + AS_RANDOM, others, ids))


def choose(words: np.ndarray, mlm_probability: float, generator: np.random.Generator) -> np.ndarray:
    """Whole words in random order until the fraction `mlm_probability` of the tokens is chosen: a mask, bool [N].

    `words` has the word of each token, [N]. The word that would go beyond is taken with such a probability that the
    fraction is met in expectation, for any lengths: never to take it would mask less, and long words too seldom.
    """
    _, word, sizes = np.unique(words, return_inverse=True, return_counts=True)  # [N] and [W]
    order = generator.permutation(len(sizes))  # [W]
    before = np.cumsum(sizes[order]) - sizes[order]  # tokens chosen before this word has its turn
    left = mlm_probability * len(words) - before
    taken = np.zeros(len(sizes), dtype=bool)
    taken[order] = (left > 0) & (generator.random() * sizes[order] < left)
    return taken[word]


def pad(rows: Iterable[Iterable[int]], value: int) -> Tensor:
    """Rows of different lengths as one tensor, [B, L]."""
    return pad_sequence([torch.tensor(np.array(row)) for row in rows], batch_first=True, padding_value=value)
