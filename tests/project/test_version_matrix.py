"""The steps of scripts/version_matrix.sh, with the installed version of transformers as writer and as reader."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import transformers
from helpers.models import MODELS
from helpers.processes import fast_python, run_process
from helpers.scripts import run_main

from plainformer.positions_plainformer import POSITION_KINDS

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "version_matrix.py"
VERSION = transformers.__version__
KINDS = ("learned", "none")  # a checkpoint of any kind is written and read in the same way
ALL = len(KINDS) * 2 * (len(MODELS) + 1)  # and the encoder-decoder


def step(*words: object) -> subprocess.CompletedProcess:
    """A step within this process, or where it bars the package from its process, in a new one."""
    if words[-1] != "stranger":
        return run_main(SCRIPT, *words)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return run_process([fast_python(), SCRIPT, *words], env=environment, stderr=subprocess.STDOUT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What writing and reading in both ways leaves."""
    folder = tmp_path_factory.mktemp("matrix")
    for words in (["write", folder], ["read", folder, "package"], ["read", folder, "stranger"]):
        with mock.patch.dict(POSITION_KINDS, {kind: POSITION_KINDS[kind] for kind in KINDS}, clear=True):
            done = step(*words)
        assert done.returncode == 0, done.stdout[-2000:]
    return folder


def test_every_kind_and_head_is_equal(folder):
    done = step("table", folder)
    assert done.returncode == 0, done.stdout
    header, _, row, *rest = done.stdout.splitlines()
    assert header == f"| written under | read under {VERSION}, with the package | read under {VERSION}, as a stranger |"
    assert row == f"| {VERSION} | {ALL} of {ALL} equal | {ALL} of {ALL} equal |"
    assert rest == ["", "all equal, bit for bit"]
    assert len({path.name for path in (folder / VERSION).iterdir()}) == ALL


def test_what_differs_is_named(folder, tmp_path):
    """Another number, another id, an output or an encoding too few or too many, a checkpoint that is broken or gone."""
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))

    def change(name: str, edit: Callable[[dict], object]) -> None:
        file = copy / VERSION / name / "expected.json"
        expected = json.loads(file.read_text())
        edit(expected)
        file.write_text(json.dumps(expected))

    def add(numbers: list, number: float) -> None:
        numbers[0] += number

    change("none-pre-AutoModel", lambda e: add(e["last_hidden_state"][0][0], 1e-3))
    change("learned-post-AutoModelForMaskedLM", lambda e: add(e["input_ids of pairs"][0], 1))
    change("none-post-AutoModel", lambda e: e.update(pooler_output=[[0.0]], extra=[1]))
    change(
        "learned-pre-AutoModel",
        lambda e: [e.pop("last_hidden_state"), e.pop("token_type_ids of texts")],
    )
    (copy / VERSION / "learned-pre-AutoModelForMultipleChoice" / "config.json").unlink()
    (copy / VERSION / "none-pre-AutoModelForSeq2SeqLM" / "generation_config.json").unlink()
    shutil.rmtree(copy / VERSION / "learned-post-AutoModel")
    assert step("read", copy, "package").returncode == 0
    done = step("table", copy)
    assert done.returncode == 1
    assert f"{ALL - 7} of {ALL} equal" in done.stdout and done.stdout.endswith("7 checkpoints differ\n")
    assert "none-pre-AutoModel: last_hidden_state differs by 1.0e-03" in done.stdout
    assert "learned-post-AutoModelForMaskedLM: input_ids of pairs differs by 1.0e+00" in done.stdout
    assert "none-post-AutoModel: extra is missing; pooler_output is missing" in done.stdout
    assert "learned-pre-AutoModel: last_hidden_state is new; token_type_ids of texts is new" in done.stdout
    assert re.search("none-pre-AutoModelForSeq2SeqLM: beams differs by .*; generation_config differs by 5", done.stdout)
    assert "learned-pre-AutoModelForMultipleChoice: " in done.stdout
    assert "learned-post-AutoModel: FileNotFoundError: " in done.stdout


def test_what_was_not_read_is_not_equal(folder, tmp_path):
    """Nothing found is no proof that nothing differs."""
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    (copy / f"found-{VERSION}-{VERSION}-stranger.json").write_text('{"none-pre-AutoModel": []}')
    done = step("table", copy)
    assert done.returncode == 1
    assert (
        f"| {ALL} of {ALL} equal | 1 of {ALL} equal |" in done.stdout
        and "none-post-AutoModel: it was not read" in done.stdout
    )
    (tmp_path / "empty").mkdir()
    for words in (["read", tmp_path / "empty"], ["table", tmp_path / "empty"]):
        done = step(*words)
        assert done.returncode == 1 and "no version has written checkpoints" in done.stdout
