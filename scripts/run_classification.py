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
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict
from recipe import (
    Run,
    callbacks,
    check_length,
    choose_metric,
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
)
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase, Trainer

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
    do_regression: bool | None = field(default=None, metadata={"help": "Labels are values, not names."})


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    # 1. Arguments, and a folder for the run
    model_args, data_args, training_args = parse_args(ClassificationArguments, argv, __doc__)
    run = open_run("run_classification", model_args, data_args, training_args)

    # 2. Data: read, checked as a whole, cut
    data = load_data(data_args, splits_needed(training_args), model_args.cache_dir)
    texts, label = find_columns(data, data_args)
    for column in texts:
        check_texts(data, data_args, column)

    # 3. Labels, and with them the kind of task
    data = split_labels(data, data_args, label)
    problem_type = find_problem_type(data, data_args, label)
    names = read_labels(data, data_args, label, problem_type)
    if problem_type != SINGLE:
        refuse_label_smoothing(training_args, problem_type)
    choose_metric(data_args, training_args, "pearson" if problem_type == REGRESSION else "f1")
    data = cut(data, data_args, training_args.seed, same=texts)

    # 4. Tokenizer and model
    corpus = (text for column in texts for text in data["train"][column])
    tokenizer = load_tokenizer_for(model_args, run, corpus, data_args.max_seq_length)
    fields = {"problem_type": problem_type, **({} if names else {"num_labels": 1})}
    model = load_model(model_args, PlainformerForSequenceClassification, tokenizer, names, **fields)
    check_length(model, data_args)
    say(f"{problem_type}: {', '.join(names[:20]) if names else 'numbers'}", run)
    say(f"{type(model).__name__}, {model.num_parameters():,} parameters", run)

    # 5. Token ids, and labels as the model takes them
    encoded = {}
    for split, rows in data.items():
        function = make_encoder(tokenizer, data_args, texts, label, model)
        encoded[split] = map_rows(rows, function, data_args, training_args, f"tokenize {split}")
        report_truncation(encoded[split], split, data_args, run)

    # 6. Train
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=encoded.get("train"),
        eval_dataset=encoded.get("validation"),
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=METRICS[problem_type],
        callbacks=callbacks(data_args),
    )
    metrics = {}
    if training_args.do_train:
        metrics |= train(trainer, run)

    # 7. Evaluate and predict
    if training_args.do_eval:
        metrics |= evaluate(trainer, encoded["validation"])
    if training_args.do_predict:
        output = predict(trainer, encoded["test"])
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
