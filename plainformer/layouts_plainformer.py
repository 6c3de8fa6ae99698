"""How a batch lies in memory while it is computed.

    UnpaddedLayout   the real tokens alone, [T]: no work on padding
    PaddedLayout     the rectangle [B, L] under a mask: where there is no padding, and for captured graphs,
                     attention weights, and masks that say who attends to whom

`make_layout` decides, once per batch. From then on the encoder asks the layout and never looks at a mask:
it carries values from the rectangle into the layout (`gather`) and back (`scatter`), and runs attention within each
sequence (`attend`).

Before the layers, `prepare_positions` computes what all of them need of the positions.

A model's layers may be spread over devices: a layout is moved with `to`, and what it is asked about is answered where
the values lie.

Shapes: B batch, L length, T real tokens, S sequences, H heads, D head size, E hidden size; [*] is a layout's leading
dimensions, [T] or [B, L].
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import chain, groupby

import torch
from torch import Tensor, nn

from .configuration_plainformer import PlainformerConfig
from .inputs_plainformer import Batch
from .kernels_plainformer import Kernel, eager_attention, sdpa_attention, varlen_attention, varlen_fits
from .packing_plainformer import count_positions, refuse_packed
from .positions_plainformer import POSITION_KINDS
from .values_plainformer import at_least_float32, mask_out

# A bias at or below this value masks the pair. Masks in use hold -1e9, the lowest number or -inf.
MASKED_BIAS = torch.finfo(torch.float16).min

Measure = Callable[[Tensor, Tensor], Tensor]  # ids of queries [..., Q] and of keys [..., K] -> [..., Q, K]


@dataclass
class PaddedLayout:
    """A batch as the padded rectangle [B, L].

    Attributes:
        shape: (B, L).
        position_ids: [B, L].
        token_mask: which places hold a token, bool [B, L]; None when all of them do.
        is_packed: some row is known to hold several sequences.
        attention_mask: who may attend to whom: bool, or a bias that is added to the attention scores, [B, 1|H, 1|L, L];
            None when everybody may attend to everybody. Fully masked queries may attend to all, so that no softmax
            runs over nothing.
        fully_masked: the queries that may attend to no place, bool [B, 1|H, 1|L, 1]; None when there are none by
            design.
        is_uniform: all rows are known to stand at the same positions.
        angles: what the rotations of a position kind need, [B, L, ...].
        measure: the distances that its biases need, from ids of queries [..., Q] and keys [..., K]; None: no bias.
        distances: those of this batch, [1|B, L, L].
    """

    is_causal = False  # whether a query sees only what is before it

    shape: tuple[int, int]
    position_ids: Tensor
    token_mask: Tensor | None = None
    is_packed: bool = False
    attention_mask: Tensor | None = None
    fully_masked: Tensor | None = None
    is_uniform: bool = False
    angles: Tensor | None = None
    measure: Measure | None = None
    distances: Tensor | None = None

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> "PaddedLayout":
        """The same on another device. Tools that spread a model's layers (`device_map`) call it for each of them."""
        return _move(self, device, non_blocking)

    def gather(self, values: Tensor) -> Tensor:
        """[B, L, ...] as it is."""
        return values

    def scatter(self, values: Tensor, fill: float = 0) -> Tensor:
        """Computed values -> [B, L, ...] with `fill` at the padding."""
        return mask_out(values, self.token_mask, fill)

    def select(self, values: Tensor, indices: Tensor) -> Tensor:
        """Computed values [B, L, ...] at indices [N] of the flattened rectangle -> [N, ...]."""
        return values.flatten(0, 1)[indices]

    def sum_rows(self, values: Tensor) -> Tensor:
        """[B, L, E] -> the sum over each row's real tokens, at least float32, [B, E]."""
        return self.scatter(values).sum(dim=1, dtype=at_least_float32(values.dtype))

    def attend(
        self, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, dropout_p: float, bias: nn.Module | None
    ) -> tuple[Tensor, Tensor | None]:
        """Run `kernel` over the rows of the batch.

        Args:
            query, key, value: [B, L, H, D].
            bias: a position kind's module, distances [1|B, L, L] -> [1|B, H, L, L].

        Returns:
            context [B, L, H, D], and the attention weights [B, H, L, L] if the kernel computes them.
        """
        query, key, value = (states.transpose(1, 2) for states in (query, key, value))  # [B, H, L, D]
        attention_mask = self.attention_mask
        if attention_mask is not None and attention_mask.shape[1] not in (1, query.shape[1]):
            raise ValueError(
                f"attention_mask tells {attention_mask.shape[1]} heads apart, but with tensor parallelism this process "
                f"computes {query.shape[1]} of them: give one mask for all heads, [B, 1, L, L]."
            )
        if attention_mask is not None and attention_mask.dtype != torch.bool:
            lowest = _lowest_bias(query)
            attention_mask = attention_mask.to(query.dtype).clamp(min=lowest, max=-lowest)
        if bias is not None:
            attention_mask = add_bias(attention_mask, as_scores(bias(self.distances), query.dtype))
            kernel = eager_attention if hides_gradient(attention_mask, bias) else kernel
        context, weights = kernel(query, key, value, attention_mask, self.fully_masked, dropout_p)
        return context.transpose(1, 2), weights  # [B, L, H, D]

    def measure_distances(self) -> Tensor | None:
        """The distances of this batch, which all layers use, [1|B, L, L]."""
        position_ids = self.position_ids[:1] if self.is_uniform else self.position_ids  # [1|B, L]
        return self.measure(position_ids, position_ids)


@dataclass
class UnpaddedLayout:
    """The real tokens of a batch alone, [T]: its sequences one after the other, shortest first.

    Attributes:
        token_mask: which places of the rectangle hold a token, bool [B, L].
        is_packed: some row holds several sequences.
        position_ids: [T].
        indices: where each token stands in the flattened rectangle, [T].
        slots: where the token of each place of the flattened rectangle stands among the T, [B * L]; 0 at padding.
        length_buckets: (how many sequences, their length), shortest first; together they cover the T tokens.
        is_counted: the positions of each sequence are known to count from 0.
        angles: what the rotations of a position kind need, [T, ...].
        measure: the distances that its biases need, as for `PaddedLayout`.
        distances: those of the longest sequence, whose first ones are those of the others, [L, L]; None where
            positions are not counted.
    """

    is_causal = False

    token_mask: Tensor
    is_packed: bool
    position_ids: Tensor
    indices: Tensor
    slots: Tensor
    length_buckets: list[tuple[int, int]]
    is_counted: bool = False
    angles: Tensor | None = None
    measure: Measure | None = None
    distances: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(B, L)."""
        return tuple(self.token_mask.shape)

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> "UnpaddedLayout":
        """The same on another device, as `PaddedLayout.to`."""
        return _move(self, device, non_blocking)

    @cached_property
    def cu_seqlens(self) -> Tensor:
        """The boundaries of the sequences among the T tokens, int32 [S + 1]."""
        lengths = chain.from_iterable([length] * count for count, length in self.length_buckets)
        return torch.tensor([0, *lengths], device=self.indices.device).cumsum(0, dtype=torch.int32)

    def gather(self, values: Tensor) -> Tensor:
        """[B, L, ...] -> [T, ...]."""
        return values.flatten(0, 1)[self.indices.to(values.device)]

    def scatter(self, values: Tensor, fill: float = 0) -> Tensor:
        """[T, ...] -> [B, L, ...] with `fill` at the padding."""
        rectangle = values.new_full((len(self.slots), *values.shape[1:]), fill)  # [B * L, ...]
        return rectangle.index_copy(0, self.indices.to(values.device), values).unflatten(0, self.shape)

    def select(self, values: Tensor, indices: Tensor) -> Tensor:
        """Computed values [T, ...] at indices [N] of real tokens in the flattened rectangle -> [N, ...]."""
        return values[self.slots.to(values.device)[indices]]

    def sum_rows(self, values: Tensor) -> Tensor:
        """[T, E] -> the sum over each row's real tokens, at least float32, [B, E]."""
        B, L = self.shape
        row = self.indices.to(values.device) // L  # [T]
        values = values.to(at_least_float32(values.dtype))
        return values.new_zeros((B, values.shape[-1])).index_add(0, row, values)

    def attend(
        self, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, dropout_p: float, bias: nn.Module | None
    ) -> tuple[Tensor, None]:
        """Run `kernel` within each sequence; sequences of equal length form a batch and need no mask.

        Args:
            query, key, value: [T, H, D].
            bias: a position kind's module, distances [..., length, length] -> [..., H, length, length].

        Returns:
            context [T, H, D], and None: attention weights are computed on the padded rectangle.
        """
        if bias is None and not self.is_causal and kernel is sdpa_attention and varlen_fits(query, dropout_p):
            return varlen_attention(query, key, value, self.cu_seqlens, self.length_buckets[-1][1]), None
        contexts = []
        buckets = zip(self.make_masks(bias, query), self._by_length(query, key, value), strict=True)
        for attention_mask, states in buckets:
            batch = (one.transpose(1, 2) for one in states)  # 3 x [count, H, length, D]
            context, _ = kernel(*batch, attention_mask, None, dropout_p)
            contexts.append(context.transpose(1, 2).flatten(0, 1))  # [count * length, H, D]
        return torch.cat(contexts), None

    def make_masks(self, bias: nn.Module | None, query: Tensor) -> Iterator[Tensor | None]:
        """What is added to the scores of each bucket: the bias, [1|count, H, length, length], or None."""
        if bias is None:
            yield from (None for _ in self.length_buckets)
        elif self.distances is not None:
            whole = as_scores(bias(self.distances), query.dtype)[None]  # [1, H, L, L]
            yield from (whole[..., :length, :length] for _, length in self.length_buckets)
        else:
            for (position_ids,) in self._by_length(self.position_ids):
                yield as_scores(bias(self.measure(position_ids, position_ids)), query.dtype)

    def measure_distances(self) -> Tensor | None:
        """The distances of the longest sequence, [L, L], where the others have the same."""
        positions = torch.arange(self.length_buckets[-1][1], device=self.position_ids.device)
        return self.measure(positions, positions) if self.is_counted else None

    def _by_length(self, *values: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """[T, ...] each -> [count, length, ...] each, for every length."""
        sizes = [count * length for count, length in self.length_buckets]
        for bucket, *pieces in zip(self.length_buckets, *(one.split(sizes) for one in values), strict=True):
            yield tuple(piece.unflatten(0, bucket) for piece in pieces)


Layout = PaddedLayout | UnpaddedLayout


def prepare_positions(layout: Layout, config: PlainformerConfig, dtype: torch.dtype) -> None:
    """Compute what the layers need of the positions: once, and outside of what gradient checkpointing runs again.

    Args:
        dtype: that of the hidden states.
    """
    kind, dtype = POSITION_KINDS[config.position_embedding_type], at_least_float32(dtype)
    layout.angles = kind.angles(config, layout.position_ids, dtype)
    if kind.bias is not None:
        layout.measure = partial(kind.distances, config, dtype=dtype, is_causal=layout.is_causal)
        layout.distances = layout.measure_distances()


def make_layout(batch: Batch, unpad: bool) -> Layout:
    """Decide how a batch lies when it is computed.

    Args:
        unpad: compute on real tokens only, if nothing else speaks against it.
    """
    if batch.token_mask is None and batch.sequence_ids is None and batch.attention_mask is None:
        return PaddedLayout(batch.shape, batch.position_ids, is_uniform=batch.is_counted)
    if unpad and batch.attention_mask is None and batch.lengths is not None and any(batch.lengths):
        return _unpad(batch)
    return _pad(batch)


def layout_or_rectangle(hidden_states: Tensor, layout: Layout | None, config: PlainformerConfig) -> Layout:
    """The layout; where None is given, that of hidden states [B, L, E] without padding: a part is called on its own.

    Raises:
        TypeError: a tensor in its place, such as a mask.
        ValueError: no layout, and another number of dimensions.
    """
    if isinstance(layout, Tensor):
        raise TypeError(
            f"layout is a tensor of shape {tuple(layout.shape)}: a part of the model that is called on its own takes "
            "no mask. Call the model for padded texts."
        )
    if layout is not None:
        return layout
    if hidden_states.dim() != 3:
        raise ValueError(
            f"hidden_states has shape {tuple(hidden_states.shape)}, but must be [batch, length, hidden_size]. For a "
            "single text, add the batch dimension with unsqueeze(0)."
        )
    B, L, _ = hidden_states.shape
    layout = PaddedLayout((B, L), torch.arange(L, device=hidden_states.device).expand(B, L), is_uniform=True)
    prepare_positions(layout, config, hidden_states.dtype)
    return layout


def pool(hidden_states: Tensor, layout: Layout, how: str) -> Tensor:
    """One vector per row: its first real token ("cls"), or the mean over its real tokens ("mean").

    Args:
        hidden_states: [*, E].

    Returns:
        [B, E]; zeros for a row with no real token.

    Raises:
        ValueError: a row holds several sequences.
    """
    refuse_packed(layout.is_packed)
    B, L = layout.shape
    token_mask = None if layout.token_mask is None else layout.token_mask.to(hidden_states.device)
    if how == "mean":
        num_tokens = L if token_mask is None else token_mask.sum(dim=1, keepdim=True).clamp(min=1)  # [B, 1]
        return (layout.sum_rows(hidden_states) / num_tokens).to(hidden_states.dtype)
    first = torch.arange(B, device=hidden_states.device) * L  # [B], the first place of each row
    if token_mask is None:
        return layout.select(hidden_states, first)
    first = first + token_mask.to(torch.int8).argmax(dim=1)  # [B], its first token, if it has one
    return layout.select(hidden_states, first).masked_fill(~token_mask.any(dim=1, keepdim=True), 0)


def record_states(layout: Layout, recorded: list[Tensor] | None) -> Callable[[Tensor], Tensor]:
    """A function that appends hidden states [*, E] to `recorded` as [B, L, E], and gives them back as [*, E].

    What it gives back is computed from what it recorded. So a user who asks for the gradient of a hidden state gets it.

    Args:
        recorded: None: nothing is to be recorded.
    """

    def record(hidden_states: Tensor) -> Tensor:
        if recorded is None:
            return hidden_states
        recorded.append(layout.scatter(hidden_states))
        return layout.gather(recorded[-1])

    return record


def _pad(batch: Batch) -> PaddedLayout:
    """The padded rectangle, with one mask of everything that may not attend to something."""
    attention_mask, sequence_ids, token_mask = batch.attention_mask, batch.sequence_ids, batch.token_mask
    if sequence_ids is not None:  # sequences of a row never see each other, whatever the mask says
        same = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]  # [B, 1, L, L]
        attention_mask = same if attention_mask is None else _restrict(attention_mask, same)
    if token_mask is not None:
        are_tokens = token_mask[:, None, None, :]  # [B, 1, 1, L]
        attention_mask = are_tokens if attention_mask is None else attention_mask & are_tokens
    masks = open_queries(attention_mask)
    is_uniform = batch.is_counted and token_mask is None and sequence_ids is None
    return PaddedLayout(batch.shape, batch.position_ids, token_mask, batch.is_packed, *masks, is_uniform)


def open_queries(attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The mask [B, 1|H, 1|L, L], bool or additive, with its fully masked queries opened to all keys; which they are."""
    is_bool = attention_mask.dtype == torch.bool
    fully_masked = (~attention_mask if is_bool else attention_mask <= MASKED_BIAS).all(dim=-1, keepdim=True)
    return attention_mask | fully_masked if is_bool else attention_mask.masked_fill(fully_masked, 0), fully_masked


def _unpad(batch: Batch) -> UnpaddedLayout:
    """The real tokens, sequences of equal length side by side. Their lengths are known, so nothing has to be read.

    Rows of 3, 1 and 3 tokens: the 7 tokens are those of row 1, row 0, row 2, and the buckets are (1 of 1), (2 of 3).
    """
    by_length = sorted((s for s, length in enumerate(batch.lengths) if length), key=batch.lengths.__getitem__)
    buckets = [(len(list(same)), length) for length, same in groupby(batch.lengths[s] for s in by_length)]
    token_mask, device = batch.token_mask, batch.position_ids.device
    if token_mask is None:
        token_mask = torch.ones(batch.shape, dtype=torch.bool, device=device)
    indices, slots = index_tokens(token_mask, batch.sequence_ids, batch.lengths, by_length)
    position_ids = batch.position_ids.flatten()[indices]
    return UnpaddedLayout(token_mask, batch.is_packed, position_ids, indices, slots, buckets, batch.is_counted)


def index_tokens(
    token_mask: Tensor, sequence_ids: Tensor | None, lengths: list[int], order: list[int]
) -> tuple[Tensor, Tensor]:
    """Where the real tokens stand in the flattened rectangle, sequence after sequence, and the reverse.

    Args:
        token_mask: bool [B, L].
        sequence_ids: the number of each place's sequence, [B, L]; None: each row is one.
        lengths: of each sequence, [S].
        order: the numbers of the sequences, in the order that is wanted; those left out have no place in the result.

    Returns:
        indices [T], and slots [B * L]: where the token of each place stands among the T; 0 where there is none.
    """
    (B, L), device = token_mask.shape, token_mask.device
    T = sum(lengths[sequence] for sequence in order)
    starts, start = [T] * len(lengths), 0  # of each sequence among the T tokens; of one that is left out, behind them
    for sequence in order:
        starts[sequence] = start
        start += lengths[sequence]
    in_sequence = count_positions(token_mask, sequence_ids, (B, L), device)  # [B, L]
    if sequence_ids is None:
        sequence_ids = torch.arange(B, device=device)[:, None]  # each row is one sequence
    slots = (torch.tensor(starts, device=device)[sequence_ids] + in_sequence).flatten().clamp(max=T)  # [B * L]
    slots = slots.where(token_mask.flatten(), T)  # padding goes behind the end
    rectangle = torch.arange(B * L, device=device)
    indices = rectangle.new_empty(T + 1).scatter(0, slots, rectangle)[:T]
    return indices, slots.masked_fill(slots == T, 0)


def _move(layout: Layout, device: torch.device | str | int, non_blocking: bool) -> Layout:
    values = {field.name: getattr(layout, field.name) for field in fields(layout)}
    elsewhere = {
        name: value.to(device, non_blocking=non_blocking)
        for name, value in values.items()
        if isinstance(value, Tensor) and value.device != torch.device(device)
    }
    return replace(layout, **elsewhere) if elsewhere else layout


def _restrict(attention_mask: Tensor, same: Tensor) -> Tensor:
    """The mask, and nothing between the sequences of a row."""
    if attention_mask.dtype == torch.bool:
        return attention_mask & same
    return attention_mask.masked_fill(~same, float("-inf"))


def _lowest_bias(scores: Tensor) -> float:
    """Half the lowest number: a score can be added to it without leaving the type, as -inf or NaN."""
    return torch.finfo(scores.dtype).min / 2


def as_scores(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """The bias of a position kind in the type of the scores. float16 would lose what is far: it stays above a mask."""
    if dtype == torch.float16:
        bias = bias.clamp(min=torch.finfo(dtype).min / 4)
    return bias.to(dtype)


def hides_gradient(scores_bias: Tensor, bias: nn.Module) -> bool:
    """Whether a fused kernel cannot see that what it adds has a gradient: `torch.func.vmap` hides it."""
    if scores_bias.requires_grad or not torch.is_grad_enabled():
        return False
    return any(parameter.requires_grad for parameter in bias.parameters())


def add_bias(attention_mask: Tensor | None, bias: Tensor) -> Tensor:
    """A mask, bool or additive, and the bias of the positions as one additive mask."""
    if attention_mask is None:
        return bias
    if attention_mask.dtype == torch.bool:
        return bias.masked_fill(~attention_mask, _lowest_bias(bias))
    return attention_mask + bias
