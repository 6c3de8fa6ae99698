"""How a token learns its position: the sinusoidal formula, and none at all. A learned table is `nn.Embedding`."""

import math

import torch
from torch import Tensor, nn

TURN = 2**64  # one full turn of an angle, as a 64-bit integer


def sinusoidal_embedding(position_ids: Tensor, width: int) -> Tensor:
    """The sinusoidal position embedding of Vaswani et al. 2017, section 3.5.

        PE(pos, 2i)     = sin(pos / 10000^(2i/d))
        PE(pos, 2i + 1) = cos(pos / 10000^(2i/d))

    Sines and cosines are interleaved, as in the paper. It holds for any integer position, and an odd width ends with
    a sine.

    In float32 the angle `pos / 10000^(2i/d)` would lose its fraction as positions grow (at position 100,000 the sine
    is wrong by 0.004), and not every device has float64. So the angle is kept as a fraction of a full turn in 64-bit
    integers: one position advances frequency i by `step[i]`, and the product `pos * step[i]` wraps around exactly
    where the angle does. What is left of it, half a turn at most, is exact enough for float32: the result is within
    1e-6 of a float64 evaluation.

    Args:
        position_ids: integer positions, any shape [...].
        width: d, the size of an embedding.

    Returns:
        float32 embeddings [..., d].
    """
    steps = [round(TURN / (2 * math.pi * 10000 ** (2 * i / width))) for i in range((width + 1) // 2)]
    step = torch.tensor(steps, dtype=torch.int64, device=position_ids.device)  # [d/2]
    turns = position_ids.to(torch.int64)[..., None] * step  # [..., d/2], modulo one turn
    angles = turns.to(torch.float32) * (2 * math.pi / TURN)  # [..., d/2], from -pi to pi
    pairs = torch.stack((angles.sin(), angles.cos()), dim=-1)  # [..., d/2, 2]
    return pairs.flatten(-2)[..., :width]


class SinusoidalPositionEmbedding(nn.Module):
    """`sinusoidal_embedding` as a module.

    It holds no table: nothing can be trained, saved, overwritten, or lost when a model is built on the meta device.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, position_ids: Tensor) -> Tensor:
        return sinusoidal_embedding(position_ids, self.width)

    def extra_repr(self) -> str:
        return str(self.width)


class NoEmbedding(nn.Module):
    """Adds nothing, whatever the ids: `position_embedding_type="none"` and `type_vocab_size=0`."""

    def forward(self, ids: Tensor) -> Tensor:
        return ids.new_zeros((), dtype=torch.float32)
