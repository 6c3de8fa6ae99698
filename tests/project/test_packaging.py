"""What pip installs: the files, the metadata, and an import that costs little and drags nothing along."""

import configparser
import email
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import transformers
from helpers.processes import fast_python
from packaging.requirements import Requirement

import plainformer

ROOT = Path(__file__).resolve().parents[2]


def run_python(*args: object, cwd: Path, path: Path, python: str | Path = sys.executable) -> str:
    """What a new process prints that finds plainformer in the folder `path` only, or finds it there first."""
    return subprocess.run(
        [python, *map(str, args)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path)},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that nothing is left behind in the checkout."""
    copy = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "plainformer", copy / "plainformer", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    output = tmp_path_factory.mktemp("wheel")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", output]
    run_python("-m", "pip", "wheel", *options, copy, cwd=copy, path=copy)
    (built,) = output.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode())


def test_wheel_holds_the_package_and_nothing_else(wheel):
    assert wheel.name == f"plainformer-{plainformer.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "plainformer").rglob("*.py")}
    info = f"plainformer-{plainformer.__version__}.dist-info"
    assert {name for name in names if not name.startswith(info)} == package | {"plainformer/py.typed"}
    assert f"{info}/licenses/LICENSE" in names


def test_metadata(metadata):
    assert metadata["Name"] == "plainformer"
    assert metadata["Version"] == plainformer.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["Description-Content-Type"] == "text/markdown"
    needed = {str(Requirement(line)) for line in metadata.get_all("Requires-Dist") if "extra ==" not in line}
    assert needed == {
        "torch>=2.6",
        str(Requirement("transformers>=4.57,<6,!=5.0.*,!=5.1.*,!=5.2.*")),
        "tokenizers",
        "safetensors",
        "typing_extensions",
    }
    assert set(metadata.get_all("Provides-Extra")) == {
        "train",
        "plots",
        "quickstart",
        "data",
        "ecosystem",
        "benchmark",
        "test",
        "dev",
    }


def test_installed_wheel_imports_saves_and_shares(wheel, tmp_path):
    """Installed apart from the checkout, it finds its version and all files that a checkpoint needs."""
    site = tmp_path / "site"
    run_python("-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel, cwd=tmp_path, path=site)
    code = """
import importlib.metadata, plainformer, transformers
config = plainformer.PlainformerConfig(
    vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
)
plainformer.PlainformerModel(config).save_pretrained("saved")
first = plainformer.PlainformerModel
importlib.reload(plainformer)
import plainformer
assert plainformer.PlainformerModel is first  # an import survives being repeated and reloaded
assert transformers.AutoConfig.for_model("plainformer").model_type == "plainformer"
print(plainformer.__file__, plainformer.__version__, importlib.metadata.version("plainformer"))
"""
    file, version, installed_version = run_python("-c", code, cwd=tmp_path, path=site, python=fast_python()).split()
    assert Path(file) == site / "plainformer" / "__init__.py"
    assert version == installed_version == plainformer.__version__
    saved = {path.name for path in (tmp_path / "saved").iterdir()}
    assert {"config.json", "model.safetensors", "modeling_plainformer.py", "configuration_plainformer.py"} <= saved


def test_every_direct_dependency_is_pinned_within_its_range():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["install_requires"] + "".join(config["options.extras_require"].values())
    required = {r.name: r.specifier for r in map(Requirement, lines.split()) if r.name != "plainformer"}
    pins = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1].isalnum()]
    for pin in pins:
        (equal,) = pin.specifier
        assert equal.operator == "==" and required[pin.name].contains(equal.version), pin
    # transformers bounds tokenizers itself, differently at both ends; setuptools is bounded by torch.
    assert required.keys() - {pin.name for pin in pins} == {"tokenizers", "setuptools"}


def test_import_is_quick_and_brings_nothing_heavy_along():
    """In forks of one process: which modules plainformer adds, and in how many CPU seconds, beside BERT's own.

    CPU seconds, so that a busy machine does not count. Both need the same parts of transformers, which differ by
    version. Up to transformers 5.3 the Auto classes import generation, and with it scikit-learn where it is installed:
    that costs anyone who registers with them a second, and comes first here.
    """
    heavy = ", AutoModel" if transformers.__version__.startswith(("4.", "5.3.")) else ""
    code = f"""
import json, os, sys, time
from transformers import PreTrainedModel{heavy}
for statement in ["import plainformer", "from transformers import BertModel"] * 5:
    if os.fork() == 0:
        before, started = set(sys.modules), time.process_time()
        exec(statement)
        print(json.dumps([time.process_time() - started, sorted(set(sys.modules) - before)]), flush=True)
        os._exit(0)
    os.wait()
"""
    lines = run_python("-c", code, cwd=ROOT, path=ROOT).splitlines()
    seconds, added = zip(*map(json.loads, lines), strict=True)
    ours, berts = seconds[::2], seconds[1::2]
    assert len(ours) == len(berts) == 5
    assert min(ours) < min(berts) + 0.1, (ours, berts)  # the rest of a longer run is the machine's, not ours

    assert "plainformer.modeling_plainformer" in added[0]
    unwanted = (
        r"(datasets|accelerate|sklearn|seqeval|matplotlib|transformers\.models\.bert|transformers\.trainer)(\.|$)"
    )
    assert [name for name in added[0] if re.match(unwanted, name)] == []
