"""What the types of `for_inference` cost a classifier on a CPU: its accuracy in each, and the time.

    bash scripts/quickstart.sh
    python scripts/compare_types.py

Reads the folder that the quickstart wrote, and the reviews that it has tested on. For each type: the accuracy, how many
answers are those of the model itself, and the time over that of the model itself.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from quickstart import MARKER, MAX_LENGTH, ROOT, TEST_SIZE, Reviews, read_reviews
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from plainformer import PlainformerForSequenceClassification, for_inference

BATCH_SIZE = 32
CALIBRATION_TEXTS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "outputs" / "quickstart", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="that of the quickstart: which reviews are for testing (0)")
    parser.add_argument("--max_test_samples", type=int, default=TEST_SIZE, help="(%(default)s)")
    args = parser.parse_args()
    if not (args.folder / MARKER).exists():
        parser.error(f"{args.folder} is not a folder of the quickstart: run scripts/quickstart.sh first")
    if json.loads((args.folder / MARKER).read_text()).get("status") != "finished":
        parser.error(f"the quickstart in {args.folder} is not finished")
    if args.max_test_samples < 1:
        parser.error(f"--max_test_samples {args.max_test_samples}: at least 1")

    tokenizer = AutoTokenizer.from_pretrained(args.folder, trust_remote_code=True)
    model = PlainformerForSequenceClassification.from_pretrained(args.folder).eval()
    train, test = read_reviews(args.seed)
    compare(model, tokenizer, [text for text, _ in train[:CALIBRATION_TEXTS]], test[: args.max_test_samples])


def compare(
    model: PlainformerForSequenceClassification,
    tokenizer: PreTrainedTokenizerBase,
    calibration_texts: list[str],
    test: Reviews,
) -> None:
    """Print a row for the model itself and one for each type."""
    references = torch.tensor([label for _, label in test])
    expected, own_seconds = classify(model, tokenizer, test)
    print("| | accuracy | answers as those of the model | time over the model's |", "| --- " * 4 + "|", sep="\n")
    print_row("the model itself", expected, expected, references, 1.0)
    for dtype in ("float32", "bfloat16", "int8"):
        try:
            fast = convert(model, dtype, tokenizer, calibration_texts)
        except ValueError as error:  # the processor lacks the type
            print(f"| {dtype} | {error} | | |")
            continue
        predictions, seconds = classify(fast, tokenizer, test)
        print_row(f'for_inference, "{dtype}"', predictions, expected, references, seconds / own_seconds)


def convert(
    model: PlainformerForSequenceClassification, dtype: str, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> PlainformerForSequenceClassification:
    """`for_inference` as a user would call it who has texts to calibrate with."""
    calibration = {"tokenizer": tokenizer, "texts": texts}
    return for_inference(model, dtype, **(calibration if dtype == "int8" else {}))


def classify(
    model: PlainformerForSequenceClassification, tokenizer: PreTrainedTokenizerBase, reviews: Reviews
) -> tuple[Tensor, float]:
    """The predicted class of each review, [N], and the seconds that it took, tokenization not counted."""
    texts = [text for text, _ in reviews]
    chunks = [texts[start : start + BATCH_SIZE] for start in range(0, len(texts), BATCH_SIZE)]
    settings = {"truncation": True, "max_length": MAX_LENGTH, "padding": True, "return_tensors": "pt"}
    batches = [tokenizer(chunk, **settings) for chunk in chunks]
    with torch.inference_mode():
        model(**batches[0])  # the first call is slower
        started = time.perf_counter()
        predictions = torch.cat([model(**batch).logits.argmax(dim=-1) for batch in batches])
        return predictions, time.perf_counter() - started


def print_row(name: str, predictions: Tensor, expected: Tensor, references: Tensor, time_ratio: float) -> None:
    accuracy, same = ((predictions == other).float().mean() for other in (references, expected))
    print(f"| {name} | {accuracy:.3f} | {same:.1%} | {time_ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
