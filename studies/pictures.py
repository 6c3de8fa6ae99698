"""The pictures of studies: means with their intervals, in the colours of Okabe and Ito, each with its own marker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plainformer.recipes.errors import RecipeError

from .results import Results
from .study import Cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#555555")
MARKERS = "osD^vX"
LINES = ("-", "--")


def make_figure(columns: int, title: str, rows: int = 1) -> tuple[Figure, list[Axes]]:
    """Axes under one title, row by row; a RecipeError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RecipeError('pictures need matplotlib: pip install "plainformer[plots]".') from error
    figure = Figure(figsize=(1.5 + 4.5 * columns, 0.4 + 3.8 * rows), layout="constrained", dpi=150)
    figure.suptitle(title)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def add_legend(figure: Figure, axes: Axes) -> None:
    """One legend below all axes, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def draw_levels(
    axes: Axes, results: Results, measure: str, factor: str, levels: Sequence[object], by: tuple[str, Sequence], **cell
) -> None:
    """A point with its interval for each level, along the axis; one colour for each level of `by`."""
    name, others = by
    for number, other in enumerate(others):
        shift = (number - (len(others) - 1) / 2) * 0.6 / len(others)
        means = [results.mean(measure, **{factor: level, name: other}, **cell) for level in levels]
        halves = [0 if math.isnan(mean.half) else mean.half for mean in means]
        axes.errorbar(
            [place + shift for place in range(len(levels))],
            [mean.mean for mean in means],
            halves,
            fmt=MARKERS[number],
            color=COLOURS[number],
            capsize=3,
            label=f"{name} {other}",
        )
    axes.set_xticks(range(len(levels)), [str(level) for level in levels])
    axes.set_xlabel(factor)
    axes.set_ylabel(measure)
    axes.grid(axis="y", alpha=0.3)


def draw_curve(
    axes: Axes, results: Results, measures: dict[float, str], cell: Cell, label: str, number: int, line: int = 0
) -> None:
    """Means with intervals over the numbers that belong to the measures, such as lengths."""
    means = [results.mean(measure, **cell) for measure in measures.values()]
    halves = [0 if math.isnan(mean.half) else mean.half for mean in means]
    axes.errorbar(
        list(measures),
        [mean.mean for mean in means],
        halves,
        marker=MARKERS[number % len(MARKERS)],
        color=COLOURS[number % len(COLOURS)],
        linestyle=LINES[line],
        capsize=3,
        markersize=4,
        label=label,
    )
    axes.grid(alpha=0.3)
