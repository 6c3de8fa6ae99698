"""A model for inference on a CPU: the same numbers in less time, or nearly the same in much less.

    float32     packed weights, fused products           the same numbers, to 1e-5
    bfloat16    the same with half as many bits          twice as fast where the processor has it
    int8        weights in int8, one scale for a token   for processors without bfloat16

`layers.py` has the layer that takes the place of the model's own, `packed.py` and `int8.py` its products.
"""

import copy
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_model
from ..hooks_plainformer import is_hooked, types_of_layer
from ..modeling_plainformer import PlainformerLayer
from ..pretrained_plainformer import PlainformerPreTrainedModel
from .int8 import Int8Linear
from .layers import InferenceLayer
from .packed import PackedLinear, has_bfloat16

# By the name of a type: the products of its layers, and the type of what is between them.
DTYPES: dict[str, tuple[Callable[..., nn.Module], torch.dtype]] = {
    "float32": (partial(PackedLinear, dtype=torch.float32), torch.float32),
    "bfloat16": (partial(PackedLinear, dtype=torch.bfloat16), torch.bfloat16),
    "int8": (Int8Linear, torch.float32),
}

REMEDY = (
    "what it computes would be lost. Merge adapters first (merge_and_unload), and remove hooks and modules of others."
)


def for_inference(
    model: PlainformerPreTrainedModel, dtype: str | torch.dtype = "float32"
) -> PlainformerPreTrainedModel:
    """A copy of a model whose encoder computes faster on a CPU. It is called as the model is, with the same output.

    Embeddings, final norm, heads and a decoder stay in float32. The copy can neither be saved nor trained: save the
    model, and call this after loading.

    Args:
        model: a Plainformer model on the CPU; it does not change.
        dtype: how the layers compute, "float32", "bfloat16" or "int8". What is computed for a token depends on its own
            text alone in each of them.

    Raises:
        TypeError: `model` is not a Plainformer model.
        ValueError: another type, one that this processor does not have, a model on another device, or one whose layers
            are not as they were built: with adapters, hooks, or modules of somebody else.
    """
    check_model(model)
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is not supported: choose one of {', '.join(map(repr, DTYPES))}.")
    if name == "bfloat16" and not has_bfloat16():
        raise ValueError("dtype='bfloat16': this processor has no instructions for it. Use 'float32' or 'int8'.")
    elsewhere = {str(parameter.device) for parameter in model.parameters() if parameter.device.type != "cpu"}
    if elsewhere:
        raise ValueError(
            f"The model is on {', '.join(sorted(elsewhere))}, but these layers compute on the CPU: call "
            "model.to('cpu'), or load it without device_map."
        )
    for number, layer in enumerate(model.base_model.layers):
        _check_layer(layer, f"layers.{number}")
    make_linear, between = DTYPES[name]
    model = copy.deepcopy(model).float().eval().requires_grad_(False)
    _forget_input_gradients(model)
    encoder = model.base_model
    encoder.layers = nn.ModuleList(InferenceLayer(layer, make_linear, between) for layer in encoder.layers)
    encoder.layer_types = types_of_layer(encoder.layers[0])
    for part in (model, encoder):
        part.save_pretrained, part.train = MethodType(_refuse_to_save, part), MethodType(_refuse_to_train, part)
        part._apply = MethodType(_refuse_to_convert, part)  # what `to`, `half` and `cuda` call
    return model


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
