"""Several sequences in one row ("packed", as `DataCollatorWithFlattening` makes it).

Packed sequences are computed exactly as if each had a row of its own. Here they are told apart: boundaries
(`cu_seq_lens_*`) decide where they are given, then `seq_idx`, then positions that start again.

Shapes: B batch, L length, S sequences of a row.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .values_plainformer import Questions, check_integers, check_shape, refuse_other_than_tensors


def find_sequences(
    position_ids: Tensor | None,
    token_mask: Tensor | None,
    packing: dict[str, Tensor | None],
    shape: tuple[int, int],
    questions: Questions,
) -> Tensor | None:
    """Number the sequences of a batch, row after row.

    Args:
        position_ids: [B, L] or [1, L], as the user gave them.
        token_mask: which places hold a token, bool [B, L]; None when all do.
        packing: what the collator may add: `cu_seq_lens_q` and `cu_seq_lens_k`, the boundaries [S + 1] of the
            sequences in a single row, or `seq_idx` [B, L] or [1, L].
        shape: (B, L).

    Returns:
        The number of each place's sequence in the batch, [B, L]; None when nothing says that a row may hold several.

    Raises:
        TypeError: something is no tensor.
        ValueError: boundaries that do not fit the batch, or numbers that are no integers.
    """
    refuse_other_than_tensors(**packing)
    boundaries, key_boundaries, seq_idx = (packing[name] for name in ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"))
    if seq_idx is not None:
        check_integers("seq_idx", seq_idx)
        check_shape("seq_idx", seq_idx, [shape, (1, shape[1])])
    if boundaries is not None or key_boundaries is not None:
        in_row = number_changes(_ids_from_boundaries(boundaries, key_boundaries, shape, questions), token_mask)
    elif seq_idx is not None and shape[0]:
        in_row = number_changes(seq_idx.expand(shape), token_mask)
    elif position_ids is not None and shape[0]:
        check_shape("position_ids", position_ids, [shape, (1, shape[1])])
        in_row = number_returns(position_ids.expand(shape), token_mask)
    else:
        return None
    sequences_per_row = in_row.amax(dim=1, keepdim=True) + 1  # [B, 1]
    return in_row + sequences_per_row.cumsum(dim=0) - sequences_per_row


def number_returns(position_ids: Tensor, token_mask: Tensor | None) -> Tensor:
    """The number of each token's sequence in its row, by its position.

    A row is packed when, over its real tokens, every step is +1 or a return to the row's first value, with at least
    one of each: each return starts a sequence. Any other row (permuted, gapped, reversed, all equal) is one sequence
    with positions of its own. So a row of one-token texts alone looks like one sequence, and needs boundaries.

        positions [0, 1, 2, 0, 1]  ->  [0, 0, 0, 1, 1]: two sequences
        positions [0, 2, 1, 3, 4]  ->  [0, 0, 0, 0, 0]: one, permuted
        positions [0, 0, 0, 0, 0]  ->  [0, 0, 0, 0, 0]: one, whose tokens share a position

    Args:
        position_ids: [B, L].
        token_mask: bool [B, L] or None.

    Returns:
        numbers from 0 [B, L], all 0 in a row that is not packed.
    """
    if token_mask is None:
        token_mask = torch.ones_like(position_ids, dtype=torch.bool)
    before = _token_before(token_mask)  # [B, L]
    first = position_ids.gather(1, token_mask.to(torch.int8).argmax(dim=1, keepdim=True))  # [B, 1]
    follows = token_mask & (before >= 0)
    returns = follows & (position_ids == first)
    goes_on = follows & (position_ids == position_ids.gather(1, before.clamp(min=0)) + 1)
    has_other_steps = (follows & ~returns & ~goes_on).any(dim=1, keepdim=True)  # [B, 1]
    never_goes_on = ~goes_on.any(dim=1, keepdim=True)  # a token alone, or positions that are all equal
    return returns.long().cumsum(dim=1).masked_fill(has_other_steps | never_goes_on, 0)


def number_changes(ids: Tensor, token_mask: Tensor | None) -> Tensor:
    """Number the sequences of each row [B, L]: one starts at every token whose id is not that of the token before.

    A number that comes back later in the row is another sequence, and padding belongs to no sequence of its own.
    """
    if token_mask is None:
        token_mask = torch.ones_like(ids, dtype=torch.bool)
    before = _token_before(token_mask)  # [B, L]
    changes = ids != ids.gather(1, before.clamp(min=0))
    return (token_mask & (before >= 0) & changes).long().cumsum(dim=1)


def count_positions(
    token_mask: Tensor | None, sequence_ids: Tensor | None, shape: tuple[int, int], device: torch.device
) -> Tensor:
    """The real tokens of each sequence counted from 0, [B, L]; 0 at padding.

    Args:
        sequence_ids: as `find_sequences` gives them; None: a row is one sequence.
    """
    if token_mask is None:
        positions = torch.arange(shape[1], device=device).expand(shape)
    else:
        positions = (token_mask.long().cumsum(dim=1) - 1).clamp(min=0)
    if sequence_ids is not None:  # less the position of the place where the sequence starts
        starts = F.pad(sequence_ids[:, 1:] != sequence_ids[:, :-1], (1, 0), value=True)
        positions = positions - positions.masked_fill(~starts, 0).cummax(dim=1).values
    return positions if token_mask is None else positions.masked_fill(~token_mask, 0)


def count_tokens(token_mask: Tensor | None, sequence_ids: Tensor) -> Tensor:
    """How many tokens each sequence of the batch has, [B * L]: there cannot be more sequences than places."""
    ones = torch.ones_like(sequence_ids) if token_mask is None else token_mask.to(sequence_ids.dtype)
    return torch.zeros_like(ones).flatten().scatter_add_(0, sequence_ids.flatten(), ones.flatten())


def refuse_packed(is_packed: bool) -> None:
    """Raise a ValueError for a model that gives one answer per row."""
    if is_packed:
        raise ValueError(
            "A row holds several sequences (position_ids start again, or cu_seq_lens_* or seq_idx say so), but this "
            "model gives one answer per row. Give each sequence a row of its own: pad with DataCollatorWithPadding "
            "instead of packing."
        )


def _token_before(token_mask: Tensor) -> Tensor:
    """For each place [B, L] that of the token before it; -1 for none."""
    place = torch.arange(token_mask.shape[1], device=token_mask.device).expand_as(token_mask)
    last_token = place.masked_fill(~token_mask, -1).cummax(dim=1).values  # [B, L], the last token up to here
    return F.pad(last_token[:, :-1], (1, 0), value=-1)


def _ids_from_boundaries(
    query: Tensor | None, key: Tensor | None, shape: tuple[int, int], questions: Questions
) -> Tensor:
    """The number of the sequence [1, L] of each place, from the boundaries [S + 1] of the sequences."""
    if query is None or key is None:
        raise ValueError("Give both cu_seq_lens_q and cu_seq_lens_k, or neither.")
    if shape[0] != 1:
        raise ValueError(
            f"cu_seq_lens_* mark the sequences in a single row, but this batch has {shape[0]} rows. Put all sequences "
            "into one row, or mark them with position_ids that start again at 0."
        )
    check_integers("cu_seq_lens_q", query, "boundaries")
    check_integers("cu_seq_lens_k", key, "boundaries")
    query, key = query.flatten().long(), key.flatten().long()

    def check(values: list[int]) -> None:
        ours, theirs = values[: len(query)], values[len(query) :]
        fits = len(ours) > 1 and ours[0] == 0 and ours[-1] == shape[1] and ours == sorted(ours)
        if not fits or ours != theirs:
            raise ValueError(
                f"cu_seq_lens_q={ours} and cu_seq_lens_k={theirs} do not divide a row of "
                f"{shape[1]} tokens: both must be the same, rise from 0 and end at {shape[1]}."
            )

    questions.ask(lambda: torch.cat((query, key)), check)
    place = torch.arange(shape[1], device=query.device, dtype=query.dtype)
    return torch.searchsorted(query[1:].contiguous(), place, right=True)[None]  # [1, L]
