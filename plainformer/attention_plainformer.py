"""Multi-head attention.

It has a file of its own, apart from the model, because transformers decides whether a model may switch its kernel by
reading the text of the model's file.

Shapes: B batch, L length, H heads, D head size, E hidden size; [*] is a layout's leading dimensions, [B, L].
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .configuration_plainformer import PlainformerConfig
from .padding_plainformer import Kernel, Layout


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, nobody: Tensor | None, dropout_p: float
) -> tuple[Tensor, Tensor]:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(D)) V  (Vaswani et al. 2017, equation 1).

    Args:
        query, key, value: [B, H, L, D].
        mask: bool (True: may attend) or float (added to the scores), broadcast to [B, H, L, L]; or None.
        nobody: queries that may attend to no key, bool, broadcast to [B, H, L, 1]; their context is zero. Their rows
            of the mask allow all keys, so that no softmax runs over nothing. None where there are none.
        dropout_p: dropout on the weights.

    Returns:
        context [B, H, L, D] and the weights before dropout [B, H, L, L].
    """
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5  # [B, H, L, L]
    if mask is not None:
        additive = mask.dtype != torch.bool
        scores = scores + mask if additive else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(value.dtype)
    if nobody is not None:
        weights = weights.masked_fill(nobody, 0)
    return F.dropout(weights, dropout_p) @ value, weights


def sdpa_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, nobody: Tensor | None, dropout_p: float
) -> tuple[Tensor, None]:
    """The same through torch's fused kernel, which keeps no weights."""
    context = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout_p)
    return context if nobody is None else context.masked_fill(nobody, 0), None


KERNELS: dict[str, Kernel] = {"sdpa": sdpa_attention, "eager": eager_attention}


class PlainformerAttention(nn.Module):
    """Multi-head self-attention (Vaswani et al. 2017, section 3.2.2). Returns the residual branch."""

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__()
        self.config = config  # read at every call: the kernel may be switched on a live model
        self.head_size = config.hidden_size // config.num_attention_heads
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.weights_dropout_prob = config.attention_probs_dropout_prob
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, hidden_states: Tensor, layout: Layout, output_attentions: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """hidden_states [*, E] -> branch [*, E], and the weights [B, H, L, L] if asked for."""
        heads = (-1, self.head_size)
        query = self.q_proj(hidden_states).unflatten(-1, heads)  # [*, H, D]
        key = self.k_proj(hidden_states).unflatten(-1, heads)  # [*, H, D]
        value = self.v_proj(hidden_states).unflatten(-1, heads)  # [*, H, D]
        kernel = eager_attention if output_attentions else KERNELS[self.config._attn_implementation]
        dropout_p = self.weights_dropout_prob if self.training else 0.0
        context, weights = layout.attend(kernel, query, key, value, dropout_p)
        return self.dropout(self.o_proj(context.flatten(-2))), weights
