"""How a token learns its position: the kinds, and the registry that everything else reads.

A kind is one class and one entry of `POSITION_KINDS`. The entry says where the class works:

    embeddings   added to the token embeddings      module(position_ids [*]) -> [*, E]
    rotation     applied to queries and to keys     module(states [*, H, D], angles [*, ...]) -> [*, H, D]
    bias         added to the attention scores      module(distances [..., Q, K]) -> [..., H, Q, K]

Such a module is only ever called: it may be wrapped (LoRA does) or replaced. Rotations and biases are built for each
layer. What they all need is computed once for a batch, by functions without weights: `angles` and `distances` of the
entry. By default angles are the position ids themselves, and distances how far each key is behind its query.

To add a kind, write its class and its entry here; the configuration, the model, the recipes, the model card and the
tests read the registry.

Shapes: B batch, L length, E hidden size, H heads, D head size, Q and K lengths, N positions to draw from; [*] is a
layout's leading dimensions, [T] or [B, L].
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MakeModule = Callable[[Any], nn.Module]  # from a PlainformerConfig; `Any`, since the configuration reads this file

TURN = 2**64  # one full turn of an angle, as a 64-bit integer


def angles_at(position_ids: Tensor, width: int, base: float, dtype: torch.dtype) -> Tensor:
    """The angles `pos / base^(2i/width)` of positions, less their full turns, for i from 0 up to width / 2.

    In float32 such an angle would lose its fraction as positions grow (at position 100,000 and width 768 its sine is
    wrong by up to 0.0063), and not every device has float64. So the angle is kept as a fraction of a full turn in
    64-bit integers: one position advances frequency i by `step[i]`, and the product `pos * step[i]` wraps around
    exactly where the angle does. What is left of it, half a turn at most, is exact enough for float32: its sine is
    within 1e-6 of a float64 evaluation. In float64 the same integers give float64's own precision.

    Args:
        position_ids: integer positions, any shape [...].
        base: at least 1.
        dtype: torch.float32 or torch.float64.

    Returns:
        angles [..., ceil(width / 2)] of type `dtype`, from -pi to pi.
    """
    steps = [round(TURN / (2 * math.pi * base ** (2 * i / width))) for i in range((width + 1) // 2)]
    step = torch.tensor(steps, dtype=torch.int64, device=position_ids.device)  # [width / 2]
    turns = position_ids.to(torch.int64)[..., None] * step  # [..., width / 2], modulo one turn
    return turns.to(dtype) * (2 * math.pi / TURN)


# Positions that are added to the embeddings


def sinusoidal_embedding(position_ids: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The sinusoidal position embedding of Vaswani et al. 2017, section 3.5.

        PE(pos, 2i)     = sin(pos / 10000^(2i/d))
        PE(pos, 2i + 1) = cos(pos / 10000^(2i/d))

    Sines and cosines are interleaved, as in the paper. It holds for any integer position, and an odd width ends with
    a sine. In float32 it is within 1e-6 of a float64 evaluation (see `angles_at`).

    Args:
        position_ids: integer positions, any shape [...].
        width: d, the size of an embedding.
        dtype: torch.float32 or torch.float64.

    Returns:
        embeddings [..., d] of type `dtype`.
    """
    angles = angles_at(position_ids, width, 10000, dtype)  # [..., d/2]
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


def learned_table(config: Any) -> nn.Embedding:
    """One trained vector for each position below `max_position_embeddings` (Devlin et al. 2019)."""
    return nn.Embedding(config.max_position_embeddings, config.hidden_size)


# Rotary positions: queries and keys turn


def rotary_angles(config: Any, position_ids: Tensor, dtype: torch.dtype) -> Tensor:
    """What the rotations of all layers need: cosines, and sines with their signs, of each column, [*, 2, D].

    An angle `pos / rope_theta^(2i/D)` is that of columns 2i and 2i + 1. The last of an odd number of columns does not
    turn, and D is then one less in the formula.
    """
    head_size = config.hidden_size // config.num_attention_heads
    angles = angles_at(position_ids, head_size - head_size % 2, config.rope_theta, dtype)  # [*, D/2]
    cos, sin = angles.cos(), angles.sin()
    cos = torch.stack((cos, cos), dim=-1).flatten(-2)  # [*, D]
    sin = torch.stack((-sin, sin), dim=-1).flatten(-2)  # [*, D]
    odd = head_size % 2
    return torch.stack((F.pad(cos, (0, odd), value=1.0), F.pad(sin, (0, odd))), dim=-2)


class RotaryPosition(nn.Module):
    """Rotary positions (Su et al. 2021, "RoFormer"): neighbouring columns of queries and keys turn by their angle.

        x[2i]     <- x[2i] cos(a) - x[2i + 1] sin(a)
        x[2i + 1] <- x[2i + 1] cos(a) + x[2i] sin(a),  a = pos / rope_theta^(2i/D)

    The product of a query and a key then depends on the distance of their positions alone.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        if config.hidden_size // config.num_attention_heads < 2:
            raise ValueError(
                f"position_embedding_type={config.position_embedding_type!r} turns pairs of columns, but with "
                f"hidden_size={config.hidden_size} and num_attention_heads={config.num_attention_heads} a head has "
                "only one: give fewer heads, or a larger hidden_size."
            )

    def forward(self, states: Tensor, angles: Tensor) -> Tensor:
        """States [*, H, D] and `rotary_angles` [*, 2, D] -> [*, H, D], at least float32."""
        cos, sin = angles[..., None, :, :].unbind(dim=-2)  # [*, 1, D] each
        return (states * cos).addcmul_(swap_neighbours(states), sin)  # in place: a large tensor less to fill


def swap_neighbours(states: Tensor) -> Tensor:
    """Columns 0, 1, 2, 3, ... [*, D] as 1, 0, 3, 2, ...; 0 in the last of an odd number."""
    odd = states.shape[-1] % 2
    pairs = states[..., : states.shape[-1] - odd].unflatten(-1, (-1, 2))  # [*, D/2, 2]
    swapped = torch.stack((pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)  # half of the time of a flip
    return F.pad(swapped, (0, 1)) if odd else swapped


# ALiBi: scores fall with the distance


def alibi_slopes(num_heads: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The slope of each head, [H] (Press et al. 2022, section 3 and the authors' code).

    With n heads, a power of 2, the slopes are 2^(-8/n), 2^(-16/n), ..., 2^-8. Where the number of heads is none, n is
    the next lower one; the other heads have every second slope of 2n heads: 2^(-4/n), 2^(-12/n), ...
    """
    n = 2 ** (num_heads.bit_length() - 1)
    options = {"dtype": dtype, "device": device}
    first = torch.arange(1, n + 1, **options) * (8 / n)
    others = (2 * torch.arange(num_heads - n, **options) + 1) * (4 / n)
    return torch.exp2(-torch.cat((first, others)))


def alibi_distances(config: Any, query_ids: Tensor, key_ids: Tensor, dtype: torch.dtype, is_causal: bool) -> Tensor:
    """|i - j| of each pair, in the type of the slopes, [..., Q, K]."""
    return signed_distances(config, query_ids, key_ids, dtype, is_causal).abs().to(dtype)


class AlibiBias(nn.Module):
    """Attention with linear biases (Press et al. 2022): -slope * |i - j| is added to a score, with a slope per head.

    The paper's is causal; there i - j is never negative. An encoder looks both ways, so the bias is symmetric.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.num_heads = config.num_attention_heads

    def forward(self, distances: Tensor) -> Tensor:
        """`alibi_distances` [..., Q, K] -> [..., H, Q, K]."""
        slopes = alibi_slopes(self.num_heads, distances.dtype, distances.device)
        return -slopes[:, None, None] * distances[..., None, :, :]


# Relative positions: a trained number for each bucket of distances


def relative_bucket(distance: int, num_buckets: int, max_distance: int, is_causal: bool) -> int:
    """The bucket of a signed distance, key - query (Raffel et al. 2020, "T5").

    Up to half of the buckets, m, each distance has its own. The others grow in proportion to the distance:

        m + floor((n - m) log(distance / m) / log(max_distance / m)), at most n - 1

    The n buckets of a causal attention are all for keys before the query; otherwise half of them are for those after.
    """
    n = num_buckets if is_causal else num_buckets // 2
    first = n if distance > 0 and not is_causal else 0
    distance = max(-distance, 0) if is_causal else abs(distance)
    m = n // 2
    if distance < m:
        return first + distance
    growth = math.log(distance / m) / math.log(max_distance / m)
    # The little that is added keeps a distance that begins a bucket from being rounded into the one before.
    return first + min(m + math.floor((n - m) * growth + 1e-9), n - 1)


@cache
def relative_buckets_of(num_buckets: int, max_distance: int, is_causal: bool) -> list[int]:
    """`relative_bucket` of each distance from -max_distance to max_distance, the first of those beyond."""
    options = (num_buckets, max_distance, is_causal)
    return [relative_bucket(distance, *options) for distance in range(-max_distance, max_distance + 1)]


def relative_distances(config: Any, query_ids: Tensor, key_ids: Tensor, dtype: torch.dtype, is_causal: bool) -> Tensor:
    """The bucket of each pair, int64 [..., Q, K]."""
    most = config.relative_attention_max_distance
    buckets = relative_buckets_of(config.relative_attention_num_buckets, most, is_causal)
    distances = signed_distances(config, query_ids, key_ids, dtype, is_causal)
    return torch.tensor(buckets, device=distances.device)[distances.clamp(-most, most) + most]


class RelativeBias(nn.Module):
    """Relative positions (Raffel et al. 2020): each head learns a number for each bucket of distances.

    Every layer has a table of its own, where T5 has one for all. Scores keep their 1 / sqrt(D), which T5 leaves out.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.table = nn.Embedding(config.relative_attention_num_buckets, config.num_attention_heads)

    def forward(self, distances: Tensor) -> Tensor:
        """Buckets [..., Q, K] -> [..., H, Q, K]."""
        biases = self.table(distances)  # [..., Q, K, H]
        return biases.transpose(-1, -2).transpose(-2, -3)


# Randomised positions, for any kind


def draw_positions(counted: Tensor, token_mask: Tensor | None, num_positions: int) -> Tensor:
    """Randomised positions (Ruoss et al. 2023): a row's tokens stand at a sorted random subset of 0 .. N - 1, [B, L].

    Args:
        counted: the tokens of each row counted from 0, [B, L].
        token_mask: which places hold a token, bool [B, L]; None when all do.
        num_positions: N, at least as many as a row has tokens.
    """
    B, L = counted.shape
    order = torch.rand(B, num_positions, device=counted.device).argsort(dim=1)[:, :L]  # [B, min(L, N)]
    lengths = L if token_mask is None else token_mask.sum(dim=1, keepdim=True)  # [B, 1]
    is_left_out = torch.arange(order.shape[1], device=counted.device) >= lengths
    subset = order.masked_fill(is_left_out, num_positions).sort(dim=1).values  # those left out behind all others
    drawn = subset.gather(1, counted.clamp(max=order.shape[1] - 1))  # [B, L]; too long a row is refused elsewhere
    return drawn if token_mask is None else drawn.masked_fill(~token_mask, 0)


# The registry


class NoRotation(nn.Module):
    """Leaves queries and keys as they are."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()

    def forward(self, states: Tensor, angles: Tensor | None) -> Tensor:
        return states


def ids_as_angles(config: Any, position_ids: Tensor, dtype: torch.dtype) -> Tensor:
    """The position ids themselves."""
    return position_ids


def signed_distances(config: Any, query_ids: Tensor, key_ids: Tensor, dtype: torch.dtype, is_causal: bool) -> Tensor:
    """key - query of each pair, [..., Q, K]."""
    return key_ids[..., None, :] - query_ids[..., :, None]


@dataclass(frozen=True)
class PositionKind:
    """Where a kind of position works. Each place names what builds its module from the configuration.

    Attributes:
        summary: the kind in a few words, for help texts and model cards.
        embeddings: a module whose output for the position ids is added to the token embeddings.
        rotation: a module that turns queries and keys by what `angles` gives.
        angles: a function of the configuration, position ids [*] and a type, at least float32, -> [*, ...].
        bias: a module that makes of what `distances` gives what is added to the attention scores; None for no bias.
        distances: a function of the configuration, the ids of queries [..., Q] and of keys [..., K], a type as above,
            and whether a query sees only what is before it, -> [..., Q, K].
        has_limit: it ends at `max_position_embeddings`; the others hold for any length.
        fields: those of the configuration that this kind alone reads.
    """

    summary: str
    embeddings: MakeModule = NoEmbedding
    rotation: MakeModule = NoRotation
    angles: Callable[..., Tensor] = ids_as_angles
    bias: MakeModule | None = None
    distances: Callable[..., Tensor] = signed_distances
    has_limit: bool = False
    fields: tuple[str, ...] = ()

    @property
    def reads_positions(self) -> bool:
        """Whether positions enter the model at all."""
        return self.embeddings is not NoEmbedding or self.rotation is not NoRotation or self.bias is not None


POSITION_KINDS: dict[str, PositionKind] = {
    "learned": PositionKind("learned positions", embeddings=learned_table, has_limit=True),
    "sinusoidal": PositionKind("sinusoidal positions", embeddings=SinusoidalPositionEmbedding),
    "rotary": PositionKind("rotary positions", rotation=RotaryPosition, angles=rotary_angles, fields=("rope_theta",)),
    "alibi": PositionKind("linear biases (ALiBi)", bias=AlibiBias, distances=alibi_distances),
    "relative": PositionKind(
        "learned biases by distance",
        bias=RelativeBias,
        distances=relative_distances,
        fields=("relative_attention_num_buckets", "relative_attention_max_distance"),
    ),
    "none": PositionKind("no position embedding"),
}
