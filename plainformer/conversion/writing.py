"""Writes a Plainformer model as a checkpoint of another family, by the family's table."""

import copy
import os
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from ..configuration_plainformer import PlainformerConfig
from ..pretrained_plainformer import PlainformerPreTrainedModel
from .family import Family

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.get_logger(__name__)


def write_checkpoint(
    family: Family,
    model: PlainformerPreTrainedModel,
    folder: str | os.PathLike,
    tokenizer: "PreTrainedTokenizerBase | None",
) -> None:
    """A folder that the family's own classes open. `to_bert` says what each argument means."""
    their_class = _counterpart(family, model)
    _check_expressible(family, model.config, pooled=hasattr(model, "pooler"))
    if os.path.isfile(folder):
        raise NotADirectoryError(f"folder={os.fspath(folder)!r} is a file: give a folder to write the checkpoint to.")
    _check_tokenizer(tokenizer)
    weights = _their_weights(family, model, their_class)
    built = _build(family, their_class, _their_config(family, model), weights)
    built.save_pretrained(folder, state_dict=weights)
    if tokenizer is not None:
        _save_tokenizer(tokenizer, folder, model.config.max_position_embeddings)
    if their_class in family.class_notes:
        logger.warning(family.class_notes[their_class].format(folder=os.fspath(folder)))


def _counterpart(family: Family, model: PreTrainedModel) -> str:
    """The name of their class for a model, found by class name: a class that came from the Hub is no subclass."""
    for parent in type(model).__mro__:
        if parent.__name__ in family.classes:
            return family.classes[parent.__name__]
    has_encoder = hasattr(model, "plainformer")
    encoder = f" Its encoder can be written: {family.writer}(model.plainformer, ...)." if has_encoder else ""
    raise TypeError(
        f"model is a {type(model).__name__}, which has no counterpart in {family.title}. "
        f"Those that have one: {', '.join(family.classes)}.{encoder}"
    )


def _check_expressible(family: Family, config: PlainformerConfig, pooled: bool) -> None:
    for field, value in family.choices.items():
        if getattr(config, field) != value and (pooled or field not in family.choices_of_pooling):
            raise ValueError(
                f"{field}={getattr(config, field)!r} cannot be written as a {family.title} checkpoint, which always "
                f"means {field}={value!r}. Share this model with save_pretrained."
            )
    for field, (least, reason) in family.minimums.items():
        if getattr(config, field) < least:
            raise ValueError(
                f"{field}={getattr(config, field)!r} cannot be written as a {family.title} checkpoint: {reason}. "
                "Share this model with save_pretrained."
            )


def _check_tokenizer(tokenizer: Any) -> None:
    """Before anything is written."""
    if tokenizer is not None and not hasattr(tokenizer, "save_pretrained"):
        raise TypeError(
            f"tokenizer={tokenizer!r} is a {type(tokenizer).__name__}, not a tokenizer: pass "
            "AutoTokenizer.from_pretrained(folder)."
        )


def _their_weights(family: Family, model: PreTrainedModel, their_class: str) -> dict[str, Tensor]:
    """The model's tensors under their names. Tied ones share memory, by which `save_pretrained` knows them."""
    is_base = their_class == family.classes["PlainformerModel"]
    weights = {}
    for name, tensor in model.state_dict().items():
        theirs = family.name_of(name)
        if theirs is None:
            raise ValueError(
                f"The model's own {name!r} has no place in a {family.title} checkpoint. "
                "Share this model with save_pretrained."
            )
        inside = theirs.startswith(family.encoder + family.pooler) and not is_base
        weights[f"{family.prefix}{theirs}" if inside else theirs] = tensor
    for second, first in family.second_names.items():
        if first in weights:
            # Untied, some versions of their classes read the one name and some the other.
            weights[second] = weights[first] if model.config.tie_word_embeddings else weights[first].clone()
    return weights


def _their_config(family: Family, model: PreTrainedModel) -> PretrainedConfig:
    config_class = getattr(transformers, family.config_class)
    known = set(config_class().to_dict()) - family.file_fields
    fields = {field: value for field, value in model.config.to_dict().items() if field in known}
    return config_class(**(fields | family.written_fields))


def _build(family: Family, their_class: str, config: PretrainedConfig, weights: dict[str, Tensor]) -> PreTrainedModel:
    """Their own class around the model's tensors: it checks names and shapes, and knows how to save itself."""
    for field, value in family.class_fields.get(their_class, {}).items():
        setattr(config, field, value)
    with torch.device("meta"):
        built = getattr(transformers, their_class)(config, **family.class_options.get(their_class, {}))
    built.load_state_dict(weights, strict=True, assign=True)
    return built


def _save_tokenizer(tokenizer: "PreTrainedTokenizerBase", folder: str | os.PathLike, max_length: int) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = min(tokenizer.model_max_length or max_length, max_length)
    tokenizer.save_pretrained(folder)
