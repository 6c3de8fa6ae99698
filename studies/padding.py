"""The same training with padding computed and left out: one curve of losses, two times."""

from functools import partial

import torch

from plainformer import PlainformerConfig, PlainformerForMaskedLM

from .intervals import Interval, mean_interval, write
from .pictures import COLOURS, add_legend, draw_curve, make_figure
from .results import Results
from .study import Cell, Claim, Study, cross
from .tasks import Batch, mask_letters, pad, read_reviews
from .training import Budget, has_diverged, initial_deviation, train

LENGTH, STEPS, EVERY = 126, 60, 10
QUICK_LENGTH, QUICK_STEPS, QUICK_EVERY = 30, 4, 2
UNPAD = {"left out": True, "computed": False}


def make_study(quick: bool = False) -> Study:
    length, steps, every = (QUICK_LENGTH, QUICK_STEPS, QUICK_EVERY) if quick else (LENGTH, STEPS, EVERY)
    batch_size = 4 if quick else 32
    return Study(
        name="padding",
        question="Is a training without padding the same training, and how much faster is it?",
        cells=cross(padding=list(UNPAD)),
        measures={f"loss at {step}": "of the training" for step in (1, *range(every, steps + 1, every))},
        train=partial(train_cell, length=length, budget=Budget(steps, length, 1, batch_size, warmup=10)),
        seconds=lambda cell: 0.2 if quick else steps * 0.1,
        budget=f"masked LM of the characters of Chinese reviews, cut at {length}: {steps} steps of {batch_size} in "
        "random order; 128 wide, 2 layers, 4 heads, dropout 0, one thread; times are those of the processor",
        limits="The gain depends on the lengths: texts of one length gain nothing. A processor, no GPU. "
        "docs/performance.md has the times of larger models beside BERT.",
        claims=[
            Claim(
                "Padding changes nothing, and can be left out.",
                "no figure that could stand beside these",
                lambda results: " ".join(conclude(results)),
            )
        ],
        conclude=conclude,
        advise=advise,
        draw=draw,
    )


def train_cell(cell: Cell, seed: int, length: int, budget: Budget) -> dict[str, float]:
    config = make_review_config(length, unpad_inputs=UNPAD[cell["padding"]])
    losses, seconds = train(PlainformerForMaskedLM(config), draw_masked(length, budget, seed), budget)
    measured = {"diverged": has_diverged(losses), "seconds": seconds}
    every = QUICK_EVERY if budget.steps == QUICK_STEPS else EVERY
    losses += [float("nan")] * (budget.steps - len(losses))
    return measured | {f"loss at {step}": losses[step - 1] for step in (1, *range(every, budget.steps + 1, every))}


def make_review_config(length: int, **fields: object) -> PlainformerConfig:
    """A model for the characters of reviews, 128 wide."""
    usual = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
    usual |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "type_vocab_size": 0}
    usual |= {"initializer_range": initial_deviation(128), "max_position_embeddings": length + 2}
    return PlainformerConfig(read_reviews(length).vocab_size, **{**usual, **fields})


def draw_masked(length: int, budget: Budget, seed: int) -> list[Batch]:
    """Batches of reviews drawn at random, with masked characters. They are all made before time is taken."""
    draw = torch.Generator().manual_seed(seed)
    texts = read_reviews(length).texts["train"]
    batches = []
    for _ in range(budget.steps):
        chosen = torch.randint(len(texts), (budget.batch_size,), generator=draw).tolist()
        batches.append(mask_letters(pad([texts[index] for index in chosen]), draw))
    return batches


def pairs(results: Results, column: str) -> list[tuple[float, float]]:
    """(left out, computed) for each seed."""
    first, second = ({row["seed"]: row for row in results.of(padding=padding)} for padding in UNPAD)
    return [(float(first[seed][column]), float(second[seed][column])) for seed in first if seed in second]


def largest_difference(results: Results) -> float:
    """Of the losses of one seed at one step."""
    return max(abs(a - b) for measure in results.study.measures for a, b in pairs(results, measure))


def speedup(results: Results) -> Interval:
    """The time with padding over the time without, within each seed."""
    return mean_interval([computed / left_out for left_out, computed in pairs(results, "seconds")])


def conclude(results: Results) -> list[str]:
    losses = list(results.study.measures)
    fall = f"from {results.mean(losses[0]).mean:.3f} to {results.mean(losses[-1]).mean:.3f}"
    faster = speedup(results)
    verdict = "is faster" if faster.low > 1 else "is slower" if faster.high < 1 else "is not shown to be faster"
    return [
        f"One curve: the losses fall {fall}, and those of the two trainings of a seed differ by at most "
        f"{largest_difference(results):.1e} at any of {len(losses)} steps, over {results.seeds} seeds.",
        f"Two times: training without padding {verdict}, {write(faster, 2)} times.",
    ]


def advise(results: Results) -> list[tuple[str, str, str]]:
    faster = speedup(results)
    choice = "`unpad_inputs=True`, the default" if faster.low > 1 else "`unpad_inputs` either way"
    apart = f"losses at most {largest_difference(results):.1e} apart"
    return [("texts of unequal length", choice, f"study `padding`: {write(faster, 2)} times as fast, {apart}")]


def draw(results: Results):
    figure, (curve, times) = make_figure(2, "Padding left out or computed (mean, 95 % interval)")
    measures = {int(measure.split()[-1]): measure for measure in results.study.measures}
    for number, padding in enumerate(UNPAD):
        draw_curve(curve, results, measures, {"padding": padding}, f"padding {padding}", number, number)
        own = results.mean("seconds", padding=padding)
        times.bar([padding], [own.mean], yerr=[own.half], color=COLOURS[number], capsize=4)
    curve.set_xlabel("step")
    curve.set_ylabel("loss")
    add_legend(figure, curve)
    times.set_xlabel("padding")
    times.set_ylabel("seconds of one thread")
    return figure
