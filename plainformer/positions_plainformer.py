"""How a token learns its position: the kinds, and the registry that everything else reads.

A kind is one class and one entry of `POSITION_KINDS`. The entry says where the class works:

    embeddings   added to the token embeddings      module(position_ids [*]) -> [*, E]
    rotation     applied to queries and to keys     module(states [*, H, D], position_ids [*]) -> [*, H, D]
    bias         added to the attention scores      module(query_ids [..., Q], key_ids [..., K]) -> [..., H, Q, K]

Such a module is only ever called: it may be wrapped (LoRA does) or replaced. To add a kind, write its class and its
entry here; the configuration, the model, the recipes, the model card and the tests read the registry.

Shapes: E hidden size, H heads, D head size, Q and K lengths; [*] is a layout's leading dimensions, [T] or [B, L].
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

MakeModule = Callable[[Any], nn.Module]  # from a PlainformerConfig; `Any`, since the configuration reads this file

TURN = 2**64  # one full turn of an angle, as a 64-bit integer


def sinusoidal_embedding(position_ids: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The sinusoidal position embedding of Vaswani et al. 2017, section 3.5.

        PE(pos, 2i)     = sin(pos / 10000^(2i/d))
        PE(pos, 2i + 1) = cos(pos / 10000^(2i/d))

    Sines and cosines are interleaved, as in the paper. It holds for any integer position, and an odd width ends with
    a sine.

    In float32 the angle `pos / 10000^(2i/d)` would lose its fraction as positions grow (at position 100,000 and d =
    768 the sine is wrong by up to 0.0063), and not every device has float64. So the angle is kept as a fraction of
    a full turn in 64-bit integers: one position advances frequency i by `step[i]`, and the product `pos * step[i]`
    wraps around exactly where the angle does. What is left of it, half a turn at most, is exact enough for float32:
    the result is within 1e-6 of a float64 evaluation. In float64 the same integers give float64's own precision.

    Args:
        position_ids: integer positions, any shape [...].
        width: d, the size of an embedding.
        dtype: torch.float32 or torch.float64.

    Returns:
        embeddings [..., d] of type `dtype`.
    """
    steps = [round(TURN / (2 * math.pi * 10000 ** (2 * i / width))) for i in range((width + 1) // 2)]
    step = torch.tensor(steps, dtype=torch.int64, device=position_ids.device)  # [d/2]
    turns = position_ids.to(torch.int64)[..., None] * step  # [..., d/2], modulo one turn
    angles = turns.to(dtype) * (2 * math.pi / TURN)  # [..., d/2], from -pi to pi
    pairs = torch.stack((angles.sin(), angles.cos()), dim=-1)  # [..., d/2, 2]
    return pairs.flatten(-2)[..., :width]


class SinusoidalPositionEmbedding(nn.Module):
    """`sinusoidal_embedding` as a module, in float32, or in float64 where the model is float64.

    It holds no table: nothing can be trained, saved, overwritten, or lost when a model is built on the meta device.
    Its buffer holds no number: it is there for its type, which is that of the model whatever converts it.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.width = config.hidden_size
        self.register_buffer("like_model", torch.empty(0), persistent=False)

    def forward(self, position_ids: Tensor) -> Tensor:
        dtype = torch.promote_types(self.like_model.dtype, torch.float32)
        return sinusoidal_embedding(position_ids, self.width, dtype)

    def extra_repr(self) -> str:
        return str(self.width)


class NoEmbedding(nn.Module):
    """Adds nothing, whatever the ids: positions of the kind "none", and segments where `type_vocab_size=0`."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()

    def forward(self, ids: Tensor) -> Tensor:
        return ids.new_zeros((), dtype=torch.float32)


class NoRotation(nn.Module):
    """Leaves queries and keys as they are."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()

    def forward(self, states: Tensor, position_ids: Tensor) -> Tensor:
        return states


def learned_table(config: Any) -> nn.Embedding:
    """One trained vector for each position below `max_position_embeddings` (Devlin et al. 2019)."""
    return nn.Embedding(config.max_position_embeddings, config.hidden_size)


@dataclass(frozen=True)
class PositionKind:
    """Where a kind of position works. Each place names what builds its module from the configuration.

    Attributes:
        summary: the kind in a few words, for help texts and model cards.
        embeddings: a module whose output for the position ids is added to the token embeddings.
        rotation: a module that turns queries and keys according to the position ids.
        bias: a module whose output for the ids of queries and keys is added to the attention scores; None for no bias.
        has_limit: it ends at `max_position_embeddings`; the others hold for any length.
    """

    summary: str
    embeddings: MakeModule = NoEmbedding
    rotation: MakeModule = NoRotation
    bias: MakeModule | None = None
    has_limit: bool = False


POSITION_KINDS: dict[str, PositionKind] = {
    "learned": PositionKind("learned positions", embeddings=learned_table, has_limit=True),
    "sinusoidal": PositionKind("sinusoidal positions", embeddings=SinusoidalPositionEmbedding),
    "none": PositionKind("no position embedding"),
}
