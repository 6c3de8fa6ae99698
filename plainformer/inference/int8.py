"""int8 for inference on a CPU, with torch's own dynamic quantisation.

torch's product has one scale for all tokens of a call. A single large value then costs all tokens their precision, and
the result for a token depends on the other tokens. Here every token is first mapped onto [0, 1] by its own lowest and
highest value:

    x W + b = (u W) (high - low) + low (1 W) + b,  u = (x - low) / (high - low)

So torch's scale is the same for all tokens and all calls, and padding and other tokens still change nothing.

Shapes: E hidden size, O output size; [*] is a layout's leading dimensions, [T] or [B, L].
"""

import warnings

import torch.nn.functional as F
from torch import Tensor, nn

SMALLEST_SPREAD = 1e-30  # of `high - low`, so that nothing is divided by 0


class Int8Linear(nn.Module):
    """A linear map with int8 weights (one scale per output) and 7-bit inputs (one scale per token)."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """weight [O, E], bias [O]."""
        super().__init__()
        product = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        product.weight = nn.Parameter(weight.detach())
        self.product = _quantize(product)
        of_ones = self.product.weight().dequantize().sum(dim=1)  # [O]
        self.register_buffer("of_ones", of_ones, persistent=False)
        self.register_buffer("bias", bias.detach().clone(), persistent=False)

    def forward(self, hidden_states: Tensor, residual: Tensor | None = None, gelu: bool = False) -> Tensor:
        """[*, E] -> [*, O]; arguments as those of `PackedLinear`."""
        low, high = hidden_states.amin(-1, keepdim=True), hidden_states.amax(-1, keepdim=True)  # [*, 1]
        spread = (high - low).clamp(min=SMALLEST_SPREAD)
        # A token that is not finite stays so through its `spread`; in the product it would change other tokens.
        mapped = (hidden_states - low).div_(spread).nan_to_num_(0.0)
        product = self.product(mapped)  # [*, O]
        result = product.mul_(spread).addcmul_(low, self.of_ones).add_(self.bias)
        result = F.gelu(result) if gelu else result
        return result if residual is None else result.add_(residual)


def _quantize(linear: nn.Linear) -> nn.Module:
    """torch's dynamically quantised layer, with one scale per output."""
    with warnings.catch_warnings():  # it recommends torchao, whose int8 products are slow on CPUs without VNNI
        warnings.simplefilter("ignore")
        from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic

        return quantize_dynamic(nn.Sequential(linear), {"0": per_channel_dynamic_qconfig})[0]
