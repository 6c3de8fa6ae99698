"""Which places of a batch hold a token, where each token stands, and who attends to whom.

Masked tokens do not exist: what a model computes for a real token must not depend on how much padding there is, on
which side, or what it holds. Everything that follows from `attention_mask` and `position_ids` is decided here, once
per batch; the encoder and the heads ask the resulting `Layout` and never look at a mask.

Shapes: B batch, L length, H heads, D head size, E hidden size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .inputs_plainformer import check_ids, check_shape, values_are_known

# (query, key, value, mask, nobody, dropout_p) -> (context, weights or None); attention_plainformer.py has them
Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, float], tuple[Tensor, Tensor | None]]

# Added to a score, this or less forbids: no score makes up for it. Masks in use hold -1e9, the lowest number or -inf.
FORBIDDEN = torch.finfo(torch.float16).min


@dataclass
class Layout:
    """A batch as the padded rectangle [B, L].

    Attributes:
        real: which places hold a token, bool [B, L]; None when all of them do.
        allowed: who may attend to whom: bool, or a bias that is added to the attention scores, [B, 1|H, 1|L, L];
            None when everybody may attend to everybody. A query in `nobody` may attend to all, so that no softmax
            runs over nothing.
        nobody: the queries that may attend to no place, bool [B, 1|H, 1|L, 1]; None when there are none by design.
    """

    real: Tensor | None
    allowed: Tensor | None = None
    nobody: Tensor | None = None

    def gather(self, values: Tensor, fill: float = 0) -> Tensor:
        """[B, L, ...] -> [B, L, ...] with `fill` at the padding, so that nothing it holds can be read."""
        return values if self.real is None else values.masked_fill(~_like(self.real, values), fill)

    def scatter(self, values: Tensor, fill: float = 0) -> Tensor:
        """Computed values -> [B, L, ...] with `fill` at the padding."""
        return self.gather(values, fill)

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
        if how == "cls":
            if self.real is None:
                return hidden_states[:, 0]
            first = self.real.to(torch.int8).argmax(dim=1)  # [B]; 0 for a row with no real token, a zero vector
            rows = torch.arange(len(first), device=first.device)
            return self.scatter(hidden_states)[rows, first]
        if self.real is None:
            return hidden_states.mean(dim=1)
        count = self.real.sum(dim=1, keepdim=True).clamp(min=1)  # [B, 1]
        return self.scatter(hidden_states).sum(dim=1) / count

    def rows_with_tokens(self) -> Tensor | None:
        """Which rows hold a token at all, bool [B]; None when all do."""
        return None if self.real is None else self.real.any(dim=1)


def read_masks(attention_mask: Tensor | None, batch_size: int, length: int, num_heads: int) -> Layout:
    """Turn an `attention_mask` of any accepted kind into a `Layout`.

    Args:
        attention_mask: None; [B, L] of 1 (token) and 0 (padding); or [B, L, L] or [B, 1|H, L, L] that say who attends
            to whom, boolean (or integer 0/1), or float to be added to the scores. In the last two every place is real.

    Raises:
        ValueError: another shape, or values that could be read in two ways.
    """
    if attention_mask is None:
        return Layout(real=None)
    _check_mask_shape(attention_mask, batch_size, length, num_heads)
    if attention_mask.dim() == 2:
        _check_zero_one(attention_mask)
        real = attention_mask.to(torch.bool)
        if values_are_known(real) and bool(real.all()):
            return Layout(real=None)
        allowed = real[:, None, None, :]  # [B, 1, 1, L]
        nobody = ~allowed.any(dim=-1, keepdim=True)  # [B, 1, 1, 1]
        return Layout(real, allowed | nobody, nobody)
    allowed = attention_mask[:, None] if attention_mask.dim() == 3 else attention_mask  # [B, 1|H, L, L]
    if not allowed.is_floating_point():
        _check_zero_one(allowed)
        allowed = allowed.to(torch.bool)
        nobody = ~allowed.any(dim=-1, keepdim=True)  # [B, 1|H, L, 1]
        return Layout(None, allowed | nobody, nobody)
    _check_additive(allowed)
    nobody = (allowed <= FORBIDDEN).all(dim=-1, keepdim=True)  # [B, 1|H, L, 1]
    return Layout(None, allowed.masked_fill(nobody, 0), nobody)


def read_positions(
    position_ids: Tensor | None, layout: Layout, batch_size: int, length: int, device: torch.device, limit: int | None
) -> Tensor:
    """The position [B, L] of every token; padding has none and gets 0.

    Args:
        position_ids: [B, L] or [1, L]; None: the real tokens of a row count from 0.
        limit: size of the table of learned positions; None where there is no limit.

    Raises:
        ValueError: packed rows, or positions that the table does not have.
    """
    if position_ids is None:
        return _counted_positions(layout, batch_size, length, device, limit)
    check_shape("position_ids", position_ids, [(batch_size, length), (1, length)])
    position_ids = layout.gather(position_ids.expand(batch_size, length))
    if values_are_known(position_ids) and is_packed(position_ids, layout.real):
        raise ValueError(
            "position_ids start again within a row, so the row holds several sequences; this version does not compute "
            "packed rows. Give each sequence a row of its own and pad with attention_mask."
        )
    check_ids("position_ids", position_ids, "max_position_embeddings", limit)
    return position_ids


def _counted_positions(layout: Layout, batch_size: int, length: int, device: torch.device, limit: int | None) -> Tensor:
    if layout.real is None:
        positions = torch.arange(length, device=device).expand(batch_size, length)
    else:
        positions = (layout.real.cumsum(dim=1) - 1).clamp(min=0).masked_fill(~layout.real, 0)
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
    token_type_ids: Tensor | None, layout: Layout, batch_size: int, length: int, device: torch.device, size: int
) -> Tensor:
    """Segment ids [B, L], all 0 where none are given; a model without segments (size 0) does not read them."""
    if token_type_ids is None or size == 0:
        return torch.zeros((batch_size, length), dtype=torch.long, device=device)
    check_shape("token_type_ids", token_type_ids, [(batch_size, length), (1, length)])
    token_type_ids = layout.gather(token_type_ids.expand(batch_size, length))
    check_ids("token_type_ids", token_type_ids, "type_vocab_size", size)
    return token_type_ids


def is_packed(position_ids: Tensor, real: Tensor | None) -> bool:
    """Whether a row of explicit positions holds several sequences one after the other.

    It does when, over the row's real tokens, every step is +1 or a return to the row's first value, with at least one
    return. Every other pattern (permuted, gapped, reversed) is one sequence with positions of its own.

    Args:
        position_ids: [B, L].
        real: bool [B, L] or None.
    """
    if real is None:
        real = torch.ones_like(position_ids, dtype=torch.bool)
    row = real.nonzero()[:, 0]  # [T], the row of each real token
    position = position_ids[real]  # [T]
    is_first = torch.ones_like(row, dtype=torch.bool)
    is_first[1:] = row[1:] != row[:-1]
    first = position[is_first].repeat_interleave(real.sum(dim=1)[real.any(dim=1)])  # [T], its row's first position
    step_back = (position == first) & ~is_first
    step_on = torch.zeros_like(is_first)
    step_on[1:] = position[1:] == position[:-1] + 1
    explained = torch.ones(len(real), dtype=torch.bool, device=real.device)
    explained[row[~(is_first | step_back | step_on)]] = False
    return bool(explained[row[step_back]].any())


def _like(real: Tensor, values: Tensor) -> Tensor:
    """[B, L] -> [B, L, 1, ...] with as many dimensions as `values`."""
    return real.reshape(real.shape + (1,) * (values.dim() - real.dim()))


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
