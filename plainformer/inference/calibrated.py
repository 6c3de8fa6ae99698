"""int8 with fixed ranges, taken from a few dozen texts: no scale has to be found while a text is computed.

    1. The texts run through the model in float32, and for each input of a product the lowest and highest value of every
       channel is recorded.
    2. Smoothing (Xiao et al. 2022, "SmoothQuant"): a channel's values are divided by s, and the weights that they meet
       multiplied by s, so that both fit their grids. s = a^0.75 / w^0.25 for largest values a of the channel and w of
       its weights.
    3. In BERTs a few inner units of the feed-forward have values many times those of all others ("massive activations",
       Sun et al. 2024), and one grid for both loses the others. These units are computed in float32; the rest of the
       feed-forward goes from product to product in uint8.

Shapes: I input size, E hidden size, F inner size of the feed-forward; [*] is a layout's leading dimensions.
"""

import torch
from torch import Tensor, nn

from ..modeling_plainformer import PlainformerLayer
from .int8 import Grid, Int8Product, to_uint8
from .layers import FeedForward, LayerParts, joined_projections
from .packed import PackedLinear

SMOOTHING = 0.75  # the exponent of the values; 1 - SMOOTHING is that of the weights
HEAVY_UNITS = 8  # inner units of the feed-forward that stay in float32
SMALLEST_CHANNEL = 1e-5  # largest value of a channel, so that smoothing divides by no 0


class Recorder(nn.Module):
    """A linear map in float32 that records the lowest and the highest value of each channel of its input."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """weight [O, I], bias [O]."""
        super().__init__()
        self.product = PackedLinear(weight, bias, torch.float32)
        self.low = torch.zeros(weight.shape[1])  # [I], and 0 is among the values of every grid
        self.high = torch.zeros(weight.shape[1])

    def forward(self, hidden_states: Tensor, residual: Tensor | None = None, gelu: bool = False) -> Tensor:
        """[*, I] -> [*, O]; arguments as those of `PackedLinear`."""
        tokens = hidden_states.flatten(0, -2)  # [T, I]
        self.low = torch.minimum(self.low, tokens.amin(dim=0))
        self.high = torch.maximum(self.high, tokens.amax(dim=0))
        return self.product(hidden_states, residual, gelu)


def calibrated_parts(layer: PlainformerLayer, recorded: LayerParts, attention_dtype: torch.dtype) -> LayerParts:
    """The parts of a layer in int8, with the ranges that `Recorder`s in the same places have seen."""
    weight, bias = joined_projections(layer)
    qkv = CalibratedLinear(weight, bias, recorded.qkv, attention_dtype)
    o_proj = CalibratedLinear(layer.attention.o_proj.weight, layer.attention.o_proj.bias, recorded.o_proj)
    return LayerParts(qkv, o_proj, CalibratedFeedForward(layer, recorded.feed_forward))


class CalibratedLinear(nn.Module):
    """A linear map with int8 weights and one fixed grid for its input, smoothed."""

    def __init__(self, weight: Tensor, bias: Tensor, recorded: Recorder, dtype: torch.dtype = torch.float32) -> None:
        """weight [O, I], bias [O]; `dtype` is that of the result."""
        super().__init__()
        largest = torch.maximum(-recorded.low, recorded.high).clamp(min=SMALLEST_CHANNEL)  # [I]
        weights = weight.abs().amax(dim=0).clamp(min=SMALLEST_CHANNEL)  # [I]
        smoothing = largest**SMOOTHING / weights ** (1 - SMOOTHING)  # [I]
        low, high = recorded.low / smoothing, recorded.high / smoothing
        self.inverse_smoothing = 1 / smoothing
        self.grid = Grid.over(float(low.min()), float(high.max()))
        self.product, self.dtype = Int8Product(weight * smoothing, bias), dtype

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor | None = None,
        gelu: bool = False,
        into: Grid | None = None,
    ) -> Tensor:
        """[*, I] -> [*, O]; `into` is the grid of a result in uint8, and the others as those of `PackedLinear`."""
        numbers = to_uint8(hidden_states * self.inverse_smoothing, self.grid)
        return self.product(numbers, self.grid, gelu=gelu, residual=residual, into=into or self.dtype)


class CalibratedFeedForward(nn.Module):
    """The feed-forward: a few units in float32, all others in int8 from its input to its output."""

    def __init__(self, layer: PlainformerLayer, recorded: FeedForward) -> None:
        super().__init__()
        fc1, fc2 = layer.mlp.fc1, layer.mlp.fc2
        low, high = recorded.fc2.low, recorded.fc2.high  # [F]
        largest = torch.maximum(-low, high)
        heavy = largest.topk(min(HEAVY_UNITS, len(largest))).indices
        self.heavy = FeedForward(
            PackedLinear(fc1.weight[heavy], fc1.bias[heavy], torch.float32),
            PackedLinear(fc2.weight[:, heavy], fc2.bias, torch.float32),
            layer,
        )
        # They stay in the integer product too, which is no slower for it, with weights of 0.
        low, high = (one.index_fill(0, heavy, 0.0) for one in (low, high))
        self.grid = Grid.over(float(low.min()), float(high.max()))
        self.fc1 = CalibratedLinear(fc1.weight, fc1.bias, recorded.fc1)
        self.fc2 = Int8Product(fc2.weight.index_fill(1, heavy, 0.0))

    def forward(self, hidden_states: Tensor, residual: Tensor) -> Tensor:
        """[*, E] and residual [*, E] -> residual + branch [*, E]."""
        if self.heavy.is_gelu:
            numbers = self.fc1(hidden_states, gelu=True, into=self.grid)  # [*, F]
        else:
            numbers = to_uint8(self.heavy.activation(self.fc1(hidden_states)), self.grid)
        return self.fc2(numbers, self.grid, residual=self.heavy(hidden_states, residual))
