"""Rows of the benchmark: the encoder-decoder against `MarianMTModel`, on pairs of sentences of English reviews."""

from collections.abc import Callable
from typing import Any

import torch
from marian import make_marian
from texts import BATCH_SIZE, load_tokenizer, make_pair_batches, sentence_pairs
from timing import Sides, compare, in_turn, infer, train

from plainformer import PlainformerForConditionalGeneration, PlainformerSeq2SeqConfig

SMALL = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 1024}
MARIAN = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048}
GENERATED, GENERATED_ROWS = 128, 16  # tokens for each of so many texts


def pair_sides(sizes: dict[str, int], device: str) -> Sides:
    """Marian and our model, with the same random weights."""
    torch.manual_seed(0)
    tokenizer = load_tokenizer()
    config = PlainformerSeq2SeqConfig(
        **sizes,
        vocab_size=len(tokenizer),
        max_position_embeddings=256,
        scale_embedding=True,
        embedding_norm=False,
        layer_norm_eps=1e-5,
        attention_probs_dropout_prob=0.0,
        decoder_start_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    ours = PlainformerForConditionalGeneration(config).eval()
    return make_marian(ours).to(device), ours.to(device)


def _train_pairs(sizes: dict[str, int], repeats: int, device: str) -> dict[str, Any]:
    batches = make_pair_batches(sentence_pairs()[: 2 * BATCH_SIZE], BATCH_SIZE, device)
    return compare(pair_sides(sizes, device), batches, train, repeats)


def train_small(repeats: int, device: str) -> dict[str, Any]:
    """A training step of an encoder-decoder, 256 wide with 3 + 3 layers, against Marian."""
    return _train_pairs(SMALL, repeats, device)


def train_large(repeats: int, device: str) -> dict[str, Any]:
    """The same 512 wide with 6 + 6 layers, Marian's own shape."""
    return _train_pairs(MARIAN, repeats, device)


def encode(repeats: int, device: str) -> dict[str, Any]:
    """Sources encoded for generation, 512 wide, against Marian's encoder."""
    batches = make_pair_batches(sentence_pairs()[: 4 * BATCH_SIZE], BATCH_SIZE, device)
    sources = [{name: batch[name] for name in ("input_ids", "attention_mask")} for batch in batches]
    encoders = tuple(side.get_encoder() for side in pair_sides(MARIAN, device))
    return compare(encoders, sources, infer, repeats)


def write(model: torch.nn.Module, sources: dict[str, torch.Tensor], **options: Any) -> Callable[[], torch.Tensor]:
    """The function that generates `GENERATED` tokens for each source, whatever these are."""
    length = {"max_new_tokens": GENERATED, "min_new_tokens": GENERATED, "do_sample": False}
    return lambda: model.generate(**sources, **length, **options)


def _sources(device: str) -> dict[str, torch.Tensor]:
    batch = make_pair_batches(sentence_pairs()[:GENERATED_ROWS], GENERATED_ROWS, device)[0]
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def _generation(sizes: dict[str, int], repeats: int, device: str) -> dict[str, Any]:
    sources = _sources(device)
    theirs, ours = (write(side, sources) for side in pair_sides(sizes, device))
    expected, found = theirs(), ours()
    if not torch.equal(expected, found):
        raise RuntimeError(f"The two sides wrote different tokens: {expected.tolist()} and {found.tolist()}")
    return {**in_turn(theirs, ours, repeats), "difference": 0.0}


def generate_small(repeats: int, device: str) -> dict[str, Any]:
    """128 tokens for each of 16 texts, greedy, with a cache, 256 wide, against Marian."""
    return _generation(SMALL, repeats, device)


def generate_large(repeats: int, device: str) -> dict[str, Any]:
    """The same 512 wide."""
    return _generation(MARIAN, repeats, device)


def cache(repeats: int, device: str) -> dict[str, Any]:
    """The same 256 wide: our time without a cache over our time with one."""
    _, ours = pair_sides(SMALL, device)
    sources = _sources(device)
    return in_turn(write(ours, sources, use_cache=False), write(ours, sources), repeats)


PAIR_ROWS: dict[str, Callable[[int, str], dict[str, Any]]] = {
    "seq2seq-training": train_small,
    "seq2seq-training-large": train_large,
    "encoding": encode,
    "generation": generate_small,
    "generation-large": generate_large,
    "cache": cache,
}
