"""Run transformers' own model tests against every Plainformer class, position kind and norm placement.

The tests are in the source archive of transformers and nowhere else: pip fetches that of the installed version. They
are laid out in a temporary folder beside an adapter of ours (tests/hf_suite) that names the classes, and stand-ins for
the modules that the archive leaves out. Nothing of theirs is kept but the archive, in the environment.

    python scripts/hf_suite.py [words for pytest, such as -k resize]
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import transformers

ADAPTER = Path(__file__).resolve().parent.parent / "tests" / "hf_suite"
# Files of the adapter, and their paths in the tree of transformers.
TARGETS = {
    "hooks.py": "conftest.py",
    "subject.py": "tests/models/plainformer/subject.py",
    "modeling.py": "tests/models/plainformer/test_modeling_plainformer.py",
    "pipelines.py": "tests/models/plainformer/test_pipelines_plainformer.py",
    "pipeline_checks.py": "tests/models/plainformer/pipeline_checks.py",
    "tokenization.py": "tests/models/plainformer/test_tokenization_plainformer.py",
    "configuration_utils.py": "tests/utils/test_configuration_utils.py",
    "sample_text.txt": "tests/fixtures/sample_text.txt",
}
TWO_PROCESSES = ["-n", "2", "--dist", "worksteal"]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _, pytest_words = parser.parse_known_args(argv)
    archive = fetch_archive(transformers.__version__, Path(sys.prefix) / "hf-suite")
    with tempfile.TemporaryDirectory(prefix="hf-suite-") as folder:
        lay_out(archive, Path(folder))
        return run_pytest(Path(folder), pytest_words)


def fetch_archive(version: str, cache: Path) -> Path:
    """The source archive of transformers, downloaded the first time only."""
    archive = cache / f"transformers-{version}.tar.gz"
    if archive.exists():
        return archive
    print(f"==> fetching the source archive of transformers {version}", flush=True)
    options = ["--no-deps", "--no-binary", "transformers", "--no-build-isolation", "--dest", cache]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *options]
    if subprocess.run([*map(str, pip), f"transformers=={version}"]).returncode or not archive.exists():
        sys.exit(
            f"\nerror: pip could not fetch the source archive of transformers {version}; the lines above say why.\n"
            "       The tests are in that archive only: check the connection, or put the archive there yourself:\n"
            f"       {archive}"
        )
    return archive


def lay_out(archive: Path, folder: Path) -> None:
    """The tree that their tests expect: tests/, with ours in it, and the installed package as src/transformers."""
    tests = folder / "tests"
    tests.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar:
            name = re.fullmatch(r"[^/]+/tests/(test_\w+\.py)", member.name)
            if name and member.isfile():
                (tests / name[1]).write_bytes(tar.extractfile(member).read())
    for ours, path in TARGETS.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ADAPTER / ours).read_bytes())
    (tests / "utils" / "tiny_model_summary.json").write_text("{}")
    write_stand_ins(tests)
    for package in [tests, *(path for path in tests.rglob("*") if path.is_dir())]:
        (package / "__init__.py").touch()
    (folder / "pytest.ini").touch()  # no settings from a folder above
    (folder / "src").mkdir()
    (folder / "src" / "transformers").symlink_to(Path(transformers.__file__).parent, target_is_directory=True)


def write_stand_ins(tests: Path) -> None:
    """Modules that theirs import and the archive leaves out: each name is ours where we have one, or an empty class.

    The class says of itself that it is none of theirs, so that the run can name the mixins whose tests it has not.
    """
    checks = re.findall(r"^class (\w+PipelineTests)", (ADAPTER / "pipeline_checks.py").read_text(), re.M)
    missing: dict[Path, set[str]] = {}
    for source in tests.glob("test_*.py"):
        text = source.read_text(encoding="utf-8")
        imports = re.findall(r"^from \.([\w.]+) import (\([^)]*\)|.*)$", text, re.M)
        imports += re.findall(r"\"tests\.(pipelines\.\w+)\.(\w+)\"", text)  # imported when a test asks for it
        for module, names in imports:
            path = tests / (module.replace(".", "/") + ".py")
            if not path.exists():
                missing.setdefault(path, set()).update(re.findall(r"\w+", names))
    for path, names in missing.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        ours = "from tests.models.plainformer.pipeline_checks import {}\n"
        empty = "class {}:\n    is_stand_in = True\n"
        path.write_text("".join((ours if n in checks else empty).format(n) for n in sorted(names)))


def run_pytest(folder: Path, words: list[str]) -> int:
    env = {"OMP_NUM_THREADS": "1", **os.environ, "HF_HUB_OFFLINE": "1", "PYTEST_ADDOPTS": ""}
    options = ["-q", "--rootdir", folder, "--disable-warnings", "-p", "no:cacheprovider", "-rN", *TWO_PROCESSES]
    command = [sys.executable, "-m", "pytest", *options, folder / "tests" / "models", *words]
    return subprocess.run(list(map(str, command)), cwd=folder, env=env).returncode


if __name__ == "__main__":
    sys.exit(main())
