"""Building, saving and loading: no tensor is lost, none is noise, and what shares its memory goes on sharing it.

That strangers can load what was saved is in test_sharing.py.
"""

import importlib
import json
import math
import os
import shutil
from itertools import cycle

import pytest
import torch
import transformers
from helpers.axes import paired
from helpers.models import (
    HEADS,
    KIND_AND_NORM,
    MODELS,
    answers,
    make_inputs,
    make_labels,
    make_model,
    short_name,
    tiny_config,
)
from helpers.saving import auto_class
from safetensors.torch import load_file
from torch import nn

from plainformer import (
    PlainformerForMaskedLM,
    PlainformerForMultipleChoice,
    PlainformerForQuestionAnswering,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
    PlainformerModel,
)
from plainformer.configuration_plainformer import RULES
from plainformer.positions_plainformer import POSITION_KINDS

KINDS = list(POSITION_KINDS)
# Encoder and head are saved apart: each class goes with another position kind and norm placement.
EACH_CLASS = pytest.mark.parametrize(("model_class", "variant"), paired(MODELS, KIND_AND_NORM))
EACH_HEAD = pytest.mark.parametrize(("head_class", "variant"), paired(HEADS, KIND_AND_NORM))
TINY = tiny_config()
TINY_SIZES = {
    field: getattr(TINY, field) for field in RULES if field.endswith(("_size", "_layers", "_heads", "_embeddings"))
}
POOLED = {"pooler.dense.weight", "pooler.dense.bias", "classifier.weight", "classifier.bias"}
# What a head adds to the encoder, a tied decoder's weight left out.
HEAD_KEYS = {
    PlainformerModel: set(),
    PlainformerForMaskedLM: {
        "lm_head.dense.weight",
        "lm_head.dense.bias",
        "lm_head.norm.weight",
        "lm_head.norm.bias",
        "lm_head.decoder.bias",
    },
    PlainformerForSequenceClassification: POOLED,
    PlainformerForTokenClassification: {"classifier.weight", "classifier.bias"},
    PlainformerForQuestionAnswering: {"qa_outputs.weight", "qa_outputs.bias"},
    PlainformerForMultipleChoice: POOLED,
}
CLASSES_AND_TIES = [pytest.param(model_class, True, id=short_name(model_class)) for model_class in MODELS]
CLASSES_AND_TIES += [pytest.param(PlainformerForMaskedLM, False, id="MaskedLM untied")]
WORD, DECODER = "plainformer.embeddings.word_embeddings.weight", "lm_head.decoder.weight"


def openers(model_class: type) -> list:
    """The class itself and its Auto class, as functions of a folder."""

    def auto(folder, **kwargs):
        return auto_class(model_class).from_pretrained(folder, trust_remote_code=False, **kwargs)

    return [model_class.from_pretrained, auto]


def assert_equal_tensors(actual: dict, expected: dict) -> None:
    """The same names in both, and the same bits under each."""
    assert list(actual) == list(expected)
    for name, value in expected.items():
        assert actual[name].dtype == value.dtype and torch.equal(actual[name], value), name


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Everything a model computes with: its state dict, and the buffers that are not saved."""
    return {**model.state_dict(), **{f"buffer {name}": value for name, value in model.named_buffers()}}


def output_of(model: nn.Module, inputs: dict) -> torch.Tensor:
    with torch.no_grad():
        return answers(model.eval()(**inputs))


def stored(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def position_table(model: nn.Module, length: int) -> torch.Tensor:
    """What the encoder adds for the positions 0, 1, ..., [L, E]."""
    return model.base_model.embeddings.position_embeddings(torch.arange(length))


def sinusoids(length: int, width: int) -> torch.Tensor:
    """The formula, number by number, in float64, [L, E]."""
    return torch.tensor(
        [
            [(math.sin, math.cos)[j % 2](position / 10000 ** ((j - j % 2) / width)) for j in range(width)]
            for position in range(length)
        ],
        dtype=torch.float64,
    )


# Names.


def expected_keys(config, model_class: type) -> set[str]:
    """Every name of the contract, written out."""
    linear = ["attention.q_proj", "attention.k_proj", "attention.v_proj", "attention.o_proj", "mlp.fc1", "mlp.fc2"]
    modules = [
        f"layers.{i}.{name}" for i in range(config.num_hidden_layers) for name in [*linear, "attn_norm", "mlp_norm"]
    ]
    modules += ["embeddings.norm"] * config.embedding_norm + ["final_norm"] * config.pre_norm
    keys = {f"{module}.{kind}" for module in modules for kind in ("weight", "bias")} | {
        "embeddings.word_embeddings.weight"
    }
    if config.position_embedding_type == "learned":
        keys.add("embeddings.position_embeddings.weight")
    if config.position_embedding_type == "relative":
        keys |= {f"layers.{i}.attention.bias.table.weight" for i in range(config.num_hidden_layers)}
    if config.type_vocab_size:
        keys.add("embeddings.token_type_embeddings.weight")
    if model_class is PlainformerModel:
        return keys
    keys = {f"plainformer.{key}" for key in keys} | HEAD_KEYS[model_class]
    return keys | {DECODER} if model_class is PlainformerForMaskedLM else keys


@pytest.mark.parametrize("options", [{}, {"embedding_norm": False, "type_vocab_size": 0}], ids=["default", "bare"])
@EACH_CLASS
def test_tensors_have_the_names_of_the_contract(model_class, variant, options):
    model = model_class(tiny_config(**variant, **options))
    names = set(model.state_dict())
    assert (
        names
        == expected_keys(model.config, model_class)
        == {n for n, _ in model.named_parameters()} | ({DECODER} if model_class is PlainformerForMaskedLM else set())
    )
    assert not [name for name in names if "gamma" in name or "beta" in name]
    for module in model.modules():
        assert not hasattr(module, "LayerNorm")
    encoder = model.base_model  # modules that are off still have their place
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings", "norm"):
        assert isinstance(getattr(encoder.embeddings, name), nn.Module)
    assert isinstance(encoder.final_norm, nn.Module) and len(encoder.layers) == 2


# There and back.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@EACH_CLASS
def test_every_tensor_survives(model_class, variant, dtype, tmp_path):
    model = make_model(model_class, **variant).to(dtype)
    expected, inputs = tensors_of(model), make_inputs(model_class)
    model.save_pretrained(tmp_path)
    assert {name for name in os.listdir(tmp_path) if not name.endswith((".py", ".json"))} == {"model.safetensors"}
    for opener in openers(model_class):
        again, info = opener(tmp_path, dtype=dtype, output_loading_info=True)
        assert type(again) is model_class and not again.training
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
        assert_equal_tensors(tensors_of(again), expected)
        assert torch.equal(output_of(again, inputs), output_of(model, inputs))


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_survives_many_times(kind, tmp_path):
    """Models are built on the meta device, so what a constructor computed is noise, if it is not computed again."""
    model = make_model(PlainformerForMaskedLM, position_embedding_type=kind)
    expected, table, inputs = tensors_of(model), position_table(model, 16), make_inputs(PlainformerForMaskedLM)
    logits = output_of(model, inputs)
    for _ in range(5):
        model.save_pretrained(tmp_path)
        model = PlainformerForMaskedLM.from_pretrained(tmp_path)
        assert_equal_tensors(tensors_of(model), expected)
        assert torch.equal(position_table(model, 16), table)
        assert torch.equal(output_of(model, inputs), logits)


@EACH_CLASS
def test_shards_are_put_together_again(model_class, variant, tmp_path):
    model = make_model(model_class, **variant)
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len([name for name in os.listdir(tmp_path) if name.endswith(".safetensors")]) > 3
    assert (tmp_path / "model.safetensors.index.json").exists()
    for opener in openers(model_class):
        assert_equal_tensors(tensors_of(opener(tmp_path)), tensors_of(model))


def test_a_folder_can_be_saved_over(tmp_path):
    """Into the folder it came from, and over another model."""
    make_model(PlainformerForMaskedLM, pre_norm=True).save_pretrained(tmp_path)
    model = make_model(PlainformerForSequenceClassification)
    model.save_pretrained(tmp_path)
    again = PlainformerForSequenceClassification.from_pretrained(tmp_path)
    again.save_pretrained(tmp_path)
    final = PlainformerForSequenceClassification.from_pretrained(tmp_path)
    assert_equal_tensors(tensors_of(final), tensors_of(model))


@pytest.mark.parametrize("what", ["model", "config"])
def test_saving_onto_a_file_is_an_error(what, tmp_path):
    path = tmp_path / "a_file"
    path.write_text("mine")
    model = PlainformerModel(tiny_config())
    with pytest.raises((OSError, ValueError, AssertionError)) as caught:
        (model if what == "model" else model.config).save_pretrained(path)
    assert "a_file" in str(caught.value)
    assert path.read_text() == "mine"


NAMES = ["my-model.v1.5/checkpoint-10", "with space/ünï", "import", "1", "a.b.c", "trailing/"]


@pytest.mark.parametrize("name", NAMES)
def test_any_folder_name_will_do(name, tmp_path):
    model = make_model(PlainformerForSequenceClassification)
    folder = os.path.join(tmp_path, name)
    model.save_pretrained(folder)
    for opener in openers(PlainformerForSequenceClassification):
        assert_equal_tensors(tensors_of(opener(folder)), tensors_of(model))


def test_the_current_folder_and_a_link_will_do(tmp_path, monkeypatch):
    model = make_model(PlainformerForSequenceClassification)
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    monkeypatch.chdir(tmp_path / "target")
    model.save_pretrained(".")
    for opener in openers(PlainformerForSequenceClassification):
        for folder in (".", tmp_path / "link", "../link"):
            assert_equal_tensors(tensors_of(opener(folder)), tensors_of(model))


def test_two_models_under_one_leaf_name_stay_apart(tmp_path):
    first, second = make_model(PlainformerModel), make_model(PlainformerModel, hidden_size=48)
    first.save_pretrained(tmp_path / "a" / "model")
    second.save_pretrained(tmp_path / "b" / "model")
    for _ in range(2):
        assert_equal_tensors(tensors_of(PlainformerModel.from_pretrained(tmp_path / "a" / "model")), tensors_of(first))
        assert_equal_tensors(tensors_of(PlainformerModel.from_pretrained(tmp_path / "b" / "model")), tensors_of(second))


USER_MODULE = """
from torch import nn
from plainformer import PlainformerForSequenceClassification

class {name}(PlainformerForSequenceClassification):
    def __init__(self, config):
        super().__init__(config)
        self.extra = nn.Linear(config.hidden_size, 5)
        self.post_init()
"""


def test_a_subclass_of_the_user_saves_and_loads(tmp_path, monkeypatch):
    (tmp_path / "my_own_modeling.py").write_text(USER_MODULE.format(name="MyOwnClassifier"))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    monkeypatch.delitem(importlib.sys.modules, "my_own_modeling", raising=False)
    my_own_class = importlib.import_module("my_own_modeling").MyOwnClassifier
    model = make_model(my_own_class)
    model.save_pretrained(tmp_path / "mine")
    again, info = my_own_class.from_pretrained(tmp_path / "mine", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert_equal_tensors(tensors_of(again), tensors_of(model))
    auto = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "mine", trust_remote_code=False)
    assert type(auto) is PlainformerForSequenceClassification
    mine = {name: value for name, value in tensors_of(model).items() if not name.startswith("extra")}
    assert_equal_tensors(tensors_of(auto), mine)


ARCHITECTURE = """
from torch import nn
from plainformer import PlainformerConfig, PlainformerForSequenceClassification, PlainformerModel

class {name}Config(PlainformerConfig):
    model_type = "{name}"
    width: int = 3

class {name}Model(PlainformerModel):
    config_class = {name}Config

class {name}Classifier(PlainformerForSequenceClassification):
    config_class = {name}Config

    def __init__(self, config):
        super().__init__(config)
        self.extra = nn.Linear(config.hidden_size, config.width)
        self.post_init()

class {name}StarterConfig(PlainformerConfig):
    model_type = "{name}-starter"
    can_start_from = ("plainformer",)

class {name}StarterModel(PlainformerModel):
    config_class = {name}StarterConfig
"""


def write_architecture(folder, monkeypatch, name: str):
    """A module with classes of another architecture."""
    (folder / f"{name}_architecture.py").write_text(ARCHITECTURE.format(name=name))
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    return importlib.import_module(f"{name}_architecture")


def test_an_architecture_of_the_user_saves_and_loads(tmp_path, monkeypatch):
    """By its own classes, and by the Auto classes once it is registered; its code is beside it."""
    theirs = write_architecture(tmp_path, monkeypatch, "Saved")
    classes = (theirs.SavedModel, theirs.SavedClassifier)
    models = [make_model(model_class, theirs.SavedConfig(**TINY_SIZES, width=5)) for model_class in classes]
    for model in models:
        folder = tmp_path / type(model).__name__
        model.save_pretrained(folder)
        written = json.loads((folder / "config.json").read_text())
        assert written["model_type"] == "Saved" and written["width"] == 5
        assert set(written["auto_map"].values()) == {
            f"Saved_architecture.{type(model).__name__}",
            "Saved_architecture.SavedConfig",
        }
        assert (folder / "Saved_architecture.py").exists()
        assert_equal_tensors(tensors_of(type(model).from_pretrained(folder)), tensors_of(model))
    make_model(PlainformerForMaskedLM, theirs.SavedConfig(**TINY_SIZES)).save_pretrained(tmp_path / "head")
    written = json.loads((tmp_path / "head" / "config.json").read_text())  # our class would refuse a stranger's config
    assert "modeling_plainformer" not in str(written.get("auto_map"))
    transformers.AutoConfig.register("Saved", theirs.SavedConfig)
    transformers.AutoModel.register(theirs.SavedConfig, theirs.SavedModel)
    transformers.AutoModelForSequenceClassification.register(theirs.SavedConfig, theirs.SavedClassifier)
    for model, auto in zip(
        models, (transformers.AutoModel, transformers.AutoModelForSequenceClassification), strict=True
    ):
        again = auto.from_pretrained(tmp_path / type(model).__name__, trust_remote_code=False)
        assert type(again) is type(model)
        assert_equal_tensors(tensors_of(again), tensors_of(model))


def test_architectures_are_told_apart(tmp_path, monkeypatch):
    """Also where a configuration is given; and a class says what else it can start from."""
    theirs = write_architecture(tmp_path, monkeypatch, "Apart")
    ours = make_model(PlainformerModel)
    mine, starter = theirs.ApartConfig(**TINY_SIZES), theirs.ApartStarterConfig(**TINY_SIZES)
    ours.save_pretrained(tmp_path / "plainformer")
    theirs.ApartModel(mine).save_pretrained(tmp_path / "Apart")

    def refuses(found: str, expected: str, call, *args, **kwargs) -> None:
        with pytest.raises(ValueError, match=f"model_type='{found}', not '{expected}'"):
            call(*args, **kwargs)

    for config in (None, mine, theirs.ApartConfig.from_pretrained(tmp_path / "Apart"), ours.config):
        options = {} if config is None else {"config": config}
        refuses("plainformer", "Apart", theirs.ApartModel.from_pretrained, tmp_path / "plainformer", **options)
        refuses("Apart", "plainformer", PlainformerModel.from_pretrained, tmp_path / "Apart", **options)
    refuses("plainformer", "Apart", theirs.ApartModel, ours.config)
    refuses("Apart", "Apart-starter", theirs.ApartStarterModel.from_pretrained, tmp_path / "Apart")
    for options in ({}, {"config": starter}):
        model = theirs.ApartStarterModel.from_pretrained(tmp_path / "plainformer", **options)
        assert_equal_tensors(tensors_of(model), tensors_of(ours))
        model.save_pretrained(tmp_path / "started")
        again = theirs.ApartStarterModel.from_pretrained(tmp_path / "started")
        assert again.config.model_type == "Apart-starter" and type(again.config) is theirs.ApartStarterConfig
        assert "plainformer" not in str(again.config.auto_map)
    refuses("Apart-starter", "plainformer", PlainformerModel.from_pretrained, tmp_path / "started")


# Code that is gone.


@pytest.mark.parametrize("place", ["free", "taken"])
def test_code_that_was_deleted_is_saved_from_memory(place, tmp_path, monkeypatch):
    """Somebody empties the cache from which a stranger's code was loaded, while the model trains."""
    expected = make_model(PlainformerForSequenceClassification)
    expected.save_pretrained(tmp_path / "theirs")
    code = tmp_path / "cache" / f"code_{place}"
    code.mkdir(parents=True)
    travelling = {file.name: file.read_bytes() for file in (tmp_path / "theirs").glob("*.py")}
    assert "modeling_plainformer.py" in travelling
    for file in (tmp_path / "theirs").glob("*.py"):
        file.rename(code / file.name)
    monkeypatch.syspath_prepend(code.parent)
    importlib.invalidate_caches()
    modeling = importlib.import_module(f"{code.name}.modeling_plainformer")
    model = modeling.PlainformerForSequenceClassification.from_pretrained(tmp_path / "theirs")
    shutil.rmtree(code.parent)
    if place == "taken":  # nothing can be written there
        code.parent.write_text("no folder any more")
    for folder in (tmp_path / "saved", tmp_path / "again"):
        model.save_pretrained(folder)
        assert_equal_tensors(load_file(folder / "model.safetensors"), load_file(tmp_path / "theirs/model.safetensors"))
    model.config.save_pretrained(tmp_path / "again")
    for folder in (tmp_path / "saved", tmp_path / "again"):
        assert {file.name: file.read_bytes() for file in folder.glob("*.py")} == travelling
        auto_map = json.loads((folder / "config.json").read_text())["auto_map"]
        assert auto_map == json.loads((tmp_path / "theirs/config.json").read_text())["auto_map"]


# Weight decay.


@EACH_CLASS
def test_norms_and_biases_are_the_parameters_with_one_dimension(model_class, variant):
    """The rule of docs/recipes.md, which decays what `Trainer` decays. The names are not those of BERT."""
    model = model_class(tiny_config(**variant))
    names = {name for name, parameter in model.named_parameters() if parameter.ndim > 1}
    names -= {name for name in names if name.endswith("attention.bias.table.weight")}  # biases too, of scores
    forbidden = {name for name, _ in model.named_parameters() if "bias" in name or "norm" in name}
    assert names == {name for name, _ in model.named_parameters()} - forbidden
    assert any("word_embeddings" in name for name in names)
    trainer = transformers.Trainer(model, transformers.TrainingArguments("unused", report_to=[], use_cpu=True))
    assert names == set(trainer.get_decay_parameter_names(model)) & {name for name, _ in model.named_parameters()}


# From the base to a head and back, and from head to head.


HEADS_AND_TIES = [case for case in CLASSES_AND_TIES if case.values[0] is not PlainformerModel]


@pytest.mark.parametrize(
    ("head_class", "tie", "variant"),
    [
        pytest.param(*case.values, variant.values[0], id=f"{case.id}-{variant.id}")
        for case, variant in zip(HEADS_AND_TIES, cycle(paired(KIND_AND_NORM)), strict=False)
    ],
)
def test_a_head_starts_from_the_base(head_class, tie, variant, tmp_path):
    base = make_model(PlainformerModel, **variant, tie_word_embeddings=tie)
    base.save_pretrained(tmp_path)
    expected = HEAD_KEYS[head_class] | ({DECODER} if head_class is PlainformerForMaskedLM and not tie else set())
    for opener in openers(head_class):
        model, info = opener(tmp_path, output_loading_info=True)
        assert type(model) is head_class
        assert set(info["missing_keys"]) == expected
        assert not info["unexpected_keys"]
        assert_equal_tensors(tensors_of(model.plainformer), tensors_of(base))
        for name, value in model.state_dict().items():
            assert value.isfinite().all(), name
            if name in HEAD_KEYS[head_class] and name.endswith("bias"):
                assert not value.any(), name


@EACH_HEAD
def test_the_base_starts_from_a_head(head_class, variant, tmp_path):
    model = make_model(head_class, **variant)
    model.save_pretrained(tmp_path)
    for opener in openers(PlainformerModel):
        base, info = opener(tmp_path, output_loading_info=True)
        assert type(base) is PlainformerModel
        assert not info["missing_keys"]
        assert set(info["unexpected_keys"]) <= HEAD_KEYS[head_class]
        assert_equal_tensors(tensors_of(base), tensors_of(model.plainformer))
    model.plainformer.save_pretrained(tmp_path / "encoder")  # by itself
    assert set(stored(tmp_path / "encoder")) == set(model.plainformer.state_dict())
    alone = PlainformerModel.from_pretrained(tmp_path / "encoder")
    assert_equal_tensors(tensors_of(alone), tensors_of(model.plainformer))


def test_a_head_starts_from_another(head_class, tmp_path):
    model = make_model(head_class)
    model.save_pretrained(tmp_path)
    for target in HEADS:
        other, info = target.from_pretrained(tmp_path, ignore_mismatched_sizes=True, output_loading_info=True)
        assert set(info["missing_keys"]) <= HEAD_KEYS[target]
        assert_equal_tensors(tensors_of(other.plainformer), tensors_of(model.plainformer))


@pytest.mark.parametrize("target", [PlainformerForMultipleChoice, PlainformerForSequenceClassification], ids=short_name)
def test_a_classifier_of_another_shape_is_an_error(target, tmp_path):
    make_model(PlainformerForSequenceClassification).save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="mismatch"):
        target.from_pretrained(tmp_path, num_labels=4)


# Tied weights.

TIES = pytest.mark.parametrize("saved_tied", [True, False], ids=["saved tied", "saved untied"])
TIE_ROUTES = {
    "keyword": lambda opener, folder, tie: opener(folder, tie_word_embeddings=tie),
    "config object": lambda opener, folder, tie: opener(
        folder, config=transformers.AutoConfig.from_pretrained(folder, tie_word_embeddings=tie, trust_remote_code=False)
    ),
    "config.json": lambda opener, folder, tie: opener(edit_config(folder, tie_word_embeddings=tie)),
    "keyword, loading info": lambda opener, folder, tie: opener(
        folder, tie_word_embeddings=tie, output_loading_info=True
    )[0],
    "keyword, bfloat16": lambda opener, folder, tie: opener(
        folder, tie_word_embeddings=tie, dtype=torch.bfloat16
    ).float(),
}


def edit_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return folder


def is_tied(model) -> bool:
    return model.lm_head.decoder.weight is model.get_input_embeddings().weight


@TIES
def test_a_file_holds_one_copy_of_tied_weights(saved_tied, tmp_path):
    model = make_model(PlainformerForMaskedLM, tie_word_embeddings=saved_tied)
    assert is_tied(model) == saved_tied
    model.save_pretrained(tmp_path)
    names = set(stored(tmp_path))
    assert names == HEAD_KEYS[PlainformerForMaskedLM] | {f"plainformer.{k}" for k in model.plainformer.state_dict()} | (
        set() if saved_tied else {DECODER}
    )


@pytest.mark.parametrize("opened_tied", [True, False], ids=["opened tied", "opened untied"])
@pytest.mark.parametrize("route", TIE_ROUTES)
@TIES
def test_tying_can_be_changed_when_a_file_is_opened(saved_tied, opened_tied, route, tmp_path):
    model = make_model(PlainformerForMaskedLM, tie_word_embeddings=saved_tied)
    if "bfloat16" in route:
        model = model.bfloat16().float()
    tensors = {name: value.detach().clone() for name, value in tensors_of(model).items()}
    assert tensors["lm_head.decoder.bias"].any()
    if opened_tied:
        tensors[DECODER] = tensors[WORD]
    for number, opener in enumerate(openers(PlainformerForMaskedLM)):
        folder = tmp_path / str(number)
        model.save_pretrained(folder)
        again = TIE_ROUTES[route](opener, folder, opened_tied)
        assert is_tied(again) == opened_tied == again.config.tie_word_embeddings
        assert_equal_tensors(tensors_of(again), tensors)
        again.save_pretrained(folder / "again")
        assert (DECODER in stored(folder / "again")) != opened_tied
        final = PlainformerForMaskedLM.from_pretrained(folder / "again")
        assert is_tied(final) == opened_tied
        assert_equal_tensors(tensors_of(final), tensors)


def test_untied_weights_go_their_own_ways(tmp_path):
    """A decoder that starts as a copy must not share memory with the embeddings."""
    make_model(PlainformerForMaskedLM).save_pretrained(tmp_path)
    model = PlainformerForMaskedLM.from_pretrained(tmp_path, tie_word_embeddings=False)
    before = model.get_input_embeddings().weight.detach().clone()
    with torch.no_grad():
        model.lm_head.decoder.weight.add_(1)
    assert torch.equal(model.get_input_embeddings().weight, before)


def test_an_unreadable_decoder_is_reported(tmp_path):
    """`from_pretrained` says what is missing when nothing of the head is there, tied or not."""
    make_model(PlainformerModel).save_pretrained(tmp_path)
    _, info = PlainformerForMaskedLM.from_pretrained(tmp_path, tie_word_embeddings=False, output_loading_info=True)
    assert set(info["missing_keys"]) == HEAD_KEYS[PlainformerForMaskedLM] | {DECODER}


# Initialisation.


def assert_fresh(model: nn.Module, dtype: torch.dtype = torch.float32) -> None:
    """Norms 1 and 0, biases 0, weights normal with the configured deviation, the padding embedding 0."""
    std = model.config.initializer_range
    for name, parameter in model.named_parameters():
        assert parameter.dtype == dtype and parameter.isfinite().all(), name
        if name.endswith("norm.weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            values = parameter.detach().float()
            if name.endswith("word_embeddings.weight"):
                assert not values[0].any(), name
                values = values[1:]
            slack = 5 / math.sqrt(2 * values.numel())
            assert abs(values.std() / std - 1) < slack and abs(values.mean()) < 5 * std / math.sqrt(values.numel()), (
                name
            )


@EACH_CLASS
def test_a_fresh_model_is_initialised_as_bert_is(model_class, variant):
    assert_fresh(model_class(tiny_config(**variant, initializer_range=0.05)))


@EACH_CLASS
def test_a_model_that_was_built_on_meta_is_initialised_later(model_class, variant):
    config = tiny_config(**variant)
    for dtype in (torch.float32, torch.bfloat16):
        for build in (model_class, auto_class(model_class).from_config):
            with torch.device("meta"):
                model = build(config)
            assert all(parameter.is_meta for parameter in model.parameters())
            model.to_empty(device="cpu").to(dtype)
            with torch.no_grad():
                for tensor in [*model.parameters(), *model.buffers()]:
                    tensor.fill_(float("nan") if tensor.is_floating_point() else 0)
            model.init_weights()
            model.tie_weights()
            assert_fresh(model, dtype)
            if model_class is PlainformerForMaskedLM:
                assert is_tied(model)
            if config.position_embedding_type == "sinusoidal":
                torch.testing.assert_close(position_table(model, 16).double(), sinusoids(16, 32), rtol=0, atol=1e-6)
            assert output_of(model, make_inputs(model_class)).isfinite().all()


@pytest.mark.parametrize(("model_class", "variant", "pad_token_id"), paired(MODELS, KIND_AND_NORM, [0, 3, 49, None]))
def test_the_padding_embedding_is_zero_and_gets_no_gradient(model_class, variant, pad_token_id):
    """With a tied decoder the row is also a row of the decoder, which learns to score that id: untied here."""
    model = model_class(tiny_config(**variant, pad_token_id=pad_token_id, tie_word_embeddings=False))
    weight = model.get_input_embeddings().weight
    zero_rows = (weight == 0).all(dim=1).nonzero().flatten().tolist()
    assert zero_rows == ([] if pad_token_id is None else [pad_token_id])
    inputs = make_inputs(model_class)
    ids = torch.arange(inputs["input_ids"].numel()).reshape(inputs["input_ids"].shape) % 50
    ids[0, ..., :4] = torch.tensor([0, 3, 49, 7])
    inputs["input_ids"] = ids
    output = model(**inputs, **make_labels(model_class, inputs))
    (output.last_hidden_state[..., :5].square().sum() if model_class is PlainformerModel else output.loss).backward()
    assert weight.grad[7].any()
    for row in {0, 3, 49}:
        assert weight.grad[row].any() == (row != pad_token_id)


def test_the_padding_embedding_stays_zero_in_training(tmp_path):
    model = PlainformerForSequenceClassification(tiny_config())
    inputs = make_inputs(PlainformerForSequenceClassification)
    inputs["input_ids"][:, 3] = 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        model(**inputs, labels=torch.tensor([0, 1, 2, 0])).loss.backward()
        optimizer.step()
    assert not model.get_input_embeddings().weight[0].any()
    model.save_pretrained(tmp_path)
    again = PlainformerForSequenceClassification.from_pretrained(tmp_path)
    assert not again.get_input_embeddings().weight[0].any()
    again.train()(**inputs, labels=torch.tensor([0, 1, 2, 0])).loss.backward()
    assert not again.get_input_embeddings().weight.grad[0].any()


# The fixed table.

FIXED = {"position_embedding_type": "sinusoidal"}
WIDTHS = {"width 32": {}, "width 33": {"hidden_size": 33, "num_attention_heads": 3}}


@pytest.mark.parametrize(("width", "model_class"), paired(WIDTHS, [PlainformerForMaskedLM, PlainformerModel]))
def test_the_fixed_table_is_the_formula_and_stays_it(width, model_class, tmp_path):
    model = model_class(tiny_config(**FIXED, **width))
    expected = sinusoids(1000, model.config.hidden_size)

    def check(model):
        table = position_table(model, 1000)
        assert table.dtype == torch.float32 and not table.requires_grad
        torch.testing.assert_close(table.double(), expected, rtol=0, atol=1e-6)

    check(model)
    trainable = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    without = model_class(tiny_config(position_embedding_type="none", **width))
    assert trainable == sum(parameter.numel() for parameter in without.parameters())
    assert set(model.state_dict()) == set(without.state_dict())
    inputs = make_inputs(model_class)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    answers(model(**inputs)).square().sum().backward()
    optimizer.step()
    check(model)
    model.save_pretrained(tmp_path)
    assert set(stored(tmp_path)) <= set(without.state_dict())
    check(model_class.from_pretrained(tmp_path))
    check(model_class.from_pretrained(tmp_path, dtype=torch.bfloat16))


# Other sizes of vocabulary.

RESIZES = {
    "two more": ({"new_num_tokens": 52}, 52),
    "fewer": ({"new_num_tokens": 30}, 30),
    "multiple of 64": ({"new_num_tokens": 52, "pad_to_multiple_of": 64}, 64),
    "the same": ({"new_num_tokens": 50}, 50),
}


def resizes(ways: list[str]) -> list:
    """The masked LM by every way, tied and untied; a class without a decoder by one."""
    others = [model_class for model_class in MODELS if model_class is not PlainformerForMaskedLM]
    both = [
        pytest.param(PlainformerForMaskedLM, tie, name, id=f"MaskedLM-{'tied' if tie else 'untied'}-{name}")
        for tie in (True, False)
        for name in ways
    ]
    return both + paired(others, {"tied": True}, ways)


@pytest.mark.parametrize(("model_class", "tie", "resize"), resizes(list(RESIZES)))
def test_the_vocabulary_can_be_resized(model_class, tie, resize, tmp_path):
    model = make_model(model_class, tie_word_embeddings=tie)
    old = {name: value.detach().clone() for name, value in model.state_dict().items()}
    arguments, size = RESIZES[resize]
    kept = min(size, 50)

    returned = model.resize_token_embeddings(**arguments)
    embeddings = model.get_input_embeddings()
    assert returned is embeddings and embeddings.weight.shape == (size, 32) and embeddings.num_embeddings == size
    assert embeddings.padding_idx == 0
    assert model.config.vocab_size == model.base_model.config.vocab_size == size
    for name, value in model.state_dict().items():
        rows = kept if "word_embeddings" in name or "decoder" in name else len(value)
        assert value.isfinite().all() and torch.equal(value[:rows], old[name][:rows]), name
    if model_class is PlainformerForMaskedLM:
        decoder = model.lm_head.decoder
        assert decoder.weight.shape == (size, 32) and decoder.bias.shape == (size,) and decoder.out_features == size
        assert is_tied(model) == tie

    model.save_pretrained(tmp_path)
    again = model_class.from_pretrained(tmp_path)
    assert again.config.vocab_size == size
    assert_equal_tensors(tensors_of(again), tensors_of(model))
    inputs = make_inputs(model_class)
    inputs["input_ids"] = inputs["input_ids"] % size
    assert torch.equal(output_of(again, inputs), output_of(model, inputs))


@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
def test_new_tokens_can_be_read_and_learned(tie):
    model = make_model(PlainformerForMaskedLM, tie_word_embeddings=tie)
    with pytest.raises(ValueError, match="vocab_size=50"):
        model(input_ids=torch.tensor([[50, 51, 3]]))
    model.resize_token_embeddings(52)
    inputs = {"input_ids": torch.tensor([[50, 51, 3, 7]]), "labels": torch.tensor([[51, 50, -100, 3]])}
    output = model(**inputs)
    assert output.logits.shape == (1, 4, 52) and output.loss.isfinite()
    picked = nn.functional.cross_entropy(output.logits[0, [0, 1, 3]], torch.tensor([51, 50, 3]))
    torch.testing.assert_close(output.loss, picked)
    output.loss.backward()
    assert model.get_input_embeddings().weight.grad[50:].any(dim=1).all()
    assert model.lm_head.decoder.bias.grad[50:].all()
    with pytest.raises(ValueError, match="labels hold 52"):
        model(input_ids=torch.tensor([[1, 2]]), labels=torch.tensor([[52, 1]]))


def test_a_fresh_padding_embedding_stays_zero_through_a_resize():
    model = PlainformerForSequenceClassification(tiny_config())
    model.resize_token_embeddings(64)
    weight = model.get_input_embeddings().weight
    assert not weight[0].any() and weight[50:].any(dim=1).all()
    model(input_ids=torch.tensor([[5, 0, 60]]), labels=torch.tensor([1])).loss.backward()
    assert not weight.grad[0].any() and weight.grad[60].any()


def test_the_padding_token_cannot_be_cut_off():
    """The folder could not be opened again: its configuration would be refused."""
    model = PlainformerModel(tiny_config(pad_token_id=49))
    with pytest.raises(ValueError, match="pad_token_id=49"):
        model.resize_token_embeddings(40)
    assert model.config.vocab_size == 50 and len(model.get_input_embeddings().weight) == 50


# Other numbers of positions.

SIZES = {"longer": 40, "shorter": 9, "the same": 16}


@pytest.mark.parametrize(("model_class", "size"), paired(MODELS, SIZES))
def test_learned_positions_can_be_resized(model_class, size, tmp_path):
    model = make_model(model_class)
    assert model.get_position_embeddings() is model.base_model.embeddings.position_embeddings
    old = model.get_position_embeddings().weight.detach().clone()
    model.resize_position_embeddings(size)
    table = model.get_position_embeddings()
    kept = min(size, 16)
    assert table.weight.shape == (size, 32) and table.num_embeddings == size and table.weight.requires_grad
    assert model.config.max_position_embeddings == model.base_model.config.max_position_embeddings == size
    assert torch.equal(table.weight[:kept], old[:kept])
    if size > 16:
        assert 0.015 < table.weight[16:].std() < 0.025
    inputs = make_inputs(model_class, length=size)
    expected = output_of(model, inputs)
    with pytest.raises(ValueError, match=f"max_position_embeddings={size}"):
        model(**make_inputs(model_class, length=size + 1))
    model.save_pretrained(tmp_path)
    again = model_class.from_pretrained(tmp_path)
    assert_equal_tensors(tensors_of(again), tensors_of(model))
    assert torch.equal(output_of(again, inputs), expected)
    answers(again(**inputs)).sum().backward()
    assert again.get_position_embeddings().weight.grad.shape == (size, 32)


def test_resized_positions_keep_dtype_and_frozenness():
    model = make_model(PlainformerModel).to(torch.bfloat16)
    model.get_position_embeddings().weight.requires_grad_(False)
    model.resize_position_embeddings(20)
    assert model.get_position_embeddings().weight.dtype == torch.bfloat16
    assert not model.get_position_embeddings().weight.requires_grad


@pytest.mark.parametrize("size", [0, -1, 2.5, "8", None, True, torch.tensor(3)], ids=repr)
def test_an_impossible_number_of_positions_is_refused(size):
    model = PlainformerModel(tiny_config())
    with pytest.raises(ValueError, match="new_num_position_embeddings=.*integer of at least 1"):
        model.resize_position_embeddings(size)
    assert model.config.max_position_embeddings == 16 and len(model.get_position_embeddings().weight) == 16


@pytest.mark.parametrize(("model_class", "kind"), paired(MODELS, [k for k in KINDS if not POSITION_KINDS[k].has_limit]))
def test_only_learned_positions_have_a_table(model_class, kind):
    model = model_class(tiny_config(position_embedding_type=kind))
    for call in (model.get_position_embeddings, lambda: model.resize_position_embeddings(40)):
        with pytest.raises(ValueError, match=f"position_embedding_type='{kind}'.*'learned'"):
            call()
    assert model.config.max_position_embeddings == 16
