"""The encoder's layer for inference: the same as `PlainformerLayer`, in fewer and faster steps.

    x ─ q, k, v: one product ─ attention, a few sequences at a time ─ product, plus x ─ norm
      ─ product, then GELU: one step ─ product, plus x ─ norm

Shapes: B batch, L length, H heads, D head size, E hidden size; [*] is a layout's leading dimensions, [T] or [B, L].
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..chunking_plainformer import apply_in_chunks
from ..kernels_plainformer import eager_attention, sdpa_attention
from ..layouts_plainformer import Layout
from ..modeling_plainformer import PlainformerLayer
from ..values_plainformer import is_captured
from .attention import AttentionInPieces


class FeedForward(nn.Module):
    """The feed-forward sub-layer of two products, the activation in the first and the residual in the second."""

    def __init__(self, fc1: nn.Module, fc2: nn.Module, layer: PlainformerLayer) -> None:
        """The products, called as `PackedLinear` is, and the layer that has the activation."""
        super().__init__()
        self.fc1, self.fc2, self.activation = fc1, fc2, layer.mlp.activation
        self.is_gelu = layer.attention.config.hidden_act == "gelu"

    def forward(self, hidden_states: Tensor, residual: Tensor) -> Tensor:
        """[*, E] and residual [*, E] -> residual + branch [*, E]."""
        inner = self.fc1(hidden_states, gelu=True) if self.is_gelu else self.activation(self.fc1(hidden_states))
        return self.fc2(inner, residual=residual)


class LayerParts(NamedTuple):
    """What a type decides: the parts of a layer that compute products.

    Attributes:
        qkv: [*, E] -> queries, keys and values side by side, [*, 3 E].
        o_proj: contexts [*, E] and residual [*, E] -> residual + branch [*, E].
        feed_forward: normed or not, [*, E], and residual [*, E] -> residual + branch [*, E].
    """

    qkv: nn.Module
    o_proj: nn.Module
    feed_forward: nn.Module


MakeLinear = Callable[[Tensor, Tensor], nn.Module]  # weight [O, I] and bias [O] -> a module as `PackedLinear`


def make_parts(layer: PlainformerLayer, make_linear: MakeLinear) -> LayerParts:
    """The parts of a layer, every product made in the same way."""
    o_proj, fc1, fc2 = (
        make_linear(one.weight, one.bias) for one in (layer.attention.o_proj, layer.mlp.fc1, layer.mlp.fc2)
    )
    return LayerParts(make_linear(*joined_projections(layer)), o_proj, FeedForward(fc1, fc2, layer))


def joined_projections(layer: PlainformerLayer) -> tuple[Tensor, Tensor]:
    """Weights and biases of query, key and value as those of one product, [3 E, E] and [3 E]."""
    attention = layer.attention
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    return torch.cat([one.weight for one in projections]), torch.cat([one.bias for one in projections])


class InferenceLayer(nn.Module):
    """One encoder layer, made of a `PlainformerLayer`."""

    def __init__(self, layer: PlainformerLayer, parts: LayerParts, dtype: torch.dtype) -> None:
        """`dtype` is the type of the hidden states between the products."""
        super().__init__()
        attention = layer.attention
        self.pre_norm, self.head_size, self.dtype = layer.pre_norm, attention.head_size, dtype
        self.qkv, self.o_proj, self.feed_forward = parts
        self.rotation, self.bias = attention.rotation, attention.bias
        self.attn_norm, self.mlp_norm = layer.attn_norm.to(dtype), layer.mlp_norm.to(dtype)

    @torch.no_grad()
    @torch.autocast("cpu", enabled=False)  # every tensor has its type already
    def forward(
        self, hidden_states: Tensor, layout: Layout, output_attentions: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """[*, E] -> [*, E]; with `output_attentions` also the attention weights [B, H, L, L]."""
        if hidden_states.requires_grad:
            raise ValueError("A model of for_inference has no gradients: take them of the one that it was given.")
        given, hidden_states = hidden_states.dtype, hidden_states.to(self.dtype)
        if self.pre_norm:
            hidden_states, weights = self.attend(
                self.attn_norm(hidden_states), hidden_states, layout, output_attentions
            )
            hidden_states = apply_in_chunks(self, self.transform, hidden_states)
        else:
            hidden_states, weights = self.attend(hidden_states, hidden_states, layout, output_attentions)
            hidden_states = apply_in_chunks(self, self.transform, self.attn_norm(hidden_states))
        hidden_states = hidden_states.to(given)
        return (hidden_states, weights) if output_attentions else hidden_states

    def attend(
        self, hidden_states: Tensor, residual: Tensor, layout: Layout, output_attentions: bool
    ) -> tuple[Tensor, Tensor | None]:
        """hidden_states [*, E], residual [*, E] -> residual + branch [*, E], and the weights if asked for."""
        query, key, value = self.qkv(hidden_states).unflatten(-1, (3, -1, self.head_size)).unbind(-3)  # [*, H, D] each
        query, key = (self.rotation(states, layout.angles).to(value.dtype) for states in (query, key))
        kernel = eager_attention if output_attentions else sdpa_attention if is_captured() else AttentionInPieces()
        context, weights = layout.attend(kernel, query, key, value, 0.0, self.bias)  # [*, H, D]
        return self.o_proj(context.flatten(-2), residual=residual), weights

    def transform(self, hidden_states: Tensor) -> Tensor:
        """The feed-forward on its residual path, [*, E] -> [*, E]; for post-norm with the norm behind it."""
        if self.pre_norm:
            return self.feed_forward(self.mlp_norm(hidden_states), hidden_states)
        return self.mlp_norm(self.feed_forward(hidden_states, hidden_states))
