"""The Hub: what is pushed with the real client is there for a stranger, whole or not at all.

The Hub is a server of our own on loopback (helpers/hub_server.py). Pushing and loading happen in other processes, each
with empty caches, since the client reads its environment once. They take seconds, so each does many jobs.
"""

import json
import shutil
import subprocess
from argparse import Namespace
from email import message_from_string
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers.hub import AUTO_CLASSES, ROOT, SCRIPTS, TEXTS, TOKENS, digest, environment, run_code
from helpers.hub_server import HubServer
from helpers.models import make_model
from helpers.processes import fast_python, finish_process, run_process, start_process

from plainformer import PlainformerForSequenceClassification, train_tokenizer
from plainformer.positions_plainformer import POSITION_KINDS, PositionKind
from plainformer.sharing import card as cards
from plainformer.sharing import files as shareable
from plainformer.sharing import push as pushing

CODE = {"modeling_plainformer.py", "configuration_plainformer.py", "positions_plainformer.py"}
REPORT = {
    "class": "PlainformerForSequenceClassification",
    "auto": "AutoModelForSequenceClassification",
    "parameters": 16973,
    "dtype": "float32",
    "choices": {"position_embedding_type": "sinusoidal", "pre_norm": True, "max_position_embeddings": 16},
    "labels": ["insect", "fruit", "neither"],
    "problem_type": None,
    "max_length": 16,
    "opened": ["AutoModel"],
}

# Processes.

PUSH = """
from plainformer import PlainformerForSequenceClassification, train_tokenizer
model = PlainformerForSequenceClassification.from_pretrained(sys.argv[1])
tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=False)
results = {"first": digest(model.state_dict()), "first sha": model.push_to_hub("someone/model").oid}
tokenizer.push_to_hub("someone/model")
model.push_to_hub("someone/private", private=True)
with torch.no_grad():
    model.classifier.bias += 1
results |= {"second": digest(model.state_dict()), "encoder": digest(model.plainformer.state_dict())}
model.push_to_hub("someone/model")
"""
# Opens everything; then fine-tunes what was pushed, pushes that with Trainer, and back with the model's own method.
LOAD_AND_GO_ON = """
model = load("someone/model")
tokenizer = transformers.AutoTokenizer.from_pretrained("someone/model", trust_remote_code=True)
texts = json.loads(sys.argv[1])
results = {
    "class": type(model).__name__,
    "module": type(model).__module__,
    "main": digest(model.state_dict()),
    "revision": weights("someone/model", revision=sys.argv[2]),
    "encoder": weights("someone/model", "AutoModel"),
    "ids": tokenizer(texts)["input_ids"],
    "opened": {auto: type(load("someone/model", auto)).__name__ for auto in json.loads(sys.argv[3])},
    "without token": attempt(weights, "someone/private", token=False),
    "with the token of another": attempt(weights, "someone/private", token="hf_other"),
    "with token": attempt(weights, "someone/private", token="hf_someone"),
}
rows = [{**tokenizer(text), "labels": index} for index, text in enumerate(texts)]
arguments = transformers.TrainingArguments(
    output_dir="tuned", max_steps=1, per_device_train_batch_size=1, report_to=[], use_cpu=True, disable_tqdm=True,
    learning_rate=0.1, hub_model_id="someone/tuned", hub_token="hf_someone",
)
trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer)
trainer.train()
trainer.push_to_hub()
model.push_to_hub("someone/model", token="hf_someone", commit_message="fine-tuned")
results["tuned"] = digest(model.state_dict())
"""
# The last stranger: opens what was pushed, and checks folders as the script does.
LOAD_AND_CHECK = """
sys.path.append(sys.argv[1])
import stranger
from pathlib import Path
results = {name: attempt(weights, repo, revision=revision) for name, repo, revision in json.loads(sys.argv[2])}
for folder in sorted(Path(sys.argv[3]).iterdir()):
    try:
        results[folder.name] = stranger.check(folder, with_tokenizer=True)
    except stranger.Problem as problem:
        results[folder.name] = str(problem)
"""
# push_to_hub.py once per line of the input, but for the check of the folder, which takes seconds and is tested by
# itself. The answer is a line with the exit status and the output.
UNCHECKED = """
import contextlib, io, json, os, sys
sys.path.insert(0, {scripts!r})
import huggingface_hub.utils
import push_to_hub
from huggingface_hub import constants
from plainformer.sharing import push

push.check_as_stranger = lambda *args, **options: json.loads({report!r})
forget_connections = getattr(huggingface_hub.utils, "reset_sessions", None) or huggingface_hub.utils.close_session
for line in sys.stdin:
    words, token, settings = json.loads(line)
    before = {{name: getattr(constants, name) for name in settings}}
    output, status = io.StringIO(), 0
    os.environ.pop("HF_TOKEN", None)
    os.environ.update({{"HF_TOKEN": token}} if token else {{}})
    sys.argv[1:] = words
    try:
        for name, value in settings.items():
            setattr(constants, name, value)
        forget_connections()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            push_to_hub.main()
    except SystemExit as error:
        status = 1
        print(error, file=output)
    finally:
        for name, value in before.items():
            setattr(constants, name, value)
        forget_connections()
    print(json.dumps([status, output.getvalue()]), flush=True)
"""


class Pusher:
    """A process that pushes again and again; starting one takes seconds."""

    def __init__(self, hub: HubServer, home: Path) -> None:
        code = UNCHECKED.format(scripts=str(SCRIPTS), report=json.dumps(REPORT))
        env = environment(hub, home) | {"PYTHONPATH": str(ROOT)}
        self.process = start_process([fast_python(), "-c", code], env=env, stdin=subprocess.PIPE, stderr=None)

    def start(self, *words: object, token: str | None = "hf_someone", **settings) -> None:
        """Begin to push; `settings` are constants of huggingface_hub."""
        print(json.dumps([[*map(str, words)], token, settings]), file=self.process.stdin, flush=True)

    def push(self, *words: object, **options) -> tuple[int, str]:
        """Exit status and output."""
        self.start(*words, **options)
        return tuple(json.loads(self.process.stdout.readline()))


# Folders, and the Hub.


@pytest.fixture(scope="module")
def hub():
    with HubServer(TOKENS) as server:
        yield server


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A classifier and its tokenizer, as save_pretrained leaves them."""
    folder = tmp_path_factory.mktemp("saved") / "my.model-v1"
    tokenizer = train_tokenizer(TEXTS * 10, vocab_size=60, model_max_length=16, show_progress=False)
    labels = dict(enumerate(REPORT["labels"]))
    sizes = {"vocab_size": len(tokenizer), "position_embedding_type": "sinusoidal", "pre_norm": True}
    make_model(PlainformerForSequenceClassification, **sizes, id2label=labels).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(saved, tmp_path / "folder"))


def leave_traces_of_training(folder: Path) -> None:
    """What Trainer and its companions leave beside a model."""
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state_0.pth"):
        torch.save({"token": "hf_" + "x" * 34}, folder / name)
    for name in ("checkpoint-3/config.json", "checkpoint-3/pytorch_model.bin", "runs/host/events.out"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    log = [{"loss": 1.5, "step": 1}, {"eval_f1": 0.25, "epoch": 1.0}, {"eval_f1": 0.75, "epoch": 2.0}]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log, "best_model_checkpoint": "/home/x"}))
    (folder / "eval_results.json").write_text(json.dumps({"eval_accuracy": 0.93125, "eval_runtime": 3.5}))


@pytest.fixture(scope="module")
def pusher(hub, tmp_path_factory):
    pusher = Pusher(hub, tmp_path_factory.mktemp("pusher"))
    yield pusher
    finish_process(pusher.process)  # it ends with its input


# model.push_to_hub, tokenizer.push_to_hub and Trainer.push_to_hub.


@pytest.fixture(scope="module")
def shared(hub, saved, tmp_path_factory) -> SimpleNamespace:
    """Pushed twice by one who has the package; opened, fine-tuned and pushed by a stranger."""
    root = tmp_path_factory.mktemp("shared")
    pushed = run_code(hub, root / "1", PUSH, str(saved), token="hf_someone", package=True)
    args = json.dumps(TEXTS), pushed["first sha"], json.dumps(AUTO_CLASSES)
    stranger = run_code(hub, root / "2", LOAD_AND_GO_ON, *args)
    return SimpleNamespace(hub=hub, pushed=pushed, stranger=stranger)


@pytest.fixture(scope="module")
def last(hub, shared, story, faulty, tmp_path_factory) -> dict:
    """What another stranger finds when all is done: pushed models, and folders of which all but one have a fault."""
    first, home = shared.pushed["first sha"], tmp_path_factory.mktemp("last") / "home"
    wanted = [("tuned", "someone/tuned", "main"), ("back", "someone/model", "main"), ("first", "someone/model", first)]
    wanted += [("script", "someone/script", "main"), ("script first", "someone/script", story.after_first)]
    sharing = str(ROOT / "plainformer" / "sharing")
    return run_code(hub, home, LOAD_AND_CHECK, sharing, json.dumps(wanted), str(faulty))


def test_push_puts_the_code_beside_the_weights(shared):
    for name in ("someone/model", "someone/private", "someone/tuned"):
        files = shared.hub.repos[name].files()
        assert CODE | {"config.json", "model.safetensors"} <= files.keys(), name
        for code in files.keys() & {path.name for path in (ROOT / "plainformer").iterdir()}:
            assert files[code] == (ROOT / "plainformer" / code).read_bytes(), code
        assert set(json.loads(files["config.json"])["auto_map"]) == {*AUTO_CLASSES, "AutoConfig"}


def test_stranger_opens_what_was_pushed(shared, saved):
    pushed, stranger = shared.pushed, shared.stranger
    assert stranger["module"].startswith("transformers_modules.someone.model.")
    assert stranger["main"] == pushed["second"]
    assert stranger["encoder"] == pushed["encoder"]
    assert list(stranger["opened"]) == AUTO_CLASSES
    assert all(name.startswith("Plainformer") for name in stranger["opened"].values())
    from transformers import AutoTokenizer

    assert stranger["ids"] == AutoTokenizer.from_pretrained(saved, trust_remote_code=False)(TEXTS)["input_ids"]


def test_stranger_opens_an_older_version(shared, last):
    assert shared.pushed["first"] != shared.pushed["second"]
    assert shared.stranger["revision"] == last["first"] == shared.pushed["first"]


def test_private_repository_wants_its_token(shared):
    assert shared.hub.repos["someone/private"].private
    assert shared.stranger["with token"] == shared.pushed["first"]
    for refused in ("without token", "with the token of another"):
        assert shared.stranger[refused].startswith("OSError: someone/private is not a local folder")


def test_stranger_goes_on_and_pushes_again(shared, last):
    assert shared.stranger["tuned"] != shared.stranger["main"]
    assert last["tuned"] == last["back"] == shared.stranger["tuned"]


def test_trainer_uploads_its_arguments_and_the_token_in_them(shared):
    """docs/sharing.md warns of it: should this fail one day, the warning can go."""
    assert b"hf_someone" in shared.hub.repos["someone/tuned"].files()["training_args.bin"]


def test_the_server_knew_every_request(shared, last):
    assert shared.hub.unknown == []


# The script, from end to end.


def test_dry_run_checks_and_lists_and_uploads_nothing(hub, folder, tmp_path):
    """By a copy of the script in an empty folder: the package is all that it needs."""
    leave_traces_of_training(folder)
    before = len(hub.requests)
    (tmp_path / "empty").mkdir()
    script = shutil.copy(SCRIPTS / "push_to_hub.py", tmp_path / "empty")
    options = ["--dry_run", "--license", "mit", "--language", "en", "--dataset", "someone/films"]
    env = environment(hub, tmp_path / "home") | {"PYTHONPATH": str(ROOT)}
    command = [fast_python(), script, folder, "someone/dry", *options]
    done = run_process(command, cwd=tmp_path / "empty", env=env, stderr=subprocess.STDOUT)
    output = done.stdout
    assert done.returncode == 0, output
    assert len(hub.requests) == before and "nothing was uploaded" in output
    assert f"opened by AutoConfig, {', '.join(sorted(AUTO_CLASSES))}, AutoTokenizer" in output
    goes, stays = output.partition("these stay here:")[::2]
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "checkpoint-3/", "runs/"):
        assert f"  {name}: " in stays and f" {name}\n" not in goes
    assert "  trainer_state.json: " in stays
    for name in (*CODE, "config.json", "model.safetensors", "tokenizer.json", "README.md", "eval_results.json"):
        assert f"B  {name}\n" in goes, name

    card = (folder / "README.md").read_text()
    for part in ("license: mit", "- en", "- someone/films", "pipeline_tag: text-classification", "`insect`, `fruit`"):
        assert part in card, part
    assert "| `position_embedding_type` | `sinusoidal` |" in card
    assert "| eval_accuracy | 0.9313 | `eval_results.json` |" in card
    assert "| eval_f1 | 0.75 | `trainer_state.json` |" in card
    assert "runtime" not in card and str(folder) not in card
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".push_to_hub")] == []


def commit_of(output: str) -> str:
    """The hash in the loading lines that the script prints at the end."""
    return output.rpartition('revision="')[2].partition('"')[0]


def change(folder: Path, **save_options) -> None:
    """The same model with other weights."""
    model = PlainformerForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        model.classifier.bias += 1
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, **save_options)


@pytest.fixture(scope="module")
def story(hub, pusher, saved, tmp_path_factory) -> SimpleNamespace:
    """A version; three pushes of the next one that break off, and one that does not."""
    root = tmp_path_factory.mktemp("story")
    folder = Path(shutil.copytree(saved, root / "folder"))
    leave_traces_of_training(folder)
    repo, target = "someone/script", (folder, "someone/script")
    story = SimpleNamespace(first=weights_of(folder), outputs={}, broken={})
    status, story.pushed = pusher.push(*target)
    assert status == 0, story.pushed
    story.after_first = hub.repos[repo].branches["main"]

    change(folder, max_shard_size="20KB")  # in several files, so that one is up when the next one fails
    story.second = weights_of(folder)
    hub.obstacle = "upload hangs"
    interrupted = Pusher(hub, root / "home")
    interrupted.start(*target)
    assert hub.hanging.wait(timeout=300)
    interrupted.process.kill()
    interrupted.process.communicate()
    story.broken["upload hangs"] = hub.repos[repo].branches["main"]
    for hub.obstacle in ("no space", "commit breaks"):
        status, story.outputs[hub.obstacle] = pusher.push(*target)
        assert status == 1, story.outputs[hub.obstacle]
        story.broken[hub.obstacle] = hub.repos[repo].branches["main"]
    hub.obstacle = None
    status, story.pushed_again = pusher.push(*target)
    assert status == 0, story.pushed_again
    story.after_second = hub.repos[repo].branches["main"]
    status, story.pushed_in_vain = pusher.push(*target)
    assert status == 0, story.pushed_in_vain
    status, story.pushed_to_branch = pusher.push(*target, "--revision", "dev", "--commit_message", "a try")
    assert status == 0, story.pushed_to_branch
    story.repo = hub.repos[repo]
    return story


def weights_of(folder: Path) -> str:
    return digest(PlainformerForSequenceClassification.from_pretrained(folder).state_dict())


def test_script_pushes_in_one_commit_and_says_how_to_load_it(story, hub):
    assert "logged in as someone" in story.pushed
    assert f"{hub.url}/someone/script/tree/main" in story.pushed
    assert commit_of(story.pushed) == story.after_first
    line = (
        'model = AutoModelForSequenceClassification.from_pretrained("someone/script", trust_remote_code=True, revision='
    )
    assert f'{line}"{story.after_first}")' in story.pushed
    first = story.repo.commits[story.after_first]
    assert story.repo.commits[first.parent].message == "initial commit"
    assert CODE | {"config.json", "README.md", "tokenizer.json", "model.safetensors"} <= first.files.keys()
    assert not any(name.endswith((".bin", ".pt", ".pth")) or "/" in name for name in first.files)


@pytest.mark.parametrize("obstacle", ["upload hangs", "no space", "commit breaks"])
def test_push_that_breaks_off_changes_nothing(obstacle, story, last):
    assert story.broken[obstacle] == story.after_first
    assert last["script first"] == story.first


def test_push_that_breaks_off_says_why(story, hub):
    assert "error: the Hub refused with status 507." in story.outputs["no space"]
    assert f"error: {hub.url} cannot be reached, or broke off" in story.outputs["commit breaks"]
    for output in story.outputs.values():
        assert "Traceback" not in output
        assert "The repository holds what it held before" in output


def test_next_push_replaces_the_weights(story, last):
    """In shards this time: a model.safetensors that stays would be preferred to them by every loader."""
    assert "removed, as they belong to the old version, which keeps them: model.safetensors" in story.pushed_again
    assert story.repo.commits[story.after_second].parent == story.after_first
    assert last["script"] == story.second != story.first


def test_push_of_the_same_is_no_commit(story):
    assert "nothing has changed" in story.pushed_in_vain
    assert story.repo.branches["main"] == story.after_second


def test_push_to_a_branch(story):
    assert "/tree/dev" in story.pushed_to_branch
    assert story.repo.branches["dev"] == story.after_second  # the same files as main, from where it starts


GIT = {"url": "https://git.example/p.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
FOLDER = {"url": "file:///somewhere", "dir_info": {}}


@pytest.mark.parametrize(
    ("metadata", "source", "address"),
    [
        ("Project-URL: Source, https://site.example/p\n", GIT, "version 1.2, https://site.example/p"),
        ("Home-page: https://site.example\n", None, "version 1.2, https://site.example"),
        ("", GIT, 'version 1.2, `pip install "git+https://git.example/p.git@abc"`'),
        ("", FOLDER, "version 1.2, which names no address: ask the author for its source"),
        ("", {**GIT, "url": "file:///somewhere/p.git"}, "version 1.2, which names no address"),
        ("", None, "version 1.2, which names no address"),
    ],
    ids=["project-url", "home-page", "git", "folder", "local-git", "nothing"],
)
def test_card_says_where_the_package_is(metadata, source, address, monkeypatch):
    text = json.dumps(source) if source else None
    package = SimpleNamespace(metadata=message_from_string(metadata), version="1.2", read_text=lambda name: text)
    monkeypatch.setattr(cards, "distribution", lambda name: package)
    section = "\n".join(cards.explain_loading(cards.Card("someone/model"), REPORT))
    assert f"With the package plainformer installed ({address}" in section


def test_card_that_somebody_wrote_stays(hub, pusher, folder):
    """In the folder and in the repository; ours is written anew, until it is edited."""
    target = folder, "someone/card"
    card, mine = folder / "README.md", "# Mine\n"

    def in_repository() -> str:
        return hub.repos["someone/card"].files()["README.md"].decode()

    assert pusher.push(*target)[0] == 0
    ours = in_repository()
    assert cards.is_ours(ours) and card.read_text() == ours
    assert pusher.push(*target, "--license", "mit")[0] == 0
    assert "license: mit" in in_repository() and "license" not in ours

    card.write_text(in_repository().replace("## Data", "## What I read"))
    status, output = pusher.push(*target, "--license", "apache-2.0")
    assert status == 0 and "it goes as it is" in output
    assert in_repository() == card.read_text() and "license: mit" in in_repository()

    repo = hub.repos["someone/card"]
    card.unlink()
    files = repo.commits[repo.branches["main"]].files
    repo.add("main", "edited on the site", {**files, "README.md": type(files["README.md"])(mine.encode())})
    status, output = pusher.push(*target)
    assert status == 0 and "in the repository is not ours" in output
    assert in_repository() == mine
    assert pusher.push(*target, "--replace_card")[0] == 0
    assert cards.is_ours(in_repository())


@pytest.mark.parametrize(
    "options, settings, message",
    [
        ({"token": None}, {}, "you are not logged in: run `hf auth login`"),
        ({"token": "hf_nobody"}, {}, "the Hub does not know this token"),
        ({"token": "hf_other"}, {}, "your account or your token may not write to someone/new"),
        ({}, {"ENDPOINT": "http://127.0.0.1:9"}, "http://127.0.0.1:9 cannot be reached"),
        ({}, {"HF_HUB_OFFLINE": True}, "the Hub cannot be asked while HF_HUB_OFFLINE=1 is set: unset it."),
    ],
    ids=["no token", "unknown token", "no permission", "no server", "offline"],
)
def test_push_names_what_the_hub_refuses(options, settings, message, hub, pusher, folder):
    status, output = pusher.push(folder, "someone/new", **options, **settings)
    assert status == 1, output
    assert f"error: {message}" in output
    assert "Traceback" not in output
    assert "someone/new" not in hub.repos


def test_private_is_private(hub, pusher, folder):
    target = folder, "someone/secret"
    assert pusher.push(*target, "--private")[0] == 0
    assert hub.repos["someone/secret"].private
    hub.repos["someone/secret"].private = False
    status, output = pusher.push(*target, "--private")
    assert status == 1 and "someone/secret is public already" in output


# What the script refuses before it asks anybody.


def dry_run(folder: Path, repo: str = "someone/model", **options) -> None:
    defaults = {"dry_run": True, "no_tokenizer": False, "commit_message": "Upload model", "replace_card": False}
    card = {"license": None, "language": [], "dataset": []}
    pushing.run(Namespace(folder=folder, repo=repo, **{**defaults, **card, **options}))


def refusal(folder: Path, *args, **options) -> str:
    with pytest.raises(shareable.Refusal) as caught:
        dry_run(folder, *args, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    "repo", ["model", "some one/model", "a/b/c", "-a/b", "a/b--c", "a/..b", "a/b.git", "a/", "ü/b"]
)
def test_repository_needs_a_name_that_the_hub_takes(repo, folder):
    assert f"{repo!r} is no name of a repository: write OWNER/NAME" in refusal(folder, repo)


def test_folder_has_to_be_there(tmp_path):
    assert "does not exist" in refusal(tmp_path / "nothing")
    (tmp_path / "file").touch()
    assert "is not a folder" in refusal(tmp_path / "file")


def test_folder_has_to_hold_a_model(folder):
    (folder / "config.json").rename(folder / "kept")
    (folder / "checkpoint-7").mkdir()
    assert "there is no config.json in it" in (text := refusal(folder)) and "checkpoint-7" in text
    (folder / "config.json").write_text("[]")
    assert "is not a JSON object" in refusal(folder)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    assert "has model_type='bert', not 'plainformer'" in refusal(folder)


def test_folder_has_to_hold_the_weights(folder):
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    assert "has no weights" in refusal(folder)
    shards = {f"layer{index}": f"model-0000{index}-of-00002.safetensors" for index in (1, 2)}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert "lacks model-00002-of-00002.safetensors" in refusal(folder)


def test_folder_has_to_hold_the_code(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "modeling_plainformer.py").unlink()
    assert "names modeling_plainformer.py for AutoModel, and that file is not there" in refusal(folder)
    auto_map = {"AutoModel": "other/repo--modeling_plainformer.PlainformerModel"}
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": auto_map}))
    assert "takes AutoModel from the repository other/repo" in refusal(folder)
    (folder / "config.json").write_text(json.dumps({**config, "auto_map": {}}))
    assert "has no auto_map" in refusal(folder)


def test_tokenizer_is_wanted_unless_no_tokenizer_is_given(folder, monkeypatch):
    seen = []
    report = {**REPORT, "max_length": None}
    monkeypatch.setattr(pushing, "check_as_stranger", lambda *_, with_tokenizer: seen.append(with_tokenizer) or report)
    dry_run(folder)
    for name in shareable.TOKENIZER_FILES:
        (folder / name).unlink(missing_ok=True)
    assert "has no tokenizer" in (text := refusal(folder)) and "--no_tokenizer" in text
    dry_run(folder, no_tokenizer=True)
    assert seen == [True, False]
    assert "AutoTokenizer" not in (folder / "README.md").read_text()


@pytest.mark.parametrize("name", [".env", "sub/server.pem", "id_rsa", "credentials.json", ".netrc", "prod.env"])
def test_secret_files_are_refused_by_name(name, folder):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("nothing in it")
    assert f"\n  {name}: by its name it holds secrets" in refusal(folder)


@pytest.mark.parametrize(
    "secret, kind",
    [
        ("hf_" + "aB3" * 12, "a Hugging Face token"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----", "a private key"),
        ("AKIA" + "Z9" * 8, "an AWS key"),
        ("ghp_" + "a1" * 18, "a GitHub token"),
        ("sk-" + "a1" * 20, "an API key"),
    ],
)
def test_secrets_are_refused_wherever_they_are(secret, kind, folder):
    with open(folder / "tokenizer_config.json", "a") as file:
        file.write(f"\n\n{secret}")
    text = refusal(folder)
    assert "tokenizer_config.json: line" in text and kind in text
    assert secret not in text  # what the script prints may be kept in a log


def test_pickles_are_refused_by_name_and_by_content(folder):
    import pickle

    torch.save({}, folder / "pytorch_model.bin")
    torch.save({}, folder / "notes.txt")
    torch.save({}, folder / "old.json", _use_new_zipfile_serialization=False)
    (folder / "vocabulary.model").write_bytes(pickle.dumps([1, 2]))
    (folder / "scores.pkl").write_bytes(b"anything")
    (folder / "training_args.bin.bin").touch()
    text = refusal(folder)
    assert "\n  pytorch_model.bin: weights as a pickle: save them again" in text
    assert "\n  notes.txt: a zip archive" in text
    for name in ("old.json", "vocabulary.model", "scores.pkl", "training_args.bin.bin"):
        assert f"\n  {name}: a pickle" in text
    for name in ("config.json", "model.safetensors", "tokenizer.json", "modeling_plainformer.py"):
        assert name not in text


def test_other_kinds_of_files_stay(folder):
    others = ("scores.npy", "all.tar.gz", "tf_model.h5", "flax_model.msgpack", "weights", "notes.TXT.old")
    for name in (*others, "LICENSE", "plot.png", "labels.csv"):
        (folder / name).write_text("(lp0\nI1\na.")  # a pickle of protocol 0, which looks like text
    files = shareable.sort_files(folder)
    assert not files.refused
    assert {"LICENSE", "plot.png", "labels.csv", "model.safetensors"} <= set(files.goes)
    assert all("no kind of file that a model consists of" in files.stays[name] for name in others)


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"train_file": "train.csv, SHA-256 0123"}, "Trained on a file of its author's: train.csv, SHA-256 0123."),
        ({"dataset_name": "imdb"}, "Trained on [imdb](https://huggingface.co/datasets/imdb)."),
        (None, "Not stated."),
    ],
)
def test_card_names_the_data_of_a_recipe(folder, settings, expected, monkeypatch):
    monkeypatch.setattr(pushing, "check_as_stranger", lambda *_, **__: REPORT)
    if settings:
        (folder / "recipe.json").write_text(json.dumps({"settings": settings}))
    dry_run(folder)
    assert f"## Data\n\n{expected}\n" in (folder / "README.md").read_text()


def test_links_are_followed_for_files_only(folder, tmp_path):
    target = (folder / "config.json").rename(tmp_path / "blob")
    (folder / "config.json").symlink_to(target)
    (folder / "elsewhere").symlink_to(tmp_path, target_is_directory=True)
    files = shareable.sort_files(folder)
    assert "config.json" in files.goes and files.stays == {"elsewhere/": "a link to another folder"}
    shareable.stage(files, tmp_path / "stage")
    staged = tmp_path / "stage" / "config.json"
    assert not staged.is_symlink() and staged.read_bytes() == target.read_bytes()
    (folder / "nowhere.json").symlink_to(tmp_path / "missing")
    assert "nowhere.json: no file" in refusal(folder)


# The check of the folder, in its own process: what no look at the names of files can tell.


FAULTS = {
    "missing": "1 missing keys (classifier.weight)",
    "unexpected": "1 unexpected keys (extra.weight)",
    "nan": "AutoModelForSequenceClassification: the model gives NaN",
    "sizes": "vocab_size=40: they do not belong together",
    "class": "a MyOwnClassifier was saved",
    "code": "fails for a stranger",
}


@pytest.fixture(scope="module")
def faulty(saved, tmp_path_factory) -> Path:
    """A good folder, and ones with one fault each."""
    from safetensors.torch import load_file, save_file

    root = tmp_path_factory.mktemp("faulty")
    folders = {name: Path(shutil.copytree(saved, root / name)) for name in ("good", *FAULTS)}

    def edit_config(name: str, **values) -> None:
        config = json.loads((folders[name] / "config.json").read_text())
        (folders[name] / "config.json").write_text(json.dumps({**config, **values}))

    def edit_weights(name: str, edit) -> None:
        weights = load_file(folders[name] / "model.safetensors")
        edit(weights)
        save_file(weights, folders[name] / "model.safetensors", {"format": "pt"})

    edit_weights("missing", lambda weights: weights.pop("classifier.weight"))
    edit_weights("unexpected", lambda weights: weights.update({"extra.weight": torch.ones(2)}))
    edit_weights("nan", lambda weights: weights["classifier.bias"].fill_(float("nan")))
    edit_config("sizes", vocab_size=40)
    edit_config("class", architectures=["MyOwnClassifier"])
    (folders["code"] / "positions_plainformer.py").unlink()
    return root


def test_check_describes_a_good_folder(last):
    report = last["good"]
    for name in ("class", "auto", "dtype", "labels", "max_length"):
        assert report[name] == REPORT[name]
    assert set(report["opened"]) == {*AUTO_CLASSES, "AutoConfig", "AutoTokenizer"}


@pytest.mark.parametrize("fault", FAULTS)
def test_check_finds(fault, last):
    assert FAULTS[fault] in last[fault]


def test_a_tokenizer_that_cuts_too_late_is_refused():
    """Where the kind of positions has a limit."""
    choices = {**REPORT["choices"], "position_embedding_type": "learned"}
    pushing.check_length({**REPORT, "choices": choices})
    for kind, max_length in (("learned", None), ("sinusoidal", 17)):
        pushing.check_length({"choices": {**choices, "position_embedding_type": kind}, "max_length": max_length})
    with pytest.raises(shareable.Refusal, match="learned positions end at max_position_embeddings=16: long texts"):
        pushing.check_length({"choices": choices, "max_length": 17})


def test_card_describes_any_kind_of_position(monkeypatch):
    monkeypatch.setitem(POSITION_KINDS, "toy", PositionKind("toy positions", has_limit=True))
    expected = {"learned": "learned positions (at most 16 tokens)", "toy": "toy positions (at most 16 tokens)"}
    expected |= {"sinusoidal": "sinusoidal positions", "none": "no position embedding"}
    for kind, text in expected.items():
        assert cards.position_text({"position_embedding_type": kind, "max_position_embeddings": 16}) == text
    drawn = {"position_embedding_type": "rotary", "rope_theta": 500.0, "randomize_positions": 2048}
    assert cards.position_text(drawn) == "rotary positions, in training drawn from 2,048"
    assert [name for name, _ in cards.list_choices(drawn)] == [f"`{name}`" for name in drawn]
    drawn["position_embedding_type"] = "alibi"
    assert "`rope_theta`" not in dict(cards.list_choices(drawn))
