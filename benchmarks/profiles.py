"""Where the time of inference goes on a CPU: a table for each order of the batches, a row for each type.

    python benchmarks/profiles.py

`torch.profiler` says how long each operator takes; each counts for one part. A product that computes GELU or adds a
residual in passing counts as a product. "Rest" is Python, embeddings and everything else. Texts, batches and models are
those of the row `peers` of benchmark.py.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import peers
import torch
import transformers
from texts import Batch, long_and_short_reviews, news_paragraphs
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

# The parts, and how the names of their operators begin, without "aten::", "mkldnn::" and so on.
PARTS = {
    "products": "addmm _addmm mm linear _linear mkldnn_linear _mkl_linear qlinear",
    "attention": "bmm baddbmm matmul softmax _softmax exp sum aminmax scaled_dot _scaled_dot _flash",
    "activation": "gelu relu silu tanh",
    "norms and sums": "layer_norm native_layer_norm add addcmul mul sub div amin amax clamp nan_to_num "
    "quantize dequantize",
    "layout and copies": "cat stack copy to _to_copy clone contiguous index _index gather take split chunk narrow "
    "slice select unbind empty resize zeros zero fill new_ where masked_fill pad constant_pad repeat view _unsafe_view "
    "reshape transpose t permute expand flatten unflatten unsqueeze squeeze as_strided "
    "alias _reshape_alias resolve_conj",
}
TEXTS = {"reviews": long_and_short_reviews, "news": news_paragraphs}


def part_of(operator: str) -> str:
    """The part that an operator counts for: the longest beginning decides."""
    name = operator.partition("::")[2]
    exact = {start: part for part, starts in PARTS.items() for start in starts.split()}
    found = [start for start in exact if name.rstrip("_") == start or (len(start) > 2 and name.startswith(start))]
    return exact[max(found, key=len)] if found else "rest"


def shares(run: Callable[[], Any]) -> dict[str, float]:
    """The part of the time that goes into each of `PARTS`, after a run that is not measured."""
    run()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        with torch.profiler.record_function("everything"):
            run()
    events = [event for event in profiler.key_averages() if event.device_type == DeviceType.CPU]
    total = sum(event.self_cpu_time_total for event in events)
    found = dict.fromkeys([*PARTS, "rest"], 0.0)
    for event in events:
        found[part_of(event.key)] += event.self_cpu_time_total / total
    return found


def print_table(batches: list[Batch], repeats: int) -> None:
    heads = ["model", *PARTS, "rest"]
    print("| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads), sep="\n")
    for name, model in peers.models().items():
        found = shares(partial(peers.embed, lambda one, model=model: model(**one).last_hidden_state, batches * repeats))
        percent = [f"{100 * part:.0f} %" for part in found.values()]
        print("| " + " | ".join([" ".join(name), *percent]) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--repeats", type=int, default=3, help="passes over the batches (%(default)s)")
    parser.add_argument("--texts", choices=TEXTS, default="reviews", help="(%(default)s)")
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error(f"--repeats {args.repeats}: at least 1")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for order, batches in peers.orders(TEXTS[args.texts]()).items():
        print(f"\n{order}, padded/real {peers.padding_ratio(batches):.2f}, {torch.get_num_threads()} threads\n")
        print_table(batches, args.repeats)


if __name__ == "__main__":
    main()
