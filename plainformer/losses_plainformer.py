"""The losses of all heads, over what is labelled and nothing else, in float32, or float64 for logits in float64.

Every loss is a sum over the labelled items divided by their number. `num_items_in_batch` is that number over all the
batches of one optimizer step, as `Trainer` counts it under gradient accumulation: the accumulated update is then
that of the one big batch. Without a labelled item the loss is 0 and so are its gradients.

Shapes: N items, C classes.
"""

import math
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .configuration_plainformer import PlainformerConfig
from .values_plainformer import at_least_float32

IGNORE_INDEX = -100  # the class id that means "no label", as everywhere in Hugging Face

NumItems = Tensor | int | None


def sequence_loss(
    logits: Tensor,
    labels: Tensor,
    config: PlainformerConfig,
    exists: Tensor | None,
    num_items_in_batch: NumItems = None,
) -> Tensor:
    """The loss that `config.problem_type` names; where it is None it is inferred as BERT does, and kept.

    Args:
        logits: [B, C].
        labels: class ids [B], `IGNORE_INDEX` where there is none, for "single_label_classification"; values [B, C] for
            "multi_label_classification"; values [B, C], or [B] where C = 1, for "regression".
        exists: rows that hold a token, bool [B]; the others count as unlabelled. None: all rows.
    """
    problem_type = config.problem_type or infer_problem_type(config.num_labels, labels)
    if problem_type == "single_label_classification":
        loss = class_loss(logits, labels, num_items_in_batch)
    else:
        exists = None if exists is None else exists.to(logits.device)
        loss = value_loss(logits, labels, problem_type, exists, num_items_in_batch)
    config.problem_type = problem_type  # only now: labels that were refused decide nothing
    return loss


def infer_problem_type(num_labels: int, labels: Tensor) -> str:
    """One label: regression. Several: single-label where the labels are integers, multi-label where they are not."""
    if num_labels == 1:
        return "regression"
    is_integer = not labels.is_floating_point() and labels.dtype != torch.bool
    return "single_label_classification" if is_integer else "multi_label_classification"


def span_loss(logits: tuple[Tensor, Tensor], positions: Tensor, num_items_in_batch: NumItems = None) -> Tensor:
    """Mean of the losses of the start and the end of an answer.

    Args:
        logits: of the start and of the end, [B, L] each.
        positions: of the start and of the end, [2, B]; `IGNORE_INDEX` where there is none.
    """
    losses = [class_loss(*one, num_items_in_batch) for one in zip(logits, positions, strict=True)]
    return torch.stack(losses).mean()


def class_loss(logits: Tensor, labels: Tensor, num_items_in_batch: NumItems = None) -> Tensor:
    """Cross-entropy of class ids.

    Args:
        logits: [..., C].
        labels: class ids [...], `IGNORE_INDEX` where there is no label.
    """
    if labels.numel() * logits.shape[-1] != logits.numel():
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} do not go with logits of shape {tuple(logits.shape)}: "
            "there must be one class id for each of them."
        )
    labels = labels.reshape(-1).to(logits.device)  # [N]
    logits = logits.flatten(0, -2).to(at_least_float32(logits.dtype))  # [N, C]
    summed = F.cross_entropy(logits, labels, ignore_index=IGNORE_INDEX, reduction="sum")
    return _mean(summed, (labels != IGNORE_INDEX).sum(), num_items_in_batch)


def value_loss(
    logits: Tensor, labels: Tensor, problem_type: str, exists: Tensor | None, num_items_in_batch: NumItems = None
) -> Tensor:
    """Squared error ("regression") or binary cross-entropy ("multi_label_classification") of real-valued labels.

    Args:
        logits: [B, C].
        labels: [B, C], or [B] where C = 1.
        exists: rows that count, bool [B]; None for all.
    """
    refuse_other_values(labels, tuple(logits.shape), problem_type)
    logits = logits.to(at_least_float32(logits.dtype))
    labels = labels.reshape(logits.shape).to(logits)
    loss_function = F.mse_loss if problem_type == "regression" else F.binary_cross_entropy_with_logits
    if exists is None:
        losses = loss_function(logits, labels, reduction="none")  # [B, C]
        return _mean(losses.sum(), losses.numel(), num_items_in_batch)
    labels = labels.masked_fill(~exists[:, None], 0)  # a label that does not exist may be anything, even NaN
    losses = loss_function(logits, labels, reduction="none").masked_fill(~exists[:, None], 0)  # [B, C]
    return _mean(losses.sum(), exists.sum() * losses.shape[-1], num_items_in_batch)


def refuse_other_values(labels: Tensor, shape: tuple[int, ...], problem_type: str) -> None:
    """Raise a ValueError unless there is one label that is a value for each logit, which are [B, C].

    Args:
        shape: (B, C).
    """
    if labels.is_complex():
        raise ValueError(f"labels are {labels.dtype}, but a label is one number: pass labels.real.")
    if labels.numel() == shape[0] * shape[1] and tuple(labels.shape[:1]) in [(), shape[:1]]:
        return
    remedy = "build the model with num_labels, the number of classes"
    if shape[1] > 1:
        remedy = "pass labels.long() and set problem_type='single_label_classification'"
    raise ValueError(
        f"labels of shape {tuple(labels.shape)} do not go with logits of shape {shape}, and "
        f"problem_type={problem_type!r} compares them value by value. For class ids, which are integers, {remedy}."
    )


def _mean(summed: Tensor, counted: Tensor | int, num_items_in_batch: NumItems) -> Tensor:
    """The sum of losses divided by a number of items, at least 1."""
    if num_items_in_batch is not None:
        _refuse_no_count(num_items_in_batch)
    count = counted if num_items_in_batch is None else num_items_in_batch
    if not isinstance(count, Tensor):
        return summed / max(count, 1)
    return summed / count.reshape(()).to(summed.device).clamp(min=1).to(summed.dtype)


def _refuse_no_count(count: Any) -> None:
    """Raise an error for what cannot be a number of items. The value of a tensor is not looked at."""
    if isinstance(count, Tensor):
        is_number, is_count = not count.is_complex(), count.numel() == 1
    else:
        is_number = isinstance(count, Real) and not isinstance(count, bool)
        is_count = is_number and 0 <= count < math.inf
    if not (is_number and is_count):
        raise (ValueError if is_number else TypeError)(
            f"num_items_in_batch={count!r} is no number of labelled items: give the one of all batches of the "
            "optimizer step, a number or a tensor of one, or None for this batch alone."
        )
