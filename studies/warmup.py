"""Where the norm stands, with a learning rate that rises at first or not, by learning rate and depth."""

from functools import partial

from .intervals import write
from .pictures import add_legend, draw_levels, make_figure
from .results import Results
from .statements import SOLVED, is_better, is_worse, say_difference
from .study import Cell, Claim, Study, cross
from .tasks import TASKS
from .training import Budget, draw_batches, evaluate, has_diverged, make_config, train

TASK = "sort"
STEPS, LENGTH, RISE = 150, 8, 50
NORMS = ("post", "pre")
WARMUPS = ("no", "yes")
RATES = (0.001, 0.003, 0.01)
DEPTHS = (6, 12)
QUICK_DEPTHS, QUICK_STEPS = (1, 2), 2


def make_study(quick: bool = False) -> Study:
    depths, steps = (QUICK_DEPTHS, QUICK_STEPS) if quick else (DEPTHS, STEPS)
    return Study(
        name="warmup",
        question="Does pre-norm train without warm-up, and post-norm not?",
        cells=cross(depth=depths, norm=NORMS, warmup=WARMUPS, learning_rate=RATES),
        measures={"loss": "of the test, in nats", "accuracy": "the part of the questions that is answered right"},
        train=partial(train_cell, quick=quick),
        seconds=lambda cell: 0.1 if quick else steps * 0.0034 * cell["depth"],
        budget=f"{TASK}: {steps} steps of 32 texts of {LENGTH}; 64 wide, {' or '.join(map(str, depths))} layers, "
        f"4 heads, sinusoidal positions, Adam without clipping; the learning rate is constant, or constant after "
        f"{RISE} steps of rising",
        limits="64 wide, a short task, a few hundred steps: translation models are eight times as wide and train for "
        "100,000 steps. Gradients are not clipped, and the learning rate does not fall.",
        claims=[
            Claim(
                "Pre-norm needs no warm-up, and post-norm does.",
                "post-norm with Adam: BLEU 8.45 without warm-up, about 34 with it; pre-norm about 34 without "
                "(Xiong et al. 2020)",
                say_warmup,
            )
        ],
        conclude=conclude,
        advise=advise,
        draw=draw,
    )


def train_cell(cell: Cell, seed: int, quick: bool) -> dict[str, float]:
    task = TASKS[TASK]
    budget = Budget(
        steps=QUICK_STEPS if quick else STEPS,
        batch_size=8 if quick else 32,
        length=LENGTH,
        shortest=LENGTH,
        learning_rate=cell["learning_rate"],
        warmup=RISE if cell["warmup"] == "yes" else 0,
        decays=False,
        max_grad_norm=None,
    )
    fields = {"num_hidden_layers": cell["depth"], "pre_norm": cell["norm"] == "pre"}
    model = task.head(make_config(task, "sinusoidal", **fields))
    losses, seconds = train(model, draw_batches(task, budget, seed), budget)
    loss, accuracy = evaluate(model, task, LENGTH, quick)
    return {"loss": loss, "accuracy": accuracy, "diverged": has_diverged(losses), "seconds": seconds}


def settings(results: Results, norm: str) -> list[Cell]:
    """Every depth and learning rate, with one norm."""
    depths = sorted({cell["depth"] for cell in results.study.cells})
    return [{"norm": norm, "depth": depth, "learning_rate": rate} for depth in depths for rate in RATES]


def effect(results: Results, cell: Cell):
    """How much better warm-up makes a setting."""
    return results.compare("accuracy", {**cell, "warmup": "yes"}, {**cell, "warmup": "no"})


def say_warmup(results: Results) -> str:
    """For each norm, in how many settings warm-up helps, and the accuracy without it at its best."""
    parts = []
    for norm in NORMS:
        cells = settings(results, norm)
        effects = [effect(results, cell) for cell in cells]
        counts = f"{sum(map(is_better, effects))} of {len(cells)} settings, worse in {sum(map(is_worse, effects))}"
        diverged = results.diverged(norm=norm, warmup="no"), results.diverged(norm=norm, warmup="yes")
        parts.append(
            f"{norm}-norm is better with warm-up in {counts} (the others show no difference); best mean accuracy "
            f"{say_best(results, cells, 'no')} without, {say_best(results, cells, 'yes')} with; "
            f"{diverged[0]} trainings diverged without, {diverged[1]} with."
        )
    return " ".join(parts)


def say_best(results: Results, cells: list[Cell], warmup: str) -> str:
    """The best setting's accuracy, with its interval, depth and learning rate."""
    best = max(cells, key=lambda cell: results.mean("accuracy", warmup=warmup, **cell).mean)
    own = results.mean("accuracy", warmup=warmup, **best)
    return f"{write(own)} ({best['depth']} layers, {best['learning_rate']:g})"


def conclude(results: Results) -> list[str]:
    sentences = []
    for norm in NORMS:
        for cell in settings(results, norm):
            where = f"{norm}-norm, {cell['depth']} layers, learning rate {cell['learning_rate']:g}"
            sentences.append(f"{where}: {say_difference(effect(results, cell), 'accuracy', 'warm-up', 'no warm-up')}")
    for cell in settings(results, "pre"):
        first, second = ({**cell, "norm": norm, "warmup": "no"} for norm in ("pre", "post"))
        where = f"Without warm-up, {cell['depth']} layers, learning rate {cell['learning_rate']:g}"
        apart = results.compare("accuracy", first, second)
        sentences.append(f"{where}: {say_difference(apart, 'accuracy', 'pre-norm', 'post-norm')}")
    return sentences


def advise(results: Results) -> list[tuple[str, str, str]]:
    """For each depth the settings whose interval lies above 0.95, the control of what solves the task."""
    rows = []
    for depth in sorted({cell["depth"] for cell in results.study.cells}):
        solved = [
            f"{cell['norm']}-norm at {cell['learning_rate']:g} with{'' if cell['warmup'] == 'yes' else 'out'} warm-up"
            for cell in results.study.cells
            if cell["depth"] == depth and results.mean("accuracy", **cell).low >= SOLVED
        ]
        reason = f"study `warmup`: the settings whose accuracy is shown to be at least {SOLVED}"
        rows.append((f"{depth} layers, few steps", "; ".join(solved) or "none was shown to solve the task", reason))
    return rows


def draw(results: Results):
    depths = sorted({cell["depth"] for cell in results.study.cells})
    figure, all_axes = make_figure(len(NORMS), "Norm placement and warm-up (mean, 95 % interval)", rows=len(depths))
    for axes, (depth, norm) in zip(all_axes, ((d, n) for d in depths for n in NORMS), strict=True):
        draw_levels(axes, results, "accuracy", "learning_rate", RATES, ("warmup", WARMUPS), norm=norm, depth=depth)
        axes.set_title(f"{norm}-norm, {depth} layers")
        axes.set_ylim(-0.05, 1.05)
    add_legend(figure, all_axes[0])
    return figure
