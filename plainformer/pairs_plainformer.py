"""How targets lie beside their sources while a decoder computes them: layouts, as those of the encoder.

    targets   self-attention: each target to those before it, in its own sequence
    sources   cross-attention: each target to the real tokens of its own source

In training, and wherever nothing is cached, the decoder computes real targets only. The pairs are sorted by the length
of the target, then of the source. So neighbours agree in both, and need no mask but the causal one.

Shapes: B batch, L targets of this call, K targets in all, S length of the sources, N real targets, M real source
tokens, H heads, D head size, E hidden size.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch
from torch import Tensor, nn

from .kernels_plainformer import Kernel
from .layouts_plainformer import Layout, PaddedLayout, UnpaddedLayout, add_bias, index_tokens, open_queries
from .packing_plainformer import count_positions
from .targets_plainformer import Targets


@dataclass
class Source:
    """What the encoder computed for a batch.

    Attributes:
        states: hidden states in the encoder's layout, [*, E].
        layout: that layout.
        token_mask: which places hold a token, bool [B, S]; None when all do.
        lengths: how many tokens each row has, [B]; None where values cannot be read.
        shape: (B, S).
    """

    states: Tensor
    layout: Layout
    shape: tuple[int, int]
    token_mask: Tensor | None
    lengths: list[int] | None


@dataclass
class PairLayout:
    """How the targets lie, and how they see their sources.

    Attributes:
        targets: the layout of the targets, whose `attend` is causal.
        sources: its `attend` goes from the targets to the tokens of the source.
        source_indices: the real source tokens in the order of the pairs, [M], as indices of the flattened rectangle;
            None where sources stay a rectangle.
    """

    targets: Layout
    sources: "SourceGroups | PaddedLayout"
    source_indices: Tensor | None = None

    def to(self, device: torch.device | str | int) -> "PairLayout":
        """The same on another device, as `PaddedLayout.to`."""
        return replace(self, targets=self.targets.to(device), sources=self.sources.to(device))


@dataclass
class CausalRectangle(PaddedLayout):
    """Targets [B, L], which may follow others that are in a cache.

    Attributes:
        cache_position: where these targets stand among all of their row, [L].
        num_before: how many are in the cache; None where only the device knows.
        key_mask: which of all targets hold a token, bool [B, K'], K' <= K; None when all do.
        masks: by K, what was made of it for the first layer, and the distances [1|B, L, K].
    """

    is_causal = True

    cache_position: Tensor | None = None
    num_before: int | None = None
    key_mask: Tensor | None = None
    masks: dict[int, tuple[Tensor | None, Tensor | None, Tensor | None]] = field(default_factory=dict)

    def attend(
        self, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, dropout_p: float, bias: nn.Module | None
    ) -> tuple[Tensor, Tensor | None]:
        """As `PaddedLayout.attend`; keys and values are [B, K, H, D], and the weights [B, H, L, K]."""
        K = key.shape[1]  # a static cache is as wide as it can become
        if K not in self.masks:
            distances = None if bias is None else self.measure(*self.count_pairs(K))
            self.masks[K] = (*self.mask_later_keys(K), distances)
        self.attention_mask, self.fully_masked, self.distances = self.masks[K]
        return super().attend(kernel, query, key, value, dropout_p, bias)

    def measure_distances(self) -> None:
        """They wait for the first layer, since only its cache knows K."""

    def count_pairs(self, K: int) -> tuple[Tensor, Tensor]:
        """The position ids of the queries, [1|B, L], and of all keys, [1|B, K]; of places yet to be filled too."""
        position_ids = self.position_ids[:1] if self.is_uniform else self.position_ids
        if K == self.shape[1]:  # nothing was before
            return position_ids, position_ids
        device = self.cache_position.device
        if self.key_mask is None:
            return position_ids, torch.arange(K, device=device)[None]
        key_mask = nn.functional.pad(self.key_mask, (0, K - self.key_mask.shape[1]), value=True)  # [B, K]
        return position_ids, count_positions(key_mask, None, tuple(key_mask.shape), device)

    def mask_later_keys(self, K: int) -> tuple[Tensor | None, Tensor | None]:
        """Who may attend to whom, bool [1|B, 1, L, K], and the fully masked queries [B, 1, L, 1]; None: all to all."""
        if self.key_mask is None and self.shape[1] == 1 and self.num_before == K - 1:
            return None, None  # one new token sees all that were before
        keys = torch.arange(K, device=self.cache_position.device)
        attention_mask = (keys <= self.cache_position[:, None])[None, None]  # [1, 1, L, K]
        if self.key_mask is None:
            return attention_mask, None
        key_mask = nn.functional.pad(self.key_mask, (0, K - self.key_mask.shape[1]))  # [B, K]
        return open_queries(attention_mask & key_mask[:, None, None, :])


@dataclass
class CausalBuckets(UnpaddedLayout):
    """The real targets alone, [N], sorted by length; a token sees itself and those before it in its own sequence."""

    is_causal = True

    def make_masks(self, bias: nn.Module | None, query: Tensor) -> Iterator[Tensor]:
        """Slices of one triangle, and the bias added to them."""
        max_length = self.length_buckets[-1][1]
        triangle = torch.ones(max_length, max_length, dtype=torch.bool, device=query.device).tril()
        for (_, length), scores_bias in zip(self.length_buckets, super().make_masks(bias, query), strict=True):
            attention_mask = triangle[:length, :length]
            yield attention_mask if scores_bias is None else add_bias(attention_mask, scores_bias)


@dataclass
class SourceGroups:
    """From real targets [N] to real source tokens [M], pair after pair.

    Attributes:
        position_ids: of the source tokens, [M].
        groups: (how many pairs, the length of their targets, that of their sources); together they cover all.
    """

    position_ids: Tensor
    groups: list[tuple[int, int, int]]

    def to(self, device: torch.device | str | int) -> "SourceGroups":
        """The same on another device."""
        return replace(self, position_ids=self.position_ids.to(device))

    def attend(
        self, kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, dropout_p: float, bias: nn.Module | None
    ) -> tuple[Tensor, None]:
        """Query [N, H, D], key and value [M, H, D] -> context [N, H, D]; zero where a source has no token."""
        queries = query.split([count * target for count, target, _ in self.groups])
        keys, values = (one.split([count * source for count, _, source in self.groups]) for one in (key, value))
        contexts = []
        for (count, target, source), *states in zip(self.groups, queries, keys, values, strict=True):
            if not source:
                contexts.append(torch.zeros_like(states[0]))
                continue
            lengths = (target, source, source)
            batch = [one.unflatten(0, (count, n)).transpose(1, 2) for one, n in zip(states, lengths, strict=True)]
            context, _ = kernel(*batch, None, None, dropout_p)  # [count, H, target, D]
            contexts.append(context.transpose(1, 2).flatten(0, 1))  # [count * target, H, D]
        return torch.cat(contexts), None


def make_pair_layout(targets: Targets, source: Source, unpad: bool) -> PairLayout:
    """Decide how targets and sources lie.

    Args:
        unpad: compute on real targets only, if their lengths and those of the sources are known.
    """
    if unpad and targets.lengths is not None and source.lengths is not None and any(targets.lengths):
        return _unpad_pairs(targets, source)
    B, S = source.shape
    position_ids = torch.arange(S, device=targets.position_ids.device).expand(B, S)
    sources = PaddedLayout((B, S), position_ids)
    if source.token_mask is not None:
        sources.attention_mask, sources.fully_masked = open_queries(source.token_mask[:, None, None, :])
    rectangle = CausalRectangle(
        targets.shape,
        targets.position_ids,
        targets.token_mask,
        cache_position=targets.cache_position,
        num_before=targets.num_before,
        key_mask=targets.key_mask,
        is_uniform=targets.is_counted and targets.key_mask is None,
    )
    return PairLayout(rectangle, sources)


def _unpad_pairs(targets: Targets, source: Source) -> PairLayout:
    """Pairs sorted by the length of the target, then of the source; rows without a target are left out."""
    pairs = sorted(
        (target, length, row)
        for row, (target, length) in enumerate(zip(targets.lengths, source.lengths, strict=True))
        if target
    )
    order = [row for _, _, row in pairs]
    groups = [(len(list(same)), *lengths) for lengths, same in groupby(pair[:2] for pair in pairs)]
    buckets = [(len(list(same)), length) for length, same in groupby(target for target, _, _ in pairs)]
    target_mask = full_mask(targets.shape, targets.token_mask, targets.position_ids.device)
    indices, slots = index_tokens(target_mask, None, targets.lengths, order)
    position_ids = targets.position_ids.flatten()[indices]
    layout = CausalBuckets(target_mask, False, position_ids, indices, slots, buckets, targets.is_counted)
    source_mask = full_mask(source.shape, source.token_mask, targets.position_ids.device)
    source_indices, _ = index_tokens(source_mask, None, source.lengths, order)
    return PairLayout(layout, SourceGroups(source_indices, groups), source_indices)


def full_mask(shape: tuple[int, int], token_mask: Tensor | None, device: torch.device) -> Tensor:
    """The mask of tokens, bool [B, L], where None says that all places hold one."""
    return torch.ones(shape, dtype=torch.bool, device=device) if token_mask is None else token_mask.to(device)
