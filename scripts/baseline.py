"""What a cheap method without a neural network reaches on the files of a folder, as a figure to beat.

    python scripts/prepare_data.py chinese_reviews data/reviews
    python scripts/baseline.py data/reviews

It learns from the train file and is measured on the test file; nothing else is chosen by looking at the test.

train.csv     tf-idf of words and pairs of words (of characters, where the texts are Chinese) and a logistic regression
              whose strength is chosen on validation.csv: accuracy
train.conll   each token's most frequent tag, the most frequent of all for a new token: precision, recall and F1 of
              whole entities, or of whole words where the tags are B, M, E and S
train.json    the entry of the answers to the same question in training that stands in the text, the most frequent one;
              where none does, the most frequent answer: exact match and F1 in percent, as run_qa.py measures them
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from plainformer.recipes.data_files import file_format, read_rows
from plainformer.recipes.errors import DataError
from plainformer.recipes.metrics import UNSPACED, score_answers, score_entities

STRENGTHS = (1, 4, 16)  # the inverse of the regularisation, `C` in scikit-learn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with train, validation and test files, as prepare_data.py writes it")
    folder = parser.parse_args().folder
    for extension, baseline in (("csv", classify), ("conll", tag), ("json", answer)):
        if (folder / f"train.{extension}").exists():
            try:
                print(baseline(folder))
            except (DataError, OSError) as error:
                sys.exit(f"error: {error}")
            return
    sys.exit(f"error: {folder} holds none of train.csv, train.conll, train.json: make it with prepare_data.py")


def read(folder: Path, name: str, is_answered: Callable[[dict[str, Any]], bool], *columns: str) -> list[dict[str, Any]]:
    """The rows of a file that has these columns; a DataError for rows without an answer, which the test file may have.

    Those are left out of the test file, since there is nothing to measure them by, and a line says how many.
    """
    path = str(folder / name)
    rows = list(read_rows(file_format(path), path))
    for place, row in rows:
        if missing := [column for column in columns if column not in row]:
            raise DataError(f"{path}, {place}: {missing[0]!r} is missing, only {', '.join(row)} is there. Name it so.")
    left_out = [place for place, row in rows if not is_answered(row)]
    if left_out and (not name.startswith("test.") or len(left_out) == len(rows)):
        problem = f"{columns[-1]!r} is empty or of another form, as in {len(left_out)} of {len(rows)} rows"
        raise DataError(f"{path}, {left_out[0]}: {problem}. Label these rows, or remove them.")
    if left_out:
        print(f"{path}: {len(left_out)} of {len(rows)} rows have no {columns[-1]!r}: left out, and not measured")
    return [row for _, row in rows if is_answered(row)]


# Classification


def classify(folder: Path) -> str:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    (train, labels), (valid, valid_labels), (test, test_labels) = (
        zip(
            *((row["text"], row["label"]) for row in read(folder, f"{name}.csv", is_labelled, "text", "label")),
            strict=True,
        )
        for name in ("train", "validation", "test")
    )
    if len(set(labels)) < 2:
        raise DataError(
            f"{folder / 'train.csv'}: all rows have the label {labels[0]!r}. Give rows of other labels too."
        )
    unit = "char" if is_unspaced(train) else "word"
    vectorizer = TfidfVectorizer(analyzer=unit, ngram_range=(1, 2), sublinear_tf=True)
    features = vectorizer.fit_transform(train)
    models = [LogisticRegression(C=strength, max_iter=1000).fit(features, labels) for strength in STRENGTHS]
    seen = vectorizer.transform(valid)
    best = max(models, key=lambda model: model.score(seen, valid_labels))
    accuracy = best.score(vectorizer.transform(test), test_labels)
    majority = test_labels.count(Counter(labels).most_common(1)[0][0]) / len(test_labels)
    return (
        f"accuracy {accuracy:.3f} on {len(test):,} texts: tf-idf of {unit} 1-2 grams, logistic regression with "
        f"C={best.C} (always the commonest label: {majority:.3f})"
    )


def is_labelled(row: dict[str, Any]) -> bool:
    return bool(row["label"].strip())


def is_unspaced(texts: tuple[str, ...]) -> bool:
    """Whether the texts are Chinese or Japanese."""
    sample = "".join(texts[:100])
    return len(re.findall(f"[{UNSPACED}]", sample)) > len(sample) / 4


# Tags


def tag(folder: Path) -> str:
    train, test = (read(folder, f"{name}.conll", lambda row: True, "tokens", "tags") for name in ("train", "test"))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in train:
        for token, label in zip(row["tokens"], row["tags"], strict=True):
            counts[token][label] += 1
    usual = {token: count.most_common(1)[0][0] for token, count in counts.items()}
    commonest = sum(counts.values(), Counter()).most_common(1)[0][0]
    predictions = [[usual.get(token, commonest) for token in row["tokens"]] for row in test]
    scores = score_entities([row["tags"] for row in test], predictions)
    return (
        f"precision {scores['precision']:.3f}, recall {scores['recall']:.3f}, F1 {scores['f1']:.3f} on "
        f"{len(test):,} rows: each token's most frequent tag"
    )


# Questions


def answer(folder: Path) -> str:
    needed = ("question", "context", "answers")
    train, test = (read(folder, f"{name}.json", has_answer, *needed) for name in ("train", "test"))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in train:
        counts[row["question"]][row["answers"]["text"][0]] += 1
    ranked = {question: [text for text, _ in count.most_common()] for question, count in counts.items()}
    predictions = []
    for row in test:
        if row["question"] not in ranked:
            problem = f"the question {row['question']!r} is not in {folder / 'train.json'}"
            raise DataError(f"{folder / 'test.json'}: {problem}, and this method knows questions from training alone.")
        known = ranked[row["question"]]
        predictions.append(next((text for text in known if text in row["context"]), known[0]))
    scores = score_answers(predictions, [row["answers"]["text"] for row in test])
    return (
        f"exact match {scores['exact_match']:.1f}, F1 {scores['f1']:.1f} on {len(test):,} questions: the most frequent "
        "answer in the text"
    )


def has_answer(row: dict[str, Any]) -> bool:
    texts = row["answers"].get("text") if isinstance(row["answers"], dict) else None
    return isinstance(texts, list) and bool(texts) and all(isinstance(text, str) for text in texts)


if __name__ == "__main__":
    main()
