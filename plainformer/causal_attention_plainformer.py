"""The two attentions of a decoder layer: over the targets up to now, and over the source.

Both may keep their keys and values in a cache, so that generation computes each token once.

Shapes: B batch, L targets of this call, K targets in all, S source, H heads, D head size, E hidden size; [*] is the
leading dimensions of a layout, real tokens or a rectangle.
"""

from typing import Any

import torch
from torch import Tensor

from .attention_plainformer import PlainformerAttention
from .configuration_plainformer import PlainformerConfig
from .pairs_plainformer import PairLayout
from .positions_plainformer import PositionKind


class PlainformerCausalAttention(PlainformerAttention):
    """Self-attention in which a token attends to itself and to those before it (Vaswani et al. 2017, section 3.2.3)."""

    def __init__(self, config: PlainformerConfig, layer_index: int) -> None:
        super().__init__(config)
        self.layer_index = layer_index

    def forward(
        self, hidden_states: Tensor, layout: PairLayout, cache: Any = None, output_attentions: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """hidden_states [*, E] -> branch [*, E]; with `output_attentions` also the weights [B, H, L, K].

        Args:
            cache: an `EncoderDecoderCache`, to which the keys and values of these tokens are added.
        """
        query = self.make_queries(hidden_states, layout.targets.angles)
        key, value = self.make_keys_and_values(hidden_states, layout.targets.angles)
        if cache is not None:
            states = (key.transpose(1, 2), value.transpose(1, 2))  # [B, H, L, D]
            options = {"cache_position": layout.targets.cache_position}  # what static caches before 5.4 go by
            states = cache.self_attention_cache.update(*states, self.layer_index, options)  # [B, H, K, D]
            key, value = (one.transpose(1, 2) for one in states)
        return self.attend(query, key, value, layout.targets, output_attentions)


class PlainformerCrossAttention(PlainformerAttention):
    """Attention from each target to the tokens of its own source; it knows no positions."""

    def __init__(self, config: PlainformerConfig, layer_index: int) -> None:
        super().__init__(config, PositionKind("no positions in a source"))
        self.layer_index = layer_index

    def forward(
        self,
        hidden_states: Tensor,
        source_states: Tensor,
        layout: PairLayout,
        cache: Any = None,
        output_attentions: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """hidden_states [*, E], source_states [*, E] -> branch [*, E]; and the weights [B, H, L, S] if asked for.

        Args:
            source_states: what the encoder computed, as the layout's sources lie.
            cache: an `EncoderDecoderCache`; the keys and values of the source are computed once and kept.
        """
        query = self.make_queries(hidden_states, None)
        key, value = self.read_source(source_states, layout, cache)
        return self.attend(query, key, value, layout.sources, output_attentions)

    def read_source(self, source_states: Tensor, layout: PairLayout, cache: Any) -> tuple[Tensor, Tensor]:
        """Keys and values of the source, [*, H, D] each, from the cache where they are there."""
        if cache is not None and cache.is_updated.get(self.layer_index):
            kept = cache.cross_attention_cache.layers[self.layer_index]
            return kept.keys.transpose(1, 2), kept.values.transpose(1, 2)  # [B, S, H, D]
        key, value = self.make_keys_and_values(source_states, None)
        if cache is None:
            return key, value
        states = (key.transpose(1, 2), value.transpose(1, 2))  # [B, H, S, D]
        options = {"cache_position": torch.arange(key.shape[1], device=key.device)}
        states = cache.cross_attention_cache.update(*states, self.layer_index, options)
        cache.is_updated[self.layer_index] = True
        return tuple(one.transpose(1, 2) for one in states)
