"""Pictures of the vectors that stand for positions: what is added to embeddings, or the angles that rotary turns by."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..modeling_plainformer import PlainformerModel
from .canvas import heat_map, line_colours, open_axes, picture
from .labels import Translate
from .values import (
    by_distance,
    check_range,
    frequencies,
    name_of,
    position_vectors,
    read_encoder,
    similarities,
)


def title(encoder: PlainformerModel, words: Translate, text: str) -> str:
    """A text, and the position kind that the picture is of."""
    return f"{words(text)} ({name_of(encoder, words, encoder.embeddings.position_embeddings)})"


@picture
def plot_position_table(model_or_config: Any, length: int = 64, *, ax: Axes | None = None, words: Translate) -> Axes:
    """The vectors of the first positions as a heat map: one row for each position, one column for each dimension."""
    encoder = read_encoder(model_or_config)
    vectors = position_vectors(encoder, length)
    ax = open_axes(ax)
    heat_map(ax, vectors, words("value"), signed=True)
    ax.set(xlabel=words("dimension"), ylabel=words("position"), title=title(encoder, words, "Position vectors"))
    return ax


@picture
def plot_position_curves(
    model_or_config: Any,
    length: int = 64,
    dimensions: Sequence[int] | None = None,
    *,
    ax: Axes | None = None,
    words: Translate,
) -> Axes:
    """Single dimensions over the positions, one curve for each; None: two pairs, of which one turns faster."""
    encoder = read_encoder(model_or_config)
    vectors = position_vectors(encoder, length)
    width = vectors.shape[1]
    if dimensions is None:
        pairs = (width // 16 * 2, width // 8 * 2)
        dimensions = sorted({min(pair + one, width - 1) for pair in pairs for one in (0, 1)})
    check_range("dimensions", dimensions, width, "dimensions")
    ax = open_axes(ax)
    marks = ("-", "--", "-.", ":")
    for number, (dimension, colour) in enumerate(zip(dimensions, line_colours(len(dimensions)), strict=True)):
        ax.plot(vectors[:, dimension].numpy(), marks[number % 4], color=colour, lw=2.5, label=str(dimension))
    ax.set(xlabel=words("position"), ylabel=words("value"), title=title(encoder, words, "Dimensions over positions"))
    ax.grid(alpha=0.3)
    ax.legend(title=words("dimension"), loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


@picture
def plot_position_waves(
    model_or_config: Any, length: int = 64, count: int | None = None, *, ax: Axes | None = None, words: Translate
) -> Axes:
    """Sines of rising frequency one above the other: `count` even dimensions, from the last to the first.

    None: 8, or as many as there are. Of a trained table the same dimensions are drawn, though nothing rises there.
    """
    encoder = read_encoder(model_or_config)
    vectors = position_vectors(encoder, length)
    width = vectors.shape[1]
    most = (width + 1) // 2
    count = min(8, most) if count is None else count
    if type(count) is not int or not 1 <= count <= most:
        raise ValueError(f"count={count!r}: there are {most} even dimensions. Give a whole number from 1 to {most}.")
    dimensions = [(count - 1 - number) * most // count * 2 for number in range(count)]
    ax = open_axes(ax, size=(10.0, 7.0))
    height = vectors[:, dimensions].abs().max().clamp(min=1e-9) * 2.4
    for number, (dimension, colour) in enumerate(zip(dimensions, line_colours(count), strict=True)):
        ax.axhline(number, color="0.85", lw=1)
        ax.plot((vectors[:, dimension] / height + number).numpy(), color=colour, lw=2.5)
    ax.set_yticks(range(count), [str(dimension) for dimension in dimensions])
    ax.margins(x=0.01)
    ax.set(xlabel=words("position"), ylabel=words("dimension"))
    ax.set_title(title(encoder, words, "Waves of rising frequency"))
    return ax


@picture
def plot_position_frequencies(model_or_config: Any, *, ax: Axes | None = None, words: Translate) -> Axes:
    """How fast each pair of dimensions turns, in radians for each position; at the right, positions for one turn."""
    encoder = read_encoder(model_or_config)
    values = frequencies(encoder)
    ax = open_axes(ax)
    ax.semilogy(range(0, 2 * len(values), 2), values.numpy(), "o-", color=line_colours(1)[0], ms=5)
    ax.set(xlabel=words("dimension"), ylabel=words("angle per position (radians)"))
    ax.set_title(title(encoder, words, "Frequency of each pair of dimensions"))
    ax.grid(alpha=0.3)
    turns = ax.secondary_yaxis("right", functions=(_turn, _turn))
    turns.set_ylabel(words("positions per turn"))
    return ax


def _turn(value: Any) -> Any:
    """Radians for each position <-> positions for one turn."""
    with np.errstate(divide="ignore"):  # matplotlib asks for 0 too, where nothing is drawn
        return 2 * np.pi / value


@picture
def plot_position_path(
    model_or_config: Any,
    length: int = 80,
    dimensions: Sequence[int] | None = None,
    *,
    ax: Axes | None = None,
    words: Translate,
) -> Axes:
    """The positions as a path through three dimensions; None: a pair that turns, and one that turns slowly."""
    encoder = read_encoder(model_or_config)
    vectors = position_vectors(encoder, length)
    width = vectors.shape[1]
    if dimensions is None:
        pair = width // 16 * 2
        dimensions = (pair, pair + 1, max(width // 4 * 2, 2))
    check_range("dimensions", dimensions, width, "dimensions")
    if len(dimensions) != 3:
        raise ValueError(f"dimensions={list(dimensions)}: a path in space has three, and these are {len(dimensions)}.")
    ax = open_axes(ax, "3d", size=(10.0, 8.0))
    x, y, z = vectors[:, list(dimensions)].T.numpy()
    ax.plot(x, y, z, color="0.6", lw=1)
    points = ax.scatter(x, y, z, c=range(length), cmap="viridis", s=35, depthshade=False)
    ax.figure.colorbar(points, ax=ax, label=words("position"), shrink=0.7, pad=0.12)
    labels = (f"{words('dimension')} {dimension}" for dimension in dimensions)
    ax.set(**dict(zip(("xlabel", "ylabel", "zlabel"), labels, strict=True)))
    for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
        axis.labelpad = 12
        axis.set_major_locator(MaxNLocator(5))
    ax.set_title(title(encoder, words, "Path of the positions in three dimensions"))
    return ax


@picture
def plot_position_similarity(
    model_or_config: Any, length: int = 64, *, ax: Axes | None = None, words: Translate
) -> Axes:
    """The cosine between the vectors of each two positions."""
    encoder = read_encoder(model_or_config)
    similarity = similarities(position_vectors(encoder, length))
    ax = open_axes(ax, size=(10.0, 8.0))
    heat_map(ax, similarity, words("cosine"), signed=True)
    ax.set_aspect("equal")
    ax.set(xlabel=words("position"), ylabel=words("position"))
    ax.set_title(title(encoder, words, "Similarity of two positions"))
    return ax


@picture
def plot_similarity_by_distance(
    model_or_config: Any, length: int = 64, *, ax: Axes | None = None, words: Translate
) -> Axes:
    """The same by distance: the mean over all pairs so far apart, and the range. No range: distance alone decides."""
    encoder = read_encoder(model_or_config)
    mean, lowest, highest = by_distance(similarities(position_vectors(encoder, length))).numpy()
    ax = open_axes(ax)
    ax.fill_between(range(len(mean)), lowest, highest, color="0.8", label=words("lowest to highest"))
    ax.plot(mean, color=line_colours(1)[0], lw=2.5, label=words("mean of all pairs"))
    ax.axhline(0, color="0.5", lw=1)
    ax.set(xlabel=words("distance of two positions"), ylabel=words("cosine"))
    ax.set_title(title(encoder, words, "Similarity by distance"))
    ax.grid(alpha=0.3)
    ax.legend()
    return ax
