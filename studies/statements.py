"""Sentences about results. "Better" and "worse" are said only where a 95 % interval of the difference excludes 0."""

import math
from collections.abc import Sequence

from .intervals import Interval, write
from .results import Results
from .study import Cell, is_lower_better

SOLVED, FAILED = 0.95, 0.5  # accuracies: a task is solved above the first, and a control fails below the second


def is_better(apart: Interval) -> bool:
    return apart.excludes(0) and apart.mean > 0


def is_worse(apart: Interval) -> bool:
    return apart.excludes(0) and apart.mean < 0


def say_difference(apart: Interval, measure: str, first: str, second: str) -> str:
    """One sentence on two cells; `apart` is above 0 where the first is better, as of `Results.compare`."""
    if math.isnan(apart.half):
        return f"{first} and {second} cannot be compared: it takes two seeds of each that did not diverge."
    size = f"{'less' if is_lower_better(measure) else 'more'} {measure}"
    if is_better(apart):
        return f"{first} is better than {second}: {write(apart)} {size}."
    if is_worse(apart):
        turned = Interval(-apart.mean, apart.half)
        return f"{first} is worse than {second}, which has {write(turned)} {size}."
    return f"No difference between {first} and {second} is shown: {write(apart)} {size}."


def best_level(results: Results, measure: str, factor: str, levels: Sequence[object], **cell: object) -> object:
    """The level with the best mean; those without a number come last."""
    sign = -1 if is_lower_better(measure) else 1

    def goodness(level: object) -> float:
        mean = results.mean(measure, **{factor: level}, **cell).mean
        return -math.inf if math.isnan(mean) else sign * mean

    return max(levels, key=goodness)


def as_good(results: Results, measure: str, factor: str, levels: Sequence[object], **cell: object) -> list[object]:
    """The best level, and those that are not shown to be worse, in the order of their means."""
    best: Cell = {factor: best_level(results, measure, factor, levels, **cell), **cell}
    kept = [level for level in levels if not is_worse(results.compare(measure, {factor: level, **cell}, best))]
    sign = 1 if is_lower_better(measure) else -1
    return sorted(kept, key=lambda level: sign * results.mean(measure, **{factor: level}, **cell).mean)


def control_fails(
    results: Results, measure: str, factor: str, control: object, levels: Sequence[object], **cell
) -> bool:
    """Whether the best level is shown to be better, and, of accuracies, the control's interval is below 0.5."""
    best = best_level(results, measure, factor, [level for level in levels if level != control], **cell)
    apart = results.compare(measure, {factor: best, **cell}, {factor: control, **cell})
    return is_better(apart) and is_low(results, measure, **{factor: control}, **cell)


def is_low(results: Results, measure: str, **cell: object) -> bool:
    """Whether an accuracy is shown to be below 0.5; of a loss nothing is asked."""
    return is_lower_better(measure) or results.mean(measure, **cell).high < FAILED


def say_control(results: Results, measure: str, factor: str, control: object, levels: Sequence[object], **cell) -> str:
    """Whether the control fails, as it must where order matters; otherwise that the task shows nothing, and why."""
    own = write(results.mean(measure, **{factor: control}, **cell))
    if control_fails(results, measure, factor, control, levels, **cell):
        return f"The control `{control}` fails, as it must: {measure} {own}."
    too_hard = is_low(results, measure, **{factor: control}, **cell)
    reason = "the budget is too small, or the task too hard" if too_hard else "the task is too easy"
    return f"This task shows nothing, since {reason}: the control `{control}` has {measure} {own}."


def say_solved(results: Results, measure: str, factor: str, levels: Sequence[object], **cell: object) -> str:
    """Whether the best level solves the task within the budget."""
    best = best_level(results, measure, factor, levels, **cell)
    own = results.mean(measure, **{factor: best}, **cell)
    if own.low >= SOLVED:
        return f"The best, `{best}`, solves the task: {measure} {write(own)}."
    return f"No kind is shown to solve the task within the budget; the best, `{best}`, has {measure} {write(own)}."


def join(levels: Sequence[object]) -> str:
    """ "`a`, `b` and `c`"."""
    names = [f"`{level}`" for level in levels]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
