"""Embed many texts in one call."""

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers.utils import logging

from .checks import check_model
from .configuration_plainformer import CLASSIFIER_POOLINGS
from .labels_plainformer import HeadLabels
from .layouts_plainformer import pool
from .pretrained_plainformer import PlainformerPreTrainedModel
from .tokenization_plainformer import to_utf8
from .values_plainformer import at_least_float32

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.get_logger(__name__)

NO_LIMIT = int(1e30)  # the `model_max_length` of a tokenizer without a limit
TEXTS_PER_CHUNK = 4096  # texts per call of the tokenizer; a progress bar moves after each call


def encode(
    model: PlainformerPreTrainedModel,
    tokenizer: "PreTrainedTokenizerBase",
    texts: Iterable[str],
    *,
    pooling: str = "mean",
    normalize: bool = False,
    max_length: int | None = None,
    tokens_per_batch: int = 8192,
    show_progress: bool = True,
) -> Tensor:
    """One vector per text, in the order of the texts.

    The texts are sorted by length and split into batches of about equally many tokens, so that every batch takes about
    the same time and memory. The vectors are pooled from the encoder's last layer; a head of `model` is not used.

    Args:
        model: a Plainformer model, on the device where it should run. Each module's training mode is restored.
        tokenizer: the tokenizer of the model.
        texts: the texts, in a list or any other iterable with an order.
        pooling: "mean" (over the real tokens) or "cls" (the first real token).
        normalize: divide each vector by its norm, so that a dot product is a cosine.
        max_length: the maximum number of tokens of a text. Longer texts are cut off, and a logged warning says how
            many. The default is the limit of the tokenizer and the model.
        tokens_per_batch: the number of tokens that are computed at once, approximately.
        show_progress: show a progress bar.

    Returns:
        vectors on the CPU, [len(texts), E], float32, or float64 of a model in float64; zeros for a text without tokens.

    Raises:
        TypeError: `texts` is a single string, a set or a mapping, or has items that are not strings; `model` is not a
            Plainformer model; a number is not an integer.
        ValueError: an unknown `pooling`, a number below 1, a `max_length` without room for text, or text that is not
            valid Unicode.
    """
    check_model(model)
    texts = _read_texts(texts)
    _check_options(pooling, max_length, tokens_per_batch)
    encoder = model.base_model
    max_length = _text_limit(encoder, tokenizer, max_length)
    ids = _tokenize(tokenizer, texts, max_length, show_progress)
    dtype = at_least_float32(model.dtype)
    vectors = torch.zeros(len(texts), encoder.config.hidden_size, dtype=dtype)
    training = [module for module in model.modules() if module.training]
    if training:  # `eval` visits every module, which for one short text takes a tenth of the time
        model.eval()
    try:
        with torch.inference_mode(), tqdm(total=len(texts), desc="encoding", disable=not show_progress) as progress:
            for chosen in _batches([len(one) for one in ids], tokens_per_batch):
                rows = [torch.tensor(ids[index], device=model.device) for index in chosen]
                mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
                batch = pad_sequence(rows, batch_first=True)  # the ids at padding are never read
                encoded = encoder(batch, attention_mask=mask, head_labels=HeadLabels(), return_dict=True)
                vectors[chosen] = pool(encoded.last_hidden_state, encoded.layout, pooling).to(dtype).cpu()
                progress.update(len(chosen))
    finally:
        for module in training:
            module.training = True
    return torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors


def _read_texts(texts: Iterable[str]) -> list[str]:
    if isinstance(texts, str):
        raise TypeError("texts is a single string: put it into a list, [text].")
    if isinstance(texts, (Mapping, Set)) or not isinstance(texts, Iterable):
        raise TypeError(f"texts is a {type(texts).__name__}: give a list of strings, the order of which is kept.")
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"texts[{index}] is {text!r}, a {type(text).__name__}: every text must be a string.")
        if not text.isascii():
            to_utf8(text, index)
    return texts


def _check_options(pooling: str, max_length: int | None, tokens_per_batch: int) -> None:
    if pooling not in CLASSIFIER_POOLINGS:
        raise ValueError(f"pooling={pooling!r} is not one of {', '.join(map(repr, CLASSIFIER_POOLINGS))}.")
    for name, value in (("max_length", max_length), ("tokens_per_batch", tokens_per_batch)):
        if value is not None and type(value) is not int:
            raise TypeError(f"{name}={value!r} is a {type(value).__name__}: pass an integer.")
        if value is not None and value < 1:
            raise ValueError(f"{name}={value!r} must be at least 1.")


def _text_limit(
    encoder: PlainformerPreTrainedModel, tokenizer: "PreTrainedTokenizerBase", max_length: int | None
) -> int | None:
    """The maximum number of tokens of a text, special tokens included; None without a limit."""
    limits = (tokenizer.model_max_length, max_length, encoder.config.position_limit)
    max_length = min((limit for limit in limits if limit is not None), default=NO_LIMIT)
    special = tokenizer.num_special_tokens_to_add()
    if max_length <= special:  # tokenizers would not cut anything off then
        raise ValueError(
            f"max_length={max_length} leaves no room for text beside {special} special tokens: give at least "
            f"{special + 1}."
        )
    return None if max_length >= NO_LIMIT else max_length


def _tokenize(
    tokenizer: "PreTrainedTokenizerBase", texts: list[str], max_length: int | None, show_progress: bool
) -> list[list[int]]:
    ids: list[list[int]] = []
    cut_off = 0
    chunks = range(0, len(texts), TEXTS_PER_CHUNK)
    for start in tqdm(chunks, desc="tokenizing", disable=not show_progress or len(chunks) < 2):
        chunk = texts[start : start + TEXTS_PER_CHUNK]
        encoded = tokenizer(chunk, truncation=max_length is not None, max_length=max_length)
        ids += encoded["input_ids"]
        cut_off += sum(bool(one.overflowing) for one in encoded.encodings or [])  # only fast tokenizers have it
    if cut_off:
        logger.warning(f"{cut_off} of {len(texts)} texts were cut off at max_length={max_length} tokens.")
    return ids


def _batches(lengths: list[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """The indices of the texts of each batch, longest texts first: too little memory then shows at once."""
    batch: list[int] = []
    tokens = 0
    with_tokens = [index for index, length in enumerate(lengths) if length]
    for index in sorted(with_tokens, key=lengths.__getitem__, reverse=True):
        if batch and tokens + lengths[index] > tokens_per_batch:
            yield batch
            batch, tokens = [], 0
        batch.append(index)
        tokens += lengths[index]
    if batch:
        yield batch
