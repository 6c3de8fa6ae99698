"""Token embeddings times sqrt(hidden_size) or not, for several sizes of the initial weights."""

from functools import partial

from .intervals import write
from .pictures import add_legend, draw_levels, make_figure
from .results import Results
from .statements import is_worse, say_difference
from .study import Cell, Claim, Study, cross
from .tasks import TASKS
from .training import Budget, draw_batches, evaluate, has_diverged, initial_deviation, make_config, train

TASK = "reverse"
BUDGET = Budget(steps=250, length=8, shortest=8)
QUICK = Budget(steps=2, length=8, shortest=4, batch_size=4)
KINDS = ("learned", "sinusoidal")
DEVIATIONS = (0.005, 0.02, round(initial_deviation(64), 2))
SCALES = ("no", "yes")


def make_study(quick: bool = False) -> Study:
    budget = QUICK if quick else BUDGET
    return Study(
        name="scaling",
        question="Do positions drown tokens, or tokens positions, without sqrt(hidden_size)?",
        cells=cross(kind=KINDS, scale_embedding=SCALES, initializer_range=DEVIATIONS),
        measures={"loss": "of the test, in nats", "accuracy": "the part of the questions that is answered right"},
        train=partial(train_cell, quick=quick),
        seconds=lambda cell: 0.1 if quick else budget.steps * 0.009,
        budget=f"{TASK}: {budget}; "
        f"64 wide, 2 layers, 4 heads, post-norm, Adam at {budget.learning_rate:g} with warm-up",
        limits="One width, 64: sqrt(hidden_size) is 8 here and 28 in BERT-base. `initializer_range` sets every weight, "
        "not the embeddings alone. All models have the LayerNorm on the sum (`embedding_norm`).",
        claims=[
            Claim(
                'Without sqrt(d) "positions drown the tokens".',
                "said in tutorials, without a figure; Vaswani et al. 2017, section 3.4, multiply and give no reason",
                lambda results: " ".join(conclude(results)[: len(DEVIATIONS) * len(KINDS)]),
            )
        ],
        conclude=conclude,
        advise=advise,
        draw=draw,
    )


def train_cell(cell: Cell, seed: int, quick: bool) -> dict[str, float]:
    task, budget = TASKS[TASK], QUICK if quick else BUDGET
    fields = {"scale_embedding": cell["scale_embedding"] == "yes", "initializer_range": cell["initializer_range"]}
    model = task.head(make_config(task, cell["kind"], **fields))
    losses, seconds = train(model, draw_batches(task, budget, seed), budget)
    loss, accuracy = evaluate(model, task, budget.length, quick)
    return {"loss": loss, "accuracy": accuracy, "diverged": has_diverged(losses), "seconds": seconds}


def conclude(results: Results) -> list[str]:
    sentences = []
    for kind in KINDS:
        for deviation in DEVIATIONS:
            cell = {"kind": kind, "initializer_range": deviation}
            apart = results.compare("accuracy", {**cell, "scale_embedding": "yes"}, {**cell, "scale_embedding": "no"})
            where = f"`{kind}`, `initializer_range={deviation}`"
            sentences.append(f"{where}: {say_difference(apart, 'accuracy', 'scaling', 'no scaling')}")
    for kind in KINDS:
        pairs = best_pairs(results, kind)
        scale, deviation = pairs[0]
        own = results.mean("accuracy", kind=kind, scale_embedding=scale, initializer_range=deviation)
        sentences.append(
            f"`{kind}` is best {write_pair(scale, deviation)}: accuracy {write(own)}; {len(pairs) - 1} of the other "
            f"{len(SCALES) * len(DEVIATIONS) - 1} settings are not shown to be worse."
        )
    return sentences


def best_pairs(results: Results, kind: str) -> list[tuple[str, float]]:
    """Scale and deviation of the settings that are not shown to be worse than the best, the best first."""
    pairs = [(scale, deviation) for scale in SCALES for deviation in DEVIATIONS]

    def cell(pair: tuple[str, float]) -> Cell:
        return {"kind": kind, "scale_embedding": pair[0], "initializer_range": pair[1]}

    pairs.sort(key=lambda pair: -results.mean("accuracy", **cell(pair)).mean)
    return [pair for pair in pairs if not is_worse(results.compare("accuracy", cell(pair), cell(pairs[0])))]


def write_pair(scale: str, deviation: float) -> str:
    return f"with `scale_embedding={scale == 'yes'}, initializer_range={deviation}`"


def advise(results: Results) -> list[tuple[str, str, str]]:
    rows = []
    for kind in KINDS:
        pairs = best_pairs(results, kind)
        choice = "; ".join(f"`scale_embedding={scale == 'yes'}, initializer_range={d}`" for scale, d in pairs)
        own = results.mean("accuracy", kind=kind, scale_embedding=pairs[0][0], initializer_range=pairs[0][1])
        reason = f"study `scaling`: accuracy {write(own)} for the first"
        rows.append((f"`{kind}` positions from random weights, 64 wide", choice, reason))
    return rows


def draw(results: Results):
    figure, all_axes = make_figure(len(KINDS), "Scaling of token embeddings (mean, 95 % interval)")
    for axes, kind in zip(all_axes, KINDS, strict=True):
        draw_levels(axes, results, "accuracy", "initializer_range", DEVIATIONS, ("scale_embedding", SCALES), kind=kind)
        axes.set_title(kind)
        axes.set_ylim(0, 1.05)
    add_legend(figure, all_axes[0])
    return figure
