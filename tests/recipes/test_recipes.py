"""What the recipes have in common, through run_classification: data in, errors before training, resuming, results."""

import csv
import functools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import prepare_data
import pytest
import run_classification
import torch
import transformers
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from helpers.processes import fast_python
from helpers.recipes import (
    ROOT,
    SIZES,
    TINY,
    assert_same_run,
    documented_commands,
    fail_at,
    grouped_by_length,
    in_process,
    load,
    make_bert,
    make_rows,
    stop_at,
    weights,
    write,
)
from run_classification import main
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, EvalPrediction, PreTrainedTokenizerFast

from plainformer import (
    PlainformerConfig,
    PlainformerForMaskedLM,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
)
from plainformer.positions_plainformer import POSITION_KINDS, PositionKind
from plainformer.recipes import columns, splits
from plainformer.recipes.arguments import ARCHITECTURE, DataArguments, ModelArguments, choose_metric, parse_args
from plainformer.recipes.errors import DataError, RecipeError
from plainformer.recipes.metrics import score_multi, score_regression, score_single
from plainformer.recipes.models import load_model
from plainformer.recipes.run_folder import open_run
from plainformer.recipes.training import Terminated, launch
from plainformer.tokenization_plainformer import SPECIAL_TOKENS, train_tokenizer


@pytest.fixture
def files(tmp_path):
    """`--train_file` with 24 rows and `--validation_file` with 8."""
    train, dev = write(tmp_path / "train.csv", make_rows(24)), write(tmp_path / "dev.csv", make_rows(8, seed=1))
    return ["--train_file", train, "--validation_file", dev]


@pytest.fixture
def run(tmp_path):
    """The recipe with these flags, in this process; its cache is the test's own."""
    return in_process(main, tmp_path)


# Training


def test_learns_and_writes_everything(run, tmp_path, capsys):
    train, dev = write(tmp_path / "train.csv", make_rows(64)), write(tmp_path / "dev.csv", make_rows(16, seed=1))
    test = write(tmp_path / "test.csv", [{"text": row["text"]} for row in make_rows(6, seed=2)])
    flags = ["--train_file", train, "--validation_file", dev, "--test_file", test, *TINY]
    metrics = run(*flags, "--num_train_epochs", 6, "--learning_rate", 0.01, "--classifier_pooling", "mean")
    assert metrics["eval_accuracy"] == metrics["eval_f1"] == 1
    assert (metrics["train_samples"], metrics["eval_samples"]) == (64, 16)
    assert "single_label_classification: neg, pos" in capsys.readouterr().out

    folder = tmp_path / "out"
    assert json.loads((folder / "eval_results.json").read_text())["eval_accuracy"] == 1
    assert json.loads((folder / "all_results.json").read_text())["train_samples"] == 64
    with open(folder / "predictions.csv", encoding="utf-8", newline="") as file:
        predictions = list(csv.DictReader(file))
    assert [row["prediction"] for row in predictions] == ["neg", "pos"] * 3
    assert [row["index"] for row in predictions] == list("012345")
    assert all(0.5 < float(row["probability"]) <= 1 for row in predictions)
    assert json.loads((folder / "recipe.json").read_text())["status"] == "finished"

    # The folder is a model like any other.
    model = PlainformerForSequenceClassification.from_pretrained(folder)
    assert model.config.label2id == {"neg": 0, "pos": 1}
    assert model.config.problem_type == "single_label_classification"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    logits = model(**tokenizer(["superb film"], return_tensors="pt")).logits
    assert model.config.id2label[logits.argmax().item()] == "pos"


def parse(*flags, out: str = "out") -> tuple:
    """The arguments of a run, for what follows from them alone."""
    return parse_args(DataArguments, ["--output_dir", out, *flags], "")


@pytest.mark.parametrize("kind", POSITION_KINDS)
@pytest.mark.parametrize("pre_norm", [True, False], ids=["pre", "post"])
def test_builds_every_variant(tmp_path, kind, pre_norm):
    flags = ["--position_embedding_type", kind, "--pre_norm", pre_norm, "--max_seq_length", 16]
    arguments = parse("--train_file", "x.csv", *TINY, *flags, out=tmp_path / "out")
    tokenizer = train_tokenizer([row["text"] for row in make_rows(8)], show_progress=False)
    config = load_model(open_run("test", arguments, PlainformerForMaskedLM), tokenizer).config
    assert (config.position_embedding_type, config.pre_norm) == (kind, pre_norm)
    assert {name: getattr(config, name) for name in SIZES} == SIZES


def test_a_new_position_kind_is_accepted(run, files, tmp_path, monkeypatch):
    """What the registry says of it is enough: the flag takes it, and its limit is kept to."""
    kind = PositionKind("positions of a test", embeddings=POSITION_KINDS["sinusoidal"].embeddings, has_limit=True)
    monkeypatch.setitem(POSITION_KINDS, "toy", kind)
    flags = [*files[:2], *TINY, "--position_embedding_type", "toy", "--max_steps", 1]
    with pytest.raises(RecipeError, match="--max_seq_length 17 is more than the 16 positions"):
        run(*flags, "--max_seq_length", 17)
    run(*flags)
    assert PlainformerConfig.from_pretrained(tmp_path / "out").position_embedding_type == "toy"


def test_a_copied_recipe_works_from_an_empty_folder(files, tmp_path):
    """Where plainformer is installed, one file is enough."""
    folder = tmp_path / "empty"
    folder.mkdir()
    shutil.copy(ROOT / "scripts" / "run_classification.py", folder)
    words = [*files[:2], *TINY, "--max_steps", 1, "--max_seq_length", 16, "--cache_dir", tmp_path / "cache"]
    command = [fast_python(), "run_classification.py", *words, "--output_dir", "out", "--use_cpu", "true"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    finished = subprocess.run([str(word) for word in command], cwd=folder, env=env, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert (folder / "out" / "train_results.json").exists()


def test_every_choice_of_architecture_reaches_the_model(run, files, tmp_path):
    chosen = {"position_embedding_type": "sinusoidal", "pre_norm": True, "embedding_norm": False}
    chosen |= {"scale_embedding": True, "max_position_embeddings": 40, "initializer_range": 0.5, **SIZES}
    chosen |= {"randomize_positions": 64}
    assert set(chosen) == set(ARCHITECTURE)
    flags = [word for name, value in chosen.items() for word in (f"--{name}", value)]
    run(*files[:2], *TINY, *flags, "--max_steps", 1, "--learning_rate", 0)
    config = PlainformerConfig.from_pretrained(tmp_path / "out")
    assert {name: getattr(config, name) for name in chosen} == chosen
    assert weights(tmp_path / "out")["pooler.dense.weight"].std().item() == pytest.approx(0.5, rel=0.2)


def test_starts_from_bert(run, files, tmp_path):
    bert = make_bert(tmp_path / "bert")
    run(*files, "--model_name_or_path", bert, "--max_steps", 1, "--eval_strategy", "no", "--learning_rate", 0)
    ours, theirs = weights(tmp_path / "out"), weights(bert)
    words = "embeddings.word_embeddings.weight"
    assert torch.equal(ours[f"plainformer.{words}"], theirs[words])
    assert torch.equal(ours["pooler.dense.weight"], theirs["pooler.dense.weight"])
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "plainformer"


def test_bert_baseline(run, files, tmp_path):
    bert = make_bert(tmp_path / "bert")
    run(*files[:2], "--model_name_or_path", bert, "--bert_baseline", "--max_steps", 1)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "bert"


def test_starts_from_plainformer(run, files, tmp_path, capsys):
    metrics = run(*files, *TINY, "--num_train_epochs", 1)
    first = tmp_path / "out"
    again = run("--validation_file", files[3], "--model_name_or_path", first, out="again")
    assert again["eval_loss"] == metrics["eval_loss"]
    assert "new classifier" not in capsys.readouterr().out

    # The labels keep the numbers of the checkpoint.
    config = json.loads((first / "config.json").read_text())
    config["id2label"], config["label2id"] = {"0": "pos", "1": "neg"}, {"pos": 0, "neg": 1}
    (first / "config.json").write_text(json.dumps(config))
    swapped = run("--validation_file", files[3], "--model_name_or_path", first, out="swapped")
    assert swapped["eval_accuracy"] == pytest.approx(1 - metrics["eval_accuracy"])
    still = [*files[:2], "--model_name_or_path", first, "--max_steps", 1, "--learning_rate", 0]
    run(*still, out="continued")
    assert PlainformerConfig.from_pretrained(tmp_path / "continued").label2id == {"pos": 0, "neg": 1}
    assert torch.equal(weights(tmp_path / "continued")["classifier.weight"], weights(first)["classifier.weight"])

    # Other labels, as many: what the classifier knew means nothing for them.
    rows = [{**row, "label": row["label"].upper()} for row in make_rows(8)]
    still[1] = write(tmp_path / "upper.csv", rows)
    capsys.readouterr()
    run(*still, out="other")
    assert f"the labels are not those of {first} (pos, neg): new classifier" in capsys.readouterr().out
    other = weights(tmp_path / "other")
    assert not torch.equal(other["classifier.weight"], weights(first)["classifier.weight"])
    assert torch.equal(other["pooler.dense.weight"], weights(first)["pooler.dense.weight"])


@pytest.mark.parametrize(
    "labels, unlabelled",
    [(["neg", "pos"], [None, ""]), ([0.5, 2.0], [None]), ([["neg"], ["pos"], []], [None, ["neg", None]])],
    ids=["one-class", "regression", "several"],
)
def test_test_rows_without_a_label_are_predicted_and_not_measured(run, tmp_path, capsys, labels, unlabelled):
    """They come first, so many that the first batch of a reader or of the tokenizer holds no label."""
    train = write(tmp_path / "train.jsonl", [{"text": f"film {i}", "label": labels[i % 2]} for i in range(8)])
    rows = [{"text": "film", "label": unlabelled[i % len(unlabelled)]} for i in range(1010)]
    rows += [{"text": "film", "label": label} for label in labels]
    flags = ["--train_file", train, *TINY, "--max_steps", 1, "--per_device_eval_batch_size", 500]
    run(*flags, "--test_file", write(tmp_path / "test.json", rows))
    count = len(labels)  # an empty list is an answer: none of the labels
    message = (
        f"test: 1010 of {len(rows)} rows have no 'label': predicted, and not measured; the metrics are of the other"
    )
    assert f"{message} {count}\n" in capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "predict_results.json").read_text())
    assert (results["predict_samples"], results["predict_measured_samples"]) == (len(rows), count)
    predictions = list(csv.DictReader(open(tmp_path / "out" / "predictions.csv", encoding="utf-8")))
    assert len(predictions) == len(rows)
    if labels == [0.5, 2.0]:
        value = float(predictions[0]["prediction"])
        assert results["predict_mse"] == pytest.approx(((value - 0.5) ** 2 + (value - 2) ** 2) / 2, rel=1e-4)
    else:
        truth = [";".join(label) if isinstance(label, list) else label for label in labels]
        right = truth.count(predictions[0]["prediction"])
        assert results["predict_accuracy"] == pytest.approx(right / count)


def test_test_data_without_any_label_is_predicted(run, files, tmp_path, capsys):
    test = write(tmp_path / "test.csv", "text,label\nfilm,\nplot, \n")
    run(*files[:2], "--test_file", test, *TINY, "--max_steps", 1)
    assert "test: 2 of 2 rows have no 'label': predicted, and not measured\n" in capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "predict_results.json").read_text())
    assert results["predict_samples"] == 2 and "predict_loss" not in results


def test_lists_for_a_model_of_one_class(run, files, tmp_path):
    run(*files[:2], *TINY, "--max_steps", 1)
    lists = write(tmp_path / "lists.jsonl", [{"text": "film", "label": ["neg"]}])
    with pytest.raises(DataError, match="lists.jsonl: 'label' is a list, and the model has one class a text"):
        run("--validation_file", lists, "--model_name_or_path", tmp_path / "out", out="second")


def test_test_values_must_be_numbers(run, tmp_path):
    train = write(tmp_path / "train.csv", "text,label\na,0.5\nb,1\n")
    test = write(tmp_path / "test.csv", "text,label\na,0.5\nb,many\n")
    with pytest.raises(DataError, match="test.csv: 'label' is no number, .*test.csv, line 3"):
        run("--train_file", train, "--test_file", test, *TINY)


def test_several_labels(run, tmp_path, capsys):
    rows = [{"text": row["text"], "topics": [row["label"]] * (i % 3 > 0)} for i, row in enumerate(make_rows(24))]
    lists = write(tmp_path / "train.jsonl", rows)
    joined = write(tmp_path / "test.csv", [{"text": row["text"], "topics": ";".join(row["topics"])} for row in rows])
    flags = ["--train_file", lists, "--test_file", lists, "--label_column_name", "topics", *TINY, "--max_steps", 1]
    run(*flags, "--validation_split_percentage", 20)
    assert "multi_label_classification: neg, pos" in capsys.readouterr().out
    assert {"eval_accuracy", "eval_f1", "eval_micro_f1"} <= set(
        json.loads((tmp_path / "out" / "eval_results.json").read_text())
    )
    with open(tmp_path / "out" / "predictions.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            expected = ";".join(name for name in ("neg", "pos") if float(row[name]) > 0.5)
            assert row["prediction"] == expected

    flags[1], flags[3] = joined, joined
    run(*flags, "--validation_split_percentage", 20, "--label_delimiter", ";", out="joined")
    assert weights(tmp_path / "joined").keys() == weights(tmp_path / "out").keys()
    for name, weight in weights(tmp_path / "joined").items():
        assert torch.equal(weight, weights(tmp_path / "out")[name])


MULTI_HOT = {
    "int": [[0, 1, 0], [1, 0, 0], [0, 0, 0], [1, 1, 0]],
    "float": [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 0.0]],
    "bool": [[False, True, False], [True, False, False], [False, False, False], [True, True, False]],
    "text": ["[0, 1, 0]", "[1, 0, 0]", "[0, 0, 0]", "[1, 1, 0]"],
    "numpy": ["[0 1 0]", "[1. 0. 0.]", "[np.int64(0), np.int64(0), np.int64(0)]", "array([1, 1, 0])"],
    "joined": ["0;1;0", "1;0;0", "0;0;0", "1;1;0"],
}


def read_lists(labels: list, *flags, test: list | None = None, trained: list | None = None):
    """The labels that `run_classification` makes of these, and the names that it knows of them."""
    words = ["--train_file", "train.parquet", "--test_file", "test.parquet", "--output_dir", "out", *flags]
    arguments = parse_args(run_classification.ClassificationArguments, words, "")
    run = open_run("run_classification", arguments, PlainformerForSequenceClassification)
    splits = {"train": labels, **({"test": test} if test else {})}
    data = DatasetDict({split: Dataset.from_dict({"labels": values}) for split, values in splits.items()})
    data, names = run_classification.read_label_lists(data, arguments[1], "labels", run, trained)
    return {split: rows["labels"][:] for split, rows in data.items()}, names


@pytest.mark.parametrize("kind", MULTI_HOT)
def test_lists_of_0_and_1_are_multi_hot(kind, capsys):
    flags = ["--label_delimiter", ";"] if kind == "joined" else []
    data, names = read_lists(MULTI_HOT[kind], *flags, test=MULTI_HOT[kind][1:3])
    assert names == ["0", "1", "2"]  # the last of which no row has
    assert data == {"train": [["1"], ["0"], [], ["0", "1"]], "test": [["0"], []]}
    assert "'labels': multi-hot, a 0 or 1 for each of 3 labels" in capsys.readouterr().out
    data, names = read_lists(MULTI_HOT[kind], *flags, "--multi_hot_names", "a, b,c")
    assert names == ["a", "b", "c"] and data["train"] == [["b"], ["a"], [], ["a", "b"]]


def test_multi_hot_labels_are_trained_and_predicted(run, tmp_path):
    rows = [{"text": row["text"], "labels": MULTI_HOT["int"][i % 4]} for i, row in enumerate(make_rows(16))]
    train = write(tmp_path / "train.jsonl", rows)
    flags = [*TINY, "--max_steps", 1, "--multi_hot_names", "war,peace,sport"]
    run("--train_file", train, "--test_file", train, *flags)
    config = PlainformerConfig.from_pretrained(tmp_path / "out")
    assert config.label2id == {"war": 0, "peace": 1, "sport": 2}
    assert config.problem_type == "multi_label_classification"
    header, *lines = (tmp_path / "out" / "predictions.csv").read_text().splitlines()
    assert header == "index,prediction,war,peace,sport" and len(lines) == 16
    metrics = run("--validation_file", train, "--model_name_or_path", tmp_path / "out", out="again")
    assert "eval_micro_f1" in metrics
    other = write(tmp_path / "other.jsonl", [{"text": "film", "labels": [0, 1, 1, 0]}])
    with pytest.raises(RecipeError, match="the model's labels war, peace, sport: the lists in 'labels' have 4 places"):
        run("--validation_file", other, "--model_name_or_path", tmp_path / "out", out="third")


@pytest.mark.parametrize(
    "labels, flags, expected",
    [
        ([[0, 1], [1, 0]], ["--label_form", "ids"], [["0", "1"], ["1", "0"]]),
        ([[0, 1], [1], []], [], [["0", "1"], ["1"], []]),
        ([[0, 1], [2, 1]], [], [["0", "1"], ["2", "1"]]),
        ([[1], [0]], ["--label_form", "ids"], [["1"], ["0"]]),
        (["['pos', 'film']", '["neg"]', "()", "{'pos'}"], [], [["pos", "film"], ["neg"], [], ["pos"]]),
        (["pos", "[neg]", "(1)"], [], ["pos", "[neg]", "(1)"]),
    ],
    ids=["ids", "one-or-both", "other-numbers", "one-each", "text", "names"],
)
def test_lists_of_names(labels, flags, expected):
    data, names = read_lists(labels, *flags)
    assert (
        names is None and [list(map(str, row)) if isinstance(row, list) else row for row in data["train"]] == expected
    )


@pytest.mark.parametrize(
    "labels, test, message",
    [
        ([[0, 1, 0], [1, 0]], None, "1 row of .*: 'labels' is no list of 3 times 0 or 1.* row 2"),
        ([[0, 1, 0], [0, 0, 1]], [[1, 0]], "test.parquet: 'labels' is no list of 3 times 0 or 1.* row 1"),
        ([[0, 1, 0], [0, 0, 1]], [[0, 2, 1]], "test.parquet: 'labels' is no list of 3 times 0 or 1.* row 1"),
        ([[1], [0]], None, "every list in 'labels' has one item, 0 or 1. Say with --label_form what it is"),
        ([[0.2, 0.8], [1.0, 0.0]], None, "'labels' has a number between whole ones.* row 1"),
        ([[0, 2, 0], [1, 0, 0]], None, "'labels' has a number twice.* row 1"),
        (["['pos']", "film"], None, "'labels' is no list, and the other cells of the file are, such as .'pos'.* row 2"),
        (["[pos, film]", "[neg]"], None, "'labels' looks like a list, and cannot be read as one.* row 1"),
        (["{'a': 1, 'b': 0}"], None, "'labels' looks like a list, and cannot be read as one.* row 1"),
        ([{"a": 1, "b": 0}], None, "'labels' looks like a list, and cannot be read as one.* row 1"),
        (["[0 0 0 ... 0 1 0]", "[0 1 0]"], None, "'labels' is no list, and the other cells.* row 1"),
        (["[0 0 0 ... 0 1 0]"], None, "'labels' looks like a list, and cannot be read as one.* row 1"),
        (["Index(['a', 'c'], dtype='object')"], None, "'labels' looks like a list, and cannot be read as one.* row 1"),
        (["array(['a', ..., 'c'])"], None, "'labels' looks like a list, and cannot be read as one.* row 1"),
        (["[['a'] ['b']]"], None, "'labels' looks like a list, and cannot be read as one.* row 1"),
    ],
    ids=str,
)
def test_lists_in_several_forms_are_refused(labels, test, message):
    with pytest.raises((DataError, RecipeError), match=message):
        read_lists(labels, test=test)


def test_list_form_of_a_trained_model():
    """Lists of another length than the model has labels are ids, whatever they hold."""
    ids = list("01234")
    assert read_lists([[0, 1], [1, 0]], trained=ids) == ({"train": [[0, 1], [1, 0]]}, ids)
    assert read_lists([[1], [0]], trained=ids) == ({"train": [[1], [0]]}, ids)
    assert read_lists([[0, 1], [1, 0]], trained=["a", "b"])[0] == {"train": [["b"], ["a"]]}
    assert read_lists([[0, 1], [1, 0]], "--label_form", "ids", trained=["0", "1"])[0] == {"train": [[0, 1], [1, 0]]}


def test_delimiters_and_missing_labels():
    """What is missing stays so; an empty text is an answer: none of the labels."""
    data, _ = read_lists(["a;b", None, "", "nan"], "--label_delimiter", ";")
    assert data["train"] == [["a", "b"], None, [], ["nan"]]
    assert read_lists([2.0, float("nan")], "--label_delimiter", ";")[0]["train"] == [["2"], None]
    for labels in ([["a"], ["b", "c"]], ["['a']", "['b', 'c']"]):
        with pytest.raises(DataError, match="2 rows of .*: 'labels' holds a list, which --label_delimiter ; cannot"):
            read_lists(labels, "--label_delimiter", ";")


def test_label_names_must_fit():
    with pytest.raises(RecipeError, match="--multi_hot_names a,b: the lists in 'labels' have 3 places"):
        read_lists([[0, 1, 0]], "--multi_hot_names", "a,b")
    with pytest.raises(RecipeError, match="--multi_hot_names a,b: there are no lists of 0 and 1"):
        read_lists(["pos", "neg"], "--multi_hot_names", "a,b")


def test_regression_on_pairs(run, tmp_path, capsys):
    rows = [{"a": row["text"], "b": "film", "score": i / 4} for i, row in enumerate(make_rows(16))]
    train = write(tmp_path / "train.csv", rows)
    test = write(tmp_path / "test.csv", [{"a": row["a"], "b": row["b"]} for row in rows])
    flags = ["--train_file", train, "--validation_file", train, "--test_file", test, "--text_column_names", "a,b"]
    metrics = run(*flags, *TINY, "--max_steps", 2, "--eval_strategy", "steps", "--eval_steps", 1)
    assert "regression: numbers" in capsys.readouterr().out
    assert {"eval_mse", "eval_pearson", "eval_spearman"} <= set(metrics)
    assert metrics["eval_mse"] == pytest.approx(metrics["eval_loss"], rel=1e-5)
    config = PlainformerConfig.from_pretrained(tmp_path / "out")
    assert (config.problem_type, config.num_labels) == ("regression", 1)
    lines = (tmp_path / "out" / "predictions.csv").read_text().splitlines()
    assert lines[0] == "index,prediction" and len(lines) == 17


@pytest.mark.parametrize(
    "labels, flag, expected",
    [
        (["0", "1", "2"], None, "single_label_classification"),
        ([0, 1, 2], None, "single_label_classification"),
        (["0.5", "1", "2"], None, "regression"),
        ([0.0, 1.0, 2.0], None, "regression"),
        (["0", "1", "2"], True, "regression"),
        (["1.0", "2.0"], False, "single_label_classification"),
        (["1.5", "n/a"], None, "single_label_classification"),
        ([["a"], [], ["a", "b"]], None, "multi_label_classification"),
    ],
)
def test_kind_of_task_follows_from_the_labels(labels, flag, expected):
    args = run_classification.ClassificationArguments(do_regression=flag)
    data = Dataset.from_dict({"label": labels})
    assert run_classification.find_problem_type(data, args, "label") == expected


def test_metrics_on_known_answers():
    logits = np.array([[2.0, 0, 0], [0, 2, 0], [0, 2, 0], [2, 0, 0]])
    assert score_single(EvalPrediction(logits, np.array([0, 1, 2, 0]))) == pytest.approx(
        {"accuracy": 3 / 4, "f1": (1 + 2 / 3 + 0) / 3}
    )
    decisions, labels = np.array([[1.0, -1], [1, 1], [-1, -1]]), np.array([[1.0, 0], [1, 0], [0, 1]])
    assert score_multi(EvalPrediction(decisions, labels)) == pytest.approx(
        {"accuracy": 1 / 3, "f1": (1 + 0) / 2, "micro_f1": 2 * 2 / (2 * 2 + 1 + 1)}
    )
    values, targets = np.array([[1.0], [2], [9]]), np.array([1.0, 2, 3])
    measured = score_regression(EvalPrediction(values, targets))
    assert measured == pytest.approx({"mse": 12, "pearson": np.corrcoef([1, 2, 9], targets)[0, 1], "spearman": 1})
    constant = score_regression(EvalPrediction(np.ones((3, 1)), targets))
    assert (constant["pearson"], constant["spearman"]) == (0, 0)


def test_long_texts_are_cut_and_counted(run, tmp_path, capsys):
    rows = make_rows(64)  # enough for every word to be one token
    rows[3]["text"], rows[6]["text"] = "good " * 14, "good " * 15  # with [CLS] and [SEP]: 16 tokens, and 17
    run("--train_file", write(tmp_path / "train.csv", rows), *TINY, "--max_steps", 1)
    assert "train: 1 of 64 texts are longer than 16 tokens and were cut" in capsys.readouterr().out


def test_answers_keep_the_order_of_the_file(run, files, tmp_path):
    data = [*files[:2], "--test_file", files[1], "--per_device_eval_batch_size", 2]
    run(*data, *TINY, "--max_steps", 6, "--learning_rate", 0.01)
    run("--model_name_or_path", tmp_path / "out", *data[2:], *grouped_by_length(), out="grouped")
    files = [tmp_path / name / "predictions.csv" for name in ("out", "grouped")]
    tables = [list(csv.DictReader(path.open(encoding="utf-8"))) for path in files]
    values = [[float(row["probability"]) for row in rows] for rows in tables]
    assert values[0] == pytest.approx(values[1], abs=1e-6) and max(values[0]) - min(values[0]) > 1e-4
    assert [row["prediction"] for row in tables[0]] == [row["prediction"] for row in tables[1]]


def test_best_model_is_kept(run, files, tmp_path, monkeypatch):
    scores = iter([0.9, 0.1, 0.2, 0.9])
    monkeypatch.setitem(
        run_classification.CLASSIFICATION_SCORES,
        "single_label_classification",
        lambda prediction: {"accuracy": next(scores)},
    )
    run(*files, *TINY, "--num_train_epochs", 3, "--per_device_train_batch_size", 8, "--learning_rate", 0.01)
    folder = tmp_path / "out"
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-9"]
    best, last = weights(folder / "checkpoint-3"), weights(folder / "checkpoint-9")
    for name, weight in weights(folder).items():
        assert torch.equal(weight, best[name])
    assert not torch.equal(best["classifier.weight"], last["classifier.weight"])


# Resuming


PLANS = {
    # Within an epoch, each step of two batches of texts of different lengths.
    "mid-epoch": "--per_device_train_batch_size 2 --gradient_accumulation_steps 2 --max_steps 6 --save_steps 3",
    # At the end of an epoch, after an evaluation.
    "epoch-end": "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --num_train_epochs 2",
}


DATA = {"train.csv": make_rows(24), "dev.csv": make_rows(8, seed=1)}


def plan_of(name: str, folder: Path) -> list:
    """Six steps with a checkpoint after three, on files in this folder."""
    names = {"--train_file": "train.csv", **({"--validation_file": "dev.csv"} if name == "epoch-end" else {})}
    data = [word for flag, file in names.items() for word in (flag, write(folder / file, DATA[file]))]
    return [*data, *TINY, *PLANS[name].split(), "--logging_steps", "1"]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The folder of a plan that was run without a break."""

    @functools.cache
    def run_plan(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        in_process(main, folder)(*plan_of(name, folder))
        return folder / "out"

    return run_plan


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory):
    """The folder of the plan "mid-epoch" that broke off half-way through the fifth step."""
    folder = tmp_path_factory.mktemp("broken")
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, 10, lambda: in_process(main, folder)(*plan_of("mid-epoch", folder)))
    return folder / "out"


@pytest.fixture
def plan(broken_off, tmp_path) -> list:
    """The flags of the run that broke off, which lies in `out`."""
    shutil.copytree(broken_off, tmp_path / "out")
    return plan_of("mid-epoch", tmp_path)


@pytest.mark.parametrize("name", PLANS)
def test_resume_continues_bit_for_bit(run, straight, tmp_path, monkeypatch, capsys, name):
    plan = plan_of(name, tmp_path)
    stop_at(monkeypatch, 10, lambda: run(*plan))
    folder = tmp_path / "out"
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-3"]
    # A checkpoint that a kill left half-written, and one whose last file is: both are passed over.
    for half, state in (("checkpoint-4", None), ("checkpoint-5", '{"global_step": 5, "log_hi')):
        shutil.copytree(folder / "checkpoint-3", folder / half)
        (folder / half / "trainer_state.json").unlink()
        if state:
            (folder / half / "trainer_state.json").write_text(state)
    run(*plan, "--resume_from_checkpoint", "true")
    assert f"continuing from {folder / 'checkpoint-3'}" in capsys.readouterr().out
    assert_same_run(folder, straight(name))


def test_resume_after_sigkill(run, straight, tmp_path):
    plan = plan_of("mid-epoch", tmp_path)

    def run_and_die() -> None:
        fail_at(pytest.MonkeyPatch(), 10, lambda: os.kill(os.getpid(), signal.SIGKILL))
        run(*plan)

    process = multiprocessing.get_context("fork").Process(target=run_and_die)
    process.start()
    process.join(timeout=300)
    assert process.exitcode == -signal.SIGKILL
    run(*plan, "--resume_from_checkpoint", "true")
    assert_same_run(tmp_path / "out", straight("mid-epoch"))


def test_resume_before_the_first_checkpoint(run, straight, tmp_path, monkeypatch, capsys):
    plan = plan_of("mid-epoch", tmp_path)
    stop_at(monkeypatch, 2, lambda: run(*plan))
    run(*plan, "--resume_from_checkpoint", "true")
    assert "has no checkpoint yet: starting anew" in capsys.readouterr().out
    assert_same_run(tmp_path / "out", straight("mid-epoch"))


def test_resume_notices_what_changed(run, plan, tmp_path):
    resume = [*plan, "--resume_from_checkpoint", "true"]
    with pytest.raises(RecipeError, match="other settings: learning_rate was 0.0003 and is 0.1; seed was 42 and is 1"):
        run(*resume, "--learning_rate", 0.1, "--seed", 1)
    with pytest.raises(RecipeError, match="dataloader_drop_last was False and is True"):
        run(*resume, "--dataloader_drop_last")
    marker = tmp_path / "out" / "recipe.json"
    original = marker.read_text()
    marker.write_text(original.replace('"number of processes": 1', '"number of processes": 2'))
    with pytest.raises(RecipeError, match="number of processes was 2 and is 1"):
        run(*resume)
    marker.write_text(original)
    content = plan[1].read_bytes()
    plan[1].write_bytes(content.replace(b"film", b"plot", 1))  # as long as before
    with pytest.raises(RecipeError, match="train_file was 'train.csv, SHA-256 .* and is 'train.csv, SHA-256"):
        run(*resume)
    plan[1].write_bytes(content)
    # These do not define the run.
    run(*resume, "--dataloader_num_workers", 0, "--logging_steps", 2, "--save_total_limit", 1)


def test_resume_in_a_folder_that_was_moved(run, tmp_path, monkeypatch):
    """The best model is then that of the first half, and is taken from where it is now."""
    plan = plan_of("epoch-end", tmp_path)
    figures = iter([0.9, 0.1, 0.1])
    scores = {"single_label_classification": lambda prediction: {"accuracy": next(figures)}}
    monkeypatch.setattr(run_classification, "CLASSIFICATION_SCORES", scores)
    stop_at(monkeypatch, 10, lambda: run(*plan))
    best = weights(tmp_path / "out" / "checkpoint-3")
    (tmp_path / "out").rename(tmp_path / "moved")
    run(*plan, "--resume_from_checkpoint", "true", out="moved")
    state = json.loads((tmp_path / "moved" / "trainer_state.json").read_text())
    assert state["best_model_checkpoint"] == str(tmp_path / "moved" / "checkpoint-3")
    assert all(torch.equal(weight, best[name]) for name, weight in weights(tmp_path / "moved").items())


def test_early_stopping_keeps_counting(run, files, tmp_path, monkeypatch):
    flags = ["--num_train_epochs", 5, "--learning_rate", 0, "--early_stopping_patience", 2]
    flags += ["--per_device_train_batch_size", 8]  # three steps an epoch
    # After two evaluations, the second of them without progress.
    stop_at(monkeypatch, 8, lambda: run(*files, *TINY, *flags))
    run(*files, *TINY, *flags, "--resume_from_checkpoint", "true")
    assert json.loads((tmp_path / "out" / "trainer_state.json").read_text())["epoch"] == 3


@pytest.mark.parametrize("number, exception, code", [(signal.SIGTERM, Terminated, 143), (signal.SIGINT, None, 130)])
def test_signals_say_how_to_go_on(run, tmp_path, monkeypatch, capsys, number, exception, code):
    fail_at(monkeypatch, 10, lambda: signal.raise_signal(number))
    before = signal.getsignal(signal.SIGTERM)
    plan = plan_of("mid-epoch", tmp_path)
    # A shell starts what runs in the background deaf to Ctrl-C, and the tests may be that.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as stopped:
            launch(lambda: run(*plan))
    finally:
        signal.signal(signal.SIGINT, interrupt)
    assert stopped.value.code == code
    output = capsys.readouterr().out
    assert f"stopped. The last checkpoint is {tmp_path / 'out' / 'checkpoint-3'}" in output
    assert "--resume_from_checkpoint true" in output
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("metric", "greater"), [("loss", False), ("eval_loss", False), ("mse", False), ("accuracy", True), (None, True)]
)
def test_best_is_the_lowest_loss_or_the_highest_score(metric, greater):
    flags = ["--train_file", "a.csv", "--validation_file", "b.csv"]
    _, data_args, training_args = parse(*flags, *(["--metric_for_best_model", metric] if metric else []))
    choose_metric(data_args, training_args, ["accuracy", "mse"])
    assert training_args.greater_is_better is greater
    assert training_args.metric_for_best_model == (metric or "accuracy")


def test_metric_that_is_none(run, files):
    with pytest.raises(RecipeError, match="--metric_for_best_model acuracy: there is no such metric here, only accu"):
        run(*files, *TINY, "--metric_for_best_model", "acuracy")


@pytest.mark.parametrize("flags", [["--save_steps", 2], ["--eval_steps", 2], ["--eval_strategy", "steps"]])
def test_steps_given_alone_are_kept_to(flags):
    _, _, args = parse("--train_file", "a.csv", "--validation_file", "b.csv", *flags)
    steps = 500 if "steps" in flags else 2
    assert (args.eval_strategy, args.save_strategy, args.eval_steps, args.save_steps) == (
        "steps",
        "steps",
        steps,
        steps,
    )


def test_folder_with_a_run_is_left_alone(run, plan, tmp_path, capsys):
    out, marker = tmp_path / "out", tmp_path / "out" / "recipe.json"
    with pytest.raises(RecipeError, match="holds an unfinished run of run_classification: continue it with --resume"):
        run(*plan)
    with pytest.raises(RecipeError, match="checkpoint-9 is no complete checkpoint; the last complete one is .*point-3"):
        run(*plan, "--resume_from_checkpoint", out / "checkpoint-9")
    with pytest.raises(RecipeError, match="is not in --output_dir .*give --model_name_or_path"):
        run(*plan, "--resume_from_checkpoint", out / "checkpoint-3", out="new")
    with pytest.raises(RecipeError, match="checkpoint-99 is no complete checkpoint; there is no complete one yet"):
        run(*plan, "--resume_from_checkpoint", tmp_path / "new" / "checkpoint-99", out="new")
    original = marker.read_text()
    marker.write_text(original.replace('"run_classification"', '"run_ner"'))
    with pytest.raises(RecipeError, match="holds a run of run_ner, not of run_classification"):
        run(*plan, "--resume_from_checkpoint", "true")
    marker.write_text("[]")
    with pytest.raises(RecipeError, match="holds something else"):
        run(*plan)

    # A model without checkpoints, of a run that was killed while it evaluated.
    marker.write_text(original)
    (out / "checkpoint-3" / "model.safetensors").rename(out / "model.safetensors")
    shutil.rmtree(out / "checkpoint-3")
    with pytest.raises(RecipeError, match="holds an unfinished run"):
        run(*plan)
    marker.write_text(original.replace('"running"', '"finished"'))
    with pytest.raises(RecipeError, match="holds a finished run of run_classification: name another --output_dir"):
        run(*plan)
    capsys.readouterr()
    with pytest.raises(SystemExit) as finished:
        run(*plan, "--resume_from_checkpoint", "true")
    assert finished.value.code == 0
    assert "holds a finished run: there is nothing to continue" in capsys.readouterr().out


def test_foreign_folder_is_left_alone(run, files, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("all my work")
    with pytest.raises(RecipeError, match="holds something else than a run of a recipe: name another"):
        run(*files, *TINY)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]
    with pytest.raises(RecipeError, match="thesis.txt is a file: name a folder"):
        run(*files, *TINY, out="out/thesis.txt")


def test_folders_that_cannot_be_written(run, files, tmp_path):
    """Nothing is left where a folder could not be made, nor where another check fails."""
    with pytest.raises(RecipeError, match=r"--output_dir .*new cannot be written \(Not a directory\): name another"):
        run(*files, *TINY, out="train.csv/new")
    with pytest.raises(RecipeError, match="--cache_dir .*cannot be written"):
        run(*files, *TINY, "--cache_dir", tmp_path / "train.csv" / "cache", out="a/b")
    with pytest.raises(RecipeError, match="--max_seq_length 2"):
        run(*files, *TINY, "--max_seq_length", 2, out="a/b")
    assert not (tmp_path / "a").exists()


# Settings


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--trian_file", "x.csv"], "--trian_file is no argument. Did you mean --train_file?"),
        (
            ["--model_name_or_path", "x", "--pre_norm", "--hidden_size", "8"],
            "--pre_norm True --hidden_size 8 --num",
        ),
        (["--early_stopping_patience", "2"], "--early_stopping_patience 2 needs evaluations while training"),
        (["--hidden_size", "17"], "hidden_size=17 is not a multiple of num_attention_heads=2"),
        (["--max_seq_length", "17"], "--max_seq_length 17 is more than the 16 positions"),
        (["--load_best_model_at_end"], "requires the save and eval strategy to match"),
        (
            ["--max_seq_length", "3", "--text_column_names", "text,label"],
            "--max_seq_length 3: give a whole number of at",
        ),
        (["--max_seq_length", "2"], "--max_seq_length 2: give a whole number of at least 3: 2 are special tokens"),
        (["--max_steps", "0"], "--max_steps 0: give a whole number of at least 1"),
        (["--num_train_epochs", "0"], "--num_train_epochs 0.0: give a number above 0"),
        (["--learning_rate", "-1"], "--learning_rate -1.0: give a number of at least 0"),
        (["--seed", "-1"], "--seed -1: give a whole number from 0"),
        (["--adam_beta2", "1"], "--adam_beta2 1.0: give a number from 0 to below 1"),
        (["--max_train_samples", "0"], "--max_train_samples 0: give a whole number of at least 1"),
        (
            ["--validation_split_percentage", "100"],
            "--validation_split_percentage 100: give a whole number from 1 to 99",
        ),
        (["--save_only_model", "--resume_from_checkpoint", "true"], "--save_only_model keeps no optimizer"),
        (["--dataset_name", "imdb"], "--dataset_name and files are given"),
        (["--tokenizer_name", "nowhere/vocab"], "no tokenizer from nowhere/vocab"),
        (["--vocab_size", "8"], "vocab_size=8 is too small"),
        (["--bert_baseline", "--position_embedding_type", "none"], "--bert_baseline is BERT as it is"),
    ],
)
def test_settings_that_cannot_work(run, files, flags, message):
    with pytest.raises((RecipeError, DataError)) as error:
        run(*files[:2], *TINY, *flags)
    assert message in str(error.value)


def test_paths_that_hold_no_model(run, files, tmp_path):
    """What is there instead is named, before any data is read; a name that may be one of the Hub is not looked up."""
    for name in ("empty", "notes", "tokenizer", "stopped/checkpoint-3"):
        (tmp_path / name).mkdir(parents=True)
    write(tmp_path / "notes" / "notes.txt", "mine")
    write(tmp_path / "tokenizer" / "tokenizer.json", "{}")
    write(tmp_path / "stopped" / "checkpoint-3" / "config.json", "{}")
    for flag, name, message in (
        ("--model_name_or_path", "nowhere", "there is no such folder"),
        ("--model_name_or_path", "train.csv", "is a file: give the folder"),
        ("--model_name_or_path", "empty", "holds no config.json: this is no model"),
        ("--model_name_or_path", "notes", "holds no config.json: this is no model"),
        ("--model_name_or_path", "stopped", "this is no model. Did you mean .*checkpoint-3?"),
        ("--model_name_or_path", "tokenizer", "holds a tokenizer but no model: give it as --tokenizer_name"),
        (
            "--model_name_or_path",
            "stopped/checkpoint-3",
            "holds a model but no tokenizer: give one as --tokenizer_name",
        ),
        ("--tokenizer_name", "nowhere", "there is no such folder or file"),
        ("--tokenizer_name", "notes", "holds no tokenizer"),
    ):
        with pytest.raises(RecipeError, match=f"{flag} {tmp_path / name}.*{message}"):
            run(*files, flag, tmp_path / name)


def test_a_head_of_another_task_is_not_used(run, files, tmp_path, capsys):
    """Not to predict with, and not as the start of a classifier, though names and shape agree."""
    texts = train_tokenizer([row["text"] for row in make_rows(24)], show_progress=False, model_max_length=16)
    texts.save_pretrained(tmp_path / "tagger")
    labels = {"id2label": {0: "neg", 1: "pos"}, "label2id": {"neg": 0, "pos": 1}}
    config = PlainformerConfig(len(texts), max_position_embeddings=16, initializer_range=5.0, **SIZES, **labels)
    tagger = PlainformerForTokenClassification(config)
    tagger.save_pretrained(tmp_path / "tagger")
    with pytest.raises(RecipeError, match="it is a ForTokenClassification, and a ForSequenceClassification is needed"):
        run("--test_file", files[3], "--model_name_or_path", tmp_path / "tagger")
    run(*files, "--model_name_or_path", tmp_path / "tagger", "--max_steps", 1, "--learning_rate", 0)
    trained = weights(tmp_path / "out")["classifier.weight"]
    assert not torch.equal(trained, tagger.classifier.weight)


def make_classifier(folder: Path, **fields) -> Path:
    """A BERT classifier with random weights, whose config.json says no more than these fields."""
    make_bert(folder)
    config = transformers.BertConfig.from_pretrained(folder, num_labels=fields.pop("num_labels", 2))
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    kept = json.loads((folder / "config.json").read_text())
    kept = {name: value for name, value in kept.items() if name not in ("problem_type", "id2label", "label2id")}
    (folder / "config.json").write_text(json.dumps({**kept, **fields}))
    return folder


@pytest.mark.parametrize("flags", [[], ["--strip_accents", "false"]], ids=["uncased", "kept"])
def test_marks_that_a_tokenizer_drops_are_reported(run, tmp_path, flags, capsys):
    """By a tokenizer that was not made for the texts too: of the file that is trained on."""
    train = write(tmp_path / "train.csv", [{"text": "です が", "label": "a"}, {"text": "だ", "label": "b"}])
    vocab = write(tmp_path / "vocab.txt", "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "た", "か", "だ"]))
    run("--train_file", train, *TINY, "--max_steps", 1, "--tokenizer_name", vocab, *flags)
    out = capsys.readouterr().out
    assert ("takes a mark from 75.0% of the characters" in out) is (not flags)
    assert ("To keep them, give --strip_accents false or --cased" in out) is (not flags)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=False)
    assert (tokenizer("だ")["input_ids"] == tokenizer("た")["input_ids"]) is (not flags)
    if not flags:  # the checkpoint is uncased: another is the remedy
        run("--train_file", train, "--model_name_or_path", tmp_path / "out", "--max_steps", 1, out="second")
        assert "To keep them, choose a cased checkpoint" in capsys.readouterr().out


def test_a_tokenizer_without_an_entry_for_what_it_does_not_know(run, files, tmp_path):
    backend = Tokenizer(WordLevel({"[PAD]": 0, "film": 1}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]").save_pretrained(tmp_path / "words")
    with pytest.raises(RecipeError, match="words has no entry for what it does not know .*Add an entry for it"):
        run(*files[:2], *TINY, "--tokenizer_name", tmp_path / "words")


def test_a_reranker_gives_scores(run, tmp_path):
    """One output and nothing said about it: raw scores, as many as rows."""
    rows = [{"text": row["text"], "passage": "good film"} for row in make_rows(6)]
    test = write(tmp_path / "test.csv", rows)
    one = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    model = make_classifier(tmp_path / "ranker", num_labels=1, **one)
    run("--test_file", test, "--model_name_or_path", model, "--text_column_names", "text,passage")
    header, *lines = (tmp_path / "out" / "predictions.csv").read_text().splitlines()
    assert header == "index,prediction"
    tokenizer = transformers.AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    pairs = [[row[name] for row in rows] for name in ("text", "passage")]
    bert = transformers.BertForSequenceClassification.from_pretrained(model)
    inputs = tokenizer(*pairs, padding=True, truncation=True, max_length=16, return_tensors="pt")
    expected = bert.eval()(**inputs).logits.flatten().tolist()
    assert [float(line.split(",")[1]) for line in lines] == pytest.approx(expected, abs=1e-5)

    two = make_classifier(tmp_path / "two", problem_type="regression")
    with pytest.raises(RecipeError, match="two gives 2 values for each text, and this recipe predicts one"):
        run("--test_file", test, "--model_name_or_path", two, out="second")
    one |= {"num_labels": 1, "problem_type": "single_label_classification"}
    write(tmp_path / "one.json", json.dumps(one)).rename(tmp_path / "two" / "config.json")
    with pytest.raises(RecipeError, match="two has one output, .*'single_label_classification' needs.*'regression'"):
        run_classification.trained_problem_type(ModelArguments(model_name_or_path=str(two)))


@pytest.mark.parametrize(
    "names, expected",
    [
        ({"label2id": {"neg": "0", "pos": "1"}}, {"neg", "pos"}),
        ({"id2label": {"0": "neg", "1": "pos"}}, {"neg", "pos"}),
        ({}, {"LABEL_0", "LABEL_1"}),
    ],
    ids=["text", "id2label", "unnamed"],
)
@pytest.mark.parametrize("baseline", [True, False], ids=["bert", "plainformer"])
def test_names_of_a_classifier_of_somebody_else(run, files, tmp_path, names, expected, baseline):
    model = make_classifier(tmp_path / "model", **names)
    test = write(tmp_path / "test.csv", [{"text": "good film"}])
    run("--test_file", test, "--model_name_or_path", model, "--bert_baseline", baseline)
    line = (tmp_path / "out" / "predictions.csv").read_text().splitlines()[1]
    assert line.split(",")[1] in expected
    if names:
        metrics = run(*files[2:], "--model_name_or_path", model, "--bert_baseline", baseline, out="eval")
        assert 0 <= metrics["eval_accuracy"] <= 1


ID2LABEL = {"0": "neg", "1": "pos"}


@pytest.mark.parametrize(
    "maps, expected",
    [
        ({"id2label": ID2LABEL, "label2id": {"neg": 1, "pos": 0}}, {"neg": 0, "pos": 1}),
        ({"id2label": ID2LABEL, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}, {"neg": 0, "pos": 1}),
        ({"id2label": {"1": "pos", "0": "neg"}, "label2id": {"pos": 1}}, {"neg": 0, "pos": 1}),
        ({"label2id": {"pos": "1", "neg": "0"}}, {"neg": 0, "pos": 1}),
        ({"num_labels": 3}, {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}),
    ],
    ids=["swapped", "unnamed", "partial", "one-map", "none"],
)
def test_id2label_says_what_the_outputs_are(tmp_path, maps, expected):
    write(tmp_path / "config.json", json.dumps(maps))
    labels = ModelArguments(model_name_or_path=str(tmp_path)).trained_label_ids()
    assert list(labels.items()) == list(expected.items())
    write(tmp_path / "config.json", json.dumps({"id2label": {"0": "neg", "1": "neg"}}))
    with pytest.raises(RecipeError, match="config of --model_name_or_path .* has two labels 'neg'"):
        ModelArguments(model_name_or_path=str(tmp_path)).trained_label_ids()


def test_label_numbers_that_no_output_has(run, files, tmp_path):
    model = make_classifier(tmp_path / "model", label2id={"neg": 1, "pos": 2}, id2label={"1": "neg", "2": "pos"})
    problem = "model: id2label=.* has the wrong numbers .2. and lacks .0.: 2 labels are numbered from 0 to 1"
    with pytest.raises(RecipeError, match=f"--model_name_or_path .*{problem}"):
        run(*files[2:], "--model_name_or_path", model)
    model = make_classifier(tmp_path / "odd", label2id={"neg": "zero", "pos": "one"})
    with pytest.raises(RecipeError, match="numbers its labels as .*'zero'.*Give each of them a whole number"):
        run(*files[2:], "--model_name_or_path", model, out="second")


def test_settings_that_need_a_model(run, files, tmp_path):
    with pytest.raises(RecipeError, match="without training there must be a model: give --model_name_or_path"):
        run("--validation_file", files[3])
    with pytest.raises(RecipeError, match="there is nothing to do: give --train_file"):
        run()
    with pytest.raises(RecipeError, match="--output_dir is missing"):
        main(files)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "roberta"}')
    make_bert(tmp_path / "bert")
    with pytest.raises(RecipeError, match="is of model_type 'roberta': give a plainformer or bert checkpoint"):
        run(*files, "--model_name_or_path", tmp_path / "other", "--tokenizer_name", tmp_path / "bert")
    with pytest.raises(RecipeError, match="was never trained for this .it is a model without a head"):
        run("--validation_file", files[3], "--model_name_or_path", tmp_path / "bert", out="third")


def test_tokenizer_with_more_entries_than_the_model(run, files, tmp_path):
    model = PlainformerForMaskedLM(PlainformerConfig(vocab_size=10, max_position_embeddings=16, **SIZES))
    model.save_pretrained(tmp_path / "small")
    make_bert(tmp_path / "bert")
    with pytest.raises(RecipeError, match=r"the tokenizer has \d+ entries, and the model was made for 10"):
        run(*files, "--model_name_or_path", tmp_path / "small", "--tokenizer_name", tmp_path / "bert")


def test_tokenizer_with_other_entries_than_the_models(run, files, tmp_path, monkeypatch, capsys):
    """Both fit the model; of one of them, other words have its ids."""
    monkeypatch.setattr(run_classification, "train_and_evaluate", lambda *args, **options: ({}, None))
    make_bert(tmp_path / "bert")
    own = AutoTokenizer.from_pretrained(tmp_path / "bert", trust_remote_code=False)
    write(tmp_path / "own.txt", "\n".join(sorted(own.get_vocab(), key=own.get_vocab().get)))
    write(tmp_path / "other.txt", "\n".join([*SPECIAL_TOKENS, "film", "bad", "good"]))
    for name, count in (("own", 0), ("other", 3)):
        flags = ["--model_name_or_path", tmp_path / "bert", "--tokenizer_name", tmp_path / f"{name}.txt"]
        run(*files, *flags, out=name)
        line = f"3 of 8 entries of --tokenizer_name {tmp_path / 'other.txt'} have other ids in the tokenizer of"
        assert (line in capsys.readouterr().out) == bool(count)


@pytest.mark.parametrize("kind", ["regression", "multi"])
def test_label_smoothing_is_refused_where_it_means_nothing(run, tmp_path, kind):
    rows = make_rows(8)
    rows = [
        {"text": row["text"], "label": i + 0.5 if kind == "regression" else [row["label"]]}
        for i, row in enumerate(rows)
    ]
    train = write(tmp_path / "train.jsonl", rows)
    with pytest.raises(RecipeError, match="--label_smoothing_factor 0.1 does not go with"):
        run("--train_file", train, *TINY, "--label_smoothing_factor", 0.1)


def test_settings_from_a_file(tmp_path, files):
    names = ["--cache_dir", tmp_path / "cache", "--output_dir", tmp_path / "out", *files, *TINY, "--max_steps", 1]
    settings = {str(name)[2:]: value for name, value in zip(names[::2], names[1::2], strict=True)}
    settings |= {"max_seq_length": 16, "use_cpu": True, "max_train_samples": 6}
    path = write(tmp_path / "settings.json", json.dumps(settings, default=str))
    assert main([path])["train_samples"] == 6
    with pytest.raises(RecipeError, match="--max_train_sample is no argument. Did you mean --max_train_samples?"):
        main([write(tmp_path / "settings.json", '{"max_train_sample": 6}')])
    with pytest.raises(RecipeError, match="holds no settings"):
        main([write(tmp_path / "settings.yaml", "- 1")])
    with pytest.raises(RecipeError, match="could not be read"):
        main([write(tmp_path / "settings.json", "{")])
    with pytest.raises(RecipeError, match="settings.yaml: text_column_names is a list. Write it as on the command"):
        main([write(tmp_path / "settings.yaml", "text_column_names: [a, b]")])


def test_settings_of_a_file_are_those_of_the_command_line(tmp_path, files):
    """Values of every type, in JSON and in YAML, which takes 5e-05 for text."""
    values = {"learning_rate": 5e-05, "seed": 7, "pre_norm": False, "run_name": "-a b", "lr_scheduler_kwargs": {"a": 1}}
    words = ["--learning_rate", "5e-05", "--seed", "7", "--pre_norm", "false", "--run_name=-a b"]
    words += ["--lr_scheduler_kwargs", '{"a": 1}', "--output_dir", tmp_path / "out", *files[:2]]
    values |= {"output_dir": str(tmp_path / "out"), "train_file": str(files[1]), "cache_dir": None}
    as_yaml = "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items())
    given = write(tmp_path / "a.json", json.dumps(values)), write(tmp_path / "a.yaml", as_yaml)
    assert "learning_rate: 5e-05\n" in as_yaml
    parsed = [parse_args(DataArguments, argv, "") for argv in (words, *([path] for path in given))]
    groups = [[group.to_dict() if hasattr(group, "to_dict") else vars(group) for group in one] for one in parsed]
    assert groups[0] == groups[1] == groups[2]
    assert groups[0][2]["learning_rate"] == 5e-05 and groups[0][2]["lr_scheduler_kwargs"] == {"a": 1}


def test_errors_are_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        launch(lambda: main(["--train_file", tmp_path / "x.csv", "--output_dir", tmp_path / "out"]))
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: --train_file {tmp_path / 'x.csv'} does not exist")


# Bad input


GOOD = "text,label\ngood film,pos\nbad film,neg\n"
BAD_FILES = {
    "empty": ("train.csv", "", "train.csv is empty"),
    "header-only": ("train.csv", "text,label\n", "train.csv holds no rows"),
    "encoding": (
        "train.csv",
        GOOD.encode() + "schöner film,pos\n".encode("latin-1"),
        "line 4, byte 4: b'\\xf6' is not",
    ),
    "few-fields": (
        "train.csv",
        GOOD + "dull film\n",
        "train.csv, line 4: 1 field, but the header has 2 (text, label). Fill in what is missing",
    ),
    "many-fields": ("train.csv", GOOD + '"two\nlines",pos\na,b,pos\n', "train.csv, line 6: 3 fields"),
    "open-quote": ("train.csv", GOOD + '"dull film,neg\n', "train.csv, line 4: unexpected end of data"),
    "twice": (
        "train.csv",
        "text,text\na,b\n",
        "line 1: the header 'text', 'text' must name every column, and each once",
    ),
    "column": ("train.csv", "txet,label\na,b\n", "which one it is. Is 'txet' meant as 'text'?"),
    "label-column": ("train.csv", "text,lable\na,b\n", "none of the columns label, labels"),
    "empty-text": ("train.csv", GOOD + " ,pos\n", "1 row of "),
    "unlabelled": ("train.csv", GOOD + "dull film,\n", "'label' is empty. Label these rows or remove them."),
    "one-class": ("train.csv", "text,label\na,pos\nb,pos\n", "has only the labels ['pos'] in 'label'"),
    "broken-json": (
        "train.jsonl",
        '{"text": "a", "label": 1}\n{"text": "b" "label": 2}\n',
        "line 2, column 14: not JSON",
    ),
    "no-object": ("train.jsonl", '{"text": "a", "label": 1}\n[1, 2]\n', "line 2: '[1, 2]' is no JSON object"),
    "json": ("train.json", "[\n{},\n]", "train.json, line 3, column 1: not JSON"),
    "json-value": ("train.json", '{"data": [\n"a"]}', "train.json, record 1: 'a' is no JSON object"),
    "number-text": ("train.jsonl", '{"text": 1, "label": "a"}\n', "'text' is no text"),
    "parquet": ("train.parquet", "not parquet", "train.parquet is not a readable Parquet file"),
    "extension": ("train.xlsx", "a", "what .xlsx holds is not known. Rename it to one of .csv"),
    "conll": ("train.conll", "EU B-ORG\nrejects\n", "train.conll, line 2: 1 columns ('rejects'), but line 1 has 2"),
    "value": ("train.csv", "text,label\na,0.5\nb,1\nc,inf\n", None),
}


@pytest.mark.parametrize("name, content, message", BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files(run, tmp_path, name, content, message):
    flags = ["--do_regression", "true"] if message is None else []
    with pytest.raises(DataError) as error:
        run("--train_file", write(tmp_path / name, content), *TINY, *flags)
    assert (message or "'label' is no number, which regression needs") in str(error.value)
    assert not (tmp_path / "out").exists()  # so that the same command runs once the file is mended
    assert name in str(error.value)


def test_bad_rows_are_counted_and_named_by_line(run, tmp_path):
    train = write(tmp_path / "train.csv", GOOD + '"two\nlines",pos\n,neg\nfine,pos\n" ",neg\n')
    with pytest.raises(DataError, match=r"2 rows of .*: 'text' is empty.* Here: .*csv, line 6; .*csv, line 8\."):
        run("--train_file", train, *TINY)
    train = write(tmp_path / "train.jsonl", '{"text": "a", "label": "x"}\n\n' + '{"text": null, "label": "y"}\n' * 5)
    with pytest.raises(DataError, match=r"5 rows of .* First: .*line 3; .*line 4; .*line 5\."):
        run("--train_file", train, *TINY)


def test_misspelt_column_gets_the_nearest_name(run, files):
    with pytest.raises(
        DataError, match=r"train.csv has no column 'lable' \(--label_column_name\).*Did you mean 'label'"
    ):
        run(*files, *TINY, "--label_column_name", "lable")
    with pytest.raises(DataError, match=r"no column 'texts' \(--text_column_names\).*Did you mean 'text'\?"):
        run(*files, *TINY, "--text_column_names", "texts")
    with pytest.raises(DataError, match="--text_column_names a,b,c: give one column, or two"):
        run(*files, *TINY, "--text_column_names", "a,b,c")


def test_label_that_training_never_had(run, files, tmp_path):
    rows = [*make_rows(2), {"text": "so so", "label": "pso"}]
    dev = write(tmp_path / "dev.csv", rows)
    message = "'label' has labels that the training data never has, only neg, pos.* line 4. The first is 'pso'. Did you"
    with pytest.raises(DataError, match=f"1 row of .*dev.csv: {message} mean 'pos'"):
        run("--train_file", files[1], "--validation_file", dev, *TINY)
    with pytest.raises(DataError, match=f"1 row of .*test.csv: {message}"):
        run("--train_file", files[1], "--test_file", shutil.copy(dev, tmp_path / "test.csv"), *TINY)


NAN = float("nan")


@pytest.mark.parametrize(
    "train, dev, message",
    [
        ([1, 2], [1.0, 2.0], None),
        ([1.0, 2.0], ["1", "2"], None),
        ([["a"], ["b"]], [[], ["a", "b"]], None),
        (["1", "2"], ["2", "1.0"], "only 1, 2.* row 2. The first is '1.0'. Write it '1', as the training data has it."),
        ([True, False], ["true"], "The first is 'true'. Write it 'True', as the training data has it."),
        ([1.0, 2.0], [NAN], "'label' is empty. Label these rows or remove them.* row 1"),
        ([["a"], ["b"]], [["a", None]], "'label' is empty. Label these rows or remove them.* row 1"),
        ([b"a", b"b"], [b"a"], "2 rows of train.parquet: 'label' is neither text nor number"),
        ([["a"], ["b"]], [[["a"], ["b"]]], "1 row of dev.parquet: 'label' is .* nor a flat list of these. Write str"),
        ([["a"], ["b"]], [[{"a": 1}]], "1 row of dev.parquet: 'label' is .* nor a flat list of these. Write strings"),
    ],
    ids=str,
)
def test_labels_are_the_same_however_a_file_writes_them(train, dev, message):
    args = DataArguments(train_file="train.parquet", validation_file="dev.parquet")
    splits = {"train": train, "validation": dev}
    data = DatasetDict({split: Dataset.from_dict({"label": labels}) for split, labels in splits.items()})
    if message is None:
        assert len(columns.label_names(data, args, "label")) == 2
    else:
        with pytest.raises(DataError, match=message):
            columns.label_names(data, args, "label")


TEXT = {"text": ["a"]}
TEST_COLUMNS = {
    "absent": (["label"], [], [], ("label", "test: no column 'label': predicted, and not measured")),
    "misspelt": (["label"], ["lable"], [], ("label", "test: no column 'label' (there is 'lable'): predicted, and not")),
    "another": (["label"], ["class"], [], ("label", "test: no column 'label' (there is 'class'): predicted, and not")),
    "case": (["label"], ["LABEL"], [], ("label", "test: no column 'label' (there is 'LABEL'): predicted, and not")),
    "given": (["topic"], ["label"], ["topic"], ("topic", "test: no column 'topic' (there is 'label'): predicted")),
    "alone": (None, ["labels"], [], ("labels", "")),
    "alone-none": (None, [], [], ("label", "test: no column 'label': predicted, and not measured")),
    "alone-given": (None, ["topic"], ["topic"], ("topic", "")),
    "alone-misspelt": (None, ["topic"], ["topics"], "has no column 'topics' (--label_column_name), only text, topic."),
    "nowhere": (["label"], ["label"], ["topic"], "has no column 'topic' (--label_column_name), only text, label."),
}


@pytest.mark.parametrize("train, test, given, expected", TEST_COLUMNS.values(), ids=TEST_COLUMNS)
def test_labels_of_a_test_file_are_measured_or_a_line_says_why_not(train, test, given, expected, capsys):
    words = ["--train_file", "a.csv", "--test_file", "b.csv", "--output_dir", "out"]
    words += [word for name in given for word in ("--label_column_name", name)]
    args = parse_args(run_classification.ClassificationArguments, words, "")
    run = open_run("run_classification", args, PlainformerForSequenceClassification)
    names = {"test": test} if train is None else {"train": train, "test": test}
    data = {split: Dataset.from_dict(TEXT | dict.fromkeys(names[split], ["x"])) for split in names}
    if isinstance(expected, str):
        with pytest.raises(DataError) as error:
            run_classification.find_columns(DatasetDict(data), args[1], run)
        assert expected in str(error.value)
    else:
        assert run_classification.find_columns(DatasetDict(data), args[1], run)[1] == expected[0]
        assert capsys.readouterr().out.startswith(expected[1])


def test_missing_file_gets_the_nearest_name(run, files, tmp_path):
    with pytest.raises(DataError, match="--train_file .*trian.csv does not exist .*Did you mean 'train.csv'?"):
        run("--train_file", tmp_path / "trian.csv", *TINY)
    with pytest.raises(DataError, match="is a folder: give a file"):
        run("--train_file", tmp_path, *TINY)
    with pytest.raises(DataError, match="there is no validation data: give --validation_file"):
        run(*files[:2], *TINY, "--do_train", "--do_eval", out="second")


# Reading


def test_formats_give_the_same_rows(tmp_path):
    rows = [*make_rows(3), {"text": 'a "quoted",\nbroken text', "label": "NA"}, {"text": "1984", "label": "null"}]
    rows.append({"text": "東京 ü \u2028 x", "label": "neg"})
    for name in ("a.csv", "a.jsonl", "a.json", "a.parquet"):
        _, data = load(tmp_path, train_file=write(tmp_path / name, rows))
        assert data["train"].to_list() == rows, name
    _, data = load(tmp_path, train_file=write(tmp_path / "bom.csv", b"\xef\xbb\xbftext,label\r\na,b\r\n"))
    assert data["train"].to_list() == [{"text": "a", "label": "b"}]
    _, data = load(tmp_path, train_file=write(tmp_path / "a.tsv", "text\tlabel\na, b\tc\n"))
    assert data["train"].to_list() == [{"text": "a, b", "label": "c"}]
    _, data = load(tmp_path, train_file=write(tmp_path / "a.dat", "one\n\n two \n"), file_format="text")
    assert data["train"].to_list() == [{"text": "one"}, {"text": "two"}]


def test_changed_file_is_read_again(tmp_path):
    path = write(tmp_path / "a.csv", "text\nold\n")
    assert load(tmp_path, train_file=path)[1]["train"]["text"][0] == "old"
    write(path, "text\nnew\n")
    assert load(tmp_path, train_file=path)[1]["train"]["text"][0] == "new"


def test_values_that_change_their_type(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"a": 1, "b": null}\n{"a": 2.5, "b": 1}\n\n{"a": "x"}\n')
    with pytest.raises(DataError, match="line 4: 'a' is 'x', of type str, but on line 1 it is of type float"):
        load(tmp_path, train_file=path)


def test_conll(tmp_path):
    text = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VB O\n\n# a comment\nPeter NNP B-PER\n# NN O\n\n\n"
    args, data = load(tmp_path, train_file=write(tmp_path / "a.conll", text.replace("# NN O\n", "")))
    assert data["train"].to_list() == [
        {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]},
        {"tokens": ["Peter"], "tags": ["B-PER"]},
    ]
    assert columns.where(args, "train", 1).endswith("a.conll, line 7")
    assert columns.label_names(data, args, "tags") == ["B-ORG", "B-PER", "O"]
    _, data = load(tmp_path, train_file=write(tmp_path / "b.conll", "a b\tX\nc\tY\n"))
    assert data["train"].to_list() == [{"tokens": ["a b", "c"], "tags": ["X", "Y"]}]
    _, data = load(tmp_path, train_file=write(tmp_path / "c.conll", "a\nb\n"))
    assert data["train"].to_list() == [{"tokens": ["a", "b"]}]


def test_blanks_of_conll_are_those_of_ascii(tmp_path):
    """Other blanks are characters of a token, or tokens, between tabs as between blanks."""
    tokens = ["10\u00a0000", "a\u0085b", "c\u2028d", "\u3000"]
    for blank in ("\t", " ", "  \x0b"):
        text = "".join(f"{token}{blank}O\r\n" for token in tokens)
        _, data = load(tmp_path, train_file=write(tmp_path / "a.conll", text))
        assert data["train"].to_list() == [{"tokens": tokens, "tags": ["O"] * 4}]


def test_hash_is_a_token_or_begins_a_comment(tmp_path):
    """A token has as many columns as others, and a tag that others have."""
    _, data = load(tmp_path, train_file=write(tmp_path / "a.conll", "# newdoc\n# O\n1 B\n\n# text = 1\n#tag O\n"))
    assert [row["tokens"] for row in data["train"]] == [["#", "1"], ["#tag"]]
    _, data = load(tmp_path, train_file=write(tmp_path / "b.conll", "# newdoc\n#\tO\n1\tB\n\n# sentence\na\tO\n"))
    assert [row["tokens"] for row in data["train"]] == [["#", "1"], ["a"]]


def test_conllu(tmp_path):
    """The columns that Universal Dependencies have: word and part of speech; 1-2 and 2.1 are no words of their own."""
    lines = ["# text = zum Film", "1-2 zum", "1 zu ADP", "2 dem DET", "2.1 da ADV", "3 Film NOUN", "", "1 Ende NOUN"]
    cells = [line.split() if line[:1].isdigit() else None for line in lines]
    rest = ["_"] * 6
    text = "\n".join(
        "\t".join([c[0], c[1], "lemma", c[2] if len(c) > 2 else "_", *rest]) if c else line
        for line, c in zip(lines, cells, strict=True)
    )
    args, data = load(tmp_path, train_file=write(tmp_path / "a.conllu", text + "\n"))
    assert data["train"].to_list() == [
        {"tokens": ["zu", "dem", "Film"], "tags": ["ADP", "DET", "NOUN"]},
        {"tokens": ["Ende"], "tags": ["NOUN"]},
    ]
    assert columns.where(args, "train", 1).endswith("a.conllu, line 8")


def test_squad(tmp_path):
    question = {"id": "q1", "question": "who?", "answers": [{"text": "EU", "answer_start": 0}]}
    article = {"title": "t", "paragraphs": [{"context": "EU rejects", "qas": [question]}]}
    flat = {"id": "q1", "title": "t", "context": "EU rejects", "question": "who?"}
    flat["answers"] = {"text": ["EU"], "answer_start": [0]}
    for indent in (None, 1):
        path = write(tmp_path / f"{indent}.json", json.dumps({"version": "1.1", "data": [article]}, indent=indent))
        assert load(tmp_path, train_file=path)[1]["train"].to_list() == [flat]
    del question["answers"][0]["answer_start"]
    path = write(tmp_path / "bad.json", json.dumps({"data": [article]}))
    with pytest.raises(DataError, match="bad.json, record 1, question .*'answer_start' is missing"):
        load(tmp_path, train_file=path)


def test_class_numbers_come_as_names(tmp_path):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["no", "yes"])})
    Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, -1]}, features).to_parquet(tmp_path / "a.parquet")
    args, data = load(tmp_path, train_file=tmp_path / "a.parquet")
    assert list(data["train"]["label"]) == ["yes", "no", None]
    with pytest.raises(DataError, match="a.parquet, row 3"):
        columns.label_names(data, args, "label")


def test_numbers_are_labels_in_order(tmp_path):
    rows = [{"text": "a", "label": number} for number in (10, 9, 1)]
    args, data = load(tmp_path, train_file=write(tmp_path / "a.jsonl", rows))
    assert columns.label_names(data, args, "label") == ["1", "9", "10"]


def test_samples_and_validation_split(tmp_path):
    rows = [{"text": f"text {number // 2}", "label": str(number)} for number in range(40)]  # every text twice
    path = write(tmp_path / "a.csv", rows)
    args, data = load(tmp_path, train_file=path, validation_split_percentage=25, max_train_samples=10)
    one = splits.cut(data, args, seed=1, same=["text"])
    assert (len(one["train"]), len(one["validation"])) == (10, 10)
    assert not set(one["train"]["text"]) & set(one["validation"]["text"])
    assert list(one["train"]["label"]) == sorted(one["train"]["label"], key=int)
    again, other = (splits.cut(data, args, seed=seed, same=["text"]) for seed in (1, 2))
    assert again["train"].to_list() == one["train"].to_list()
    assert other["train"].to_list() != one["train"].to_list()

    args, data = load(tmp_path, train_file=path, test_file=path, max_predict_samples=3)
    assert list(splits.cut(data, args, seed=1, same=["text"])["test"]["label"]) == ["0", "1", "2"]
    args, data = load(tmp_path, train_file=path, validation_split_percentage=1)
    with pytest.raises(DataError, match="--validation_split_percentage 1 of 20 distinct rows .* leaves one of the two"):
        splits.cut(data, args, seed=1, same=["text"])


# Documentation


def test_commands_of_the_documentation(tmp_path, monkeypatch):
    """Every classification command of docs/recipes.md, as printed, with a few rows."""
    monkeypatch.chdir(tmp_path)
    few = "--max_train_samples 8 --max_eval_samples 4 --max_predict_samples 4 --num_train_epochs 1 --max_seq_length 16"
    always = [*few.split(), "--cache_dir", "cache", "--use_cpu", "true", "--disable_tqdm", "true"]
    outputs = []
    for script, words in documented_commands("Classification", tmp_path / "minilm"):
        if script == "prepare_data":
            monkeypatch.setattr(sys, "argv", ["prepare_data.py", *words])
            prepare_data.main()
            continue
        assert script == "run_classification"
        main([*words, *always])
        outputs.append(Path(words[words.index("--output_dir") + 1]))
    assert [path.name for path in outputs] == ["reviews", "tryout", "reviews-predictions", "word-order"]
    assert len((outputs[0] / "predictions.csv").read_text().splitlines()) == 5
    assert (outputs[0] / "predictions.csv").read_text() == (outputs[2] / "predictions.csv").read_text()
