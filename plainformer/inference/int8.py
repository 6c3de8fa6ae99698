"""Products in int8 for inference on a CPU, with one scale for each token.

    numbers, uint8         (values / scale) + zero point, rounded; 0 to 255
    weights, int8          one scale for each output; -127 to 127
    product                integers, exact; then the scales and the bias, in float32

oneDNN computes the product, through an operator that torch's compiler uses and does not document. It stands in this
file alone; where torch lacks it, `torch.nn.functional` computes the same from the same rounded numbers. Tried with
torch 2.13. Inputs are uint8 because oneDNN has no fast product for int8 inputs on most processors.

Shapes: E hidden size, I input size, O output size; [*] is a layout's leading dimensions, [T] or [B, L].
"""

import warnings
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SMALLEST = 1e-30  # of what is divided by


class Grid(NamedTuple):
    """The values that 256 numbers stand for: (number - zero_point) * scale."""

    scale: float
    zero_point: int

    @classmethod
    def over(cls, low: float, high: float) -> "Grid":
        """From `low` to `high`, with 0 among the values."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = max((high - low) / 255, SMALLEST)
        return cls(scale, round(-low / scale))


UNIT_GRID = Grid.over(0.0, 1.0)


def has_int8() -> bool:
    """Whether products in int8 are fast on this processor: those of x86 with AVX2 or more."""
    return torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


@cache
def weight_steps() -> int:
    """The largest number of a weight. Without VNNI, two products are added in 16 bits: 2 x 255 x 64 is the most."""
    has_vnni = getattr(torch.cpu, "_is_vnni_supported", None)
    return 127 if has_vnni is not None and has_vnni() else 64


def can_pack() -> bool:
    """Whether this torch has oneDNN's operator for products of integers."""
    return has_int8() and all(hasattr(torch.ops.onednn, name) for name in ("qlinear_prepack", "qlinear_pointwise"))


@cache
def can_quantize() -> bool:
    """Whether this torch has `quantize_per_tensor`, one pass over the values in place of four; it is deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return to_uint8(torch.tensor([-9.0, 0.3]), UNIT_GRID, fused=True).tolist() == [0, 76]
        except (AttributeError, RuntimeError, TypeError):
            return False


def to_uint8(values: Tensor, grid: Grid, fused: bool | None = None) -> Tensor:
    """The numbers of values, [*] -> uint8 [*]; what is outside the grid gets its nearest end.

    Args:
        fused: by torch's own function; None: where it can.
    """
    values = values.float().contiguous()
    if not (can_quantize() if fused is None else fused):
        return values.div(grid.scale).round_().add_(grid.zero_point).nan_to_num_(0.0).clamp_(0, 255).to(torch.uint8)
    numbers = torch.quantize_per_tensor(values, grid.scale, grid.zero_point, torch.quint8)
    return torch.empty(0, dtype=torch.uint8).set_(numbers.untyped_storage(), 0, numbers.shape, numbers.stride())


class Int8Product(nn.Module):
    """x W^T + b of uint8 inputs and int8 weights, then GELU, or the sum with a residual, if asked."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        """weight [O, I], bias [O]."""
        super().__init__()
        steps = weight_steps()
        self.scales = (weight.detach().abs().amax(dim=1) / steps).clamp(min=SMALLEST)  # [O]
        numbers = (weight.detach() / self.scales[:, None]).round().clamp(-steps, steps)  # [O, I]
        self.bias = None if bias is None else bias.detach().clone()
        self.weight_sums = numbers.sum(dim=1) * self.scales  # [O], the result for inputs of 1
        self.is_packed = can_pack()
        # No buffers, since a packed tensor can neither be saved nor converted.
        if self.is_packed:
            self.weight = torch.ops.onednn.qlinear_prepack(numbers.to(torch.int8), None)
            self.zero_points = torch.zeros(len(weight), dtype=torch.int64)  # [O]
        else:
            self.weight = numbers * self.scales[:, None]

    def forward(
        self,
        numbers: Tensor,
        grid: Grid,
        *,
        gelu: bool = False,
        residual: Tensor | None = None,
        into: Grid | torch.dtype = torch.float32,
    ) -> Tensor:
        """uint8 [*, I] -> [*, O].

        Args:
            grid: the values that `numbers` stand for.
            gelu: the result goes through the exact GELU.
            residual: added to the result, float32 [*, O].
            into: the type of the result; a grid: its numbers, in uint8.
        """
        out, dtype = (into, torch.uint8) if isinstance(into, Grid) else (Grid(1.0, 0), into)
        if not self.is_packed:
            result = F.linear((numbers.float() - grid.zero_point) * grid.scale, self.weight, self.bias)
            result = F.gelu(result) if gelu else result
            result = result if residual is None else result + residual
            return to_uint8(result, out) if dtype == torch.uint8 else result.to(dtype)
        operands = (numbers, *grid, self.weight, self.scales, self.zero_points)
        product = torch.ops.onednn.qlinear_pointwise
        if residual is not None:
            added = (residual, self.bias, *out, dtype, 1.0, 0, "add", 1.0)
            return product.binary(*operands, *added, "none", [], "")
        return product.default(*operands, self.bias, *out, dtype, "gelu" if gelu else "none", [], "none")

    def __deepcopy__(self, memo: dict) -> "Int8Product":
        """Itself: a packed tensor cannot be copied, and nothing changes it."""
        return self


class Int8Linear(nn.Module):
    """A linear map with int8 weights and one scale for each token of its input.

    Every token is first mapped onto [0, 1] by its own lowest and highest value, so that one large value costs no other
    token its precision, and other tokens change nothing:

        x W + b = (u W) (high - low) + low (1 W) + b,  u = (x - low) / (high - low)
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """weight [O, I], bias [O]."""
        super().__init__()
        self.product = Int8Product(weight)
        self.register_buffer("bias", bias.detach().clone(), persistent=False)

    def forward(self, hidden_states: Tensor, residual: Tensor | None = None, gelu: bool = False) -> Tensor:
        """[*, I] -> [*, O]; arguments as those of `PackedLinear`."""
        low, high = hidden_states.amin(-1, keepdim=True), hidden_states.amax(-1, keepdim=True)  # [*, 1]
        spread = (high - low).clamp(min=SMALLEST)
        mapped = (hidden_states - low).div_(spread)  # a token that is not finite stays so through its `spread`
        product = self.product(to_uint8(mapped, UNIT_GRID), UNIT_GRID)  # [*, O]
        result = product.mul_(spread).addcmul_(low, self.product.weight_sums).add_(self.bias)
        result = F.gelu(result) if gelu else result
        return result if residual is None else result.add_(residual)
