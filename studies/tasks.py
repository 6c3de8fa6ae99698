"""What the models of the studies learn: rules about the order of symbols, and the letters of film reviews.

Every text is a row of symbols between a first and a last token. All texts of a batch have the same length.

Shapes: B batch, n symbols of a text, L = n + 2 tokens.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import prepare_data
import torch
from torch import Tensor

from plainformer import PlainformerForMaskedLM, PlainformerForTokenClassification
from plainformer.losses_plainformer import IGNORE_INDEX

Batch = dict[str, Tensor]

PAD, CLS, SEP, MASK = range(4)
FIRST = 4  # the id of the first symbol
MASKED = 0.15  # of the letters


def between_special(symbols: Tensor, first: int, last: int) -> Tensor:
    """[B, n] -> [B, n + 2]: a column of `first` before the symbols, and one of `last` behind."""
    B = symbols.shape[0]
    return torch.cat((symbols.new_full((B, 1), first), symbols, symbols.new_full((B, 1), last)), dim=1)


# Rules: what stands where decides, so without positions they cannot be learned


@dataclass(frozen=True)
class RuleTask:
    """A token is asked for at each symbol. Texts are drawn at random, so none is seen twice."""

    rule: Callable[[Tensor], Tensor]  # symbols [B, n] -> answers [B, n]
    num_symbols: int = 10
    head: ClassVar[type] = PlainformerForTokenClassification

    @property
    def fields(self) -> dict[str, int]:
        """Of the configuration."""
        return {"vocab_size": FIRST + self.num_symbols, "num_labels": self.num_symbols}

    def draw(self, batch_size: int, length: int, draw: torch.Generator, *, for_test: bool) -> Batch:
        symbols = torch.randint(self.num_symbols, (batch_size, length), generator=draw)  # [B, n]
        labels = between_special(self.rule(symbols), IGNORE_INDEX, IGNORE_INDEX)
        return {"input_ids": between_special(symbols + FIRST, CLS, SEP), "labels": labels}


def reverse(symbols: Tensor) -> Tensor:
    """The first symbol is asked for at the last, and so on."""
    return symbols.flip(1)


def sort(symbols: Tensor) -> Tensor:
    """The lowest symbol is asked for at the first, and so on."""
    return symbols.sort(dim=1).values


def second_before(symbols: Tensor) -> Tensor:
    """The symbol two steps before; the first two have no question. The same distance in every text, however long."""
    return torch.cat((torch.full_like(symbols[:, :2], IGNORE_INDEX), symbols[:, :-2]), dim=1)


# Letters: a masked language model of real text


@dataclass(frozen=True)
class LetterTask:
    """15 % of the letters of a passage are masked, and asked for."""

    head: ClassVar[type] = PlainformerForMaskedLM

    @property
    def fields(self) -> dict[str, int]:
        """Of the configuration."""
        return {"vocab_size": FIRST + len(read_letters()[0])}

    def draw(self, batch_size: int, length: int, draw: torch.Generator, *, for_test: bool) -> Batch:
        _, training, test = read_letters()
        letters = test if for_test else training
        starts = torch.randint(len(letters) - length, (batch_size, 1), generator=draw)
        symbols = letters[starts + torch.arange(length)]  # [B, n]
        is_masked = torch.rand(symbols.shape, generator=draw) < MASKED
        is_masked[:, 0] |= ~is_masked.any(dim=1)  # something is asked in every passage
        labels = between_special(symbols.masked_fill(~is_masked, IGNORE_INDEX), IGNORE_INDEX, IGNORE_INDEX)
        return {"input_ids": between_special(symbols.masked_fill(is_masked, MASK), CLS, SEP), "labels": labels}


@cache
def read_letters() -> tuple[str, Tensor, Tensor]:
    """The alphabet, and the ids of the letters to train on and to test on, of sentences of film reviews."""
    splits = prepare_data.rotten_tomatoes().splits
    training, test = (" ".join(row["text"] for row in splits[name]).lower() for name in ("train", "test"))
    alphabet = "".join(sorted(letter for letter, count in Counter(training).items() if count >= 500))
    return alphabet, *(to_ids(text, alphabet) for text in (training, test))


def to_ids(text: str, alphabet: str) -> Tensor:
    """The ids of the characters; those that the alphabet lacks are left out."""
    ids = {letter: FIRST + index for index, letter in enumerate(alphabet)}
    return torch.tensor([ids[letter] for letter in text if letter in ids])


Task = RuleTask | LetterTask
TASKS: dict[str, Task] = {
    "reverse": RuleTask(reverse),
    "sort": RuleTask(sort),
    "second before": RuleTask(second_before),
    "letters": LetterTask(),
}


# Chinese reviews, of many lengths: for padding, and for pre-training


@dataclass(frozen=True)
class Reviews:
    """Customer reviews as the ids of their characters; and whether each is positive."""

    vocab_size: int
    texts: dict[str, list[list[int]]]  # "train" or "test" -> ids, with [CLS] and [SEP]
    labels: dict[str, Tensor]


@cache
def read_reviews(length: int) -> Reviews:
    """Reviews of at most so many characters each; a character that fewer than five training reviews hold is [MASK]."""
    splits = prepare_data.chinese_reviews().splits
    counts = Counter(letter for row in splits["train"] for letter in set(row["text"]))
    alphabet = sorted(letter for letter, count in counts.items() if count >= 5)
    ids = {letter: FIRST + index for index, letter in enumerate(alphabet)}

    def encode(text: str) -> list[int]:
        return [CLS, *(ids.get(letter, MASK) for letter in text[:length]), SEP]

    names = ("train", "test")
    texts = {name: [encode(row["text"]) for row in splits[name]] for name in names}
    labels = {name: torch.tensor([row["label"] == "positive" for row in splits[name]]).long() for name in names}
    return Reviews(FIRST + len(alphabet), texts, labels)


def pad(texts: Sequence[list[int]]) -> Batch:
    """Texts as a batch, padded on the right to the longest."""
    length = max(map(len, texts))
    ids = torch.tensor([[*text, *[PAD] * (length - len(text))] for text in texts])  # [B, L]
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}


def mask_letters(batch: Batch, draw: torch.Generator) -> Batch:
    """The batch with 15 % of its characters masked, and asked for."""
    ids = batch["input_ids"]
    is_masked = (torch.rand(ids.shape, generator=draw) < MASKED) & (ids >= FIRST)
    labels = ids.masked_fill(~is_masked, IGNORE_INDEX)
    return {**batch, "input_ids": ids.masked_fill(is_masked, MASK), "labels": labels}
