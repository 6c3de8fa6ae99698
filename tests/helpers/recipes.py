"""What the tests of the recipes share: tiny models, data files, runs that break off, and what a run leaves behind."""

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path

import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import BertConfig, BertModel, Trainer, TrainingArguments

from plainformer.tokenization_plainformer import train_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TINY = [*(word for name, size in SIZES.items() for word in (f"--{name}", size)), "--max_position_embeddings", 16]
WORDS = {"neg": "bad awful poor dull weak".split(), "pos": "good great fine lovely superb".split()}
NOUNS = "film plot actor scene music story".split()


def make_rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Short reviews of 2 to 12 words whose label is in a word, alternately negative and positive."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        label = ("neg", "pos")[number % 2]
        words = [draw.choice(WORDS[label]), *draw.choices(NOUNS, k=draw.randint(1, 11))]
        rows.append({"text": " ".join(words), "label": label})
    return rows


def write(path: Path, rows: list[dict] | str | bytes) -> Path:
    """A data file in the format that its name says; text and bytes as they are."""
    if isinstance(rows, (str, bytes)):
        path.write_bytes(rows.encode() if isinstance(rows, str) else rows)
    elif path.suffix == ".csv":
        with open(path, "w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    else:
        Dataset.from_list(rows).to_parquet(path)
    return path


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def losses(folder: Path) -> list[tuple]:
    history = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return [(entry["step"], entry[name]) for entry in history for name in ("loss", "eval_loss") if name in entry]


def fail_at(monkeypatch, micro_step: int, fail) -> None:
    """Call `fail` in the place of the batch with this number, counted from 1."""
    steps, original = iter(range(1, 1000)), Trainer.training_step

    def training_step(self, *args, **kwargs):
        if next(steps) == micro_step:
            fail()
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "training_step", training_step)


def crash() -> None:
    raise RuntimeError("the power went out")


def assert_same_run(one: Path, other: Path) -> None:
    assert losses(one) == losses(other) and len(losses(one)) >= 6
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name


def make_bert(folder: Path, **fields) -> Path:
    tokenizer = train_tokenizer([row["text"] for row in make_rows(24)], show_progress=False, model_max_length=16)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(3)
    BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **SIZES, **fields)).save_pretrained(
        folder
    )
    return folder


def join_lines(block: str) -> str:
    return block.replace("\\\n", "")


def grouped_by_length() -> list[str]:
    """The flags for batches of similar lengths, in transformers 4 and 5."""
    if hasattr(TrainingArguments, "group_by_length"):
        return ["--group_by_length"]
    return ["--train_sampling_strategy", "group_by_length"]


def in_process(main: Callable, tmp_path: Path) -> Callable:
    """A recipe's `main` with these flags, for small texts on a CPU, writing below `tmp_path` only."""

    def run(*flags, out: str = "out") -> dict[str, float]:
        always = ["--cache_dir", tmp_path / "cache", "--output_dir", tmp_path / out, "--max_seq_length", 16]
        return main([*always, "--disable_tqdm", "true", "--use_cpu", "true", *flags])

    return run
