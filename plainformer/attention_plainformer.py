"""Multi-head attention.

It has a file of its own, apart from the model, because transformers decides whether a model may switch its kernel by
reading the text of the model's file.

Shapes: B batch, L length, H heads, D head size, E hidden size; [*] is a layout's leading dimensions, [T] or [B, L].
"""

from torch import Tensor, nn

from .configuration_plainformer import PlainformerConfig
from .kernels_plainformer import DEFAULT_KERNEL, KERNELS, eager_attention
from .layouts_plainformer import Layout, layout_or_rectangle
from .positions_plainformer import POSITION_KINDS, PositionKind


class PlainformerAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2.2). Returns the residual branch."""

    def __init__(self, config: PlainformerConfig, position_kind: PositionKind | None = None) -> None:
        """`position_kind`: None: that of the configuration."""
        super().__init__()
        self.config = config  # read at every call: the kernel may be switched on a live model
        self.head_size = config.hidden_size // config.num_attention_heads
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)
        position_kind = position_kind or POSITION_KINDS[config.position_embedding_type]
        self.rotation = position_kind.rotation(config)
        self.bias = None if position_kind.bias is None else position_kind.bias(config)
        self.weights_dropout_prob = config.attention_probs_dropout_prob
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden_states: Tensor, layout: Layout | None = None, output_attentions: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """hidden_states [*, E] -> branch [*, E]; with `output_attentions` also the weights [B, H, L, L].

        Args:
            layout: how the hidden states lie; None: as a rectangle [B, L, E] without padding.
        """
        layout = layout_or_rectangle(hidden_states, layout, self.config)
        query = self.make_queries(hidden_states, layout.angles)
        key, value = self.make_keys_and_values(hidden_states, layout.angles)
        return self.attend(query, key, value, layout, output_attentions)

    def make_queries(self, hidden_states: Tensor, angles: Tensor | None) -> Tensor:
        """[*, E] -> [*, H, D], turned by the position kind's angles; None for a kind that does not turn."""
        query = self.q_proj(hidden_states).unflatten(-1, (-1, self.head_size))
        return self.rotation(query, angles).to(query.dtype)

    def make_keys_and_values(self, hidden_states: Tensor, angles: Tensor | None) -> tuple[Tensor, Tensor]:
        """[*, E] -> [*, H, D] each, the keys turned as queries are."""
        key = self.k_proj(hidden_states).unflatten(-1, (-1, self.head_size))
        value = self.v_proj(hidden_states).unflatten(-1, (-1, self.head_size))
        return self.rotation(key, angles).to(value.dtype), value

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, layout: Layout, output_attentions: bool
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Queries, keys and values [*, H, D] -> branch [*, E], and the weights if asked for."""
        kernel = eager_attention if output_attentions else KERNELS[self.config._attn_implementation or DEFAULT_KERNEL]
        dropout_p = self.weights_dropout_prob if self.training else 0.0
        context, weights = layout.attend(kernel, query, key, value, dropout_p, self.bias)
        branch = self.dropout(self.o_proj(context.flatten(-2)))
        return (branch, weights) if output_attentions else branch
