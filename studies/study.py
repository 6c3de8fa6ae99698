"""What a study is: cells to train with several seeds, what is measured, and what may be said of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .results import Results

Cell = dict[str, Any]  # factor -> level, such as {"task": "reverse", "kind": "rotary"}


@dataclass(frozen=True)
class Claim:
    """What the literature says, with its source, and a function that says what was seen here."""

    text: str
    published: str
    here: Callable[["Results"], str]


@dataclass(frozen=True)
class Study:
    """A study. Everything that is said about its results is computed from them.

    Attributes:
        cells: what is compared; each is trained once for each seed.
        measures: column -> what it is. Those whose name begins with "loss" or "seconds" are better when lower.
        train: from a cell and a seed to the measures, to `diverged` (0 or 1) and `seconds`.
        seconds: about how long one training of a cell takes, for the time left.
        budget: in words, for the page; results of two budgets are never mixed.
        limits: what this scale cannot show.
        conclude: sentences about the results.
        advise: rows of the table of choices: purpose, choice, reason.
        draw: the picture.
    """

    name: str
    question: str
    cells: Sequence[Cell]
    measures: dict[str, str]
    train: Callable[[Cell, int], dict[str, float]]
    seconds: Callable[[Cell], float]
    budget: str
    limits: str
    claims: Sequence[Claim]
    conclude: Callable[["Results"], list[str]]
    advise: Callable[["Results"], list[tuple[str, str, str]]]
    draw: Callable[["Results"], "Figure"]

    @property
    def factors(self) -> list[str]:
        return list(self.cells[0])


def cross(**levels: Sequence[Any]) -> list[Cell]:
    """Every combination of the levels."""
    return [dict(zip(levels, values, strict=True)) for values in product(*levels.values())]


def is_lower_better(measure: str) -> bool:
    return measure.startswith(("loss", "seconds"))
