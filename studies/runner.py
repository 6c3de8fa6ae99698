"""Trains what a study still lacks, two models at a time, and writes a row as soon as a model is measured."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

import torch
import transformers

from plainformer.recipes.errors import DataError, RecipeError

from .results import Results, append_row, drop_broken_line, read_results, to_row
from .study import Cell, Study

NAMES = ("positions", "length", "warmup", "scaling", "padding", "pretraining")
SEEDS = 5  # that a finished study has
ROWS, MARKER = "results.csv", "study.json"

Say = Callable[[str], None]


def load_study(name: str, quick: bool = False) -> Study:
    """The study of that name; `quick`: so small that it shows nothing, for the tests."""
    return import_module(f"studies.{name}").make_study(quick)


def settings_of(study: Study, quick: bool) -> dict:
    return {"study": study.name, "quick": quick, "budget": study.budget}


def open_folder(folder: Path, study: Study, quick: bool) -> None:
    """A new folder, or that of the same study, which goes on.

    Raises:
        RecipeError: a folder that holds something else, or another budget.
    """
    folder.mkdir(parents=True, exist_ok=True)
    marker, settings = folder / MARKER, settings_of(study, quick)
    if not marker.exists():
        if any(folder.iterdir()):
            raise RecipeError(f"--output_dir {folder} is not empty, and holds no study: name another folder.")
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        marker.write_text(json.dumps({**settings, "versions": versions}, indent=1) + "\n", encoding="utf-8")
    held = read_settings(folder)
    for name, value in settings.items():
        if held.get(name) != value:
            problem = f"holds results with {name} {held.get(name)!r}, not {value!r}, which cannot be mixed"
            raise RecipeError(f"--output_dir {folder} {problem}: name another folder.")


def read_settings(folder: Path) -> dict:
    """What a folder was made with, from its marker."""
    try:
        return dict(json.loads((folder / MARKER).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{folder / MARKER} cannot be read ({error}): name another folder.") from error


def missing(study: Study, results: Results, seeds: int) -> list[tuple[int, int]]:
    """The trainings that the results lack, as number of the cell and seed; each cell once before any a second time."""
    return [
        (number, seed)
        for seed in range(seeds)
        for number, cell in enumerate(study.cells)
        if not any(row["seed"] == str(seed) for row in results.of(**cell))
    ]


def train_cell(name: str, quick: bool, number: int, seed: int) -> dict[str, float]:
    """Train one model, with one thread, in whatever process this is."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    study = load_study(name, quick)
    return study.train(study.cells[number], seed)


def complete(study: Study, seeds: int, folder: Path, *, quick: bool, workers: int, say: Say) -> Results:
    """The results with every cell and seed: those in the folder, and new ones, which are added to it."""
    open_folder(folder, study, quick)
    path = folder / ROWS
    drop_broken_line(path)
    todo = missing(study, read_results(path, study), seeds)
    say(f"{len(study.cells) * seeds - len(todo)} trainings are there, {len(todo)} to go")
    clock = Clock(study, todo, workers)
    for (number, seed), measured in train_all(study.name, quick, todo, workers):
        cell = study.cells[number]
        append_row(path, study, to_row(study, cell, seed, measured))
        clock.count(number)
        say(f"{describe(cell)}, seed {seed}: {show(study, measured)}; {clock.left()} left")
    rows = [row for row in read_results(path, study).rows if int(row["seed"]) < seeds]
    return Results(study, rows)


def train_all(
    name: str, quick: bool, todo: list[tuple[int, int]], workers: int
) -> Iterator[tuple[tuple[int, int], dict[str, float]]]:
    """What was measured for each of `todo`, as it comes."""
    if workers == 1 or len(todo) < 2:
        for one in todo:
            yield one, train_cell(name, quick, *one)
        return
    pool, queue = ProcessPoolExecutor(workers, mp_context=get_context("spawn")), list(reversed(todo))
    pending: dict[Future, tuple[int, int]] = {}
    try:
        while queue or pending:
            while queue and len(pending) < workers:
                one = queue.pop()
                pending[pool.submit(train_cell, name, quick, *one)] = one
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                yield pending.pop(future), future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class Clock:
    """How much time is left: what the estimate says, corrected by the time that passed."""

    def __init__(self, study: Study, todo: list[tuple[int, int]], workers: int) -> None:
        self.seconds = [study.seconds(cell) for cell in study.cells]
        self.left_over = sum(self.seconds[number] for number, _ in todo)
        self.done, self.start, self.workers = 0.0, time.monotonic(), workers

    def count(self, number: int) -> None:
        self.done += self.seconds[number]
        self.left_over -= self.seconds[number]

    def left(self) -> str:
        pace = (time.monotonic() - self.start) / self.done if self.done else 1 / self.workers
        return write_time(pace * self.left_over)


def estimate(study: Study, seeds: int, workers: int) -> float:
    """Seconds for the whole study."""
    return seeds * sum(map(study.seconds, study.cells)) / workers


def write_time(seconds: float) -> str:
    seconds = max(0, round(seconds))
    hours, minutes = seconds // 3600, seconds // 60 % 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes > 1 else f"{seconds} s"


def describe(cell: Cell) -> str:
    """ "task reverse, kind rotary"."""
    return ", ".join(f"{factor} {level}" for factor, level in cell.items())


def show(study: Study, measured: dict[str, float]) -> str:
    """The last measure, and whether the training diverged."""
    last = list(study.measures)[-1]
    return f"{last} {measured[last]:.3f}" + (", diverged" if measured["diverged"] else "")
