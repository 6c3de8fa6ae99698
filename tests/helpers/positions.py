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


def alibi_by_hand(num_heads: int, positions: np.ndarray) -> np.ndarray:
    """ALiBi's biases [H, L, L] in float64 for positions [L], head by head.

    n heads, a power of 2, have the geometric sequence from 2^(-8/n) with that ratio. Other numbers take the sequence of
    the power below, and then every second number of the one above.
    """
    below = 1
    while 2 * below <= num_heads:
        below *= 2
    slopes = [np.exp2(-8 / below) ** (head + 1) for head in range(below)]
    slopes += [np.exp2(-8 / (2 * below)) ** (head + 1) for head in range(0, 2 * below, 2)]
    return np.stack([-slope * np.abs(positions[:, None] - positions) for slope in slopes[:num_heads]])


def bucket_by_hand(distance: int, num_buckets: int, max_distance: int, is_causal: bool) -> int:
    """T5's bucket of key - query, in whole numbers: it counts the buckets that begin at this distance or before."""
    if not is_causal:
        offset = num_buckets // 2 if distance > 0 else 0
        return offset + bucket_by_hand(-abs(distance), num_buckets // 2, max_distance, True)
    behind, exact = max(-distance, 0), num_buckets // 2
    grown = num_buckets - exact
    begins = [
        # behind >= exact (max_distance / exact)^(step / grown)
        behind**grown >= max_distance**step * exact ** (grown - step)
        for step in range(1, grown)
    ]
    return min(behind, exact) + sum(begins)


def bias_by_hand(attention: torch.nn.Module, positions: np.ndarray, is_causal: bool = False) -> torch.Tensor | float:
    """What a layer's attention adds to the scores at positions [L], [H, L, L], from the formulas; 0 for no bias."""
    config, bias = attention.config, attention.bias
    if config.position_embedding_type == "alibi":
        return torch.from_numpy(alibi_by_hand(config.num_attention_heads, positions)).float()
    if config.position_embedding_type != "relative":
        return 0.0
    options = (config.relative_attention_num_buckets, config.relative_attention_max_distance, is_causal)
    buckets = [[bucket_by_hand(int(key - query), *options) for key in positions] for query in positions]
    return bias.table.weight.T[:, torch.tensor(buckets)]


def turn_by_hand(states: torch.Tensor, positions: np.ndarray, theta: float = 10000.0) -> torch.Tensor:
    """Rotary positions: neighbouring columns of states [B, L, H, D] as complex numbers, turned in float64."""
    even = states.shape[-1] // 2 * 2
    angles = positions[:, None] / theta ** (np.arange(0, even, 2) / even)  # [L, D/2]
    turns = torch.from_numpy(np.exp(1j * angles))[:, None]  # [L, 1, D/2]
    numbers = torch.view_as_complex(states[..., :even].double().contiguous().unflatten(-1, (-1, 2)))
    turned = torch.view_as_real(numbers * turns).flatten(-2)
    return torch.cat((turned, states[..., even:].double()), dim=-1)
