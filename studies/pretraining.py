"""Classification with and without masked-LM pre-training on the same texts, by the number of labelled ones."""

from functools import partial

import torch

from plainformer import PlainformerForMaskedLM, PlainformerForSequenceClassification

from .intervals import write
from .padding import draw_masked, make_review_config
from .pictures import add_legend, draw_curve, make_figure
from .results import Results
from .statements import is_better, is_worse, say_difference
from .study import Cell, Claim, Study, cross
from .tasks import Batch, pad, read_reviews
from .training import Budget, has_diverged, train

LENGTH, LABELS, TESTED = 62, (100, 400, 1600, 6400), 2000
PRETRAINING = Budget(steps=600, length=LENGTH, shortest=1, batch_size=32, learning_rate=1e-3)
TUNING = Budget(steps=100, length=LENGTH, shortest=1, batch_size=32, learning_rate=1e-3, warmup=20)
QUICK = {"length": 20, "labels": (8, 16), "tested": 20}
QUICK_BUDGET = Budget(steps=2, length=20, shortest=1, batch_size=4)
START = {"random weights": False, "pre-trained": True}


def make_study(quick: bool = False) -> Study:
    sizes = QUICK if quick else {"length": LENGTH, "labels": LABELS, "tested": TESTED}
    first, second = (QUICK_BUDGET, QUICK_BUDGET) if quick else (PRETRAINING, TUNING)
    return Study(
        name="pretraining",
        question="How many labels is masked-LM pre-training worth?",
        cells=cross(start=list(START)),
        measures={f"accuracy with {count} labels": "of reviews that were not seen" for count in sizes["labels"]},
        train=partial(train_cell, sizes=sizes, pretraining=first, tuning=second),
        seconds=lambda cell: 0.2 if quick else len(LABELS) * 12 + (75 if START[cell["start"]] else 0),
        budget=f"Chinese reviews by character, cut at {sizes['length']}; pre-training {first.steps} steps of "
        f"{first.batch_size}, then {second.steps} steps of {second.batch_size} for each number of labels; 128 wide, "
        f"2 layers, mean pooling, dropout 0.1; {sizes['tested']:,} test reviews",
        limits="A small model, pre-trained for a minute on the texts of the task itself. A checkpoint that was trained "
        "for days on other texts is worth more: see the quickstart.",
        claims=[
            Claim(
                "Pre-training helps most where labels are few.",
                "no figure by number of labels that could stand beside these",
                lambda results: " ".join(conclude(results)),
            )
        ],
        conclude=conclude,
        advise=advise,
        draw=draw,
    )


def train_cell(cell: Cell, seed: int, sizes: dict, pretraining: Budget, tuning: Budget) -> dict[str, float]:
    dropouts = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    config = make_review_config(sizes["length"], classifier_pooling="mean", **dropouts)
    language_model, seconds, losses = PlainformerForMaskedLM(config), 0.0, []
    if START[cell["start"]]:
        losses, seconds = train(language_model, draw_masked(sizes["length"], pretraining, seed), pretraining)
    measured = {"diverged": bool(losses) and has_diverged(losses)}
    for count in sizes["labels"]:
        model = PlainformerForSequenceClassification(config)
        model.plainformer.load_state_dict(language_model.plainformer.state_dict())
        losses, more = train(model, draw_labelled(sizes["length"], count, tuning, seed), tuning)
        seconds += more
        measured["diverged"] |= has_diverged(losses)
        measured[f"accuracy with {count} labels"] = accuracy(model, sizes)
    return measured | {"seconds": seconds}


def draw_labelled(length: int, count: int, budget: Budget, seed: int) -> list[Batch]:
    """Batches of `count` labelled reviews, which depend on the seed alone."""
    draw, reviews = torch.Generator().manual_seed(seed), read_reviews(length)
    labelled = torch.randperm(len(reviews.texts["train"]), generator=draw)[:count]
    batches = []
    for _ in range(budget.steps):
        chosen = labelled[torch.randint(count, (budget.batch_size,), generator=draw)]
        texts = [reviews.texts["train"][index] for index in chosen.tolist()]
        batches.append({**pad(texts), "labels": reviews.labels["train"][chosen]})
    return batches


@torch.no_grad()
def accuracy(model: PlainformerForSequenceClassification, sizes: dict) -> float:
    reviews = read_reviews(sizes["length"])
    texts, labels = reviews.texts["test"][: sizes["tested"]], reviews.labels["test"][: sizes["tested"]]
    parts = [model.eval()(**pad(texts[at : at + 200])).logits.argmax(dim=-1) for at in range(0, len(texts), 200)]
    return float((torch.cat(parts) == labels).float().mean())


def gain(results: Results, measure: str):
    return results.compare(measure, {"start": "pre-trained"}, {"start": "random weights"})


def conclude(results: Results) -> list[str]:
    return [
        say_difference(gain(results, measure), measure, "Pre-training", "random weights")
        for measure in results.study.measures
    ]


def advise(results: Results) -> list[tuple[str, str, str]]:
    rows = []
    for measure in results.study.measures:
        apart = gain(results, measure)
        choice = "pre-train first" if is_better(apart) else "do not pre-train" if is_worse(apart) else "either"
        count = measure.removeprefix("accuracy with ")
        rows.append((f"classification, {count}", choice, f"study `pretraining`: {write(apart)} more accuracy with it"))
    return rows


def draw(results: Results):
    figure, (axes,) = make_figure(1, "Pre-training (mean, 95 % interval)")
    measures = {int(measure.split()[-2]): measure for measure in results.study.measures}
    for number, start in enumerate(START):
        draw_curve(axes, results, measures, {"start": start}, start, number, number)
    axes.set_xscale("log")
    axes.set_xticks(list(measures), [str(count) for count in measures], minor=False)
    axes.minorticks_off()
    axes.set_xlabel("labelled texts")
    axes.set_ylabel("accuracy")
    add_legend(figure, axes)
    return figure
