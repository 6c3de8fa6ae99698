"""The axes a picture is drawn on, its colours, and how it is saved.

Colours: viridis for what is never negative; red and blue with white at 0 for what has a sign. Both can be told apart
by the colour-blind. Lines have colours of viridis, which differ in brightness too.
"""

import os
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from PIL import Image
from torch import Tensor

from .labels import choose_language, find_chinese_font

SIZE = (10.0, 6.0)  # inches; saved with 120 dots for each
DOTS = 120
FORMATS = (".png", ".svg")
SIGNED, UNSIGNED = "RdBu_r", "viridis"


@contextmanager
def style() -> Iterator[None]:
    """Letters that can be read in a talk, and behind the usual font one with Chinese characters if there is one."""
    family = [name for name in (*matplotlib.rcParams["font.family"], find_chinese_font()) if name]
    sizes = {"font.size": 14, "axes.titlesize": 16, "legend.fontsize": 13, "axes.unicode_minus": True}
    with matplotlib.rc_context({"font.family": family, **sizes}):
        yield


def picture(draw: Callable[..., Any]) -> Callable[..., Any]:
    """A function that draws, in the style of all pictures; its `language` becomes the translating function `words`."""

    @wraps(draw)
    def styled(*args: Any, language: str = "en", **kwargs: Any) -> Any:
        with style():
            return draw(*args, words=choose_language(language), **kwargs)

    return styled


def open_axes(ax: Axes | None, projection: str | None = None, size: tuple[float, float] = SIZE) -> Axes:
    """The axes; a new figure's where None are given.

    Raises:
        TypeError: something else than axes.
        ValueError: flat axes for a picture in space, or the other way round.
    """
    if ax is None:
        return plt.figure(figsize=size, layout="constrained").add_subplot(projection=projection)
    if not isinstance(ax, Axes):
        raise TypeError(f"ax is a {type(ax).__name__}: give the axes of matplotlib, or leave it out.")
    if (ax.name == "3d") != (projection == "3d"):
        needed = 'fig.add_subplot(projection="3d")' if projection == "3d" else "fig.add_subplot()"
        raise ValueError(f"ax has the projection {ax.name!r}, which this picture cannot use: make it with {needed}.")
    return ax


def open_grid(ax: Any, shape: tuple[int, int], size: tuple[float, float], **options: Any) -> np.ndarray:
    """Flat axes of this shape, from those given (as many, in any nesting), or in a new figure.

    Raises:
        ValueError: another number of axes.
    """
    if ax is None:
        return plt.subplots(*shape, figsize=size, layout="constrained", squeeze=False, **options)[1]
    given = np.array(ax, dtype=object)
    if given.size != shape[0] * shape[1]:
        raise ValueError(
            f"ax has {given.size} axes, but the picture has {shape[0]} x {shape[1]}: make them with "
            f"plt.subplots({shape[0]}, {shape[1]}), or leave ax out."
        )
    for one in given.flat:
        open_axes(one)
    return given.reshape(shape)


def heat_map(ax: Axes, values: Tensor, label: str, *, signed: bool) -> None:
    """A rectangle of values with its colour bar. Signed values have 0 in the middle of the colours."""
    options = {"cmap": SIGNED, "norm": matplotlib.colors.CenteredNorm()} if signed else {"cmap": UNSIGNED}
    image = ax.imshow(values.numpy(), aspect="auto", interpolation="nearest", **options)
    ax.figure.colorbar(image, ax=ax, label=label)


def line_colours(count: int) -> np.ndarray:
    """Colours from dark to light; the palest yellow, which is hard to see on white, is left out."""
    return matplotlib.colormaps[UNSIGNED](np.linspace(0, 0.85, count))


def write_instead(ax: Axes, text: str) -> Axes:
    """A line in the place of a picture, for what a model does not have."""
    ax.set_axis_off()
    write = ax.text2D if ax.name == "3d" else ax.text
    write(0.5, 0.5, textwrap.fill(text, 36), transform=ax.transAxes, ha="center", va="center")
    return ax


def save_plot(ax: Any, path: str | os.PathLike) -> Path:
    """Write the figure of these axes as PNG or SVG, by the ending of the path. Equal figures give equal files.

    Raises:
        ValueError: another ending.
    """
    path, first = Path(path), np.array(ax, dtype=object).flat[0]
    check_ending(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".svg":
        with matplotlib.rc_context({"svg.hashsalt": "plainformer"}):
            first.figure.savefig(path, metadata={"Date": None})
        return path
    content = BytesIO()
    first.figure.savefig(content, format="png", dpi=DOTS)
    with Image.open(content) as image:  # 256 colours are enough, and the file a third as large
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def check_ending(path: Path) -> None:
    """Raise a ValueError unless a path ends as a picture does."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{path} ends in {path.suffix!r}, and pictures are {' or '.join(FORMATS)}: give one of these.")
