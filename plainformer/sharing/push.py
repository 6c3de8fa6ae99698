"""Push a saved model to the Hub in one commit, after a check in a clean process: the steps of push_to_hub.py."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

from ..positions_plainformer import POSITION_KINDS
from . import stranger
from .card import Card, is_ours, loading_lines, write_card
from .files import Files, Refusal, check_model, has_tokenizer, sort_files, stage

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD = "README.md"
ALL_OR_NOTHING = (
    "The repository holds what it held before, or the whole new version: one commit changes all or nothing. "
    "Push again to be sure."
)
# Files of the repository that a loader reads when they are there. Left over from an older version, they would be
# mixed with the new one: model.safetensors, for example, is preferred to the shards of a model that has grown.
READ_BY_LOADERS = (
    "*.safetensors *.safetensors.index.json pytorch_model*.bin *.bin.index.json config.json "
    "tokenizer.json tokenizer_config.json vocab.txt added_tokens.json special_tokens_map.json"
).split()


def say(step: int, text: str) -> None:
    """The headline of one of five steps."""
    print(f"\n[{step}/5] {text}", flush=True)


def check_request(args: argparse.Namespace) -> None:
    """Refuse what is wrong on the command line itself."""
    if not args.folder.is_dir():
        found = "is not a folder" if args.folder.exists() else f"does not exist (looked from {Path.cwd()})"
        raise Refusal(f"{args.folder} {found}: name the folder that model.save_pretrained wrote.")
    name = r"[A-Za-z0-9](?:[\w.-]{0,94}[A-Za-z0-9_])?"
    valid = re.fullmatch(f"{name}/{name}", args.repo, re.ASCII) and not re.search(r"--|\.\.|\.git$", args.repo)
    if not valid:
        raise Refusal(
            f"{args.repo!r} is no name of a repository: write OWNER/NAME, for example your-name/my-model, each of "
            "letters, digits, '-', '_' and '.', without '--' and '..', and not ending in '.git'."
        )
    if not args.commit_message.strip():
        raise Refusal(f"--commit_message {args.commit_message!r} is empty: say what changed.")


# The check, and the card.


def make_room(folder: Path) -> tempfile.TemporaryDirectory:
    """A temporary folder, where possible on the disk of `folder`, so that large files need not be copied."""
    parent = folder.resolve().parent
    return tempfile.TemporaryDirectory(prefix=".push_to_hub-", dir=parent if os.access(parent, os.W_OK) else None)


def check_as_stranger(folder: Path, *, with_tokenizer: bool, texts: Sequence[str] = ()) -> dict:
    """What a clean process finds in the folder, and generates for `texts`. Its working folder and caches are empty."""
    options = [*([] if with_tokenizer else ["--no_tokenizer"]), *(["--texts", *texts] if texts else [])]
    command = [sys.executable, stranger.__file__, str(folder.resolve()), *options]
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run(command, cwd=empty, capture_output=True, text=True)
    if done.returncode:
        errors = done.stderr.partition("error: ")[2] or done.stderr
        raise Refusal(f"a stranger could not use this model, and nothing was uploaded.\n{errors.strip()}")
    report = json.loads(done.stdout.splitlines()[-1])
    check_length(report)
    return report


def check_length(report: dict) -> None:
    """Texts that the tokenizer has cut must not be too long for the model."""
    kind, most = report["choices"]["position_embedding_type"], report["choices"]["max_position_embeddings"]
    max_length = report["max_length"]  # None without a tokenizer
    if POSITION_KINDS[kind].has_limit and max_length is not None and max_length > most:
        raise Refusal(
            f"the tokenizer's model_max_length is {max_length}, and the model's {POSITION_KINDS[kind].summary} end at "
            f"max_position_embeddings={most}: long texts would fail even with truncation=True. Set "
            f"tokenizer.model_max_length = {most} and save it again."
        )


def put_card(args: argparse.Namespace, report: dict, staged: Path) -> bool:
    """Write the card into both folders unless somebody else wrote the one that is there; whether it is ours."""
    path = args.folder / CARD
    if path.exists() and not (is_ours(path.read_text(encoding="utf-8", errors="replace")) or args.replace_card):
        print(f"{path} is not ours, or was edited: it goes as it is (--replace_card writes it anew)")
        return False
    card = Card(args.repo, args.license, args.language, args.dataset)
    text = write_card(card, report, args.folder)
    print(f"{path}: {'written anew' if path.exists() else 'written'}; edit it, and it is yours")
    (staged / CARD).unlink(missing_ok=True)  # it may share its bytes with the one in the user's folder
    for folder in (args.folder, staged):
        (folder / CARD).write_text(text, encoding="utf-8")
    return True


def list_files(files: Files, staged: Path) -> None:
    """Print what is uploaded with its size, and what is not with the reason."""
    sizes = {path.relative_to(staged).as_posix(): path.stat().st_size for path in staged.rglob("*") if path.is_file()}
    print(f"{len(sizes)} files go up, {format_size(sum(sizes.values()))}:")
    for name, size in sorted(sizes.items()):
        print(f"  {format_size(size):>9}  {name}")
    if files.stays:
        print("these stay here:")
    for name, reason in files.stays.items():
        print(f"  {name}: {reason}")


def format_size(size: float) -> str:
    """A number of bytes in the largest unit that leaves at least 1."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


# The Hub.


@dataclass
class Push:
    """What came of it: the state of the branch before and after, and where to look at it."""

    before: str
    after: str
    url: str


def log_in(token: str | None) -> HfApi:
    """The client, once the Hub has said whose token it is."""
    from huggingface_hub import HfApi, get_token

    token = token or get_token()
    if not token:
        raise Refusal(
            "you are not logged in: run `hf auth login`, or set HF_TOKEN to a token with write access from "
            "https://huggingface.co/settings/tokens."
        )
    api = HfApi(token=token)
    print(f"logged in as {api.whoami()['name']}")
    return api


def push(api: HfApi, args: argparse.Namespace, staged: Path, *, card_is_ours: bool) -> Push:
    """One commit on top of the version that was looked at, or none."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    repo = api.create_repo(args.repo, private=args.private or None, exist_ok=True)
    if args.revision != "main":
        api.create_branch(args.repo, branch=args.revision, exist_ok=True)
    info = api.repo_info(args.repo, revision=args.revision)
    if args.private and not info.private:
        raise Refusal(f"{args.repo} is public already, and --private holds for new repositories: change it in {repo}.")
    there = {sibling.rfilename for sibling in info.siblings}
    names = sorted(path.relative_to(staged).as_posix() for path in staged.rglob("*") if path.is_file())
    if card_is_ours and CARD in there and not args.replace_card and not remote_card_is_ours(api, args):
        print(f"the {CARD} in the repository is not ours, or was edited: it stays (--replace_card writes it anew)")
        names.remove(CARD)
    outdated = find_outdated(there, names)
    if outdated:
        print(f"removed, as they belong to the old version, which keeps them: {', '.join(outdated)}")
    operations = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(staged / name)) for name in names]
    operations += [CommitOperationDelete(path_in_repo=name) for name in outdated]
    # Not upload_folder, which newer clients split into several commits.
    commit = api.create_commit(
        args.repo, operations, commit_message=args.commit_message, revision=args.revision, parent_commit=info.sha
    )
    return Push(info.sha, commit.oid, f"{repo}/tree/{args.revision}")


def remote_card_is_ours(api: HfApi, args: argparse.Namespace) -> bool:
    """Whether the card in the repository was written by this script and not changed since."""
    with tempfile.TemporaryDirectory() as folder:
        path = api.hf_hub_download(args.repo, CARD, revision=args.revision, local_dir=folder)
        return is_ours(Path(path).read_text(encoding="utf-8", errors="replace"))


def find_outdated(there: set[str], names: list[str]) -> list[str]:
    """Files of the repository that a loader would read and that the new version does not have."""
    read = {name for name in there if any(fnmatch(name, pattern) for pattern in READ_BY_LOADERS) and "/" not in name}
    return sorted(read - set(names))


@contextmanager
def explaining(repo: str) -> Iterator[None]:
    """Turn what the client raises into what it means for this push. Errors of our own pass through."""
    try:
        yield
    except Refusal:
        raise
    except Exception as error:
        if (text := explain(error, repo)) is None:
            raise
        raise Refusal(f"{text}\n{ALL_OR_NOTHING}") from error


def explain(error: BaseException | None, repo: str) -> str | None:
    """The first error of the chain that means something. The two clients are built on different HTTP libraries."""
    from huggingface_hub import constants
    from huggingface_hub.errors import OfflineModeIsEnabled

    while error is not None:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if isinstance(error, OfflineModeIsEnabled):
            return "the Hub cannot be asked while HF_HUB_OFFLINE=1 is set: unset it."
        if status is not None:
            answer = " ".join(str(error).split())
            return f"{explain_status(status, repo)} The Hub said: {answer}"
        if type(error).__module__.partition(".")[0] in ("requests", "urllib3", "httpx", "httpx2"):
            return (
                f"{constants.ENDPOINT} cannot be reached, or broke off ({type(error).__name__}: {error}): check the "
                "network, a proxy (HTTPS_PROXY) and HF_ENDPOINT, and push again. What is uploaded already is not "
                "sent twice."
            )
        error = error.__cause__
    return None


def explain_status(status: int, repo: str) -> str:
    """What an HTTP status of the Hub means for a push, and the remedy."""
    meanings = {
        401: "the Hub does not know this token: make a new one (https://huggingface.co/settings/tokens) and run "
        "`hf auth login`. HF_TOKEN, where it is set, comes before the login.",
        403: f"your account or your token may not write to {repo}: use a repository of your own, or a token with "
        "write access.",
        404: f"{repo} is not there for you, or not at this revision.",
        412: f"somebody else has pushed to {repo} in the meantime: look at it, and push again.",
        429: "the Hub has been asked too often: wait a few minutes.",
    }
    return meanings.get(status, f"the Hub refused with status {status}.")


def report_push(args: argparse.Namespace, report: dict, done: Push) -> None:
    """Print where the version is, and the lines that load it."""
    if done.before == done.after:
        print("nothing has changed: the repository had all of this already")
    print(f"\n{done.url}\n\nThis version, for anyone who has read its code:\n")
    revision = f'revision="{done.after}"'
    print(loading_lines(args.repo, report["auto"], revision, tokenizer=report["max_length"] is not None))


def run(args: argparse.Namespace) -> None:
    """All steps: check, stage, open as a stranger, write the card, upload."""
    check_request(args)
    api = None
    if not args.dry_run:
        with explaining(args.repo):
            api = log_in(args.token)

    say(1, f"look through {args.folder}")
    files = sort_files(args.folder)
    check_model(args.folder, files, needs_tokenizer=not args.no_tokenizer)
    with make_room(args.folder) as temporary:
        staged = Path(temporary, "model")
        stage(files, staged)

        say(2, "open what would go up in a clean process, without plainformer")
        report = check_as_stranger(staged, with_tokenizer=has_tokenizer(files))
        print(f"{report['class']}, {report['parameters']:,} parameters; opened by {', '.join(report['opened'])}")

        say(3, "write the model card")
        card_is_ours = put_card(args, report, staged)

        say(4, "what goes up, and what does not")
        list_files(files, staged)
        if api is None:
            print("\na dry run: nothing was uploaded")
            return

        say(5, f"push to {args.repo}, branch {args.revision}")
        with explaining(args.repo):
            done = push(api, args, staged, card_is_ours=card_is_ours)
    report_push(args, report, done)
