"""scripts/mutations.py: draws that repeat, a list that fits the package, and verdicts that can be trusted."""

import argparse
import ast
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import mutations
import pytest

ROOT = Path(__file__).resolve().parents[2]
LISTED = mutations.read_faults(ROOT / "tests" / "mutations" / "faults.json")
TOY = '''"""Two or more."""


def is_large(number: int) -> bool:
    return number > 1


def is_small(number: int) -> bool:
    return number < 2
'''
TOY_TEST = """from plainformer import is_large


def test_that_fails_anyway():
    assert False


def test_the_smallest():
    assert is_large(2) and not is_large(1)
"""


@pytest.fixture
def toy(tmp_path) -> Path:
    """A checkout with a package of two functions, of which one is tested."""
    folder = tmp_path / "toy"
    for name, text in (("plainformer/__init__.py", TOY), ("tests/test_toy.py", TOY_TEST)):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "init", "-q", folder], check=True)
    return folder


def test_a_draw_is_reproducible_and_spread_over_the_files():
    faults = mutations.draw(ROOT, 30, seed=1)
    assert faults == mutations.draw(ROOT, 30, seed=1)
    assert faults[:3] != mutations.draw(ROOT, 3, seed=2)
    assert len({(fault.file, fault.before, fault.after) for fault in faults}) == 30
    for fault in faults:
        mutations.apply((ROOT / fault.file).read_text(encoding="utf-8"), fault)  # raises where nothing changes
    per_file = Counter(fault.file for fault in faults)
    assert max(per_file.values()) - min(per_file.values()) <= 1
    assert len({fault.what.partition(",")[0] for fault in faults}) > 4  # kinds of faults


@pytest.mark.parametrize("fault", LISTED, ids=lambda fault: fault.id)
def test_a_fault_has_one_place_and_changes_the_code(fault):
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert text.count(fault.before) == 1
    assert ast.dump(ast.parse(mutations.apply(text, fault))) != ast.dump(ast.parse(text))


def test_the_list_has_a_name_for_each_fault_and_reaches_every_file():
    assert len({fault.id for fault in LISTED}) == len(LISTED) >= 22
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "plainformer").glob("*.py")}
    assert modules - {fault.file for fault in LISTED} <= {"plainformer/__init__.py"}


@pytest.mark.parametrize(
    "code, broken",
    [
        ("x = a < b", {"x = a <= b"}),
        ("x = a not in b", {"x = a in b"}),
        ("x = (a) + (b)", {"x = (a) - (b)"}),
        ("x = 'ä' + b", {"x = 'ä' - b"}),
        ("x = a or b", {"x = a and b"}),
        ("x = not a", {"x = a"}),
        ("x = 3", {"x = 4"}),
        ("def f(a=True): pass", {"def f(a=False): pass"}),
        ("if a: x", {"if not (a): x"}),
        ("x = f(a, b)", {"x = f(b, a)"}),
        ("x = f(a, b=c, **d)", {"x = f(a, **d)"}),
        ("x = f(b=c)", {"x = f()"}),
        ("x = x + a", {"pass", "x = x - a"}),
        ("f(a)", {"pass"}),
        ("def f(): return a", {"def f(): return None"}),
        ("x = a.min()", {"x = a.max()"}),
        ("x = a[:b]", {"x = a[:b - 1]"}),
        ("def f(a: int = b) -> 1 | 2: pass", set()),
        ("raise ValueError(f'{1 + 1}')", {"pass"}),
        ("__all__ = [1]", set()),
        ("AutoConfig.register(a, b)", set()),
        ("Number = Float | None", set()),
    ],
)
def test_operators(code, broken):
    source = mutations.Source(code)
    assert {code[:start] + text + code[end:] for _, start, end, text in mutations.edits(source)} == broken


def test_caught_survived_and_taken_up_again(toy, capsys):
    """A test that fails without the fault too catches nothing, and the checkout stays as it is."""
    faults = [
        {"id": "tested", "file": "plainformer/__init__.py", "before": "number > 1", "after": "number >= 1", "what": ""},
        {
            "id": "untested",
            "file": "plainformer/__init__.py",
            "before": "number < 2",
            "after": "number <= 2",
            "what": "",
        },
    ]
    results = toy / "results.jsonl"
    (toy / "faults.json").write_text(json.dumps(faults))
    words = ["--root", toy, "--faults", toy / "faults.json", "--results", results, "--processes", 0, "--only"]
    assert mutations.main([str(word) for word in [*words, "tested"]]) == 0
    assert "test_that_fails_anyway fails without the fault too" in capsys.readouterr().out
    with results.open("a") as file:
        file.write('{"id": "cut off')
    assert mutations.main([str(word) for word in [*words, "tested", "untested"]]) == 0
    output = capsys.readouterr().out
    assert "1 faults have a result, 1 are left" in output
    assert "1 of 2 faults caught" in output
    outcomes = [(result["id"], result["outcome"], result["test"]) for result in mutations.read_results(results)]
    caught_by = "tests/test_toy.py::test_the_smallest"
    assert outcomes == [("tested", "caught", caught_by), ("untested", "survived", "")]
    assert (toy / "plainformer" / "__init__.py").read_text() == TOY


@pytest.mark.parametrize("ending, outcome", [("patience", "hung"), ("limit", "out of time")])
def test_tests_that_do_not_end(toy, ending, outcome):
    (toy / "tests" / "test_toy.py").write_text("import time\n\n\ndef test_that_hangs():\n    time.sleep(600)\n")
    options = {"patience": 600.0, "limit": 600.0, ending: 3.0}
    args = argparse.Namespace(python=sys.executable, processes=0, first=[], pytest=[], **options)
    fault = mutations.Fault("hang", "plainformer/__init__.py", "number > 1", "number > 2", "")
    (toy / "copied").mkdir()
    workshop = mutations.Workshop(toy, toy / "copied", args)
    assert workshop.judge(fault)["outcome"] == outcome


def test_another_package_than_the_copy_is_refused(toy, tmp_path):
    """An interpreter that finds some other installed package would let every fault survive."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho /elsewhere/plainformer/__init__.py\n")
    python.chmod(0o755)
    with pytest.raises(SystemExit, match="not the copy"):
        mutations.main(["--root", str(toy), "--faults", str(write_fault(toy)), "--python", str(python)])


def write_fault(toy: Path) -> Path:
    path = toy / "faults.json"
    fault = {"file": "plainformer/__init__.py", "before": "number > 1", "after": "number > 2", "what": ""}
    path.write_text(json.dumps([fault]))
    return path


def test_what_does_not_fit_is_refused():
    fault = mutations.Fault("twice", "toy.py", "number", "count", "")
    with pytest.raises(ValueError, match="twice: 'number' stands 4 times in toy.py, not once"):
        mutations.apply(TOY, fault)
    with pytest.raises(ValueError, match="same: the code of toy.py stays the same"):
        mutations.apply(TOY, mutations.Fault("same", "toy.py", "number > 1", "(number > 1)", ""))
