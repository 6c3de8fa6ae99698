"""How the files hang together: those that travel with a checkpoint, and how long a function may be."""

import ast

import pytest
from helpers.sources import PACKAGE, parse, python_files, relative

# The files that an `auto_map` names: what each brings along, an encoder's checkpoint or an encoder-decoder's.
ENCODER, SEQ2SEQ = "modeling_plainformer", "modeling_seq2seq_plainformer"
# The files that `save_pretrained` copies beside a checkpoint. A tokenizer is saved as transformers' own class.
TRAVELLING = sorted(path.stem for path in PACKAGE.glob("*_plainformer.py") if path.stem != "tokenization_plainformer")
LINES = 40
# Longer ones, and why they cannot be split.
LONGER = {"plainformer/configuration_plainformer.py PlainformerConfig.__init__": "two lines for each field"}


def imports(stem: str) -> list[ast.Import | ast.ImportFrom]:
    """Every import statement of a file, those inside functions and conditions too."""
    nodes = ast.walk(parse(PACKAGE / f"{stem}.py"))
    return [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]


def siblings(stem: str) -> set[str]:
    """The modules of the package that a file imports."""
    return {node.module for node in imports(stem) if isinstance(node, ast.ImportFrom) and node.level}


@pytest.mark.parametrize("stem", TRAVELLING)
def test_a_file_that_travels_imports_only_what_travels_with_it(stem):
    """From `.sibling`, since a stranger's cache knows no folders, and the package may not be installed."""
    for node in imports(stem):
        if isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.split(".")[0] == "plainformer"]
        elif node.level:
            assert node.level == 1 and node.module in TRAVELLING, ast.unparse(node)
        else:
            assert node.module.split(".")[0] != "plainformer", ast.unparse(node)


def needed_by(stem: str) -> set[str]:
    """What a file imports from beside it, and what that imports, and so on."""
    needed, queue = set(), [stem]
    while queue:
        new = siblings(queue.pop()) - needed
        needed |= new
        queue += new
    return needed


@pytest.mark.parametrize("stem", [ENCODER, SEQ2SEQ, "configuration_plainformer", "configuration_seq2seq_plainformer"])
def test_a_file_of_an_auto_map_imports_every_file_it_needs(stem):
    """transformers 4.57 copies only what this file imports itself."""
    assert needed_by(stem) - {stem} == siblings(stem)


def test_the_files_of_an_encoder_are_some_of_those_of_an_encoder_decoder():
    encoder, whole = needed_by(ENCODER) | {ENCODER}, needed_by(SEQ2SEQ) | {SEQ2SEQ}
    assert "configuration_plainformer" in encoder and encoder < whole
    assert whole == set(TRAVELLING)
    assert whole - encoder == {SEQ2SEQ} | {
        f"{name}_plainformer" for name in ("causal_attention", "configuration_seq2seq", "decoder", "pairs", "targets")
    }


def functions(tree: ast.AST, prefix: str = ""):
    """Every function, with its name as `Class.method` or `outer.inner`."""
    for node in ast.iter_child_nodes(tree):
        is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        if is_function:
            yield prefix + node.name, node
        yield from functions(node, f"{prefix}{node.name}." if is_function or isinstance(node, ast.ClassDef) else prefix)


def length(function: ast.FunctionDef) -> int:
    """Lines from `def` to the end, its docstring left out."""
    docstring = function.body[0] if ast.get_docstring(function) is not None else None
    documented = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
    return function.end_lineno - function.lineno + 1 - documented


def test_a_function_fits_on_a_screen():
    found = {
        f"{relative(path)} {name}": length(function)
        for path in python_files("plainformer", "scripts", "benchmarks", "studies")
        for name, function in functions(parse(path))
        if name != "main"
    }
    assert len(found) > 400 and set(LONGER) <= set(found)
    longer = {name: lines for name, lines in found.items() if lines > LINES}
    assert set(longer) == set(LONGER), longer


@pytest.mark.parametrize("stem", [ENCODER, SEQ2SEQ])
def test_a_modeling_file_can_be_read_at_one_sitting(stem):
    assert len((PACKAGE / f"{stem}.py").read_text(encoding="utf-8").splitlines()) < 600
