"""transformers' `pipeline`: what it says is what the model says, and what it says over BERT with the same weights."""

import os
from pathlib import Path

import pytest
import torch
from helpers.models import assert_same, randomise, tiny_config
from transformers import (
    AutoModel,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    PreTrainedTokenizerBase,
    pipeline,
)
from transformers.pipelines import get_supported_tasks

from plainformer import (
    PlainformerForMaskedLM,
    PlainformerForQuestionAnswering,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
    PlainformerModel,
    PlainformerPreTrainedModel,
    load_tokenizer,
    to_bert,
)

WORDS = "new york based the film is good bad very - 。 大 学 は 日 本 東 京 ##ly ##ing"
TEXTS = ["New York-based", "the film is very very good", "東京大学は日本"]
TAGS = ["O", "B-LOC", "I-LOC", "B-ORG", "I-ORG"]
STRATEGIES = ["simple", "first", "average", "max"]
NO_QA = "question-answering" not in get_supported_tasks()  # transformers 5 has dropped it


@pytest.fixture
def tokenizer(tmp_path: Path) -> PreTrainedTokenizerBase:
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]), encoding="utf-8")
    return load_tokenizer(vocab, model_max_length=16)


def make(model_class: type, tokenizer: PreTrainedTokenizerBase, **overrides) -> PlainformerPreTrainedModel:
    return randomise(model_class(tiny_config(vocab_size=len(tokenizer), **overrides))).eval()


def saved(model: PlainformerPreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> str:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return os.fspath(folder)


def answer_by_token(
    model: PlainformerPreTrainedModel, tokenizer: PreTrainedTokenizerBase, chosen: dict[str, int], first: int = 0
) -> PlainformerPreTrainedModel:
    """Let a fresh model tell by the token alone: of class `chosen[token]`, or 0; its outputs start at class `first`."""
    encoder, head = model.base_model, getattr(model, "classifier", None) or model.qa_outputs
    with torch.no_grad():
        for linear in (part for layer in encoder.layers for part in (layer.attention.o_proj, layer.mlp.fc2)):
            linear.weight.zero_()
            linear.bias.zero_()
        for table in (encoder.embeddings.position_embeddings, encoder.embeddings.token_type_embeddings):
            table.weight.zero_()
        words = encoder.embeddings.word_embeddings.weight.zero_()  # [V, E]: one-hot by class
        for token, index in tokenizer.get_vocab().items():
            words[index, chosen.get(token, 0)] = 1
        head.weight.copy_(5 * torch.eye(words.shape[1])[first : first + head.out_features])
        head.bias.zero_()
    return model.eval()


def test_every_task_opens_a_folder(tokenizer, tmp_path):
    """Each pipeline opens the folder of another class by itself, with the code out of the folder."""
    model = make(PlainformerForMaskedLM, tokenizer)
    folder = saved(model, tokenizer, tmp_path / "model")
    tasks = ["fill-mask", "text-classification", "token-classification", "feature-extraction"]
    for task in tasks if NO_QA else [*tasks, "question-answering"]:
        opened = pipeline(task, model=folder, trust_remote_code=True)
        assert opened.model.config.model_type == "plainformer"
        assert_same(opened.model.base_model.state_dict(), model.plainformer.state_dict())


def test_fill_mask(tokenizer, tmp_path):
    model = make(PlainformerForMaskedLM, tokenizer)
    to_bert(model, tmp_path / "bert")
    bert = BertForMaskedLM.from_pretrained(tmp_path / "bert")
    texts = ["the film is [MASK]", "東京[MASK]学は日本"]
    filled, expected = (
        pipeline("fill-mask", model=one, tokenizer=tokenizer, top_k=3)(texts, batch_size=2) for one in (model, bert)
    )
    assert [[answer["sequence"] for answer in one] for one in filled] == [
        [answer["sequence"] for answer in one] for one in expected
    ]
    assert_same([[a["score"] for a in one] for one in filled], [[a["score"] for a in one] for one in expected])

    place = tokenizer(texts[0])["input_ids"].index(tokenizer.mask_token_id)
    with torch.no_grad():
        logits = model(**tokenizer(texts[:1], return_tensors="pt")).logits[0, place]
    assert filled[0][0]["token"] == int(logits.argmax())
    assert_same(filled[0][0]["score"], float(logits.softmax(-1).max()))


@pytest.mark.parametrize(
    "problem_type, activation",
    [
        ("single_label_classification", lambda logits: logits.softmax(-1)),
        ("multi_label_classification", torch.sigmoid),
        ("regression", lambda logits: logits),
    ],
)
def test_text_classification(problem_type, activation, tokenizer, tmp_path):
    """Label names come from the config, and its `problem_type` chooses the function of the scores."""
    names = ["bad", "good", "unsure"]
    model = make(
        PlainformerForSequenceClassification, tokenizer, problem_type=problem_type, id2label=dict(enumerate(names))
    )
    folder = saved(model, tokenizer, tmp_path / "model")
    classify = pipeline("text-classification", model=folder, trust_remote_code=True, top_k=None)
    to_bert(model, tmp_path / "bert")
    bert = BertForSequenceClassification.from_pretrained(tmp_path / "bert")
    expected = pipeline("text-classification", model=bert, tokenizer=tokenizer, top_k=None)(TEXTS)
    for text, output, by_bert in zip(TEXTS, classify(TEXTS, batch_size=3), expected, strict=True):
        scores = activation(model(**tokenizer(text, return_tensors="pt")).logits)[0]
        assert_same({one["label"]: one["score"] for one in output}, dict(zip(names, scores.tolist(), strict=True)))
        assert_same({one["label"]: one["score"] for one in by_bert}, {one["label"]: one["score"] for one in output})


def test_text_classification_cuts_off_long_texts(tokenizer, tmp_path):
    """`truncation=True` finds a limit in the folder, that of the model, on a text of 5,000 words."""
    folder = saved(make(PlainformerForSequenceClassification, tokenizer), tokenizer, tmp_path / "model")
    classify = pipeline("text-classification", model=folder, trust_remote_code=True)
    assert classify("good " * 5000, truncation=True) == classify("good " * 14)
    with pytest.raises(ValueError, match="truncation=True"):
        classify("good " * 5000)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_token_classification_finds_spans(strategy, tokenizer):
    """`start` and `end` cut the entity out of the text, also where the text has no spaces."""
    model = PlainformerForTokenClassification(
        tiny_config(vocab_size=len(tokenizer), id2label=dict(enumerate(TAGS)), num_labels=len(TAGS))
    )
    chosen = {"new": 1, "york": 2, "東": 3, "京": 4, "大": 4, "学": 4, "日": 1, "本": 2}
    answer_by_token(model, tokenizer, chosen)
    tag = pipeline("token-classification", model=model, tokenizer=tokenizer, aggregation_strategy=strategy)
    found = {text: [(one["entity_group"], one["start"], one["end"]) for one in tag(text)] for text in TEXTS}
    assert found == {
        "New York-based": [("LOC", 0, 8)],
        "the film is very very good": [],
        "東京大学は日本": [("ORG", 0, 4), ("LOC", 5, 7)],
    }


@pytest.mark.parametrize("strategy", ["none", *STRATEGIES])
def test_token_classification_equals_bert(strategy, tokenizer, tmp_path):
    """Random answers, so that words are torn apart and joined again by each strategy; chunks of long texts too."""
    model = make(PlainformerForTokenClassification, tokenizer, id2label=dict(enumerate(TAGS)), num_labels=len(TAGS))
    to_bert(model, tmp_path / "bert")
    bert = BertForTokenClassification.from_pretrained(tmp_path / "bert")
    texts, options = [*TEXTS, "badly basing the film"], {"aggregation_strategy": strategy}
    if strategy not in ("none", "simple"):  # the others join the chunks that a long text is cut into
        texts, options = [*texts, " ".join(["New York-based film 東京"] * 9)], {**options, "stride": 4}
    output, expected = (
        pipeline("token-classification", model=one, tokenizer=tokenizer, **options)(texts) for one in (model, bert)
    )
    assert sum(map(len, output)) > 5
    for ours, theirs in zip(output, expected, strict=True):
        assert_same([float(one.pop("score")) for one in ours], [float(one.pop("score")) for one in theirs])
        assert ours == theirs


def test_question_answering_in_japanese(tokenizer, tmp_path):
    """Without spaces, the answer is cut out by characters. transformers 5 has no such pipeline, and says so."""
    if NO_QA:
        with pytest.raises(KeyError, match="question-answering"):
            pipeline("question-answering", model=make(PlainformerForQuestionAnswering, tokenizer), tokenizer=tokenizer)
        return
    question, context = "東京大学は?", "東京大学は日本。東京"
    model = PlainformerForQuestionAnswering(tiny_config(vocab_size=len(tokenizer)))
    answer_by_token(model, tokenizer, {"日": 1, "本": 2}, first=1)
    answer = pipeline("question-answering", model=model, tokenizer=tokenizer)
    output = answer(question=question, context=context, doc_stride=4)
    assert (output["answer"], output["start"], output["end"]) == ("日本", 5, 7)

    randomise(model)
    to_bert(model, tmp_path / "bert")
    bert = BertForQuestionAnswering.from_pretrained(tmp_path / "bert")
    expected = pipeline("question-answering", model=bert, tokenizer=tokenizer)
    batch = [{"question": question, "context": context * times} for times in (1, 3)]  # the second in several windows
    options = {"top_k": 3, "max_seq_len": 16, "doc_stride": 4}
    for ours, theirs in zip(answer(batch, **options), expected(batch, **options), strict=True):
        assert_same([one.pop("score") for one in ours], [one.pop("score") for one in theirs])
        assert ours == theirs


def test_zero_shot_classification(tokenizer):
    """Any sequence classifier of pairs with a label called entailment, which a model trained on such pairs has."""
    names = ["contradiction", "neutral", "entailment"]
    model = make(PlainformerForSequenceClassification, tokenizer, id2label=dict(enumerate(names)))
    classify = pipeline("zero-shot-classification", model=model, tokenizer=tokenizer)
    output = classify("the film", candidate_labels=["good", "bad"], hypothesis_template="is {}")
    pairs = tokenizer(["the film"] * 2, ["is good", "is bad"], return_tensors="pt")
    scores = model(**pairs).logits[:, 2].softmax(0).tolist()
    assert_same(dict(zip(output["labels"], output["scores"], strict=True)), {"good": scores[0], "bad": scores[1]})


def test_feature_extraction(tokenizer, tmp_path):
    """The hidden states of each text's own tokens, whether it is alone or padded in a batch."""
    model = make(PlainformerModel, tokenizer)
    folder = saved(model, tokenizer, tmp_path / "model")
    extract = pipeline("feature-extraction", model=folder, trust_remote_code=True, return_tensors=True)
    for text, states in zip(TEXTS, extract(TEXTS), strict=True):
        assert_same(states, model(**tokenizer(text, return_tensors="pt")).last_hidden_state)
    opened = AutoModel.from_pretrained(folder, trust_remote_code=True)
    for text, states in zip(TEXTS, extract(TEXTS, batch_size=3), strict=True):
        alone = opened(**tokenizer(text, return_tensors="pt")).last_hidden_state
        assert_same(states[:, : alone.shape[1]], alone)
        assert not states[:, alone.shape[1] :].any()
