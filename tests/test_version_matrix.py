"""The steps of scripts/version_matrix.sh, with the installed version of transformers as writer and as reader."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers

ROOT = Path(__file__).resolve().parent.parent
VERSION = transformers.__version__


def step(*words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / "scripts" / "version_matrix.py", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=280)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What writing and reading in both ways leaves."""
    folder = tmp_path_factory.mktemp("matrix")
    for words in (["write", folder], ["read", folder, "package"], ["read", folder, "stranger"]):
        done = step(*words)
        assert done.returncode == 0, done.stderr[-2000:]
    return folder


def test_every_kind_and_head_is_equal(folder):
    done = step("table", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    header, _, row, *rest = done.stdout.splitlines()
    assert header == f"| written under | read under {VERSION}, with the package | read under {VERSION}, as a stranger |"
    assert row == f"| {VERSION} | 36 of 36 equal | 36 of 36 equal |"
    assert rest == ["", "all equal, bit for bit"]
    assert len({path.name for path in (folder / VERSION).iterdir()}) == 3 * 2 * 6


def test_what_differs_is_named(folder, tmp_path):
    """Another number in the last place, another id, a checkpoint that does not open."""
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    names = ["none-pre-AutoModel", "learned-post-AutoModelForMaskedLM", "sinusoidal-pre-AutoModelForMultipleChoice"]
    number, token, broken = (copy / VERSION / name for name in names)
    told = json.loads((number / "expected.json").read_text())
    told["numbers"]["last_hidden_state"][0][0][0] += 1e-3
    (number / "expected.json").write_text(json.dumps(told))
    told = json.loads((token / "expected.json").read_text())
    told["encoded"]["input_ids of pairs"][0][1] += 1
    (token / "expected.json").write_text(json.dumps(told))
    (broken / "config.json").unlink()
    assert step("read", copy, "package").returncode == 0
    done = step("table", copy)
    assert done.returncode == 1
    assert "33 of 36 equal" in done.stdout and done.stdout.endswith("3 checkpoints differ\n")
    assert "none-pre-AutoModel: last_hidden_state differs by 1.0e-03" in done.stdout
    assert "learned-post-AutoModelForMaskedLM: input_ids of pairs differ" in done.stdout
    assert "sinusoidal-pre-AutoModelForMultipleChoice: " in done.stdout
