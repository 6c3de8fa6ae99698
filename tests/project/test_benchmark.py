"""The benchmark runs, checks its numbers, and keeps what it measured."""

import json
import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
from helpers.scripts import run_main

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "benchmark.py"


@pytest.fixture
def benchmark(monkeypatch) -> ModuleType:
    """The script, imported, with batches of two texts."""
    monkeypatch.syspath_prepend(BENCHMARK.parent)
    monkeypatch.setattr("texts.BATCH_SIZE", 2)
    spec = util.spec_from_file_location("benchmark", BENCHMARK)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_row(benchmark, tmp_path, monkeypatch, capsys):
    output = tmp_path / "new" / "figures.json"
    monkeypatch.setattr("sys.argv", ["benchmark.py", "inference-equal", "--repeats", "1", "--output", str(output)])
    benchmark.main()
    assert "inference-equal" in capsys.readouterr().out
    report = json.loads(output.read_text())
    row = report["rows"]["inference-equal"]
    assert row["ratio"] > 0 and row["difference"] < 1e-5
    assert [len(times) for times in row["seconds"]] == [1, 1]
    assert report["machine"]["torch"]


def test_an_unknown_row_is_named():
    done = run_main(BENCHMARK, "inference-shufled")
    assert done.returncode == 2
    assert "'inference-shufled'" in done.stdout and "inference-shuffled" in done.stdout


def test_a_row_without_its_packages_names_the_extra(benchmark, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "nncf", None)
    monkeypatch.delitem(sys.modules, "engines", raising=False)
    monkeypatch.setattr("sys.argv", ["benchmark.py", "peers", "-n", "1", "-o", str(tmp_path / "figures.json")])
    benchmark.main()
    assert "not measured: nncf is not installed: pip install '.[benchmark]'" in capsys.readouterr().out
