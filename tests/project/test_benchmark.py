"""The benchmark runs, checks its numbers, and keeps what it measured."""

import json
import subprocess
from pathlib import Path

from helpers.scripts import run_main

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "benchmark.py"


def run(*words: str) -> subprocess.CompletedProcess:
    return run_main(BENCHMARK, *words)


def test_one_row(tmp_path):
    done = run("inference-equal", "--repeats", "1", "--output", str(tmp_path / "new" / "figures.json"))
    assert done.returncode == 0, done.stdout
    assert "inference-equal" in done.stdout
    report = json.loads((tmp_path / "new" / "figures.json").read_text())
    row = report["rows"]["inference-equal"]
    assert row["ratio"] > 0 and row["difference"] < 1e-5
    assert [len(times) for times in row["seconds"]] == [1, 1]
    assert report["machine"]["torch"]


def test_an_unknown_row_is_named():
    done = run("inference-shufled")
    assert done.returncode == 2
    assert "'inference-shufled'" in done.stdout and "inference-shuffled" in done.stdout
