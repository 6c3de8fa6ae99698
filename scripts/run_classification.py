"""Classify texts, or pairs of texts: one class each, several labels each, or a number (regression).

    python scripts/run_classification.py --model_name_or_path bert-base-uncased \
        --train_file train.csv --validation_file dev.csv --test_file test.csv --output_dir outputs/reviews

Which of the three it is follows from the labels: lists (or a --label_delimiter) are several labels, numbers with a
decimal point are regression, all else is one class each. Metrics: accuracy and macro F1; for several labels also micro
F1; for numbers mean squared error, Pearson's and Spearman's correlation. `predictions.csv` has the answers for
--test_file. What the steps share with the other recipes is in recipe.py and recipe_data.py.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict
from recipe import (
    OrderedTrainer,
    Run,
    callbacks,
    check_length,
    check_trained,
    checkpoint_config,
    choose_metric,
    drop_missing_labels,
    evaluate,
    launch,
    load_model,
    load_tokenizer_for,
    map_rows,
    open_run,
    parse_args,
    predict,
    refuse_label_smoothing,
    say,
    splits_needed,
    train,
    trained_labels,
)
from recipe_data import (
    DataArguments,
    DataError,
    as_labels,
    check_rows,
    check_texts,
    cut,
    find_column,
    label_names,
    load_data,
    read_column,
)
from scipy.special import expit, softmax
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from plainformer import PlainformerForSequenceClassification

SINGLE, MULTI, REGRESSION = "single_label_classification", "multi_label_classification", "regression"
TEXT_COLUMNS = ("text", "sentence", "sentence1", "review", "content")
LABEL_COLUMNS = ("label", "labels", "class", "category", "score")


@dataclass
class ClassificationArguments(DataArguments):
    """The data of a classifier."""

    text_column_names: str | None = field(
        default=None, metadata={"help": "The column of the text, or two of a pair: question,answer."}
    )
    label_column_name: str | None = field(default=None, metadata={"help": "The column of the label."})
    label_delimiter: str | None = field(
        default=None, metadata={"help": "Several labels a row: what stands between them, as in sports;politics."}
    )
    do_regression: bool = field(
        default=None, metadata={"help": "Labels are values (true) or names (false), whatever they look like."}
    )


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    # 1. Arguments, and a folder for the run
    model_args, data_args, training_args = parse_args(ClassificationArguments, argv, __doc__)
    check_trained(model_args, training_args, PlainformerForSequenceClassification)
    run = open_run("run_classification", model_args, data_args, training_args)

    # 2. Data: read, checked as a whole, cut
    data = load_data(data_args, splits_needed(training_args), model_args.cache_dir)
    texts, label = find_columns(data, data_args)
    for column in texts:
        check_texts(data, data_args, column)

    # 3. Labels, and with them the kind of task
    data = split_labels(data, data_args, label)
    if training_args.do_train:
        problem_type = find_problem_type(data["train"], data_args, label)
        known = None
    else:
        problem_type = checkpoint_config(model_args).get("problem_type") or SINGLE
        known = trained_labels(model_args)
    data = drop_missing_labels(data, label, lambda value: not as_labels(value), run, some_may_be=problem_type == MULTI)
    if problem_type == REGRESSION:
        names = None
        check_values(data, data_args, label)
    else:
        if problem_type == SINGLE:
            check_single(data, data_args, label)
        names = label_names(data, data_args, label, known)
    if problem_type != SINGLE:
        refuse_label_smoothing(training_args, problem_type)
    choose_metric(data_args, training_args, METRICS[problem_type])
    data = cut(data, data_args, training_args.seed, same=texts)

    # 4. Tokenizer and model
    corpus = (text for column in texts for text in read_column(data["train"], column))
    tokenizer = load_tokenizer_for(model_args, run, corpus)
    fields = {"problem_type": problem_type, **({} if names else {"num_labels": 1})}
    model = load_model(model_args, PlainformerForSequenceClassification, tokenizer, names, **fields)
    check_length(model, data_args)
    say(f"{problem_type}: {', '.join(names[:20]) if names else 'numbers'}", run)
    say(f"{type(model).__name__}, {model.num_parameters():,} parameters", run)

    # 5. Token ids, and labels as the model takes them
    encode = make_encoder(tokenizer, data_args, texts, label, model)
    encoded = {split: map_rows(rows, encode, data_args, training_args, split) for split, rows in data.items()}
    encoded = {split: report_truncation(rows, split, data_args, run) for split, rows in encoded.items()}

    # 6. Train
    trainer = OrderedTrainer(
        model=model,
        args=training_args,
        train_dataset=encoded.get("train"),
        eval_dataset=encoded.get("validation"),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=MEASURE[problem_type],
        callbacks=callbacks(data_args),
    )
    metrics = {}
    if training_args.do_train:
        metrics |= train(trainer, run)

    # 7. Evaluate and predict
    if training_args.do_eval:
        metrics |= evaluate(trainer, run, encoded["validation"])
    if training_args.do_predict:
        output = predict(trainer, run, encoded["test"])
        write_predictions(run, model, output.predictions)
    run.write("finished")
    return metrics


def find_columns(data: DatasetDict, data_args: ClassificationArguments) -> tuple[list[str], str]:
    """The names of the one or two columns of text, and of the label. The test data may come without labels."""
    given = [name.strip() for name in (data_args.text_column_names or "").split(",") if name.strip()]
    if len(given) > 2:
        raise DataError(f"--text_column_names {data_args.text_column_names}: give one column, or two of a pair.")
    flag = "--text_column_names"
    texts = [find_column(data, data_args, flag, name, TEXT_COLUMNS) for name in given or [None]]
    labelled = [split for split in data if split != "test"]
    if not labelled:
        return texts, data_args.label_column_name or "label"
    flag = "--label_column_name"
    return texts, find_column(data, data_args, flag, data_args.label_column_name, LABEL_COLUMNS, labelled)


def split_labels(data: DatasetDict, data_args: ClassificationArguments, label: str) -> DatasetDict:
    """With a --label_delimiter the labels `sports;politics` as the list that they mean."""
    if data_args.label_delimiter is None:
        return data

    def split(row: dict) -> dict:
        return {label: as_labels(str(row[label] or "").split(data_args.label_delimiter))}

    return DatasetDict({name: rows.map(split) if label in rows.features else rows for name, rows in data.items()})


def find_problem_type(train: Dataset, data_args: ClassificationArguments, label: str) -> str:
    """Lists: several labels. Numbers, one of them with a decimal point: regression. All else: one class each."""
    labels = list(read_column(train, label))
    if any(isinstance(value, list) for value in labels):
        return MULTI
    if data_args.do_regression is not None:
        return REGRESSION if data_args.do_regression else SINGLE
    numbers = [to_number(value) for value in labels if as_labels(value)]
    with_point = any(isinstance(value, float) or "." in str(value) for value in labels)
    return REGRESSION if numbers and None not in numbers and with_point else SINGLE


def to_number(value: Any) -> float | None:
    """A finite number, or None for everything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) else None


def check_single(data: DatasetDict, data_args: ClassificationArguments, label: str) -> None:
    """Raise a DataError for rows with a list of labels, where there is one class each."""
    problem = f"{label!r} is a list, and the model has one class a text. Give one label, or train with such lists."
    check_rows(data, data_args, [label], lambda value: isinstance(value, list), problem)


def check_values(data: DatasetDict, data_args: ClassificationArguments, label: str) -> None:
    """Raise a DataError for rows that have no number to learn or to compare with."""
    problem = f"{label!r} is no number, which regression needs. Correct these rows or remove them."
    check_rows(data, data_args, [label], lambda value: to_number(value) is None, problem)
    if "train" in data and len({to_number(value) for value in read_column(data["train"], label)}) < 2:
        raise DataError(f"every row of the training data has the same {label!r}: there is nothing to learn.")


def make_encoder(
    tokenizer: PreTrainedTokenizerBase,
    data_args: ClassificationArguments,
    texts: list[str],
    label: str,
    model: PreTrainedModel,
) -> Callable[[dict], dict]:
    """The function from rows, in columns, to what the model takes, and whether a text was cut (`is_cut`)."""
    # The function is a key of the cache: it should hold nothing but what its result depends on.
    label2id, problem_type, length = model.config.label2id, model.config.problem_type, data_args.max_seq_length

    def to_target(value: Any) -> int | float | list[float]:
        if problem_type == REGRESSION:
            return to_number(value)
        ids = [label2id[name] for name in as_labels(value)]
        return ids[0] if problem_type == SINGLE else [float(number in ids) for number in range(len(label2id))]

    def encode(rows: dict[str, list]) -> dict[str, list]:
        encoded = tokenizer(*(rows[name] for name in texts), truncation=True, max_length=length)
        columns = {**encoded, "is_cut": [bool(encoding.overflowing) for encoding in encoded.encodings]}
        return {**columns, "labels": [to_target(value) for value in rows[label]]} if label in rows else columns

    return encode


def report_truncation(rows: Dataset, split: str, data_args: ClassificationArguments, run: Run) -> Dataset:
    """Say how many texts were cut; the rows without the column that says which."""
    count = sum(rows["is_cut"])
    if count:
        length = data_args.max_seq_length
        say(
            f"{split}: {count} of {len(rows)} texts are longer than {length} tokens and were cut (--max_seq_length)",
            run,
        )
    return rows.remove_columns("is_cut")


def measure_single(prediction: EvalPrediction) -> dict[str, float]:
    """Accuracy, and the unweighted mean of F1 over the classes."""
    answers, labels = prediction.predictions.argmax(-1), prediction.label_ids
    return {"accuracy": accuracy_score(labels, answers), "f1": f1_score(labels, answers, average="macro")}


def measure_multi(prediction: EvalPrediction) -> dict[str, float]:
    """F1 over the labels (macro) and over all decisions (micro); accuracy: rows with exactly the right labels."""
    answers, labels = prediction.predictions > 0, prediction.label_ids > 0.5  # logit 0 is probability 0.5
    return {
        "accuracy": accuracy_score(labels, answers),
        "f1": f1_score(labels, answers, average="macro", zero_division=0),
        "micro_f1": f1_score(labels, answers, average="micro", zero_division=0),
    }


def measure_regression(prediction: EvalPrediction) -> dict[str, float]:
    """Mean squared error and both correlations, which are 0 where all answers are the same."""
    answers, labels = prediction.predictions.reshape(-1), prediction.label_ids.reshape(-1)
    is_constant = len(set(answers)) < 2 or len(set(labels)) < 2
    return {
        "mse": float(np.mean((answers - labels) ** 2)),
        "pearson": 0.0 if is_constant else float(pearsonr(answers, labels)[0]),
        "spearman": 0.0 if is_constant else float(spearmanr(answers, labels)[0]),
    }


def write_predictions(run: Run, model: PreTrainedModel, logits: np.ndarray) -> None:
    """`predictions.csv`: a line per row of the test data, with the label's name and its probability."""
    names = [model.config.id2label[number] for number in range(model.config.num_labels)]
    logits = logits.astype(np.float64)
    if model.config.problem_type == REGRESSION:
        table = [["prediction"], *([value] for value in logits.reshape(-1))]
    elif model.config.problem_type == MULTI:
        chosen = (";".join(name for name, logit in zip(names, row, strict=True) if logit > 0) for row in logits)
        table = [["prediction", *names], *([found, *expit(row)] for found, row in zip(chosen, logits, strict=True))]
    else:
        best = logits.argmax(-1)
        table = [["prediction", "probability"]]
        table += [[names[i], p[i]] for i, p in zip(best, softmax(logits, axis=-1), strict=True)]
    if run.is_main:
        with open(run.folder / "predictions.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(
                [number, *cells] for number, cells in zip(["index", *range(len(logits))], table, strict=True)
            )


# The first one chooses the best model.
METRICS = {
    SINGLE: ("accuracy", "f1"),
    MULTI: ("f1", "micro_f1", "accuracy"),
    REGRESSION: ("mse", "pearson", "spearman"),
}
MEASURE = {SINGLE: measure_single, MULTI: measure_multi, REGRESSION: measure_regression}

if __name__ == "__main__":
    launch(main)
