"""The project's own files, as syntax trees."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "plainformer"
SUITE = ROOT / "tests" / "hf_suite"  # it takes names from transformers' own tests


def python_files(*folders: str) -> list[Path]:
    """Every Python file below these folders of the repository, in order; the adapter of transformers' suite is out."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in files if SUITE not in path.parents]


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def relative(path: Path) -> str:
    """`plainformer/recipes/data.py`: how a file is named in messages."""
    return path.relative_to(ROOT).as_posix()


def defined_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of all that is defined: functions, classes, parameters, variables, attributes, imports' aliases."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield line, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield line, name
            case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
                yield line, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                yield line, name
