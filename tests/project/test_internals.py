"""docs/internals.md names files and functions: each exists, and where the page says."""

import ast
import pydoc
import re
from collections.abc import Iterator

import torch
from helpers.positions import check_kind
from helpers.sources import PACKAGE, ROOT, defined_names, parse, python_files

from plainformer.positions_plainformer import POSITION_KINDS, PositionKind

PAGE = ROOT / "docs" / "internals.md"
FILES = {path.relative_to(PACKAGE).as_posix(): path for path in python_files("plainformer")}
# A name, dotted or not, perhaps with arguments or a key behind it; a file, perhaps with a name behind it.
NAME = re.compile(r"([A-Za-z_][\w.]*)(\(.*\)|\[.*\])?")
FILE = re.compile(r"(?:plainformer/)?([\w/]+\.py)(?::([A-Za-z_][\w.]*))?")


def members(tree: ast.AST) -> Iterator[str]:
    """Every name that is defined in a tree, those of a class also as `Class.name`."""
    yield from (name for _, name in defined_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{name}" for _, name in defined_names(node))


NAMES = {name: set(members(parse(path))) for name, path in FILES.items()}


def faults(text: str) -> list[str]:
    """What a page puts into backticks as a file or a name, and the package does not have."""
    wrong, everywhere = [], set().union(*NAMES.values())
    for line in re.sub(r"```.*?```", "", text, flags=re.DOTALL).splitlines():
        file, end = None, 0  # a name right behind a file has to be in it
        for span in re.finditer(r"`([^`]+)`", line):
            word = span[1]
            if file is not None and not re.fullmatch(r"\s*[,:]?\s*", line[end : span.start()]):
                file = None
            end = span.end()
            if match := FILE.fullmatch(word):
                file, name = match.groups()
                if file not in FILES:
                    wrong.append(f"{word}: there is no such file")
                    file = None
                elif name and name not in NAMES[file]:
                    wrong.append(f"{word}: {file} has no {name}")
            elif match := NAME.fullmatch(word):
                name = match[1]
                known = NAMES[file] if file else everywhere
                is_foreign = name.startswith(("torch.", "transformers.")) and pydoc.locate(name) is not None
                if name not in known and not is_foreign:
                    wrong.append(f"{word}: {file or 'the package'} has no {name}")
                file = None
    return wrong


def test_the_check_finds_what_is_not_there():
    good = "`positions_plainformer.py` `sinusoidal_embedding`, `PlainformerConfig.check`, `torch.nn.Linear`, `[B, L]`"
    good += " `positions_plainformer.py:PositionKind.bias` and `POSITION_KINDS[...]`, `hidden_size`"
    assert faults(good) == []
    for bad in (
        "`nowhere.py`",
        "`positions_plainformer.py:nothing`",
        "`positions_plainformer.py` `PlainformerConfig`",
        "`PlainformerConfig.nothing`",
        "`nothing_at_all`",
        "`torch.nn.Nothing`",
    ):
        assert len(faults(bad)) == 1, bad


def test_every_name_on_the_page_exists():
    text = PAGE.read_text(encoding="utf-8")
    assert len(re.findall(r"`[^`]+`", text)) > 20
    assert not faults(text), "\n".join(faults(text))


def test_the_example_of_a_kind_works(monkeypatch, tmp_path):
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[1]
    kinds = dict(POSITION_KINDS)
    exec(block, {"torch": torch, "nn": torch.nn, "PositionKind": PositionKind, "POSITION_KINDS": kinds})
    (name,) = kinds.keys() - POSITION_KINDS.keys()
    monkeypatch.setitem(POSITION_KINDS, name, kinds[name])
    check_kind(name, tmp_path)


def test_the_example_of_positions_at_random_works(capsys):
    block = re.search(r"```python\n(.*?)```", (ROOT / "docs" / "positions.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(block[1], {})
    assert capsys.readouterr().out == "torch.Size([2, 4096, 64])\n"
