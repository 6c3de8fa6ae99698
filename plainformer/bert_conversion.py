"""BERT checkpoints in and out.

A post-norm Plainformer with learned positions computes what BERT computes. `from_bert` reads any BERT checkpoint into
one, `to_bert` writes one as a BERT checkpoint. Both go by one table of names, `BERT_NAMES`.
"""

import copy
import difflib
import inspect
import json
import os
import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
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

from .configuration_plainformer import PlainformerConfig
from .modeling_plainformer import PlainformerModel
from .pretrained_plainformer import PlainformerPreTrainedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.get_logger(__name__)

# module here: the same module in BERT. Both sides without the encoder's own prefix (`plainformer.`, `bert.`).
BERT_NAMES = {
    "embeddings.word_embeddings": "embeddings.word_embeddings",
    "embeddings.position_embeddings": "embeddings.position_embeddings",
    "embeddings.token_type_embeddings": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
    "layers.{}.attention.q_proj": "encoder.layer.{}.attention.self.query",
    "layers.{}.attention.k_proj": "encoder.layer.{}.attention.self.key",
    "layers.{}.attention.v_proj": "encoder.layer.{}.attention.self.value",
    "layers.{}.attention.o_proj": "encoder.layer.{}.attention.output.dense",
    "layers.{}.attn_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "layers.{}.mlp.fc1": "encoder.layer.{}.intermediate.dense",
    "layers.{}.mlp.fc2": "encoder.layer.{}.output.dense",
    "layers.{}.mlp_norm": "encoder.layer.{}.output.LayerNorm",
    "pooler.dense": "pooler.dense",
    "classifier": "classifier",
    "qa_outputs": "qa_outputs",
    "lm_head.dense": "cls.predictions.transform.dense",
    "lm_head.norm": "cls.predictions.transform.LayerNorm",
    "lm_head.decoder": "cls.predictions.decoder",
}
WORDS = "embeddings.word_embeddings.weight"
DECODER = "cls.predictions.decoder.weight"
DECODER_BIAS = "cls.predictions.decoder.bias"
# BERT's own name for the decoder's bias; its classes hold the one vector under both names.
PREDICTION_BIAS = "cls.predictions.bias"

# Final layers whose width is the number of labels: the next task may have another number.
LABEL_LAYERS = ("classifier.", "qa_outputs.")
# Buffers that older versions of transformers saved among the weights.
BUFFERS = ("embeddings.position_ids", "embeddings.token_type_ids")

BERT_CLASSES = {
    "PlainformerModel": "BertModel",
    "PlainformerForMaskedLM": "BertForMaskedLM",
    "PlainformerForSequenceClassification": "BertForSequenceClassification",
    "PlainformerForTokenClassification": "BertForTokenClassification",
    "PlainformerForQuestionAnswering": "BertForQuestionAnswering",
    "PlainformerForMultipleChoice": "BertForMultipleChoice",
}

# What our fields must say for the model to be BERT.
BERT_CHOICES = {
    "position_embedding_type": "learned",
    "pre_norm": False,
    "embedding_norm": True,
    "scale_embedding": False,
    "classifier_pooling": "cls",
}
# Fields that say what the weights mean. Everything else (labels, dropouts, pooling, ...) may change on the way in.
FIXED_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
    "position_embedding_type",
    "pre_norm",
    "embedding_norm",
    "scale_embedding",
)
# Fields of a config.json that speak of the file or its class, or of what is refused anyway; never copied or overridden.
FILE_FIELDS = {
    "_name_or_path",
    "add_cross_attention",
    "architectures",
    "auto_map",
    "dtype",
    "is_decoder",
    "is_encoder_decoder",
    "model_type",
    "pruned_heads",
    "transformers_version",
}
# Fields of BERT's config.json that call for a model we do not have, and the values that do not.
PLAIN_BERT = {
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
}


def from_bert(
    source: str | os.PathLike,
    model_class: type[PlainformerPreTrainedModel] = PlainformerModel,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike | None = None,
    subfolder: str = "",
    local_files_only: bool = False,
    dtype: str | torch.dtype | None = None,
    **config_overrides: Any,
) -> PlainformerPreTrainedModel:
    """Read a BERT checkpoint into a Plainformer model that gives BERT's own numbers.

    Any checkpoint of `model_type: "bert"` will do, whichever BERT class wrote it: safetensors are preferred, and
    `pytorch_model.bin` is read as data only, never executed. What the file lacks (a classifier, say) is newly
    initialised, what the model has no place for is left out, and one logged warning names both.

    The numbers are BERT's at real tokens of right-padded text. Elsewhere Plainformer keeps to its own promises: hidden
    states at padded places are zero, and left padding changes nothing.

    Args:
        source: a folder, or the id of a model on the Hub.
        model_class: the Plainformer class to build, or a subclass of yours.
        revision, token, cache_dir, subfolder, local_files_only: where to look, as in `from_pretrained`.
        dtype: of the weights: a torch dtype or its name; `"auto"` for that of the file. By default float32, whatever
            the file holds and whatever the version of transformers, so that the model can be trained as it is.
        config_overrides: fields that may differ from the file's: labels (`num_labels`, `id2label`, `label2id`,
            `problem_type`), dropouts, `classifier_pooling`, `attn_implementation`, .... A classifier whose shape no
            longer fits is newly initialised. `tie_word_embeddings=False` gives the decoder weights of its own.

    Returns:
        The model, in eval mode. Its `name_or_path` is the source.

    Raises:
        ValueError: the checkpoint is not a BERT or not one that can be expressed (relative positions, a decoder, ...),
            its weights do not fit its config, the pickle holds more than tensors, or an override would make the
            weights meaningless.
        TypeError: an override that no field of the configuration is called, or a `model_class` of another kind.
        OSError: the files cannot be found or fetched.
    """
    _check_model_class(model_class)
    dtype = _parse_dtype(dtype)
    hub = {
        "revision": revision,
        "token": token,
        "cache_dir": cache_dir,
        "subfolder": subfolder,
        "local_files_only": local_files_only,
    }
    bert_config = _read_config(source, hub)
    config = _convert_config(bert_config, model_class.config_class, config_overrides, source)
    weights = _modern_names(_read_weights(source, hub), source)
    config.dtype = dtype or weights[WORDS].dtype
    model = model_class(config).to(config.dtype)
    if "lm_head.decoder.weight" in model.state_dict():
        _settle_decoder(weights, bert_config, config, source)
    fitting, new, unused = _fit(model.state_dict(), weights, source)
    model.load_state_dict(fitting, strict=False)
    _report(source, model, new, unused)
    return model.eval()


def to_bert(
    model: PlainformerPreTrainedModel, folder: str | os.PathLike, tokenizer: "PreTrainedTokenizerBase | None" = None
) -> None:
    """Write a Plainformer model as a BERT checkpoint, for anything that serves BERT.

    The folder gets BERT's `config.json`, `model.safetensors` with BERT's names, and the tokenizer's files. The BERT
    class of the same task (`BertForMaskedLM` for `PlainformerForMaskedLM`, ...) loads it with nothing missing and
    nothing left over, and gives the same numbers at real tokens of right-padded text. Files of these names that are
    already in the folder are replaced, as by `save_pretrained`.

    The base model has no pooler, so neither has its checkpoint, and a logged warning says so: load it with
    `BertModel.from_pretrained(folder, add_pooling_layer=False)`. Without that argument transformers adds a pooler
    with random weights; `last_hidden_state` is right either way, `pooler_output` would be noise.

    Args:
        model: one of the Plainformer classes, or a subclass that adds no weights.
        folder: where to write; made if it does not exist.
        tokenizer: saved beside the model when given, with a `model_max_length` that the positions allow.

    Raises:
        ValueError: BERT has no such model; the message names the field. Or the model has weights BERT has no place for.
        TypeError: `model` is not a Plainformer model with a counterpart in BERT.
        NotADirectoryError: `folder` is a file.
    """
    bert_class = _counterpart(model)
    _check_expressible(model.config, pooled=hasattr(model, "pooler"))
    if os.path.isfile(folder):
        raise NotADirectoryError(f"folder={os.fspath(folder)!r} is a file: give a folder to write the checkpoint to.")
    _check_tokenizer(tokenizer)
    weights = _bert_weights(model)
    bert = _build_bert(bert_class, _bert_config(model), weights)
    bert.save_pretrained(folder, state_dict=weights)
    if tokenizer is not None:
        _save_tokenizer(tokenizer, folder, model.config.max_position_embeddings)
    if bert_class == "BertModel":
        logger.warning(
            f"{os.fspath(folder)} holds a BERT without a pooler, since the base model has none. Load it with "
            "BertModel.from_pretrained(folder, add_pooling_layer=False), or transformers adds a random one."
        )


def bert_name(name: str) -> str | None:
    """BERT's name for a parameter of ours, both without the encoder's prefix; `None` where BERT has none.

    `plainformer.layers.3.attn_norm.weight` is `encoder.layer.3.attention.output.LayerNorm.weight`.
    """
    module, _, parameter = name.removeprefix("plainformer.").rpartition(".")
    index = re.compile(r"(?<=\.)\d+(?=\.)")
    theirs = BERT_NAMES.get(index.sub("{}", module))
    return None if theirs is None else f"{theirs.format(*index.findall(module))}.{parameter}"


def _check_model_class(model_class: Any) -> None:
    config_class = getattr(model_class, "config_class", None) if isinstance(model_class, type) else None
    model_type = getattr(config_class, "model_type", None)
    if model_type != PlainformerConfig.model_type or model_class is PlainformerPreTrainedModel:
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


def _read_config(source: str | os.PathLike, hub: dict[str, Any]) -> PretrainedConfig:
    from transformers import BertConfig

    if os.path.isfile(source):
        raise ValueError(f"source={os.fspath(source)!r} is a file: give the folder that holds config.json and weights.")
    name = os.fspath(source)
    must_be_folder = isinstance(source, os.PathLike) or os.path.isabs(name) or name[:1] in ".~" or name.count("/") > 1
    if must_be_folder and not os.path.isdir(source):
        raise FileNotFoundError(f"source={name!r}: there is no such folder (now in {os.getcwd()!r}).")
    try:
        raw = dict(PretrainedConfig.get_config_dict(source, **hub)[0])
    except (TypeError, ValueError) as error:
        raise ValueError(f"The config.json of {source!s} is not a JSON object: fetch it again.") from error
    if not raw:
        raise OSError(f"{source!s} holds no config.json{_inside(hub)}: check the folder and subfolder.")
    model_type = raw.get("model_type")
    if model_type != "bert":
        model_type = model_type if model_type is None else str(model_type)
        remedies = {
            None: "If it is a BERT (the oldest files do not say), add that line to it.",
            PlainformerConfig.model_type: "Open it with from_pretrained.",
        }
        remedy = remedies.get(model_type, "from_bert reads BERT checkpoints only; transformers.AutoModel opens others.")
        raise ValueError(f"The config.json of {source!s} says model_type={model_type!r}, not 'bert'. {remedy}")
    for field, values in PLAIN_BERT.items():
        if raw.get(field) not in values:
            raise ValueError(
                f"{source!s} cannot become a Plainformer model: its config.json says {field}={raw[field]!r}, and there "
                "is nothing here that computes it. Use transformers.AutoModel, or a checkpoint without it."
            )
    return BertConfig.from_dict(raw)


def _convert_config(
    bert_config: PretrainedConfig,
    config_class: type[PlainformerConfig],
    overrides: dict[str, Any],
    source: str | os.PathLike,
) -> PlainformerConfig:
    known = set(config_class().to_dict()) - FILE_FIELDS
    fields = {field: value for field, value in bert_config.to_dict().items() if field in known} | BERT_CHOICES
    _check_overrides(overrides, fields, known, source)
    _forget_replaced_labels(fields, overrides)
    return config_class(**(fields | overrides), name_or_path=str(source))


def _check_overrides(
    overrides: dict[str, Any], fields: dict[str, Any], known: set[str], source: str | os.PathLike
) -> None:
    known = known | {"num_labels", "attn_implementation"}
    arguments = [name for name in inspect.signature(from_bert).parameters if name != "config_overrides"]
    for name, value in overrides.items():
        if name not in known:
            close = difflib.get_close_matches(name, {*known, *arguments}, n=1, cutoff=0.7)
            takes = f"It takes the configuration's fields, and {', '.join(arguments)}."
            hint = f"Did you mean {close[0]!r}?" if close else takes
            raise TypeError(f"from_bert does not know {name}={value!r}. {hint}")
        if name in FIXED_FIELDS and value != fields[name]:
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


def _modern_names(weights: dict[str, Tensor], source: str | os.PathLike) -> dict[str, Tensor]:
    """The same tensors under the names of today's `BertModel`: no `bert.` prefix, no gamma, beta or buffers."""
    modern: dict[str, Tensor] = {}
    for old, tensor in weights.items():
        name = old.removeprefix("bert.").replace("LayerNorm.gamma", "LayerNorm.weight")
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
        if name in modern:
            raise ValueError(
                f"{source!s} holds {name!r} twice, once as {old!r}: it is not one BERT. Remove one of them."
            )
        if name not in BUFFERS:
            modern[name] = tensor
    if PREDICTION_BIAS in modern:
        # A file that holds both names means the decoder's: that is the one BERT adds.
        bias = modern.pop(PREDICTION_BIAS)
        modern.setdefault(DECODER_BIAS, bias)
    if WORDS not in modern:
        raise ValueError(
            f"The weights of {source!s} have no {WORDS!r}, with or without 'bert.' before it: they are not those of a "
            f"BERT. They hold {_shorten(list(weights))}."
        )
    return modern


def _settle_decoder(
    weights: dict[str, Tensor], bert_config: PretrainedConfig, config: PlainformerConfig, source: str | os.PathLike
) -> None:
    """A tied decoder need not be in the file; one that differs from the embeddings must not be lost by tying."""
    if bert_config.tie_word_embeddings or config.tie_word_embeddings:
        weights.setdefault(DECODER, weights[WORDS])
    if config.tie_word_embeddings and not torch.equal(weights[DECODER], weights[WORDS]):
        raise ValueError(
            f"tie_word_embeddings=True would lose the decoder of {source!s}, which differs from its word embeddings. "
            "Pass tie_word_embeddings=False to keep it."
        )


def _fit(
    parameters: dict[str, Tensor], weights: dict[str, Tensor], source: str | os.PathLike
) -> tuple[dict[str, Tensor], list[str], list[str]]:
    """What the model takes from the file, what stays new in the model, and what the model leaves unused."""
    fitting, new, unused = {}, [], set(weights)
    for name, parameter in parameters.items():
        theirs = bert_name(name)
        tensor = weights.get(theirs)
        unused.discard(theirs)
        if tensor is None:
            if theirs is not None and theirs.startswith(("embeddings.", "encoder.")):
                raise ValueError(
                    f"The weights of {source!s} have no {theirs!r}, which its config.json calls for: the file is "
                    "incomplete, or the config is that of another model."
                )
            new.append(name)
        elif tensor.shape == parameter.shape:
            fitting[name] = tensor
        elif theirs.startswith(LABEL_LAYERS):
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


def _counterpart(model: PreTrainedModel) -> str:
    """The name of the BERT class for a model, found by class name: a class that came from the Hub is no subclass."""
    for parent in type(model).__mro__:
        if parent.__name__ in BERT_CLASSES:
            return BERT_CLASSES[parent.__name__]
    encoder = " Its encoder can be written: to_bert(model.plainformer, ...)." if hasattr(model, "plainformer") else ""
    raise TypeError(
        f"model is a {type(model).__name__}, which has no counterpart in BERT. "
        f"Those that have one: {', '.join(BERT_CLASSES)}.{encoder}"
    )


def _check_expressible(config: PlainformerConfig, pooled: bool) -> None:
    for field, value in BERT_CHOICES.items():
        if getattr(config, field) != value and (pooled or field != "classifier_pooling"):
            raise ValueError(
                f"{field}={getattr(config, field)!r} cannot be written as a BERT checkpoint, which always means "
                f"{field}={value!r}. Share this model with save_pretrained."
            )
    if config.type_vocab_size == 0:
        raise ValueError(
            "type_vocab_size=0 cannot be written as a BERT checkpoint: BERT always adds segment embeddings. "
            "Share this model with save_pretrained."
        )


def _check_tokenizer(tokenizer: Any) -> None:
    """Before anything is written."""
    if tokenizer is not None and not hasattr(tokenizer, "save_pretrained"):
        raise TypeError(
            f"tokenizer={tokenizer!r} is a {type(tokenizer).__name__}, not a tokenizer: pass "
            "AutoTokenizer.from_pretrained(folder)."
        )


def _bert_weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """The model's tensors under BERT's names. Tied ones share memory, by which `save_pretrained` knows them."""
    is_base = _counterpart(model) == "BertModel"
    weights = {}
    for name, tensor in model.state_dict().items():
        theirs = bert_name(name)
        if theirs is None:
            raise ValueError(
                f"The model's own {name!r} has no place in a BERT checkpoint. Share this model with save_pretrained."
            )
        inside = theirs.startswith(("embeddings.", "encoder.", "pooler.")) and not is_base
        weights[f"bert.{theirs}" if inside else theirs] = tensor
    if DECODER_BIAS in weights:
        bias = weights[DECODER_BIAS]
        # Untied, some versions of BERT read the one name and some the other.
        weights[PREDICTION_BIAS] = bias if model.config.tie_word_embeddings else bias.clone()
    return weights


def _bert_config(model: PreTrainedModel) -> PretrainedConfig:
    from transformers import BertConfig

    known = set(BertConfig().to_dict()) - FILE_FIELDS
    fields = {field: value for field, value in model.config.to_dict().items() if field in known}
    # The newest transformers has dropped this field; servers of BERT still read it.
    fields["position_embedding_type"] = "absolute"
    return BertConfig(**fields)


def _build_bert(bert_class: str, config: PretrainedConfig, weights: dict[str, Tensor]) -> PreTrainedModel:
    """BERT's own class around the model's tensors: it checks names and shapes, and knows how to save itself."""
    from transformers.models import bert

    if bert_class == "BertForQuestionAnswering":
        config.num_labels = 2  # the start and the end: BERT takes the width of its last layer from here
    options = {"add_pooling_layer": False} if bert_class == "BertModel" else {}
    with torch.device("meta"):
        built = getattr(bert, bert_class)(config, **options)
    built.load_state_dict(weights, strict=True, assign=True)
    return built


def _save_tokenizer(tokenizer: "PreTrainedTokenizerBase", folder: str | os.PathLike, max_length: int) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = min(tokenizer.model_max_length or max_length, max_length)
    tokenizer.save_pretrained(folder)
