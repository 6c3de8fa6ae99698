"""The losses of all heads, in float32, over what is labelled and nothing else.

Every loss is a sum over the labelled items divided by their number. `num_items_in_batch` is that number over all the
batches of one optimizer step, as `Trainer` counts it under gradient accumulation: the accumulated update is then
that of the one big batch. Without a labelled item the loss is 0 and so are its gradients.

Shapes: N items, C classes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .configuration_plainformer import PlainformerConfig
from .inputs_plainformer import check_shape, refuse_other_than_tensors, values_are_known
from .padding_plainformer import Layout, mask_out

UNLABELLED = -100  # the class id that means "no label", as everywhere in Hugging Face

Count = Tensor | int | None


def sequence_loss(
    logits: Tensor, labels: Tensor, config: PlainformerConfig, exists: Tensor | None, num_items_in_batch: Count = None
) -> Tensor:
    """The loss that `config.problem_type` names; where it is None it is inferred as BERT does, and kept.

    Args:
        logits: [B, C].
        labels: class ids [B] for "single_label_classification"; values [B, C] for "multi_label_classification";
            values [B, C], or [B] where C = 1, for "regression".
        exists: rows that hold a token, bool [B]; the others count as unlabelled. None: all rows.
    """
    refuse_other_than_tensors(labels=labels)
    problem_type = config.problem_type or infer_problem_type(config.num_labels, labels)
    exists = None if exists is None else exists.to(logits.device)
    if problem_type != "single_label_classification":
        loss = value_loss(logits, labels, problem_type, exists, num_items_in_batch)
    else:
        labels = _one_per_row("labels", labels, logits)
        if exists is not None:
            labels = labels.masked_fill(~exists, UNLABELLED)
        loss = class_loss(logits, labels, num_items_in_batch)
    config.problem_type = problem_type  # only now: labels that were refused decide nothing
    return loss


def infer_problem_type(num_labels: int, labels: Tensor) -> str:
    """One label: regression. Several: single-label where the labels are integers, multi-label where they are not."""
    if num_labels == 1:
        return "regression"
    is_integer = not labels.is_floating_point() and labels.dtype != torch.bool
    return "single_label_classification" if is_integer else "multi_label_classification"


def span_loss(
    logits: tuple[Tensor, Tensor],
    positions: tuple[Tensor, Tensor],
    real: Tensor | None,
    num_items_in_batch: Count = None,
) -> Tensor:
    """Mean of the losses of the start and the end of an answer.

    Args:
        logits: of the start and of the end, [B, L] each.
        positions: of the start and of the end, [B] each; one outside its row's real tokens counts as unlabelled.
        real: places that hold a token, bool [B, L]; None for all.
    """
    losses = []
    for name, scores, position in zip(("start_positions", "end_positions"), logits, positions, strict=True):
        position = _one_per_row(name, position, scores)  # [B]
        inside = (position >= 0) & (position < scores.shape[1])
        if real is not None:
            inside = inside & real.to(scores.device).gather(1, position.clamp(0, scores.shape[1] - 1)[:, None])[:, 0]
        losses.append(class_loss(scores, position.masked_fill(~inside, UNLABELLED), num_items_in_batch))
    return torch.stack(losses).mean()


def choice_loss(logits: Tensor, labels: Tensor, exists: Tensor | None, num_items_in_batch: Count = None) -> Tensor:
    """Cross-entropy over the choices of a row.

    Args:
        logits: [B, C].
        labels: the right choice [B]; -100, or a choice that does not exist, is unlabelled.
        exists: choices that hold a token, bool [B, C]; None for all.
    """
    labels = _one_per_row("labels", labels, logits)
    if exists is not None:
        chosen = labels.clamp(0, logits.shape[1] - 1)[:, None]  # [B, 1]; an odd label is refused by class_loss
        inside = (labels >= 0) & (labels < logits.shape[1])
        unreal = (inside & ~exists.gather(1, chosen)[:, 0]) | ~exists.any(dim=1)
        labels = labels.masked_fill(unreal, UNLABELLED)
    return class_loss(logits, labels, num_items_in_batch)


def real_labels(labels: Tensor, layout: Layout) -> Tensor:
    """Labels [B, L] as int64, -100 at padding, whatever stood there."""
    labels = _class_ids("labels", labels)
    check_shape("labels", labels, [tuple(layout.shape)])
    return labels if layout.real is None else mask_out(labels.to(layout.real.device), layout.real, UNLABELLED)


def class_loss(logits: Tensor, labels: Tensor, num_items_in_batch: Count = None) -> Tensor:
    """Cross-entropy of class ids.

    Args:
        logits: [..., C].
        labels: class ids [...], -100 where there is no label.
    """
    if labels.numel() * logits.shape[-1] != logits.numel():
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} do not go with logits of shape {tuple(logits.shape)}: "
            "there must be one class id for each of them."
        )
    labels = labels.reshape(-1).to(logits.device)  # [N]
    _check_class_ids(labels, logits.shape[-1])
    logits = logits.flatten(0, -2).float()  # [N, C]
    summed = F.cross_entropy(logits, labels, ignore_index=UNLABELLED, reduction="sum")
    return _mean(summed, (labels != UNLABELLED).sum(), num_items_in_batch)


def value_loss(
    logits: Tensor, labels: Tensor, problem_type: str, exists: Tensor | None, num_items_in_batch: Count = None
) -> Tensor:
    """Squared error ("regression") or binary cross-entropy ("multi_label_classification") of real-valued labels.

    Args:
        logits: [B, C].
        labels: [B, C], or [B] where C = 1.
        exists: rows that count, bool [B]; None for all.
    """
    if labels.numel() != logits.numel() or len(labels) != len(logits):
        raise ValueError(
            f"labels of shape {tuple(labels.shape)} do not go with logits of shape {tuple(logits.shape)}, and "
            f"problem_type={problem_type!r} compares them value by value. For class ids, which are integers, "
            "set problem_type='single_label_classification'."
        )
    labels = labels.reshape(logits.shape).to(device=logits.device, dtype=torch.float32)
    loss_function = F.mse_loss if problem_type == "regression" else F.binary_cross_entropy_with_logits
    if exists is None:
        losses = loss_function(logits.float(), labels, reduction="none")  # [B, C]
        return _mean(losses.sum(), losses.numel(), num_items_in_batch)
    labels = labels.masked_fill(~exists[:, None], 0)  # a label that does not exist may be anything, even NaN
    losses = loss_function(logits.float(), labels, reduction="none").masked_fill(~exists[:, None], 0)  # [B, C]
    return _mean(losses.sum(), exists.sum() * losses.shape[-1], num_items_in_batch)


def _one_per_row(name: str, labels: Tensor, logits: Tensor) -> Tensor:
    """Class ids as [B], for logits [B, ...]; padding must not let a wrong shape be spread over the batch."""
    labels = _class_ids(name, labels)
    if labels.numel() != len(logits):
        raise ValueError(
            f"{name} of shape {tuple(labels.shape)} do not go with logits of shape {tuple(logits.shape)}: "
            f"there must be one for each of the {len(logits)} rows."
        )
    return labels.reshape(-1).to(logits.device)


def _class_ids(name: str, labels: Tensor) -> Tensor:
    """Class ids as int64, which holds the -100 that bytes and booleans do not."""
    refuse_other_than_tensors(**{name: labels})
    if labels.is_floating_point():
        raise ValueError(f"{name} are {labels.dtype}, but class ids are integers: pass {name}.long().")
    return labels.long()


def _mean(summed: Tensor, counted: Count, num_items_in_batch: Count) -> Tensor:
    count = counted if num_items_in_batch is None else num_items_in_batch
    return summed / (count.to(summed.device).clamp(min=1) if isinstance(count, Tensor) else max(count, 1))


def _check_class_ids(labels: Tensor, num_classes: int) -> None:
    if not values_are_known(labels):
        return
    odd = labels[(labels != UNLABELLED) & ((labels < 0) | (labels >= num_classes))]
    if odd.numel():
        raise ValueError(
            f"labels hold {odd[0].item()}, but class ids go from 0 to {num_classes - 1} ({UNLABELLED}: unlabelled). "
            "Build the model with the right num_labels (for a masked LM: vocab_size), or mend the label."
        )
