"""How `bash scripts/hf_suite.sh` gets at transformers' own tests, and that it runs them on all there is."""

import importlib.util
import io
import os
import subprocess
import tarfile
from itertools import product
from pathlib import Path

import pytest
import transformers
from helpers.processes import fast_python, run_process
from transformers import PreTrainedModel
from transformers.pipelines import SUPPORTED_TASKS

import plainformer
from plainformer.positions_plainformer import POSITION_KINDS

ROOT = Path(__file__).resolve().parents[2]
# Their tests of the pipelines that Plainformer has a class for.
TASKS = ["feature_extraction", "fill_mask", "text_classification", "token_classification", "zero_shot"]
TASKS += ["question_answering"] if "question-answering" in SUPPORTED_TASKS else []
# Lays out an archive, and runs the adapter's pipelines: there is nothing for the other files to import.
RUN_THEIRS = """
import sys, pathlib, hf_suite
archive, folder = map(pathlib.Path, sys.argv[1:3])
hf_suite.lay_out(archive, folder)
for kind in ("modeling", "tokenization"):
    (folder / hf_suite.TARGETS[f"{kind}.py"]).unlink()
sys.exit(hf_suite.run_pytest(folder, sys.argv[3:]))
"""


def load(file: Path):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def suite():
    return load(ROOT / "scripts" / "hf_suite.py")


@pytest.fixture
def archive(tmp_path) -> Path:
    """As transformers' own is laid out: a test file that imports what is not there, and more that is not wanted."""
    files = {
        "transformers-1/tests/test_modeling_common.py": (
            "from .generation.test_utils import GenerationTesterMixin\n"
            "from .pipelines.test_pipelines_fill_mask import FillMaskPipelineTests\n"
            "from .pipelines.test_pipelines_any_to_any import (\n    AnyToAnyPipelineTests,\n    Other,\n)\n"
            'LATER = "tests.pipelines.test_pipelines_zero_shot.ZeroShotClassificationPipelineTests"\n'
        ),
        "transformers-1/tests/../../test_escape.py": "",
        "transformers-1/src/transformers/test_not_a_test.py": "",
    }
    return pack(files, tmp_path)


def pack(files: dict[str, str], tmp_path: Path) -> Path:
    path = tmp_path / "transformers-1.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def test_adapter_names_every_class_and_every_variant():
    subject = load(ROOT / "tests" / "hf_suite" / "subject.py")
    exported = {getattr(plainformer, name) for name in plainformer.__all__}
    models = {thing for thing in exported if isinstance(thing, type) and issubclass(thing, PreTrainedModel)}
    adapted = {*subject.MODELS.values(), *subject.SEQ2SEQ_MODELS.values()}
    assert adapted == models - {plainformer.PlainformerPreTrainedModel}

    variants = [(choice["position_embedding_type"], choice["pre_norm"]) for choice in subject.VARIANTS.values()]
    assert sorted(variants) == sorted(product(POSITION_KINDS, (False, True)))
    for choices in subject.VARIANTS.values():
        plainformer.PlainformerSeq2SeqConfig(**subject.TINY, **choices)


def test_their_tests_are_laid_out_beside_ours(suite, archive, tmp_path):
    folder = tmp_path / "laid-out"
    folder.mkdir()
    suite.lay_out(archive, folder)

    assert {path.name for path in tmp_path.iterdir()} == {archive.name, "laid-out"}
    theirs = {path.name for path in folder.glob("tests/test_*.py")}
    assert theirs == {"test_modeling_common.py"}
    for path in suite.TARGETS.values():
        assert (folder / path).is_file()
    assert (folder / "src" / "transformers").resolve() == Path(transformers.__file__).resolve().parent

    code = """
from tests import test_modeling_common as theirs
from tests.models.plainformer import pipeline_checks as ours
from tests.pipelines.test_pipelines_zero_shot import ZeroShotClassificationPipelineTests
assert theirs.FillMaskPipelineTests is ours.FillMaskPipelineTests
assert ZeroShotClassificationPipelineTests is ours.ZeroShotClassificationPipelineTests
print(theirs.GenerationTesterMixin.__name__, theirs.AnyToAnyPipelineTests.__name__, theirs.Other.__name__)
"""
    output = subprocess.run([fast_python(), "-c", code], cwd=folder, check=True, capture_output=True, text=True).stdout
    assert output.split() == ["GenerationTesterMixin", "AnyToAnyPipelineTests", "Other"]


def run_theirs(tasks: list[str], tmp_path: Path, *words: str) -> subprocess.CompletedProcess:
    """The pipelines of our adapter with a mixin that has an empty test of these tasks, and a base that is not there."""
    mixin = "from .generation.test_utils import GenerationTesterMixin, Other\n"
    mixin += "tiny_model_summary, TRANSFORMERS_TINY_MODEL_PATH = {}, None\n"
    mixin += "class PipelineTesterMixin(GenerationTesterMixin):\n"
    mixin += "".join(f"    def test_pipeline_{task}(self): pass\n" for task in tasks)
    archive = pack({"transformers-1/tests/test_pipeline_mixin.py": mixin}, tmp_path)
    (tmp_path / "laid-out").mkdir()
    return run_process(
        [fast_python(), "-c", RUN_THEIRS, archive, tmp_path / "laid-out", "-k", "PipelineTest", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts")])},
    )


def test_mixins_that_are_stand_ins_are_named(tmp_path):
    done = run_theirs([*TASKS, "mask_generation"], tmp_path, "-n", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    names, numbers = done.stdout.splitlines()[-3:-1]
    subject = load(ROOT / "tests" / "hf_suite" / "subject.py")
    assert names == "not run, as the archive leaves them out: the tests of GenerationTesterMixin"
    assert numbers == f"passed {len(subject.VARIANTS) * len(TASKS)}, skipped by them 0, skipped by us 0, failed 0"
    assert "Other" not in done.stdout


def test_pipelines_without_a_test_are_an_error(tmp_path):
    """Whatever else was asked for; a test of another name than its pipeline's would not have been collected."""
    tasks = ["fill_masks" if task == "fill_mask" else task for task in TASKS if task != "zero_shot"]
    done = run_theirs(tasks, tmp_path, "-n", "0")
    assert done.returncode != 0
    assert "PipelineTesterMixin has no test of fill-mask, zero-shot: was it renamed?" in done.stdout


def test_archive_is_fetched_once(suite, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(SystemExit, match="could not fetch the source archive of transformers 4.57.6"):
        suite.fetch_archive("4.57.6", cache)

    archive = cache / "transformers-4.57.6.tar.gz"
    archive.parent.mkdir(exist_ok=True)
    archive.write_bytes(b"fetched before")
    assert suite.fetch_archive("4.57.6", cache) == archive


def test_nothing_of_theirs_is_collected_with_our_tests():
    assert not list((ROOT / "tests" / "hf_suite").rglob("test_*.py"))
    assert not list((ROOT / "tests" / "hf_suite").rglob("conftest.py"))
