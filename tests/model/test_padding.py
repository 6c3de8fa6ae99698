"""Masked tokens do not exist, whatever the mask, the positions, the kernel and the precision; and what is refused.

Shapes: B batch, R rows, L length, H heads, E hidden size.
"""

import copy

import pytest
import torch
from helpers.models import (
    KERNELS,
    MODELS,
    PADDING,
    PER_ROW,
    VARIANTS,
    answers,
    as_batch,
    assert_same,
    gradients,
    make_inputs,
    make_labels,
    make_model,
    padding_mask,
    row_answers,
    short_name,
)
from torch import Tensor

from plainformer import (
    PlainformerForMaskedLM,
    PlainformerForMultipleChoice,
    PlainformerForQuestionAnswering,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
    PlainformerModel,
)
from plainformer.attention_plainformer import KERNELS as KERNEL_FUNCTIONS

# Every class, and again with mean pooling where it pools.
CASES = {short_name(model_class): (model_class, {}) for model_class in MODELS}
CASES |= {f"{short_name(model_class)}-mean": (model_class, {"classifier_pooling": "mean"}) for model_class in PER_ROW}


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request) -> tuple[type, dict]:
    """A class and the fields that make it pool in one way."""
    return request.param


def make_rows(mask: Tensor) -> dict[str, Tensor]:
    """Random rows [R, L] for a mask [R, L]."""
    ids = torch.randint(1, 50, mask.shape)
    return {"input_ids": ids, "token_type_ids": torch.randint(0, 2, mask.shape), "attention_mask": mask}


def learn(model, inputs: dict[str, Tensor], labels: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Answers, loss and gradients; the base model, which has no loss, gets the mean square of its answers."""
    model.zero_grad()
    output = model(**inputs, **labels)
    said = answers(output)
    loss = output.loss if "loss" in output else said.square().mean()
    loss.backward()
    return said.detach(), loss.detach(), gradients(model)


def assert_equal(actual, expected) -> None:
    """The same bits."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def assert_finite(*tensors: Tensor) -> None:
    assert all(tensor.isfinite().all() for tensor in tensors)


# What a row says depends on nothing but its own tokens


def test_row_alone_equals_row_in_batch(variant, case, kernel):
    """Every padding pattern in one batch, against each row's tokens on their own, without any mask."""
    model = make_model(case[0], attn_implementation=kernel, **case[1], **variant)
    rows = make_rows(padding_mask())
    together = row_answers(model, rows)
    for index, name in enumerate(PADDING):
        real = rows["attention_mask"][index].bool()
        if not real.any():
            continue
        alone = {key: rows[key][index : index + 1, real] for key in ("input_ids", "token_type_ids")}
        expected = row_answers(model, alone, num_choices=1)[0]
        actual = together[index] if case[0] in PER_ROW else together[index, real]
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, msg=lambda text, row=name: f"{row}: {text}")


def test_side_of_padding(variant, case):
    """The same five tokens, padded on the right, on the left, on both sides and in between."""
    model = make_model(case[0], **case[1], **variant)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 0, 0]] * 2)
    mask[3] = torch.tensor([1, 0, 1, 1, 0, 1, 0, 1])
    rows = make_rows(mask)
    for name in ("input_ids", "token_type_ids"):
        rows[name][mask.bool()] = rows[name][0, :5].repeat(6)
    said = row_answers(model, rows)
    per_row = said if case[0] in PER_ROW else said[mask.bool()].unflatten(0, (6, 5))
    assert_same(per_row, per_row[:1].expand_as(per_row))


def spoil_labels(model_class: type, labels: dict[str, Tensor], mask: Tensor) -> tuple[dict, dict]:
    """Labels that leave out what has no token, and the same with a label at each such place."""
    clean = {name: values.clone() for name, values in labels.items()}
    spoiled = {name: values.clone() for name, values in labels.items()}
    if model_class in (PlainformerForMaskedLM, PlainformerForTokenClassification):
        clean["labels"][mask == 0], spoiled["labels"][mask == 0] = -100, 777
    elif model_class is PlainformerForSequenceClassification:
        clean["labels"][5], spoiled["labels"][5] = -100, 777
    elif model_class is PlainformerForQuestionAnswering:
        for name, places in (("start_positions", [2, 1, 1, 1, 7, 0]), ("end_positions", [6, 4, 4, 1, 2, 7])):
            spoiled[name] = torch.tensor(places)
            clean[name] = spoiled[name].masked_fill(mask.gather(1, spoiled[name][:, None])[:, 0] == 0, -100)
    elif model_class is PlainformerForMultipleChoice:
        clean["labels"], spoiled["labels"] = torch.tensor([0, 1, -100]), torch.tensor([0, 1, 1])  # the empty choice
    return clean, spoiled


@pytest.mark.parametrize("route", ["input_ids", "inputs_embeds"])
def test_what_padding_holds(variant, case, kernel, route):
    """Ids outside the vocabulary, NaN, wrong segments, positions and labels at padding change no bit."""
    model = make_model(case[0], attn_implementation=kernel, **case[1], **variant)
    rows = make_rows(padding_mask())
    padded = rows["attention_mask"] == 0
    counted = (rows["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    spoiled = {
        "attention_mask": rows["attention_mask"],
        "input_ids": torch.where(padded, torch.tensor([-100, 10**6, 49, 0, -1, 3, 50, 7]), rows["input_ids"]),
        "token_type_ids": torch.where(padded, torch.tensor([2, -5, 99, 1, 0, 1, 1, 0]), rows["token_type_ids"]),
        "position_ids": torch.where(padded, torch.tensor([-1, 10**6, 16, 2, 0, 0, 5, 0]), counted),
    }
    if route == "inputs_embeds":
        embeds = torch.randn(6, 8, 32)
        del rows["input_ids"], spoiled["input_ids"]
        rows["inputs_embeds"] = embeds
        spoiled["inputs_embeds"] = embeds.masked_fill(padded[..., None], torch.nan)
        spoiled["inputs_embeds"][0, -1] = torch.inf
        model.get_input_embeddings().requires_grad_(False)  # which nothing reads now
    labels = make_labels(case[0], as_batch(case[0], rows))
    clean_labels, spoiled_labels = spoil_labels(case[0], labels, rows["attention_mask"])
    clean = learn(model, as_batch(case[0], rows), clean_labels)
    dirty = learn(model, as_batch(case[0], spoiled), spoiled_labels)
    assert_finite(*dirty[:2], *dirty[2].values())
    assert_equal(dirty, clean)


def test_label_of_a_row_without_choices():
    """A label at a place that does not exist counts as unlabelled, whatever its value."""
    model = make_model(PlainformerForMultipleChoice)
    inputs = make_inputs(PlainformerForMultipleChoice, 2)
    mask = torch.ones(2, 2, 8, dtype=torch.long)
    mask[1] = 0
    losses = [model(**inputs, attention_mask=mask, labels=torch.tensor([1, label])).loss for label in (-100, 0, 777)]
    assert_equal(losses[1:], losses[:1] * 2)


# A row without a token


def test_empty_row_disturbs_nobody(variant, case, kernel):
    """The other rows are the same, bit for bit, as beside a row with tokens; all numbers are finite."""
    model = make_model(case[0], attn_implementation=kernel, **case[1], **variant)
    rows = make_rows(padding_mask("right", "full", "left", "holes"))
    empty = {**rows, "attention_mask": padding_mask("right", "full", "left", "empty")}
    beside_tokens, beside_nothing = row_answers(model, rows), row_answers(model, empty)
    assert_equal(beside_nothing[:3], beside_tokens[:3])
    assert_finite(beside_nothing)


def test_empty_row_changes_no_loss(variant, case):
    """The loss and its gradients are those of the batch without the row."""
    model = make_model(case[0], **case[1], **variant)
    rows = make_rows(padding_mask("right", "full", "left", "holes", "empty", "empty"))
    with_empty = as_batch(case[0], rows)
    labels = make_labels(case[0], with_empty)
    if case[0] is PlainformerForQuestionAnswering:
        labels = {
            "start_positions": torch.tensor([1, 2, 3, 0, 4, 5]),
            "end_positions": torch.tensor([4, 7, 2, 6, 5, 1]),
        }
    kept = 2 if case[0] is PlainformerForMultipleChoice else 4
    without = {name: values[:kept] for name, values in with_empty.items()}
    kept_labels = {name: values[:kept] for name, values in labels.items()}
    _, loss, grads = learn(model, with_empty, labels)
    _, expected_loss, expected_grads = learn(model, without, kept_labels)
    assert_finite(loss, *grads.values())
    if case[0] is not PlainformerModel:  # whose stand-in for a loss is a mean over places
        assert_same((loss, grads), (expected_loss, expected_grads))


def test_nothing_but_empty_rows(variant, case, kernel):
    model = make_model(case[0], attn_implementation=kernel, **case[1], **variant)
    inputs = as_batch(case[0], make_rows(padding_mask("empty", "empty")))
    said, loss, grads = learn(model, inputs, make_labels(case[0], inputs))
    assert_finite(said, *grads.values())
    assert loss == 0 and not any(grad.any() for grad in grads.values())


# What is said at padding


def test_hidden_states_at_padding_are_zero(variant, kernel):
    model = make_model(PlainformerModel, attn_implementation=kernel, **variant)
    rows = make_rows(padding_mask())
    output = model(**rows, output_hidden_states=True)
    for states in (output.last_hidden_state, *output.hidden_states):
        assert not states[rows["attention_mask"] == 0].any()
        assert (states[rows["attention_mask"] == 1] != 0).any(dim=1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_padding_is_never_the_answer(variant, dtype):
    model = make_model(PlainformerForQuestionAnswering, **variant).to(dtype)
    rows = make_rows(padding_mask())
    output = model(**rows)
    for logits in (output.start_logits, output.end_logits):
        assert (logits[rows["attention_mask"] == 0] == torch.finfo(dtype).min).all()
        assert (logits[rows["attention_mask"] == 1] > -1000).all()


def test_choice_without_a_token(variant):
    """It is never chosen, and the others are weighed as if it were not there."""
    model = make_model(PlainformerForMultipleChoice, **variant)
    inputs = make_inputs(PlainformerForMultipleChoice, 2, num_choices=3)
    mask = torch.ones(2, 3, 8, dtype=torch.long)
    mask[:, 1] = 0
    labels = torch.tensor([0, 2])
    output = model(**inputs, attention_mask=mask, labels=labels)
    assert (output.logits[:, 1] == torch.finfo(torch.float32).min).all()
    two = {name: values[:, [0, 2]] for name, values in inputs.items()}
    expected = model(**two, labels=torch.tensor([0, 1]))
    assert_same((output.logits[:, [0, 2]], output.loss), (expected.logits, expected.loss))


# No mask, and every form of one that hides nothing


@pytest.mark.parametrize("route", ["input_ids", "inputs_embeds"])
def test_no_mask_is_a_mask_of_ones(variant, case, route):
    model = make_model(case[0], **case[1], **variant)
    ids = make_inputs(case[0])["input_ids"]
    inputs = {"input_ids": ids} if route == "input_ids" else {"inputs_embeds": torch.randn(*ids.shape, 32)}
    expected = answers(model(**inputs, attention_mask=torch.ones_like(ids)))
    assert_same(answers(model(**inputs)), expected)
    assert_same(answers(model(**inputs, token_type_ids=torch.zeros_like(ids))), expected)
    as_tuple = model(**inputs, return_dict=False)
    assert type(as_tuple) is tuple and len(as_tuple) == (2 if case[0] is PlainformerForQuestionAnswering else 1)
    said = torch.stack(as_tuple, dim=-1) if case[0] is PlainformerForQuestionAnswering else as_tuple[0]
    assert_same(said, expected)


def test_return_dict_false_with_everything(model_class):
    """The tuple holds what the dictionary does, in its order."""
    model = make_model(model_class)
    inputs = make_inputs(model_class)
    asked = {"output_attentions": True, "output_hidden_states": True, **make_labels(model_class, inputs)}
    assert_equal(model(**inputs, **asked, return_dict=False), model(**inputs, **asked).to_tuple())


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.uint8, torch.float32, torch.float16], ids=str)
def test_two_dimensional_mask_of_any_type(variant, kernel, dtype):
    """0 and 1 mean padding and token in every type: a float mask of two dimensions is not added to scores."""
    model = make_model(PlainformerModel, attn_implementation=kernel, **variant)
    rows = make_rows(padding_mask())
    expected = row_answers(model, rows)
    assert_equal(row_answers(model, {**rows, "attention_mask": rows["attention_mask"].to(dtype)}), expected)


def test_type_vocab_size_zero_ignores_segments(variant):
    model = make_model(PlainformerModel, type_vocab_size=0, **variant)
    rows = make_rows(padding_mask())
    expected = row_answers(model, {**rows, "token_type_ids": torch.full((6, 8), 99)})
    del rows["token_type_ids"]
    assert_equal(row_answers(model, rows), expected)


# Masks that say who attends to whom


def some_pairs() -> Tensor:
    """Who may attend to whom, bool [3, 8, 8]; in two places nobody."""
    allowed = torch.rand(3, 8, 8) < 0.6
    allowed[0, 2] = allowed[2, 7] = False
    return allowed


FORMS = {
    "bool-3d": lambda allowed: allowed,
    "int-3d": lambda allowed: allowed.long(),
    "inf-3d": lambda allowed: torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf),
    "finfo-min-3d": lambda allowed: torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min),
    "bool-4d": lambda allowed: allowed[:, None],
    "int-4d": lambda allowed: allowed[:, None].int(),
    "inf-4d": lambda allowed: torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)[:, None],
    "bool-per-head": lambda allowed: allowed[:, None].expand(-1, 2, -1, -1),
    "finfo-min-per-head": lambda allowed: FORMS["finfo-min-3d"](allowed)[:, None].expand(-1, 2, -1, -1),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_mask_agree(variant, kernel, form):
    """Each against the weights of attention: none where it is forbidden, the rest sums to 1, nobody attends to 0."""
    model = make_model(PlainformerModel, attn_implementation=kernel, **variant)
    inputs, allowed = make_inputs(PlainformerModel, 3), some_pairs()
    branches = []
    for layer in model.layers:
        layer.attention.register_forward_hook(lambda module, args, output: branches.append((module, output[0])))
    output = model(**inputs, attention_mask=FORMS[form](allowed))
    nobody = ~allowed.any(dim=-1)  # [B, L]
    assert nobody.sum() == 2
    for attention, branch in branches:
        assert_equal(branch[nobody], attention.o_proj.bias.expand(2, -1))  # the projection of zeros
    assert (output.last_hidden_state != 0).any(dim=-1).all()

    reference = make_model(PlainformerModel, attn_implementation="eager", **variant)
    weights = reference(**inputs, attention_mask=FORMS[form](allowed), output_attentions=True)
    assert_same(output.last_hidden_state, weights.last_hidden_state)
    for layer in weights.attentions:
        assert not layer.masked_select(~allowed[:, None]).any()
        assert_same(layer.sum(dim=-1), (~nobody[:, None]).float().expand(3, 2, 8))
    assert_same(output.last_hidden_state, reference(**inputs, attention_mask=allowed).last_hidden_state)


def test_pairs_that_hide_padding(variant, kernel):
    """With the positions given, real tokens are what they are with the mask of two dimensions."""
    model = make_model(PlainformerModel, attn_implementation=kernel, **variant)
    rows = make_rows(padding_mask("right", "left", "both", "holes", "full"))
    real = rows["attention_mask"].bool()
    rows["position_ids"] = torch.arange(8).expand(5, 8)
    pairs = real[:, None, :].expand(5, 8, 8)
    two, three = row_answers(model, rows), row_answers(model, {**rows, "attention_mask": pairs})
    assert_same(three[real], two[real])
    assert (three[~real] != 0).any(dim=-1).all()


@pytest.mark.parametrize("form", ["bool-3d", "inf-4d"])
def test_pairs_leave_every_place_real(variant, case, form):
    """Everybody to everybody is no mask at all; and forbidding the first place does not move `cls` or positions."""
    model = make_model(case[0], **case[1], **variant)
    inputs = make_inputs(case[0], 3)
    rows = 6 if case[0] is PlainformerForMultipleChoice else 3
    everybody = torch.ones(rows, 8, 8, dtype=torch.bool)
    not_first = everybody.clone()
    not_first[:, :, 0] = False
    said = []
    for allowed in (everybody, not_first):
        mask = as_batch(case[0], {"mask": FORMS[form](allowed)})["mask"]
        said.append(answers(model(**inputs, attention_mask=mask)))
        explicit = torch.arange(8).expand(inputs["input_ids"].shape)
        assert_equal(answers(model(**inputs, attention_mask=mask, position_ids=explicit)), said[-1])
    assert_same(said[0], answers(model(**inputs)))
    assert not torch.allclose(said[1], said[0], atol=1e-3)
    assert (said[1] > -1000).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "lowest", [-1e9, torch.finfo(torch.float32).min, -torch.inf], ids=["-1e9", "finfo-min", "-inf"]
)
def test_additive_mask_in_half_precision(dtype, lowest):
    """A float32 mask may hold what half precision cannot: a forbidden row is finite, and the kernels agree."""
    mask = torch.zeros(3, 8, 8).masked_fill(~some_pairs(), lowest)
    inputs = make_inputs(PlainformerModel, 3)
    outputs = [
        make_model(PlainformerModel, attn_implementation=kernel).to(dtype)(**inputs, attention_mask=mask)
        for kernel in KERNELS
    ]
    states = [output.last_hidden_state.float() for output in outputs]
    assert_finite(*states)
    assert_same(states[0], states[1], 0.1)


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


@pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize(("inputs", "message"), TOO_LONG.values(), ids=TOO_LONG)
def test_too_long_for_learned_positions(model_class, pre_norm, inputs, message, monkeypatch):
    """Refused before any kernel runs."""
    for name in KERNELS:
        monkeypatch.setitem(KERNEL_FUNCTIONS, name, lambda *args: pytest.fail("a kernel ran"))
    model = make_model(model_class, pre_norm=pre_norm)
    with pytest.raises(ValueError, match=message):
        model(**as_batch(model_class, inputs, num_choices=1))


def test_too_long_names_the_remedies():
    with pytest.raises(ValueError, match="truncation=True, max_length=16.*resize_position_embeddings.*'sinusoidal'"):
        make_model(PlainformerModel)(torch.ones(1, 17, dtype=torch.long))


@pytest.mark.parametrize("kind", ["sinusoidal", "none"])
@pytest.mark.parametrize("inputs", [inputs for inputs, _ in TOO_LONG.values()], ids=TOO_LONG)
def test_other_positions_have_no_limit(model_class, kind, inputs):
    model = make_model(model_class, position_embedding_type=kind)
    assert_finite(answers(model(**as_batch(model_class, inputs, num_choices=1))))


def test_only_real_tokens_count_as_length(variant, case):
    """Short sequences may be padded beyond the limit, and a batch may hold more tokens than it in all."""
    model = make_model(case[0], **case[1], **variant)
    mask = torch.zeros(4, 40, dtype=torch.long)
    mask[0, 24:] = mask[1, :16] = mask[2, 10:26] = mask[3, ::3] = 1
    rows = make_rows(mask)
    said = row_answers(model, rows)
    for index in range(4):
        real = mask[index].bool()
        alone = {name: rows[name][index : index + 1, real] for name in ("input_ids", "token_type_ids")}
        expected = row_answers(model, alone, num_choices=1)[0]
        assert_same(said[index] if case[0] in PER_ROW else said[index, real], expected)


# Hidden states and attention weights


@pytest.mark.parametrize("how", ["argument", "config", "live-config"])
def test_hidden_states_and_attentions(variant, model_class, kernel, how):
    asked = {"output_attentions": True, "output_hidden_states": True}
    model = make_model(model_class, **(asked if how == "config" else {}), **variant)
    model.set_attn_implementation(kernel)
    if how == "live-config":
        model.config.output_attentions = model.config.output_hidden_states = True
    rows = make_rows(padding_mask())
    inputs = as_batch(model_class, rows)
    output = model(**inputs, **(asked if how == "argument" else {}))
    real = rows["attention_mask"].bool()

    assert [states.shape for states in output.hidden_states] == [(6, 8, 32)] * 3
    encoder = model if model_class is PlainformerModel else model.plainformer
    last = encoder(**rows, output_attentions=False, output_hidden_states=False).last_hidden_state
    assert_same(output.hidden_states[-1], last)
    assert [weights.shape for weights in output.attentions] == [(6, 2, 8, 8)] * 2
    for weights in output.attentions:
        of_tokens = weights.transpose(1, 2)[real]  # [T, H, L]
        assert_same(of_tokens.sum(dim=-1), torch.ones(len(of_tokens), 2))
        assert not weights.masked_select(~real[:, None, None, :]).any()

    plain = model(**inputs, output_attentions=False, output_hidden_states=False)
    assert plain.get("hidden_states") is None and plain.get("attentions") is None
    assert_same(answers(output), answers(plain))


def test_handed_out_states_lie_on_the_path_of_the_gradient(variant, model_class, kernel):
    """Whoever asks for the gradient of a hidden state gets it."""
    model = make_model(model_class, attn_implementation=kernel, **variant)
    output = model(**as_batch(model_class, make_rows(padding_mask())), output_hidden_states=True)
    for states in output.hidden_states:
        states.retain_grad()
    said = answers(output)
    said[said > -1000].sum().backward()
    assert all(states.grad is not None and states.grad.any() for states in output.hidden_states)


@pytest.mark.parametrize("patterns", [("full", "full"), ("right", "left"), ("full", "empty")], ids="-".join)
def test_handed_out_attentions_lie_on_the_path_of_the_gradient(variant, model_class, patterns):
    """Whoever asks for the gradient of attention weights gets it."""
    model = make_model(model_class, **variant)
    output = model(**as_batch(model_class, make_rows(padding_mask(*patterns))), output_attentions=True)
    for weights in output.attentions:
        weights.retain_grad()
    said = answers(output)
    said[said > -1000].sum().backward()
    assert all(weights.grad is not None and weights.grad.any() for weights in output.attentions)


# Kernels


def test_switching_the_kernel(model_class, monkeypatch):
    """After each switch the configuration says so, and another function runs."""
    ran = []

    def spy(name):
        real_kernel = KERNEL_FUNCTIONS[name]
        return lambda *args: ran.append(name) or real_kernel(*args)

    for name in KERNELS:
        monkeypatch.setitem(KERNEL_FUNCTIONS, name, spy(name))
    model = make_model(model_class)
    inputs = make_inputs(model_class)
    assert model.config._attn_implementation == "sdpa"
    for name in ("sdpa", "eager", "sdpa", "eager"):
        model.set_attn_implementation(name)
        ran.clear()
        model(**inputs)
        assert model.config._attn_implementation == name
        assert ran == [name] * 2
    assert set(KERNEL_FUNCTIONS) == set(KERNELS)  # none is offered that these tests do not run


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention", "sdpaa"])
def test_unknown_kernel(model_class, name):
    model = make_model(model_class)
    with pytest.raises(ValueError, match=f"attn_implementation=\"{name}\".*'sdpa', 'eager'"):
        model.set_attn_implementation(name)
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match=f"attn_implementation=\"{name}\".*'sdpa', 'eager'"):
        make_model(model_class, attn_implementation=name)


def test_kernels_agree(variant):
    """Lengths from 1 to 256 in one batch, and each on its own."""
    lengths = torch.tensor([1, 7, 32, 33, 64, 128, 256])
    mask = (torch.arange(256) < lengths[:, None]).long()
    model = make_model(PlainformerModel, max_position_embeddings=256, num_hidden_layers=1, **variant)
    rows = make_rows(mask)
    said = {}
    for kernel in KERNELS:
        model.set_attn_implementation(kernel)
        said[kernel] = row_answers(model, rows)
    assert_same(said["sdpa"], said["eager"])
    for index, length in enumerate(lengths):
        alone = {name: rows[name][index : index + 1, :length] for name in ("input_ids", "token_type_ids")}
        assert_same(row_answers(model, alone)[0], said["sdpa"][index, :length])


def test_kernels_agree_on_gradients(variant, case):
    inputs = as_batch(case[0], make_rows(padding_mask()))
    labels = make_labels(case[0], inputs)
    results = [
        learn(make_model(case[0], attn_implementation=kernel, **case[1], **variant), inputs, labels)
        for kernel in KERNELS
    ]
    assert_same(*results)


# Dropout

DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def check_dropout(model_class: type, field: str, **overrides) -> None:
    """Off in eval, on in training, for one of the fields on its own."""
    off = dict.fromkeys((*DROPOUTS, "classifier_dropout"), 0.0)
    model = make_model(model_class, **{**off, field: 0.5}, **overrides)
    rows = make_rows(padding_mask("right", "full"))
    assert_equal(row_answers(model, rows), row_answers(model, rows))
    without = make_model(model_class, **off, **overrides).train()
    assert_equal(row_answers(model, rows), row_answers(without, rows))
    model.train()
    assert not torch.allclose(row_answers(model, rows), row_answers(model, rows), atol=1e-3)


@pytest.mark.parametrize("field", DROPOUTS)
def test_dropout(variant, kernel, field):
    check_dropout(PlainformerModel, field, attn_implementation=kernel, **variant)


@pytest.mark.parametrize("field", DROPOUTS)
def test_dropout_below_a_head(head_class, field):
    check_dropout(head_class, field)


@pytest.mark.parametrize(
    "model_class",
    [PlainformerForSequenceClassification, PlainformerForTokenClassification, PlainformerForMultipleChoice],
    ids=short_name,
)
def test_classifier_dropout(model_class):
    """Its own field, or `hidden_dropout_prob` where that is None."""
    for given, expected in ((0.5, 0.5), (0.0, 0.0), (None, 0.3)):
        model = make_model(model_class, hidden_dropout_prob=0.3, classifier_dropout=given)
        assert model.dropout.p == expected
    check_dropout(model_class, "classifier_dropout")


# Embeddings in the place of ids


def test_inputs_embeds_equals_input_ids(variant, case):
    """Answers, loss, and gradients down to the word embeddings; they are scaled as those of ids are."""
    model = make_model(case[0], scale_embedding=True, **case[1], **variant)
    by_ids = as_batch(case[0], make_rows(padding_mask()))
    labels = make_labels(case[0], by_ids)
    expected = learn(model, by_ids, labels)
    model.zero_grad()
    by_embeds = {**by_ids, "input_ids": None, "inputs_embeds": model.get_input_embeddings()(by_ids["input_ids"])}
    assert_same(learn(model, by_embeds, labels), expected)


def test_both_or_neither(model_class):
    model = make_model(model_class)
    ids = make_inputs(model_class)["input_ids"]
    with pytest.raises(ValueError, match="both was given"):
        model(input_ids=ids, inputs_embeds=torch.randn(*ids.shape, 32))
    with pytest.raises(ValueError, match="input"):
        model()
    with pytest.raises(ValueError, match="input"):
        model(attention_mask=torch.ones_like(ids))


def test_odd_sizes(variant, case, kernel):
    """Width 33 with 3 heads, in the batch and alone."""
    model = make_model(case[0], attn_implementation=kernel, hidden_size=33, num_attention_heads=3, **case[1], **variant)
    rows = make_rows(padding_mask("right", "left"))
    said = row_answers(model, rows)
    assert_finite(said)
    alone = {name: rows[name][1:, 2:] for name in ("input_ids", "token_type_ids")}
    expected = row_answers(model, alone, num_choices=1)[0]
    assert_same(said[1] if case[0] in PER_ROW else said[1, 2:], expected)


# Explicit positions, and rows that hold several sequences

PACKED = {
    "two": [[0, 1, 2, 3, 0, 1, 2, 3]],
    "three": [[0, 1, 2, 0, 1, 0, 1, 2]],
    "one-token-sequences": [[0, 0, 0, 0, 0, 0, 0, 0]],
    "last-of-one-token": [[0, 1, 2, 3, 4, 5, 6, 0]],
    "from-five": [[5, 6, 7, 5, 6, 7, 8, 9]],
    "second-row": [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 0, 1, 2, 3]],
    "one-of-several": [[7, 6, 5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5, 0, 1], [0, 2, 4, 6, 8, 10, 12, 14]],
}
EXPLICIT = {
    "permuted": [3, 1, 0, 2, 7, 5, 6, 4],
    "gapped": [0, 1, 2, 3, 8, 9, 10, 11],
    "reversed": [7, 6, 5, 4, 3, 2, 1, 0],
    "from-three": [3, 4, 5, 6, 7, 8, 9, 10],
    "repeated": [0, 1, 1, 2, 3, 4, 4, 5],
    "back-but-not-to-the-first": [0, 1, 2, 3, 2, 3, 4, 5],
    "back-and-gapped": [0, 1, 2, 4, 0, 1, 2, 3],
}
REMEDY = "several sequences.*row of its own"


# Heads that give one answer per row; tests/model/test_unpadding.py has packed rows that are computed.
ROW_HEADS = [*PER_ROW, PlainformerForQuestionAnswering]


@pytest.mark.parametrize("row_class", ROW_HEADS, ids=short_name)
@pytest.mark.parametrize("positions", PACKED.values(), ids=PACKED)
def test_packed_rows_are_refused(row_class, positions):
    model = make_model(row_class)
    positions = as_batch(row_class, {"positions": torch.tensor(positions)}, num_choices=1)["positions"]
    ids = torch.randint(1, 50, positions.shape)
    for mask in (None, torch.ones_like(ids)):
        with pytest.raises(ValueError, match=REMEDY):
            model(ids, attention_mask=mask, position_ids=positions)


@pytest.mark.parametrize("kind", ["sinusoidal", "none"])
def test_packed_rows_are_refused_for_every_position_kind(kind):
    with pytest.raises(ValueError, match=REMEDY):
        make_model(PlainformerForSequenceClassification, position_embedding_type=kind)(
            torch.randint(1, 50, (1, 8)), position_ids=torch.tensor(PACKED["two"])
        )


@pytest.mark.parametrize("padding", ["right", "left", "both", "holes"])
def test_packed_rows_are_found_between_padding(padding):
    """Only real tokens count: what stands at padding neither hides a return to the start nor makes one."""
    model = make_model(PlainformerForSequenceClassification)
    mask = padding_mask("full", padding)
    real = mask[1].bool()
    ids = torch.randint(1, 50, (2, 8))
    starts_again = [0, 1, 0, 1, 2, 3][: real.sum()]
    goes_on = list(range(int(real.sum())))
    for at_padding in (0, 1, 7):
        positions = torch.stack((torch.arange(8), torch.full((8,), at_padding)))
        positions[1, real] = torch.tensor(starts_again)
        with pytest.raises(ValueError, match=REMEDY):
            model(ids, mask, position_ids=positions)
        positions[1, real] = torch.tensor(goes_on)
        assert_equal(model(ids, mask, position_ids=positions).logits, model(ids, mask).logits)


def test_packed_rows_are_refused_with_the_positions_of_one_row():
    with pytest.raises(ValueError, match=REMEDY):
        make_model(PlainformerForSequenceClassification)(
            torch.randint(1, 50, (3, 8)), position_ids=torch.tensor(PACKED["two"])
        )


@pytest.mark.parametrize("row_class", ROW_HEADS, ids=short_name)
def test_packed_rows_are_refused_with_the_remedy_for_cumulative_lengths(row_class):
    """What `DataCollatorWithFlattening(return_flash_attn_kwargs=True)` adds."""
    inputs = make_inputs(row_class, 1, num_choices=1)
    lengths = {"cu_seq_lens_q": torch.tensor([0, 3, 8]), "cu_seq_lens_k": torch.tensor([0, 3, 8])}
    with pytest.raises(ValueError, match="row of its own"):
        make_model(row_class)(**inputs, **lengths)


def test_explicit_positions_are_one_sequence(variant, case):
    """Tokens and positions that change places together say the same; tokens at other positions say something else."""
    model = make_model(case[0], **case[1], **variant)
    rows = make_rows(torch.ones(8, 8, dtype=torch.long))
    for name in ("input_ids", "token_type_ids"):
        rows[name][:] = rows[name][:1]
    rows["position_ids"] = torch.tensor([list(range(8)), *EXPLICIT.values()])
    said = row_answers(model, rows)
    assert_finite(said)
    counted = {name: values for name, values in rows.items() if name != "position_ids"}
    assert_equal(said[0], row_answers(model, counted)[0])
    for name, row in zip(EXPLICIT, said[1:], strict=True):
        if variant["position_embedding_type"] == "none":
            assert_same(row, said[0])
        else:
            assert not torch.allclose(row, said[0], atol=1e-4), name
    if case[0] not in PER_ROW:
        order = torch.tensor([2, 0, 1, 7, 3, 6, 4, 5])
        mixed = row_answers(model, {name: values[:, order] for name, values in rows.items()})
        assert_same(mixed, said[:, order])


@pytest.mark.parametrize("positions", EXPLICIT.values(), ids=EXPLICIT)
def test_explicit_positions_on_their_own(positions):
    """No pattern is refused because of the rows beside it, or accepted because of them."""
    model = make_model(PlainformerModel)
    assert_finite(model(torch.randint(1, 50, (1, 8)), position_ids=torch.tensor([positions])).last_hidden_state)


def test_positions_of_one_row_serve_all(variant):
    model = make_model(PlainformerModel, **variant)
    inputs = make_inputs(PlainformerModel, 3)
    positions = torch.tensor([EXPLICIT["reversed"]])
    expected = model(**inputs, position_ids=positions.expand(3, 8)).last_hidden_state
    assert_equal(model(**inputs, position_ids=positions).last_hidden_state, expected)


def test_single_tokens_are_not_packed():
    model = make_model(PlainformerModel)
    ids = torch.randint(1, 50, (3, 1))
    said = model(ids, position_ids=torch.zeros(3, 1, dtype=torch.long)).last_hidden_state
    assert_equal(said, model(ids).last_hidden_state)


# Precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(variant, case, dtype):
    """Finite and close to float32, loss and gradients included."""
    model = make_model(case[0], **case[1], **variant)
    half = copy.deepcopy(model).to(dtype)
    rows = make_rows(padding_mask())
    expected, said = row_answers(model, rows), row_answers(half, rows)
    assert said.dtype == dtype
    close = expected > -1000
    scale = expected[close].square().mean().sqrt()
    assert (said[close].float() - expected[close]).square().mean().sqrt() <= 8 * torch.finfo(dtype).eps * scale
    _, loss, grads = learn(half, as_batch(case[0], rows), make_labels(case[0], as_batch(case[0], rows)))
    assert_finite(said, loss, *grads.values())


def test_autocast(variant, case, kernel):
    model = make_model(case[0], attn_implementation=kernel, **case[1], **variant)
    rows = make_rows(padding_mask())
    expected = row_answers(model, rows)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        said = row_answers(model, rows).float()
        _, loss, grads = learn(model, as_batch(case[0], rows), make_labels(case[0], as_batch(case[0], rows)))
    close = expected > -1000
    scale = expected[close].square().mean().sqrt()
    assert (said[close] - expected[close]).square().mean().sqrt() <= 8 * torch.finfo(torch.bfloat16).eps * scale
    assert_finite(said, loss, *grads.values())


# Gradient checkpointing


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
@pytest.mark.parametrize("use_reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_gradient_checkpointing(variant, case, use_reentrant):
    """The same answers, loss and gradients, and each layer runs a second time."""
    model = make_model(case[0], hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **case[1], **variant).train()
    inputs = as_batch(case[0], make_rows(padding_mask()))
    labels = make_labels(case[0], inputs)
    runs = []
    model.base_model.layers[0].mlp.register_forward_pre_hook(lambda *args: runs.append(1))
    expected = learn(model, inputs, labels)
    assert len(runs) == 1
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    assert_same(learn(model, inputs, labels), expected)
    assert len(runs) == 3


# What is refused

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


@pytest.mark.parametrize(("inputs", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named(variant, inputs, error, message):
    with pytest.raises(error, match=message):
        make_model(PlainformerModel, **variant)(**inputs)


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


def test_variants_are_told_apart():
    """The batch of these tests has room for every difference: no two variants say the same."""
    rows = make_rows(padding_mask())
    said = [row_answers(make_model(PlainformerModel, **variant), rows) for variant in VARIANTS.values()]
    for index, one in enumerate(said):
        assert not any(torch.allclose(one, other, atol=1e-2) for other in said[index + 1 :])
