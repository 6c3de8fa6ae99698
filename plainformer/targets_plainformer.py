"""What a decoder is given: its input ids, or the labels that they are made of, checked and completed.

Teacher forcing: a decoder predicts each label from those before it. So its input is the labels moved by one place, after
the start token,

    labels   5  6  7  end      input   start  5  6  7

A target is what lies from a row's first label to its last, on whichever side the padding is. A label that is ignored inside
of it keeps its place and is read as the padding token.

Shapes: B batch, L targets of this call, K targets in all, E hidden size.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .inputs_plainformer import read_ids, read_shape, refuse_too_long
from .labels_plainformer import HeadLabels, read_class_ids
from .losses_plainformer import IGNORE_INDEX
from .packing_plainformer import count_positions
from .values_plainformer import Question, Questions, check_shape, mask_out, refuse_other_than_tensors


@dataclass
class Targets:
    """The targets of a batch.

    Attributes:
        shape: (B, L).
        input_ids: [B, L]; None where embeddings were given.
        inputs_embeds: [B, L, E]; None where ids were given.
        token_mask: which places hold a token, bool [B, L]; None when all do.
        key_mask: the same of all targets, those in the cache included, bool [B, K]; None when all do.
        position_ids: [B, L]; the tokens of a target count from 0.
        places: where the targets of this call stand among all, [L].
        num_before: how many targets are in the cache; None where only the device knows.
        labels: class ids [B, L], `IGNORE_INDEX` where there is none; None where none were given.
        counted: the question of how many tokens each row has; None where they are not asked for.
    """

    shape: tuple[int, int]
    input_ids: Tensor | None
    inputs_embeds: Tensor | None
    token_mask: Tensor | None
    key_mask: Tensor | None
    position_ids: Tensor
    places: Tensor
    num_before: int | None
    labels: Tensor | None
    counted: Question | None = None

    @property
    def lengths(self) -> list[int] | None:
        """How many tokens each row has, [B]; None where they are not known."""
        return None if self.counted is None else self.counted.answer


def read_targets(
    config: PlainformerSeq2SeqConfig,
    sizes: dict[str, int | None],
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    inputs_embeds: Tensor | None,
    labels: Tensor | None,
    num_before: int | Tensor,
    questions: Questions,
) -> Targets:
    """Read what a decoder was given; `labels` stand for `input_ids` where neither these nor embeddings are given.

    Args:
        sizes: how many ids each embedding knows, by the field of the configuration that sets it; None: no limit.
        attention_mask: of all targets, [B, K].
        num_before: how many targets are in the cache.

    Raises:
        TypeError: something is no tensor.
        ValueError: input that cannot be meant.
    """
    refuse_other_than_tensors(labels=labels, decoder_attention_mask=attention_mask)
    token_mask = None
    if labels is not None:
        labels = read_class_ids("labels", labels)
        token_mask = find_targets(labels)
        if input_ids is None and inputs_embeds is None:
            input_ids = shift_right(labels, token_mask, config)
    shape, device = read_shape(input_ids, inputs_embeds, config.hidden_size, prefix="decoder_")
    if labels is not None:
        check_shape("labels", labels, [shape])
    places = torch.arange(shape[1], device=device) + num_before  # a new tensor: a static cache counts in place
    key_mask = token_mask
    if labels is None and attention_mask is not None:
        key_mask = read_key_mask(attention_mask, shape, num_before)
        token_mask = key_mask[:, -shape[1] :]
    position_ids = places.expand(shape)
    if key_mask is not None:
        position_ids = count_positions(key_mask, None, tuple(key_mask.shape), device)[:, -shape[1] :]
    num_before = None if isinstance(num_before, Tensor) else num_before
    known = {"shape": shape, "token_mask": token_mask, "sizes": sizes, "questions": questions}
    ...
