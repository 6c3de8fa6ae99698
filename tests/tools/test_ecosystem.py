"""docs/ecosystem.md: every recipe runs, and no tool is named without a test."""

import os
import re
import sys
from pathlib import Path

import pytest
from helpers.processes import run_process

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "ecosystem.md").read_text(encoding="utf-8")
TABLE, *SECTIONS = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)
RECIPES = {section.splitlines()[0]: re.findall(r"```python\n(.*?)```", section, re.DOTALL) for section in SECTIONS}
PREPARATION, VERSIONS = "A model to try them on", "Versions of transformers"
TOOLS = [name for name in RECIPES if name not in (PREPARATION, VERSIONS)]


def run(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = run_process(command, cwd=folder, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Where the model of the first section is."""
    folder = tmp_path_factory.mktemp("ecosystem")
    run([sys.executable, "-c", "\n".join(RECIPES[PREPARATION])], folder)
    return folder


@pytest.mark.parametrize("tool", TOOLS)
def test_recipes_run(tool, folder):
    """The blocks of a section in one process; one that begins with a `torchrun` line is a file of that name."""
    blocks = RECIPES[tool]
    assert blocks, f"{tool} has no recipe"
    scripts = [block for block in blocks if block.startswith("# torchrun ")]
    code = "\n".join(block for block in blocks if block not in scripts)
    printed = run([sys.executable, "-c", code], folder)
    comments = re.findall(r"^ *print\(.*\)  # ([^:\n]*)", code, re.MULTILINE)
    for said in comments:  # what stands behind a print is what it prints
        assert said in printed, said
    for script in scripts:
        command = script.splitlines()[0].split()[2:]
        (folder / command[-1]).write_text(script, encoding="utf-8")
        run([sys.executable, "-m", "torch.distributed.run", "--standalone", *command], folder)


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
