"""Classify texts, or pairs of texts: one class each, several labels each, or a number (regression).

    python scripts/run_classification.py --model_name_or_path bert-base-uncased \
        --train_file train.csv --validation_file dev.csv --test_file test.csv --output_dir outputs/reviews

Which of the three it is follows from the labels: lists (or a --label_delimiter) are several labels, numbers with a
decimal point are regression, all else is one class each. A list holds names, or a 0 or 1 for each label. Metrics:
accuracy and macro F1; for several labels also micro F1; for numbers mean squared error, Pearson's and Spearman's
correlation. `predictions.csv` has the predictions for --test_file.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict
from scipy.special import expit, softmax
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from plainformer import PlainformerForSequenceClassification
from plainformer.recipes import columns, label_lists
from plainformer.recipes.arguments import (
    DataArguments,
    ModelArguments,
    choose_metric,
    flag,
    parse_args,
    refuse_label_smoothing,
)
from plainformer.recipes.columns import as_labels, read_column, to_number
from plainformer.recipes.errors import DataError, RecipeError
from plainformer.recipes.metrics import CLASSIFICATION_METRICS, CLASSIFICATION_SCORES, MULTI, REGRESSION, SINGLE
from plainformer.recipes.models import load_model, load_tokenizer_for
from plainformer.recipes.reading import report_reading, report_special, sort_sources
from plainformer.recipes.run_folder import Run, open_run
from plainformer.recipes.splits import cut, map_splits, read_splits, set_measured_apart
from plainformer.recipes.training import finish, launch, train_and_evaluate
from plainformer.recipes.truncation import are_cut, report_truncation

TEXT_COLUMNS = ("text", "sentence", "sentence1", "review", "content")
LABEL_COLUMNS = ("label", "labels", "class", "category", "score")
UNKNOWN_TEXTS = "texts are nothing but characters that the vocabulary lacks"


@dataclass
class ClassificationArguments(DataArguments):
    """The data of a classifier."""

    text_column_names: str | None = flag("The column of the text, or two of a pair: question,answer.")
    label_column_name: str | None = flag("The column of the label.")
    label_delimiter: str | None = flag("Several labels a row: what stands between them, as in sports;politics.")
    label_form: str | None = flag(
        "Lists of 0 and 1: one for each label, or the ids of labels. Without it the training file decides.",
        choices=[label_lists.MULTI_HOT, label_lists.IDS],
    )
    multi_hot_names: str | None = flag("For lists of 0 and 1: the name of each place, a,b,c; without it 0,1,2.")
    do_regression: bool = flag("Labels are values (true) or names (false), whatever they look like.")


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    # 1. Arguments, and a folder for the run
    arguments = parse_args(ClassificationArguments, argv, __doc__)
    run = open_run("run_classification", arguments, PlainformerForSequenceClassification)
    model_args, data_args, training_args = arguments

    # 2. Data: read, checked as a whole
    data = read_splits(run)
    texts, label = find_columns(data, data_args, run)
    columns.check_texts(data, data_args, texts)

    # 3. Labels, and with them the kind of task; then the rows that are used
    trained = None if training_args.do_train else list(model_args.trained_label_ids())
    data, known = read_label_lists(data, data_args, label, run, trained)
    if training_args.do_train:
        problem_type = find_problem_type(data["train"], data_args, label)
    else:
        problem_type = trained_problem_type(model_args)
    check_labels(data, data_args, label, problem_type)
    names = columns.label_names(data, data_args, label, known) if problem_type != REGRESSION else None
    if problem_type != SINGLE:
        refuse_label_smoothing(training_args, problem_type)
    choose_metric(data_args, training_args, CLASSIFICATION_METRICS[problem_type])
    run.say(f"{problem_type}: {', '.join(names[:20]) if names else 'numbers'}")
    read, data = data, cut(data, data_args, training_args.seed, same=texts)
    data = set_measured_apart(data, label, lambda value: not as_labels(value), run, may_be_empty=problem_type == MULTI)

    # 4. Tokenizer and model
    tokenizer = load_tokenizer_for(
        run, lambda: chain(*(read_column(data["train"], column) for column in texts)), len(texts)
    )
    fields = {"problem_type": problem_type, **({} if names else {"num_labels": 1})}
    model = load_model(run, tokenizer, names, **fields)
    report_special(data, texts, tokenizer, run, "texts")

    # 5. Token ids, and labels as the model takes them
    inputs = map_splits(data, make_tokenize(tokenizer, data_args.max_seq_length, texts, label, model), run)
    inputs = report_reading(inputs, data, read, texts, "kind", tokenizer, run, UNKNOWN_TEXTS)
    cut_at = ("is_cut", "texts", "max_seq_length", data_args.max_seq_length)
    inputs = {split: report_truncation(rows, split, run, *cut_at) for split, rows in inputs.items()}

    # 6. Train, evaluate and predict
    measures = dict.fromkeys(inputs, CLASSIFICATION_SCORES[problem_type])
    metrics, logits = train_and_evaluate(run, model, tokenizer, inputs, measures)

    # 7. Write the predictions, and say where everything is
    if logits is not None:
        write_predictions(run, model, logits)
    finish(run, "predictions.csv" if logits is not None else None)
    return metrics


def find_columns(data: DatasetDict, data_args: ClassificationArguments, run: Run) -> tuple[list[str], str]:
    """The names of the one or two columns of text, and of the label. The test data may come without labels."""
    given = [name.strip() for name in (data_args.text_column_names or "").split(",") if name.strip()]
    if len(given) > 2:
        raise DataError(f"--text_column_names {data_args.text_column_names}: give one column, or two of a pair.")
    texts = [columns.find_column(data, data_args, "text_column_names", TEXT_COLUMNS, name) for name in given or [None]]
    return texts, columns.find_label_column(data, data_args, "label_column_name", LABEL_COLUMNS, run.say)


def read_label_lists(
    data: DatasetDict, data_args: ClassificationArguments, label: str, run: Run, trained: list[str] | None
) -> tuple[DatasetDict, list[str] | None]:
    """Several labels of a row as a list of names; and all names, where they are known before training."""
    if data_args.label_delimiter is not None:
        data = label_lists.split_cells(data, data_args, label, data_args.label_delimiter)
    else:
        data = label_lists.read_list_cells(data, data_args, label, run)
    return label_lists.read_multi_hot(data, data_args, label, run, trained)


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


def trained_problem_type(model_args: ModelArguments) -> str:
    """That of a model which is not trained further. One output without a name for it is a value, such as a score."""
    outputs = len(model_args.trained_label_ids())
    problem_type = model_args.checkpoint_config().get("problem_type") or (SINGLE if outputs > 1 else REGRESSION)
    if problem_type == REGRESSION and outputs > 1:
        problem = f"--model_name_or_path {model_args.model_name_or_path} gives {outputs} values for each text"
        raise RecipeError(f"{problem}, and this recipe predicts one: give a model with one, or with classes.")
    if problem_type == SINGLE and outputs == 1:
        problem = f"--model_name_or_path {model_args.model_name_or_path} has one output, and its problem_type"
        remedy = f"Write problem_type {REGRESSION!r} into its config.json if the output is a score."
        raise RecipeError(f"{problem} {SINGLE!r} needs one for each class. {remedy}")
    return problem_type


def check_labels(data: DatasetDict, data_args: ClassificationArguments, label: str, problem_type: str) -> None:
    """Raise a DataError for a list of labels where there is one class each, and for what regression cannot learn."""
    if problem_type == SINGLE:
        problem = f"{label!r} is a list, and the model has one class a text. Give one label, or train with such lists."
        columns.check_rows(data, data_args, [label], lambda value: isinstance(value, list) and value, problem)
    if problem_type == REGRESSION:
        problem = f"{label!r} is no number, which regression needs. Correct these rows or remove them."
        needed = columns.labelled_splits(data)
        columns.check_rows(needed, data_args, [label], lambda value: to_number(value) is None, problem)
        columns.check_rows(
            data, data_args, [label], lambda value: as_labels(value) and to_number(value) is None, problem
        )
        if "train" in data and len({to_number(value) for value in read_column(data["train"], label)}) < 2:
            raise DataError(f"every row of the training data has the same {label!r}: there is nothing to learn.")


def make_tokenize(
    tokenizer: PreTrainedTokenizerBase, length: int, texts: list[str], label: str, model: PreTrainedModel
) -> Callable[[dict], dict]:
    """The function from rows, in columns, to what the model takes, what it read (`kind`) and whether it was cut."""
    # The function is a key of the cache: it should hold nothing but what its result depends on.
    label2id, problem_type = model.config.label2id, model.config.problem_type

    def to_target(value: Any) -> int | float | list[float]:
        if problem_type == REGRESSION:
            return to_number(value)
        ids = [label2id[name] for name in as_labels(value)]
        return ids[0] if problem_type == SINGLE else [float(number in ids) for number in range(len(label2id))]

    def tokenize(rows: dict[str, list]) -> dict[str, list]:
        columns = [rows[name] for name in texts]
        encoded = tokenizer(*columns, truncation=True, max_length=length)
        labels = {"labels": [to_target(value) for value in rows[label]]} if label in rows else {}
        kinds = sort_sources(tokenizer, encoded["input_ids"], len(columns))
        return {**encoded, **labels, "kind": kinds, "is_cut": are_cut(tokenizer, columns, encoded, length)}

    return tokenize


def write_predictions(run: Run, model: PreTrainedModel, logits: np.ndarray) -> None:
    """`predictions.csv`: a line per row of the test data, with the label's name and its probability."""
    if not run.is_main:
        return
    names = [model.config.id2label[number] for number in range(model.config.num_labels)]
    logits = logits.astype(np.float64)
    if model.config.problem_type == REGRESSION:
        header, cells = [], [logits.reshape(-1)]
    elif model.config.problem_type == MULTI:
        chosen = [";".join(name for name, logit in zip(names, row, strict=True) if logit > 0) for row in logits]
        header, cells = names, [chosen, *expit(logits).T]
    else:
        header, cells = ["probability"], [[names[i] for i in logits.argmax(-1)], softmax(logits, axis=-1).max(-1)]
    with open(run.folder / "predictions.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["index", "prediction", *header], *zip(range(len(logits)), *cells, strict=True)])


if __name__ == "__main__":
    launch(main)
