"""Attention for inference on a CPU, as two plain products for a few sequences and heads at a time.

The scores of a piece stay in the processor's cache between the two products, which takes less time than one fused step
over all of them.

Shapes: B batch, L length, H heads, D head size; n pairs of a sequence and a head.
"""

import torch
from torch import Tensor

from ..kernels_plainformer import sdpa_attention

# How many scores are computed at once, and the lengths for which this is the faster way, as measured with heads of 32
# and 64.
SCORES_PER_PIECE = {torch.float32: 2**19, torch.bfloat16: 2**20}
LENGTHS_IN_PIECES = {torch.float32: range(1, 513), torch.bfloat16: range(24, 1025)}
# Sums of exponentials within the limits of bfloat16, with room for the products with values up to 300.
SAFE_SUMS = (1e-30, 1e36)


class AttentionInPieces:
    """It is called as `sdpa_attention` is, to which masks are left; the bias of a position kind is no mask."""

    def __init__(self) -> None:
        self.scores: Tensor | None = None  # memory for the scores of a piece, used again and again

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        fully_masked: Tensor | None,
        dropout_p: float,
    ) -> tuple[Tensor, None]:
        """As `sdpa_attention`."""
        B, H, L, D = query.shape
        is_bias = attention_mask is not None and attention_mask.dtype != torch.bool
        is_masked = fully_masked is not None or (attention_mask is not None and not is_bias)
        if is_masked or key.shape[2] != L or L not in LENGTHS_IN_PIECES.get(query.dtype, ()):
            return sdpa_attention(query, key, value, attention_mask, fully_masked, dropout_p)
        bias = attention_mask.expand(B, H, L, L) if is_bias else query.new_zeros(()).expand(B, H, 1, 1)
        context = query.new_empty(B, H, L, D)
        matrices = max(1, SCORES_PER_PIECE[query.dtype] // (L * L))  # at once
        rows, heads = max(1, matrices // H), min(H, matrices)
        for row in range(0, B, rows):
            for head in range(0, H, heads):
                piece = (slice(row, row + rows), slice(head, head + heads))
                states = (one[piece].flatten(0, 1) for one in (query, key, value, bias))  # [n, L, D|L]
                self._attend(*states, float(is_bias), context[piece].flatten(0, 1))
        return context, None

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, beta: float, context: Tensor) -> None:
        """softmax(query key^T / sqrt(D) + beta * bias) value, n times [L, D] each, written into `context` [n, L, D]."""
        n, L, D = query.shape
        scores, operands = self._memory(query, n), (bias, query, key.transpose(1, 2))
        scale = {"beta": beta, "alpha": D**-0.5, "out": scores}
        torch.baddbmm(*operands, **scale)  # [n, L, L]
        if query.dtype == torch.bfloat16:
            # softmax = exp / sum, and the sum may as well divide the context, which is smaller. Usually the largest
            # score is taken off before; without that, the same comes out as long as no sum nears the type's limits.
            total = torch.exp(scores, out=scores).sum(dim=-1, keepdim=True)  # [n, L, 1]
            low, high = total.aminmax()
            if SAFE_SUMS[0] < float(low) and float(high) < SAFE_SUMS[1]:
                torch.bmm(scores, value, out=context).div_(total)
                return
            torch.baddbmm(*operands, **scale)
        torch.softmax(scores, dim=-1, out=scores)
        torch.bmm(scores, value, out=context)

    def _memory(self, query: Tensor, n: int) -> Tensor:
        """[n, L, L], not initialised."""
        L = query.shape[1]
        if self.scores is None or len(self.scores) < n * L * L:
            self.scores = query.new_empty(max(n * L * L, SCORES_PER_PIECE[query.dtype]))
        return self.scores[: n * L * L].view(n, L, L)
