"""Attention and its kernels: the formula by hand, masks that say who attends to whom, and the choice of a kernel.

Shapes: B batch, L length, H heads, D head size, E hidden size.
"""

import math

import pytest
import torch
from helpers.models import (
    KERNELS,
    PER_ROW,
    answers,
    as_batch,
    assert_equal,
    assert_finite,
    assert_same,
    learn,
    make_inputs,
    make_labels,
    make_model,
    make_rows,
    padding_mask,
    row_answers,
)
from torch import Tensor, nn

from plainformer import PlainformerForMultipleChoice, PlainformerModel
from plainformer.kernels_plainformer import KERNELS as KERNEL_FUNCTIONS

# Attention, written out


def attention_by_hand(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Query, key, value [B, H, L, D] and scores to add [B, H, L, L] -> context and weights, one query at a time.

    Where every score is minus infinity, both are 0.
    """
    B, H, L, D = query.shape
    context, weights = torch.zeros_like(query), torch.zeros(B, H, L, L)
    for b in range(B):
        for h in range(H):
            for i in range(L):
                scores = [(query[b, h, i] * key[b, h, j]).sum() / math.sqrt(D) for j in range(L)]
                if bias is not None:
                    scores = [score + bias[b, h, i, j] for j, score in enumerate(scores)]
                powers = [score.exp() for score in scores]
                total = sum(powers)
                if total == 0:
                    continue
                row = torch.stack(powers) / total
                weights[b, h, i] = row
                context[b, h, i] = sum(row[j] * value[b, h, j] for j in range(L))
    return context, weights


def make_mask(name: str) -> tuple[Tensor | None, Tensor | None]:
    """A mask for 2 rows of 5 tokens and 2 heads as a model takes it, and the scores [2, 2, 5, 5] that it adds."""
    shape = (2, 2, 5, 5)
    masked = torch.zeros(shape, dtype=torch.bool)
    if name == "no mask":
        return None, None
    if name == "padding":
        mask = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]])
        return mask, torch.zeros(shape).masked_fill(mask[:, None, None, :] == 0, -torch.inf)
    if name == "distance":  # finite biases, as in ALiBi
        place = torch.arange(5)
        bias = -0.5 * (place[:, None] - place).abs().float()
        return bias.expand(2, 1, 5, 5), bias.expand(shape)
    if name == "rows":
        masked = torch.ones(2, 5, 5).triu(1).bool()
        masked[1, 2] = True  # the third query of the second row is fully masked
        return ~masked, torch.zeros(shape).masked_fill(masked[:, None], -torch.inf)
    masked = torch.rand(shape) < 0.4
    masked[0, 1, 3] = True  # fully masked in one of the heads
    bias = torch.randn(shape).masked_fill(masked, -torch.inf)
    return (~masked, torch.zeros(shape).masked_fill(masked, -torch.inf)) if name == "heads" else (bias, bias)


def watch(attention: nn.Module, run) -> tuple[Tensor, Tensor]:
    """What the attention of a layer was given and what it returned, [B, L, E] each, while `run` was called."""
    seen = []
    hook = attention.register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
    run()
    hook.remove()
    return seen[0]


def heads_of(attention: nn.Module, hidden_states: Tensor) -> list[Tensor]:
    """Queries, keys and values of [2, 5, 32], two heads: [2, 2, 5, 16] each."""
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return [projection(hidden_states).view(2, 5, 2, 16).transpose(1, 2) for projection in projections]


@pytest.mark.parametrize("name", ["no mask", "padding", "rows", "heads", "distance", "additive"])
def test_attention_by_hand(kernel, name):
    """The module as the encoder calls it, gradients of its input and of every weight included."""
    model = make_model(PlainformerModel, attn_implementation=kernel, unpad_inputs=False)
    attention = model.layers[0].attention
    mask, bias = make_mask(name)
    embeds = torch.randn(2, 5, 32, requires_grad=True)
    counts = (mask if name == "padding" else torch.ones(2, 5)).bool()
    given, branch = watch(attention, lambda: model(inputs_embeds=embeds, attention_mask=mask))
    by_hand = given.detach().requires_grad_()
    context = attention_by_hand(*heads_of(attention, by_hand), bias)[0]
    expected = attention.o_proj(torch.cat((context[:, 0], context[:, 1]), dim=-1))
    assert_same(branch[counts], expected[counts])
    weights = torch.randn(branch[counts].shape)
    results = [
        torch.autograd.grad((states[counts] * weights).sum(), (source, *attention.parameters()), allow_unused=True)
        for states, source in ((branch, given), (expected, by_hand))
    ]
    assert_same(*results)


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
def test_attention_weights_by_hand(kernel, unpad):
    """`output_attentions` hands out the weights that were used, whichever kernel computes the rest."""
    model = make_model(PlainformerModel, attn_implementation=kernel, unpad_inputs=unpad)
    attention = model.layers[1].attention
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]])
    ids, outputs = torch.randint(1, 50, (2, 5)), []
    with torch.no_grad():
        given, _ = watch(attention, lambda: outputs.append(model(ids, mask, output_attentions=True)))
        bias = torch.zeros(2, 2, 5, 5).masked_fill(mask[:, None, None, :] == 0, -torch.inf)
        expected = attention_by_hand(*heads_of(attention, given), bias)[1]
    tokens = mask.bool()
    assert_same(outputs[0].attentions[1].transpose(1, 2)[tokens], expected.transpose(1, 2)[tokens])


def test_odd_sizes(subject):
    """Width 33 with 3 heads, in the batch and alone."""
    model = make_model(subject[0], hidden_size=33, num_attention_heads=3, **subject[1])
    rows = make_rows(padding_mask("right", "left"))
    outputs = row_answers(model, rows)
    assert_finite(outputs)
    alone = {name: rows[name][1:, 2:] for name in ("input_ids", "token_type_ids")}
    expected = row_answers(model, alone, num_choices=1)[0]
    assert_same(outputs[1] if subject[0] in PER_ROW else outputs[1, 2:], expected)


# Masks that say who attends to whom


def some_pairs() -> Tensor:
    """Who attends to whom, bool [3, 8, 8]; two queries are fully masked."""
    pairs = torch.rand(3, 8, 8) < 0.6
    pairs[0, 2] = pairs[2, 7] = False
    return pairs


FORMS = {
    "bool-3d": lambda pairs: pairs,
    "int-3d": lambda pairs: pairs.long(),
    "inf-3d": lambda pairs: torch.zeros(pairs.shape).masked_fill(~pairs, -torch.inf),
    "finfo-min-3d": lambda pairs: torch.zeros(pairs.shape).masked_fill(~pairs, torch.finfo(torch.float32).min),
    "bool-4d": lambda pairs: pairs[:, None],
    "int-4d": lambda pairs: pairs[:, None].int(),
    "inf-4d": lambda pairs: torch.zeros(pairs.shape).masked_fill(~pairs, -torch.inf)[:, None],
    "bool-per-head": lambda pairs: pairs[:, None].expand(-1, 2, -1, -1),
    "finfo-min-per-head": lambda pairs: FORMS["finfo-min-3d"](pairs)[:, None].expand(-1, 2, -1, -1),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_mask_agree(setting, form):
    """Each against the weights of attention: 0 where it is masked, the rest sums to 1; fully masked rows are 0."""
    model = make_model(PlainformerModel, **setting)
    inputs, pairs = make_inputs(PlainformerModel, 3), some_pairs()
    branches = []
    for layer in model.layers:
        layer.attention.register_forward_hook(lambda module, args, output: branches.append((module, output)))
    output = model(**inputs, attention_mask=FORMS[form](pairs))
    fully_masked = ~pairs.any(dim=-1)  # [B, L]
    assert fully_masked.sum() == 2
    for attention, branch in branches:
        assert_equal(branch[fully_masked], attention.o_proj.bias.expand(2, -1))  # the projection of zeros
    assert (output.last_hidden_state != 0).any(dim=-1).all()

    reference = make_model(PlainformerModel, **{**setting, "attn_implementation": "eager"})
    weights = reference(**inputs, attention_mask=FORMS[form](pairs), output_attentions=True)
    assert_same(output.last_hidden_state, weights.last_hidden_state)
    for layer in weights.attentions:
        assert not layer.masked_select(~pairs[:, None]).any()
        assert_same(layer.sum(dim=-1), (~fully_masked[:, None]).float().expand(3, 2, 8))
    assert_same(output.last_hidden_state, reference(**inputs, attention_mask=pairs).last_hidden_state)


def test_pairs_that_hide_padding(setting):
    """With the positions given, real tokens are what they are with the mask of two dimensions."""
    model = make_model(PlainformerModel, **setting)
    rows = make_rows(padding_mask("right", "left", "both", "holes", "full"))
    token_mask = rows["attention_mask"].bool()
    rows["position_ids"] = torch.arange(8).expand(5, 8)
    pairs = token_mask[:, None, :].expand(5, 8, 8)
    two, three = row_answers(model, rows), row_answers(model, {**rows, "attention_mask": pairs})
    assert_same(three[token_mask], two[token_mask])
    assert (three[~token_mask] != 0).any(dim=-1).all()


@pytest.mark.parametrize("form", ["bool-3d", "inf-4d"])
def test_pairs_leave_every_place_real(subject, form):
    """Everybody to everybody is no mask at all; and forbidding the first place does not move `cls` or positions."""
    model = make_model(subject[0], **subject[1])
    inputs = make_inputs(subject[0], 3)
    rows = 6 if subject[0] is PlainformerForMultipleChoice else 3
    everybody = torch.ones(rows, 8, 8, dtype=torch.bool)
    not_first = everybody.clone()
    not_first[:, :, 0] = False
    outputs = []
    for pairs in (everybody, not_first):
        mask = as_batch(subject[0], {"mask": FORMS[form](pairs)})["mask"]
        outputs.append(answers(model(**inputs, attention_mask=mask)))
        explicit = torch.arange(8).expand(inputs["input_ids"].shape)
        assert_equal(answers(model(**inputs, attention_mask=mask, position_ids=explicit)), outputs[-1])
    assert_same(outputs[0], answers(model(**inputs)))
    assert not torch.allclose(outputs[1], outputs[0], atol=1e-3)
    assert (outputs[1] > -1000).all()


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


# Kernels


def test_switching_the_kernel(model_class, monkeypatch):
    """After each switch the configuration says so, and another function runs."""
    ran = []

    def spy(name):
        original = KERNEL_FUNCTIONS[name]
        return lambda *args: ran.append(name) or original(*args)

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
def test_unknown_kernel(name):
    model = make_model(PlainformerModel)
    with pytest.raises(ValueError, match=f"attn_implementation=\"{name}\".*'sdpa', 'eager'"):
        model.set_attn_implementation(name)
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match=f"attn_implementation=\"{name}\".*'sdpa', 'eager'"):
        make_model(PlainformerModel, attn_implementation=name)


def test_kernels_agree():
    """Lengths from 1 to 256 in one batch, and each on its own."""
    lengths = torch.tensor([1, 7, 32, 33, 64, 128, 256])
    mask = (torch.arange(256) < lengths[:, None]).long()
    model = make_model(PlainformerModel, max_position_embeddings=256, num_hidden_layers=1)
    rows = make_rows(mask)
    outputs = {}
    for kernel in KERNELS:
        model.set_attn_implementation(kernel)
        outputs[kernel] = row_answers(model, rows)
    assert_same(outputs["sdpa"], outputs["eager"])
    for index, length in enumerate(lengths):
        alone = {name: rows[name][index : index + 1, :length] for name in ("input_ids", "token_type_ids")}
        assert_same(row_answers(model, alone)[0], outputs["sdpa"][index, :length])


def test_kernels_agree_on_gradients(subject):
    inputs = as_batch(subject[0], make_rows(padding_mask()))
    labels = make_labels(subject[0], inputs)
    results = [
        learn(make_model(subject[0], **{**subject[1], "attn_implementation": kernel}), inputs | labels)
        for kernel in KERNELS
    ]
    assert_same(*results)
