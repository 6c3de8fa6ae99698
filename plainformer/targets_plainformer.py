"""What a decoder is given: its input ids, or the labels that they are made of, checked and completed.

Teacher forcing: a decoder predicts each label from those before it. So it reads the labels moved by one place, after
the start token:

    labels   5      6  7  end
    input    start  5  6  7

A target is what lies from a row's first label to its last, on whichever side the padding is. A label that is ignored
inside of it keeps its place, and is read as the padding token.

Shapes: B batch, L targets of this call, K targets in all, E hidden size.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .inputs_plainformer import read_ids, read_shape, refuse_too_long
from .labels_plainformer import HeadLabels
from .losses_plainformer import IGNORE_INDEX
from .packing_plainformer import count_positions
from .values_plainformer import Question, Questions, check_integers, check_shape, mask_out, refuse_other_than_tensors


@dataclass
class Targets(HeadLabels):
    """The targets of a batch. Their values are looked at together with the sources (`check_values`).

    Attributes:
        input_ids: [B, L]; None where embeddings were given.
        inputs_embeds: [B, L, E]; None where ids were given.
        labels: class ids [B, L], `IGNORE_INDEX` where there is none; None where none were given.
        token_mask: which places hold a token, bool [B, L]; None when all do.
        key_mask: the same of all targets, those in the cache included, bool [B, K]; None when all do.
        position_ids: [B, L]; the tokens of a target count from 0.
        places: where the targets of this call stand among all of their row, [L].
        num_before: how many targets are in the cache; None where only the device knows.
        sizes: how many ids each embedding knows, by the field of the configuration that sets it; None: no limit.
        num_labels: how many places are labelled; None where there are no labels or values cannot be read.
        counted: the question of how many tokens each row has; None where nobody asks.
    """

    out_of_range = (
        f"ids of the targets go from 0 to {{last}} ({IGNORE_INDEX}: unlabelled). Use the tokenizer that belongs to "
        "this model, or resize_token_embeddings for new tokens."
    )
    input_ids: Tensor | None = None
    inputs_embeds: Tensor | None = None
    labels: Tensor | None = None
    token_mask: Tensor | None = None
    key_mask: Tensor | None = None
    position_ids: Tensor | None = None
    places: Tensor | None = None
    num_before: int | None = 0
    sizes: dict[str, int | None] | None = None
    num_labels: int | None = None
    counted: Question | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(B, L)."""
        return tuple(self.position_ids.shape)

    @property
    def lengths(self) -> list[int] | None:
        """How many tokens each row has, [B]; None where they are not known."""
        return None if self.counted is None else self.counted.answer

    def read(self, token_mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
        """The labels, whose values are then checked as those of any head."""
        return self.labels

    def check_values(self, token_mask: Tensor | None, shape: tuple[int, int], questions: Questions) -> None:
        """Ask for the lengths of the targets, and check ids, labels and positions; arguments as in `HeadLabels.read`.

        Raises:
            ValueError: another number of rows than of sources; once `questions` are read: an id or a position that the
                decoder does not have.
        """
        if self.shape[0] != shape[0]:
            raise ValueError(
                f"The targets have {self.shape[0]} rows and the sources {shape[0]}: give one target for each source."
            )
        refuse_too_long(self.position_ids, self.sizes["max_position_embeddings"], questions)
        known = {"shape": self.shape, "token_mask": self.token_mask, "sizes": self.sizes, "questions": questions}
        if self.input_ids is not None:
            self.input_ids = read_ids("decoder_input_ids", self.input_ids, "vocab_size", **known)
        counts = self.position_ids.new_full((self.shape[0],), self.shape[1])
        counts = counts if self.token_mask is None else self.token_mask.sum(dim=1)
        self.counted = questions.ask(lambda: counts)


def read_targets(
    config: Any,
    sizes: dict[str, int | None],
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    inputs_embeds: Tensor | None,
    labels: Tensor | None,
    num_before: int | Tensor = 0,
) -> Targets:
    """Read what a decoder was given; input ids are made of `labels` where neither ids nor embeddings are given.

    Args:
        config: a `PlainformerSeq2SeqConfig`.
        sizes: as in `Targets`.
        attention_mask: of all targets, [B, K]; labels, where given, say by themselves where a target lies.
        num_before: how many targets are in the cache.

    Raises:
        TypeError: something is no tensor.
        ValueError: another shape, no start token, or floating point ids.
    """
    refuse_other_than_tensors(labels=labels, decoder_attention_mask=attention_mask)
    token_mask = key_mask = None
    if labels is not None:
        check_integers("labels", labels, "ids of the targets")
        labels = labels.long()
        token_mask = key_mask = find_targets(labels)
        if input_ids is None and inputs_embeds is None:
            input_ids = shift_right(labels, token_mask, config)
    (B, L), device = read_shape(input_ids, inputs_embeds, config.hidden_size, "decoder_")
    if labels is not None:
        check_shape("labels", labels, [(B, L)])
    elif attention_mask is not None:
        key_mask = read_key_mask(attention_mask, (B, L), num_before)
        token_mask = key_mask[:, -L:]
    places = torch.arange(L, device=device) + num_before  # a new tensor: a static cache counts in place
    position_ids = places.expand(B, L)
    if key_mask is not None:
        position_ids = count_positions(key_mask, None, tuple(key_mask.shape), device)[:, -L:]
    if inputs_embeds is not None:
        inputs_embeds = mask_out(inputs_embeds, token_mask)
    return Targets(
        num_classes=config.vocab_size,
        input_ids=input_ids,
        inputs_embeds=inputs_embeds,
        labels=labels,
        token_mask=token_mask,
        key_mask=key_mask,
        position_ids=position_ids,
        places=places,
        num_before=None if isinstance(num_before, Tensor) else num_before,
        sizes=sizes,
    )


def find_targets(labels: Tensor) -> Tensor:
    """Which places lie from a row's first label to its last, bool [B, L].

    Args:
        labels: [B, L], `IGNORE_INDEX` where there is none.
    """
    labelled = (labels != IGNORE_INDEX).to(torch.int8)
    return (labelled.cummax(dim=1).values & labelled.flip(1).cummax(dim=1).values.flip(1)).bool()


def shift_right(labels: Tensor, token_mask: Tensor, config: Any) -> Tensor:
    """The input ids of teacher forcing, [B, L]: the start token at the first place of a target, then the labels before.

    Args:
        labels: [B, L]; ignored ones are read as the padding token.
        token_mask: where the targets lie, bool [B, L].

    Raises:
        ValueError: the configuration names no start token, or no padding token.
    """
    start, pad = config.decoder_start_token_id, config.pad_token_id
    if start is None:
        raise ValueError(
            "decoder_start_token_id=None: the decoder's input cannot be made from labels. Set "
            "config.decoder_start_token_id, for a BERT tokenizer to tokenizer.cls_token_id."
        )
    pad = start if pad is None else pad
    shifted = F.pad(labels.masked_fill(labels == IGNORE_INDEX, pad)[:, :-1], (1, 0), value=start)
    is_first = token_mask & ~F.pad(token_mask[:, :-1], (1, 0))
    return shifted.masked_fill(is_first, start)


def read_key_mask(attention_mask: Tensor, shape: tuple[int, int], num_before: int | Tensor) -> Tensor:
    """`decoder_attention_mask` as bool [B, K].

    Raises:
        ValueError: another shape.
    """
    B, L = shape
    fits = attention_mask.dim() == 2 and attention_mask.shape[0] == B and attention_mask.shape[1] >= L
    if isinstance(num_before, int):
        fits = fits and attention_mask.shape[1] == num_before + L
    if not fits:
        raise ValueError(
            f"decoder_attention_mask has shape {tuple(attention_mask.shape)}, but must be [{B}, targets in all]: 1 for "
            f"a token, 0 for padding. {L} targets were given, and {num_before} are in the cache."
        )
    return attention_mask.bool()
