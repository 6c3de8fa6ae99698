"""Attention kernels: pure functions from queries, keys and values to what each query sees.

Shapes: B batch, T real tokens, S sequences, L length, H heads, D head size.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from .values_plainformer import at_least_float32

# (query, key, value, attention_mask, fully_masked, dropout_p) -> (context, weights or None)
Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, float], tuple[Tensor, Tensor | None]]


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    fully_masked: Tensor | None,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(D)) V  (Vaswani et al. 2017, equation 1).

    Args:
        query, key, value: [B, H, L, D].
        attention_mask: bool (True: may attend) or float (added to the scores), broadcast to [B, H, L, L]; or None.
        fully_masked: queries that may attend to no key, bool, broadcast to [B, H, L, 1]; their context is zero. In
            the mask they may attend to all keys, so that no softmax runs over nothing. None where there are none.
        dropout_p: dropout on the weights.

    Returns:
        context [B, H, L, D] and the weights before dropout [B, H, L, L].
    """
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5  # [B, H, L, L]
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        else:
            scores = scores + attention_mask
    weights = scores.softmax(dim=-1, dtype=at_least_float32(scores.dtype)).to(value.dtype)
    if fully_masked is not None:
        weights = weights.masked_fill(fully_masked, 0)
    return F.dropout(weights, dropout_p) @ value, weights


def sdpa_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    fully_masked: Tensor | None,
    dropout_p: float,
) -> tuple[Tensor, None]:
    """The same through torch's fused kernel, which keeps no weights."""
    context = F.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask, dropout_p=dropout_p)
    return context if fully_masked is None else context.masked_fill(fully_masked, 0), None


KERNELS: dict[str, Kernel] = {"sdpa": sdpa_attention, "eager": eager_attention}
DEFAULT_KERNEL = "sdpa"  # of a configuration that no model has read yet


@cache
def load_varlen_attn() -> Callable[..., Tensor] | None:
    """torch's kernel for sequences laid end to end, from torch 2.10 on. Imported on first use: it costs 0.1 s."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


def varlen_fits(query: Tensor, dropout_p: float) -> bool:
    """Whether torch's kernel for sequences laid end to end takes these queries: CUDA, half precision, no dropout."""
    return (
        query.is_cuda
        and query.dtype in (torch.float16, torch.bfloat16)
        and dropout_p == 0
        and query.shape[-1] % 8 == 0
        and query.shape[-1] <= 256
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
        and load_varlen_attn() is not None
    )


def varlen_attention(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
    """Attention within each of the sequences in [T, H, D], whose boundaries are `cu_seqlens`, int32 [S + 1]."""
    return load_varlen_attn()(query, key, value, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
