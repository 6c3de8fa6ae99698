"""docs/ecosystem.md: every recipe runs, and no tool is named without a test."""

import os
import re
import socket
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers.processes import run_process, spawn

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "ecosystem.md").read_text(encoding="utf-8")
TABLE, *SECTIONS = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)
RECIPES = {section.splitlines()[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL) for section in SECTIONS}
PREPARATION, VERSIONS = "A model to try them on", "Versions of transformers"
ALONE = ("OpenVINO",)  # in a process of its own: see `run_tests_alone`
TOOLS = [name for name in RECIPES if name not in (PREPARATION, VERSIONS)]


def run(code: str) -> None:
    exec(compile(code, "recipe", "exec"), {"__name__": "__main__"})


def work(rank: int, script: str, folder: str, port: int) -> None:
    """What torchrun does for each of its processes."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.chdir(folder)
    run(script)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, in which the model of the first section is."""
    monkeypatch.chdir(tmp_path)
    run("\n".join(RECIPES[PREPARATION]))
    return tmp_path


@pytest.mark.parametrize("tool", TOOLS)
def test_recipes_run(tool, folder, monkeypatch, capsys):
    """The blocks of a section, in order; one that begins with a `torchrun` line is for two processes."""
    blocks = RECIPES[tool]
    assert blocks, f"{tool} has no recipe"
    # Machine code is tested in test_compile.py: here the graph that is captured runs as it is.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    scripts = [block for block in blocks if block.startswith("# torchrun --nproc-per-node 2 ")]
    code = "\n".join(block for block in blocks if block not in scripts)
    if tool in ALONE:
        process = run_process([sys.executable, "-c", code])
        assert process.returncode == 0, process.stderr
        printed = process.stdout
    else:
        run(code)
        torch.compiler.reset()
        printed = capsys.readouterr().out
    comments = re.findall(r"^ *print\(.*\)  # ([^:\n]*)", code, re.MULTILINE)
    for expected in comments:  # what stands behind a print is what it prints
        assert expected in printed, expected
    for script in scripts:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        spawn(work, script, os.fspath(folder), port)


def test_every_line_of_the_table_has_a_test():
    rows = [line for line in TABLE.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 7
    for row in rows:
        tool, verdict, tests = (cell.strip() for cell in row.strip("|").split(" | "))
        assert verdict.startswith(("works", "does not work:")), tool
        named = re.findall(r"\]\(\.\./(tests/[\w/]+\.py)\)", tests)
        assert named and all((ROOT / name).exists() for name in named), tool


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)", DOCUMENT):
        assert (ROOT / "docs" / target).exists(), target
