"""Positions for the tests: the paper's formula written out, and what every kind of position has to hold.

Shapes: B batch, L length, E hidden size.
"""

from pathlib import Path

import numpy as np
import torch

from helpers.models import (
    assert_equal,
    assert_same,
    is_unpadded,
    layout_of,
    learn,
    make_model,
    make_rows,
    padding_mask,
    row_answers,
)
from plainformer import PlainformerForTokenClassification, PlainformerModel


def formula(positions: np.ndarray, width: int) -> np.ndarray:
    """Sinusoidal positions [...] -> [..., width] in float64, one number at a time from the paper's two lines."""
    table = np.empty((*positions.shape, width), dtype=np.float64)
    for place in range(width):
        angle = positions.astype(np.float64) / 10000 ** ((place - place % 2) / width)
        table[..., place] = np.cos(angle) if place % 2 else np.sin(angle)
    return table


def check_kind(kind: str, folder: Path) -> None:
    """Configuration, model, both routes, both kernels, packed rows, gradients, checkpointing, saving and loading."""
    fields = {"position_embedding_type": kind, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = make_model(PlainformerForTokenClassification, **fields)
    assert model.config.position_embedding_type == kind
    rows = make_rows(padding_mask())
    tokens = rows["attention_mask"].bool()
    labels = {"labels": torch.randint(0, 3, tokens.shape)}

    expected = learn(model, rows | labels)
    assert is_unpadded(layout_of(model, **rows))
    without = make_model(PlainformerForTokenClassification, **{**fields, "position_embedding_type": "none"})
    assert not torch.allclose(row_answers(without, rows)[tokens], expected.outputs[tokens], atol=1e-3)
    for name, gradient in expected.gradients.items():
        assert gradient.isfinite().all() and (gradient.any() or name.endswith("k_proj.bias")), name

    for other in ({"unpad_inputs": False}, {"attn_implementation": "eager"}):
        assert_same(learn(make_model(PlainformerForTokenClassification, **fields, **other), rows | labels), expected)
    with_weights = model(**rows, output_attentions=True).logits
    assert_same(with_weights[tokens], expected.outputs[tokens])

    order = torch.randperm(8)  # tokens that change places together with their positions compute the same
    rows_at = {"input_ids": rows["input_ids"], "position_ids": torch.randperm(8).expand(6, 8)}
    mixed = row_answers(model, {name: values[:, order] for name, values in rows_at.items()})
    assert_same(mixed, row_answers(model, rows_at)[:, order])

    texts = [torch.randint(1, 50, (1, length)) for length in (3, 5, 1)]
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 0]])
    separate = torch.cat([model(text).logits for text in texts], dim=1)
    for unpad in (True, False):
        model.config.unpad_inputs = unpad
        assert_same(model(torch.cat(texts, dim=1), position_ids=positions).logits, separate)
    model.config.unpad_inputs = True

    for reentrant in (True, False):
        again = make_model(PlainformerForTokenClassification, **fields).train()
        again.gradient_checkpointing_enable({"use_reentrant": reentrant})
        again.enable_input_require_grads()
        assert_same(learn(again, rows | labels), expected)

    model.save_pretrained(folder)
    loaded = PlainformerForTokenClassification.from_pretrained(folder)
    assert loaded.config.position_embedding_type == kind
    assert_equal(row_answers(loaded, rows), row_answers(model, rows))
    encoder = PlainformerModel.from_pretrained(folder)
    assert_equal(row_answers(encoder, rows), row_answers(model.plainformer, rows))
