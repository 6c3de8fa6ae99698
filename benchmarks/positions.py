"""Rows of the benchmark: what each kind of position costs beside the sinusoidal one, on shuffled reviews."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from texts import BATCH_SIZE, load_tokenizer, make_batches, reviews, with_labels
from timing import in_turn, infer, train

from plainformer import PlainformerConfig, PlainformerForMaskedLM, PlainformerModel
from plainformer.positions_plainformer import POSITION_KINDS

SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
BASELINE = "sinusoidal"
Row = Callable[[int, str], dict[str, Any]]


def make(model_class: type, kind: str, device: str) -> torch.nn.Module:
    config = PlainformerConfig(len(load_tokenizer()), **SIZES, position_embedding_type=kind)
    return model_class(config).eval().to(device)


def cost(kind: str, is_training: bool, repeats: int, device: str) -> dict[str, Any]:
    """The time of a kind over that of the baseline: models of the same shape, and the same batches."""
    model_class, work = (PlainformerForMaskedLM, train) if is_training else (PlainformerModel, infer)
    batches = make_batches(reviews()[: (1 if is_training else 4) * BATCH_SIZE], device)
    batches = [with_labels(batch, "masked-lm") for batch in batches] if is_training else batches
    return in_turn(*(work(make(model_class, one, device), batches) for one in (kind, BASELINE)), repeats)


def make_rows() -> dict[str, Row]:
    rows = {}
    for kind in POSITION_KINDS:
        if kind == BASELINE:
            continue
        for is_training, where in ((False, "inference"), (True, "a masked-LM training step")):
            row = partial(cost, kind, is_training)
            row.__doc__ = f"{kind} positions over sinusoidal ones: {where}, MiniLM's shape."
            rows[f"{kind}{'-training' if is_training else ''}"] = row
    return rows


POSITION_ROWS: dict[str, Row] = make_rows()
