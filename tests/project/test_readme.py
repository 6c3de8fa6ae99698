"""Every code block of the README does what it says."""

import re
from pathlib import Path

import pytest
from helpers.processes import fork_server, run_process

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)

# The first of the README's two commands is run by test_scripts.py.
COMMANDS = ["bash scripts/quickstart.sh", "bash scripts/test.sh"]


def commands() -> list[str]:
    return [line for language, block in BLOCKS if language == "bash" for line in block.strip().splitlines()]


def test_python_blocks_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """In one folder and as one program, since a later block reads what an earlier one saved."""
    blocks = [block for language, block in BLOCKS if language == "python"]
    assert len(blocks) >= 3
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks), "README.md", "exec"), {"__name__": "__main__"})
    assert "torch.Size([2, 2])" in capsys.readouterr().out
    assert {"my-model", "as-bert"} <= {path.name for path in tmp_path.iterdir()}


def test_shell_blocks_are_the_two_commands() -> None:
    assert commands() == COMMANDS
    assert {language for language, _ in BLOCKS} == {"bash", "python"}


def test_the_test_command_passes_words_on_to_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment of the tests (VENV), so that nothing is installed twice."""
    monkeypatch.setenv("VENV", str(fork_server()[0]))
    words = "-n 0 -p no:cacheprovider tests/model/test_positions.py -k printed"
    done = run_process(["bash", "-c", f"{COMMANDS[1]} {words}"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_versions_are_those_that_are_pinned() -> None:
    pinned = dict(re.findall(r"^(torch|transformers)==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert f"torch {pinned['torch']}" in README
    script = (ROOT / "scripts" / "version_matrix.sh").read_text()
    versions = re.search(r"VERSIONS:-([\d. ]+) \$pinned", script)[1].split()
    assert len(versions) == 2 and all(version in README for version in (*versions, pinned["transformers"]))
