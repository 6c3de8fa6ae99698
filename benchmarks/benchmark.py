"""Plainformer against transformers' BERT and Marian: time and memory, on real texts, with the same numbers.

    python benchmarks/benchmark.py                                    every row
    python benchmarks/benchmark.py inference-shuffled padding -n 3    some rows, three repeats

Every figure is the median of the ratios of two sides that run in turn. The column "apart" is the largest difference of
their numbers; if the sides differ, the benchmark stops. Some rows have no such column: memory (the models are those of
the rows of time), `share-of-limit` and `cache` (there is one model only), kinds of position (they compute different
numbers), and those beside peers, whose vectors are compared instead. Training rows have dropout on; their
check has dropout off. The table goes to the terminal, and every measurement to a JSON file.
"""

import argparse
import json
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from encoder_decoder import PAIR_ROWS
from minilm import minilm_sides
from peers import PEER_ROWS, MissingExtra
from positions import POSITION_ROWS
from texts import BATCH_SIZE, MAX_LENGTH, Batch, load_tokenizer, make_batches, reviews, with_labels
from timing import Sides, check, compare, in_turn, infer, seconds, train
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

from plainformer import PlainformerForMaskedLM, PlainformerForSequenceClassification, from_bert

MINILM = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
BERT_BASE: dict[str, int] = {}  # BertConfig's defaults
HEADS = {
    "masked-lm": (BertForMaskedLM, PlainformerForMaskedLM),
    "classification": (BertForSequenceClassification, PlainformerForSequenceClassification),
}


def training_sides(head: str, sizes: dict[str, int], device: str) -> Sides:
    """A BERT with a head and random weights, and our model with the same weights."""
    torch.manual_seed(0)
    theirs, ours = HEADS[head]
    bert = theirs(BertConfig(**sizes))
    with tempfile.TemporaryDirectory() as folder:
        bert.save_pretrained(folder)
        return bert.to(device), from_bert(folder, ours).to(device)


def inference_shuffled(repeats: int, device: str) -> dict[str, Any]:
    """MiniLM, shuffled batches of 32 cut at 256 tokens."""
    return compare(minilm_sides(device), make_batches(reviews()[: 8 * BATCH_SIZE], device), infer, repeats)


def inference_sorted(repeats: int, device: str) -> dict[str, Any]:
    """The same with batches sorted by length: nearly nothing to gain from padding."""
    return compare(minilm_sides(device), sorted_batches(device), infer, repeats)


def sorted_batches(device: str) -> list[Batch]:
    """Every eighth of 64 batches that are sorted by length."""
    tokenizer = load_tokenizer()
    texts = sorted(reviews()[: 64 * BATCH_SIZE], key=lambda text: len(tokenizer.tokenize(text)))
    return make_batches(texts, device)[::8]


def inference_equal(repeats: int, device: str) -> dict[str, Any]:
    """No padding at all: every text cut at 64 tokens, and none shorter."""
    batches = make_batches([text for text in reviews() if len(text) > 80][: 8 * BATCH_SIZE], device)
    batches = [{name: ids[:, :64].contiguous() for name, ids in batch.items()} for batch in batches]
    batches = [batch for batch in batches if bool(batch["attention_mask"].all())]
    return compare(minilm_sides(device), batches, infer, repeats)


def _training(head: str, sizes: dict[str, int], repeats: int, device: str, steps: int) -> dict[str, Any]:
    batches = [with_labels(batch, head) for batch in make_batches(reviews()[: steps * BATCH_SIZE], device)]
    return compare(training_sides(head, sizes, device), batches, train, repeats)


def masked_lm_minilm(repeats: int, device: str) -> dict[str, Any]:
    """A masked-LM training step, MiniLM's shape."""
    return _training("masked-lm", MINILM, repeats, device, steps=2)


def masked_lm_base(repeats: int, device: str) -> dict[str, Any]:
    """A masked-LM training step, BERT-base's shape."""
    return _training("masked-lm", BERT_BASE, repeats, device, steps=1)


def classification(repeats: int, device: str) -> dict[str, Any]:
    """A classification training step, MiniLM's shape."""
    return _training("classification", MINILM, repeats, device, steps=2)


def masked_lm_memory(repeats: int, device: str) -> dict[str, Any]:
    """Peak memory of a masked-LM training step, MiniLM's shape: ours over BERT's, each in a process of its own."""
    return _peaks("MINILM", repeats, device)


def masked_lm_base_memory(repeats: int, device: str) -> dict[str, Any]:
    """The same at BERT-base's shape."""
    return _peaks("BERT_BASE", repeats, device)


def _peaks(shape: str, repeats: int, device: str) -> dict[str, Any]:
    peaks: tuple[list[int], list[int]] = ([], [])
    for _ in range(min(repeats, 3)):
        for side in (0, 1):
            command = [sys.executable, __file__, "--peak-of", shape, str(side), "--device", device]
            peaks[side].append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    ratios = [ours / theirs for theirs, ours in zip(*peaks, strict=True)]
    return {"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios), "bytes": peaks}


def peak_of(shape: str, side: int, device: str) -> int:
    """Peak memory of two training steps in bytes: of the whole process, or on the GPU of what was allocated."""
    batches = [with_labels(batch, "masked-lm") for batch in make_batches(reviews()[: 2 * BATCH_SIZE], device)]
    sides = training_sides("masked-lm", {"MINILM": MINILM, "BERT_BASE": BERT_BASE}[shape], device)
    model = sides[side]
    del sides
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    train(model, batches)()
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    if peak:  # on Linux a process inherits ru_maxrss from its parent
        return int(peak[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def limit_ratio(repeats: int, device: str) -> dict[str, Any]:
    """Time of the bare matrix products for the same real tokens, over ours (MiniLM, shuffled, inference)."""
    batches = make_batches(reviews()[: 8 * BATCH_SIZE], device)
    _, model = minilm_sides(device)
    return in_turn(bare_products(model, batches), infer(model, batches), repeats)


def bare_products(model: nn.Module, batches: list[Batch]) -> Callable[[], None]:
    """The linear maps of every layer on the real tokens, and the two products of attention for every sequence."""
    linears = [module for module in model.layers.modules() if isinstance(module, nn.Linear)]
    heads, size = model.config.num_attention_heads, model.layers[0].attention.head_size
    lengths = [batch["attention_mask"].sum(dim=1).tolist() for batch in batches]
    device = batches[0]["input_ids"].device
    inputs = {
        width: torch.randn(max(map(sum, lengths)), width, device=device)
        for width in {linear.in_features for linear in linears}
    }
    keys = torch.randn(heads, MAX_LENGTH, size, device=device)

    def run() -> None:
        with torch.inference_mode():
            for one_batch in lengths:
                for linear in linears:
                    F.linear(inputs[linear.in_features][: sum(one_batch)], linear.weight)
                for length in one_batch * len(model.layers):
                    states = keys[:, :length]
                    (states @ states.transpose(1, 2)) @ states

    return run


def padding(repeats: int, device: str) -> dict[str, Any]:
    """The same tokens with 0, 50, 80 and 95 % padding: time over the time without padding, for ours and for BERT."""
    texts = [text for text in reviews() if len(text) > 40][:64]
    batch = make_batches(texts, device)[0]
    batch = {name: ids[:, :24] for name, ids in batch.items()}  # 32 texts of 24 tokens
    bert, ours = minilm_sides(device)
    fractions = (0.0, 0.5, 0.8, 0.95)
    padded = [{n: F.pad(ids, (0, round(24 / (1 - part)) - 24)) for n, ids in batch.items()} for part in fractions]
    apart = check((bert, ours), padded)
    calls = {name: [infer(model, [one]) for one in padded] for name, model in (("ours", ours), ("BERT", bert))}
    times = [{name: [seconds(call) for call in calls[name]] for name in calls} for _ in range(repeats + 1)]
    rows = {
        name: [statistics.median(one[name][i] / one[name][0] for one in times[1:]) for i in range(len(fractions))]
        for name in calls
    }
    return {"ratio": rows["ours"][-1], "low": min(rows["ours"]), "high": max(rows["ours"]), "difference": apart, **rows}


ROWS: dict[str, Callable[[int, str], dict[str, Any]]] = {
    "inference-shuffled": inference_shuffled,
    "inference-sorted": inference_sorted,
    "inference-equal": inference_equal,
    "masked-lm-minilm": masked_lm_minilm,
    "masked-lm-memory": masked_lm_memory,
    "masked-lm-base-memory": masked_lm_base_memory,
    "masked-lm-base": masked_lm_base,
    "classification": classification,
    "share-of-limit": limit_ratio,
    "padding": padding,
    **PAIR_ROWS,
    **POSITION_ROWS,
    **PEER_ROWS,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"which rows; default all: {', '.join(ROWS)}")
    parser.add_argument("-n", "--repeats", type=int, default=7, help="runs of each side (default 7; memory: at most 3)")
    parser.add_argument("-o", "--output", type=Path, default=Path("outputs/benchmark.json"), help="the JSON file")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--peak-of", nargs=2, metavar=("SHAPE", "SIDE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = [name for name in args.rows if name not in ROWS]
    if unknown:
        parser.error(f"there is no row {unknown[0]!r}: choose from {', '.join(ROWS)}")
    if args.repeats < 1:
        parser.error(f"--repeats {args.repeats}: at least 1")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if args.peak_of is not None:
        shape, side = args.peak_of
        print(peak_of(shape, int(side), args.device))
        return

    report = {"machine": machine(args.device), "repeats": args.repeats, "rows": {}}
    print("\n".join(f"{name}: {value}" for name, value in report["machine"].items()), "\n")
    print(f"{'row':20} {'ratio':>7} {'low':>7} {'high':>7} {'apart':>9}  what")
    for name in args.rows or ROWS:
        try:
            row = ROWS[name](args.repeats, args.device)
        except MissingExtra as error:
            print(f"{name:20} not measured: {error}")
            continue
        report["rows"][name] = row
        apart = f"{row['difference']:.1e}" if "difference" in row else "-"
        what = ROWS[name].__doc__.strip()
        print(f"{name:20} {row['ratio']:7.2f} {row['low']:7.2f} {row['high']:7.2f} {apart:>9}  {what}", flush=True)
        for side in ("ours", "BERT"):
            if side in row:
                print(f"{'':20} {side}: " + ", ".join(f"{value:.2f}" for value in row[side]))
        for note in row.get("notes", ()):
            print(f"{'':20} {note}")
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(report, indent=2), encoding="utf-8")
    print(f"\nall measurements: {args.output}")


def machine(device: str) -> dict[str, str]:
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads",
        "dtype": "bfloat16" if device == "cuda" else "float32",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


if __name__ == "__main__":
    main()
