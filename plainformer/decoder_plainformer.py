"""The decoder, in the order data flows.

    targets [B, L] ─ embeddings: token (x sqrt(E)) + position, norm, dropout
                   ─ N layers:   causal self-attention, attention to the source, feed-forward, each on a residual path
                   ─ final norm, if the layers normalise before their sub-layers

    post-norm                                       pre-norm
    x = norm(x + attention(x))                      x = x + attention(norm(x))
    x = norm(x + cross_attention(x, source))        x = x + cross_attention(norm(x), source)
    x = norm(x + mlp(x))                            x = x + mlp(norm(x))

The word embeddings are those of the encoder; positions and norms are the decoder's own, and targets have no segments.

Reference: Vaswani et al. 2017, "Attention Is All You Need", section 3.1.

Shapes: B batch, L targets, S source, H heads, E hidden size; [*] stands for a layout's leading dimensions, real tokens
or a rectangle.
"""

import math
from typing import Any

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from .causal_attention_plainformer import PlainformerCausalAttention, PlainformerCrossAttention
from .layouts_plainformer import prepare_positions, record_states
from .modeling_plainformer import PlainformerMLP, as_pair, make_norm
from .pairs_plainformer import PairLayout
from .positions_plainformer import POSITION_KINDS


class PlainformerDecoderEmbeddings(nn.Module):
    """token (x sqrt(E) if asked) + position, then norm if asked, then dropout."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.position_embeddings = POSITION_KINDS[config.position_embedding_type].embeddings(config)
        self.scale = math.sqrt(config.hidden_size) if config.scale_embedding else 1.0
        self.norm = make_norm(config, config.embedding_norm)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """Word embeddings [*, E] and position ids [*] -> [*, E]."""
        embeddings = tokens * self.scale
        embeddings = embeddings + self.position_embeddings(position_ids).to(embeddings)  # the position enters
        return self.dropout(self.norm(embeddings))


class PlainformerDecoderLayer(GradientCheckpointingLayer):
    """One decoder layer: causal self-attention, attention to the source and feed-forward, each on a residual path."""

    def __init__(self, config: Any, layer_index: int) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention = PlainformerCausalAttention(config, layer_index)
        self.attn_norm = make_norm(config)
        self.cross_attention = PlainformerCrossAttention(config, layer_index)
        self.cross_attn_norm = make_norm(config)
        self.mlp = PlainformerMLP(config)
        self.mlp_norm = make_norm(config)

    def forward(
        self,
        hidden_states: Tensor,
        source_states: Tensor,
        layout: PairLayout,
        cache: Any = None,
        output_attentions: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """hidden_states [*, E], source_states [*, E] -> [*, E]; with `output_attentions` also both weights."""
        options = (cache, output_attentions)
        if self.pre_norm:
            branch, weights = as_pair(self.attention(self.attn_norm(hidden_states), layout, *options))
            hidden_states = hidden_states + branch
            normed = self.cross_attn_norm(hidden_states)
            branch, cross_weights = as_pair(self.cross_attention(normed, source_states, layout, *options))
            hidden_states = hidden_states + branch
            hidden_states = hidden_states + self.mlp(self.mlp_norm(hidden_states))
        else:
            branch, weights = as_pair(self.attention(hidden_states, layout, *options))
            hidden_states = self.attn_norm(hidden_states + branch)
            branch, cross_weights = as_pair(self.cross_attention(hidden_states, source_states, layout, *options))
            hidden_states = self.cross_attn_norm(hidden_states + branch)
            hidden_states = self.mlp_norm(hidden_states + self.mlp(hidden_states))
        return (hidden_states, weights, cross_weights) if output_attentions else hidden_states


class PlainformerDecoder(nn.Module):
    """Word embeddings of targets and hidden states of their sources -> hidden states of the targets."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.embeddings = PlainformerDecoderEmbeddings(config)
        self.layers = nn.ModuleList(PlainformerDecoderLayer(config, i) for i in range(config.decoder_depth))
        self.final_norm = make_norm(config, config.pre_norm)

    def forward(
        self,
        tokens: Tensor,
        source_states: Tensor,
        layout: PairLayout,
        cache: Any = None,
        output_attentions: bool = False,
        recorded: list[Tensor] | None = None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Decode.

        Args:
            tokens: word embeddings of the targets, [*, E].
            source_states: as the layout's sources lie, [*, E].
            cache: an `EncoderDecoderCache`, to which keys and values are added; None: nothing is kept.
            recorded: the input of each layer, and the result, are appended to it as [B, L, E]; None: they are not.

        Returns:
            hidden states [*, E]; the weights of self-attention [B, H, L, K] and of cross-attention [B, H, L, S] of each
            layer, if asked for.
        """
        record = record_states(layout.targets, recorded)
        hidden_states = self.embeddings(tokens, layout.targets.position_ids)
        prepare_positions(layout.targets, self.config, hidden_states.dtype)
        attentions, cross_attentions = [], []
        for layer in self.layers:
            hidden_states = record(hidden_states)
            device = hidden_states.device
            hidden_states = layer(hidden_states, source_states.to(device), layout.to(device), cache, output_attentions)
            if output_attentions:
                hidden_states, weights, cross_weights = hidden_states
                attentions.append(weights)
                cross_attentions.append(cross_weights)
        return record(self.final_norm(hidden_states)), attentions, cross_attentions
