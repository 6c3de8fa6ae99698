"""The Auto classes of a stranger, wherever a checkpoint lies: in a subfolder, under a name with dots, at a revision,
in a cache that nobody may write to, offline, and opened by several processes at once.

The Hub is a server of our own on loopback. The other ways to a folder are in test_sharing.py, pushing in test_hub.py.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.hub_server import HubServer
from helpers.models import VARIANTS, make_model
from helpers.processes import finish_process, start_process
from test_hub import AUTO_CLASSES, COMMON, STRANGER, TEXTS, TOKENS, digest, environment, run_code
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from plainformer import PlainformerForSequenceClassification, train_tokenizer

REPO, PLACE = "someone/my.model-v1.5", "small.v2/post"  # a repository and a folder in it
# Puts two models into a folder of one repository, the second in the place of the first; transformers looks for the code
# at the root.
PUSH = """
from huggingface_hub import HfApi
api = HfApi()
api.create_repo(sys.argv[1])
api.upload_folder(repo_id=sys.argv[1], folder_path=sys.argv[3], allow_patterns="*.py")
upload = lambda folder: api.upload_folder(repo_id=sys.argv[1], folder_path=folder, path_in_repo=sys.argv[2]).oid
results = {"first": upload(sys.argv[3]), "second": upload(sys.argv[4])}
"""
# Opens a checkpoint with every Auto class.
OPEN = """
def open_all(source, **where):
    config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=True, **where)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=True, **where)
    return {
        "config": type(config).__module__.partition(".")[0],
        "ids": tokenizer(json.loads(sys.argv[1]))["input_ids"],
        "model": digest(load(source, **where)),
        "opened": [type(load(source, auto, **where)).__name__ for auto in json.loads(sys.argv[2])],
    }
"""
WHERE = {
    "subfolder": "open_all(sys.argv[3], subfolder=sys.argv[4])",
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
def pushed(hub, saved, tmp_path_factory) -> dict[str, str]:
    """The two commits."""
    home = tmp_path_factory.mktemp("pusher") / "home"
    return run_code(hub, home, PUSH, REPO, PLACE, *map(str, saved.values()), token="hf_someone")


@pytest.fixture(scope="module")
def words(saved, pushed) -> list[str]:
    """What the processes below are told."""
    folder = saved["second"]
    for code in folder.glob("*.py"):
        shutil.copy(code, folder.parent)
    return [json.dumps(TEXTS), json.dumps(AUTO_CLASSES), REPO, PLACE, str(folder), pushed["first"], str(folder.parent)]


@pytest.fixture(scope="module")
def expected(saved) -> dict[str, dict]:
    """What each of the two gives, opened with the package."""
    told = {}
    for name, folder in saved.items():
        model = PlainformerForSequenceClassification.from_pretrained(folder)
        classes = [auto.replace("AutoModel", "Plainformer") for auto in AUTO_CLASSES]
        classes = ["PlainformerModel" if name == "Plainformer" else name for name in classes]
        ids = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)(TEXTS)["input_ids"]
        told[name] = {"config": "transformers_modules", "ids": ids, "model": digest(model), "opened": classes}
    return told


def start(hub: HubServer, home: Path, places: dict[str, str], words: list[str], *prefix: str, **env: str):
    """A stranger's process that writes what it found at the places to `home/NAME.json`."""
    home.mkdir(exist_ok=True)
    lines = [f"results = {{{', '.join(f'{name!r}: {place}' for name, place in places.items())}}}"]
    code = "\n".join([STRANGER, COMMON, OPEN, *lines, "print(json.dumps(results))"])
    command = [*prefix, sys.executable, "-c", code, *words]
    return start_process(command, cwd=home, env={**environment(hub, home), **env})


def finish(process: subprocess.Popen) -> dict[str, dict]:
    done = finish_process(process)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("caches") / "home"


@pytest.fixture(scope="module")
def found(hub, home, words) -> dict[str, dict]:
    """What a stranger with empty caches finds at every place."""
    return finish(start(hub, home, WHERE, words))


@pytest.mark.parametrize("place", WHERE)
def test_a_stranger_opens_it_wherever_it_lies(place, found, expected):
    assert found[place] == expected["first" if place == "revision" else "second"]


def test_what_was_opened_once_opens_offline_in_caches_that_nobody_may_write(hub, home, words, found, expected):
    hidden = [*_read_only(home)]
    try:
        without_rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
        if without_rights and not shutil.which("setpriv"):
            pytest.skip("the superuser may write everywhere, and there is no setpriv to run without that right")
        again = start(hub, home, WHERE, words, *without_rights, HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
        for place, result in finish(again).items():
            assert result == expected["first" if place == "revision" else "second"], place
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
    assert digest(model) == digest(PlainformerForSequenceClassification.from_pretrained(saved["second"]))


def test_several_processes_open_it_at_once(hub, tmp_path, words, expected):
    """They share caches that are empty at first, each copying the code and downloading the files."""
    place = {"it": WHERE["subfolder"]}
    for result in [finish(process) for process in [start(hub, tmp_path / "home", place, words) for _ in range(3)]]:
        assert result["it"] == expected["second"]
