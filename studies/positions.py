"""Every kind of position, on tasks where order matters."""

from functools import partial

from plainformer.positions_plainformer import POSITION_KINDS

from .intervals import write
from .pictures import draw_levels, make_figure
from .results import Results
from .statements import as_good, control_fails, join, say_control, say_difference, say_solved
from .study import Cell, Claim, Study, cross
from .tasks import TASKS
from .training import Budget, draw_batches, evaluate, has_diverged, make_config, train

CONTROL = "none"
KINDS = tuple(POSITION_KINDS)
BUDGETS = {
    "reverse": Budget(steps=300, length=8, shortest=8),
    "sort": Budget(steps=200, length=8, shortest=8),
    "letters": Budget(steps=300, length=16, shortest=16),
}
QUICK = Budget(steps=2, length=8, shortest=4, batch_size=4)
MEASURES = {"loss": "of the test, in nats", "accuracy": "the part of the questions that is answered right"}
MEASURE_OF = {"reverse": "accuracy", "sort": "accuracy", "letters": "loss"}


def make_study(quick: bool = False) -> Study:
    return Study(
        name="positions",
        question="Which kind of position learns a task where order matters, and does the control fail?",
        cells=cross(task=list(BUDGETS), kind=KINDS),
        measures=MEASURES,
        train=partial(train_cell, quick=quick),
        seconds=lambda cell: 0.1 if quick else BUDGETS[cell["task"]].steps * 0.009,
        budget=write_budget(quick),
        limits="Texts of 8 symbols or 16 letters, models of 100,000 weights, one learning rate for all: who is "
        "slower here may be as good in the end. Where several kinds solve a task, accuracy cannot tell them apart. "
        "Translation, which the published figures are of, was not tried.",
        claims=[
            Claim(
                "Learned positions are as good as sinusoidal ones.",
                "BLEU 25.8 sinusoidal, 25.7 learned (Vaswani et al. 2017, table 3, rows base and E)",
                compare_tables,
            )
        ],
        conclude=conclude,
        advise=advise,
        draw=draw,
    )


def write_budget(quick: bool) -> str:
    """What all cells have, in words."""
    budgets = dict.fromkeys(BUDGETS, QUICK) if quick else BUDGETS
    parts = [f"{task}: {budget}" for task, budget in budgets.items()]
    return f"{'; '.join(parts)}; 64 wide, 2 layers, 4 heads, post-norm, Adam at {QUICK.learning_rate:g} with warm-up"


def train_cell(cell: Cell, seed: int, quick: bool) -> dict[str, float]:
    task, budget = TASKS[cell["task"]], QUICK if quick else BUDGETS[cell["task"]]
    model = task.head(make_config(task, cell["kind"]))
    losses, seconds = train(model, draw_batches(task, budget, seed), budget)
    loss, accuracy = evaluate(model, task, budget.length, quick)
    return {"loss": loss, "accuracy": accuracy, "diverged": has_diverged(losses), "seconds": seconds}


def compare_tables(results: Results) -> str:
    """Learned against sinusoidal positions, for each task."""
    parts = []
    for task, measure in MEASURE_OF.items():
        apart = results.compare(measure, {"task": task, "kind": "learned"}, {"task": task, "kind": "sinusoidal"})
        parts.append(f"{task}: {say_difference(apart, measure, '`learned`', '`sinusoidal`')}")
    return " ".join(parts)


def conclude(results: Results) -> list[str]:
    sentences = []
    for task, measure in MEASURE_OF.items():
        kinds = [kind for kind in KINDS if kind != CONTROL]
        control = say_control(results, measure, "kind", CONTROL, KINDS, task=task)
        good = as_good(results, measure, "kind", kinds, task=task)
        worse = [kind for kind in kinds if kind not in good]
        solved = f" {say_solved(results, measure, 'kind', kinds, task=task)}" if measure == "accuracy" else ""
        sentences.append(f"**{task}.** {control}{solved} {say_ranking(results, task, measure, good, worse)}")
    return sentences


def say_ranking(results: Results, task: str, measure: str, good: list, worse: list) -> str:
    """The best kind, those not shown to be worse than it, and those shown to be."""
    best = f"Best is `{good[0]}` ({measure} {write(results.mean(measure, task=task, kind=good[0]))})"
    same = f"; {join(good[1:])} {'is' if len(good) == 2 else 'are'} not shown to be worse" if good[1:] else ""
    rest = [f"`{kind}` ({write(results.mean(measure, task=task, kind=kind))})" for kind in worse]
    return f"{best}{same}{'; worse than it: ' + ', '.join(rest) if rest else ''}."


def advise(results: Results) -> list[tuple[str, str, str]]:
    kinds = [kind for kind in KINDS if kind != CONTROL]
    rows = []
    for task, measure in MEASURE_OF.items():
        if not control_fails(results, measure, "kind", CONTROL, KINDS, task=task):
            continue
        good = as_good(results, measure, "kind", kinds, task=task)
        purpose = "masked LM, texts as long as in training" if task == "letters" else f"a rule of order ({task})"
        mean = write(results.mean(measure, task=task, kind=good[0]))
        reason = f"study `positions`: {measure} of `{good[0]}` {mean}, the others not shown to be worse"
        rows.append((purpose, join(good), reason if good[1:] else reason.partition(", the others")[0]))
    return rows


def draw(results: Results):
    figure, all_axes = make_figure(len(BUDGETS), "Positions: the same budget for every kind (mean, 95 % interval)")
    for axes, (task, measure) in zip(all_axes, MEASURE_OF.items(), strict=True):
        draw_levels(axes, results, measure, "kind", KINDS, ("task", [task]))
        axes.set_title(task)
        axes.tick_params(axis="x", rotation=30)
    return figure
