"""The encoder's layer for inference: the same as `PlainformerLayer`, in fewer and faster steps.

    x ─ q, k, v: one product ─ attention, a few sequences at a time ─ product, plus x ─ norm
      ─ product, then GELU: one step ─ product, plus x ─ norm

Shapes: B batch, L length, H heads, D head size, E hidden size; [*] is a layout's leading dimensions, [T] or [B, L].
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..chunking_plainformer import apply_in_chunks
from ..kernels_plainformer import eager_attention, sdpa_attention
from ..layouts_plainformer import Layout
from ..modeling_plainformer import PlainformerLayer

SCORES_PER_PIECE = 2**18  # 1 MB of float32: they stay in a core's cache between the two products


def attend_in_pieces(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    fully_masked: Tensor | None,
    dropout_p: float,
) -> tuple[Tensor, None]:
    """As `sdpa_attention`: a few sequences at a time as two plain products, where these are the faster way.

    That is for sequences up to about 150 tokens without a mask; `attention_mask` may be the bias of a position kind.
    """
    B, H, L, D = query.shape
    is_bias = attention_mask is not None and attention_mask.dtype != torch.bool
    is_masked = fully_masked is not None or (attention_mask is not None and not is_bias)
    if is_masked or key.shape[2] != L or H * L * L > SCORES_PER_PIECE:
        return sdpa_attention(query, key, value, attention_mask, fully_masked, dropout_p)
    bias = attention_mask.expand(B, H, L, L) if is_bias else query.new_zeros(()).expand(B, H, 1, 1)
    count, contexts = max(1, SCORES_PER_PIECE // (H * L * L)), []
    for states in zip(*(one.split(count) for one in (bias, query, key, value)), strict=True):
        b, q, k, v = (one.flatten(0, 1) for one in states)  # [n * H, L, L|D]
        scores = torch.baddbmm(b, q, k.transpose(1, 2), beta=float(is_bias), alpha=D**-0.5)  # [n * H, L, L]
        torch.softmax(scores, dim=-1, out=scores)
        contexts.append(torch.bmm(scores, v).unflatten(0, (-1, H)))
    return torch.cat(contexts), None


class InferenceLayer(nn.Module):
    """One encoder layer, made of a `PlainformerLayer`."""

    def __init__(
        self, layer: PlainformerLayer, make_linear: Callable[[Tensor, Tensor], nn.Module], dtype: torch.dtype
    ) -> None:
        """Take the parts of a layer.

        Args:
            make_linear: from weight [O, E] and bias [O] to a module that maps [*, E] to [*, O], as `PackedLinear`.
            dtype: the type of the hidden states between the products.
        """
        super().__init__()
        attention, mlp = layer.attention, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.pre_norm, self.head_size, self.dtype = layer.pre_norm, attention.head_size, dtype
        self.qkv = make_linear(*(torch.cat([getattr(one, name) for one in projections]) for name in ("weight", "bias")))
        self.rotation, self.bias = attention.rotation, attention.bias
        self.o_proj = make_linear(attention.o_proj.weight, attention.o_proj.bias)
        self.attn_norm = layer.attn_norm.to(dtype)
        self.fc1 = make_linear(mlp.fc1.weight, mlp.fc1.bias)
        self.activation = mlp.activation
        self.fc2 = make_linear(mlp.fc2.weight, mlp.fc2.bias)
        self.mlp_norm = layer.mlp_norm.to(dtype)
        self.is_gelu = attention.config.hidden_act == "gelu"

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
            hidden_states = apply_in_chunks(self, self.feed_forward, hidden_states)
        else:
            hidden_states, weights = self.attend(hidden_states, hidden_states, layout, output_attentions)
            hidden_states = apply_in_chunks(self, self.feed_forward, self.attn_norm(hidden_states))
        hidden_states = hidden_states.to(given)
        return (hidden_states, weights) if output_attentions else hidden_states

    def attend(
        self, hidden_states: Tensor, residual: Tensor, layout: Layout, output_attentions: bool
    ) -> tuple[Tensor, Tensor | None]:
        """hidden_states [*, E], residual [*, E] -> residual + branch [*, E], and the weights if asked for."""
        query, key, value = self.qkv(hidden_states).unflatten(-1, (3, -1, self.head_size)).unbind(-3)  # [*, H, D] each
        query, key = (self.rotation(states, layout.angles).to(value.dtype) for states in (query, key))
        kernel = eager_attention if output_attentions else attend_in_pieces
        context, weights = layout.attend(kernel, query, key, value, 0.0, self.bias)
        return self.o_proj(context.flatten(-2), residual=residual), weights

    def feed_forward(self, hidden_states: Tensor) -> Tensor:
        """[*, E] -> [*, E], residual and norm included."""
        inner = self.mlp_norm(hidden_states) if self.pre_norm else hidden_states
        inner = self.fc1(inner, gelu=True) if self.is_gelu else self.activation(self.fc1(inner))
        result = self.fc2(inner, residual=hidden_states)
        return result if self.pre_norm else self.mlp_norm(result)
