"""Embed many texts in one call."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from tqdm.auto import tqdm

from .configuration_plainformer import CLASSIFIER_POOLINGS
from .modeling_plainformer import PlainformerPreTrainedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXTS_PER_CHUNK = 4096  # texts that the tokenizer is given at once, so that its progress shows


def encode(
    model: PlainformerPreTrainedModel,
    tokenizer: "PreTrainedTokenizerBase",
    texts: Sequence[str],
    *,
    pooling: str = "mean",
    normalize: bool = False,
    max_length: int | None = None,
    tokens_per_batch: int = 8192,
    show_progress: bool = True,
) -> Tensor:
    """One vector per text, in the order of the texts.

    The texts are sorted by length and cut into batches of about as many tokens each, so that short texts do not wait
    for long ones and no batch outgrows the memory. The vector is that of the encoder's last layer; a head, if `model`
    has one, is not used.

    Args:
        model: a Plainformer model, on the device where it should run. Its training mode is restored.
        tokenizer: the one that belongs to it.
        texts: the texts.
        pooling: "mean" over the real tokens, or "cls", the first of them.
        normalize: divide each vector by its length, so that a dot product is a cosine.
        max_length: tokens at which a text is cut off; by default what tokenizer and model allow.
        tokens_per_batch: about how many tokens are computed at once.
        show_progress: show a progress bar.

    Returns:
        float32 vectors on the CPU, [len(texts), E].

    Raises:
        TypeError: `texts` is a single string, or holds something else than strings.
        ValueError: an unknown `pooling`, or a number below 1.
    """
    _check(texts, pooling, max_length, tokens_per_batch)
    encoder = model.base_model
    max_length = _longest_allowed(encoder, tokenizer, max_length)
    ids = _tokenize(tokenizer, texts, max_length, show_progress)
    vectors = torch.empty(len(texts), encoder.config.hidden_size)
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), tqdm(total=len(texts), desc="encoding", disable=not show_progress) as progress:
            for chosen in _batches([len(one) for one in ids], tokens_per_batch):
                batch = tokenizer.pad({"input_ids": [ids[i] for i in chosen]}, return_tensors="pt").to(model.device)
                encoded = encoder(**batch, return_layout=True, return_dict=True)
                vectors[chosen] = encoded.layout.pool(encoded.last_hidden_state, pooling).float().cpu()
                progress.update(len(chosen))
    finally:
        model.train(was_training)
    return torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors


def _check(texts: Sequence[str], pooling: str, max_length: int | None, tokens_per_batch: int) -> None:
    if isinstance(texts, str):
        raise TypeError("texts is a single string: put it into a list, [text].")
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{index}] is {text!r}, a {type(text).__name__}: every text must be a string.")
    if pooling not in CLASSIFIER_POOLINGS:
        raise ValueError(f"pooling={pooling!r} is not one of {', '.join(map(repr, CLASSIFIER_POOLINGS))}.")
    for name, value in (("max_length", max_length), ("tokens_per_batch", tokens_per_batch)):
        if value is not None and value < 1:
            raise ValueError(f"{name}={value!r} must be at least 1.")


def _longest_allowed(
    encoder: PlainformerPreTrainedModel, tokenizer: "PreTrainedTokenizerBase", max_length: int | None
) -> int:
    limits = [tokenizer.model_max_length, max_length]
    if encoder.config.position_embedding_type == "learned":
        limits.append(encoder.config.max_position_embeddings)
    return min(limit for limit in limits if limit is not None)


def _tokenize(
    tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], max_length: int, show_progress: bool
) -> list[list[int]]:
    ids: list[list[int]] = []
    chunks = range(0, len(texts), TEXTS_PER_CHUNK)
    for start in tqdm(chunks, desc="tokenizing", disable=not show_progress or len(chunks) < 2):
        chunk = list(texts[start : start + TEXTS_PER_CHUNK])
        ids += tokenizer(chunk, truncation=True, max_length=max_length)["input_ids"]
    return ids


def _batches(lengths: list[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Indices of the texts, longest first: if the memory does not suffice, that shows at once."""
    batch: list[int] = []
    tokens = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if batch and tokens + lengths[index] > tokens_per_batch:
            yield batch
            batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield batch
