"""Rotary, ALiBi and relative positions: their formulas, what distances mean to them, and what they cost in memory.

What every kind has to hold is tested over the registry, in the files of each behaviour.

Shapes: B batch, L length, H heads, D head size.
"""

import numpy as np
import pytest
import torch
import transformers
from helpers.models import (
    NO_DROPOUT,
    assert_finite,
    assert_same,
    gradients,
    is_unpadded,
    layout_of,
    make_model,
    make_rows,
    padding_mask,
    row_answers,
    tiny_config,
)
from helpers.positions import alibi_by_hand, bias_by_hand, bucket_by_hand, check_kind, turn_by_hand
from torch import Tensor
from transformers import DataCollatorWithFlattening
from transformers.models.t5.modeling_t5 import T5Attention

from plainformer import PlainformerModel, layouts_plainformer
from plainformer.positions_plainformer import (
    POSITION_KINDS,
    AlibiBias,
    NoRotation,
    RotaryPosition,
    alibi_slopes,
    relative_bucket,
    rotary_angles,
)

IN_ATTENTION = [name for name, kind in POSITION_KINDS.items() if kind.rotation is not NoRotation or kind.bias]
BIASES = [name for name, kind in POSITION_KINDS.items() if kind.bias]


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
@pytest.mark.parametrize("kind", IN_ATTENTION)
def test_what_every_kind_holds(kind, tmp_path):
    check_kind(kind, tmp_path)


# Rotary positions

ROFORMER_NAMES = {
    "embeddings.norm": "embeddings.LayerNorm",
    "layers.": "encoder.layer.",
    "attention.q_proj": "attention.self.query",
    "attention.k_proj": "attention.self.key",
    "attention.v_proj": "attention.self.value",
    "attention.o_proj": "attention.output.dense",
    "attn_norm": "attention.output.LayerNorm",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
    "mlp_norm": "output.LayerNorm",
}


def roformer_name(name: str) -> str:
    for ours, theirs in ROFORMER_NAMES.items():
        name = name.replace(ours, theirs)
    return name


def test_rotary_is_roformer():
    """States and gradients of transformers' own RoFormer with the same weights."""
    model = make_model(PlainformerModel, position_embedding_type="rotary", **NO_DROPOUT)
    fields = {name: getattr(model.config, name) for name in ("hidden_size", "intermediate_size", "layer_norm_eps")}
    heads = {"num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.RoFormerConfig(vocab_size=50, max_position_embeddings=16, **fields, **heads)
    roformer = transformers.RoFormerModel(config).eval()
    parameters = {roformer_name(name): parameter for name, parameter in model.named_parameters()}
    assert not roformer.load_state_dict(parameters, strict=False).unexpected_keys
    rows = make_rows(padding_mask("full", "right"))
    tokens = rows["attention_mask"].bool()
    ours, theirs = (one(**rows).last_hidden_state[tokens] for one in (model, roformer))
    assert_same(ours, theirs)
    weights = torch.randn(ours.shape) / ours.numel() ** 0.5
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    expected = {name: value.grad for name, value in roformer.named_parameters()}
    for name, gradient in gradients(model).items():
        assert_same(gradient, expected[roformer_name(name)])


@pytest.mark.parametrize(("width", "theta"), [(16, 10000.0), (17, 500.0), (3, 1.0), (2, 10000)])
def test_columns_turn_in_pairs(width, theta):
    """Exact at any position, and the last of an odd number of columns stays as it is."""
    config = tiny_config(hidden_size=2 * width, position_embedding_type="rotary", rope_theta=theta)
    positions = torch.tensor([0, 1, 2, 511, 99_999, 100_000])
    states = torch.randn(1, len(positions), 2, width)
    for dtype, tolerance in ((torch.float32, 2e-6), (torch.float64, 1e-9), (torch.bfloat16, 1e-6)):
        given = states.to(dtype)
        angles = rotary_angles(config, positions, torch.promote_types(dtype, torch.float32))
        turned = RotaryPosition(config)(given, angles)
        assert turned.dtype == torch.promote_types(dtype, torch.float32)
        assert_same(turned.double(), turn_by_hand(given, positions.numpy(), theta), tolerance)
    assert_same(turned[:, 0], given[:, 0].float(), 0)
    if width % 2:
        assert_same(turned[..., -1], given[..., -1].float(), 0)


def test_heads_of_one_column_cannot_turn():
    with pytest.raises(ValueError, match="'rotary' turns pairs of columns.*hidden_size=32 and num_attention_heads=32"):
        PlainformerModel(tiny_config(num_attention_heads=32, position_embedding_type="rotary"))


# ALiBi


@pytest.mark.parametrize("num_heads", [1, 2, 3, 5, 8, 12, 16, 17])
def test_alibi_slopes(num_heads):
    slopes = alibi_slopes(num_heads, torch.float64, torch.device("cpu"))
    assert_same(slopes, torch.from_numpy(-alibi_by_hand(num_heads, np.arange(2))[:, 0, 1]), 1e-12)
    assert slopes.shape == (num_heads,) and len(set(slopes.tolist())) == num_heads


def test_alibi_slopes_of_the_paper():
    """Section 3: 8 heads have 1/2, 1/4, ..., 1/256."""
    slopes = alibi_slopes(8, torch.float32, torch.device("cpu"))
    assert_same(slopes, torch.tensor([2.0**-power for power in range(1, 9)]), 0)


# Relative positions


@pytest.mark.parametrize("is_causal", [False, True], ids=["both-sides", "causal"])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (4, 3), (10, 77), (64, 2000)])
def test_buckets_are_those_of_t5(num_buckets, max_distance, is_causal):
    distances = range(-max_distance - 20, max_distance + 21)
    buckets = [relative_bucket(distance, num_buckets, max_distance, is_causal) for distance in distances]
    assert buckets == [bucket_by_hand(distance, num_buckets, max_distance, is_causal) for distance in distances]
    assert set(buckets) <= set(range(num_buckets))
    if (num_buckets, max_distance) == (32, 128):
        theirs = T5Attention._relative_position_bucket(torch.tensor(distances), not is_causal, 32, 128)
        assert buckets == theirs.tolist()
        assert set(buckets) == set(range(32)) - (set() if is_causal else {16})  # none is after its query at distance 0


@pytest.mark.parametrize("kind", BIASES)
def test_scores_by_hand(kind):
    """The weights of the first layer: softmax(q k^T / sqrt(D) + bias), with the bias of the formulas."""
    model = make_model(PlainformerModel, position_embedding_type=kind, max_position_embeddings=512)
    attention, seen = model.layers[0].attention, []
    attention.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    weights = model(torch.randint(1, 50, (2, 300)), output_attentions=True).attentions[0]
    query, key = (projection(seen[0]).unflatten(-1, (2, 16)) for projection in (attention.q_proj, attention.k_proj))
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / 4 + bias_by_hand(attention, np.arange(300))
    assert_same(weights, scores.softmax(dim=-1))


# Distances


def test_only_distances_count():
    """A constant added to all positions changes nothing in rotary, ALiBi and relative positions; in others it does."""
    ids, positions = torch.randint(1, 50, (2, 8)), torch.arange(8)[None]
    for kind in POSITION_KINDS:
        model = make_model(PlainformerModel, position_embedding_type=kind, max_position_embeddings=1024)
        counted, moved = (model(ids, position_ids=positions + shift).last_hidden_state for shift in (0, 1000))
        if kind in ("learned", "sinusoidal"):
            assert not torch.allclose(moved, counted, atol=1e-2)
        else:
            assert_same(moved, counted)
        if kind in IN_ATTENTION:
            spread = model(ids, position_ids=2 * positions).last_hidden_state
            assert not torch.allclose(spread, counted, atol=1e-3)


@pytest.mark.parametrize("kind", [name for name, kind in POSITION_KINDS.items() if not kind.has_limit])
def test_eight_times_the_length(kind):
    """What was built for 16 positions computes 128, the same on both routes."""
    model = make_model(PlainformerModel, position_embedding_type=kind, max_position_embeddings=16)
    mask = (torch.arange(128) < torch.tensor([[128], [70]])).long()
    rows = make_rows(mask)
    states = row_answers(model, rows)
    assert_finite(states)
    model.config.unpad_inputs = False
    assert_same(row_answers(model, rows), states)


# What is kept, and what is computed how often


def test_nothing_but_a_table_is_saved():
    names = {
        kind: list(PlainformerModel(tiny_config(position_embedding_type=kind)).state_dict()) for kind in IN_ATTENTION
    }
    none = list(PlainformerModel(tiny_config(position_embedding_type="none")).state_dict())
    assert names["rotary"] == names["alibi"] == none
    tables = {f"layers.{layer}.attention.bias.table.weight" for layer in range(2)}
    assert set(names["relative"]) == set(none) | tables
    for module in (AlibiBias(tiny_config()), RotaryPosition(tiny_config())):
        assert not [*module.buffers(), *module.parameters()]


def bias_shapes(model: PlainformerModel, monkeypatch, **batch) -> set[tuple[int, ...]]:
    """The shapes of what kernels add to scores."""
    shapes = []

    def kernel(query, key, value, attention_mask, *args) -> tuple[Tensor, None]:
        shapes.append(tuple(attention_mask.shape))
        return value, None

    monkeypatch.setitem(layouts_plainformer.__dict__, "varlen_fits", lambda *_: False)
    monkeypatch.setitem(model.layers[0].attention.attend.__globals__["KERNELS"], "sdpa", kernel)
    model(**batch)
    return set(shapes)


@pytest.mark.parametrize("kind", BIASES)
def test_one_bias_for_all_sequences_of_a_length(kind, monkeypatch):
    """Where positions count from 0, however that is known; else one for each sequence."""
    model = make_model(PlainformerModel, position_embedding_type=kind)
    rows = make_rows((torch.arange(8) < torch.tensor([[8], [5], [5], [5]])).long())
    counted = {(1, 2, 5, 5), (1, 2, 8, 8)}
    assert bias_shapes(model, monkeypatch, **rows) == counted
    positions = torch.arange(8).expand(4, 8)
    assert bias_shapes(model, monkeypatch, **rows, position_ids=positions) == counted
    assert bias_shapes(model, monkeypatch, **rows, position_ids=positions + 1) == {(3, 2, 5, 5), (1, 2, 8, 8)}
    packed = DataCollatorWithFlattening()([{"input_ids": [5] * length} for length in (4, 4, 6)])
    packed.pop("labels")
    assert bias_shapes(model, monkeypatch, **packed) == {(1, 2, 4, 4), (1, 2, 6, 6)}
    assert bias_shapes(model, monkeypatch, input_ids=rows["input_ids"]) == {(1, 2, 8, 8)}


@pytest.mark.parametrize("kind", IN_ATTENTION)
def test_what_all_layers_need_is_computed_once(kind, monkeypatch):
    entry, calls = POSITION_KINDS[kind], []
    place = "angles" if entry.bias is None else "distances"

    def count(*args, **kwargs) -> Tensor:
        calls.append(place)
        return getattr(entry, place)(*args, **kwargs)

    model = make_model(PlainformerModel, position_embedding_type=kind)
    monkeypatch.setitem(POSITION_KINDS, kind, type(entry)(**{**vars(entry), place: count}))
    for unpad in (True, False):
        model.config.unpad_inputs = unpad
        calls.clear()
        assert is_unpadded(layout_of(model, **make_rows(padding_mask("full", "right", "left")))) == unpad
        assert len(calls) == 1


def test_what_is_far_stays_above_a_mask_in_float16():
    """A bias that float16 cannot hold is no reason to look at what is masked."""
    model = make_model(PlainformerModel, position_embedding_type="alibi").half()
    ids, positions = torch.randint(1, 50, (1, 3)), torch.tensor([[0, 500_000, 900_000]])
    pairs = torch.tensor([[[0, 1, 0], [1, 0, 0], [1, 1, 0]]]).bool()
    weights = model(ids, attention_mask=pairs, position_ids=positions, output_attentions=True).attentions[0]
    assert_finite(weights)
    assert not weights.masked_select(~pairs[:, None]).any()
