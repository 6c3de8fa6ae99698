"""Strangers and the Hub: processes without plainformer, with empty caches, and a Hub of our own on loopback.

Starting a process takes a second, so each does many jobs.
"""

import inspect
import json
import os
from pathlib import Path

from helpers.hub_server import HubServer
from helpers.processes import fast_python, run_process
from plainformer.configuration_plainformer import AUTO_MAP

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
STRANGER_FILE = ROOT / "plainformer" / "sharing" / "stranger.py"
AUTO_CLASSES = [auto for auto in AUTO_MAP if auto != "AutoConfig"]
TOKENS = {"hf_someone": "someone", "hf_other": "other"}  # of the Hub, and whose they are
TEXTS = ["time flies like an arrow", "fruit flies like a banana"]

# The first lines of a stranger's process: what remains of the package is one file, imported as such.
STRANGER = f"""
import sys
sys.path.append({str(STRANGER_FILE.parent)!r})
from stranger import NoPlainformer
sys.path.pop()
sys.meta_path.insert(0, NoPlainformer)
try:
    import plainformer
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("a stranger must not have the package")
"""


def digest(tensors):
    """One text for the names and bits of many tensors, {name: tensor}. Its source is sent to other processes too."""
    import hashlib

    import torch

    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        sha.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


# What a process can call besides.
COMMON = f"""
import json, sys, torch, transformers
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

{inspect.getsource(digest)}

def load(repo, auto="AutoModelForSequenceClassification", **options):
    torch.manual_seed(0)
    options = {{"trust_remote_code": True, "ignore_mismatched_sizes": True, **options}}
    return getattr(transformers, auto).from_pretrained(repo, **options)

def weights(*args, **options):
    return digest(load(*args, **options).state_dict())

def attempt(function, *args, **options):
    try:
        return function(*args, **options)
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"
"""


def environment(hub: HubServer, home: Path, token: str | None = None) -> dict[str, str]:
    """Empty caches, the Hub of the test, and nothing of the user's own settings."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHONPATH"))}
    settings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    return clean | settings | {"OMP_NUM_THREADS": "1"} | ({"HF_TOKEN": token} if token else {})


def run_code(
    hub: HubServer, home: Path, code: str, *args: str, token: str | None = None, package: bool = False
) -> dict:
    """The `results` of code in a new process, of a stranger unless it has the package."""
    home.mkdir()
    output = home / "results.json"
    parts = ["" if package else STRANGER, COMMON, code, f'json.dump(results, open({str(output)!r}, "w"))']
    env = environment(hub, home, token) | ({"PYTHONPATH": str(ROOT)} if package else {})
    done = run_process([fast_python(), "-c", "\n".join(parts), *args], cwd=home, env=env, timeout=600)
    assert done.returncode == 0, done.stderr[-5000:]
    return json.loads(output.read_text())
