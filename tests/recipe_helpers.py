"""What the tests of the recipes share: tiny models, data files, runs that break off, and what comes out of a run."""

import csv
import json
from pathlib import Path

import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import Trainer

ROOT = Path(__file__).resolve().parent.parent

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


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


def join_lines(block: str) -> str:
    return block.replace("\\\n", "")
