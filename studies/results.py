"""The rows of a study: a CSV that grows by a row with each training, and what is read out of it."""

import csv
import io
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from plainformer.recipes.errors import DataError

from .intervals import Interval, difference, mean_interval
from .study import Cell, Study, is_lower_better

Row = dict[str, str]


class Results:
    """What a study measured so far. `cell` stands for factors and their levels; those left out are of any level."""

    def __init__(self, study: Study, rows: Sequence[Row]) -> None:
        self.study, self.rows = study, list(rows)

    @property
    def seeds(self) -> int:
        return len({row["seed"] for row in self.rows})

    def whole(self) -> "Results":
        """Of the seeds that every cell has; the others say nothing yet."""
        counts = Counter(row["seed"] for row in self.rows)
        rows = [row for row in self.rows if counts[row["seed"]] == len(self.study.cells)]
        return Results(self.study, rows)

    def of(self, **cell: object) -> list[Row]:
        """The rows of a cell, by seed."""
        rows = [row for row in self.rows if all(row[factor] == str(level) for factor, level in cell.items())]
        return sorted(rows, key=lambda row: int(row["seed"]))

    def values(self, measure: str, **cell: object) -> list[float]:
        """One for each seed; without the losses of trainings that diverged, which have none."""
        values = [float(row[measure] or "nan") for row in self.of(**cell)]
        return [value for value in values if math.isfinite(value)]

    def mean(self, measure: str, **cell: object) -> Interval:
        return mean_interval(self.values(measure, **cell))

    def compare(self, measure: str, first: Cell, second: Cell) -> Interval:
        """How much better the first cell is than the second: above 0 it is better, whatever the measure."""
        apart = difference(self.values(measure, **first), self.values(measure, **second))
        return Interval(-apart.mean, apart.half) if is_lower_better(measure) else apart

    def diverged(self, **cell: object) -> int:
        return sum(row["diverged"] == "1" for row in self.of(**cell))


def columns_of(study: Study) -> list[str]:
    return [*study.factors, "seed", *study.measures, "diverged", "seconds"]


def to_row(study: Study, cell: Cell, seed: int, measured: dict[str, float]) -> Row:
    """As it stands in the file; a number that is none is left empty."""
    numbers = {name: f"{value:.6g}" if math.isfinite(value) else "" for name, value in measured.items()}
    row = {**{factor: str(level) for factor, level in cell.items()}, "seed": str(seed), **numbers}
    return {column: row[column] for column in columns_of(study)}


def write_line(values: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    return line.getvalue()


def append_row(path: Path, study: Study, row: Row) -> None:
    """Add a row to the file, which begins with the names of the columns."""
    is_new = not path.exists() or path.stat().st_size == 0
    with path.open("a", encoding="utf-8", newline="") as file:
        if is_new:
            file.write(write_line(columns_of(study)))
        file.write(write_line(list(row.values())))


def read_results(path: Path, study: Study) -> Results:
    """The rows in the file; none where there is no file.

    Raises:
        DataError: other columns; a cell that the study does not have; a row that is there twice.
    """
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = list(csv.DictReader(lines))
    known = {tuple(map(str, cell.values())) for cell in study.cells}
    seen = set()
    for number, row in enumerate(rows, start=2):
        if list(row) != columns_of(study) or None in row.values():
            problem = f"its columns are not those of the study {study.name} ({', '.join(columns_of(study))})"
            raise DataError(f"{path}, line {number}: {problem}. Name another folder, or mend the line.")
        levels = tuple(row[factor] for factor in study.factors)
        if levels not in known or (levels, row["seed"]) in seen:
            problem = "is there twice" if levels in known else "is no cell of the study"
            raise DataError(f"{path}, line {number}: {', '.join(levels)} (seed {row['seed']}) {problem}. Remove it.")
        seen.add((levels, row["seed"]))
    return Results(study, rows)


def drop_broken_line(path: Path) -> None:
    """Remove what an interruption left of a last line."""
    content = path.read_bytes() if path.exists() else b""
    if content and not content.endswith(b"\n"):
        path.write_bytes(content[: content.rfind(b"\n") + 1])
