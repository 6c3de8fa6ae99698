"""A model for inference on a CPU: the same numbers in less time, or nearly the same in much less.

    float32     packed weights, fused products           the same numbers, to 1e-5
    bfloat16    the same with half as many bits          twice as fast where the processor has it
    int8        weights in int8, one scale for a token   for processors without bfloat16

`layers.py` has the layer that takes the place of the model's own, `packed.py` and `int8.py` its products.
"""

import copy
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from ..checks import check_model
from ..hooks_plainformer import types_of_layer
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
        ValueError: another type, one that this processor does not have, or a model on another device.
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
    make_linear, between = DTYPES[name]
    model = copy.deepcopy(model).float().eval().requires_grad_(False)
    encoder = model.base_model
    encoder.layers = nn.ModuleList(InferenceLayer(layer, make_linear, between) for layer in encoder.layers)
    encoder.layer_types = types_of_layer(encoder.layers[0])
    return model
