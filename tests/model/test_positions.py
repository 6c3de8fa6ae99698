"""Positions: the formula of the sinusoid, what each kind adds, positions given by hand, and a kind made here.

Shapes: B batch, L length, E hidden size.
"""

import numpy as np
import pytest
import torch
from helpers.models import (
    PER_ROW,
    assert_equal,
    assert_finite,
    assert_same,
    make_inputs,
    make_labels,
    make_model,
    make_rows,
    randomise,
    row_answers,
    tiny_config,
)
from helpers.positions import check_kind, formula
from torch import Tensor, nn

from plainformer import PlainformerConfig, PlainformerForMaskedLM, PlainformerModel, sinusoidal_embedding
from plainformer.positions_plainformer import (
    POSITION_KINDS,
    NoEmbedding,
    NoRotation,
    PositionKind,
    SinusoidalPositionEmbedding,
)

# Sinusoidal positions

PRINTED = [[0, 1, 0, 1], [0.8415, 0.5403, 0.0100, 0.9999], [0.9093, -0.4161, 0.0200, 0.9998]]

TOKENS = [[1.769, 2.22, 3.4, 5.8], [7.3, 9.9, 8.5, 7.1], [9.1, 7.1, 0.85, 10.1]]


def embed_only(positions: Tensor, tokens: Tensor, **overrides) -> Tensor:
    """What a sinusoidal model's embeddings make of `tokens` [B, L, E] at `positions`, norm and segments left out."""
    config = tiny_config(
        hidden_size=tokens.shape[-1],
        num_attention_heads=1,
        num_hidden_layers=1,
        position_embedding_type="sinusoidal",
        embedding_norm=False,
        type_vocab_size=0,
        **overrides,
    )
    model = PlainformerModel(config).eval().to(tokens.dtype)
    output = model(inputs_embeds=tokens, position_ids=positions, output_hidden_states=True)
    return output.hidden_states[0].detach()


def test_printed_table():
    """The table of the paper's formula for d = 4, and its sum with three token embeddings."""
    assert_same(embed_only(None, torch.zeros(1, 3, 4))[0], torch.tensor(PRINTED), 5e-5)
    summed = np.array(TOKENS) + formula(np.arange(3), 4)
    assert_same(embed_only(None, torch.tensor([TOKENS]))[0], torch.from_numpy(summed).float())
    assert_same(torch.from_numpy(summed), torch.tensor(TOKENS).double() + torch.tensor(PRINTED).double(), 5e-5)


@pytest.mark.parametrize("width", [1, 2, 7, 33, 64, 768])
def test_sinusoid_in_float32(width):
    """Within 1e-6 of float64 up to position 100,000, before 0 too, odd widths ending with a sine."""
    positions = np.r_[-300:300, 1000:100_000:997, 99_990:100_001]
    actual = sinusoidal_embedding(torch.from_numpy(positions), width)
    assert actual.dtype == torch.float32 and actual.shape == (len(positions), width)
    assert np.abs(actual.double().numpy() - formula(positions, width)).max() <= 1e-6


def test_an_angle_in_float32_would_be_too_coarse():
    """What the docstring says of the division at position 100,000 for d = 768."""
    frequencies = 10000 ** (torch.arange(0, 768, 2) / 768)  # float32
    sines = (torch.tensor(100_000.0) / frequencies).sin().double().numpy()
    error = np.abs(sines - formula(np.array(100_000), 768)[::2]).max()
    assert error == pytest.approx(0.0063, abs=5e-5)


def test_sines_and_cosines_are_as_large_as_the_readme_says():
    """A root mean square of 0.71 at any width, which no mean size is: that is 0.61 over the first 512 positions."""
    for width in (64, 128, 768):
        table = sinusoidal_embedding(torch.arange(512), width)
        assert table.square().mean().sqrt().item() == pytest.approx(0.5**0.5, abs=1e-6)
        assert table.abs().mean().item() == pytest.approx(0.61, abs=0.006)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_sinusoid_in_the_dtype_of_the_model(dtype):
    """The embeddings of a model in half precision are the formula rounded once; in float64 they are float64's own."""
    positions = torch.cat((torch.arange(600), torch.arange(1000, 100_001, 900), torch.tensor([100_000])))
    actual = embed_only(positions[None], torch.zeros(1, len(positions), 32, dtype=dtype))[0]
    assert actual.dtype == dtype
    expected = formula(positions.numpy(), 32)
    # In float64 the angle at position 100,000 has an error of 1e-11 of its own, in the formula too.
    absolute = 1e-6 if dtype != torch.float64 else 1e-15 + 2.5e-16 * positions.numpy()[:, None]
    one_rounding = torch.finfo(dtype).eps / 2 * np.abs(expected) + absolute
    assert (np.abs(actual.double().numpy() - expected) <= one_rounding).all()


def test_sinusoid_takes_any_shape_and_integer_type():
    positions = torch.tensor([[[3, 0], [7, 100_000]]])
    expected = torch.from_numpy(formula(positions.numpy(), 6)).float()
    for dtype in (torch.int64, torch.int32):
        assert_same(sinusoidal_embedding(positions.to(dtype), 6), expected, 1e-6)
    assert_same(sinusoidal_embedding(torch.tensor(5), 6), torch.from_numpy(formula(np.array(5), 6)).float(), 1e-6)


def test_sinusoid_needs_no_float64():
    """Some devices have none."""
    seen = []

    class Watch(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            seen.extend(value.dtype for value in (result,) if isinstance(value, Tensor))
            return result

    with Watch():
        SinusoidalPositionEmbedding(tiny_config(hidden_size=8))(torch.arange(5))
    assert torch.float32 in seen and torch.float64 not in seen


def test_sinusoid_does_not_learn():
    """It is no parameter and no buffer with numbers, so weight decay has nothing to act on."""
    models = {}
    for kind in ("sinusoidal", "none"):
        config = tiny_config(position_embedding_type=kind)
        models[kind] = randomise(PlainformerForMaskedLM(config)).train()
    assert models["sinusoidal"].num_parameters() == models["none"].num_parameters()
    assert list(models["sinusoidal"].state_dict()) == list(models["none"].state_dict())
    model = models["sinusoidal"]
    positions = model.plainformer.embeddings.position_embeddings
    assert not [*positions.parameters()] and not any(buffer.numel() for buffer in positions.buffers())
    before = positions(torch.arange(16))
    weights = {name: values.clone() for name, values in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    inputs = make_inputs(PlainformerForMaskedLM)
    model(**inputs, **make_labels(PlainformerForMaskedLM, inputs)).loss.backward()
    optimizer.step()
    assert all((values != weights[name]).any() for name, values in model.state_dict().items())
    assert_same(positions(torch.arange(16)), before, 0)


# What a kind adds to the embeddings


def enter(kind: str) -> tuple[nn.Module, Tensor]:
    """A fresh model, and what enters its layers at 16 places where nothing stands, [16, E]."""
    fields = {"embedding_norm": False, "type_vocab_size": 0, "position_embedding_type": kind}
    model = PlainformerModel(tiny_config(**fields)).eval()
    states = model(inputs_embeds=torch.zeros(1, 16, 32), output_hidden_states=True).hidden_states[0][0].detach()
    return model, states


def test_every_row_of_the_learned_table_enters():
    model, states = enter("learned")
    assert_same(states, model.embeddings.position_embeddings.weight.detach(), 1e-6)


def test_every_row_of_the_sinusoid_enters():
    assert_same(enter("sinusoidal")[1], torch.from_numpy(formula(np.arange(16), 32)).float(), 1e-6)


def test_no_position_enters():
    assert not enter("none")[1].any()


# Positions given by hand

EXPLICIT = {
    "permuted": [3, 1, 0, 2, 7, 5, 6, 4],
    "gapped": [0, 1, 2, 3, 8, 9, 10, 11],
    "reversed": [7, 6, 5, 4, 3, 2, 1, 0],
    "from-three": [3, 4, 5, 6, 7, 8, 9, 10],
    "repeated": [0, 1, 1, 2, 3, 4, 4, 5],
    "back-but-not-to-the-first": [0, 1, 2, 3, 2, 3, 4, 5],
    "back-and-gapped": [0, 1, 2, 4, 0, 1, 2, 3],
}


def test_explicit_positions_are_one_sequence(subject):
    """Tokens and positions that change places together say the same; tokens at other positions say something else."""
    model = make_model(subject[0], **subject[1])
    kind = POSITION_KINDS[model.config.position_embedding_type]
    rows = make_rows(torch.ones(8, 8, dtype=torch.long))
    for name in ("input_ids", "token_type_ids"):
        rows[name][:] = rows[name][:1]
    rows["position_ids"] = torch.tensor([list(range(8)), *EXPLICIT.values()])
    outputs = row_answers(model, rows)
    assert_finite(outputs)
    counted = {name: values for name, values in rows.items() if name != "position_ids"}
    assert_equal(outputs[0], row_answers(model, counted)[0])
    for name, row in zip(EXPLICIT, outputs[1:], strict=True):
        if kind.rotation is not NoRotation or kind.bias is not None:  # they may see distances only
            assert_finite(row)
        elif kind.embeddings is NoEmbedding:
            assert_same(row, outputs[0])
        else:
            assert not torch.allclose(row, outputs[0], atol=1e-4), name
    if subject[0] not in PER_ROW:
        order = torch.tensor([2, 0, 1, 7, 3, 6, 4, 5])
        mixed = row_answers(model, {name: values[:, order] for name, values in rows.items()})
        assert_same(mixed, outputs[:, order])


@pytest.mark.parametrize("positions", EXPLICIT.values(), ids=EXPLICIT)
def test_explicit_positions_on_their_own(positions):
    """No pattern is refused because of the rows beside it, or accepted because of them."""
    model = make_model(PlainformerModel)
    assert_finite(model(torch.randint(1, 50, (1, 8)), position_ids=torch.tensor([positions])).last_hidden_state)


def test_positions_of_one_row_serve_all(kind):
    model = make_model(PlainformerModel, position_embedding_type=kind)
    inputs = make_inputs(PlainformerModel, 3)
    positions = torch.tensor([EXPLICIT["reversed"]])
    expected = model(**inputs, position_ids=positions.expand(3, 8)).last_hidden_state
    assert_equal(model(**inputs, position_ids=positions).last_hidden_state, expected)


# A kind made here: one entry of the registry, and nothing else knows its name


class Distance(nn.Module):
    """A toy kind: each position adds its own number to every value."""

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.full((config.hidden_size,), 0.1))

    def forward(self, position_ids: Tensor) -> Tensor:
        return position_ids[..., None] * self.step


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
def test_a_toy_kind(monkeypatch, tmp_path):
    monkeypatch.setitem(POSITION_KINDS, "toy", PositionKind("a toy", embeddings=Distance))
    check_kind("toy", tmp_path)


def test_a_toy_kind_with_a_limit(monkeypatch):
    entry = PositionKind("a toy table", embeddings=POSITION_KINDS["learned"].embeddings, has_limit=True)
    monkeypatch.setitem(POSITION_KINDS, "toy", entry)
    model = make_model(PlainformerModel, position_embedding_type="toy")
    with pytest.raises(ValueError, match="17 tokens long, but max_position_embeddings=16"):
        model(torch.ones(1, 17, dtype=torch.long))


def test_an_unknown_kind_is_refused_with_the_names_of_all():
    with pytest.raises(ValueError, match="position_embedding_type='toy'.*" + ".*".join(map(repr, POSITION_KINDS))):
        tiny_config(position_embedding_type="toy")
