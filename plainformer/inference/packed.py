"""Linear layers whose weights lie as the processor's products want them.

torch packs weights for its compiler, with oneDNN, and its operators can be called by hand. They add the bias, apply
GELU or add a residual while the result is still in a register. They are not documented, so they stand in this file
alone, and where torch lacks them `torch.nn.functional` computes the same. Tried with torch 2.13.

Shapes: E input size, O output size; [*] is a layout's leading dimensions, [T] or [B, L].
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def can_pack() -> bool:
    """Whether this torch has the operators."""
    operators = torch.ops.mkldnn
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(operators, name) for name in names)


def has_bfloat16() -> bool:
    """Whether this processor has instructions for products in bfloat16."""
    supports = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return torch.backends.mkldnn.is_available() and supports is not None and supports()


class PackedLinear(nn.Module):
    """x W^T + b, then GELU, or the sum with a residual, if asked; for inference only."""

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        """weight [O, E] and bias [O] are copied to `dtype`."""
        super().__init__()
        weight, self.bias = (one.detach().to(dtype, copy=True).contiguous() for one in (weight, bias))
        self.is_packed = can_pack()
        # No buffer, since a packed tensor can neither be saved nor converted.
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, None) if self.is_packed else weight

    def forward(self, hidden_states: Tensor, residual: Tensor | None = None, gelu: bool = False) -> Tensor:
        """[*, E] -> [*, O].

        Args:
            residual: added to the result, [*, O].
            gelu: the result goes through the exact GELU.
        """
        if not self.is_packed:
            result = F.linear(hidden_states, self.weight, self.bias)
            result = F.gelu(result) if gelu else result
            return result if residual is None else result + residual
        product = torch.ops.mkldnn._linear_pointwise
        if residual is not None:
            return product.binary(hidden_states, residual, self.weight, self.bias, "add")
        return product(hidden_states, self.weight, self.bias, "gelu" if gelu else "none", [], "none")

    def __deepcopy__(self, memo: dict) -> "PackedLinear":
        """Itself: a packed tensor cannot be copied, and nothing changes it."""
        return self
