"""Sharing: a folder that we save is opened by a stranger who has transformers and torch, and nothing of ours.

A stranger is a process of its own: it cannot import plainformer, its cache of remote code is empty, and it is offline.
Starting one takes seconds, so each of the few that there are does many jobs, and the tests look at the results. A job
is a function of this file whose source is sent to the process; it imports what it needs by itself.
"""

import ast
import inspect
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from helpers.hub import STRANGER, digest
from helpers.models import HEADS, MODELS, NON_DEFAULT, make_inputs, make_labels, make_model, short_name, tiny_config
from helpers.processes import fast_python, run_process

import plainformer
from plainformer import PlainformerConfig, PlainformerForSequenceClassification
from plainformer.positions_plainformer import POSITION_KINDS

PACKAGE = Path(plainformer.__file__).parent
MODEL_NAMES = [short_name(model_class) for model_class in MODELS]
AUTO_MAP = {
    "AutoConfig": "configuration_plainformer.PlainformerConfig",
    "AutoModel": "modeling_plainformer.PlainformerModel",
    "AutoModelForMaskedLM": "modeling_plainformer.PlainformerForMaskedLM",
    "AutoModelForSequenceClassification": "modeling_plainformer.PlainformerForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_plainformer.PlainformerForTokenClassification",
    "AutoModelForQuestionAnswering": "modeling_plainformer.PlainformerForQuestionAnswering",
    "AutoModelForMultipleChoice": "modeling_plainformer.PlainformerForMultipleChoice",
}
# Every class; every other position kind and norm placement with one of the classes.
POST, PRE = "learned-post", "learned-pre"
OTHERS = [f"{kind}-post" for kind in POSITION_KINDS if f"{kind}-post" != POST] + [PRE]
CASES = [(POST, model) for model in MODEL_NAMES] + [(variant, "MaskedLM") for variant in OTHERS]
HUB_ID = "someone/model"
HUB_CASE = (PRE, "MaskedLM")
FROM_HUB = ("Model", "MaskedLM")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAMES = ["my-model.v1.5/checkpoint-10", "with space/ünï-1", "import", "1", "a/model", "b/model"]
CLASSIFIER = "AutoModelForSequenceClassification"
RESAVED = [f"{variant}-{model}" for variant, model in CASES] + [f"hub-{model}" for model in FROM_HUB]
TRAINED = ["SequenceClassification", "QuestionAnswering", "MultipleChoice"]  # the forms that a batch can have
FINE_TUNED = [f"{POST}-{model}" for model in TRAINED] + ["hub-MaskedLM"]


def auto_of(name: str) -> str:
    """The Auto class of a class by its short name, or of what is called KIND-PLACEMENT-CLASS."""
    model = name.rpartition("-")[2]
    return "AutoModel" if model == "Model" else f"AutoModelFor{model}"


# Processes.

START = """
import json, sys, traceback

{first}

{functions}

import transformers
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
results = {{}}
for name, function, arguments in json.load(open({jobs!r})):
    try:
        results[name] = globals()[function](**arguments)
    except Exception:
        results[name] = {{"error": traceback.format_exc()}}
with open({output!r}, "w") as file:
    json.dump(results, file)
"""


class Process:
    """Jobs for a new process, and what came of them."""

    def __init__(self, folder: Path, *, knows_plainformer: bool, cache: Path | None = None) -> None:
        self.folder, self.knows_plainformer, self.cache = folder, knows_plainformer, cache or folder / "home"
        self.jobs, self.results = [], {}
        folder.mkdir()

    def add(self, name: str, function, **arguments) -> None:
        self.jobs.append((name, function.__name__, arguments))

    def run(self) -> "Process":
        helpers = (digest, read, describe, load, load_all, build, attempt, save_again, switch_kernel)
        helpers += (make_trainer, losses_and_tensors)
        jobs = (train, resume, open_folder, same_leaf_names, load_edited, read_config, untie, save_subclasses, reimport)
        script, output = self.folder / "script.py", self.folder / "results.json"
        (self.folder / "jobs.json").write_text(json.dumps(self.jobs))
        script.write_text(
            START.format(
                first="" if self.knows_plainformer else STRANGER,
                functions="\n\n".join(inspect.getsource(function) for function in (*helpers, *jobs)),
                jobs=str(self.folder / "jobs.json"),
                output=str(output),
            )
        )
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHONPATH"))}
        environment |= {"HF_HOME": str(self.cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        if self.knows_plainformer:
            environment["PYTHONPATH"] = str(PACKAGE.parent)
        done = run_process([fast_python(), script], cwd=self.folder, env=environment)
        assert done.returncode == 0, done.stderr[-5000:]
        self.results = json.loads(output.read_text())
        return self

    def __getitem__(self, name: str):
        result = self.results[name]
        assert not (isinstance(result, dict) and "error" in result), result["error"]
        return result


# Jobs. Their source runs in another process.


def read(model):
    """The bits that a model computes for a small batch with padding."""
    import torch

    for parameter in model.parameters():  # how a tensor lies in memory may decide about its product's last bit
        parameter.data = parameter.data.clone()
    ids = torch.tensor([[5, 9, 7, 2, 0, 0], [3, 4, 5, 6, 7, 8]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "token_type_ids": (ids > 6).long() % 2}
    if "MultipleChoice" in type(model).__name__:
        inputs = {name: value[None] for name, value in inputs.items()}
    with torch.no_grad():
        return digest(dict(model.eval()(**inputs).items()))


def describe(model):
    """Class, weights and results of a model, as text."""
    tensors = {**model.state_dict(), **dict(model.named_buffers())}
    return {
        "class": type(model).__name__,
        "names": sorted(tensors),
        "weights": digest(tensors),
        "results": read(model),
    }


def load(folder, auto, trust=True, **kwargs):
    """Open a folder; what it does not hold is drawn from the same seed everywhere."""
    import torch
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, auto).from_pretrained(folder, trust_remote_code=trust, **kwargs)


def load_all(pairs, trust=True, package=False):
    """Folders, each through an Auto class, after the package was imported if asked."""
    if package:
        __import__("plainformer")
    return {
        f"{folder} {auto}": describe(load(folder, auto, trust, ignore_mismatched_sizes=True)) for folder, auto in pairs
    }


def build(folder, autos, trust=True):
    """A fresh model of each Auto class from a saved configuration."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust)
    models = {}
    for auto in autos:
        torch.manual_seed(0)
        models[auto] = describe(getattr(transformers, auto).from_config(config, trust_remote_code=trust))
    return models


def attempt(function, *arguments, **kwargs):
    """The error that a call ends in, as text."""
    try:
        function(*arguments, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def save_again(folder, auto, target):
    """Open, save, and describe what was opened."""
    model = load(folder, auto)
    model.save_pretrained(target)
    return describe(model)


def switch_kernel(folder, auto, trust=True):
    """For each kernel: what the configuration says, how often torch's fused function ran, and the results."""
    import torch.nn.functional as F

    model = load(folder, auto, trust)
    original, calls = F.scaled_dot_product_attention, []

    def counted(*args, **kwargs):
        calls.append(1)
        return original(*args, **kwargs)

    F.scaled_dot_product_attention = counted
    try:
        seen = [[model.config._attn_implementation, len(calls), read(model), len(calls)]]
        for kernel in ("eager", "sdpa", "eager"):
            model.set_attn_implementation(kernel)
            calls.clear()
            read(model)
            seen.append([model.config._attn_implementation, len(calls)])
    finally:
        F.scaled_dot_product_attention = original
    refused = attempt(model.set_attn_implementation, "no_such_kernel")
    return {"first": seen[0], "then": seen[1:], "refused": refused, "kept": model.config._attn_implementation}


def make_trainer(model, rows, output):
    """Six steps with `Trainer`'s default arguments, a checkpoint every three."""
    import torch
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=output,
        max_steps=6,
        save_steps=3,
        logging_steps=1,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    data = [{name: torch.tensor(value) for name, value in row.items()} for row in rows]
    return Trainer(model=model, args=arguments, train_dataset=data)


def losses_and_tensors(trainer):
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, **describe(trainer.model)}


def train(folder, auto, rows, output):
    trainer = make_trainer(load(folder, auto), rows, output)
    trainer.train()
    trainer.save_model(output + "/final")
    return losses_and_tensors(trainer)


def resume(checkpoint, auto, rows, output):
    """Go on from a checkpoint, with nothing but what it holds."""
    trainer = make_trainer(load(checkpoint, auto), rows, output)
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.model.save_pretrained(output + "/final")
    return losses_and_tensors(trainer)


def open_folder(folder, auto, cwd=None):
    """Open a folder, from within another one if asked."""
    import os

    before = os.getcwd()
    os.chdir(cwd or before)
    try:
        return describe(load(folder, auto))
    finally:
        os.chdir(before)


def same_leaf_names(first, second, auto):
    """Two models under one leaf name, both alive, each opened twice."""
    a, b = load(first, auto), load(second, auto)
    return [describe(model) for model in (a, b, load(first, auto), load(second, auto), a, b)]


def load_edited(folder, auto):
    """Which of the code files that were loaded carry the mark of an edit."""
    import sys

    package = type(load(folder, auto)).__module__.rpartition(".")[0]
    modules = {name.rpartition(".")[2]: module for name, module in sys.modules.items() if name.startswith(package)}
    return sorted(name for name, module in modules.items() if hasattr(module, "EDITED"))


def read_config(folder, names, trust=True):
    """The class of a configuration and some of its values."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust)
    return {"class": type(config).__name__, "values": {name: getattr(config, name) for name in names}}


def untie(folder):
    """A tied masked LM, opened untied: is its decoder a copy of the embeddings, and its bias what was saved?"""
    import torch

    tied, untied = load(folder, "AutoModelForMaskedLM"), load(folder, "AutoModelForMaskedLM", tie_word_embeddings=False)
    return {
        "copy": torch.equal(untied.lm_head.decoder.weight, tied.get_input_embeddings().weight),
        "shared": untied.lm_head.decoder.weight is untied.get_input_embeddings().weight,
        "bias": bool(tied.lm_head.decoder.bias.any())
        and torch.equal(untied.lm_head.decoder.bias, tied.lm_head.decoder.bias),
    }


def save_subclasses(folder, modules):
    """Subclasses of a user, one in a module and one in this script, are saved and opened again."""
    import sys

    import torch
    from torch import nn

    from plainformer import PlainformerConfig, PlainformerForSequenceClassification

    class ScriptClassifier(PlainformerForSequenceClassification):
        def __init__(self, config):
            super().__init__(config)
            self.extra = nn.Linear(config.hidden_size, 5)
            self.post_init()

    sys.path.insert(0, modules)
    from user_modeling import ModuleClassifier

    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 3}
    config = PlainformerConfig(**sizes, intermediate_size=37, max_position_embeddings=16, pre_norm=True)
    results = {}
    for subclass in (ScriptClassifier, ModuleClassifier):
        torch.manual_seed(1)
        model = subclass(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.uniform_(-1, 1)
        target = f"{folder}/{subclass.__name__}"
        model.save_pretrained(target)
        results[subclass.__name__] = {
            "saved": describe(model),
            "own class": describe(subclass.from_pretrained(target)),
            "trust": describe(load(target, "AutoModelForSequenceClassification", True)),
            "no trust": describe(load(target, "AutoModelForSequenceClassification", False)),
            "base": describe(load(target, "AutoModel", False)),
            "encoder": describe(model.plainformer),
        }
    return results


def reimport(pairs):
    """Remote code first, then the package; again; reloaded; all modules fresh: the same numbers each time."""
    import importlib
    import sys

    assert "plainformer" not in sys.modules
    steps = {"remote": load_all(pairs, True)}
    import plainformer

    steps["package after remote"] = load_all(pairs, False)
    steps["remote beside package"] = load_all(pairs, True)
    importlib.reload(plainformer)
    steps["package reloaded"] = load_all(pairs, False)
    for name in ("configuration_plainformer", "modeling_plainformer"):
        importlib.reload(sys.modules[f"plainformer.{name}"])
    importlib.reload(plainformer)
    steps["modules reloaded"] = load_all(pairs, False)
    for name in [name for name in sys.modules if name.split(".")[0] == "plainformer"]:
        del sys.modules[name]
    again = importlib.import_module("plainformer")
    assert again is not plainformer
    steps["imported anew"] = load_all(pairs, False)
    steps["remote at last"] = load_all(pairs, True)
    return steps


# Folders, and the processes in the order of their story.


def siblings(file: str = "modeling_plainformer.py") -> set[str]:
    """A file of the package and all that it imports from beside itself, by reading the syntax."""
    found, waiting = set(), [file]
    while waiting:
        name = waiting.pop()
        found.add(name)
        for node in ast.walk(ast.parse((PACKAGE / name).read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                waiting += [f"{node.module}.py"] if f"{node.module}.py" not in found else []
    return found


def training_rows(model: str) -> list[dict]:
    """Twelve rows with labels, as lists."""
    torch.manual_seed(1)
    model_class = next(c for c in HEADS if short_name(c) == model)
    inputs = make_inputs(model_class, batch_size=12)
    inputs |= make_labels(model_class, inputs)
    return [{name: values[index].tolist() for name, values in inputs.items()} for index in range(12)]


def pairs(folders: dict, cases: list) -> list[tuple[str, str]]:
    """The folders of some cases, each as the class that was saved, and as the base."""
    return [(str(folders[case]), auto) for case in cases for auto in dict.fromkeys((auto_of(case[1]), "AutoModel"))]


def own_pairs(folders: dict) -> list[tuple[str, str]]:
    """Every case as the class that was saved."""
    return [(str(folders[case]), auto_of(case[1])) for case in CASES]


def all_pairs(folders: dict) -> list[tuple[str, str]]:
    """Every saved class with every Auto class; for the other position kinds and norm placements as `pairs`."""
    crossed = [(str(folders[POST, saved]), auto_of(model)) for saved in MODEL_NAMES for model in MODEL_NAMES]
    return crossed + pairs(folders, CASES[len(MODEL_NAMES) :])


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("sharing")


@pytest.fixture(scope="module")
def originals(root) -> dict:
    """A folder for every case, random weights everywhere."""
    folders = {}
    for variant, name in CASES:
        kind, norm = variant.split("-")
        model_class = next(c for c in MODELS if short_name(c) == name)
        model = make_model(model_class, position_embedding_type=kind, pre_norm=norm == "pre")
        folders[variant, name] = root / "originals" / f"{variant}-{name}"
        model.save_pretrained(folders[variant, name])
    return folders


@pytest.fixture(scope="module")
def installed(originals) -> dict:
    """What the installed package makes of every folder through the same Auto classes."""
    return load_all(all_pairs(originals), trust=False)


def named_case(name: str) -> tuple[str, str]:
    """What lies under one of `NAMES`."""
    return CASES[NAMES.index(name) - len(NAMES)]


@pytest.fixture(scope="module")
def copies(root, originals) -> dict:
    """Folders under special names, an own configuration, and a Hub cache, all made from the originals."""
    copies = {name: root / "copies" / name for name in NAMES}
    for name, folder in copies.items():
        shutil.copytree(originals[named_case(name)], folder)
    copies["link"] = root / "copies" / "link"
    copies["link"].symlink_to(copies["a/model"], target_is_directory=True)
    copies["edited"] = root / "copies" / "edited"
    shutil.copytree(originals[POST, "SequenceClassification"], copies["edited"])
    copies["config"] = root / "copies" / "config"
    PlainformerConfig(**NON_DEFAULT, id2label={0: "a", 1: "b", 2: "c"}).save_pretrained(copies["config"])
    hub = root / "first" / "home" / "hub" / "models--someone--model"
    copies["hub"] = hub / "snapshots" / COMMIT
    return copies


@pytest.fixture(scope="module")
def first(root, originals, copies) -> Process:
    """A stranger who opens everything, saves it again (A to B), and fine-tunes."""
    process = Process(root / "first", knows_plainformer=False)
    shutil.copytree(originals[HUB_CASE], copies["hub"])
    (copies["hub"].parents[1] / "refs").mkdir()
    (copies["hub"].parents[1] / "refs" / "main").write_text(COMMIT)
    process.add("all", load_all, pairs=all_pairs(originals))
    process.add("build", build, folder=str(originals[POST, "Model"]), autos=[*map(auto_of, MODEL_NAMES)])
    process.add("untie", untie, folder=str(originals[PRE, "MaskedLM"]))
    process.add("kernel", switch_kernel, folder=str(originals[POST, "Model"]), auto="AutoModelForMaskedLM")
    for variant in OTHERS:
        process.add(f"build {variant}", build, folder=str(originals[variant, "MaskedLM"]), autos=["AutoModel"])
    process.add("config", read_config, folder=str(copies["config"]), names=[*NON_DEFAULT, "num_labels"])
    for name in NAMES:
        process.add(f"open {name}", open_folder, folder=str(copies[name]), auto="AutoModel")
    leaf = {"first": str(copies["a/model"]), "second": str(copies["b/model"])}
    process.add("same leaf", same_leaf_names, **leaf, auto="AutoModel")
    here = {"auto": "AutoModel", "cwd": str(copies["a/model"])}
    process.add("open .", open_folder, folder=".", **here)
    process.add("open ../model", open_folder, folder="../model", **here)
    process.add("open link", open_folder, folder=str(copies["link"]), auto=here["auto"])
    process.add("open slash", open_folder, folder=str(copies["b/model"]) + "/", auto=here["auto"])
    for variant, model in CASES:
        folder, target = str(originals[variant, model]), str(root / "B" / f"{variant}-{model}")
        process.add(f"B {variant}-{model}", save_again, folder=folder, auto=auto_of(model), target=target)
    for model in FROM_HUB:
        target = str(root / "B" / f"hub-{model}")
        process.add(f"B hub-{model}", save_again, folder=HUB_ID, auto=auto_of(model), target=target)
    for model in TRAINED:
        folder, output = str(originals[POST, model]), str(root / "trained" / f"{POST}-{model}")
        process.add(
            f"train {POST}-{model}", train, folder=folder, auto=auto_of(model), rows=training_rows(model), output=output
        )
    hub_training = {"folder": HUB_ID, "auto": auto_of("MaskedLM"), "rows": training_rows("MaskedLM")}
    process.add("train hub-MaskedLM", train, **hub_training, output=str(root / "trained" / "hub-MaskedLM"))
    return process.run()


@pytest.fixture(scope="module")
def second(root, originals, copies, first) -> Process:
    """Another stranger, with an empty cache, when A and the Hub's cache are gone: opens B, saves it to C, resumes."""
    process = Process(root / "second", knows_plainformer=False)
    (root / "originals").rename(root / "hidden")
    shutil.rmtree(root / "first" / "home")
    for name in RESAVED:
        target = str(root / "C" / name)
        auto = auto_of(name)
        process.add(f"C {name}", save_again, folder=str(root / "B" / name), auto=auto, target=target)
    for name in FINE_TUNED:
        model = name.rpartition("-")[2]
        trained = root / "trained" / name
        process.add(
            f"resume {name}",
            resume,
            checkpoint=str(trained / "checkpoint-3"),
            auto=auto_of(model),
            rows=training_rows(model),
            output=str(root / "resumed" / name),
        )
        for place in ("checkpoint-6", "final"):
            process.add(f"open {name} {place}", open_folder, folder=str(trained / place), auto=auto_of(model))
    process.add("edited", load_edited, folder=str(copies["edited"]), auto=CLASSIFIER)
    try:
        return process.run()
    finally:
        (root / "hidden").rename(root / "originals")


@pytest.fixture(scope="module")
def third(root, copies, second) -> Process:
    """A third stranger, with the cache of the second: opens C, what was resumed, and a folder whose code was edited."""
    process = Process(root / "third", knows_plainformer=False, cache=root / "second" / "home")
    for name in siblings() - {"modeling_plainformer.py"}:
        with open(copies["edited"] / name, "a") as file:
            file.write("\nEDITED = True\n")
    process.add("edited", load_edited, folder=str(copies["edited"]), auto=CLASSIFIER)
    for name in RESAVED:
        auto = auto_of(name)
        process.add(f"open {name}", open_folder, folder=str(root / "C" / name), auto=auto)
    for name in FINE_TUNED:
        auto = auto_of(name)
        process.add(f"resumed {name}", open_folder, folder=str(root / "resumed" / name / "final"), auto=auto)
    return process.run()


@pytest.fixture(scope="module")
def both(root, originals) -> Process:
    """A process that has the package and meets its remote copies: the copies first, then both."""
    process = Process(root / "both", knows_plainformer=True)
    (root / "user_modeling.py").write_text(
        "from torch import nn\n\nfrom plainformer import PlainformerForSequenceClassification\n\n\n"
        "class ModuleClassifier(PlainformerForSequenceClassification):\n"
        "    def __init__(self, config):\n"
        "        super().__init__(config)\n"
        "        self.extra = nn.Linear(config.hidden_size, 5)\n"
        "        self.post_init()\n"
    )
    process.add("reimport", reimport, pairs=pairs(originals, [(PRE, "MaskedLM")]))
    process.add("remote", load_all, pairs=own_pairs(originals))
    process.add("package", load_all, pairs=own_pairs(originals), trust=False)
    process.add("subclasses", save_subclasses, folder=str(root / "subclasses"), modules=str(root))
    return process.run()


@pytest.fixture(scope="module")
def package_first(root, originals) -> Process:
    """The same in the other order."""
    process = Process(root / "package_first", knows_plainformer=True)
    process.add("package", load_all, pairs=own_pairs(originals), trust=False, package=True)
    process.add("remote", load_all, pairs=own_pairs(originals))
    process.add("build", build, folder=str(originals[POST, "Model"]), autos=[*map(auto_of, MODEL_NAMES)])
    return process.run()


def assert_same_model(actual: dict, expected: dict, but: tuple = ()) -> None:
    """Class, names, bits of the weights and bits of the results."""
    for what in ("class", "names", "weights", "results"):
        if what not in but:
            assert actual[what] == expected[what], what


def assert_complete(folder: Path) -> None:
    """The code of the package, its bytes unchanged, and nothing else; every Auto entry; no other repository."""
    files = {file.name for file in folder.glob("*.py")}
    assert files == siblings()
    for name in files:
        assert (folder / name).read_bytes() == (PACKAGE / name).read_bytes(), name
    text = (folder / "config.json").read_text()
    assert json.loads(text)["auto_map"] == AUTO_MAP
    assert "--" not in text


# The same bits for everybody.


def test_a_stranger_opens_any_checkpoint_with_any_auto_class(first, installed, originals):
    assert len(first["all"]) == len(MODEL_NAMES) ** 2 + 2 * len(OTHERS)
    for folder, auto in all_pairs(originals):
        found = first["all"][f"{folder} {auto}"]
        assert_same_model(found, installed[f"{folder} {auto}"])
        assert auto_of(found["class"].removeprefix("Plainformer").removeprefix("For")) == auto


@pytest.mark.parametrize("way", ["remote", "package"])
@pytest.mark.parametrize("order", ["both", "package_first"])
def test_the_package_and_its_remote_copy_give_the_same_in_either_order(order, way, request, installed, originals):
    found = request.getfixturevalue(order)[way]
    for folder, auto in own_pairs(originals):
        assert_same_model(found[f"{folder} {auto}"], installed[f"{folder} {auto}"])


STEPS = ["package after remote", "remote beside package", "package reloaded", "modules reloaded", "imported anew"]


@pytest.mark.parametrize("step", ["remote", *STEPS, "remote at last"])
def test_the_package_survives_being_imported_again(step, both, installed):
    assert both["reimport"][step].keys() and set(both["reimport"]) == {"remote", *STEPS, "remote at last"}
    for key, model in both["reimport"][step].items():
        assert_same_model(model, installed[key])


@pytest.mark.parametrize("trust", [True, False], ids=["trust", "no trust"])
def test_a_fresh_model_is_the_same_for_everybody(trust, first, package_first, originals):
    """`from_config`, here without remote code, or with it in a process that has both."""
    autos = [*map(auto_of, MODEL_NAMES)]
    here = package_first["build"] if trust else build(str(originals[POST, "Model"]), autos, trust=False)
    assert list(first["build"]) == autos
    for auto in autos:
        assert_same_model(here[auto], first["build"][auto])


@pytest.mark.parametrize("variant", OTHERS)
def test_a_fresh_model_of_any_kind_is_the_same_for_everybody(variant, first, originals):
    here = build(str(originals[variant, "MaskedLM"]), ["AutoModel"], trust=False)
    assert_same_model(here["AutoModel"], first[f"build {variant}"]["AutoModel"])


def test_a_configuration_made_here_needs_no_trust():
    from transformers import AutoModel

    for trust in (None, False, True):
        kwargs = {} if trust is None else {"trust_remote_code": trust}
        assert type(AutoModel.from_config(tiny_config(), **kwargs)) is plainformer.PlainformerModel


def test_a_stranger_reads_every_field(first):
    result = first["config"]
    assert result["class"] == "PlainformerConfig"
    assert result["values"] == {**NON_DEFAULT, "num_labels": 3}
    assert set(NON_DEFAULT) == set(PlainformerConfig.__init__.__annotations__) - {"kwargs", "return"}


# What lies in a folder.


def test_what_travels_is_what_the_model_needs():
    assert {"modeling_plainformer.py", "configuration_plainformer.py"} < siblings()
    assert not siblings() & {"checks.py", "encoding.py", "tokenization_plainformer.py", "__init__.py"}


def test_a_checkpoint_holds_its_code(originals):
    for folder in originals.values():
        assert_complete(folder)


def test_a_configuration_by_itself_holds_its_code(copies):
    assert_complete(copies["config"])


@pytest.mark.parametrize("place", ["B", "C"])
@pytest.mark.parametrize("name", RESAVED)
def test_a_checkpoint_that_a_stranger_saved_holds_its_code(name, place, root, second):
    assert second[f"C {name}"]
    assert_complete(root / place / name)


@pytest.mark.parametrize("place", ["checkpoint-3", "checkpoint-6", "final"])
@pytest.mark.parametrize("name", FINE_TUNED)
def test_a_fine_tuned_checkpoint_holds_its_code(name, place, root, second):
    assert first_loss(second[f"resume {name}"]) > 0
    assert_complete(root / "trained" / name / place)
    if place != "checkpoint-3":
        assert_complete(root / "resumed" / name / place)


def first_loss(result: dict) -> float:
    return result["losses"][0]


# Saved again and again.


@pytest.mark.parametrize(("variant", "saved"), CASES)
def test_a_model_stays_the_same_from_hand_to_hand(variant, saved, first, second, third, installed, originals):
    """Opened from A, saved to B; A is gone: opened from B, saved to C; opened from C."""
    expected = installed[f"{originals[variant, saved]} {auto_of(saved)}"]
    name = f"{variant}-{saved}"
    for result in (first[f"B {name}"], second[f"C {name}"], third[f"open {name}"]):
        assert_same_model(result, expected)


@pytest.mark.parametrize("auto", FROM_HUB)
def test_a_model_from_the_hub_stays_the_same_from_hand_to_hand(auto, first, second, third, installed, originals):
    """By its id, from the Hub's cache; then as above, when the cache is gone."""
    expected = installed[f"{originals[HUB_CASE]} {auto_of(auto)}"]
    for result in (first[f"B hub-{auto}"], second[f"C hub-{auto}"], third[f"open hub-{auto}"]):
        assert_same_model(result, expected)


@pytest.mark.parametrize("name", FINE_TUNED)
def test_training_resumes_where_it_stopped(name, first, second):
    straight, resumed = first[f"train {name}"], second[f"resume {name}"]
    assert len(straight["losses"]) == 6 and len(set(straight["losses"])) > 1
    assert resumed["losses"] == straight["losses"]
    assert_same_model(resumed, straight)


@pytest.mark.parametrize("name", FINE_TUNED)
def test_a_fine_tuned_model_opens_as_it_was(name, first, second, third):
    trained = first[f"train {name}"]
    for result in (
        second[f"open {name} checkpoint-6"],
        second[f"open {name} final"],
        third[f"resumed {name}"],
    ):
        assert_same_model(result, trained)


# Particular folders.


@pytest.mark.parametrize("name", NAMES)
def test_a_stranger_opens_any_folder_name(name, first, installed, originals):
    assert_same_model(first[f"open {name}"], installed[f"{originals[named_case(name)]} AutoModel"])


@pytest.mark.parametrize("way", [".", "../model", "link", "slash"])
def test_a_stranger_opens_a_folder_by_any_path(way, first):
    assert_same_model(first[f"open {way}"], first["open b/model" if way == "slash" else "open a/model"])


def test_two_models_under_one_leaf_name_stay_apart(first):
    expected = [first["open a/model"], first["open b/model"]]
    assert expected[0]["weights"] != expected[1]["weights"]
    assert len(first["same leaf"]) == 6
    for number, result in enumerate(first["same leaf"]):
        assert_same_model(result, expected[number % 2])


def test_edited_code_is_read_in_the_next_process(second, third):
    """The cache holds the code as it was: it must not win over the folder."""
    assert second["edited"] == []
    edited = siblings() - {"modeling_plainformer.py"}
    assert third["edited"] == sorted(name.removesuffix(".py") for name in edited)


# What else a remote copy can do.


def test_the_kernel_of_a_remote_copy_can_be_switched(first):
    """The configuration says so, and another function ran."""
    result = first["kernel"]
    kernel, before, _, calls = result["first"]
    assert (kernel, before, calls) == ("sdpa", 0, 4)  # two layers, and rows of two lengths in the batch
    assert result["then"] == [["eager", 0], ["sdpa", 4], ["eager", 0]]
    assert "no_such_kernel" in result["refused"] and "'sdpa'" in result["refused"]
    assert result["kept"] == "eager"


def test_a_stranger_can_untie_the_decoder(first):
    assert first["untie"] == {"copy": True, "shared": False, "bias": True}


@pytest.mark.parametrize("way", ["own class", "trust", "no trust", "base"])
@pytest.mark.parametrize("name", ["ModuleClassifier", "ScriptClassifier"])
def test_a_subclass_of_the_user_saves_and_loads(name, way, both):
    """The Auto classes give it or the class it is derived from.

    What a script defines cannot travel, and where the package is registered, transformers 5 prefers it to the folder's
    own code.
    """
    results = both["subclasses"][name]
    if way == "base":
        assert_same_model(results["base"], results["encoder"])
    elif way == "own class" or (way == "trust" and results[way]["class"] == "ModuleClassifier" == name):
        assert_same_model(results[way], results["saved"])
    else:
        assert results[way]["class"] == PlainformerForSequenceClassification.__name__
        assert results[way]["names"] == [key for key in results["saved"]["names"] if not key.startswith("extra")]
        assert results[way]["results"] == results["saved"]["results"]
