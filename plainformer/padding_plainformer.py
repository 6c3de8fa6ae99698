"""Which places of a batch hold a token, which of them form a sequence, and how they lie when they are computed.

Masked tokens do not exist: what a model computes for a real token must not depend on how much padding there is, on
which side, or what it holds. Everything that follows from `attention_mask`, `position_ids` and `cu_seq_lens_*` is
decided here, once per batch. The encoder and the heads ask the resulting layout and never look at a mask:

    UnpaddedLayout   the real tokens alone, [T]: no work on padding
    PaddedLayout     the rectangle [B, L] under a mask: where there is no padding, and for captured graphs,
                     attention weights, and masks that say who attends to whom

A model's layers may be spread over devices: a layout is moved with `to`, and what it is asked about is answered where
the values lie.

Shapes: B batch, L length, T real tokens, S sequences, H heads, D head size, E hidden size.
"""

from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from .inputs_plainformer import check_shape, read_ids, values_are_known
from .kernels_plainformer import Kernel, sdpa_attention, varlen_attention, varlen_fits

# Added to a score, this or less forbids: no score makes up for it. Masks in use hold -1e9, the lowest number or -inf.
FORBIDDEN = torch.finfo(torch.float16).min


@dataclass
class PaddedLayout:
    """A batch as the padded rectangle [B, L].

    Attributes:
        shape: (B, L).
        real: which places hold a token, bool [B, L]; None when all of them do.
        packed: some row is known to hold several sequences.
        allowed: who may attend to whom: bool, or a bias that is added to the attention scores, [B, 1|H, 1|L, L];
            None when everybody may attend to everybody. A query in `nobody` may attend to all, so that no softmax
            runs over nothing.
        nobody: the queries that may attend to no place, bool [B, 1|H, 1|L, 1]; None when there are none by design.
    """

    shape: tuple[int, int]
    real: Tensor | None
    packed: bool = False
    allowed: Tensor | None = None
    nobody: Tensor | None = None

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> "PaddedLayout":
        """The same on another device. Tools that spread a model's layers (`device_map`) call it for each of them."""
        return _move(self, device, non_blocking)

    def gather(self, values: Tensor, fill: float = 0) -> Tensor:
        """[B, L, ...] -> the same with `fill` at the padding, so that nothing it holds can be read."""
        return mask_out(values, self.real, fill)

    def scatter(self, values: Tensor, fill: float = 0) -> Tensor:
        """Computed values -> [B, L, ...] with `fill` at the padding."""
        return self.gather(values, fill)

    def select(self, values: Tensor, chosen: Tensor) -> Tensor:
        """Computed values [B, L, ...] at the chosen places (bool [B, L]) -> [N, ...], in row-major order."""
        return values[chosen]

    def attend(
        self, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, dropout_p: float
    ) -> tuple[Tensor, Tensor | None]:
        """Run `kernel` over the rows of the batch.

        Args:
            query, key, value: [B, L, H, D].

        Returns:
            context [B, L, H, D], and the attention weights [B, H, L, L] if the kernel computes them.
        """
        query, key, value = (states.transpose(1, 2) for states in (query, key, value))  # [B, H, L, D]
        allowed = self.allowed
        if allowed is not None and allowed.shape[1] not in (1, query.shape[1]):
            raise ValueError(
                f"attention_mask tells {allowed.shape[1]} heads apart, but with tensor parallelism this process "
                f"computes {query.shape[1]} of them: give one mask for all heads, [B, 1, L, L]."
            )
        if allowed is not None and allowed.dtype != torch.bool:
            # Half the lowest number: a score can be added to it without leaving the type, as -inf or NaN.
            allowed = allowed.to(query.dtype).clamp(min=torch.finfo(query.dtype).min / 2)
        context, weights = kernel(query, key, value, allowed, self.nobody, dropout_p)
        return context.transpose(1, 2), weights  # [B, L, H, D]

    def pool(self, hidden_states: Tensor, how: str) -> Tensor:
        """One vector per row: its first real token ("cls"), or the mean over its real tokens ("mean").

        Args:
            hidden_states: [B, L, E].

        Returns:
            [B, E]; zeros for a row with no real token.
        """
        refuse_packed(self.packed)
        hidden_states = self.scatter(hidden_states)
        if how == "mean":
            summed = hidden_states.sum(dim=1, dtype=torch.float32)  # [B, E]
            return (summed / _tokens_per_row(self.real, hidden_states)).to(hidden_states.dtype)
        if self.real is None:
            return hidden_states[:, 0]
        real = self.real.to(hidden_states.device)
        first = real.to(torch.int8).argmax(dim=1)  # [B]; 0 for a row with no real token, a zero vector
        return hidden_states[torch.arange(first.shape[0], device=first.device), first]

    def rows_with_tokens(self) -> Tensor | None:
        """Which rows hold a token at all, bool [B]; None when all do."""
        return None if self.real is None else self.real.any(dim=1)


@dataclass
class UnpaddedLayout:
    """The real tokens of a batch alone, [T]: its sequences one after the other, those of equal length side by side.

    Attributes:
        real: which places of the rectangle hold a token, bool [B, L].
        packed: some row holds several sequences.
        places: where each token stands in the flattened rectangle, [T].
        runs: (how many sequences, their length), shortest first; together they cover the T tokens.
    """

    real: Tensor
    packed: bool
    places: Tensor
    runs: list[tuple[int, int]]

    @property
    def shape(self) -> tuple[int, int]:
        """(B, L)."""
        return tuple(self.real.shape)

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> "UnpaddedLayout":
        """The same on another device, as `PaddedLayout.to`."""
        return _move(self, device, non_blocking)

    @cached_property
    def ends(self) -> Tensor:
        """Where the sequences start and end among the T tokens, int32 [S + 1]."""
        lengths = chain.from_iterable([length] * count for count, length in self.runs)
        return torch.tensor([0, *lengths], device=self.places.device).cumsum(0, dtype=torch.int32)

    def gather(self, values: Tensor, fill: float = 0) -> Tensor:
        """[B, L, ...] -> [T, ...]; there is no padding to fill."""
        return values.flatten(0, 1)[self.places.to(values.device)]

    def scatter(self, values: Tensor, fill: float = 0) -> Tensor:
        """[T, ...] -> [B, L, ...] with `fill` at the padding."""
        rectangle = values.new_full((self.real.numel(), *values.shape[1:]), fill)  # [B * L, ...]
        return rectangle.index_copy(0, self.places.to(values.device), values).unflatten(0, self.real.shape)

    def select(self, values: Tensor, chosen: Tensor) -> Tensor:
        """Computed values [T, ...] at the chosen places (bool [B, L]) -> [N, ...], in row-major order."""
        return values[self._order().to(values.device)[chosen.flatten()]]

    def attend(
        self, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, dropout_p: float
    ) -> tuple[Tensor, None]:
        """Run `kernel` within each sequence; sequences of equal length form a batch and need no mask.

        Args:
            query, key, value: [T, H, D].

        Returns:
            context [T, H, D], and None: attention weights are computed on the padded rectangle.
        """
        if kernel is sdpa_attention and varlen_fits(query, dropout_p):
            return varlen_attention(query, key, value, self.ends, self.runs[-1][1]), None
        sizes = [count * length for count, length in self.runs]
        contexts = []
        for run, *states in zip(self.runs, query.split(sizes), key.split(sizes), value.split(sizes), strict=True):
            batch = (one.unflatten(0, run).transpose(1, 2) for one in states)  # 3 x [count, H, length, D]
            context, _ = kernel(*batch, None, None, dropout_p)
            contexts.append(context.transpose(1, 2).flatten(0, 1))  # [count * length, H, D]
        return torch.cat(contexts), None

    def pool(self, hidden_states: Tensor, how: str) -> Tensor:
        """One vector per row, as `PaddedLayout.pool`: [T, E] -> [B, E]."""
        refuse_packed(self.packed)
        B, L = self.real.shape
        real = self.real.to(hidden_states.device)
        if how == "mean":
            row = self.places.to(hidden_states.device) // L  # [T]
            summed = hidden_states.new_zeros((B, hidden_states.shape[-1]), dtype=torch.float32)
            summed = summed.index_add(0, row, hidden_states.float())  # [B, E]
            return (summed / _tokens_per_row(real, hidden_states)).to(hidden_states.dtype)
        first = real.to(torch.int8).argmax(dim=1) + L * torch.arange(B, device=real.device)  # [B]
        order = self._order().to(hidden_states.device)
        return hidden_states[order[first]].masked_fill(~real.any(dim=1, keepdim=True), 0)

    def rows_with_tokens(self) -> Tensor:
        """Which rows hold a token at all, bool [B]."""
        return self.real.any(dim=1)

    def _order(self) -> Tensor:
        """For each place of the flattened rectangle its token's index, [B * L]; 0 at padding."""
        order = torch.zeros(self.real.numel(), dtype=torch.long, device=self.places.device)
        order[self.places] = torch.arange(len(self.places), device=self.places.device)
        return order


Layout = PaddedLayout | UnpaddedLayout


def _move(layout: Layout, device: torch.device | str | int, non_blocking: bool) -> Layout:
    values = {field.name: getattr(layout, field.name) for field in fields(layout)}
    elsewhere = {
        name: value.to(device, non_blocking=non_blocking)
        for name, value in values.items()
        if isinstance(value, Tensor) and value.device != torch.device(device)
    }
    return replace(layout, **elsewhere) if elsewhere else layout


def mask_out(values: Tensor, real: Tensor | None, fill: float = 0) -> Tensor:
    """[B, L, ...] -> the same with `fill` at the padding."""
    if real is None:
        return values
    real = real.to(values.device)
    return values.masked_fill(~real.reshape(real.shape + (1,) * (values.dim() - 2)), fill)


def make_layout(
    shape: tuple[int, int],
    real: Tensor | None,
    sequence_ids: Tensor | None,
    allowed: Tensor | None,
    packed: bool,
    unpad: bool,
) -> Layout:
    """Decide how a batch lies when it is computed.

    Args:
        shape: (B, L).
        real: places that hold a token, bool [B, L]; None when all do.
        sequence_ids: which sequence of its row a place belongs to, [B, L]; None: a row is one sequence.
        allowed: who attends to whom, as `read_mask` gives it; None where the mask does not say.
        packed: a row is known to hold several sequences.
        unpad: compute on real tokens only, if nothing else speaks against it.
    """
    if real is None and sequence_ids is None and allowed is None:
        return PaddedLayout(shape, real=None)
    known = (real if sequence_ids is None else sequence_ids) if allowed is None else None
    if unpad and known is not None and values_are_known(known) and (real is None or bool(real.any())):
        return _unpad(torch.ones_like(sequence_ids, dtype=torch.bool) if real is None else real, sequence_ids, packed)
    if sequence_ids is not None:
        same = sequence_ids[:, None, :, None] == sequence_ids[:, None, None, :]  # [B, 1, L, L]
        allowed = same if allowed is None else _restrict(allowed, same)
    if real is not None:
        allowed = real[:, None, None, :] if allowed is None else allowed & real[:, None, None, :]
    blocked = ~allowed if allowed.dtype == torch.bool else allowed <= FORBIDDEN
    nobody = blocked.all(dim=-1, keepdim=True)  # [B, 1|H, 1|L, 1]
    allowed = allowed | nobody if allowed.dtype == torch.bool else allowed.masked_fill(nobody, 0)
    return PaddedLayout(shape, real, packed, allowed, nobody)


def read_mask(
    attention_mask: Tensor | None, batch_size: int, length: int, num_heads: int
) -> tuple[Tensor | None, Tensor | None]:
    """What an `attention_mask` of any accepted kind says.

    Args:
        attention_mask: None; [B, L] of 1 (token) and 0 (padding); or [B, L, L] or [B, 1|H, L, L] that say who attends
            to whom, boolean (or integer 0/1), or float to be added to the scores. In the last two every place is real.

    Returns:
        real: places that hold a token, bool [B, L]; None when all do.
        allowed: who attends to whom, bool or float [B, 1|H, L, L]; None when the mask does not say.

    Raises:
        ValueError: another shape, or values that could be read in two ways.
    """
    if attention_mask is None:
        return None, None
    _check_mask_shape(attention_mask, batch_size, length, num_heads)
    if attention_mask.dim() == 2:
        _check_zero_one(attention_mask)
        real = attention_mask.to(torch.bool)
        return (None if values_are_known(real) and bool(real.all()) else real), None
    allowed = attention_mask[:, None] if attention_mask.dim() == 3 else attention_mask  # [B, 1|H, L, L]
    if allowed.is_floating_point():
        _check_additive(allowed)
        return None, allowed
    _check_zero_one(allowed)
    return None, allowed.to(torch.bool)


def read_sequences(
    position_ids: Tensor | None, real: Tensor | None, packing: dict[str, Tensor | int | None], shape: tuple[int, int]
) -> tuple[Tensor | None, bool]:
    """Tell apart the sequences that a row may hold ("packed", as `DataCollatorWithFlattening` makes it).

    Args:
        position_ids: [B, L] or [1, L], as the user gave them.
        real: places that hold a token, bool [B, L]; None when all do.
        packing: what the collator may add: `cu_seq_lens_q` and `cu_seq_lens_k`, the boundaries [S + 1] of the
            sequences in a single row, or `seq_idx` [B, L]. Boundaries decide; then `seq_idx`; then positions.
        shape: (B, L).

    Returns:
        sequence ids [B, L], or None when each row is one sequence; and whether a row is known to hold several.

    Raises:
        ValueError: boundaries that do not fit the batch.
    """
    boundaries, seq_idx = packing.get("cu_seq_lens_q"), packing.get("seq_idx")
    if boundaries is not None or packing.get("cu_seq_lens_k") is not None:
        ids = _count_changes(_ids_from_boundaries(boundaries, packing.get("cu_seq_lens_k"), shape), real)
    elif seq_idx is not None:
        check_shape("seq_idx", seq_idx, [shape])
        ids = _count_changes(seq_idx, real)
    elif position_ids is not None:
        check_shape("position_ids", position_ids, [shape, (1, shape[1])])
        ids = ids_from_positions(position_ids.expand(shape), real)
    else:
        return None, False
    if not values_are_known(ids):  # in a captured graph the shape has to do: more than two boundaries
        return ids, boundaries is not None and boundaries.numel() > 2
    first = ids[:, :1] if real is None else ids.gather(1, real.to(torch.int8).argmax(dim=1, keepdim=True))
    differs = ids != first if real is None else (ids != first) & real
    return (ids, True) if bool(differs.any()) else (None, False)


def ids_from_positions(position_ids: Tensor, real: Tensor | None) -> Tensor:
    """Which sequence of its row each token belongs to, by its position.

    A row is packed when, over its real tokens, every step is +1 or a return to the row's first value, with at least
    one return: each return starts a sequence. Any other row (permuted, gapped, reversed) is one sequence with
    positions of its own.

    Args:
        position_ids: [B, L].
        real: bool [B, L] or None.

    Returns:
        sequence ids [B, L], all 0 in a row that is not packed.
    """
    if real is None:
        real = torch.ones_like(position_ids, dtype=torch.bool)
    before = _token_before(real)  # [B, L]
    first = position_ids.gather(1, real.to(torch.int8).argmax(dim=1, keepdim=True))  # [B, 1]
    follows = real & (before >= 0)
    step_back = follows & (position_ids == first)
    step_on = position_ids == position_ids.gather(1, before.clamp(min=0)) + 1
    unexplained = (follows & ~step_back & ~step_on).any(dim=1, keepdim=True)  # [B, 1]
    return step_back.cumsum(dim=1).masked_fill(unexplained, 0)


def _count_changes(ids: Tensor, real: Tensor | None) -> Tensor:
    """Number the sequences of each row [B, L]: one starts at every token whose id is not that of the token before.

    A number that comes back later in the row is another sequence, and padding belongs to no sequence of its own.
    """
    if real is None:
        real = torch.ones_like(ids, dtype=torch.bool)
    before = _token_before(real)  # [B, L]
    return (real & (before >= 0) & (ids != ids.gather(1, before.clamp(min=0)))).cumsum(dim=1)


def _token_before(real: Tensor) -> Tensor:
    """For each place [B, L] that of the real token before it; -1 for none."""
    place = torch.arange(real.shape[1], device=real.device).expand_as(real)
    last_token = place.masked_fill(~real, -1).cummax(dim=1).values  # [B, L], the last real place up to here
    return F.pad(last_token[:, :-1], (1, 0), value=-1)


def read_positions(
    position_ids: Tensor | None,
    real: Tensor | None,
    sequence_ids: Tensor | None,
    shape: tuple[int, int],
    device: torch.device,
    limit: int | None,
) -> Tensor:
    """The position [B, L] of every token; padding has none and gets 0.

    Args:
        position_ids: [B, L] or [1, L]; None: the real tokens of a sequence count from 0.
        real: places that hold a token, bool [B, L]; None when all do.
        sequence_ids: as `read_sequences` gives them.
        shape: (B, L).
        limit: size of the table of learned positions; None where there is no limit.

    Raises:
        ValueError: positions that the table does not have.
    """
    if position_ids is None:
        return _counted_positions(real, sequence_ids, shape, device, limit)
    check_shape("position_ids", position_ids, [shape, (1, shape[1])])
    position_ids = mask_out(position_ids.expand(shape), real)
    return read_ids("position_ids", position_ids, "max_position_embeddings", limit)


def _counted_positions(
    real: Tensor | None, sequence_ids: Tensor | None, shape: tuple[int, int], device: torch.device, limit: int | None
) -> Tensor:
    length = shape[1]
    if real is None:
        positions = torch.arange(length, device=device).expand(shape)
    else:
        positions = (real.cumsum(dim=1) - 1).clamp(min=0)
    if sequence_ids is not None:  # count from where the sequence starts
        starts = F.pad(sequence_ids[:, 1:] != sequence_ids[:, :-1], (1, 0), value=True)
        positions = positions - positions.masked_fill(~starts, 0).cummax(dim=1).values
    if real is not None:
        positions = positions.masked_fill(~real, 0)
    # Values are read only where the padded length leaves a doubt; in a captured graph the shape has to do.
    if limit is not None and length > limit:
        longest = int(positions.max()) + 1 if values_are_known(positions) else length
        if longest > limit:
            raise ValueError(
                f"The text is {longest} tokens long, but max_position_embeddings={limit} is the limit of this model's "
                f"learned positions. Truncate it (tokenizer(..., truncation=True, max_length={limit})) or use a model "
                "that reaches further (resize_position_embeddings, or position_embedding_type='sinusoidal')."
            )
    return positions


def read_token_types(
    token_type_ids: Tensor | None, real: Tensor | None, shape: tuple[int, int], device: torch.device, size: int
) -> Tensor:
    """Segment ids [B, L], all 0 where none are given; a model without segments (size 0) does not read them."""
    if token_type_ids is None or size == 0:
        return torch.zeros(shape, dtype=torch.long, device=device)
    check_shape("token_type_ids", token_type_ids, [shape, (1, shape[1])])
    token_type_ids = mask_out(token_type_ids.expand(shape), real)
    return read_ids("token_type_ids", token_type_ids, "type_vocab_size", size)


def refuse_packed(packed: bool) -> None:
    """Raise a ValueError for a head that gives one answer per row."""
    if packed:
        raise ValueError(
            "A row holds several sequences (position_ids start again, or cu_seq_lens_* or seq_idx say so), but this "
            "head gives one answer per row. Give each sequence a row of its own: pad with DataCollatorWithPadding "
            "instead of packing."
        )


def _unpad(real: Tensor, sequence_ids: Tensor | None, packed: bool) -> UnpaddedLayout:
    places = real.flatten().nonzero()[:, 0]  # [T], row-major
    sequence = places // real.shape[1]  # [T], a number that changes where a sequence ends: its row...
    changes = sequence[1:] != sequence[:-1]
    if sequence_ids is not None:  # ... or its number in the row
        numbers = sequence_ids.flatten()[places]
        changes = changes | (numbers[1:] != numbers[:-1])
    starts = F.pad(changes.nonzero()[:, 0] + 1, (1, 0))  # [S], where each sequence starts among the T tokens
    lengths = torch.diff(starts, append=starts.new_tensor([len(places)]))  # [S]
    lengths, order = lengths.sort(stable=True)
    ends = lengths.cumsum(0)
    shift = starts[order] - (ends - lengths)  # [S], how far each sequence moves when they are sorted
    token = torch.arange(len(places), device=places.device) + shift.repeat_interleave(lengths)  # [T]
    length_of_run, count_of_run = lengths.unique_consecutive(return_counts=True)
    return UnpaddedLayout(
        real, packed, places[token], list(zip(count_of_run.tolist(), length_of_run.tolist(), strict=True))
    )


def _ids_from_boundaries(query: Tensor | None, key: Tensor | None, shape: tuple[int, int]) -> Tensor:
    if query is None or key is None:
        raise ValueError("Give both cu_seq_lens_q and cu_seq_lens_k, or neither.")
    ends = query.flatten()
    if shape[0] != 1:
        raise ValueError(
            f"cu_seq_lens_* mark the sequences in a single row, but this batch has {shape[0]} rows. Put all sequences "
            "into one row, or mark them with position_ids that start again at 0."
        )
    if values_are_known(ends):
        fits = len(ends) > 1 and ends[0] == 0 and ends[-1] == shape[1] and bool((ends.diff() >= 0).all())
        if not fits or not torch.equal(ends, key.flatten()):
            raise ValueError(
                f"cu_seq_lens_q={ends.tolist()} and cu_seq_lens_k={key.flatten().tolist()} do not divide a row of "
                f"{shape[1]} tokens: both must be the same, rise from 0 and end at {shape[1]}."
            )
    place = torch.arange(shape[1], device=ends.device, dtype=ends.dtype)
    return torch.searchsorted(ends[1:].contiguous(), place, right=True)[None]  # [1, L]


def _restrict(allowed: Tensor, same: Tensor) -> Tensor:
    """Only within a sequence, whatever the mask says: sequences never see each other."""
    return allowed & same if allowed.dtype == torch.bool else allowed.masked_fill(~same, float("-inf"))


def _tokens_per_row(real: Tensor | None, hidden_states: Tensor) -> Tensor | int:
    """Real tokens per row, [B, 1], at least 1."""
    if real is None:
        return hidden_states.shape[1]
    return real.sum(dim=1, keepdim=True).clamp(min=1).to(hidden_states.device)


def _check_mask_shape(mask: Tensor, batch_size: int, length: int, num_heads: int) -> None:
    B, L, H = batch_size, length, num_heads
    allowed_shapes = [(B, L), (B, L, L), (B, 1, L, L), (B, H, L, L)]
    if tuple(mask.shape) not in allowed_shapes:
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)}, but this batch of {B} rows of {L} tokens takes "
            f"{(B, L)} (1 for a token, 0 for padding), {(B, L, L)}, {(B, 1, L, L)} or {(B, H, L, L)} "
            "(who attends to whom)."
        )


def _check_zero_one(mask: Tensor) -> None:
    if mask.dtype == torch.bool or not values_are_known(mask):
        return
    odd = mask[(mask != 0) & (mask != 1)]
    if odd.numel():
        raise ValueError(
            f"attention_mask of shape {tuple(mask.shape)} holds {odd[0].item()}, but takes 1 for a token and 0 for "
            "padding. Scores to add go into a float mask with 3 or 4 dimensions; several sequences in one row are told "
            "apart by position_ids."
        )


def _check_additive(mask: Tensor) -> None:
    if values_are_known(mask) and bool((mask == 1).any()) and bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError(
            f"attention_mask is {mask.dtype} of shape {tuple(mask.shape)} and holds only 0 and 1: it could mean "
            "'0 forbids' or 'add 0 or 1 to the score'. Pass mask.bool() for the first, or use 0 and "
            "torch.finfo(mask.dtype).min for an additive mask."
        )
