"""Rows of the benchmark: `for_inference` beside OpenVINO and ONNX Runtime on a CPU, with MiniLM's weights.

Every side maps the same tokenized batches to the same pooled vectors (the mean over real tokens). Every figure comes
from two sides that run in turn. Accuracy is the mean cosine with the vectors of `BertModel` in float32. What int8 needs
to see beforehand are film reviews that are not measured, whatever is measured.
"""

import statistics
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from minilm import minilm_bert, minilm_sides
from texts import (
    BATCH_SIZE,
    Batch,
    load_tokenizer,
    long_and_short_reviews,
    make_batches,
    news_paragraphs,
    sort_by_length,
)
from timing import in_turn
from torch import Tensor, nn

from plainformer import encode, for_inference
from plainformer.inference.packed import has_bfloat16

if TYPE_CHECKING:
    from engines import Engine

TEXTS = 128  # of a row; four times as many are sorted where batches shall hold texts of nearly equal length
SORTED_BATCH_SIZE = 16
CALIBRATION_TEXTS = 300
OUR_CALIBRATION_TEXTS = 64  # of these
CALLS = 100  # of one short text, in a row
SHORT_TEXT = "a gorgeous, witty, seductive movie about first love"  # 12 tokens
BERT, OURS, OPENVINO, ONNXRUNTIME = "BertModel", "plainformer", "OpenVINO", "ONNX Runtime"
PLAIN = "plain float32"  # our model without `for_inference`

Name = tuple[str, str]  # whose, and its type


class MissingExtra(Exception):
    """A row needs packages that are not installed."""


def our_types() -> list[str]:
    return [dtype for dtype in ("float32", "bfloat16", "int8") if dtype != "bfloat16" or has_bfloat16()]


def calibration_texts() -> list[str]:
    """Film reviews behind those that are measured."""
    return long_and_short_reviews()[4 * TEXTS :][:CALIBRATION_TEXTS]


def make_ours(model: nn.Module, dtype: str) -> nn.Module:
    """`for_inference` as a user would call it who has texts to calibrate with."""
    calibration = {"tokenizer": load_tokenizer(), "texts": calibration_texts()[:OUR_CALIBRATION_TEXTS]}
    return for_inference(model, dtype, **(calibration if dtype == "int8" else {}))


@cache
def models() -> dict[Name, nn.Module]:
    """`BertModel`, our model, and what `for_inference` makes of it."""
    bert, ours = minilm_sides("cpu")
    return {(BERT, "float32"): bert, (OURS, PLAIN): ours} | {(OURS, one): make_ours(ours, one) for one in our_types()}


@cache
def engines() -> dict[Name, "Engine"]:
    """Every side, as a function from a batch to hidden states [B, L, E]."""
    try:
        from engines import onnxruntime_engines, openvino_engines
    except ModuleNotFoundError as error:
        raise MissingExtra(f"{error.name} is not installed: pip install '.[benchmark]'") from error
    berts = {attention: minilm_bert(attention) for attention in ("sdpa", "eager")}
    texts = make_batches(calibration_texts(), "cpu", 1)
    some = make_batches(calibration_texts()[:BATCH_SIZE], "cpu")
    sides = {
        OPENVINO: openvino_engines(berts["sdpa"], our_types(), texts, some),
        ONNXRUNTIME: onnxruntime_engines(berts, some),
    }
    ours = {name: lambda batch, model=model: model(**batch).last_hidden_state for name, model in models().items()}
    return ours | {(side, dtype): engine for side in sides for dtype, engine in sides[side].items()}


def embed(engine: "Engine", batches: list[Batch]) -> Tensor:
    """The mean over the real tokens of each text, [N, E] for all N texts."""
    pooled = []
    with torch.inference_mode():
        for batch in batches:
            mask = batch["attention_mask"].float()  # [B, L]
            weights = (mask / mask.sum(dim=1, keepdim=True))[:, None]  # [B, 1, L]
            pooled.append((weights @ engine(batch)).squeeze(1))  # [B, 1, L] x [B, L, E] -> [B, E]
    return torch.cat(pooled)


def orders(texts: list[str]) -> dict[str, list[Batch]]:
    """The same texts in batches: shuffled, sorted, and every fourth batch of four times as many that are sorted."""
    few, many = texts[:TEXTS], texts[: 4 * TEXTS]
    return {
        "shuffled": make_batches(few, "cpu"),
        "sorted": make_batches(sort_by_length(few), "cpu", SORTED_BATCH_SIZE),
        "finely sorted": make_batches(sort_by_length(many), "cpu", SORTED_BATCH_SIZE)[::4],
    }


def padding_ratio(batches: list[Batch]) -> float:
    masks = [batch["attention_mask"] for batch in batches]
    return sum(mask.numel() for mask in masks) / sum(int(mask.sum()) for mask in masks)


def mean_cosines(batches: list[Batch]) -> dict[Name, float]:
    """With the vectors of `BertModel`; float32 must be the same numbers, otherwise the times mean nothing."""
    expected = embed(engines()[BERT, "float32"], batches)
    cosines = {
        name: float(F.cosine_similarity(embed(one, batches), expected).mean()) for name, one in engines().items()
    }
    wrong = {name: cosine for name, cosine in cosines.items() if "float32" in name[1] and cosine < 0.99999}
    if wrong:
        raise RuntimeError(f"These sides compute other numbers than BertModel: {wrong}")
    return cosines


def _turns(first: Name, second: Name, batches: list[Batch], repeats: int) -> dict[str, Any]:
    """The time of `first` over that of `second`."""
    return in_turn(*(lambda name=name: embed(engines()[name], batches) for name in (first, second)), repeats)


def _write(row: dict[str, Any]) -> str:
    return "{ratio:.2f} ({low:.2f} - {high:.2f})".format(**row)


def compare_all(texts: list[str], repeats: int) -> dict[str, Any]:
    """The time of `BertModel` over that of every other side, and that of each peer over ours of the same type."""
    batches = orders(texts)
    cosines = mean_cosines(batches["shuffled"])
    names = [name for name in engines() if name != (BERT, "float32")]
    sides = {
        " ".join(name): {order: _turns((BERT, "float32"), name, batches[order], repeats) for order in batches}
        for name in names
    }
    peers = [(side, dtype) for side, dtype in names if side != OURS]
    ours = {
        " ".join(name): {order: _turns(name, (OURS, name[1]), batches[order], repeats) for order in batches}
        for name in peers
    }
    heads = [f"{order}, padded/real {padding_ratio(batches[order]):.2f}" for order in batches]
    table = _markdown(["times BertModel", *heads, "mean cosine"], sides, {" ".join(n): cosines[n] for n in names})
    table += ["", *_markdown(["ours of the same type, times", *heads], ours)]
    first = ours[f"{OPENVINO} float32"]["sorted"]
    return {**first, "cosines": {" ".join(n): cosines[n] for n in names}, "sides": sides, "pairs": ours, "notes": table}


def _markdown(
    heads: list[str], rows: dict[str, dict[str, dict[str, Any]]], last: dict[str, float] | None = None
) -> list[str]:
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for name, row in rows.items():
        cells = [name, *map(_write, row.values()), *([f"{last[name]:.5f}"] if last else [])]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def peers(repeats: int, device: str) -> dict[str, Any]:
    """OpenVINO's time over ours, float32, sorted film reviews; below it all sides, types and orders."""
    return compare_all(long_and_short_reviews(), repeats)


def peers_news(repeats: int, device: str) -> dict[str, Any]:
    """The same on paragraphs of news; what int8 has seen are film reviews."""
    return compare_all(news_paragraphs(), repeats)


# One short text at a time


def one_text_sides() -> dict[str, dict[Name, Callable[[], Any]]]:
    """Functions of one short text: from its tokens to hidden states, and from its characters to its vector."""
    tokenizer = load_tokenizer()
    tokens = dict(tokenizer([SHORT_TEXT], return_tensors="pt"))

    def tokenize() -> Batch:
        return {name: torch.from_numpy(ids) for name, ids in tokenizer([SHORT_TEXT], return_tensors="np").items()}

    def read(engine: "Engine") -> Tensor:
        with torch.inference_mode():
            return engine(tokens)

    from_tokens = {name: lambda one=one: read(one) for name, one in engines().items()}
    from_text = {name: lambda one=one: embed(one, [tokenize()]) for name, one in engines().items() if name[0] != OURS}
    from_text |= {
        name: lambda model=model: encode(model, tokenizer, [SHORT_TEXT], show_progress=False)
        for name, model in models().items()
        if name[0] == OURS
    }
    return {"from tokens": from_tokens, "from text": from_text}


def many_times(run: Callable[[], Any]) -> Callable[[], None]:
    def repeat() -> None:
        for _ in range(CALLS):
            run()

    return repeat


def latency(repeats: int, device: str) -> dict[str, Any]:
    """One text of 12 tokens: OpenVINO's time with its tokenizer call over that of `encode`, float32; below it all."""
    sides = one_text_sides()
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for where, calls in sides.items():
        base = many_times(calls[BERT, "float32"])
        for name in calls:
            found.setdefault(" ".join(name), {})[where] = in_turn(base, many_times(calls[name]), repeats)
    ours = {
        f"OpenVINO {dtype}": {
            where: in_turn(*(many_times(calls[side, dtype]) for side in (OPENVINO, OURS)), repeats)
            for where, calls in sides.items()
        }
        for dtype in our_types()
    }
    heads = [*sides, *(f"ms {where}" for where in sides)]
    lines = ["| times BertModel | " + " | ".join(heads) + " |", "|" + " --- |" * (1 + len(heads))]
    for name, row in found.items():
        milliseconds = [f"{1000 * statistics.median(row[where]['seconds'][1]) / CALLS:.2f}" for where in sides]
        lines.append("| " + " | ".join([name, *map(_write, row.values()), *milliseconds]) + " |")
    lines += ["", *_markdown(["ours of the same type, times", *sides], ours)]
    return {**ours["OpenVINO float32"]["from text"], "sides": found, "pairs": ours, "notes": lines}


PEER_ROWS: dict[str, Callable[[int, str], dict[str, Any]]] = {
    "peers": peers,
    "peers-news": peers_news,
    "latency": latency,
}
