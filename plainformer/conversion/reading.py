"""Reads a checkpoint of another family into a Plainformer model, by the family's table.

In order: the configuration (`_read_config`, `_convert_config`), the weights (`_read_weights`, `_modern_names`), what of
them the model takes (`_fit`), and the report.
"""

import difflib
import inspect
import json
import os
import pickle
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    EntryNotFoundError,
    cached_file,
    logging,
)

from ..configuration_plainformer import PlainformerConfig, model_types
from ..pretrained_plainformer import PlainformerPreTrainedModel
from .family import Family

logger = logging.get_logger(__name__)


def read_checkpoint(
    family: Family,
    source: str | os.PathLike,
    model_class: type[PlainformerPreTrainedModel],
    *,
    revision: str | None,
    token: str | bool | None,
    cache_dir: str | os.PathLike | None,
    subfolder: str,
    local_files_only: bool,
    dtype: str | torch.dtype | None,
    **config_overrides: Any,
) -> PlainformerPreTrainedModel:
    """A Plainformer model with the weights of a checkpoint, in eval mode. `from_bert` says what each argument means."""
    _check_model_class(model_class)
    dtype = _parse_dtype(dtype)
    hub = {
        "revision": revision,
        "token": token,
        "cache_dir": cache_dir,
        "subfolder": subfolder,
        "local_files_only": local_files_only,
    }
    their_config = _read_config(family, source, hub)
    config = _convert_config(family, their_config, model_class.config_class, config_overrides, source)
    weights = _modern_names(family, _read_weights(source, hub), source)
    config.dtype = dtype or weights[family.word_embeddings].dtype
    model = model_class(config).to(config.dtype)
    if family.decoder in map(family.name_of, model.state_dict()):
        _settle_decoder(family, weights, their_config, config, source)
    fitting, new, unused = _fit(family, model.state_dict(), weights, source)
    model.load_state_dict(fitting, strict=False)
    _report(source, model, new, unused)
    return model.eval()


def _check_model_class(model_class: Any) -> None:
    config_class = getattr(model_class, "config_class", None) if isinstance(model_class, type) else None
    is_ours = isinstance(config_class, type) and PlainformerConfig.model_type in model_types(config_class)
    if not is_ours or model_class is PlainformerPreTrainedModel:
        raise TypeError(
            f"model_class={model_class!r} is not a Plainformer model class: give PlainformerModel, "
            "PlainformerForSequenceClassification, ..., or a subclass of one."
        )


def _parse_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """The torch dtype that is meant; `None` for that of the file."""
    if dtype == "auto":
        return None
    parsed = torch.float32 if dtype is None else dtype
    if isinstance(dtype, str):
        parsed = getattr(torch, dtype.removeprefix("torch."), None)
    if not isinstance(parsed, torch.dtype) or not parsed.is_floating_point:
        raise ValueError(f"dtype={dtype!r} is not a floating point type: give 'float32', torch.bfloat16, 'auto', ....")
    return parsed


def _read_config(family: Family, source: str | os.PathLike, hub: dict[str, Any]) -> PretrainedConfig:
    """Their configuration, checked: it is of this family, and asks for nothing that we cannot compute."""
    _check_source(source)
    try:
        raw = dict(PretrainedConfig.get_config_dict(source, **hub)[0])
    except (TypeError, ValueError) as error:
        raise ValueError(f"The config.json of {source!s} is not a JSON object: fetch it again.") from error
    if not raw:
        raise OSError(f"{source!s} holds no config.json{_inside(hub)}: check the folder and subfolder.")
    model_type = raw.get("model_type")
    if model_type != family.model_type:
        model_type = model_type if model_type is None else str(model_type)
        remedy = family.remedies.get(model_type, family.other_remedy)
        raise ValueError(
            f"The config.json of {source!s} says model_type={model_type!r}, not {family.model_type!r}. {remedy}"
        )
    for field, values in family.refused.items():
        if raw.get(field) not in values:
            raise ValueError(
                f"{source!s} cannot become a Plainformer model: its config.json says {field}={raw[field]!r}, and there "
                f"is nothing here that computes it. {family.refusal_remedy}"
            )
    return getattr(transformers, family.config_class).from_dict(raw)


def _check_source(source: str | os.PathLike) -> None:
    if os.path.isfile(source):
        raise ValueError(f"source={os.fspath(source)!r} is a file: give the folder that holds config.json and weights.")
    name = os.fspath(source)
    must_be_folder = isinstance(source, os.PathLike) or os.path.isabs(name) or name[:1] in ".~" or name.count("/") > 1
    if must_be_folder and not os.path.isdir(source):
        raise FileNotFoundError(f"source={name!r}: there is no such folder (now in {os.getcwd()!r}).")


def _convert_config(
    family: Family,
    their_config: PretrainedConfig,
    config_class: type[PlainformerConfig],
    overrides: dict[str, Any],
    source: str | os.PathLike,
) -> PlainformerConfig:
    known = set(config_class().to_dict()) - family.file_fields
    fields = {field: value for field, value in their_config.to_dict().items() if field in known} | family.choices
    _check_overrides(family, overrides, fields, known, source)
    _forget_replaced_labels(fields, overrides)
    return config_class(**(fields | overrides), name_or_path=str(source))


def _check_overrides(
    family: Family, overrides: dict[str, Any], fields: dict[str, Any], known: set[str], source: str | os.PathLike
) -> None:
    known = known | {"num_labels", "attn_implementation"}
    own = ("family", "config_overrides")
    arguments = [name for name in inspect.signature(read_checkpoint).parameters if name not in own]
    for name, value in overrides.items():
        if name not in known:
            close = difflib.get_close_matches(name, {*known, *arguments}, n=1, cutoff=0.7)
            takes = f"It takes the configuration's fields, and {', '.join(arguments)}."
            hint = f"Did you mean {close[0]!r}?" if close else takes
            raise TypeError(f"{family.reader} does not know {name}={value!r}. {hint}")
        if name in family.fixed_fields and value != fields[name]:
            raise ValueError(
                f"{name}={value!r} would make the weights of {source!s} meaningless: they were trained with "
                f"{fields[name]!r}. Leave it out, or train a model with your value from scratch."
            )


def _forget_replaced_labels(fields: dict[str, Any], overrides: dict[str, Any]) -> None:
    """Label names of the file do not outlive new ones, nor its kind of problem another number of labels."""
    names = overrides.get("id2label") or overrides.get("label2id")
    before = len(fields["id2label"])
    after = len(names) if names else overrides.get("num_labels", before)
    if names or after != before:
        del fields["id2label"], fields["label2id"]
    if after != before:
        del fields["problem_type"]


def _read_weights(source: str | os.PathLike, hub: dict[str, Any]) -> dict[str, Tensor]:
    """The checkpoint's tensors, under the names they have in the file."""
    names = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
    path = next(filter(None, (_find(source, name, hub) for name in names)), None)
    if path is None:
        raise OSError(
            f"None of {', '.join(names)} could be found in {source!s}{_inside(hub)}: "
            "check the name, revision and subfolder, and for a model of the Hub the network."
        )
    if not path.endswith(".json"):
        return _read_file(path)
    weights: dict[str, Tensor] = {}
    for shard in _read_index(path):
        weights |= _read_file(cached_file(source, shard, **hub))
    return weights


def _read_index(path: str) -> list[str]:
    """The names of the shards."""
    try:
        shards = sorted(set(json.loads(Path(path).read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no index of weights ({error!r}): fetch it again.") from error
    for shard in shards:
        if Path(shard).name != shard:
            raise ValueError(f"{path} names the shard {shard!r}, which is not beside it: it is refused.")
    return shards


def _find(source: str | os.PathLike, name: str, hub: dict[str, Any]) -> str | None:
    try:
        return cached_file(source, name, **hub)
    except OSError as error:
        # A file that is not there is an answer, a Hub that fails is not; `cached_file` raises the same type for both.
        if error.__cause__ is None or isinstance(error.__cause__, EntryNotFoundError):
            return None
        raise


def _inside(hub: dict[str, Any]) -> str:
    return f" (subfolder={hub['subfolder']!r})" if hub["subfolder"] else ""


def _read_file(path: str) -> dict[str, Tensor]:
    try:
        weights = load_file(path) if path.endswith(".safetensors") else torch.load(path, "cpu", weights_only=True)
    except (PermissionError, FileNotFoundError):
        raise
    except (SafetensorError, EOFError, OSError, RuntimeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}): it is damaged, or the placeholder of a file that git-lfs has yet to "
            "fetch. Fetch it again."
        ) from error
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{path} is not a plain pickle of tensors, so it was refused and nothing in it was run: a pickle can hold "
            "calls. Take the safetensors file of this model, or convert it where you trust its author. A file of a few "
            "hundred bytes is the placeholder of one that git-lfs has yet to fetch."
        ) from error
    _check_weights(path, weights)
    return weights


def _check_weights(path: str, weights: Any) -> None:
    if not isinstance(weights, dict):
        raise ValueError(f"{path} holds a {type(weights).__name__}, not named tensors: it is no checkpoint.")
    for name, tensor in weights.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise ValueError(f"{path} holds {name!r}: {type(tensor).__name__}, where named dense tensors are expected.")
        if not tensor.is_floating_point() and tensor.dtype != torch.int64:  # counters are int64, weights never
            raise ValueError(
                f"{name!r} in {path} is {tensor.dtype}: its numbers are no weights as they stand (quantised, perhaps). "
                "Take the floating point checkpoint of this model."
            )


def _modern_names(family: Family, weights: dict[str, Tensor], source: str | os.PathLike) -> dict[str, Tensor]:
    """The same tensors under the names of today's classes, without the encoder's prefix and without buffers."""
    modern: dict[str, Tensor] = {}
    for old, tensor in weights.items():
        name = old.removeprefix(family.prefix)
        for before, now in family.renamed.items():
            name = name.replace(before, now)
        if name in modern:
            raise ValueError(
                f"{source!s} holds {name!r} twice, once as {old!r}: it is not one {family.title}. Remove one of them."
            )
        if name not in family.buffers:
            modern[name] = tensor
    for second, first in family.second_names.items():
        if second in modern:
            # A file that holds both means the first: that is the one their classes compute with.
            tensor = modern.pop(second)
            modern.setdefault(first, tensor)
    if family.word_embeddings not in modern:
        raise ValueError(
            f"The weights of {source!s} have no {family.word_embeddings!r}, with or without {family.prefix!r} before "
            f"it: they are not those of a {family.title}. They hold {_shorten(list(weights))}."
        )
    return modern


def _settle_decoder(
    family: Family,
    weights: dict[str, Tensor],
    their_config: PretrainedConfig,
    config: PlainformerConfig,
    source: str | os.PathLike,
) -> None:
    """A tied decoder need not be in the file; one that differs from the embeddings must not be lost by tying."""
    words = weights[family.word_embeddings]
    if their_config.tie_word_embeddings or config.tie_word_embeddings:
        weights.setdefault(family.decoder, words)
    if config.tie_word_embeddings and not torch.equal(weights[family.decoder], words):
        raise ValueError(
            f"tie_word_embeddings=True would lose the decoder of {source!s}, which differs from its word embeddings. "
            "Pass tie_word_embeddings=False to keep it."
        )


def _fit(
    family: Family, parameters: dict[str, Tensor], weights: dict[str, Tensor], source: str | os.PathLike
) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """What the model takes from the file, what stays new in the model, and what the model leaves unused."""
    fitting, new, unused = {}, [], set(weights)
    for name, parameter in parameters.items():
        theirs = family.name_of(name)
        tensor = weights.get(theirs)
        unused.discard(theirs)
        if tensor is None:
            if theirs is not None and theirs.startswith(family.encoder):
                raise ValueError(
                    f"The weights of {source!s} have no {theirs!r}, which its config.json calls for: the file is "
                    "incomplete, or the config is that of another model."
                )
            new.append(name)
        elif tensor.shape == parameter.shape:
            fitting[name] = tensor
        elif theirs.startswith(family.label_layers):
            new.append(f"{name} {tuple(parameter.shape)} (the file's is {tuple(tensor.shape)})")
        else:
            raise ValueError(
                f"{theirs!r} of {source!s} has shape {tuple(tensor.shape)}, where its config.json calls for "
                f"{tuple(parameter.shape)}: weights and config are not of the same model."
            )
    return fitting, new, sorted(unused)


def _report(source: str | os.PathLike, model: PreTrainedModel, new: list[str], unused: list[str]) -> None:
    """One warning that names what has to be trained and what was left out."""
    parts = []
    if new:
        parts.append(f"new, with random values until trained: {_shorten(new)}")
    if unused:
        parts.append(f"in the file, without a place in the model: {_shorten(unused)}")
    if parts:
        logger.warning(f"{type(model).__name__} from {source!s}: {'; '.join(parts)}.")


def _shorten(names: list[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
