"""Trained on texts up to L, tested on texts up to 4 L: every kind, with counted positions and with random ones."""

from functools import partial

from plainformer.positions_plainformer import POSITION_KINDS

from .intervals import Interval, mean_interval, write
from .pictures import add_legend, draw_curve, make_figure
from .results import Results
from .statements import is_better, is_worse, join, say_difference
from .study import Cell, Claim, Study, cross, is_lower_better
from .tasks import TASKS
from .training import Budget, draw_batches, evaluate, has_diverged, make_config, train

TRAINED = 12  # L
LENGTHS = (12, 15, 18, 24, 36, 48)
POSITIONS = 4 * TRAINED + 2  # with the special tokens of a text
BUDGETS = {
    "second before": Budget(steps=150, length=TRAINED, shortest=4),
    "letters": Budget(steps=300, length=TRAINED, shortest=TRAINED),
}
QUICK = Budget(steps=2, length=TRAINED, shortest=4, batch_size=4)
MEASURE_OF = {"second before": "accuracy", "letters": "loss"}
KINDS = tuple(POSITION_KINDS)
DRAWN = {"counted": 0, "random": POSITIONS}


def make_study(quick: bool = False) -> Study:
    cells = [cell for cell in cross(task=list(BUDGETS), kind=KINDS, positions=list(DRAWN)) if is_cell(cell)]
    budgets = dict.fromkeys(BUDGETS, QUICK) if quick else BUDGETS
    parts = [f"{task}: {budget}" for task, budget in budgets.items()]
    return Study(
        name="length",
        question=f"Trained on texts of at most {TRAINED} symbols: what is left at up to {LENGTHS[-1]}?",
        cells=cells,
        measures={f"{what} at {length}": "" for what in ("accuracy", "loss") for length in LENGTHS},
        train=partial(train_cell, quick=quick),
        seconds=lambda cell: 0.2 if quick else BUDGETS[cell["task"]].steps * 0.009 + 0.4,
        budget=f"{'; '.join(parts)}; random positions below {POSITIONS}; 64 wide, 2 layers, 4 heads, post-norm, "
        f"Adam at {QUICK.learning_rate:g} with warm-up",
        limits="Lengths of 12 to 48, two layers. `second before` asks for one fixed distance, and letters are guessed "
        "from their neighbours: tasks that need the whole text may behave otherwise. ALiBi is symmetric in an encoder "
        "and cannot tell before from after; its authors' figures are of causal language models.",
        claims=[
            Claim(
                "Sinusoids extrapolate to longer texts.",
                "trained at 512 tokens, better up to +20, flat to +50, then worse (Press et al. 2022)",
                partial(say_growth, kind="sinusoidal"),
            ),
            Claim(
                "ALiBi extrapolates.",
                "trained at 1,024 tokens, at 2,048 as good as a sinusoidal model trained at 2,048 (Press et al. 2022)",
                partial(say_growth, kind="alibi"),
            ),
            Claim(
                "Random positions help at lengths that were not trained.",
                "12 points of accuracy at lengths that were not trained (Ruoss et al. 2023)",
                say_random,
            ),
        ],
        conclude=conclude,
        advise=advise,
        draw=draw,
    )


def is_cell(cell: Cell) -> bool:
    """Without positions there is nothing to draw at random."""
    return cell["positions"] == "counted" or POSITION_KINDS[cell["kind"]].reads_positions


def train_cell(cell: Cell, seed: int, quick: bool) -> dict[str, float]:
    task, budget = TASKS[cell["task"]], QUICK if quick else BUDGETS[cell["task"]]
    fields = {"randomize_positions": DRAWN[cell["positions"]], "max_position_embeddings": POSITIONS}
    model = task.head(make_config(task, cell["kind"], **fields))
    losses, seconds = train(model, draw_batches(task, budget, seed), budget)
    measured = {"diverged": has_diverged(losses), "seconds": seconds}
    for length in LENGTHS:
        loss, accuracy = evaluate(model, task, length, quick)
        measured |= {f"loss at {length}": loss, f"accuracy at {length}": accuracy}
    return measured


def growth(results: Results, measure: str, length: int, **cell: object) -> Interval:
    """How much better a model is at `length` than at L; a difference within each model."""
    pairs = [(row[f"{measure} at {length}"], row[f"{measure} at {TRAINED}"]) for row in results.of(**cell)]
    changes = [float(there) - float(here) for there, here in pairs if there and here]
    apart = mean_interval(changes)
    return Interval(-apart.mean, apart.half) if is_lower_better(measure) else apart


def say_growth(results: Results, kind: str) -> str:
    """What becomes of a kind with counted positions, for each task: at which lengths it is worse than at L."""
    parts = []
    for task, measure in MEASURE_OF.items():
        cell = {"task": task, "kind": kind, "positions": "counted"}
        worse = [length for length in LENGTHS[1:] if is_worse(growth(results, measure, length, **cell))]
        last = growth(results, measure, LENGTHS[-1], **cell)
        here, there = (write(results.mean(f"{measure} at {length}", **cell)) for length in (TRAINED, LENGTHS[-1]))
        trend = "is better" if is_better(last) else "is not shown to be worse"
        verdict = f"is worse at {join(worse)}" if worse else f"{trend} at {LENGTHS[-1]}"
        sizes = f"{measure} {here} at {TRAINED}, {there} at {LENGTHS[-1]}"
        parts.append(f"{task}: `{kind}` {verdict} than at {TRAINED} ({sizes}).")
    return " ".join(parts)


def random_against_counted(results: Results, task: str, kind: str, length: int) -> tuple[Interval, str]:
    measure = f"{MEASURE_OF[task]} at {length}"
    first, second = ({"task": task, "kind": kind, "positions": positions} for positions in ("random", "counted"))
    return results.compare(measure, first, second), measure


def say_random(results: Results) -> str:
    """Which kinds random positions make better or worse, at L and at 4 L."""
    parts = []
    drawn = [kind for kind in KINDS if POSITION_KINDS[kind].reads_positions]
    for task in BUDGETS:
        for length in (LENGTHS[-1], TRAINED):
            differences = {kind: random_against_counted(results, task, kind, length)[0] for kind in drawn}
            better = [kind for kind, apart in differences.items() if is_better(apart)]
            worse = [kind for kind, apart in differences.items() if is_worse(apart)]
            gain = f"better with {join(better)}" if better else "with no kind shown to be better"
            rest = f", worse with {join(worse)}" if worse else ""
            parts.append(f"{task}, at {length}: random positions are {gain}{rest}.")
    return " ".join(parts)


def conclude(results: Results) -> list[str]:
    sentences = [f"Counted positions. {say_growth(results, kind)}" for kind in KINDS]
    for task in BUDGETS:
        for kind in KINDS:
            if POSITION_KINDS[kind].reads_positions:
                apart, measure = random_against_counted(results, task, kind, LENGTHS[-1])
                sentences.append(f"{task}, `{kind}`: {say_difference(apart, measure, 'random', 'counted')}")
    return sentences


def advise(results: Results) -> list[tuple[str, str, str]]:
    """For each task the kinds, with counted or random positions, that are not shown to be worse than the best."""
    rows = []
    for task, measure in MEASURE_OF.items():
        at_last = f"{measure} at {LENGTHS[-1]}"
        cells = [cell for cell in results.study.cells if cell["task"] == task]
        sign = 1 if is_lower_better(measure) else -1
        cells.sort(key=lambda cell: sign * results.mean(at_last, **cell).mean)
        good = [cell for cell in cells if not is_worse(results.compare(at_last, cell, cells[0]))]
        choice = ", ".join(f"`{cell['kind']}` with {cell['positions']} positions" for cell in good)
        reason = f"study `length`: {at_last} {write(results.mean(at_last, **good[0]))} for the first"
        rows.append((f"texts up to 4 times as long as in training ({task})", choice, reason))
    return rows


def draw(results: Results):
    title = f"Trained up to {TRAINED}, tested up to {LENGTHS[-1]} (mean, 95 % interval)"
    figure, all_axes = make_figure(len(DRAWN), title, rows=len(BUDGETS))
    for axes, (task, positions) in zip(all_axes, ((t, p) for t in BUDGETS for p in DRAWN), strict=True):
        measures = {length: f"{MEASURE_OF[task]} at {length}" for length in LENGTHS}
        for number, kind in enumerate(KINDS):
            cell = {"task": task, "kind": kind, "positions": positions}
            if is_cell(cell):
                draw_curve(axes, results, measures, cell, kind, number)
        axes.axvline(TRAINED, color="black", linewidth=0.8, linestyle=":")
        axes.set_title(f"{task}, {positions} positions")
        axes.set_xlabel("length of the text")
        axes.set_ylabel(MEASURE_OF[task])
    add_legend(figure, all_axes[0])
    for first, second in (all_axes[:2], all_axes[2:]):
        second.sharey(first)
    return figure
