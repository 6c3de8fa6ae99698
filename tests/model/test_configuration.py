"""The configuration: every field survives, every wrong value is named with its remedy, and strangers are refused."""

import copy
import dataclasses
import json
import pickle
import re
from typing import ClassVar

import numpy as np
import pytest
import torch
import transformers
from helpers.axes import paired
from helpers.models import MODELS, NON_DEFAULT, make_inputs, short_name, tiny_config
from transformers import AutoConfig, AutoModel, BertConfig, BertModel, DistilBertConfig, DistilBertModel
from transformers.activations import ACT2FN

from plainformer import (
    PlainformerConfig,
    PlainformerForMaskedLM,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
    PlainformerModel,
)
from plainformer.configuration_plainformer import ACTIVATIONS, RULES
from plainformer.names_plainformer import NAMES_ELSEWHERE, OF_TRANSFORMERS, WITHOUT_CHOICE
from plainformer.positions_plainformer import POSITION_KINDS

# What the fields of transformers look like when they are not at their defaults.
INHERITED = {
    "id2label": {0: "bad", 1: "so-so", 2: "good"},
    "label2id": {"bad": 0, "so-so": 1, "good": 2},
    "problem_type": "multi_label_classification",
    "output_hidden_states": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
BERT_BASE = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "classifier_dropout": None,
    "tie_word_embeddings": True,
    "position_embedding_type": "learned",
    "pre_norm": False,
    "embedding_norm": True,
    "scale_embedding": False,
    "classifier_pooling": "cls",
    "unpad_inputs": True,
    "sparse_prediction": True,
    "rope_theta": 10000.0,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "randomize_positions": 0,
}

NOT_INTEGERS = (0, -1, 2.0, True, False, None, "12", float("nan"), np.int64(8), [12])
NOT_PROBABILITIES = (-0.1, 1, 1.0, 1.5, True, False, "0.1", float("nan"), float("inf"), [0.1])
NOT_POSITIVE = (0, -0.02, True, None, "0.02", float("nan"), float("inf"))
NOT_BOOLEANS = (0, 1, None, "True", "no", np.bool_(True))
BAD_VALUES = {
    "vocab_size": NOT_INTEGERS,
    "hidden_size": NOT_INTEGERS,
    "num_hidden_layers": NOT_INTEGERS,
    "num_attention_heads": NOT_INTEGERS,
    "intermediate_size": NOT_INTEGERS,
    "hidden_act": ("geluu", "", None, 3, True, torch.nn.functional.gelu, ["gelu"]),
    "hidden_dropout_prob": (None, *NOT_PROBABILITIES),
    "attention_probs_dropout_prob": (None, *NOT_PROBABILITIES),
    "max_position_embeddings": NOT_INTEGERS,
    "type_vocab_size": tuple(value for value in NOT_INTEGERS if value != 0) + (False,),
    "initializer_range": NOT_POSITIVE,
    "layer_norm_eps": NOT_POSITIVE,
    "pad_token_id": (-1, 50, 51, 0.0, True, False, "0", float("nan"), np.int64(3)),
    "classifier_dropout": NOT_PROBABILITIES,
    "tie_word_embeddings": NOT_BOOLEANS,
    "position_embedding_type": ("absolute", "rope", "Learned", "", None, 0, True, ["learned"]),
    "pre_norm": NOT_BOOLEANS,
    "embedding_norm": NOT_BOOLEANS,
    "scale_embedding": NOT_BOOLEANS,
    "classifier_pooling": ("max", "CLS", "", None, 0, True, ["cls"]),
    "unpad_inputs": NOT_BOOLEANS,
    "sparse_prediction": NOT_BOOLEANS,
    "rope_theta": (*NOT_POSITIVE, 0.5),
    "relative_attention_num_buckets": (*NOT_INTEGERS[:-1], 2, 7),
    "relative_attention_max_distance": NOT_INTEGERS,
    "randomize_positions": (-1, 0.5, True, None, "64", 513),
    "problem_type": ("regresion", "classification", "", 0, True, ["regression"]),
    "num_labels": (-1, 0, 2.5, True, "3"),
}
FIELDS = [field for field in BAD_VALUES if field != "num_labels"]
BAD_CASES = [
    pytest.param(field, value, id=f"{field}={value if not callable(value) else value.__name__}-{type(value).__name__}")
    for field, values in BAD_VALUES.items()
    for value in values
]
# What a remedy has to say, at least: a value or a kind of value that would do.
REMEDIES = {
    "hidden_act": "relu",
    "position_embedding_type": "'sinusoidal'",
    "classifier_pooling": "'mean'",
    "problem_type": "'regression'",
    "tie_word_embeddings": "True or False",
    "pre_norm": "True or False",
    "embedding_norm": "True or False",
    "scale_embedding": "True or False",
    "unpad_inputs": "True or False",
    "sparse_prediction": "True or False",
    "hidden_dropout_prob": "below 1",
    "attention_probs_dropout_prob": "below 1",
    "classifier_dropout": "below 1",
    "initializer_range": "above 0",
    "layer_norm_eps": "above 0",
    "pad_token_id": "None",
    "rope_theta": "at least 1",
    "relative_attention_num_buckets": "even",
    "randomize_positions": "at",
}


class Recorder(list):
    """Collects what is logged as a warning."""

    def warning(self, message: str, *args) -> None:
        self.append(message)


@pytest.fixture
def warnings_given(monkeypatch) -> Recorder:
    """The warnings that the configuration gives."""
    recorder = Recorder()
    for file in ("names", "configuration"):
        monkeypatch.setattr(f"plainformer.{file}_plainformer.logger", recorder)
    return recorder


def values_of(config: PlainformerConfig, names) -> dict:
    return {name: getattr(config, name) for name in names}


def is_json(value) -> bool:
    """Whether a value can stand in a `config.json` at all."""
    return isinstance(value, (bool, int, float, str, list, type(None))) and not isinstance(value, np.generic)


def assert_explains(error: BaseException, field: str, value) -> None:
    """The message names the field, the value, and something that would do."""
    message = str(error)
    assert field in message and any(form in message for form in (repr(value), str(value))), message
    assert REMEDIES.get(field, "integer of at least") in message, message


# Fields and their way through files.


def test_the_defaults_are_those_of_bert_base():
    config = PlainformerConfig()
    assert values_of(config, BERT_BASE) == BERT_BASE
    for field, default in BERT_BASE.items():
        assert type(getattr(config, field)) is type(default)


def test_every_field_is_covered_by_these_tests():
    fields = set(PlainformerConfig.__init__.__annotations__) - {"kwargs", "return"}
    assert fields == set(NON_DEFAULT) == set(BERT_BASE)
    assert fields <= set(BAD_VALUES)
    for field in fields:
        assert NON_DEFAULT[field] != BERT_BASE[field]


@pytest.mark.parametrize("field", NON_DEFAULT)
def test_a_field_survives(field, tmp_path):
    """By every way out of a process and back; and a configuration that differs in it is another."""
    config = PlainformerConfig(**{field: NON_DEFAULT[field]})
    assert config != PlainformerConfig()
    config.save_pretrained(tmp_path)
    routes = {
        "folder": PlainformerConfig.from_pretrained(tmp_path),
        "json file": PlainformerConfig.from_json_file(tmp_path / "config.json"),
        "json text": PlainformerConfig(**json.loads(config.to_json_string(use_diff=False))),
        "dictionary": PlainformerConfig.from_dict(config.to_dict()),
        "AutoConfig": AutoConfig.from_pretrained(tmp_path, trust_remote_code=False),
    }
    for route, again in routes.items():
        assert type(again) is PlainformerConfig, route
        assert values_of(again, BERT_BASE) == {**BERT_BASE, field: NON_DEFAULT[field]}, route
        assert type(getattr(again, field)) is type(NON_DEFAULT[field]), route


def test_all_fields_survive_together(tmp_path):
    config = PlainformerConfig(**NON_DEFAULT, **INHERITED)
    config.save_pretrained(tmp_path)
    for again in (
        PlainformerConfig.from_pretrained(tmp_path),
        AutoConfig.from_pretrained(tmp_path, trust_remote_code=False),
    ):
        assert values_of(again, NON_DEFAULT) == NON_DEFAULT
        assert values_of(again, INHERITED) == INHERITED
        assert again.num_labels == 3
        again.save_pretrained(tmp_path / "again")
        assert (tmp_path / "again/config.json").read_text() == (tmp_path / "config.json").read_text()


def test_a_model_carries_all_fields(tmp_path):
    model = PlainformerForSequenceClassification(PlainformerConfig(**NON_DEFAULT, **INHERITED))
    model.save_pretrained(tmp_path)
    config = PlainformerForSequenceClassification.from_pretrained(tmp_path).config
    assert values_of(config, NON_DEFAULT) == NON_DEFAULT
    assert values_of(config, INHERITED) == INHERITED


def test_no_pad_token_survives(tmp_path):
    """None is a value of its own here, not "the default"."""
    tiny_config(pad_token_id=None).save_pretrained(tmp_path)
    assert PlainformerConfig.from_pretrained(tmp_path).pad_token_id is None


@pytest.mark.parametrize("how", ["constructor", "file"])
def test_unknown_keys_are_kept(how, tmp_path, warnings_given):
    extras = {"my_note": "kept", "future_option": {"a": [1, 2]}}
    config = tiny_config(**extras) if how == "constructor" else tiny_config()
    assert [warning.count("'my_note', 'future_option'") for warning in warnings_given] == [1] * (how == "constructor")
    warnings_given.clear()
    config.save_pretrained(tmp_path)
    if how == "file":
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **extras}))
    again = PlainformerConfig.from_pretrained(tmp_path)
    assert values_of(again, extras) == extras
    assert not warnings_given
    model = PlainformerModel(again)
    model.save_pretrained(tmp_path / "model")
    assert values_of(PlainformerModel.from_pretrained(tmp_path / "model").config, extras) == extras


@pytest.mark.parametrize(("dtype", "name"), paired(["bfloat16", "float16", "float32"], ["dtype", "torch_dtype"]))
def test_both_names_of_the_dtype_are_read(dtype, name, tmp_path):
    assert tiny_config(**{name: dtype}).dtype == getattr(torch, dtype)
    PlainformerModel(tiny_config()).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    content = {key: value for key, value in json.loads(path.read_text()).items() if key not in ("dtype", "torch_dtype")}
    path.write_text(json.dumps({**content, name: dtype}))
    assert PlainformerConfig.from_pretrained(tmp_path).dtype == getattr(torch, dtype)
    assert PlainformerModel.from_pretrained(tmp_path, dtype="auto").dtype == getattr(torch, dtype)


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config))])
def test_copies_are_equal_and_independent(make_copy):
    config = PlainformerConfig(**NON_DEFAULT, **INHERITED)
    twin = make_copy(config)
    assert type(twin) is PlainformerConfig
    assert PlainformerConfig() == PlainformerConfig()
    assert twin == config and twin.to_dict() == config.to_dict()
    twin.hidden_size = 52
    assert config.hidden_size == 48
    assert twin != config


# Wrong values.


@pytest.mark.parametrize(("field", "value"), BAD_CASES)
def test_a_bad_value_is_explained(field, value):
    with pytest.raises((ValueError, TypeError)) as caught:
        tiny_config(**{field: value})
    assert_explains(caught.value, field, value)


@pytest.mark.parametrize(("field", "model_class"), paired(FIELDS, MODELS))
def test_a_bad_value_set_later_is_caught_when_a_model_is_built(field, model_class):
    config = tiny_config()
    setattr(config, field, BAD_VALUES[field][0])
    with pytest.raises(ValueError) as caught:
        model_class(config)
    assert_explains(caught.value, field, BAD_VALUES[field][0])


@pytest.mark.parametrize(("field", "opener"), paired(FIELDS, {"class": PlainformerModel, "Auto": AutoModel}))
def test_a_bad_override_is_caught_when_a_folder_is_opened(field, opener, saved_folder):
    # None means "not given" to `from_pretrained`
    value = next(value for value in BAD_VALUES[field] if value is not None and is_json(value))
    with pytest.raises(ValueError) as caught:
        opener.from_pretrained(saved_folder, trust_remote_code=False, **{field: value})
    assert_explains(caught.value, field, value)


@pytest.mark.parametrize("field", FIELDS)
def test_a_bad_value_in_a_file_is_caught(field, saved_folder, tmp_path):
    content = json.loads((saved_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, field: "no such thing"}))
    for opener in (PlainformerConfig, PlainformerModel):
        with pytest.raises(ValueError) as caught:
            opener.from_pretrained(tmp_path)
        assert_explains(caught.value, field, "no such thing")


@pytest.fixture(scope="module")
def saved_folder(tmp_path_factory):
    """A saved base model."""
    folder = tmp_path_factory.mktemp("saved")
    PlainformerModel(tiny_config()).save_pretrained(folder)
    return folder


def test_absolute_is_called_learned_here():
    with pytest.raises(ValueError, match="position_embedding_type='absolute'.*'learned'"):
        tiny_config(position_embedding_type="absolute")


@pytest.mark.parametrize("typo", ["gleu", "rellu", "gelu_nwe"])
def test_of_a_mistyped_activation_the_nearest_is_named(typo):
    nearest = {"gleu": "gelu", "rellu": "relu", "gelu_nwe": "gelu_new"}[typo]
    with pytest.raises(ValueError, match=f"hidden_act='{typo}'.*Did you mean '{nearest}'"):
        tiny_config(hidden_act=typo)


@pytest.mark.parametrize("sizes", [(32, 3), (33, 2), (7, 8)], ids=str)
def test_heads_of_unequal_width_are_refused(sizes):
    hidden_size, heads = sizes
    with pytest.raises(ValueError, match=f"hidden_size={hidden_size}.*num_attention_heads={heads}.*Change one"):
        tiny_config(hidden_size=hidden_size, num_attention_heads=heads)


def test_a_pad_token_outside_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match=r"pad_token_id=50.*vocab_size=50.*tokenizer's padding token, or None"):
        tiny_config(pad_token_id=50)
    assert tiny_config(pad_token_id=49).pad_token_id == 49


def test_good_values_at_the_edges_are_accepted():
    edges = {
        "hidden_size": 3,
        "num_attention_heads": 3,
        "num_hidden_layers": 1,
        "intermediate_size": 1,
        "max_position_embeddings": 1,
        "type_vocab_size": 0,
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0.999,
        "classifier_dropout": 0,
        "initializer_range": 1,
        "layer_norm_eps": 1,
        "vocab_size": 1,
        "pad_token_id": 0,
    }
    assert values_of(tiny_config(**edges), edges) == edges


# Labels.


@pytest.mark.parametrize("names", [2, 4])
def test_label_names_must_be_as_many_as_labels(names):
    id2label = {index: f"name {index}" for index in range(names)}
    with pytest.raises(ValueError) as caught:
        tiny_config(num_labels=3, id2label=id2label)
    assert "num_labels=3" in str(caught.value) and "id2label" in str(caught.value) and "name 1" in str(caught.value)
    assert "one name per label" in str(caught.value)
    assert tiny_config(num_labels=names, id2label=id2label).id2label == id2label


@pytest.mark.parametrize("id2label", [None, {0: "neg", 1: "pos"}], ids=["unnamed", "named"])
@pytest.mark.parametrize("opener", [PlainformerConfig, AutoConfig], ids=["class", "Auto"])
def test_two_labels_can_be_overridden_by_three(id2label, opener, tmp_path):
    tiny_config(num_labels=2, **({"id2label": id2label} if id2label else {})).save_pretrained(tmp_path)
    config = opener.from_pretrained(tmp_path, num_labels=3, trust_remote_code=False)
    assert config.num_labels == 3 and len(config.id2label) == len(config.label2id) == 3


def test_a_new_classifier_can_have_other_labels(tmp_path):
    PlainformerModel(tiny_config(num_labels=2)).save_pretrained(tmp_path / "base")
    model = PlainformerForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3)
    assert model(**make_inputs(type(model))).logits.shape == (4, 3)
    PlainformerForSequenceClassification(tiny_config(num_labels=2)).save_pretrained(tmp_path / "head")
    model = PlainformerForSequenceClassification.from_pretrained(
        tmp_path / "head", num_labels=3, ignore_mismatched_sizes=True
    )
    assert model(**make_inputs(type(model))).logits.shape == (4, 3)
    assert model.config.num_labels == 3


@pytest.mark.parametrize("problem_type", [None, "regression", "single_label_classification"])
def test_a_problem_type_survives(problem_type, tmp_path, warnings_given):
    tiny_config(problem_type=problem_type).save_pretrained(tmp_path)
    assert PlainformerConfig.from_pretrained(tmp_path).problem_type == problem_type
    assert not warnings_given


def test_one_class_leaves_nothing_to_choose():
    with pytest.raises(ValueError) as caught:
        tiny_config(num_labels=1, problem_type="single_label_classification")
    # transformers 5 finds it first, and says the same in other words
    for words in ("problem_type", "single_label_classification", "num_labels", "num_labels=2", "regression"):
        assert words in str(caught.value)
    assert tiny_config(num_labels=1, problem_type="regression").num_labels == 1
    assert tiny_config(num_labels=1, problem_type="multi_label_classification").num_labels == 1


# Fields of one kind of positions.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"relative_attention_max_distance": 16}, "max_distance=16 is too near for relative_attention_num_buckets=32"),
        ({"relative_attention_num_buckets": 256}, "max_distance=128 is too near .*num_buckets=256"),
        ({"randomize_positions": 17}, "randomize_positions=17 is more than max_position_embeddings=16.*'learned'"),
    ],
)
def test_fields_that_do_not_go_together(fields, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(**fields)
    assert tiny_config(position_embedding_type="alibi", randomize_positions=17).randomize_positions == 17


def test_a_field_that_the_kind_does_not_read_is_named(tmp_path, warnings_given):
    """Where it is set, and not where it is read from a file."""
    fields = {"rope_theta": 500.0, "relative_attention_num_buckets": 16, "relative_attention_max_distance": 64}
    readers = dict(zip(fields, ("rotary", "relative", "relative"), strict=True))
    for kind in POSITION_KINDS:
        warnings_given.clear()
        config = tiny_config(position_embedding_type=kind, **fields, randomize_positions=16)
        unread = [field for field, reader in readers.items() if reader != kind]
        unread += ["randomize_positions"] if kind == "none" else []
        assert [warning.partition("=")[0] for warning in warnings_given] == unread
        assert all(f"position_embedding_type='{kind}'" in warning for warning in warnings_given)
        warnings_given.clear()
        config.save_pretrained(tmp_path)
        PlainformerModel(PlainformerConfig.from_pretrained(tmp_path, vocab_size=60)).save_pretrained(tmp_path)
        PlainformerModel.from_pretrained(tmp_path)
        assert not warnings_given
    PlainformerConfig.from_pretrained(tmp_path, rope_theta=7)
    assert [warning.partition(" ")[0] for warning in warnings_given] == ["rope_theta=7"]


# Mistyped keywords.


@pytest.mark.parametrize(
    ("typo", "field"),
    [
        ("hiden_size", "hidden_size"),
        ("hidden_sizes", "hidden_size"),
        ("num_hiden_layers", "num_hidden_layers"),
        ("num_attention_head", "num_attention_heads"),
        ("intermediate_sise", "intermediate_size"),
        ("vocabsize", "vocab_size"),
        ("hidden_dropout_probs", "hidden_dropout_prob"),
        ("max_position_embedding", "max_position_embeddings"),
        ("position_embeddings_type", "position_embedding_type"),
        ("prenorm", "pre_norm"),
        ("embeddings_norm", "embedding_norm"),
        ("scale_embeddings", "scale_embedding"),
        ("classifier_poolin", "classifier_pooling"),
        ("layer_norm_epsilon", "layer_norm_eps"),
        ("initialiser_range", "initializer_range"),
        ("tie_word_embedding", "tie_word_embeddings"),
        ("pad_tokenid", "pad_token_id"),
        ("problemtype", "problem_type"),
    ],
)
def test_of_a_mistyped_field_the_nearest_is_named(typo, field, warnings_given):
    tiny_config(**{typo: 7})
    assert len(warnings_given) == 1
    assert repr(typo) in warnings_given[0] and repr(field) in warnings_given[0] and "7" in warnings_given[0]


@pytest.mark.parametrize(("name", "fields"), [item for item in NAMES_ELSEWHERE.items() if item[0] != "id2label"])
def test_of_a_name_from_elsewhere_ours_is_named(name, fields, warnings_given):
    """Most are written without their underscores here."""
    PlainformerConfig(**{name: 7})
    assert set(fields) <= RULES.keys() | OF_TRANSFORMERS
    assert len(warnings_given) == 1
    assert all(repr(word) in warnings_given[0] for word in (name, *fields, 7))


# Constructors as people know them, with the field that each keyword means; None where there is nothing to choose.
ELSEWHERE = {
    "torch": {"d_model": "hidden_size", "nhead": "num_attention_heads", "dim_feedforward": "intermediate_size"}
    | {"dropout": "hidden_dropout_prob", "activation": "hidden_act", "norm_first": "pre_norm", "batch_first": None}
    | {"bias": None, "is_causal": None, "padding_idx": "pad_token_id", "num_embeddings": "vocab_size"},
    "x-transformers": {"num_tokens": "vocab_size", "max_seq_len": "max_position_embeddings", "dim": "hidden_size"}
    | {"depth": "num_hidden_layers", "heads": "num_attention_heads", "ff_mult": "intermediate_size"}
    | {
        "attn_dropout": "attention_probs_dropout_prob",
        "emb_dropout": "hidden_dropout_prob",
        "rotary_pos_emb": "position_embedding_type",
    },
    "fairseq": {"encoder_embed_dim": "hidden_size", "encoder_ffn_embed_dim": "intermediate_size"}
    | {"encoder_layers": "num_hidden_layers", "encoder_attention_heads": "num_attention_heads"}
    | {"max_source_positions": "max_position_embeddings", "encoder_normalize_before": "pre_norm"},
    "GPT-2": {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    | {"n_positions": "max_position_embeddings", "n_inner": "intermediate_size", "n_ctx": "max_position_embeddings"},
    "T5": {"d_ff": "intermediate_size", "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}
    | {"dropout_rate": "hidden_dropout_prob", "d_kv": None},
    "DistilBERT": {"n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
    | {"hidden_dim": "intermediate_size", "sinusoidal_pos_embds": "position_embedding_type"},
    "ModernBERT": {
        "norm_eps": "layer_norm_eps",
        "mlp_dropout": "hidden_dropout_prob",
        "global_rope_theta": "rope_theta",
    },
    "tutorials": {"max_len": "max_position_embeddings", "pad_idx": "pad_token_id", "embed_dim": "hidden_size"}
    | {"num_encoder_layers": "num_hidden_layers", "rotary_dim": None, "block_size": "max_position_embeddings"}
    | {"maxLen": "max_position_embeddings", "embedSize": "hidden_size", "numHeads": "num_attention_heads"},
}


@pytest.mark.parametrize("package", ELSEWHERE)
def test_keywords_of_another_package_are_not_swallowed(package, warnings_given):
    names = ELSEWHERE[package]
    PlainformerConfig(**dict.fromkeys(names, 7))
    assert len(warnings_given) == len(names)
    for warning, (name, field) in zip(warnings_given, names.items(), strict=True):
        assert repr(name) in warning and ("nothing reads it" if field is None else repr(field)) in warning


@pytest.mark.parametrize("name", WITHOUT_CHOICE)
def test_of_what_cannot_be_chosen_the_reason_is_given(name, warnings_given):
    PlainformerConfig(**{name: 7})
    assert len(warnings_given) == 1
    assert all(
        words in warnings_given[0] for words in (repr(name), "7", f"nothing reads it, since {WITHOUT_CHOICE[name]}")
    )


def test_what_resembles_nothing_is_told_in_one_line(warnings_given):
    tiny_config(colour="red", position_offset=1, hiden_size=7)
    assert len(warnings_given) == 2 and "'hiden_size'" in warnings_given[0]
    assert (
        warnings_given[1] == "PlainformerConfig keeps 'colour', 'position_offset', which nothing in Plainformer reads."
    )


def test_a_swallowed_override_is_told(saved_folder, warnings_given):
    """But not what may be meant for somebody else: a tokenizer hands on all of its keywords."""
    PlainformerConfig.from_pretrained(saved_folder, n_heads=4, do_lower_case=True, use_fast=True)
    assert len(warnings_given) == 1 and "'n_heads'" in warnings_given[0]
    assert PlainformerConfig.from_pretrained(saved_folder, n_heads=4, return_unused_kwargs=True)[1] == {"n_heads": 4}
    assert len(warnings_given) == 1


def test_what_a_file_holds_is_no_slip(tmp_path, warnings_given):
    """Whoever wrote it, and however it is read."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "plainformer", "n_heads": 4, "hiden_size": 3, "my_note": 1}))
    for config in (
        PlainformerConfig.from_pretrained(tmp_path),
        PlainformerConfig.from_json_file(path),
        PlainformerConfig.from_dict(json.loads(path.read_text())),
        AutoConfig.from_pretrained(tmp_path, trust_remote_code=False),
    ):
        assert copy.deepcopy(config).n_heads == 4
        assert type(config)(**config.to_dict()).my_note == 1
    assert not warnings_given


def test_id2label_alone_numbers_the_labels(tmp_path):
    config = PlainformerConfig(id2label={0: "no", 1: "yes", 2: "?"})
    assert config.label2id == {"no": 0, "yes": 1, "?": 2}
    config.save_pretrained(tmp_path)
    assert PlainformerConfig.from_pretrained(tmp_path).label2id == config.label2id
    assert PlainformerConfig(id2label={"0": "no", "1": "yes"}).label2id == {"no": 0, "yes": 1}


def test_label2id_alone_names_the_labels(tmp_path):
    config = PlainformerConfig(label2id={"no": 0, "yes": 1, "?": 2})
    assert config.num_labels == 3 and config.id2label == {0: "no", 1: "yes", 2: "?"}
    config.save_pretrained(tmp_path)
    assert PlainformerConfig.from_pretrained(tmp_path).id2label == config.id2label


@pytest.mark.parametrize(
    "names",
    [
        {"id2label": {}},
        {"id2label": {True: "a"}},
        {"id2label": ["a", "b"]},
        {"id2label": "ab"},
        {"id2label": {"a": 0}},
        {"label2id": {"a": "x"}},
        {"label2id": {"a": 0.5}},
        {"label2id": ["a"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("route", ["constructor", "override"])
def test_label_names_number_the_classes(names, route, tmp_path):
    PlainformerConfig().save_pretrained(tmp_path)
    (field, value), *_ = names.items()
    with pytest.raises(ValueError, match=re.escape(f"{field}={value!r} is not valid: it must number the labels")):
        PlainformerConfig(**names) if route == "constructor" else PlainformerConfig.from_pretrained(tmp_path, **names)


@pytest.mark.parametrize(
    "names",
    [{"label2id": {"no": "0", "yes": "1"}}, {"id2label": {"0": "no", "1": "yes"}}],
    ids=["label2id", "id2label"],
)
def test_label_numbers_may_be_text(names, tmp_path):
    PlainformerConfig(**names).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **names}))
    for config in (PlainformerConfig(**names), PlainformerConfig.from_pretrained(tmp_path)):
        assert config.label2id == {"no": 0, "yes": 1} and config.id2label == {0: "no", 1: "yes"}


@pytest.mark.parametrize(
    "names", [{"id2label": {1: "a", 2: "b"}}, {"label2id": {"a": 0, "b": 7}}], ids=["from-1", "gap"]
)
@pytest.mark.parametrize("model_class", MODELS, ids=short_name)
def test_label_numbers_matter_to_classes_alone(names, model_class, tmp_path):
    """The encoder and heads without classes take any numbers; a head with classes names the wrong ones."""
    tiny_config(num_labels=2, **names).save_pretrained(tmp_path)
    config = PlainformerConfig.from_pretrained(tmp_path)
    (field, value), *_ = names.items()
    assert getattr(config, field) == value and config.num_labels == 2
    if model_class in (PlainformerForSequenceClassification, PlainformerForTokenClassification):
        wrong = "[2] and lacks [0]" if field == "id2label" else "[7] and lacks [1]"
        problem = re.escape(f"has the wrong numbers {wrong}: 2 labels are numbered from 0 to 1")
        with pytest.raises(ValueError, match=problem):
            model_class(config)
    else:
        model_class(config)


def test_two_labels_cannot_have_one_number():
    with pytest.raises(ValueError, match="label2id=.* gives two names one number"):
        PlainformerConfig(label2id={"a": 0, "b": "0"})


@pytest.mark.parametrize("field", ["is_decoder", "add_cross_attention", "pruned_heads"])
def test_what_an_encoder_has_not_is_refused(field):
    value = {0: [1]} if field == "pruned_heads" else True
    with pytest.raises(ValueError, match=f"{field}=.* is not possible: Plainformer is an encoder"):
        PlainformerConfig(**{field: value})


def test_an_activation_has_no_weights_of_its_own():
    accepted = {name for name in ACT2FN if name in ACTIVATIONS}
    with_weights = {name for name in ACT2FN if any(True for _ in getattr(ACT2FN[name], "parameters", list)())}
    assert with_weights and accepted == set(ACT2FN) - with_weights


def test_a_mistyped_override_is_an_error(saved_folder, warnings_given):
    """`from_pretrained` hands to a model what is no field of its configuration: nothing may swallow it."""
    with pytest.raises(TypeError, match="hiden_size"):
        PlainformerModel.from_pretrained(saved_folder, hiden_size=48)


ORDINARY = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 3,
    "cls_token_id": 4,
    "mask_token_id": 5,
    "decoder_start_token_id": 1,
    "gradient_checkpointing": False,
    "use_cache": True,
    "is_decoder": False,
    "add_cross_attention": False,
    "return_dict": True,
    "output_hidden_states": True,
    "output_attentions": True,
    "chunk_size_feed_forward": 0,
    "architectures": ["PlainformerModel"],
    "finetuning_task": "sst2",
    "id2label": {0: "a", 1: "b", 2: "c"},
    "label2id": {"a": 0, "b": 1, "c": 2},
    "problem_type": "regression",
    "num_labels": 3,
    "dtype": "float32",
    "torch_dtype": "float32",
    "attn_implementation": "eager",
    "name_or_path": "someone/model",
    "transformers_version": "4.57.6",
    "tokenizer_class": "BertTokenizer",
    "model_max_length": 512,
    "task_specific_params": {},
    "max_length": 20,
    "temperature": 1.0,
    "_commit_hash": None,
}


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.filterwarnings("ignore:Passing `gradient_checkpointing`")
def test_an_ordinary_extra_is_no_typo(name, warnings_given):
    tiny_config(**{name: ORDINARY[name]})
    assert not warnings_given


def test_reading_a_saved_file_is_quiet(tmp_path, warnings_given):
    config = PlainformerConfig(**NON_DEFAULT, **INHERITED)
    warnings_given.clear()
    config.save_pretrained(tmp_path)
    PlainformerConfig.from_pretrained(tmp_path)
    PlainformerConfig.from_dict(config.to_dict())
    assert not warnings_given


# Subclasses.


class Bare(PlainformerConfig):
    pass


class Declaring(PlainformerConfig):
    """Fields as transformers 5 writes them."""

    colour: str = "red"
    sizes: list = dataclasses.field(default_factory=lambda: [1])
    intermediate_size: int = 41
    kind: ClassVar[str] = "class"

    @property
    def shade(self) -> str:
        return f"dark {self.colour}"


class Further(Declaring):
    model_type: str = "plainformer"
    width: int = 3


class WithInit(PlainformerConfig):
    def __init__(self, width: int = 3, **kwargs):
        super().__init__(**kwargs)
        self.width = width


class Handing(PlainformerConfig):
    width: int = 4

    def __init__(self, width: int = 3, **kwargs):
        super().__init__(width=width, **kwargs)


SUBCLASSES = {  # with what each adds, and another value for one of its fields
    Bare: ({}, {}),
    Declaring: ({"colour": "red", "sizes": [1], "intermediate_size": 41}, {"colour": "blue"}),
    Further: ({"colour": "red", "sizes": [1], "intermediate_size": 41, "width": 3}, {"width": 8}),
    WithInit: ({"width": 3}, {"width": 8}),
    Handing: ({"width": 3}, {"width": 8}),
    type("OfWithInit", (WithInit,), {"__module__": __name__}): ({"width": 3}, {"width": 8}),
}


@pytest.mark.parametrize("config_class", SUBCLASSES, ids=lambda config_class: config_class.__name__)
def test_a_subclass_has_its_fields_and_ours(config_class, tmp_path, warnings_given):
    """transformers 5 writes an `__init__` and an `__eq__` for it that would leave ours out."""
    added, changed = SUBCLASSES[config_class]
    assert values_of(config_class(), BERT_BASE) == {**BERT_BASE, **{f: v for f, v in added.items() if f in BERT_BASE}}
    config = config_class(hidden_size=48, id2label={0: "a", 1: "b", 2: "c"}, **changed)
    expected = {**added, **changed, "hidden_size": 48, "num_labels": 3}
    config.save_pretrained(tmp_path)
    for again in (config, config_class.from_pretrained(tmp_path), config_class.from_dict(config.to_dict())):
        assert type(again) is config_class and values_of(again, expected) == expected
        assert again.hidden_act == "gelu"
    assert set(expected) - {"num_labels"} <= set(json.loads((tmp_path / "config.json").read_text()))
    assert copy.deepcopy(config) == config != config_class()
    assert config_class() == config_class() and config_class(hidden_size=48) != config_class()
    with pytest.raises(ValueError, match="hidden_act='geluu'"):
        config_class(hidden_act="geluu")
    assert not warnings_given
    config_class(hiden_size=1)
    assert len(warnings_given) == 1 and warnings_given[0].startswith(
        f"{config_class.__name__} does not know 'hiden_size'"
    )


def test_a_declared_default_is_not_shared():
    config = Declaring()
    config.sizes.append(2)
    assert Declaring().sizes == [1] and config.shade == "dark red" and "kind" not in config.to_dict()


def test_a_declared_default_may_be_that_of_a_property(tmp_path):
    class Attentive(PlainformerConfig):
        output_attentions: bool = True

    Attentive(output_attentions=False).save_pretrained(tmp_path / "off")
    Attentive().save_pretrained(tmp_path / "on")
    assert Attentive().output_attentions and Attentive.from_pretrained(tmp_path / "on").output_attentions
    assert not Attentive.from_pretrained(tmp_path / "off").output_attentions


# Checkpoints of another architecture.


@pytest.fixture(scope="module")
def foreign_folders(tmp_path_factory):
    """Saved models of other types, with sizes like ours."""
    sizes = {"vocab_size": 50, "max_position_embeddings": 16}
    bert = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=37, num_labels=3, **sizes
    )
    distilbert = DistilBertConfig(dim=32, n_layers=2, n_heads=2, hidden_dim=37, **sizes)
    folders = {}
    for model in (BertModel(bert), DistilBertModel(distilbert)):
        folders[model.config.model_type] = tmp_path_factory.mktemp(model.config.model_type)
        model.save_pretrained(folders[model.config.model_type])
    return folders


FOREIGN = {
    "class": lambda model_class, folder, ours: model_class.from_pretrained(folder),
    "class, folder as text": lambda model_class, folder, ours: model_class.from_pretrained(str(folder)),
    "explicit config": lambda model_class, folder, ours: model_class.from_pretrained(folder, config=tiny_config()),
    "explicit config, folder as text": lambda model_class, folder, ours: model_class.from_pretrained(
        str(folder), config=tiny_config()
    ),
    "config read from ours": lambda model_class, folder, ours: model_class.from_pretrained(
        folder, config=PlainformerConfig.from_pretrained(ours)
    ),
    "config named by its folder": lambda model_class, folder, ours: model_class.from_pretrained(
        folder, config=str(ours)
    ),
    "their config": lambda model_class, folder, ours: model_class.from_pretrained(
        folder, config=AutoConfig.from_pretrained(folder)
    ),
    "their config, built": lambda model_class, folder, ours: model_class(AutoConfig.from_pretrained(folder)),
}


@pytest.mark.parametrize(("how", "model_class"), paired(list(FOREIGN), MODELS))
@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
def test_another_model_type_is_refused(how, model_class, model_type, foreign_folders, saved_folder):
    with pytest.raises(ValueError) as caught:
        FOREIGN[how](model_class, foreign_folders[model_type], saved_folder)
    assert f"{model_type!r}" in str(caught.value) and "plainformer" in str(caught.value)
    assert ("plainformer.from_bert" in str(caught.value)) == (model_type == "bert")


@pytest.mark.parametrize("model_type", ["bert", "distilbert"])
def test_another_model_type_is_refused_by_the_configuration(model_type, foreign_folders):
    for folder in (foreign_folders[model_type], str(foreign_folders[model_type])):
        with pytest.raises(ValueError) as caught:
            PlainformerConfig.from_pretrained(folder)
        assert f"{model_type!r}" in str(caught.value)
        assert ("plainformer.from_bert" in str(caught.value)) == (model_type == "bert")


@pytest.mark.parametrize("model_class", [PlainformerModel, PlainformerForMaskedLM], ids=short_name)
def test_an_explicit_configuration_still_opens_our_own_weights(model_class, saved_folder, tmp_path):
    """The check must not refuse what it is meant to allow: our folder, and weights without a config.json."""
    (tmp_path / "model.safetensors").write_bytes((saved_folder / "model.safetensors").read_bytes())
    expected = PlainformerModel.from_pretrained(saved_folder).state_dict()
    for folder in (saved_folder, tmp_path):
        encoder = model_class.from_pretrained(folder, config=tiny_config()).base_model
        assert all(torch.equal(value, expected[name]) for name, value in encoder.state_dict().items())


# output_attentions beside the default kernel.

ATTENTIVE = {
    "constructor": lambda folder: PlainformerModel(tiny_config(output_attentions=True)),
    "constructor with sdpa": lambda folder: PlainformerModel(
        tiny_config(output_attentions=True, attn_implementation="sdpa")
    ),
    "set later": lambda folder: set_output_attentions(PlainformerModel(tiny_config())),
    "override": lambda folder: PlainformerModel.from_pretrained(folder, output_attentions=True),
    "override with sdpa": lambda folder: PlainformerModel.from_pretrained(
        folder, output_attentions=True, attn_implementation="sdpa"
    ),
    "Auto override with sdpa": lambda folder: AutoModel.from_pretrained(
        folder, output_attentions=True, attn_implementation="sdpa", trust_remote_code=False
    ),
}


def set_output_attentions(model):
    model.config.output_attentions = True
    return model


@pytest.mark.parametrize("how", ATTENTIVE)
def test_output_attentions_in_the_configuration_goes_with_sdpa(how, saved_folder, tmp_path):
    """transformers would have "eager" for it; our encoder computes the weights itself when they are asked for."""
    model = ATTENTIVE[how](saved_folder).eval()
    inputs = make_inputs(PlainformerModel)
    attentions = model(**inputs).attentions
    assert len(attentions) == 2 and attentions[0].shape == (4, 2, 8, 8)
    if "sdpa" in how:
        assert model.config._attn_implementation == "sdpa"
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["output_attentions"] is True
    for kernel in ({}, {"attn_implementation": "sdpa"}, {"attn_implementation": "eager"}):
        again = PlainformerModel.from_pretrained(tmp_path, **kernel).eval()
        assert again.config.output_attentions is True
        assert torch.equal(again(**inputs).attentions[1], attentions[1])


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention", "no_such_kernel"])
def test_a_kernel_that_is_not_supported_is_named(name):
    with pytest.raises(ValueError, match=f"attn_implementation=\"{name}\".*'sdpa'.*'eager'"):
        PlainformerModel(tiny_config(attn_implementation=name))


def test_the_configuration_is_registered():
    assert AutoConfig.for_model("plainformer", hidden_size=24).hidden_size == 24
    assert isinstance(AutoConfig.for_model("plainformer"), PlainformerConfig)
    assert transformers.models.auto.configuration_auto.CONFIG_MAPPING["plainformer"] is PlainformerConfig
