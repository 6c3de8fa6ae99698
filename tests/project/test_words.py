"""The field's words: no name in our code is one of those that have a better one, and kinds stand in their registry."""

import ast
import re

import pytest
from helpers.sources import PACKAGE, defined_names, parse, python_files, relative

from plainformer.positions_plainformer import POSITION_KINDS

# What a name may neither be nor hold between underscores, and the field's word for it.
BETTER_WORDS = {
    "real": "token_mask",
    "allowed": "attention_mask or bias",
    "nobody": "fully_masked",
    "places": "indices",
    "ends": "cu_seqlens",
    "longest": "max_seqlen or max_length",
    "runs": "buckets; the folder of a run is a run_folder",
    "share": "mlm_probability",
    "told": "references",
    "said": "predictions or outputs",
    "learnt": "parameters",
    "make_encoder": "make_tokenize",
}
BETTER_WORDS_AS_WRITTEN = {"UNLABELLED": "IGNORE_INDEX", "Count": "num_items_in_batch"}  # `count` is a good word
# Where a kind may be named although it is not the registry, and why.
KINDS_ELSEWHERE = {
    ("plainformer/configuration_plainformer.py", "learned"): "the default of `position_embedding_type`",
    ("scripts/addition.py", "sinusoidal"): "the default of its flag",
    ("plainformer/inference/packed.py", "none"): "no activation, as oneDNN calls it",
    ("plainformer/inference/int8.py", "none"): "the same",
}
# Options of others that take the word "none".
NO_KINDS = {"reduction": "of torch's losses", "report_to": "of transformers' TrainingArguments"}


def better_word(name: str) -> str | None:
    """The word to use instead, if this name holds one that we do not use. The name of a test is a sentence."""
    if name.startswith("test_"):
        return None
    for words, text in ((BETTER_WORDS, name.lower()), (BETTER_WORDS_AS_WRITTEN, name)):
        for word, better in words.items():
            if re.search(rf"(^|_){word}(_|$)", text):
                return better
    return None


def kinds_in(tree: ast.AST) -> dict[str, int]:
    """The kinds that are named in this code, each with the last line; an option of `NO_KINDS` names none."""
    others = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in NO_KINDS:
            others.add(node.value)
        elif isinstance(node, ast.Dict):
            keys = [getattr(key, "value", None) for key in node.keys]
            others |= {value for key, value in zip(keys, node.values, strict=True) if key in NO_KINDS}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node not in others]
    return {
        node.value: node.lineno for node in constants if isinstance(node.value, str) and node.value in POSITION_KINDS
    }


def test_the_check_sees_every_way_to_define_a_name():
    code = """
import a as real
from b import c as told_d
class Count: share: int = 1
def make_encoder_of(places, *, ends=1, **said): self.longest = 2
async def runs(): pass
for UNLABELLED, (nobody, *learnt) in x: pass
with open() as Allowed: pass
try: pass
except E as real_error: pass
lambda told: [real_row for real_row in (ends_here := told)]
match x:
    case {"k": said_1, **share_2}: pass
    case [*runs_3]: pass
"""
    found = {name for _, name in defined_names(ast.parse(code)) if better_word(name)}
    expected = "real told_d Count share make_encoder_of places ends said longest runs UNLABELLED nobody learnt Allowed"
    assert found == {*expected.split(), *"real_error told real_row ends_here said_1 share_2 runs_3".split()}
    assert not [name for name in ("count", "counts", "unlabelled", "really", "shared", "depends") if better_word(name)]
    assert not list(defined_names(ast.parse("f(real=1); x.share(allowed); 'said'")))  # uses, and foreign keywords


@pytest.mark.parametrize("folder", ["plainformer", "scripts", "benchmarks", "studies", "tests"])
def test_names_are_the_words_of_the_field(folder):
    found = [(relative(path), 0, part) for path in python_files(folder) for part in (path.stem, path.parent.name)]
    found += [(relative(path), *line) for path in python_files(folder) for line in defined_names(parse(path))]
    assert len(found) > 50
    wrong = [f"{file}:{line} {name}: say {better_word(name)}" for file, line, name in found if better_word(name)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_a_kind_is_named_in_the_registry_only():
    """Flags, cards and scripts read `POSITION_KINDS`. Longer texts, as helps and errors, may hold a kind's name."""
    assert kinds_in(ast.parse("f(report_to='none', a=['learned']); b = {'reduction': 'none'}; 'is none'")) == {
        "learned": 1
    }
    found = {
        (relative(path), kind): line
        for path in python_files("plainformer", "scripts")
        if path != PACKAGE / "positions_plainformer.py" and "conversion" not in relative(path)
        for kind, line in kinds_in(parse(path)).items()
    }
    wrong = [f"{file}:{line} {kind!r}" for (file, kind), line in found.items() if (file, kind) not in KINDS_ELSEWHERE]
    assert not wrong, "\n" + "\n".join(wrong)
    assert set(KINDS_ELSEWHERE) <= set(found)  # an exception that nobody needs goes
