"""The labels of each kind of head: class ids, with `IGNORE_INDEX` where there is none, or values.

A label at padding, of a row without a token, or of a choice that does not exist counts as unlabelled, whatever its
value. The values of the others are checked together with the rest of the batch, before the encoder runs.

Shapes: B batch, L length, C choices.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .configuration_plainformer import PlainformerConfig
from .losses_plainformer import IGNORE_INDEX, infer_problem_type, refuse_other_values
from .values_plainformer import Questions, check_integers, check_shape, mask_out, refuse_other_than_tensors

SINGLE_LABEL = "single_label_classification"  # the problem type whose labels are class ids; others have values
SEVERAL_LABELS = (
    " For several labels per row, 0 and 1 for each class, set problem_type='multi_label_classification' in the config."
)


def count_classes(config: PlainformerConfig) -> int:
    """The outputs of a head with classes, `num_labels`.

    Raises:
        ValueError: the label names do not number them from 0, so that an output has no name.
    """
    found, needed = set(map(int, config.id2label)), set(range(config.num_labels))
    if found != needed:
        raise ValueError(
            f"id2label={config.id2label!r} has the wrong numbers {sorted(found - needed)} and lacks "
            f"{sorted(needed - found)}: {config.num_labels} labels are numbered from 0 to {config.num_labels - 1}. "
            "Number them so in id2label and label2id, and in the data too."
        )
    return config.num_labels


@dataclass
class HeadLabels:
    """What a head was given to learn from. This one has no class ids: no labels at all, or labels that are values.

    Attributes:
        num_classes: class ids go from 0 to num_classes - 1; None: that needs no check.
        out_of_range: what an error says of other class ids; `{last}` stands for the last one.
    """

    out_of_range = (
        f"class ids go from 0 to {{last}} ({IGNORE_INDEX}: unlabelled). Build the model with the right num_labels "
        "(for a masked LM: vocab_size), or mend the label."
    )
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

    def check_values(self, token_mask: Tensor | None, shape: tuple[int, int], questions: Questions) -> None:
        """Check labels that are values; arguments as in `read`.

        Raises:
            ValueError: they have another shape; once `questions` are read: one is NaN or infinite.
        """


@dataclass
class TokenLabels(HeadLabels):
    """One class id per token, [B, L]."""

    labels: Tensor | None = None

    def read(self, token_mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
        if self.labels is None:
            return None
        labels = _read_class_ids("labels", self.labels, "class ids")
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
        if self.infer() != SINGLE_LABEL:
            return None
        labels = _one_per_row("labels", self.labels, (shape[0], self.num_classes), "class ids", SEVERAL_LABELS)
        if token_mask is None:
            return labels
        return labels.to(token_mask.device).masked_fill(~token_mask.any(dim=1), IGNORE_INDEX)

    def infer(self) -> str:
        """The problem type, inferred where it is not set."""
        return self.problem_type or infer_problem_type(self.num_classes, self.labels)

    def check_values(self, token_mask: Tensor | None, shape: tuple[int, int], questions: Questions) -> None:
        if self.labels is None or self.infer() == SINGLE_LABEL:
            return
        refuse_other_values(self.labels, (shape[0], self.num_classes), self.infer())
        labels = self.labels.reshape(shape[0], self.num_classes)

        def find_odd() -> Tensor:
            is_odd = ~labels.isfinite().all(dim=1)  # [B]
            return is_odd if token_mask is None else is_odd.to(token_mask.device) & token_mask.any(dim=1)

        def check(values: list[int]) -> None:
            if any(values):
                row = values.index(1)
                raise ValueError(
                    f"labels hold {labels[row].tolist()} in row {row}: the loss would be no number. Mend the label, or "
                    "leave the row out."
                )

        if labels.is_floating_point():
            questions.ask(find_odd, check)


@dataclass
class ChoiceLabels(HeadLabels):
    """The number of the right choice per row, [B]; the encoder's batch has B * C rows."""

    out_of_range = (
        f"the choices of a row go from 0 to {{last}} ({IGNORE_INDEX}: unlabelled). Give the row all its choices, or "
        "mend the label."
    )
    labels: Tensor | None = None

    def read(self, token_mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
        if self.labels is None:
            return None
        labels = _one_per_row(
            "labels", self.labels, (shape[0] // self.num_classes, self.num_classes), "numbers of choices"
        )
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
        positions = [_one_per_row(name, values, shape, "places of tokens") for name, values in named.items()]
        positions = torch.stack(positions)  # [2, B]
        inside = (positions >= 0) & (positions < shape[1])
        if token_mask is not None:
            positions, inside = positions.to(token_mask.device), inside.to(token_mask.device)
            inside = inside & token_mask.gather(1, positions.clamp(0, shape[1] - 1).T).T
        return positions.masked_fill(~inside, IGNORE_INDEX)


def _read_class_ids(name: str, labels: Any, what: str) -> Tensor:
    """Class ids as int64, which holds the ignored index that bytes and booleans do not."""
    refuse_other_than_tensors(**{name: labels})
    check_integers(name, labels, what)
    return labels.long()


def _one_per_row(name: str, labels: Any, logits_shape: tuple[int, ...], what: str, if_several: str = "") -> Tensor:
    """Class ids as [B], for logits [B, ...]; padding must not let a wrong shape be spread over the batch.

    Args:
        what: what they are, for an error.
        if_several: what an error says of one for each logit.
    """
    labels = _read_class_ids(name, labels, what)
    if labels.numel() != logits_shape[0]:
        raise ValueError(
            f"{name} of shape {tuple(labels.shape)} do not go with logits of shape {logits_shape}: "
            f"there must be one for each of the {logits_shape[0]} rows."
            f"{if_several if tuple(labels.shape) == logits_shape else ''}"
        )
    return labels.reshape(-1)
