"""Does the test suite notice when the package is broken? Break it, one small fault at a time, and see.

Faults come from a list (tests/mutations/faults.json) and from a random draw over the syntax tree of the package. Each
is put into a copy of the checkout, and the tests run there until the first one fails, those nearest to the fault first.
A fault is caught when a test fails that passes without the fault, or when the tests hang. The checkout itself is never
changed. Results are appended as they come, and faults with a result are skipped, so a run may be interrupted.

    python scripts/mutations.py --random 20 --seed 1          the listed faults and 20 random ones
    python scripts/mutations.py --random 20 --seed 1 --list   show them and run nothing
    python scripts/mutations.py --table before.jsonl after.jsonl
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "plainformer"
# Noted by pytest itself: names of tests may hold anything, so they cannot be read from what it prints.
PLUGIN = """import os
def note(report):
    for name in ("progress", "failed")[: 1 + report.failed]:
        with open(os.path.join(os.environ["MUTATIONS_FOLDER"], name), "a", encoding="utf-8") as file:
            file.write(report.nodeid.replace("\\n", " ") + "\\n")
pytest_runtest_logreport = pytest_collectreport = note
"""
CAUGHT = ("caught", "hung")
FIRST = ["tests/model/*", "tests/conversion/*", "tests/tools/*"]  # the folders of tests that find most, and fast
NEAREST = 4  # test files that run before all others
COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
ARITHMETIC = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.Pow: (r"\*\*", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: (r"\|", "&"),
}
PAIRS = [("min", "max"), ("amin", "amax"), ("any", "all"), ("sum", "mean"), ("argmin", "argmax"), ("ones", "zeros")]
SWAPPED_NAMES = {**dict(PAIRS), **{second: first for first, second in PAIRS}}


@dataclass(frozen=True)
class Fault:
    """`before`, which stands once in `file`, becomes `after`."""

    id: str
    file: str
    before: str
    after: str
    what: str


class Source:
    """A file with its syntax tree, and where each node's text lies in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.lines = text.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where the text of a node starts and ends; the tree counts columns in bytes."""
        borders = ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        start, end = (
            self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode()) for line, column in borders
        )
        return start, end

    def of(self, node: ast.AST) -> str:
        start, end = self.span(node)
        return self.text[start:end]


Edit = tuple[str, int, int, str]  # what kind of fault, where the text to replace starts and ends, the text instead


def edits(source: Source) -> Iterator[Edit]:
    """Every fault that the operators find."""
    for node in _code(source.tree):
        for operator in OPERATORS:
            yield from operator(node, source)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes whose change changes what the code does: no type hints, error messages, imports or registrations."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.JoinedStr)):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        return
    call = node.value if isinstance(node, ast.Expr) else node
    if isinstance(call, ast.Call) and re.search(r"\.register$|^logger\.|[wW]arn|^print$", ast.unparse(call.func)):
        return
    yield node
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _code(child)


def _between(source: Source, left: ast.AST, right: ast.AST, pattern: str, text: str, what: str) -> Iterator[Edit]:
    """Replace the operator that stands between two nodes."""
    start, end = source.span(left)[1], source.span(right)[0]
    if found := re.search(pattern, source.text[start:end]):
        yield what, start + found.start(), start + found.end(), text


def _comparison(node: ast.AST, source: Source) -> Iterator[Edit]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        pattern, text = COMPARISONS[type(node.ops[0])]
        yield from _between(source, node.left, node.comparators[0], pattern, text, "comparison")


def _arithmetic(node: ast.AST, source: Source) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        # `Tensor | int`, which names a type
        if isinstance(node.op, ast.BitOr) and re.fullmatch(r"[A-Z]\w+|None|int|str", source.of(node.right)):
            return
        pattern, text = ARITHMETIC[type(node.op)]
        yield from _between(source, node.left, node.right, pattern, text, "arithmetic")


def _and_or(node: ast.AST, source: Source) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp):
        old, new = (r"\band\b", "or") if isinstance(node.op, ast.And) else (r"\bor\b", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _between(source, left, right, old, new, "and, or")


def _constant(node: ast.AST, source: Source) -> Iterator[Edit]:
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        yield "boolean negated", *source.span(node), str(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield "number + 1", *source.span(node), str(node.value + 1)


def _sign(node: ast.AST, source: Source) -> Iterator[Edit]:
    """`not x`, `~x` and `-x` become `x`."""
    if isinstance(node, ast.UnaryOp):
        yield "not, minus dropped", source.span(node)[0], source.span(node.operand)[0], ""


def _condition(node: ast.AST, source: Source) -> Iterator[Edit]:
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        yield "condition negated", *source.span(node.test), f"not ({source.of(node.test)})"


def _swapped(node: ast.AST, source: Source) -> Iterator[Edit]:
    """Two neighbours among the positional arguments."""
    if isinstance(node, ast.Call) and not any(isinstance(argument, ast.Starred) for argument in node.args):
        for first, second in zip(node.args, node.args[1:], strict=False):
            (start, middle), (resume, end) = source.span(first), source.span(second)
            text = source.of(second) + source.text[middle:resume] + source.of(first)
            yield "arguments swapped", start, end, text


def _keyword_dropped(node: ast.AST, source: Source) -> Iterator[Edit]:
    if isinstance(node, ast.Call):
        arguments = sorted([*node.args, *node.keywords], key=source.span)
        for index, argument in enumerate(arguments):
            if isinstance(argument, ast.keyword) and argument.arg:
                start, end = source.span(argument)
                start = source.span(arguments[index - 1])[1] if index else start
                yield "keyword dropped", start, end, ""


def _statement_dropped(node: ast.AST, source: Source) -> Iterator[Edit]:
    """A call, a check, or an assignment without which the names used later still exist."""
    if isinstance(node, ast.Assign):
        names = {name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)}
        droppable = not isinstance(node.targets[0], (ast.Name, ast.Tuple)) or source.of(node.targets[0]) in names
    else:
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        droppable = is_call or isinstance(node, (ast.AugAssign, ast.Raise))
    if droppable:
        yield "statement dropped", *source.span(node), "pass"


def _return_dropped(node: ast.AST, source: Source) -> Iterator[Edit]:
    if isinstance(node, ast.Return) and node.value is not None:
        yield "return value dropped", *source.span(node.value), "None"


def _other_function(node: ast.AST, source: Source) -> Iterator[Edit]:
    """`min` and `max`, `any` and `all`, ..., as functions or methods."""
    if isinstance(node, ast.Call) and (found := re.search(r"\w+$", source.of(node.func))):
        if found[0] in SWAPPED_NAMES:
            end = source.span(node.func)[1]
            yield "other function", end - len(found[0]), end, SWAPPED_NAMES[found[0]]


def _slice(node: ast.AST, source: Source) -> Iterator[Edit]:
    if isinstance(node, ast.Slice):
        for bound in (node.lower, node.upper):
            if bound is not None and not isinstance(bound, ast.Constant):
                yield "slice off by one", *source.span(bound), f"{source.of(bound)} - 1"


OPERATORS: list[Callable[[ast.AST, Source], Iterator[Edit]]] = [
    *(_comparison, _arithmetic, _and_or, _constant, _sign, _condition),
    *(_swapped, _keyword_dropped, _statement_dropped, _return_dropped, _other_function, _slice),
]


def apply(text: str, fault: Fault) -> str:
    """The broken file. Raises a ValueError unless the fault has one place in it and changes what it says."""
    if text.count(fault.before) != 1:
        raise ValueError(
            f"{fault.id}: {fault.before!r} stands {text.count(fault.before)} times in {fault.file}, not once."
        )
    broken = text.replace(fault.before, fault.after)
    if ast.dump(ast.parse(text)) == ast.dump(ast.parse(broken)):
        raise ValueError(f"{fault.id}: the code of {fault.file} stays the same.")
    return broken


def make_fault(name: str, file: str, source: Source, edit: Edit) -> Fault | None:
    """The edit with as many whole lines around it as make it unique; None if the file would be no Python."""
    what, start, end, text = edit
    first = source.text.count("\n", 0, start)
    last = source.text.count("\n", 0, end)
    while source.text.count(source.text[source.starts[first] : source.starts[last + 1]]) > 1:
        first, last = max(first - 1, 0), min(last + 1, len(source.lines) - 1)
    low, high = source.starts[first], source.starts[last + 1]
    line = source.text.count("\n", 0, start) + 1
    before, after = source.text[low:high], source.text[low:start] + text + source.text[end:high]
    fault = Fault(name, file, before, after, f"{what}, line {line}")
    try:
        apply(source.text, fault)
    except (ValueError, SyntaxError):
        return None
    return fault


def draw(root: Path, number: int, seed: int) -> list[Fault]:
    """Random faults: the files in turn, in random order; in each a random kind of fault, then a random place."""
    generator = random.Random(seed)
    sources, found = {}, {}
    for path in sorted(Path(root, PACKAGE).rglob("*.py")):
        file = path.relative_to(root).as_posix()
        sources[file] = Source(path.read_text(encoding="utf-8"))
        found[file] = defaultdict(list)
        for edit in edits(sources[file]):
            found[file][edit[0]].append(edit)
    files = [file for file in found if found[file]]
    generator.shuffle(files)
    faults: list[Fault] = []
    while files and len(faults) < number:
        file = files.pop(0)
        kinds = found[file]
        kind = generator.choice(sorted(kinds))
        edit = kinds[kind].pop(generator.randrange(len(kinds[kind])))
        if not kinds[kind]:
            del kinds[kind]
        fault = make_fault(f"random-{seed}-{len(faults) + 1:02}", file, sources[file], edit)
        if fault is not None:
            faults.append(fault)
        if kinds:
            files.insert(len(files) if fault else 0, file)
    return faults


def read_faults(path: Path) -> list[Fault]:
    """The listed faults. A fault without an `id` is numbered."""
    listed = json.loads(path.read_text(encoding="utf-8"))
    return [Fault(**{"id": f"listed-{number:02}", **fault}) for number, fault in enumerate(listed, start=1)]


def nearest_first(root: Path, fault: Fault, first: list[str]) -> list[str]:
    """All test files: those named after the broken file, those that match `first`, then the rest.

    Within each group those come first that use most of the names around the fault.
    """
    stem = Path(fault.file).stem.removesuffix(f"_{PACKAGE}").strip("_")
    folder = Path(fault.file).parent.name
    text = Path(root, fault.file).read_text(encoding="utf-8")
    names = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}

    def key(path: Path) -> tuple:
        named = not (stem and stem in path.stem or folder != PACKAGE and folder in path.parts)
        place = next(
            (index for index, pattern in enumerate(first) if path.relative_to(root).match(pattern)), len(first)
        )
        words = set(re.findall(r"\w+", path.read_text(encoding="utf-8")))
        return named, place, -len(names & words), path

    tests = [path for path in Path(root, "tests").rglob("test_*.py") if "hf_suite" not in path.parts[:-1]]
    return [path.relative_to(root).as_posix() for path in sorted(tests, key=key)]


class Workshop:
    """A copy of a checkout, in which one file at a time is broken and tests run."""

    def __init__(self, root: Path, folder: Path, args: argparse.Namespace) -> None:
        self.folder, self.copy, self.args = folder, folder / "copy", args
        self.failed, self.progress = folder / "failed", folder / "progress"
        self.passes: dict[str, bool] = {}  # whether a test passes without a fault
        for file in _git_files(root):
            Path(self.copy, file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / file, self.copy / file)
        Path(folder, "plugin").mkdir()
        Path(folder, "plugin", "note_failures.py").write_text(PLUGIN)
        paths = [str(self.copy), str(folder / "plugin")]
        self.env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "MUTATIONS_FOLDER": str(folder),
            "HF_MODULES_CACHE": str(folder / "modules"),  # broken code must not reach the cache of others
        }
        where = self._python("-c", f"import {PACKAGE}; print({PACKAGE}.__file__)")[1].strip()
        if self.copy not in Path(where.rpartition("\n")[2]).parents:
            raise SystemExit(
                f"The tests would run the {PACKAGE} in {where!r}, not the copy in {self.copy}: see --python."
            )

    def judge(self, fault: Fault) -> dict:
        """Run the tests against a fault: what became of it, the test that caught it, and how long it took."""
        path = self.copy / fault.file
        whole = path.read_bytes()
        broken = apply(whole.decode(), fault).encode()
        tests = nearest_first(self.copy, fault, self.args.first)
        started = time.monotonic()
        for some in (tests[:NEAREST], tests[NEAREST:]):  # of the rest nothing is imported until it is needed
            outcome, test = self._judge_by(some, path, whole, broken) if some else ("survived", "")
            if outcome != "survived":
                break
        return {**asdict(fault), "outcome": outcome, "test": test, "seconds": round(time.monotonic() - started)}

    def _judge_by(self, tests: list[str], path: Path, whole: bytes, broken: bytes) -> tuple[str, str]:
        """As `judge`, by some of the tests. A test that fails without the fault too is left out from then on."""
        while True:
            path.write_bytes(broken)
            try:
                outcome, test = self._test(tests)
            finally:
                path.write_bytes(whole)
            if outcome != "caught" or self._passes(test):
                return outcome, test
            print(f"    {test} fails without the fault too: it is left out", flush=True)

    def _passes(self, test: str) -> bool:
        """Whether a test passes without a fault, and a file of tests can be read."""
        if test not in self.passes:
            self.passes[test] = (
                self._test([test] if "::" in test else [test or "tests", "--collect-only"])[0] == "survived"
            )
            if not self.passes[test] and "::" not in test:
                raise SystemExit(f"{test or 'tests'} cannot be read without a fault.")
        return self.passes[test]

    def _test(self, words: list[str]) -> tuple[str, str]:
        self.failed.unlink(missing_ok=True)
        for name in ("modules", "temporary"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        unfit = [word for test, passes in self.passes.items() if not passes for word in ("--deselect", test)]
        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "note_failures", "--basetemp", self.folder / "temporary"]
        options += ["-n", 0 if "--collect-only" in words else self.args.processes, *self.args.pytest, *unfit]
        code, output = self._python("-m", "pytest", *map(str, options), *words)
        failed = self.failed.read_text(encoding="utf-8").splitlines() if self.failed.exists() else []
        if code in ("hung", "out of time"):
            return code, ""
        if code in (0, 5):  # 5: no test was selected
            return "survived", ""
        if code == 3 or code == 4 and "usage:" in output:
            raise SystemExit(f"pytest could not run:\n{output[-2000:]}")
        return "caught", failed[0] if failed else ""

    def _python(self, *words: str) -> tuple[int | str, str]:
        """The exit code and the output. A command that hangs or runs out of time is ended, and all it started."""
        process = subprocess.Popen(
            [self.args.python, *words],
            cwd=self.copy,
            env=self.env,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        started = moved = time.time()
        try:
            while True:
                try:
                    output = process.communicate(timeout=2)[0]
                    return process.returncode, output
                except subprocess.TimeoutExpired:
                    moved = max(moved, self.progress.stat().st_mtime if self.progress.exists() else 0)
                    if time.time() - moved > self.args.patience:
                        return "hung", ""
                    if time.time() - started > self.args.limit:
                        return "out of time", ""
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


def _git_files(root: Path) -> list[str]:
    """The files of a checkout as they are now, those that git ignores left out."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [file for file in listed if file and Path(root, file).is_file()]


def read_results(path: Path) -> list[dict]:
    """What was recorded so far; a last line that was cut off is left out."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def table(columns: list[list[dict]]) -> str:
    """The results as Markdown: a fault per line, a column for each file of results."""
    by_id: dict[str, list[dict | None]] = {}
    for index, results in enumerate(columns):
        for result in results:
            by_id.setdefault(result["id"], [None] * len(columns))[index] = result
    lines = ["| fault | file | what | " + "outcome | " * len(columns), "| --- " * (3 + len(columns)) + "|"]
    for name, results in by_id.items():
        known = next(result for result in reversed(results) if result)
        cells = [_cell(result) for result in results]
        lines.append("| " + " | ".join([name, known["file"], known["what"], *cells]) + " |")
    for index, results in enumerate(columns, start=1):
        caught = sum(result["outcome"] in CAUGHT for result in results)
        column = f" (column {index})" if len(columns) > 1 else ""
        lines.append(f"\n{caught} of {len(results)} faults caught{column}.")
    return "\n".join(lines)


def _cell(result: dict | None) -> str:
    if result is None:
        return "-"
    by = f" by `{result['test']}`" if result["test"] else ""
    return f"{result['outcome']}{by}, {result['seconds']} s".replace("|", "\\|")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=0, metavar="N", help="how many random faults to draw (default 0)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default 0)")
    parser.add_argument("--faults", type=Path, help="the listed faults (default: tests/mutations/faults.json of ROOT)")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout (default: the one of this script)")
    parser.add_argument("--results", type=Path, help="where to append (default: outputs/mutations.jsonl of ROOT)")
    parser.add_argument("--only", nargs="+", metavar="ID", help="only these faults")
    parser.add_argument(
        "--list", action="store_true", help="show the faults, in the format of the list, and run nothing"
    )
    parser.add_argument("--table", nargs="+", type=Path, metavar="RESULTS", help="show these results side by side")
    parser.add_argument("--python", default=sys.executable, help="the interpreter for the tests (default: this one)")
    parser.add_argument("--processes", type=int, default=2, help="of pytest-xdist (default 2)")
    parser.add_argument("--first", nargs="+", default=FIRST, metavar="PATTERN", help="test files to prefer, in order")
    parser.add_argument(
        "--patience", type=float, default=600, help="seconds without a finished test: hung (default 600)"
    )
    parser.add_argument("--limit", type=float, default=7200, help="seconds for a run of the tests (default 7200)")
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, default=[], help="all that follows goes to pytest")
    args = parser.parse_args(argv)
    if args.table:
        print(table([read_results(path) for path in args.table]))
        return 0
    args.root = args.root.resolve()
    faults = read_faults(args.faults or args.root / "tests" / "mutations" / "faults.json")
    faults += draw(args.root, args.random, args.seed)
    if args.only:
        faults = [fault for fault in faults if fault.id in args.only]
    for fault in faults:
        apply((args.root / fault.file).read_text(encoding="utf-8"), fault)  # refuse a list that does not fit now
    if args.list:
        print(json.dumps([asdict(fault) for fault in faults], indent=2, ensure_ascii=False))
        return 0
    results = args.results or args.root / "outputs" / "mutations.jsonl"
    run(faults, results, args)
    print(table([read_results(results)]))
    return 0


def run(faults: list[Fault], results: Path, args: argparse.Namespace) -> None:
    """Judge the faults that have no result yet, and append each result as it comes."""
    results.parent.mkdir(parents=True, exist_ok=True)
    known = read_results(results)
    results.write_text("".join(json.dumps(result) + "\n" for result in known), encoding="utf-8")
    judged = {(result["id"], result["before"], result["after"]) for result in known}
    left = [fault for fault in faults if (fault.id, fault.before, fault.after) not in judged]
    print(f"{len(faults) - len(left)} faults have a result, {len(left)} are left", flush=True)
    if not left:
        return
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        workshop = Workshop(args.root, Path(folder).resolve(), args)
        for number, fault in enumerate(left, start=1):
            result = workshop.judge(fault)
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            to_go = (time.monotonic() - started) / number * (len(left) - number) / 60
            progress = f"[{number}/{len(left)}] {fault.id} ({fault.file}: {fault.what})"
            print(f"{progress}: {_cell(result)}; about {to_go:.0f} min left", flush=True)


if __name__ == "__main__":
    sys.exit(main())
