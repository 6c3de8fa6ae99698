"""The labels of each kind of head: class ids, with `IGNORE_INDEX` where there is none.

A label at padding, of a row without a token, or of a choice that does not exist counts as unlabelled, whatever its
value. The values of the others are checked together with the rest of the batch, before the encoder runs.

Shapes: B batch, L length, C choices.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .configuration_plainformer import PlainformerConfig
from .losses_plainformer import IGNORE_INDEX, infer_problem_type
from .values_plainformer import check_shape, mask_out, refuse_other_than_tensors


def count_classes(config: PlainformerConfig) -> int:
    """The outputs of a head with classes, `num_labels`.

    Raises:
        ValueError: the label names do not number them from 0, so that an output has no name.
    """
    wrong = sorted(set(map(int, config.id2label)) - set(range(config.num_labels)))
    if wrong:
        raise ValueError(
            f"id2label={config.id2label!r} has the wrong numbers {wrong}: {config.num_labels} labels are numbered from "
            f"0 to {config.num_labels - 1}. Number them so in id2label and label2id, and in the data too."
        )
    return config.num_labels


@dataclass
class HeadLabels:
    """What a head was given to learn from. This one has no class ids: no labels at all, or labels that are values.

    Attributes:
        num_classes: class ids go from 0 to num_classes - 1; None: that needs no check.
    """

    num_classes: int | None = None

    def read(self, token_mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
        """The class ids as int64, `IGNORE_INDEX` where there is no label.

        Args:
            token_mask: which places of the encoder's batch hold a token, bool [B, L]; None for all.
            shape: (B, L) of the encoder's batch.

        Raises:
            TypeError: the labels are no tensor.
            ValueError: they have another shape, or are no integers.
        """
        return None


@dataclass
class TokenLabels(HeadLabels):
    """One class id per token, [B, L]."""

    labels: Tensor | None = None

    def read(self, token_mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
        if self.labels is None:
            return None
        labels = _read_class_ids("labels", self.labels)
        check_shape("labels", labels, [shape])
        return labels if token_mask is None else mask_out(labels.to(token_mask.device), token_mask, IGNORE_INDEX)


@dataclass
class RowLabels(HeadLabels):
    """One class id per row, [B]; or values, of which a loss reads the shape itself.

    Attributes:
        problem_type: as in the configuration; None is inferred from the labels.
    """

    labels: Tensor | None = None
    problem_type: str | None = None

    def read(self, token_mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
        if self.labels is None:
            return None
        refuse_other_than_tensors(labels=self.labels)
        problem_type = self.problem_type or infer_problem_type(self.num_classes, self.labels)
        if problem_type != "single_label_classification":
            return None
        labels = _one_per_row("labels", self.labels, (shape[0], self.num_classes))
        if token_mask is None:
            return labels
        return labels.to(token_mask.device).masked_fill(~token_mask.any(dim=1), IGNORE_INDEX)


@dataclass
class ChoiceLabels(HeadLabels):
    """The number of the right choice per row, [B]; the encoder's batch has B * C rows."""

    labels: Tensor | None = None

    def read(self, token_mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
        if self.labels is None:
            return None
        labels = _one_per_row("labels", self.labels, (shape[0] // self.num_classes, self.num_classes))
        if token_mask is None:
            return labels
        exists = token_mask.any(dim=1).view(-1, self.num_classes)  # [B, C]
        labels = labels.to(exists.device)
        inside = (labels >= 0) & (labels < self.num_classes)
        chosen = labels.clamp(0, self.num_classes - 1)[:, None]  # [B, 1]
        missing = (inside & ~exists.gather(1, chosen)[:, 0]) | ~exists.any(dim=1)
        return labels.masked_fill(missing, IGNORE_INDEX)


@dataclass
class SpanLabels(HeadLabels):
    """The places of the first and the last token of an answer, [B] each; read as [2, B].

    A place outside its row's real tokens counts as unlabelled, as the places of answers that were cut off are.
    """

    start_positions: Tensor | None = None
    end_positions: Tensor | None = None

    def read(self, token_mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
        if (self.start_positions is None) != (self.end_positions is None):
            raise ValueError("Give both start_positions and end_positions, or neither: the loss needs the two.")
        if self.start_positions is None:
            return None
        named = {"start_positions": self.start_positions, "end_positions": self.end_positions}
        positions = torch.stack([_one_per_row(name, values, shape) for name, values in named.items()])  # [2, B]
        inside = (positions >= 0) & (positions < shape[1])
        if token_mask is not None:
            positions, inside = positions.to(token_mask.device), inside.to(token_mask.device)
            inside = inside & token_mask.gather(1, positions.clamp(0, shape[1] - 1).T).T
        return positions.masked_fill(~inside, IGNORE_INDEX)


def _read_class_ids(name: str, labels: Any) -> Tensor:
    """Class ids as int64, which holds the ignored index that bytes and booleans do not."""
    refuse_other_than_tensors(**{name: labels})
    if labels.is_floating_point():
        raise ValueError(f"{name} are {labels.dtype}, but class ids are integers: pass {name}.long().")
    return labels.long()


def _one_per_row(name: str, labels: Any, logits_shape: tuple[int, ...]) -> Tensor:
    """Class ids as [B], for logits [B, ...]; padding must not let a wrong shape be spread over the batch."""
    labels = _read_class_ids(name, labels)
    if labels.numel() != logits_shape[0]:
        raise ValueError(
            f"{name} of shape {tuple(labels.shape)} do not go with logits of shape {logits_shape}: "
            f"there must be one for each of the {logits_shape[0]} rows."
        )
    return labels.reshape(-1)
