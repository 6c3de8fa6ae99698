"""What may be passed to a model: every form that is read, and every mistake that is refused before a kernel runs.

Shapes: B batch, L length, E hidden size.
"""

import re

import pytest
import torch
from helpers.models import (
    KERNELS,
    answers,
    as_batch,
    assert_equal,
    assert_finite,
    assert_same,
    make_inputs,
    make_model,
    make_rows,
    padding_mask,
    row_answers,
    short_name,
)

from plainformer import PlainformerForMultipleChoice, PlainformerForQuestionAnswering, PlainformerModel
from plainformer.kernels_plainformer import KERNELS as KERNEL_FUNCTIONS
from plainformer.positions_plainformer import POSITION_KINDS

# Multiple choice reads a batch in its own way first; the other heads hand it to the encoder as it is.
READERS = [PlainformerModel, PlainformerForMultipleChoice]
LIMITED = [kind for kind, description in POSITION_KINDS.items() if description.has_limit]
UNLIMITED = [kind for kind in POSITION_KINDS if kind not in LIMITED]

# Padding ids without a mask


@pytest.mark.parametrize("reader", READERS, ids=short_name)
def test_padding_without_a_mask_is_told(reader, monkeypatch):
    """At either end of a row, as transformers looks for it; with a mask, or inside a row, an id is what it is."""
    warnings = []
    logger = type("Logger", (), {"warning_once": lambda self, message: warnings.append(message)})()
    monkeypatch.setattr("plainformer.inputs_plainformer.logger", logger)
    model = make_model(reader, pad_token_id=3)
    ids = torch.full_like(make_inputs(reader)["input_ids"], 7)
    inside, first, last, short = ids.clone(), ids.clone(), ids.clone(), ids[..., :1].clone()
    inside[..., 1:-1], first[1, ..., 0], last[1, ..., -1], short[0] = 3, 3, 3, 3
    model(input_ids=ids), model(input_ids=inside), model(input_ids=first, attention_mask=torch.ones_like(first))
    make_model(reader, pad_token_id=None)(input_ids=first)
    assert not warnings
    for batch in (first, last, short):
        model(input_ids=batch)
        assert "pad_token_id=3" in warnings.pop() and not warnings


# Every form of the same batch


@pytest.mark.parametrize("route", ["input_ids", "inputs_embeds"])
def test_no_mask_is_a_mask_of_ones(subject, route):
    model = make_model(subject[0], **subject[1])
    ids = make_inputs(subject[0])["input_ids"]
    inputs = {"input_ids": ids} if route == "input_ids" else {"inputs_embeds": torch.randn(*ids.shape, 32)}
    expected = answers(model(**inputs, attention_mask=torch.ones_like(ids)))
    assert_same(answers(model(**inputs)), expected)
    assert_same(answers(model(**inputs, token_type_ids=torch.zeros_like(ids))), expected)
    as_tuple = model(**inputs, return_dict=False)
    assert type(as_tuple) is tuple and len(as_tuple) == (2 if subject[0] is PlainformerForQuestionAnswering else 1)
    outputs = torch.stack(as_tuple, dim=-1) if subject[0] is PlainformerForQuestionAnswering else as_tuple[0]
    assert_same(outputs, expected)


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
def test_padding_ids_without_a_mask_are_tokens(unpad):
    """They are read and attended to; only a mask makes padding of them."""
    model = make_model(PlainformerModel, unpad_inputs=unpad)
    ids = make_inputs(PlainformerModel)["input_ids"]
    ids[:, -2:] = model.config.pad_token_id
    states = model(ids).last_hidden_state
    assert_same(states, model(ids, torch.ones_like(ids)).last_hidden_state)
    masked = model(ids, (ids != model.config.pad_token_id).long()).last_hidden_state
    assert not masked[:, -2:].any() and states[:, -2:].any()
    assert not torch.allclose(states[:, :-2], masked[:, :-2], atol=1e-3)


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.uint8, torch.float32, torch.float16], ids=str)
def test_two_dimensional_mask_of_any_type(dtype, unpad):
    """0 and 1 mean padding and token in every type: a float mask of two dimensions is not added to scores."""
    model = make_model(PlainformerModel, unpad_inputs=unpad)
    rows = make_rows(padding_mask())
    expected = row_answers(model, rows)
    assert_equal(row_answers(model, {**rows, "attention_mask": rows["attention_mask"].to(dtype)}), expected)


@pytest.mark.parametrize("reader", READERS, ids=short_name)
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
def test_ids_of_any_integer_type(reader, dtype):
    model = make_model(reader)
    inputs = make_inputs(reader)
    inputs = {name: ids % 2 for name, ids in inputs.items()}
    inputs["position_ids"] = (1 - torch.arange(8) % 2).expand_as(inputs["input_ids"])  # 1, 0, 1, ...: one sequence
    expected = answers(model(**inputs))
    assert torch.equal(answers(model(**{name: ids.to(dtype) for name, ids in inputs.items()})), expected)


def test_both_or_neither(model_class):
    model = make_model(model_class)
    ids = make_inputs(model_class)["input_ids"]
    with pytest.raises(ValueError, match="both was given"):
        model(input_ids=ids, inputs_embeds=torch.randn(*ids.shape, 32))
    with pytest.raises(ValueError, match="input"):
        model()
    with pytest.raises(ValueError, match="input"):
        model(attention_mask=torch.ones_like(ids))


# Masks


@pytest.mark.parametrize("shape", [(2, 8, 8), (2, 1, 8, 8), (2, 2, 8, 8)], ids=str)
def test_float_mask_of_zeros_and_ones_is_ambiguous(shape):
    model = make_model(PlainformerModel)
    inputs = make_inputs(PlainformerModel, 2)
    mask = (torch.rand(shape) < 0.5).float()
    with pytest.raises(ValueError, match=r"attention_mask is torch.float32 .*only 0 and 1.*mask.bool\(\)"):
        model(**inputs, attention_mask=mask)
    nothing_added = model(**inputs, attention_mask=torch.zeros(shape)).last_hidden_state
    assert_same(nothing_added, model(**inputs).last_hidden_state)


@pytest.mark.parametrize(
    "shape", [(8,), (2, 7), (3, 8), (1, 8), (2, 1, 8), (2, 8, 7), (2, 3, 8, 8), (2, 1, 1, 8)], ids=str
)
def test_mask_of_a_wrong_shape(shape):
    model = make_model(PlainformerModel)
    with pytest.raises(ValueError) as error:
        model(**make_inputs(PlainformerModel, 2), attention_mask=torch.ones(shape, dtype=torch.long))
    for part in ("attention_mask", str(shape), "(2, 8)", "(2, 8, 8)", "(2, 1, 8, 8)", "(2, 2, 8, 8)"):
        assert part in str(error.value)


@pytest.mark.parametrize("odd", [2, -1, 0.5, -10000.0, torch.nan], ids=str)
def test_padding_mask_of_other_values(odd):
    """Neither scores to add nor the numbers of packed sequences are taken for tokens."""
    mask = torch.ones(2, 8, dtype=torch.float32 if isinstance(odd, float) else torch.long)
    mask[1, 5] = odd
    with pytest.raises(ValueError, match=f"attention_mask .*holds {odd}.*1 for a token and 0 for padding"):
        make_model(PlainformerModel)(**make_inputs(PlainformerModel, 2), attention_mask=mask)


# Text that is too long

SEVENTEEN = torch.arange(17)[None]

TOO_LONG = {
    "input_ids": ({"input_ids": torch.ones(1, 17, dtype=torch.long)}, "17 tokens.*max_position_embeddings=16"),
    "inputs_embeds": ({"inputs_embeds": torch.ones(1, 17, 32)}, "17 tokens.*max_position_embeddings=16"),
    "left-padded": (
        {"input_ids": torch.ones(1, 20, dtype=torch.long), "attention_mask": (torch.arange(20) > 2).long()[None]},
        "17 tokens.*max_position_embeddings=16",
    ),
    "position_ids": (
        {"input_ids": torch.ones(1, 3, dtype=torch.long), "position_ids": torch.tensor([[14, 15, 16]])},
        "position_ids holds 16.*max_position_embeddings=16",
    ),
    "position_ids-and-length": (
        {"input_ids": torch.ones(1, 17, dtype=torch.long), "position_ids": SEVENTEEN},
        "position_ids holds 16.*max_position_embeddings=16",
    ),
    "negative": (
        {"input_ids": torch.ones(1, 3, dtype=torch.long), "position_ids": torch.tensor([[-1, 0, 1]])},
        "position_ids holds -1.*max_position_embeddings=16",
    ),
}


@pytest.mark.parametrize("kind", LIMITED)
@pytest.mark.parametrize("reader", READERS, ids=short_name)
@pytest.mark.parametrize(("inputs", "message"), TOO_LONG.values(), ids=TOO_LONG)
def test_too_long_for_positions_with_a_limit(reader, kind, inputs, message, monkeypatch):
    """Refused before any kernel runs."""
    for name in KERNELS:
        monkeypatch.setitem(KERNEL_FUNCTIONS, name, lambda *args: pytest.fail("a kernel ran"))
    with pytest.raises(ValueError, match=message):
        make_model(reader, position_embedding_type=kind)(**as_batch(reader, inputs, num_choices=1))


def test_too_long_for_every_head(head_class):
    with pytest.raises(ValueError, match=TOO_LONG["input_ids"][1]):
        make_model(head_class)(**as_batch(head_class, TOO_LONG["input_ids"][0], num_choices=1))


def test_too_long_names_the_remedies():
    with pytest.raises(ValueError, match="truncation=True, max_length=16.*resize_position_embeddings.*'sinusoidal'"):
        make_model(PlainformerModel)(torch.ones(1, 17, dtype=torch.long))


def test_the_last_position_is_within_the_limit():
    ids = torch.randint(1, 50, (1, 16))
    by_hand = make_model(PlainformerModel)(ids, position_ids=torch.arange(16)[None]).last_hidden_state
    assert_equal(make_model(PlainformerModel)(ids).last_hidden_state, by_hand)


@pytest.mark.parametrize("kind", UNLIMITED)
@pytest.mark.parametrize("inputs", [inputs for inputs, _ in TOO_LONG.values()], ids=TOO_LONG)
def test_other_positions_have_no_limit(kind, inputs):
    assert_finite(make_model(PlainformerModel, position_embedding_type=kind)(**inputs).last_hidden_state)


# Mistakes

MISTAKES = {
    "id-too-high": (
        {"input_ids": torch.tensor([[1, 50, 2]])},
        ValueError,
        "input_ids holds 50.*vocab_size=50.*0 to 49",
    ),
    "id-negative": ({"input_ids": torch.tensor([[1, -100, 2]])}, ValueError, "input_ids holds -100.*vocab_size=50"),
    "id-float": ({"input_ids": torch.ones(1, 3)}, ValueError, "input_ids is torch.float32.*integers"),
    "no-token": (
        {"input_ids": torch.ones(2, 0, dtype=torch.long)},
        ValueError,
        r"input_ids has shape \(2, 0\).*no token",
    ),
    "no-embedding": (
        {"inputs_embeds": torch.ones(2, 0, 32)},
        ValueError,
        r"inputs_embeds has shape \(2, 0, 32\).*no token",
    ),
    "one-dimension": ({"input_ids": torch.tensor([1, 2])}, ValueError, r"input_ids has shape \(2,\).*unsqueeze\(0\)"),
    "embeds-of-two": ({"inputs_embeds": torch.ones(3, 32)}, ValueError, r"inputs_embeds has shape \(3, 32\)"),
    "embeds-too-narrow": (
        {"inputs_embeds": torch.ones(1, 3, 31)},
        ValueError,
        r"inputs_embeds has shape .*length, 32\]",
    ),
    "segment-too-high": (
        {"input_ids": torch.ones(1, 3, dtype=torch.long), "token_type_ids": torch.tensor([[0, 1, 2]])},
        ValueError,
        "token_type_ids holds 2.*type_vocab_size=2",
    ),
    "segment-shape": (
        {"input_ids": torch.ones(2, 3, dtype=torch.long), "token_type_ids": torch.ones(3, 3, dtype=torch.long)},
        ValueError,
        r"token_type_ids has shape \(3, 3\).*\(2, 3\)",
    ),
    "position-shape": (
        {"input_ids": torch.ones(2, 3, dtype=torch.long), "position_ids": torch.ones(2, 4, dtype=torch.long)},
        ValueError,
        r"position_ids has shape \(2, 4\).*\(2, 3\) or \(1, 3\)",
    ),
    "position-of-one-dimension": (
        {"input_ids": torch.ones(2, 3, dtype=torch.long), "position_ids": torch.arange(3)},
        ValueError,
        r"position_ids has shape \(3,\).*\(2, 3\) or \(1, 3\)",
    ),
    "position-float": (
        {"input_ids": torch.ones(1, 3, dtype=torch.long), "position_ids": torch.tensor([[0.0, 1.0, 2.0]])},
        ValueError,
        "position_ids is torch.float32.*integers",
    ),
}

ROW = torch.ones(1, 3, dtype=torch.long)  # one row of three tokens


def masked(odd: float, *shape: int) -> torch.Tensor:
    """A mask to be added to the scores, with one odd value."""
    mask = torch.zeros(shape)
    mask[..., 1, 2] = odd
    return mask


MISTAKES |= {
    f"{name}-{form}": ({"input_ids": ROW, **{name: value}}, error, f"{name}.* {named}.*{remedy}")
    for name in ("input_ids", "attention_mask", "token_type_ids", "position_ids", "seq_idx")
    for form, value, error, named, remedy in (
        ("complex", ROW.to(torch.complex64), ValueError, "torch.complex64", rf"{name}\.real"),
        ("sparse", ROW.to_sparse(), TypeError, "torch.sparse_coo", rf"{name}\.to_dense\(\)"),
        (
            "nested",
            torch.nested.as_nested_tensor([ROW[0]], layout=torch.jagged),
            TypeError,
            "nested",
            "to_padded_tensor",
        ),
    )
}
MISTAKES |= {
    f"boundaries-{form}": ({"input_ids": ROW, "cu_seq_lens_q": value, "cu_seq_lens_k": value}, error, message)
    for form, value, error, message in (
        ("float", torch.tensor([0.0, 3.0]), ValueError, r"cu_seq_lens_q are torch.float32.*cu_seq_lens_q.long\(\)"),
        (
            "nan",
            torch.tensor([0, torch.nan]),
            ValueError,
            "cu_seq_lens_q are torch.float32, but boundaries are integers",
        ),
        ("bool", torch.tensor([False, True]), ValueError, r"cu_seq_lens_q=\[0, 1\].*end at 3"),
        ("complex", torch.tensor([0, 3j]), ValueError, "cu_seq_lens_q are torch.complex64"),
        ("sparse", torch.tensor([0, 3]).to_sparse(), TypeError, r"cu_seq_lens_q.*to_dense\(\)"),
        ("list", [0, 3], TypeError, "cu_seq_lens_q is a list"),
    )
}
MISTAKES |= {
    f"embeds-{dtype}": (
        {"inputs_embeds": torch.ones(1, 3, 32).to(dtype)},
        ValueError,
        f"inputs_embeds is {dtype}, {but}",
    )
    for dtype, but in (
        (torch.float64, r"but the model is torch.float32: pass inputs_embeds.to\(model.dtype\)"),
        (torch.long, "but embeddings are floating point numbers: pass ids as input_ids"),
        (torch.bool, "but embeddings are floating point numbers"),
        (torch.complex64, "but embeddings are floating point numbers"),
    )
}
MISTAKES |= {
    f"mask-{odd}-{len(shape)}": (
        {"input_ids": ROW, "attention_mask": masked(odd, *shape)},
        ValueError,
        rf"attention_mask of shape {re.escape(str(shape))} holds {odd}, but what is added to scores is a number",
    )
    for odd, shape in (
        (torch.nan, (1, 3, 3)),
        (torch.inf, (1, 3, 3)),
        (torch.nan, (1, 1, 3, 3)),
        (torch.inf, (1, 2, 3, 3)),
    )
}
MISTAKES |= {
    "seq_idx-float": ({"input_ids": ROW, "seq_idx": ROW.float()}, ValueError, "seq_idx is torch.float32.*integers"),
    "seq_idx-shape-beside-boundaries": (
        {
            "input_ids": ROW,
            "seq_idx": ROW[:, :2],
            **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), torch.tensor([0, 3])),
        },
        ValueError,
        r"seq_idx has shape \(1, 2\), but this batch takes \(1, 3\)\.",
    ),
    "pairs-of-other-values": (
        {"input_ids": ROW, "attention_mask": torch.full((1, 3, 3), 2)},
        ValueError,
        r"attention_mask of shape \(1, 3, 3\) holds 2, but takes 1 for a pair that may attend",
    ),
    "ambiguous-mask": (
        {"input_ids": ROW, "attention_mask": torch.ones(1, 3, 3)},
        ValueError,
        r"attention_mask is torch.float32 of shape \(1, 3, 3\) and holds only 0 and 1",
    ),
    "head_labels": (
        {"input_ids": ROW, "head_labels": ROW},
        TypeError,
        "head_labels is a Tensor.*Pass labels to a model",
    ),
}


@pytest.mark.parametrize(("inputs", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named(inputs, error, message):
    with pytest.raises(error, match=message):
        make_model(PlainformerModel)(**inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_narrow_embeddings_are_widened(dtype):
    """As in BERT. Under autocast wider ones are rounded, as by every layer."""
    model = make_model(PlainformerModel)
    embeds = torch.randn(2, 8, 32).to(dtype)
    expected = model(inputs_embeds=embeds.float()).last_hidden_state
    assert_equal(model(inputs_embeds=embeds).last_hidden_state, expected)
    assert model.double()(inputs_embeds=embeds).last_hidden_state.dtype == torch.float64
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_finite(model.float()(inputs_embeds=embeds.double()).last_hidden_state)


@pytest.mark.parametrize("name", ["position_ids", "seq_idx"])
def test_one_row_for_all(name):
    """[1, L] stands for every row of the batch."""
    model, ids = make_model(PlainformerModel), torch.randint(1, 50, (3, 6))
    row = torch.tensor([[0, 1, 2, 0, 1, 2]]) if name == "position_ids" else torch.tensor([[0, 0, 0, 1, 1, 1]])
    expected = model(ids.view(6, 3)).last_hidden_state.view(3, 6, 32)
    assert_same(model(ids, **{name: row}).last_hidden_state, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("high", [1e9, 3e38], ids=str)
def test_a_high_bias_stays_finite(dtype, high):
    """It means: attend to this token. A narrow type holds less than the mask."""
    model = make_model(PlainformerModel).to(dtype)
    ids = torch.randint(1, 50, (1, 3))
    only = torch.eye(3, dtype=torch.bool).expand(1, 3, 3)
    bias = torch.zeros(1, 3, 3).masked_fill(only, high)
    for kernel in KERNELS:
        model.set_attn_implementation(kernel)
        states = model(ids, attention_mask=bias).last_hidden_state
        assert_same(states, model(ids, attention_mask=only).last_hidden_state, 1e-5 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("reader", READERS, ids=short_name)
@pytest.mark.parametrize("name", ["attention_mask", "token_type_ids", "position_ids", "seq_idx"])
def test_what_is_no_tensor_is_named(reader, name):
    inputs = make_inputs(reader)
    inputs[name] = torch.ones_like(inputs["input_ids"]).tolist()
    with pytest.raises(TypeError, match=f"{name} is a list, not a tensor"):
        make_model(reader)(**inputs)


def test_mistyped_keyword(model_class):
    model = make_model(model_class)
    inputs = make_inputs(model_class)
    with pytest.raises(TypeError, match="'attention_msk'.*Did you mean 'attention_mask'"):
        model(**inputs, attention_msk=torch.ones_like(inputs["input_ids"]))
    with pytest.raises(TypeError, match="'nonsense'.*input_ids"):
        model(**inputs, nonsense=1)


def test_mistyped_label(head_class):
    """A head knows its own keywords too."""
    model = make_model(head_class)
    inputs = make_inputs(head_class)
    name = "start_positions" if head_class is PlainformerForQuestionAnswering else "labels"
    slip = name.replace("la", "lla").replace("start", "strat")
    with pytest.raises(TypeError, match=f"'{slip}'.*Did you mean '{name}'"):
        model(**inputs, **{slip: torch.zeros(4)})


def test_multiple_choice_needs_its_dimension():
    model = make_model(PlainformerForMultipleChoice)
    with pytest.raises(ValueError, match=r"input_ids has shape \(2, 8\).*\[batch, choices, length"):
        model(torch.ones(2, 8, dtype=torch.long))
    with pytest.raises(ValueError, match=r"inputs_embeds has shape \(2, 8, 32\).*\[batch, choices, length"):
        model(inputs_embeds=torch.ones(2, 8, 32))


@pytest.mark.parametrize("name", ["attention_mask", "token_type_ids", "position_ids"])
@pytest.mark.parametrize("shape", [(3, 2, 8), (1, 6, 8), (6, 8), (8,)])
def test_multiple_choice_takes_the_same_rows_and_choices(name, shape):
    model = make_model(PlainformerForMultipleChoice)
    with pytest.raises(ValueError, match=rf"{name} has shape .*2 rows of 3 choices: it must be \[2, 3, ...\]"):
        model(torch.randint(1, 50, (2, 3, 8)), **{name: torch.ones(shape, dtype=torch.long)})


def test_multiple_choice_without_a_choice():
    with pytest.raises(ValueError, match=r"input_ids has shape \(2, 0, 8\)"):
        make_model(PlainformerForMultipleChoice)(torch.ones(2, 0, 8, dtype=torch.long))


@pytest.mark.parametrize("name", ["seq_idx", "position_ids"])
def test_a_batch_without_rows(name):
    ids = torch.ones(0, 8, dtype=torch.long)
    assert make_model(PlainformerModel)(ids, **{name: ids}).last_hidden_state.shape == (0, 8, 32)
