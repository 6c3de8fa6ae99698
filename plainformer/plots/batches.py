"""What is computed of a batch of texts of unequal length: the padded rectangle, or its tokens alone."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from torch import Tensor

from ..inputs_plainformer import read_batch
from ..layouts_plainformer import make_layout
from .canvas import line_colours, open_grid, picture
from .labels import Translate
from .values import read_encoder

PADDING = "#d9d9d9"


def unpadded_rows(model_or_config: Any, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Which text stands at each place: of the padded batch, -1 for padding, [B, L]; of what is computed, [T]."""
    encoder = read_encoder(model_or_config)
    lengths = torch.tensor(lengths)
    token_mask = torch.arange(int(lengths.max())) < lengths[:, None]  # [B, L]
    ids = (torch.zeros_like(token_mask, dtype=torch.long), token_mask.long(), None, None, None)
    packing = dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"))
    batch = read_batch(encoder.config, encoder.embedding_sizes(), *ids, packing, None)
    rows = torch.arange(len(lengths))[:, None].expand(token_mask.shape)
    computed = make_layout(batch, unpad=True).gather(rows[..., None])[:, 0]
    return rows.masked_fill(~token_mask, -1), computed


@picture
def plot_unpadded_batch(
    model_or_config: Any,
    lengths: Sequence[int] = (26, 7, 13, 4, 9, 18),
    speeds: Mapping[str, float] | None = None,
    *,
    ax: Any = None,
    words: Translate,
) -> np.ndarray:
    """A padded batch, the same as this package computes it, and measured speeds.

    Args:
        lengths: tokens of each text.
        speeds: how many times as fast as BERT, by what was done; None: without this part.
        ax: two axes, or three with speeds.

    Returns:
        The axes, [2] or [3].
    """
    if len(lengths) < 2 or any(type(length) is not int or length < 1 for length in lengths) or len(set(lengths)) < 2:
        raise ValueError(f"lengths={list(lengths)}: give the tokens of at least two texts, not all equally many.")
    lengths = list(lengths)
    padded, computed = unpadded_rows(model_or_config, lengths)
    B, L = padded.shape
    end_to_end = torch.full((-(-len(computed) // L), L), torch.nan)  # in lines as long as those of the rectangle
    end_to_end.view(-1)[: len(computed)] = computed.float()
    ratios = [B, len(end_to_end)] + ([1 + len(speeds)] if speeds else [])
    options = {"height_ratios": ratios} if ax is None else {}
    axes = open_grid(ax, (len(ratios), 1), (10.0, 7.5 if speeds else 5.5), **options)[:, 0]
    colours = ListedColormap([PADDING, *line_colours(len(lengths))])
    scale = {"cmap": colours, "vmin": -1.5, "vmax": len(lengths) - 0.5, "edgecolors": "white", "linewidth": 1}
    axes[0].pcolormesh(padded.numpy(), **scale)
    axes[0].set_yticks(np.arange(B) + 0.5, [f"{words('text')} {n + 1}" for n in range(B)])
    axes[0].set_title(words("BERT computes {} places").format(padded.numel()))
    axes[1].pcolormesh(np.ma.masked_invalid(end_to_end.numpy()), **scale)
    axes[1].set_yticks([])
    axes[1].set_title(words("plainformer computes {} tokens").format(len(computed)))
    axes[0].text(L - 0.5, lengths.index(min(lengths)) + 0.5, words("padding"), ha="right", va="center")
    for one in axes[:2]:
        one.set_xticks([])
        one.invert_yaxis()
    if speeds:
        draw_speeds(axes[2], speeds, words)
    return axes


def draw_speeds(ax: Axes, speeds: Mapping[str, float], words: Translate) -> None:
    """A bar for each speed, with its figure, and a line at 1."""
    bars = ax.barh(list(speeds), list(speeds.values()), color=line_colours(1)[0])
    ax.bar_label(bars, fmt="%.1f ×", padding=4)
    ax.axvline(1, color="0.5", lw=1.5, ls="--")
    ax.invert_yaxis()
    ax.margins(x=0.1)
    ax.set_title(words("How many times as fast as BERT"))
