"""Studies: intervals, what may be said of them, trainings that resume, and the page that is made of nothing else."""

import csv
import json
import math
import random
import re
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from helpers.scripts import run_main
from scipy import stats

from plainformer import PlainformerConfig, PlainformerModel
from plainformer.losses_plainformer import IGNORE_INDEX
from plainformer.recipes.errors import DataError, RecipeError
from studies import points, runner, tables
from studies.intervals import Interval, difference, mean_interval, write
from studies.results import Results, append_row, columns_of, read_results, to_row
from studies.statements import as_good, is_better, is_worse, say_control, say_difference, say_solved
from studies.tasks import FIRST, TASKS, mask_letters, pad, read_reviews
from studies.training import Budget, draw_batches, has_diverged, make_schedule

ROOT = Path(__file__).resolve().parents[2]
COMPARE = ROOT / "scripts" / "compare.py"


def invent(name: str, seeds: int = 3, **values) -> Results:
    """Results of a study that nobody trained: random numbers, or `values(cell, seed)` of a measure."""
    study, draw = runner.load_study(name, quick=True), random.Random(0)
    rows = []
    for seed in range(seeds):
        for cell in study.cells:
            measured = {measure: draw.random() for measure in study.measures} | {
                "diverged": 0,
                "seconds": 1 + draw.random(),
            }
            measured |= {measure: value(cell, seed) for measure, value in values.items()}
            rows.append(to_row(study, cell, seed, measured))
    return Results(study, rows)


# Intervals and sentences


def test_intervals_are_those_of_student_and_welch():
    first, second = [0.91, 0.95, 0.93, 0.99, 0.90], [0.70, 0.85, 0.60, 0.92]
    own = mean_interval(first)
    expected = stats.t.interval(0.95, 4, loc=own.mean, scale=stats.sem(first))
    assert (own.low, own.high) == pytest.approx(expected)
    assert own.half == pytest.approx(2.776445 * stats.sem(first), rel=1e-6)  # the t of any table, 4 degrees of freedom
    welch = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    apart = difference(first, second)
    assert (apart.low, apart.high) == pytest.approx((welch.low, welch.high))


def test_one_value_has_no_interval_and_equal_values_one_of_no_width():
    assert math.isnan(mean_interval([0.5]).half) and not mean_interval([0.5]).excludes(0)
    assert math.isnan(difference([0.5], [0.1, 0.2]).half)
    assert math.isnan(mean_interval([]).mean)
    assert difference([1.0, 1.0], [0.5, 0.5]) == Interval(0.5, 0.0)
    assert write(Interval(0.5, 0.25)) == "0.500 (0.250 to 0.750)" and write(Interval(0.5, math.nan)) == "0.500"


@pytest.mark.parametrize(
    "mean, half, begin",
    [
        (0.2, 0.1, "A is better than B: 0.200"),
        (-0.2, 0.1, "A is worse than B, which has 0.200"),
        (0.2, 0.3, "No difference"),
    ],
)
def test_better_and_worse_are_said_of_intervals_alone(mean, half, begin):
    apart = Interval(mean, half)
    assert say_difference(apart, "accuracy", "A", "B").startswith(begin)
    assert (is_better(apart), is_worse(apart)) == (begin.startswith("A is better"), begin.startswith("A is worse"))
    assert "cannot be compared" in say_difference(Interval(mean, math.nan), "accuracy", "A", "B")


def test_lower_losses_are_better():
    results = invent("positions", loss=lambda cell, seed: (1 if cell["kind"] == "rotary" else 2) + seed / 100)
    kinds = {kind: {"task": "letters", "kind": kind} for kind in ("rotary", "learned")}
    assert results.compare("loss", kinds["rotary"], kinds["learned"]).mean == pytest.approx(1)
    assert as_good(results, "loss", "kind", list(kinds), task="letters") == ["rotary"]


@pytest.mark.parametrize(
    "control, others, sentence",
    [
        (0.1, 0.99, "The control `none` fails, as it must: accuracy 0.100"),
        (0.9, 0.99, "shows nothing, since the task is too easy: the control `none` has accuracy 0.900"),
        (0.1, 0.1, "shows nothing, since the budget is too small, or the task too hard"),
    ],
)
def test_a_control_that_does_not_fail_is_reported(control, others, sentence):
    results = invent(
        "positions", accuracy=lambda cell, seed: control if cell["kind"] == "none" else others + seed / 1e6
    )
    kinds = [cell["kind"] for cell in results.study.cells if cell["task"] == "sort"]
    assert sentence in say_control(results, "accuracy", "kind", "none", kinds, task="sort")
    solved = say_solved(results, "accuracy", "kind", kinds, task="sort")
    assert ("solves the task" in solved) == (others > 0.95)


def test_diverged_trainings_are_counted_and_have_no_loss():
    assert has_diverged([2.0, 1.0, math.nan]) and has_diverged([1.0, 3.0]) and not has_diverged([2.0, 1.9])

    def loss(cell, seed):
        return math.nan if cell["kind"] == "alibi" and seed == 0 else 1.0

    results = invent("positions", loss=loss, diverged=lambda cell, seed: int(math.isnan(loss(cell, seed))))
    cell = {"task": "sort", "kind": "alibi"}
    assert results.diverged(**cell) == 1 and results.diverged() == 3
    assert results.values("loss", **cell) == [1.0, 1.0]
    assert [row["loss"] for row in results.of(**cell)] == ["", "1", "1"]
    line = next(line for line in tables.cell_table(results).splitlines() if line.startswith("| sort | alibi"))
    assert "1 of 3" in line


# Tasks and trainings


def test_rules_are_what_they_say():
    draw = torch.Generator().manual_seed(0)
    symbols = {name: TASKS[name].draw(3, 6, draw, for_test=False) for name in ("reverse", "sort", "second before")}
    for batch in symbols.values():
        assert batch["input_ids"].shape == batch["labels"].shape == (3, 8)
        assert set(batch["labels"][:, [0, -1]].flatten().tolist()) == {IGNORE_INDEX}
    text, answer = (
        ((batch := symbols["reverse"])["input_ids"] - FIRST)[0, 1:-1].tolist(),
        batch["labels"][0, 1:-1].tolist(),
    )
    assert answer == text[::-1]
    text, answer = (
        ((batch := symbols["sort"])["input_ids"] - FIRST)[0, 1:-1].tolist(),
        batch["labels"][0, 1:-1].tolist(),
    )
    assert answer == sorted(text)
    text, answer = (
        ((batch := symbols["second before"])["input_ids"] - FIRST)[0, 1:-1].tolist(),
        batch["labels"][0, 1:-1],
    )
    assert answer.tolist() == [IGNORE_INDEX, IGNORE_INDEX, *text[:-2]]


def test_letters_and_characters_are_masked_where_they_are_asked():
    draw = torch.Generator().manual_seed(0)
    letters = TASKS["letters"].draw(200, 20, draw, for_test=True)
    reviews = mask_letters(pad(read_reviews(20).texts["train"][:200]), draw)
    for batch in (letters, reviews):
        asked = batch["labels"] != IGNORE_INDEX
        assert (
            torch.equal(asked, batch["input_ids"] == 3) or batch is reviews and (batch["input_ids"][asked] == 3).all()
        )
        assert 0.1 < asked.sum() / (batch["input_ids"] >= 3).sum() < 0.2
    assert reviews["attention_mask"].sum() == (reviews["input_ids"] != 0).sum()


def test_batches_depend_on_the_seed_alone():
    budget = Budget(steps=3, length=9, shortest=4, batch_size=2)
    first, again, other = (list(draw_batches(TASKS["sort"], budget, seed)) for seed in (0, 0, 1))
    assert all(torch.equal(a["input_ids"], b["input_ids"]) for a, b in zip(first, again, strict=True))
    assert not all(
        torch.equal(a["input_ids"], b["input_ids"])
        for a, b in zip(first, other, strict=True)
        if a["input_ids"].shape == b["input_ids"].shape
    )
    assert all(6 <= batch["input_ids"].shape[1] <= 11 for batch in first)


def test_learning_rates_rise_and_fall():
    part = make_schedule(Budget(steps=110, length=1, shortest=1, warmup=10))
    assert [part(0), part(9), round(part(60), 6), round(part(110), 6)] == [0.1, 1.0, 0.5, 0.0]
    assert make_schedule(Budget(steps=10, length=1, shortest=1, warmup=0, decays=False))(9) == 1.0


@pytest.mark.parametrize("name", runner.NAMES)
def test_every_study_measures_and_concludes(name):
    """One training of a few steps gives every measure; sentences, advice, table and picture come of any numbers."""
    study = runner.load_study(name, quick=True)
    measured = runner.train_cell(name, True, len(study.cells) - 1, seed=0)
    assert set(measured) == {*study.measures, "diverged", "seconds"}
    results = invent(name)
    sentences = study.conclude(results) + [claim.here(results) for claim in study.claims]
    assert sentences and all(re.search(r"\d", sentence) for sentence in sentences)
    assert all(len(row) == 3 and all(row) for row in study.advise(results))
    assert len(tables.cell_table(results).splitlines()) == 2 + len(study.cells)
    assert study.draw(results).axes


@pytest.mark.parametrize("name", runner.NAMES)
def test_a_study_ends_within_three_hours(name):
    study = runner.load_study(name)
    assert runner.estimate(study, seeds=5, workers=2) < 3 * 3600


# Runs that are interrupted


def complete(folder: Path, **options) -> tuple[Results, list[str]]:
    """The study of padding, quick, with two seeds; and what was printed."""
    lines: list[str] = []
    options = {"quick": True, "workers": 1, **options}
    return runner.complete(runner.load_study("padding", True), 2, folder, say=lines.append, **options), lines


def without_times(results: Results) -> list[dict]:
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in results.rows]
    return sorted(rows, key=str)


def test_an_interrupted_study_goes_on_where_it_was(tmp_path, monkeypatch):
    whole, lines = complete(tmp_path / "whole")
    assert lines[0] == "0 trainings are there, 4 to go" and lines[-1].endswith("; 0 s left")
    assert whole.seeds == 2 and len(whole.rows) == 4

    train_cell, count = runner.train_cell, iter(range(9))

    def break_off(*args):
        if next(count) == 3:
            raise KeyboardInterrupt
        return train_cell(*args)

    monkeypatch.setattr(runner, "train_cell", break_off)
    with pytest.raises(KeyboardInterrupt):
        complete(tmp_path / "broken")
    path = tmp_path / "broken" / runner.ROWS
    content = path.read_text()
    assert len(content.splitlines()) == 4
    path.write_text(content[:-9])  # the last line was not written to its end
    resumed, lines = complete(tmp_path / "broken")
    assert lines[0] == "2 trainings are there, 2 to go"
    assert without_times(resumed) == without_times(whole)
    assert complete(tmp_path / "broken")[1] == ["4 trainings are there, 0 to go"]


def test_two_processes_give_the_same(tmp_path, monkeypatch):
    one, _ = complete(tmp_path / "one")
    monkeypatch.setattr(runner, "get_context", lambda _: get_context("fork"))  # which starts at once
    two, _ = complete(tmp_path / "two", workers=2)
    assert without_times(two) == without_times(one)


def test_results_of_two_budgets_are_not_mixed(tmp_path):
    complete(tmp_path / "a")
    with pytest.raises(RecipeError, match="holds results with quick True, not False, which cannot be mixed"):
        complete(tmp_path / "a", quick=False)
    marker = tmp_path / "a" / runner.MARKER
    marker.write_text(marker.read_text().replace("masked LM", "something"))
    with pytest.raises(RecipeError, match="holds results with budget 'something"):
        complete(tmp_path / "a")
    marker.write_text("[")
    with pytest.raises(DataError, match="cannot be read"):
        complete(tmp_path / "a")


def test_damaged_results_are_refused(tmp_path):
    results, path = invent("padding"), tmp_path / "results.csv"
    for row in results.rows:
        append_row(path, results.study, row)
    assert read_results(path, results.study).rows == results.rows
    content = path.read_text()
    for damage, message in [
        (content + content.splitlines()[1] + "\n", "is there twice"),
        (content.replace("left out", "left", 1), "is no cell of the study"),
        (content.replace("seed", "sed", 1), "its columns are not those of the study padding"),
    ]:
        path.write_text(damage)
        with pytest.raises(DataError, match=message):
            read_results(path, results.study)


# The command


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "give either --study"),
        (["--study", "padding", "--report", "x.md"], "give either --study"),
        (["--study", "padding"], "give --output_dir FOLDER for the results, or --list"),
        (["--study", "padding", "--list", "--seeds", 1], "--seeds 1: give a whole number of at least 2: an interval"),
        (["--study", "padding", "--list", "--workers", 0], "--workers 0: give a whole number of at least 1."),
        (["--study", "paddings"], "invalid choice: 'paddings'"),
        (["--report", "nowhere/page.md"], "there are no results in nowhere/studies"),
        (["--study", "padding", "--output_dir", "full"], "--output_dir full is not empty, and holds no study"),
    ],
)
def test_bad_input_is_refused_in_a_line(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("all my work")
    result = run_main(COMPARE, *words)
    assert result.returncode == 2 and message in result.stdout and "Traceback" not in result.stdout
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "thesis.txt"]


def test_a_missing_package_is_named_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run_main(COMPARE, "--study", "padding", "--quick", "--output_dir", tmp_path / "out")
    assert result.returncode == 2 and 'pip install "plainformer[plots]"' in result.stdout
    assert not (tmp_path / "out").exists()


def test_cells_and_time_are_shown_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run_main(COMPARE, "--study", "positions", "--list", "--seeds", 7)
    assert result.returncode == 0 and not list(tmp_path.iterdir())
    assert re.search(r"task reverse, kind rotary: about \d+ s for each of 7 seeds", result.stdout)
    assert re.search(r"positions: 126 trainings, about \d+ min with 2 at a time", result.stdout)


def test_the_command_writes_rows_table_and_picture(tmp_path):
    words = ["--study", "padding", "--quick", "--seeds", 2, "--workers", 1, "--output_dir", tmp_path / "out"]
    result = run_main(COMPARE, *words)
    assert result.returncode == 0, result.stdout
    assert "- One curve: the losses fall from" in result.stdout
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"results.csv", "study.json", "table.md", "picture.png"}
    with (tmp_path / "out" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 and list(rows[0]) == columns_of(runner.load_study("padding", True))
    curves = {
        padding: [row["loss at 4"] for row in rows if row["padding"] == padding] for padding in ("left out", "computed")
    }
    assert [float(a) for a in curves["left out"]] == pytest.approx([float(b) for b in curves["computed"]], abs=1e-4)


# The page


def test_the_page_is_what_the_results_give():
    """`python scripts/compare.py --report docs/choosing.md` makes it."""
    assert (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8") == tables.write_page(ROOT / "docs" / "studies")


def test_the_page_says_which_studies_were_not_run(tmp_path):
    results = invent("padding")
    study = runner.load_study("padding")
    assert "`padding`: Is a training" in tables.write_page(tmp_path)
    folder = tmp_path / "padding"
    folder.mkdir()
    rows = [{**row, **dict.fromkeys(study.measures, "1")} for row in results.rows]
    rows = [{column: row[column] for column in columns_of(study)} for row in rows]
    for row in rows[:3]:
        append_row(folder / runner.ROWS, study, row)
    settings = runner.settings_of(study, False)
    (folder / runner.MARKER).write_text(json.dumps(settings))
    assert "padding" not in tables.read_all(tmp_path)  # two seeds are not there
    for row in rows[3:5]:
        append_row(folder / runner.ROWS, study, row)
    assert tables.read_all(tmp_path)["padding"].rows == rows[:4]  # the third seed is not whole
    assert "## Study: padding" in (page := tables.write_page(tmp_path)) and "Not finished: 2 of 5 seeds" in page
    (folder / runner.MARKER).write_text(json.dumps({**settings, "budget": "another"}))
    assert "padding" not in tables.read_all(tmp_path)


@pytest.mark.parametrize("point", points.POINTS, ids=lambda point: point.name)
def test_every_starting_point_builds(point):
    """From the lines that the page shows."""
    scope: dict = {}
    exec(points.write_point(point), scope)
    assert scope["config"] == PlainformerConfig(**point.fields)
    with torch.device("meta"):
        model = PlainformerModel(scope["config"])
    assert point.weights() == f"{model.num_parameters() / 1e6:.1f} million"
    if point.name == "BERT-base":
        assert model.num_parameters() == 108_891_648  # the 109,482,240 of BertModel, less its pooler
    if (
        "Transformer" in point.name
    ):  # 37,000 x 512, and six layers of 4 x 512 x 512 and 2 x 512 x 2048 with their biases
        layer = 4 * (512 * 512 + 512) + 2 * 512 * 2048 + 2048 + 512 + 4 * 512
        assert model.num_parameters() == 37000 * 512 + 6 * layer
