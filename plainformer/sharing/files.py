"""Which files of a saved model go to the Hub, which stay behind, and which must not be there at all.

Needs nothing but Python. Nothing in the folder is run, unpickled or changed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path


class Refusal(Exception):
    """What was wrong, its value, and the remedy."""


# Patterns of names, and why what has such a name stays behind.
FOLDERS_THAT_STAY = {
    "checkpoint-*": "an intermediate checkpoint (push it by itself if it is the one you mean)",
    "last-checkpoint": "an intermediate checkpoint",
    "runs": "logs of TensorBoard",
    "wandb": "logs of Weights & Biases",
    "mlruns": "logs of MLflow",
    "__pycache__": "compiled code",
    ".*": "hidden",
}
FILES_THAT_STAY = {
    "training_args.bin": "a pickle that Trainer writes; it can hold paths and the token of your account",
    "optimizer.pt": "state of the optimizer, a pickle",
    "optimizer.bin": "state of the optimizer, a pickle",
    "scheduler.pt": "state of the scheduler, a pickle",
    "scaler.pt": "state of the gradient scaler, a pickle",
    "rng_state*.pth": "random states, pickles",
    "trainer_state.json": "Trainer's log; it can hold paths, and its figures are in the card",
    "recipe.json*": "the settings of a recipe's run; they can hold paths",
    "predictions.*": "a recipe's answers, beside texts of your test data",
    "nbest_predictions.json": "a recipe's answers, beside texts of your test data",
    "null_odds.json": "a recipe's answers to your test data",
    "quickstart.json": "what the quickstart compares with; its figures are in the card",
    ".gitattributes": "the Hub keeps its own",
    ".*": "hidden",
    "*.tmp": "temporary",
    "*~": "temporary",
}
# Other file types (.npy, .tar.gz, .h5, .msgpack, ...) are not uploaded, because we cannot check them.
NAMES_THAT_GO = (
    "*.safetensors *.onnx *.json *.jsonl *.txt *.md *.py *.csv *.tsv *.yaml *.yml *.png *.jpg *.jpeg *.gif *.svg "
    "*.webp LICENSE* NOTICE* COPYING* AUTHORS* CITATION*"
).split()
SECRET_NAMES = (
    ".env .env.* *.env *.pem *.key *.p12 *.pfx *.jks *.kdbx id_rsa* id_dsa* id_ecdsa* id_ed25519* .netrc _netrc .npmrc "
    ".pypirc .git-credentials .htpasswd credentials credentials.json client_secret*.json secrets.* stored_tokens"
).split()
SECRETS = {
    "a Hugging Face token": rb"\bhf_[A-Za-z0-9]{30,}",
    "a private key": rb"-----BEGIN [A-Z ]*PRIVATE KEY-----",
    "an AWS key": rb"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "a GitHub token": rb"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})",
    "a GitLab token": rb"\bglpat-[A-Za-z0-9_-]{20}",
    "a Slack token": rb"\bxox[abprs]-[A-Za-z0-9-]{20,}",
    "an API key": rb"\b(?:sk-[A-Za-z0-9_-]{32,}|AIza[A-Za-z0-9_-]{35})",
}
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".dill")
MODEL_TYPES = ("plainformer", "plainformer-seq2seq")
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt")


@dataclass
class Files:
    """`goes`: where each file of the future repository lies now. `stays`, `refused`: names, and the reasons."""

    goes: dict[str, Path] = field(default_factory=dict)
    stays: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def sort_files(folder: Path) -> Files:
    """Every file of the folder, or the folder it lies in, as one that goes, stays or is refused."""
    files = Files()
    for name, path in walk(folder, files.stays):
        if reason := find_secret_name(name):
            files.refused[name] = reason
        elif reason := find_pattern(path.name, FILES_THAT_STAY):
            files.stays[name] = reason
        elif not path.is_file():
            files.refused[name] = "no file, or a link that leads nowhere: remove it"
        elif reason := find_pickle(path) or find_secret(path):
            files.refused[name] = reason
        elif not any(fnmatch(path.name, pattern) for pattern in NAMES_THAT_GO):
            files.stays[name] = "no kind of file that a model consists of; if it is to be there, upload it: hf upload"
        else:
            files.goes[name] = path
    return files


def walk(folder: Path, stays: dict[str, str]) -> Iterator[tuple[str, Path]]:
    """Files by their path in the repository, sorted; folders that stay are noted and not entered."""
    for path in sorted(folder.iterdir()):
        pending = [path]
        while pending:
            path = pending.pop()
            name = path.relative_to(folder).as_posix()
            if not path.is_dir():
                yield name, path
            elif path.is_symlink():
                stays[f"{name}/"] = "a link to another folder"
            elif reason := find_pattern(path.name, FOLDERS_THAT_STAY):
                stays[f"{name}/"] = reason
            else:
                pending += sorted(path.iterdir(), reverse=True)


def find_pattern(name: str, patterns: dict[str, str]) -> str | None:
    """The reason beside the first pattern that a name fits; None where none fits."""
    return next((reason for pattern, reason in patterns.items() if fnmatch(name, pattern)), None)


def find_secret_name(name: str) -> str | None:
    """Why a file of this name must not be uploaded; None where it may."""
    if any(fnmatch(Path(name).name.lower(), pattern) for pattern in SECRET_NAMES):
        return "by its name it holds secrets: move it out of the folder"
    return None


def find_pickle(path: Path) -> str | None:
    """Pickles run code when they are opened, whatever their name; torch writes them bare or in a zip archive."""
    with open(path, "rb") as file:
        start = file.read(4)
    if path.name.startswith("pytorch_model") and path.suffix == ".bin":
        return "weights as a pickle: save them again with save_pretrained, as safetensors, and delete this file"
    bare = start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    if path.suffix.lower() in PICKLE_SUFFIXES or bare:
        return "a pickle, which runs code when it is opened: delete it or move it out of the folder"
    if start[:2] == b"PK" and zipfile.is_zipfile(path):
        return "a zip archive, which can hold pickles: unpack it, or move it out of the folder"
    return None


def find_secret(path: Path) -> str | None:
    """Something in a file that looks like a key. Weights are numbers, so they are not searched."""
    if path.suffix == ".safetensors":
        return None
    content = path.read_bytes()
    for what, pattern in SECRETS.items():
        if match := re.search(pattern, content):
            line = content.count(b"\n", 0, match.start()) + 1
            return f"line {line} holds what looks like {what}: remove it there, and revoke it if it was shared before"
    return None


def check_model(folder: Path, files: Files, *, needs_tokenizer: bool) -> dict:
    """The configuration, if the files that go are a Plainformer with its weights, code and tokenizer."""
    if files.refused:
        listed = "".join(f"\n  {name}: {reason}" for name, reason in files.refused.items())
        raise Refusal(f"{folder} holds what must not be shared, and nothing was uploaded:{listed}")
    config = read_config(folder, files)
    check_weights(folder, files)
    check_code(folder, files, config)
    if needs_tokenizer and not has_tokenizer(files):
        raise Refusal(
            f"{folder} has no tokenizer ({' or '.join(TOKENIZER_FILES)}), and without one nobody can use the model: "
            f"tokenizer.save_pretrained({str(folder)!r}). If its input is no text, say --no_tokenizer."
        )
    return config


def has_tokenizer(files: Files) -> bool:
    """Whether the folder holds a tokenizer."""
    return any(name in files.goes for name in TOKENIZER_FILES)


def read_config(folder: Path, files: Files) -> dict:
    """What `config.json` says; a Refusal where it is missing, no JSON object, or of another architecture."""
    if "config.json" not in files.goes:
        checkpoints = [name for name in files.stays if name.startswith("checkpoint-")]
        hint = f" It has {', '.join(checkpoints)}: one of those, perhaps?" if checkpoints else ""
        raise Refusal(
            f"{folder} holds no saved model: there is no config.json in it. Name the folder that "
            f"model.save_pretrained or Trainer.save_model wrote.{hint}"
        )
    try:
        config = json.loads(files.goes["config.json"].read_text(encoding="utf-8"))
        model_type = config.get("model_type")
    except (ValueError, AttributeError) as error:
        raise Refusal(f"{folder}/config.json is not a JSON object ({error}): save the model again.") from error
    if model_type not in MODEL_TYPES:
        known = " or ".join(map(repr, MODEL_TYPES))
        raise Refusal(
            f"{folder}/config.json has model_type={model_type!r}, not {known}: this script checks Plainformer models "
            "only. A BERT checkpoint is adopted with plainformer.from_bert."
        )
    return config


def check_weights(folder: Path, files: Files) -> None:
    """A Refusal unless all weights that the folder should have are there, as safetensors."""
    if WEIGHTS in files.goes:
        return
    if WEIGHTS_INDEX not in files.goes:
        raise Refusal(f"{folder} has no weights, neither {WEIGHTS} nor {WEIGHTS_INDEX}: save the model again.")
    shards = set(json.loads(files.goes[WEIGHTS_INDEX].read_text(encoding="utf-8"))["weight_map"].values())
    if missing := sorted(shards - files.goes.keys()):
        raise Refusal(f"{folder} lacks {', '.join(missing)}, which {WEIGHTS_INDEX} names: save the model again.")


def check_code(folder: Path, files: Files, config: dict) -> None:
    """What transformers itself says of missing code is that the Hub has no such file."""
    remedy = f"Open it where plainformer is installed and save it again: model.save_pretrained({str(folder)!r})."
    auto_map = config.get("auto_map")
    if not auto_map:
        raise Refusal(f"{folder}/config.json has no auto_map, so a stranger would not find the code. {remedy}")
    for auto, place in auto_map.items():
        repository, _, place = place.rpartition("--")
        if repository:
            raise Refusal(f"{folder}/config.json takes {auto} from the repository {repository}. {remedy}")
        if (name := f"{place.partition('.')[0]}.py") not in files.goes:
            raise Refusal(f"{folder}/config.json names {name} for {auto}, and that file is not there. {remedy}")


def stage(files: Files, target: Path) -> None:
    """The files that go, and no other, in a folder of their own: linked where the disk allows it, copied elsewhere."""
    for name, path in files.goes.items():
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path.resolve(), place)
        except OSError:
            shutil.copyfile(path, place)
