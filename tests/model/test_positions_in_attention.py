"""Kinds of position that work inside attention: toys that turn queries and keys, or add to the scores.

Shapes: B batch, L length, H heads, D head size, Q and K lengths.
"""

import math

import pytest
import torch
from helpers.models import KERNELS, PADDING, assert_same, make_model, make_rows, padding_mask, row_answers
from helpers.positions import check_kind
from torch import Tensor, nn

from plainformer import PlainformerConfig, PlainformerModel
from plainformer.positions_plainformer import POSITION_KINDS, PositionKind


class Turn(nn.Module):
    """A toy rotation: the first two numbers of every head turn by an angle that is learned, times the position."""

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__()
        self.angle = nn.Parameter(torch.tensor([0.3]))

    def forward(self, states: Tensor, position_ids: Tensor) -> Tensor:
        angles = (position_ids[..., None] * self.angle).to(states.dtype)  # [*, 1]: one for all heads
        x, y, rest = states[..., 0], states[..., 1], states[..., 2:]  # [*, H] twice, [*, H, D - 2]
        turned = (x * angles.cos() - y * angles.sin(), x * angles.sin() + y * angles.cos())
        return torch.cat((torch.stack(turned, dim=-1), rest), dim=-1)


class Slope(nn.Module):
    """A toy bias that is not symmetric: each head has a slope of its own, and looks back less far than ahead."""

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.linspace(0.5, 1.0, config.num_attention_heads))

    def forward(self, distances: Tensor) -> Tensor:
        penalty = torch.where(distances < 0, -2 * distances, distances).to(self.slopes.dtype)  # [..., Q, K]
        return -self.slopes[:, None, None] * penalty[..., None, :, :]  # [..., H, Q, K]


TOYS = {
    "rotation": PositionKind("a toy rotation", rotation=Turn),
    "bias": PositionKind("a toy bias", bias=Slope),
    "both": PositionKind("a toy in both places", rotation=Turn, bias=Slope),
}


@pytest.fixture(params=TOYS)
def toy(request, monkeypatch) -> str:
    """A kind that works inside attention, registered under its own name."""
    monkeypatch.setitem(POSITION_KINDS, f"toy-{request.param}", TOYS[request.param])
    return f"toy-{request.param}"


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
def test_a_toy_kind(toy, tmp_path):
    check_kind(toy, tmp_path)


def test_only_distances_count(toy):
    """Positions that all start later say the same: both toys see differences of positions only."""
    model = make_model(PlainformerModel, position_embedding_type=toy)
    ids, positions = torch.randint(1, 50, (2, 8)), torch.arange(8)[None]
    expected = model(ids).last_hidden_state
    assert_same(model(ids, position_ids=positions).last_hidden_state, expected)
    assert_same(model(ids, position_ids=positions + 5).last_hidden_state, expected)
    assert not torch.allclose(model(ids, position_ids=2 * positions).last_hidden_state, expected, atol=1e-3)


def test_row_alone_equals_row_in_batch(toy):
    """Each padding pattern, on both routes and kernels: the position of a token is its number among real tokens."""
    for fields in ({}, {"unpad_inputs": False}, {"attn_implementation": "eager"}):
        model = make_model(PlainformerModel, position_embedding_type=toy, **fields)
        rows = make_rows(padding_mask())
        together = row_answers(model, rows)
        for index, name in enumerate(PADDING):
            tokens = rows["attention_mask"][index].bool()
            if name != "empty":
                alone = {key: rows[key][index : index + 1, tokens] for key in ("input_ids", "token_type_ids")}
                assert_same(together[index, tokens], row_answers(model, alone)[0])


@pytest.mark.parametrize("form", ["pairs", "scores", "scores-per-head"])
def test_beside_a_mask_that_says_who_attends_to_whom(toy, kernel, form):
    """What is masked stays masked, whatever a bias adds; fully masked queries attend to nobody."""
    model = make_model(PlainformerModel, position_embedding_type=toy, attn_implementation=kernel)
    pairs = torch.rand(2, 8, 8) < 0.6
    pairs[0, 3] = False
    scores = torch.randn(2, 1, 8, 8).masked_fill(~pairs[:, None], -torch.inf)
    mask = {"pairs": pairs, "scores": scores, "scores-per-head": scores.expand(-1, 2, -1, -1)}[form]
    ids = torch.randint(1, 50, (2, 8))
    output = model(ids, attention_mask=mask, output_attentions=True)
    for weights in output.attentions:
        assert not weights.masked_select(~pairs[:, None]).any()
        assert_same(weights.sum(dim=-1), pairs.any(dim=-1)[:, None].float().expand(2, 2, 8))
    assert_same(model(ids, attention_mask=mask).last_hidden_state, output.last_hidden_state)


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
def test_weights_by_hand(monkeypatch, toy, unpad):
    """softmax((turn(q) turn(k)^T) / sqrt(D) + bias), from the parts."""
    model = make_model(PlainformerModel, position_embedding_type=toy, unpad_inputs=unpad)
    attention, seen = model.layers[0].attention, []
    hook = attention.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    mask = padding_mask("full", "right")
    weights = model(torch.randint(1, 50, (2, 8)), mask, output_attentions=True).attentions[0]
    hook.remove()
    query, key = (projection(seen[0]).unflatten(-1, (2, 16)) for projection in (attention.q_proj, attention.k_proj))
    positions = torch.arange(8).expand(2, 8)
    modules = {type(module): module for module in attention.modules()}
    if Turn in modules:
        query, key = modules[Turn](query, positions), modules[Turn](key, positions)
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(16)
    if Slope in modules:
        scores = scores + modules[Slope](positions[..., None, :] - positions[..., :, None])
    expected = scores.masked_fill(mask[:, None, None] == 0, -torch.inf).softmax(dim=-1)
    tokens = mask.bool()
    assert_same(weights.transpose(1, 2)[tokens], expected.transpose(1, 2)[tokens])


def test_kernels_agree_in_half_precision(toy):
    mask = padding_mask()
    rows = make_rows(mask)
    outputs = []
    for kernel in KERNELS:
        model = make_model(PlainformerModel, position_embedding_type=toy, attn_implementation=kernel)
        outputs.append(row_answers(model.to(torch.bfloat16), rows)[mask.bool()].float())
    assert_same(*outputs, 0.1)


class Start(Slope):
    """A toy whose parameters have first values of their own."""

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__(config)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.slopes, 0.25)


def test_what_a_checkpoint_does_not_have_starts_anew(monkeypatch, tmp_path):
    """The parameters of a kind, where the checkpoint was of another kind, and of a model that was built on meta."""
    monkeypatch.setitem(POSITION_KINDS, "start", PositionKind("a toy", bias=Start))
    make_model(PlainformerModel).save_pretrained(tmp_path)
    loaded = PlainformerModel.from_pretrained(tmp_path, position_embedding_type="start")
    with torch.device("meta"):
        built = PlainformerModel(loaded.config)
    built.to_empty(device="cpu").init_weights()
    for model in (loaded, built):
        assert all((layer.attention.bias.slopes == 0.25).all() for layer in model.layers)


def test_a_rotation_may_compute_in_float32(monkeypatch):
    class Precise(Turn):
        def forward(self, states: Tensor, position_ids: Tensor) -> Tensor:
            return super().forward(states.float(), position_ids)

    monkeypatch.setitem(POSITION_KINDS, "precise", PositionKind("a toy", rotation=Precise))
    model = make_model(PlainformerModel, position_embedding_type="precise").to(torch.bfloat16)
    assert model(torch.randint(1, 50, (2, 8)), padding_mask("full", "right")).last_hidden_state.dtype == torch.bfloat16
