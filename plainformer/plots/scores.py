"""What a position kind does to attention scores, by distance."""

from typing import Any

from matplotlib.axes import Axes

from .canvas import line_colours, open_axes, picture
from .labels import Translate
from .values import kind_of, name_of, read_encoder, score_effects


@picture
def plot_scores_by_distance(
    model_or_config: Any, length: int = 64, layer: int = 0, *, ax: Axes | None = None, words: Translate
) -> Axes:
    """Over key position - query position: the bias of each head, or by how much the rotation weakens a score.

    Args:
        length: distances up to one less, on both sides.
        layer: whose biases, from 0; rotations are the same in all layers.
    """
    encoder = read_encoder(model_or_config)
    effects = score_effects(encoder, length, layer)
    has_bias = kind_of(encoder).bias is not None
    ax = open_axes(ax)
    distances = range(1 - length, length)
    for head, (effect, colour) in enumerate(zip(effects.numpy(), line_colours(len(effects)), strict=True)):
        label = words("head {}").format(head) if has_bias else words("average over columns")
        ax.plot(distances, effect, color=colour, lw=2, label=label)
    ax.axhline(0, color="0.5", lw=1)
    what = "What is added to attention scores" if has_bias else "How rotation weakens attention scores"
    part = encoder.layers[layer].attention
    name = name_of(encoder, words, *([part.bias] if has_bias else []))
    ax.set(xlabel=words("key position - query position"), title=f"{words(what)}\n({name})")
    ax.set_ylabel(words("bias" if has_bias else "score over score at distance 0"))
    ax.grid(alpha=0.3)
    ax.legend(fontsize=11, ncols=1 + (len(effects) - 1) // 6)
    return ax
