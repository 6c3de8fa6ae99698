"""The Auto classes of a stranger, wherever a checkpoint lies: in a subfolder, under a name with dots, at a revision,
in a cache that is read-only, offline, and opened by two processes at once.

The Hub is a server of our own on loopback. The other ways to a folder are in test_sharing.py, pushing in test_hub.py.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.hub import AUTO_CLASSES, COMMON, STRANGER, TEXTS, TOKENS, digest, environment
from helpers.hub_server import LARGE, File, HubServer, Repo
from helpers.models import VARIANTS, make_model
from helpers.processes import fast_python, finish_process, start_process
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from plainformer import PlainformerForSequenceClassification, train_tokenizer

REPO, SUBFOLDER = "someone/my.model-v1.5", "small.v2/post"  # a repository and a folder in it
# Opens a checkpoint with some Auto classes.
OPEN = """
def open_all(source, autos=("AutoModel", "AutoModelForSequenceClassification"), **where):
    config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=True, **where)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=True, **where)
    return {
        "config": type(config).__module__.partition(".")[0],
        "ids": tokenizer(json.loads(sys.argv[1]))["input_ids"],
        "model": weights(source, **where),
        "opened": {auto: type(load(source, auto, **where)).__name__ for auto in autos},
    }
"""
WHERE = {
    "subfolder": "open_all(sys.argv[3], json.loads(sys.argv[2]), subfolder=sys.argv[4])",
    "revision": "open_all(sys.argv[3], subfolder=sys.argv[4], revision=sys.argv[6])",
    "folder": "open_all(sys.argv[5])",
    "subfolder of a folder": 'open_all(sys.argv[7], subfolder="my.model-v1")',
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, Path]:
    """Two classifiers of different kinds, each with the tokenizer."""
    root = tmp_path_factory.mktemp("saved")
    tokenizer = train_tokenizer(TEXTS * 10, vocab_size=60, model_max_length=16, show_progress=False)
    folders = {"first": root / "learned-post", "second": root / "some.folder" / "my.model-v1"}
    for folder, variant in zip(folders.values(), ("learned-post", "sinusoidal-pre"), strict=True):
        make_model(
            PlainformerForSequenceClassification, vocab_size=len(tokenizer), **VARIANTS[variant]
        ).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folders


@pytest.fixture(scope="module")
def hub():
    with HubServer(TOKENS) as server:
        yield server


@pytest.fixture(scope="module")
def pushed(hub, saved) -> dict[str, str]:
    """Two commits: the second model in the place of the first, with the code at the root, where transformers looks."""
    repo = hub.repos[REPO] = Repo(private=False)
    commits = {}
    for name, folder in saved.items():
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        paths = {path if path.endswith(".py") else f"{SUBFOLDER}/{path}": content for path, content in files.items()}
        large = {path: hashlib.sha256(content).hexdigest() for path, content in paths.items() if path.endswith(LARGE)}
        hub.large |= {sha256: paths[path] for path, sha256 in large.items()}
        commits[name] = repo.add("main", name, {path: File(paths[path], large.get(path)) for path in paths})
    return commits


@pytest.fixture(scope="module")
def arguments(saved, pushed) -> list[str]:
    """The command-line arguments of the processes below."""
    folder = saved["second"]
    for code in folder.glob("*.py"):
        shutil.copy(code, folder.parent)
    where = [REPO, SUBFOLDER, str(folder), pushed["first"], str(folder.parent)]
    return [json.dumps(TEXTS), json.dumps(AUTO_CLASSES), *where]


def check(results: dict[str, dict], saved: dict[str, Path]) -> None:
    """What a stranger finds everywhere is what the package gives."""
    assert results.keys() == WHERE.keys()
    for place, found in results.items():
        folder = saved["first" if place == "revision" else "second"]
        model = PlainformerForSequenceClassification.from_pretrained(folder)
        assert found["model"] == digest(model.state_dict()), place
        assert found["ids"] == AutoTokenizer.from_pretrained(folder, trust_remote_code=False)(TEXTS)["input_ids"]
        assert found["config"] == "transformers_modules"
        for auto, name in found["opened"].items():
            assert name == ("PlainformerModel" if auto == "AutoModel" else auto.replace("AutoModel", "Plainformer"))
    assert list(results["subfolder"]["opened"]) == AUTO_CLASSES


def start(hub: HubServer, home: Path, arguments: list[str], *prefix: str, **env: str) -> subprocess.Popen:
    """A stranger's process that prints what it found."""
    home.mkdir(exist_ok=True)
    lines = [f"results = {{{', '.join(f'{name!r}: {place}' for name, place in WHERE.items())}}}"]
    code = "\n".join([STRANGER, COMMON, OPEN, *lines, "print(json.dumps(results))"])
    python = sys.executable if prefix else fast_python()  # what a prefix takes from a process is not taken from a fork
    command = [*prefix, python, "-c", code, *arguments]
    return start_process(command, cwd=home, env={**environment(hub, home), **env})


def finish(process: subprocess.Popen) -> dict[str, dict]:
    done = finish_process(process)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("caches") / "home"


@pytest.fixture(scope="module")
def found(hub, home, arguments) -> list[dict[str, dict]]:
    """What two strangers find at once. Their common caches are empty: each copies the code and downloads the files."""
    return [finish(process) for process in [start(hub, home, arguments) for _ in range(2)]]


def test_two_strangers_at_once_open_it_wherever_it_lies(found, saved):
    for results in found:
        check(results, saved)


def test_what_was_opened_once_opens_offline_in_caches_that_are_read_only(hub, home, arguments, found, saved):
    hidden = [*_read_only(home)]
    try:
        without_rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
        if without_rights and not shutil.which("setpriv"):
            pytest.skip("the superuser may write everywhere, and there is no setpriv to run without that right")
        offline = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
        check(finish(start(hub, home, arguments, *without_rights, **offline)), saved)
    finally:
        for path, mode in hidden:
            path.chmod(mode)


def _read_only(folder: Path):
    """Take the right to write from everything below, and yield what it was, the folder itself last."""
    for path in [*folder.rglob("*"), folder]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            yield path, mode
            path.chmod(mode & 0o555)


def test_the_package_opens_a_subfolder_without_any_code(saved, tmp_path):
    shutil.copytree(saved["second"], tmp_path / "in" / "a.folder")
    options = {"subfolder": "a.folder", "trust_remote_code": False}
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "in", **options)
    assert type(model) is PlainformerForSequenceClassification
    expected = PlainformerForSequenceClassification.from_pretrained(saved["second"])
    assert digest(model.state_dict()) == digest(expected.state_dict())
