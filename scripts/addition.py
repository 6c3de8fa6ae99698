"""Learn to add numbers that are written as text: "12+345" -> "357". The first task for an encoder-decoder.

    python scripts/addition.py --output_dir outputs/addition
    python scripts/addition.py --answer "12+345" --model outputs/addition

The first command makes the problems, trains a small model on them, saves it, opens the folder in a process that has no
plainformer, and measures the exact match on problems that the training never saw: a tenth of all pairs of numbers is
kept for that, in either order. The sum is written as people do, the first digit first. A few minutes on one CPU core.
"""

import argparse
import json
import random
import re
import sys
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)

from plainformer import PlainformerForConditionalGeneration, PlainformerSeq2SeqConfig, train_tokenizer
from plainformer.losses_plainformer import IGNORE_INDEX
from plainformer.positions_plainformer import POSITION_KINDS
from plainformer.recipes.arguments import KINDS_HELP
from plainformer.recipes.errors import RecipeError
from plainformer.recipes.run_folder import MARKER, check_writable
from plainformer.recipes.training import launch
from plainformer.sharing.files import Refusal
from plainformer.sharing.push import check_as_stranger

MOST_DIGITS = 20
KEPT_FOR_TEST = 10  # one pair of numbers in so many
EXAMPLE = "12+345"

Problem = tuple[int, int]


def main(argv: Sequence[str] | None = None) -> float | None:
    # 1. Arguments; or only an answer of a model that was trained before
    args = parse_args(argv)
    if args.answer is not None:
        print(answer_typed(args.answer, args.model))
        return None
    folder = open_folder(args.output_dir)

    # 2. Problems: of the training a new one whenever one is needed, of the test all different
    set_seed(args.seed)
    training = draw_problems(args.digits, random.Random(args.seed), for_test=False)
    test = draw_test(args.digits, random.Random(args.seed), args.test_samples)

    # 3. Tokenizer and model
    tokenizer = make_tokenizer(args.digits)
    model = make_model(args, tokenizer)
    print(f"{type(model).__name__}, {model.num_parameters():,} parameters", flush=True)

    # 4. Train
    train(model, tokenizer, list(islice(training, args.num_train_steps * args.batch_size)), args)

    # 5. Save, and answer the problems of the test
    save(model, tokenizer, folder, args)
    texts = [write(problem) for problem in test]
    answers = answer(model, tokenizer, texts, args.batch_size)

    # 6. Open the folder as a stranger does, who gets the same answers
    open_as_stranger(folder, texts[:3], answers[:3])

    # 7. Exact match
    wrong = [line for line in zip(texts, answers, map(sum, test), strict=True) if line[1] != str(line[2])]
    for text, given, right in wrong[:5]:
        print(f"wrong: {text} = {given}, and not {right}")
    exact_match = 1 - len(wrong) / len(test)
    print(f"exact match {exact_match:.4f} ({len(test)} unseen sums)")
    return exact_match


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; a RecipeError for values that cannot be meant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output_dir", type=Path, help="train, and write the model to this new folder")
    parser.add_argument("--answer", metavar="SUM", help=f'a sum for a trained model, as "{EXAMPLE}"')
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="its folder, written with --output_dir")
    parser.add_argument("--digits", type=int, default=3, help="the longest numbers that are added (%(default)s)")
    parser.add_argument("--num_train_steps", type=int, default=2000, help="(%(default)s)")
    parser.add_argument("--batch_size", type=int, default=128, help="(%(default)s)")
    parser.add_argument("--learning_rate", type=float, default=1e-3, help="at its highest (%(default)s)")
    parser.add_argument("--test_samples", type=int, default=2000, help="at most so many (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of problems, weights and order (%(default)s)")

    model = parser.add_argument_group("model")
    kinds = {"choices": POSITION_KINDS, "metavar": "KIND", "help": f"{KINDS_HELP} (%(default)s)"}
    model.add_argument("--position_embedding_type", default="sinusoidal", **kinds)
    model.add_argument(
        "--randomize_positions", type=int, default=0, help="in training, draw positions from so many; 0: count them"
    )
    model.add_argument("--pre_norm", action="store_true", help="LayerNorm before each sub-layer, not after it")
    model.add_argument("--hidden_size", type=int, default=128, help="(%(default)s)")
    model.add_argument("--num_hidden_layers", type=int, default=2, help="of encoder and of decoder (%(default)s)")
    model.add_argument("--num_attention_heads", type=int, default=4, help="(%(default)s)")

    args = parser.parse_args(join_answer(sys.argv[1:] if argv is None else [str(word) for word in argv]))
    check_args(args)
    return args


def join_answer(words: list[str]) -> list[str]:
    """The words with `--answer -1+2` as one, since argparse would take the second for a flag."""
    joined: list[str] = []
    for word in words:
        if joined[-1:] == ["--answer"] and not word.startswith("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def check_args(args: argparse.Namespace) -> None:
    """Raise a RecipeError for arguments that do not go together, and for numbers that are out of range."""
    if (args.output_dir is None) == (args.answer is None):
        raise RecipeError(f'give either --output_dir FOLDER, to train, or --answer "{EXAMPLE}" --model FOLDER.')
    if (args.answer is None) != (args.model is None):
        raise RecipeError("--answer and --model go together: the sum, and the folder of the model that answers.")
    if not 1 <= args.digits <= MOST_DIGITS:
        raise RecipeError(f"--digits {args.digits}: give a number from 1 to {MOST_DIGITS}.")
    for name in ("num_train_steps", "batch_size", "test_samples"):
        if getattr(args, name) < 1:
            raise RecipeError(f"--{name} {getattr(args, name)}: give a whole number of at least 1.")
    if not 0 < args.learning_rate < float("inf"):
        raise RecipeError(f"--learning_rate {args.learning_rate}: give a number above 0.")
    if not 0 <= args.seed < 2**32:
        raise RecipeError(f"--seed {args.seed}: give a whole number from 0 to {2**32 - 1}.")


def open_folder(folder: Path) -> Path:
    """The new folder; a RecipeError where something would be overwritten, or nothing can be written."""
    check_writable(folder, "--output_dir")
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise RecipeError(f"--output_dir {folder} is not empty, and nothing is overwritten: name another.")
    return folder


# Problems


def draw_problems(digits: int, draw: random.Random, *, for_test: bool) -> Iterator[Problem]:
    """Problems without end: half of them of any numbers, half of numbers of 1, 2, ... digits equally often.

    Nine of ten numbers below 1000 have three digits: without the second half the others would hardly be learned.
    """
    while True:
        lengths = [digits, digits] if draw.random() < 0.5 else [draw.randint(1, digits), draw.randint(1, digits)]
        problem = tuple(draw.randrange(10**length) for length in lengths)
        if is_for_test(problem) == for_test:
            yield problem


def draw_test(digits: int, draw: random.Random, count: int) -> list[Problem]:
    """`count` problems of the test, no pair of numbers twice; fewer where there are no more, as with one digit."""
    problems: dict[Problem, Problem] = {}
    for problem in islice(draw_problems(digits, draw, for_test=True), 20 * count):
        problems.setdefault(tuple(sorted(problem)), problem)
        if len(problems) == count:
            break
    return list(problems.values())


def is_for_test(problem: Problem) -> bool:
    """Whether a problem is kept for the test. The two numbers alone decide, in either order, and no seed."""
    return zlib.crc32(write(sorted(problem)).encode()) % KEPT_FOR_TEST == 0


def write(problem: Sequence[int]) -> str:
    """As the model reads it: "12+345"."""
    return "+".join(map(str, problem))


def read_typed(text: str, digits: int) -> Problem:
    """The problem that a person typed; a RecipeError where it is none, or has longer numbers than were learned."""
    numbers = re.fullmatch(r"\s*([0-9]+)\s*\+\s*([0-9]+)\s*", text)
    if numbers is None:
        raise RecipeError(f'--answer {text!r} is no sum of two whole numbers: write "{EXAMPLE}".')
    first, second = (number.lstrip("0") or "0" for number in numbers.groups())
    if (length := max(len(first), len(second))) > digits:
        remedy = f"train one with --digits {length}" if length <= MOST_DIGITS else f"give numbers of at most {digits}"
        raise RecipeError(f"--answer: a number has {length} digits, and this model learned at most {digits}: {remedy}.")
    return int(first), int(second)


# Tokenizer, model, training


def make_tokenizer(digits: int) -> PreTrainedTokenizerBase:
    """WordPiece with a token for each digit. A text has [CLS], two numbers and their plus, and [SEP]."""
    text = "0123456789+0"  # all digits, at the beginning of a number and within
    options = {"split_digits": True, "show_progress": False, "model_max_length": 2 * digits + 3}
    return train_tokenizer([text], vocab_size=26, **options)


def make_model(args: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The model, from random weights; a RecipeError for sizes that do not go together."""
    names = ("position_embedding_type", "pre_norm", "hidden_size", "num_hidden_layers", "num_attention_heads")
    names += ("randomize_positions",)
    try:
        config = PlainformerSeq2SeqConfig(
            len(tokenizer),
            **{name: getattr(args, name) for name in names},
            intermediate_size=4 * args.hidden_size,
            max_position_embeddings=max(tokenizer.model_max_length, args.randomize_positions),
            # A formula has a size of its own, that tokens need too; a table starts as small as the tokens.
            scale_embedding=not POSITION_KINDS[args.position_embedding_type].has_limit,
            initializer_range=0.06,
            hidden_dropout_prob=0.0,  # no problem is seen often enough to be learned by heart
            attention_probs_dropout_prob=0.0,
            decoder_start_token_id=tokenizer.cls_token_id,
            eos_token_id=tokenizer.sep_token_id,
        )
    except ValueError as error:
        raise RecipeError(str(error)) from error
    model = PlainformerForConditionalGeneration(config)
    model.generation_config.max_length = args.digits + 3  # the start token, a sum, and [SEP]
    return model


def train(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, problems: list[Problem], args: argparse.Namespace
) -> None:
    """Train in place, on each of the problems once."""

    def collate(problems: list[Problem]) -> dict[str, Tensor]:
        sources = tokenizer([write(problem) for problem in problems], padding=True, return_tensors="pt")
        targets = tokenizer([str(sum(problem)) for problem in problems], padding=True, return_tensors="pt")
        labels = targets["input_ids"].masked_fill(targets["attention_mask"] == 0, IGNORE_INDEX)
        return {**sources, "labels": labels[:, 1:]}  # without [CLS], which the decoder starts with by itself

    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(args.output_dir),
            max_steps=args.num_train_steps,
            per_device_train_batch_size=args.batch_size,
            learning_rate=args.learning_rate,
            adam_beta2=0.98,
            lr_scheduler_type="cosine",
            warmup_steps=args.num_train_steps // 20,
            logging_steps=0.1,  # ten times in all
            save_strategy="no",
            remove_unused_columns=False,  # a problem has none
            report_to="none",
            seed=args.seed,
            dataloader_pin_memory=torch.cuda.is_available(),
        ),
        train_dataset=problems,
        data_collator=collate,
    )
    trainer.train()


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, args: argparse.Namespace) -> None:
    """The model with its code and tokenizer, and the settings, which say how long numbers may be."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    settings = {name: value for name, value in vars(args).items() if name not in ("output_dir", "answer", "model")}
    content = {"recipe": "addition", "status": "finished", "settings": settings}
    (folder / MARKER).write_text(json.dumps(content, indent=1), encoding="utf-8")


def open_as_stranger(folder: Path, texts: list[str], answers: list[str]) -> None:
    """Open the folder in a process without plainformer; a RecipeError unless it gives the same answers there."""
    try:
        report = check_as_stranger(folder, with_tokenizer=True, texts=texts)
    except Refusal as refusal:
        raise RecipeError(str(refusal)) from refusal
    if report["generated"] != answers:
        raise RecipeError(f"without plainformer, {folder} answers {report['generated']} and not {answers} to {texts}.")
    print(f"without plainformer, {folder} opens with {', '.join(report['opened'])}, and answers:")
    for text, given in zip(texts, answers, strict=True):
        print(f"  {text} = {given}")


# Answers


def answer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: list[str], batch_size: int) -> list[str]:
    """What the model answers to problems as it reads them, in their order."""
    model.eval()
    answers = []
    for start in tqdm(range(0, len(texts), batch_size), desc="Adding", disable=len(texts) == 1):
        batch = tokenizer(texts[start : start + batch_size], padding=True, return_tensors="pt").to(model.device)
        ids = model.generate(**batch, do_sample=False)
        answers += tokenizer.batch_decode(ids, skip_special_tokens=True)
    return answers


def answer_typed(text: str, folder: Path) -> str:
    """The answer of the model in this folder to what a person typed."""
    try:
        recipe = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        digits = recipe["settings"]["digits"] if recipe["recipe"] == "addition" else None
    except (OSError, ValueError, KeyError, TypeError):
        digits = None
    if digits is None:
        remedy = "and the name of a new folder" if folder.exists() else folder
        raise RecipeError(f"--model {folder} holds no model of addition.py: train one with --output_dir {remedy}")
    problem = read_typed(text, digits)
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    except Exception as error:  # whatever damaged files, or the code in the folder, may raise
        raise RecipeError(f"--model {folder} does not open: {error}") from error
    return answer(model, tokenizer, [write(problem)], batch_size=1)[0]


if __name__ == "__main__":
    launch(main)
