"""A model for inference on a CPU: the same numbers in less time, or nearly the same in much less.

    float32            packed weights, fused products               the same numbers, to 1e-5
    bfloat16           the same with half as many bits              twice as fast where the processor has it
    int8 with texts    weights and inputs in int8, fixed ranges     the fastest where the processor has VNNI
    int8               the same with a range for each token         needs no texts, and is slower

`layers.py` has the layer that takes the place of the model's own, `packed.py` and `int8.py` its products, and
`calibrated.py` the ranges that texts give.
"""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..checks import check_model
from ..encoding import encode
from ..hooks_plainformer import is_hooked, types_of_layer
from ..modeling_plainformer import PlainformerLayer
from ..pretrained_plainformer import PlainformerPreTrainedModel
from .calibrated import Recorder, calibrated_parts
from .int8 import Int8Linear, has_int8
from .layers import InferenceLayer, LayerParts, make_parts
from .packed import PackedLinear, has_bfloat16

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# By the name of a type: how its products are made, and the type of what is between them.
DTYPES: dict[str, tuple[Callable[[Tensor, Tensor], nn.Module], torch.dtype]] = {
    "float32": (partial(PackedLinear, dtype=torch.float32), torch.float32),
    "bfloat16": (partial(PackedLinear, dtype=torch.bfloat16), torch.bfloat16),
    "int8": (Int8Linear, torch.float32),
}

# Whether this processor has instructions for a type.
HAS_INSTRUCTIONS = {"float32": lambda: True, "bfloat16": has_bfloat16, "int8": has_int8}

REMEDY = (
    "what it computes would be lost. Merge adapters first (merge_and_unload), and remove hooks and modules of others."
)


def for_inference(
    model: PlainformerPreTrainedModel,
    dtype: str | torch.dtype = "float32",
    *,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    texts: Iterable[str] | None = None,
) -> PlainformerPreTrainedModel:
    """A copy of a model whose encoder computes faster on a CPU. It is called as the model is, with the same output.

    Embeddings, final norm, heads and a decoder stay in float32. The copy can neither be saved nor trained: save the
    model, and call this after loading.

    Args:
        model: a Plainformer model on the CPU; it does not change.
        dtype: how the layers compute, "float32", "bfloat16" or "int8". What is computed for a token depends on its own
            text alone in each of them.
        tokenizer: the tokenizer of the model, for `texts`.
        texts: for "int8", a few dozen texts like those that the model will read. The ranges of values that they show
            hold from then on, and values beyond them are cut off. Without texts, every token has ranges of its own,
            which takes more time.

    Raises:
        TypeError: `model` is not a Plainformer model, or `texts` are no list of strings.
        ValueError: another type, one that this processor does not have, texts without a tokenizer or for another type,
            texts without tokens or for which the model's values are not finite, a model on another device, or one
            whose layers are not as they were built: with adapters, hooks, or modules of somebody else.
    """
    check_model(model)
    name = str(dtype).removeprefix("torch.")
    _check_dtype(name, dtype)
    _check_texts(name, tokenizer, texts)
    elsewhere = {str(parameter.device) for parameter in model.parameters() if parameter.device.type != "cpu"}
    if elsewhere:
        raise ValueError(
            f"The model is on {', '.join(sorted(elsewhere))}, but these layers compute on the CPU: call "
            "model.to('cpu'), or load it without device_map."
        )
    for number, layer in enumerate(model.base_model.layers):
        _check_layer(layer, f"layers.{number}")
    model = copy.deepcopy(model).float().eval().requires_grad_(False)
    _forget_input_gradients(model)
    layers, (make_linear, between) = model.base_model.layers, DTYPES[name]
    if texts is None:
        _replace_layers(model, layers, [make_parts(layer, make_linear) for layer in layers], between)
    else:
        _replace_layers(model, layers, _calibrate(model, layers, tokenizer, texts), torch.float32)
    for part in (model, model.base_model):
        part.save_pretrained, part.train = MethodType(_refuse_to_save, part), MethodType(_refuse_to_train, part)
        part._apply = MethodType(_refuse_to_convert, part)  # what `to`, `half` and `cuda` call
    return model


def _check_dtype(name: str, dtype: str | torch.dtype) -> None:
    if name not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is not supported: choose one of {', '.join(map(repr, DTYPES))}.")
    if not HAS_INSTRUCTIONS[name]():
        others = [repr(other) for other in DTYPES if HAS_INSTRUCTIONS[other]()]
        raise ValueError(f"dtype={name!r}: this processor has no instructions for it. Use {' or '.join(others)}.")


def _check_texts(name: str, tokenizer: "PreTrainedTokenizerBase | None", texts: Iterable[str] | None) -> None:
    if name != "int8" and (tokenizer is not None or texts is not None):
        raise ValueError(f"dtype={name!r} needs no ranges: leave out tokenizer and texts, which are for 'int8'.")
    if (tokenizer is None) != (texts is None):
        given, missing = ("texts", "tokenizer") if tokenizer is None else ("tokenizer", "texts")
        raise ValueError(f"{given} is given without {missing}: give both, or neither of them.")


def _replace_layers(
    model: PlainformerPreTrainedModel, layers: Iterable[PlainformerLayer], parts: list[LayerParts], dtype: torch.dtype
) -> None:
    encoder = model.base_model
    replaced = (InferenceLayer(layer, these, dtype) for layer, these in zip(layers, parts, strict=True))
    encoder.layers = nn.ModuleList(replaced)
    encoder.layer_types = types_of_layer(encoder.layers[0])


def _calibrate(
    model: PlainformerPreTrainedModel,
    layers: Iterable[PlainformerLayer],
    tokenizer: "PreTrainedTokenizerBase",
    texts: Iterable[str],
) -> list[LayerParts]:
    """The parts of the layers in int8, with the ranges that the texts show."""
    recorders = [make_parts(layer, Recorder) for layer in layers]
    _replace_layers(model, layers, recorders, torch.float32)
    vectors = encode(model, tokenizer, texts, show_progress=False)
    if not vectors.any():
        raise ValueError("texts show no range of values: give a few dozen texts that have tokens.")
    if not vectors.isfinite().all():
        raise ValueError("texts give values that are not finite: the weights of the model are damaged.")
    attention_dtype = torch.bfloat16 if has_bfloat16() else torch.float32
    return [calibrated_parts(*pair, attention_dtype) for pair in zip(layers, recorders, strict=True)]


def _check_layer(layer: nn.Module, name: str) -> None:
    """Raise a ValueError unless a layer computes what its weights say: others' modules and hooks would be lost."""
    if isinstance(layer, InferenceLayer):
        raise ValueError("The model is one of for_inference already: give the one that it was made of.")
    if type(layer).__name__ != PlainformerLayer.__name__:  # by name: a class that came with a checkpoint counts
        raise ValueError(f"{name} is a {type(layer).__name__}, not a {PlainformerLayer.__name__}: {REMEDY}")
    attention, mlp = layer.attention, layer.mlp
    linears = {f"attention.{one}_proj": getattr(attention, f"{one}_proj", None) for one in "qkvo"}
    linears |= {f"mlp.{one}": getattr(mlp, one, None) for one in ("fc1", "fc2")}
    for place, module in linears.items():
        if type(module) is not nn.Linear:
            raise ValueError(f"{name}.{place} is a {type(module).__name__}, not a Linear: {REMEDY}")
    if is_hooked(layer):
        raise ValueError(f"{name} or a part of it has a hook, or a forward of its own: {REMEDY}")


def _forget_input_gradients(model: PlainformerPreTrainedModel) -> None:
    """Remove the hook of transformers that makes embeddings require gradients, which checkpointing leaves behind."""
    hooks = model.get_input_embeddings()._forward_hooks
    for key in [key for key, hook in hooks.items() if str(hook.__module__).startswith("transformers.")]:
        del hooks[key]


def _refuse_to_save(model: nn.Module, *_: Any, **__: Any) -> None:
    raise ValueError(
        "A model of for_inference cannot be saved: save the one that it was given, and call it after loading."
    )


def _refuse_to_train(model: nn.Module, mode: bool = True) -> nn.Module:
    if mode:
        raise ValueError("A model of for_inference cannot be trained: train the one that it was given.")
    return type(model).train(model, False)


def _refuse_to_convert(model: nn.Module, convert: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
    before = torch.empty(0)
    after = convert(before)
    if (after.device, after.dtype) != (before.device, before.dtype):
        raise ValueError(
            "A model of for_inference stays on the CPU and in its types: convert the one that it was given, to "
            f"{after.device}, {after.dtype}."
        )
    return model
