"""What every recipe can do: several processes, bfloat16 with recomputed activations, logs, a folder to upload."""

import json
import os
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
import transformers
from helpers.processes import fast_python, run_process
from helpers.recipes import (
    NO_DROPOUT,
    ROOT,
    TINY,
    conll,
    make_python_tokenizer,
    make_questions,
    make_rows,
    make_sentences,
    weights,
    write,
)
from transformers import AutoTokenizer

from plainformer.recipes.errors import RecipeError
from plainformer.sharing import files as shareable_files

SCRIPTS = ROOT / "scripts"
MORE = "the model fine-tunes in the other recipes with"
TOKENIZER = "BertJapaneseTokenizer"
RECIPES = ("run_classification", "run_ner", "run_qa", "run_mlm", "run_seq2seq")
# Trains each recipe of a JSON file, {name: arguments}, one after another.
TRAIN_ALL = """
import importlib, json, sys
sys.path.insert(0, sys.argv[1])
for name, words in json.load(open(sys.argv[2])).items():
    importlib.import_module(name).main(words)
"""
# Opens each folder as a stranger does.
CHECK_ALL = """
import json, pathlib, sys
sys.path.insert(0, sys.argv[1])
import stranger
sys.meta_path.insert(0, stranger.NoPlainformer)
folders = map(pathlib.Path, sys.argv[2:])
print(json.dumps({folder.name: stranger.check(folder, with_tokenizer=True)["class"] for folder in folders}))
"""


@pytest.fixture
def files(tmp_path) -> dict[str, list]:
    """For each recipe the flags of 16 rows to train on and 6 to evaluate on."""
    kinds = {
        "run_classification": ("csv", make_rows),
        "run_ner": ("conll", lambda *args, **seed: conll(make_sentences(*args, **seed))),
        "run_qa": ("jsonl", make_questions),
        "run_mlm": ("csv", make_rows),
        "run_seq2seq": ("csv", make_rows),
    }
    flags = {}
    for name, (kind, make) in kinds.items():
        train, dev = tmp_path / f"{name}.{kind}", tmp_path / f"{name}-dev.{kind}"
        write(train, make(16)), write(dev, make(6, seed=1))
        flags[name] = ["--train_file", train, "--validation_file", dev]
    flags["run_qa"] += ["--doc_stride", 4]
    flags["run_seq2seq"] += ["--target_column_name", "label"]
    return flags


def read_words(folder: Path) -> torch.Tensor:
    """The saved word embeddings."""
    return weights(folder)["plainformer.embeddings.word_embeddings.weight"]


def arguments(name: str, files: dict[str, list], folder: Path, *flags) -> list[str]:
    always = ["--max_seq_length", 16, "--use_cpu", "true", "--disable_tqdm", "true", "--cache_dir", folder / "cache"]
    return [str(word) for word in (*files[name], *TINY, *always, "--output_dir", folder / name, *flags)]


@pytest.mark.parametrize("name", RECIPES)
def test_help(name, capsys):
    with pytest.raises(SystemExit) as stopped:
        import_module(name).main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert "--train_file FILE --output_dir FOLDER" in text and "--position_embedding_type" in text
    assert "(default: 30522)" in re.sub(r"\s+", " ", text) and "<object" not in text


@pytest.mark.parametrize("name", RECIPES)
def test_the_end_says_where_everything_is(name, files, tmp_path, capsys):
    """Model, metrics and predictions, in three lines, the first of which loads the model."""
    test = [] if name == "run_mlm" else ["--test_file", files[name][3]]
    import_module(name).main(arguments(name, files, tmp_path, "--max_steps", 1, *test))
    model, metrics, predictions = capsys.readouterr().out.splitlines()[-3:]
    place, load, load_tokenizer = re.fullmatch(
        r"model: (.*); load it with (.*), its tokenizer with (.*)", model
    ).groups()
    assert Path(place) == tmp_path / name
    auto = load.partition(".")[0]
    loaded = eval(load, {auto: getattr(transformers, auto)})
    assert len(eval(load_tokenizer, {"AutoTokenizer": AutoTokenizer})) == loaded.config.vocab_size
    assert load_tokenizer.endswith("trust_remote_code=True)")
    assert loaded.config.model_type == ("plainformer-seq2seq" if name == "run_seq2seq" else "plainformer")
    assert torch.equal(loaded.base_model.embeddings.word_embeddings.weight, read_words(tmp_path / name))
    assert "train_loss" in json.loads(Path(metrics.removeprefix("metrics: ")).read_text())
    if name == "run_mlm":
        assert predictions == f"predictions: none; {MORE} --model_name_or_path {place}"
    else:
        assert Path(predictions.removeprefix("predictions: ")).read_text()


def test_two_processes_train_as_one(files, tmp_path):
    """Batches of two in each of two processes give the model, and the figures, of batches of four in one."""
    plan = ["--max_steps", 2, "--optim", "sgd", "--learning_rate", 0.5, "--max_grad_norm", 0, *NO_DROPOUT]
    jobs = {
        name: arguments(name, files, tmp_path / "two", *plan, "--per_device_train_batch_size", 2) for name in RECIPES
    }
    launcher = write(tmp_path / "train_all.py", TRAIN_ALL)
    run = run_process(
        [fast_python(), "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", launcher, SCRIPTS]
        + [write(tmp_path / "jobs.json", json.dumps(jobs))],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr[-2000:]
    for name in RECIPES:
        words = arguments(name, files, tmp_path / "one", *plan, "--per_device_train_batch_size", 4)
        metrics = import_module(name).main(words)
        ours, theirs = weights(tmp_path / "two" / name), weights(tmp_path / "one" / name)
        for key, weight in theirs.items():
            torch.testing.assert_close(ours[key], weight, rtol=1e-4, atol=1e-5, msg=f"{name}: {key}")
        together = json.loads((tmp_path / "two" / name / "eval_results.json").read_text())
        # Trainer's own loss is a mean over batches, which are others here; that of run_mlm is over tokens.
        passed_over = ("runtime", "per_second", "epoch", "time", *(() if name == "run_mlm" else ("loss",)))
        figures = [key for key in together if not any(part in key for part in passed_over)]
        assert len(figures) >= 3, name
        for key in figures:
            assert together[key] == pytest.approx(metrics[key], rel=1e-3, abs=1e-4), (name, key)


def test_other_ways_to_train_and_a_folder_to_upload(files, tmp_path, monkeypatch, capsys):
    """In bfloat16, with recomputed activations, accumulated gradients and logs; then opened by a stranger."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # TrainingArguments sets it for all that follows
    plan = "--bf16 --gradient_checkpointing --gradient_accumulation_steps 2 --per_device_train_batch_size 2".split()
    plan += ["--max_steps", 2, "--eval_steps", 2, "--logging_steps", 1, "--report_to", "tensorboard"]
    for name in RECIPES:
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "logs" / name))
        metrics = import_module(name).main(arguments(name, files, tmp_path, *plan))
        assert metrics["train_loss"] > 0 and metrics["eval_loss"] > 0
        events = [*(tmp_path / "logs" / name).rglob("events.*"), *(tmp_path / name).rglob("events.*")]
        scalars = EventAccumulator(str(events[0].parent)).Reload().Tags()["scalars"]
        assert {"train/loss", "train/learning_rate", "eval/loss"} <= set(scalars), name
        saved = weights(tmp_path / name)
        assert all(weight.dtype == torch.float32 for weight in saved.values())  # the copy that was trained

    staged = []
    for name in RECIPES:
        files_of = shareable_files.sort_files(tmp_path / name)
        shareable_files.check_model(tmp_path / name, files_of, needs_tokenizer=True)
        assert {"training_args.bin", "recipe.json"} <= set(files_of.stays)
        shareable_files.stage(files_of, tmp_path / "staged" / name)
        staged.append(tmp_path / "staged" / name)
    hidden = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    run = run_process(
        [fast_python(), "-c", CHECK_ALL, ROOT / "plainformer" / "sharing", *staged],
        env={**hidden, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert json.loads(run.stdout.splitlines()[-1]) == {
        "run_classification": "PlainformerForSequenceClassification",
        "run_ner": "PlainformerForTokenClassification",
        "run_qa": "PlainformerForQuestionAnswering",
        "run_mlm": "PlainformerForMaskedLM",
        "run_seq2seq": "PlainformerForConditionalGeneration",
    }


@pytest.mark.parametrize("name", RECIPES)
def test_tokenizers_written_in_python(name, files, tmp_path, capsys):
    """They do where no word has to be found; what needs to know the words says so, and what to do."""
    folder = make_python_tokenizer(tmp_path, ["abcdefghijklmnopqrstuvwxyz"])
    words = arguments(name, files, tmp_path, "--tokenizer_name", folder, "--max_steps", 1)
    run = import_module(name).main
    if name in ("run_classification", "run_mlm", "run_seq2seq"):
        assert run(words)["eval_loss"] > 0
        assert type(AutoTokenizer.from_pretrained(tmp_path / name, trust_remote_code=False)).__name__ == TOKENIZER
    if name == "run_classification":  # all texts of more than 14 letters are cut
        cut = sum(len(row["text"].replace(" ", "")) > 14 for row in make_rows(16))
        assert f"train: {cut} of 16 texts are longer than 16 tokens" in capsys.readouterr().out
    if name in ("run_classification", "run_seq2seq"):
        return
    words = [*words, *(["--whole_word_masking"] if name == "run_mlm" else []), "--output_dir", str(tmp_path / "second")]
    with pytest.raises(
        RecipeError, match=f"{TOKENIZER} is written in Python and cannot say which word.*tokenizer.json"
    ):
        run(words)
