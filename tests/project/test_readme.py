"""Every code block of the README does what it says."""

import re
import sys
from pathlib import Path

import pytest
from helpers.processes import run_process

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)

# A command of the README, and what makes it short: few samples, a few tests.
SHORT = {
    "bash scripts/quickstart.sh": "--from_scratch --hidden_size 32 --num_hidden_layers 1 --num_attention_heads 2 "
    "--intermediate_size 64 --epochs 1 --max_train_samples 32 --max_test_samples 32 --output_dir {folder}",
    "bash scripts/test.sh": "-n 0 -p no:cacheprovider tests/model/test_positions.py -k printed",
}


def commands() -> list[str]:
    return [line for language, block in BLOCKS if language == "bash" for line in block.strip().splitlines()]


def test_python_blocks_run_in_order(tmp_path: Path) -> None:
    """In one process and one folder, since a later block reads what an earlier one saved."""
    blocks = [block for language, block in BLOCKS if language == "python"]
    assert len(blocks) >= 3
    done = run_process([sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torch.Size([2, 2])" in done.stdout
    assert {"my-model", "as-bert"} <= {path.name for path in tmp_path.iterdir()}


def test_shell_blocks_are_the_two_commands() -> None:
    assert commands() == list(SHORT)
    assert {language for language, _ in BLOCKS} == {"bash", "python"}


@pytest.mark.parametrize("command", SHORT)
def test_shell_blocks_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the environment of the tests (VENV), so that nothing is installed twice."""
    monkeypatch.setenv("VENV", sys.prefix)
    options = SHORT[command].format(folder=tmp_path / "out")
    done = run_process(["bash", "-c", f"{command} {options}"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_versions_are_those_that_are_pinned() -> None:
    pinned = dict(re.findall(r"^(torch|transformers)==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert f"torch {pinned['torch']}" in README
    script = (ROOT / "scripts" / "version_matrix.sh").read_text()
    versions = re.search(r"VERSIONS:-([\d. ]+) \$pinned", script)[1].split()
    assert len(versions) == 2 and all(version in README for version in (*versions, pinned["transformers"]))


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target
