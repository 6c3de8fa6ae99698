"""Two sides in turn: their numbers first, then their times."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from texts import Batch
from torch import nn
from tqdm.auto import tqdm

Sides = tuple[nn.Module, nn.Module]  # theirs and ours

TOLERANCE, CUDA_TOLERANCE = 1e-5, 1e-4  # float32; on a GPU the order of a sum depends on the shape


def difference(sides: Sides, batch: Batch) -> float:
    """The largest difference of the loss, or of the hidden states at real tokens, with dropout off."""
    with torch.no_grad():
        theirs, ours = (side.eval()(**batch) for side in sides)
    if "labels" in batch:
        return abs(float(theirs.loss - ours.loss))
    token_mask = batch["attention_mask"].bool()
    return float((theirs.last_hidden_state - ours.last_hidden_state)[token_mask].abs().max())


def infer(model: nn.Module, batches: list[Batch]) -> Callable[[], None]:
    def run() -> None:
        with torch.inference_mode():
            for batch in batches:
                model(**batch)

    return run


def train(model: nn.Module, batches: list[Batch]) -> Callable[[], None]:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def run() -> None:
        for batch in batches:
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def seconds(run: Callable[[], None]) -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def in_turn(first: Callable[[], None], second: Callable[[], None], repeats: int) -> dict[str, Any]:
    """Time two sides in turn, after a warm-up; the order changes each time, so that no side is always first."""
    first(), second()
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in tqdm(range(repeats), leave=False):
        for side in (0, 1) if repeat % 2 == 0 else (1, 0):
            times[side].append(seconds((first, second)[side]))
    ratios = [a / b for a, b in zip(*times, strict=True)]
    return {"ratio": statistics.median(ratios), "low": min(ratios), "high": max(ratios), "seconds": times}


def check(sides: Sides, batches: list[Batch]) -> float:
    """The largest difference of the two sides' numbers; too large a difference stops the benchmark."""
    apart = max(difference(sides, batch) for batch in batches)
    tolerance = CUDA_TOLERANCE if batches[0]["input_ids"].is_cuda else TOLERANCE
    if apart > tolerance:
        raise RuntimeError(f"The two sides differ by {apart:.2e}, more than {tolerance:.0e}: the times mean nothing.")
    return apart


def compare(sides: Sides, batches: list[Batch], work: Callable, repeats: int) -> dict[str, Any]:
    """Their time over ours, and the largest difference of their numbers."""
    apart = check(sides, batches)
    if batches[0]["input_ids"].is_cuda:  # numbers are compared in float32, times are measured in bfloat16
        sides = tuple(side.to(torch.bfloat16) for side in sides)
    return {**in_turn(*(work(side, batches) for side in sides), repeats), "difference": apart}
