"""What tests of training share: models without chance, and batches whose rows are padded in different ways."""

import torch
from torch import Tensor

from helpers.models import NO_DROPOUT, as_batch, make_inputs, make_labels, make_model, padding_mask


def make_batch(model_class: type) -> dict[str, Tensor]:
    """Four rows of eight tokens (of multiple choice, four questions), padded in different ways, with labels.

    At padding there is no label, as from the collators of transformers: `Trainer` counts the labels.
    """
    inputs = make_inputs(model_class)
    choices = inputs["input_ids"].dim() - 1  # two rows for each question of multiple choice
    mask = padding_mask(*["right", "left", "both", "full"] * choices)
    labels = make_labels(model_class, inputs)
    if "labels" in labels and labels["labels"].shape == mask.shape:
        labels["labels"] = labels["labels"].masked_fill(mask == 0, -100)
    return {**inputs, **as_batch(model_class, {"attention_mask": mask}), **labels}


def make_halves(head: type, **variant) -> tuple[torch.nn.Module, list[dict[str, Tensor]]]:
    """A model in training mode, the same at each call, and a batch of four rows in two halves, the first padded."""
    torch.manual_seed(0)
    model = make_model(head, problem_type="single_label_classification", **NO_DROPOUT, **variant)
    inputs = make_inputs(head)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][0, ..., 5:] = 0
    batch = {**inputs, **make_labels(head, inputs)}
    return model.train(), [{name: values[:2] for name, values in batch.items()}, {n: v[2:] for n, v in batch.items()}]
