"""int8 for inference on a CPU, with torch's own dynamic quantisation.

torch's product has one scale for all tokens of a call. A single large value then costs all tokens their precision, and
the result for a token depends on the other tokens. Here every token is first mapped onto [0, 1] by its own lowest and
highest value:

    x W + b = (u W) (high - low) + low (1 W) + b,  u = (x - low) / (high - low)

So torch's scale is the same for all tokens and all calls, and padding and other tokens still change nothing.

Shapes: E hidden size, O output size; [*] is a layout's leading dimensions, [T] or [B, L].
"""

import copy
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from .checks import check_model
from .pretrained_plainformer import PlainformerPreTrainedModel

SMALLEST_SPREAD = 1e-30  # of `high - low`, so that nothing is divided by 0


class Int8Linear(nn.Module):
    """A linear layer with int8 weights (one scale per output) and 7-bit inputs (one scale per token)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        product = nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
        product.weight = linear.weight
        self.product = _quantize(product)
        with torch.no_grad():
            self.register_buffer("of_ones", self.product.weight().dequantize().sum(dim=1), persistent=False)  # [O]
            bias = torch.zeros_like(self.of_ones) if linear.bias is None else linear.bias.detach().clone()
        self.register_buffer("bias", bias, persistent=False)  # [O]
        self.register_state_dict_pre_hook(_refuse_to_save)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[*, E] -> [*, O]."""
        if hidden_states.requires_grad:
            raise ValueError("A model in int8 has no gradients: take them of the one that quantize_int8 was given.")
        with torch.autocast("cpu", enabled=False):  # the product works in float32 only
            hidden_states = hidden_states.float()
            low, high = hidden_states.amin(-1, keepdim=True), hidden_states.amax(-1, keepdim=True)  # [*, 1]
            spread = (high - low).clamp(min=SMALLEST_SPREAD)
            # A token that is not finite stays so through its `spread`; in the product it would change other tokens.
            mapped = (hidden_states - low).div_(spread).nan_to_num_(0.0)
            product = self.product(mapped)  # [*, O]
            return product.mul_(spread).addcmul_(low, self.of_ones).add_(self.bias)


def quantize_int8(model: PlainformerPreTrainedModel) -> PlainformerPreTrainedModel:
    """A copy of a model for inference on a CPU, with the linear layers of its encoder in int8.

    Embeddings, norms, attention and the head stay in float32. The copy cannot be saved or trained: save the original
    model, and quantise after loading.

    Args:
        model: a Plainformer model on the CPU; it does not change.

    Raises:
        TypeError: `model` is not a Plainformer model.
        ValueError: `model` is on another device.
    """
    check_model(model)
    elsewhere = {str(parameter.device) for parameter in model.parameters() if parameter.device.type != "cpu"}
    if elsewhere:
        raise ValueError(
            f"The model is on {', '.join(sorted(elsewhere))}, but int8 products run on the CPU: call model.to('cpu'), "
            "or load it without device_map."
        )
    model = copy.deepcopy(model).float().eval()
    for layer in model.base_model.layers:
        for parent in list(layer.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(parent, name, Int8Linear(child))
    return model.requires_grad_(False)


def _quantize(linear: nn.Linear) -> nn.Module:
    """torch's dynamically quantised layer, with one scale per output."""
    with warnings.catch_warnings():  # it recommends torchao, whose int8 products are slow on CPUs without VNNI
        warnings.simplefilter("ignore")
        from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

        return quantize_dynamic(nn.Sequential(linear), {"0": per_channel_dynamic_qconfig})[0]


def _refuse_to_save(module: nn.Module, *_: Any) -> None:
    raise ValueError(
        "A model in int8 cannot be saved: save the one that quantize_int8 was given, and quantise after loading."
    )
