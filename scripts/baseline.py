"""What a cheap method without a neural network reaches on the files of a folder, as a figure to beat.

    python scripts/prepare_data.py chinese_reviews data/reviews
    python scripts/baseline.py data/reviews

It learns from the train file and is measured on the test file; nothing else is chosen by looking at the test.

train.csv     tf-idf of words and pairs of words (of characters, where the texts are Chinese) and a logistic regression
              whose strength is chosen on validation.csv: accuracy
train.conll   each token's most frequent tag, the most frequent of all for a new token: precision, recall and F1 of
              whole entities, or of whole words where the tags are B, M, E and S
train.json    the entry of the answers to the same question in training that stands in the text, the most frequent one;
              where none does, the most frequent answer: exact match and F1 of characters
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

CHINESE = re.compile("[\u4e00-\u9fff]")
STRENGTHS = (1, 4, 16)  # the inverse of the regularisation, `C` in scikit-learn
# What seqeval knows, for the tags of segmentation.
SEQEVAL_TAGS = {"B": "B-WORD", "M": "I-WORD", "E": "E-WORD", "S": "S-WORD"}

Sentence = tuple[list[str], list[str]]  # tokens, tags


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with train, validation and test files, as prepare_data.py writes it")
    folder = parser.parse_args().folder
    for extension, baseline in (("csv", classify), ("conll", tag), ("json", answer)):
        if (folder / f"train.{extension}").exists():
            print(baseline(folder))
            return
    sys.exit(f"error: {folder} holds none of train.csv, train.conll, train.json: make it with prepare_data.py")


# ---- classification


def classify(folder: Path) -> str:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    (train, labels), (valid, valid_labels), (test, test_labels) = (
        read_csv(folder / f"{name}.csv") for name in ("train", "validation", "test")
    )
    unit = "char" if is_chinese(train) else "word"
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


def read_csv(path: Path) -> tuple[list[str], list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"] for row in rows], [row["label"] for row in rows]


def is_chinese(texts: list[str]) -> bool:
    sample = "".join(texts[:100])
    return len(CHINESE.findall(sample)) > len(sample) / 4


# ---- tags


def tag(folder: Path) -> str:
    from seqeval.metrics import f1_score, precision_score, recall_score

    train, test = (read_conll(folder / f"{name}.conll") for name in ("train", "test"))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for tokens, tags in train:
        for token, label in zip(tokens, tags, strict=True):
            counts[token][label] += 1
    usual = {token: count.most_common(1)[0][0] for token, count in counts.items()}
    commonest = sum(counts.values(), Counter()).most_common(1)[0][0]
    told = [[for_seqeval(label) for label in tags] for _, tags in test]
    guessed = [[for_seqeval(usual.get(token, commonest)) for token in tokens] for tokens, _ in test]
    precision, recall, f1 = (score(told, guessed) for score in (precision_score, recall_score, f1_score))
    return (
        f"precision {precision:.3f}, recall {recall:.3f}, F1 {f1:.3f} on {len(test):,} rows: "
        "each token's most frequent tag"
    )


def read_conll(path: Path) -> list[Sentence]:
    blocks = path.read_text(encoding="utf-8").strip("\n").split("\n\n")
    rows = [[line.split("\t") for line in block.split("\n")] for block in blocks]
    return [([token for token, _ in row], [label for _, label in row]) for row in rows]


def for_seqeval(label: str) -> str:
    return SEQEVAL_TAGS.get(label, label)


# ---- questions


def answer(folder: Path) -> str:
    train, test = (read_json_lines(folder / f"{name}.json") for name in ("train", "test"))
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in train:
        counts[row["question"]][row["answers"]["text"][0]] += 1
    ranked = {question: [text for text, _ in count.most_common()] for question, count in counts.items()}
    scores = []
    for row in test:
        known = ranked[row["question"]]
        guess = next((text for text in known if text in row["context"]), known[0])
        scores.append(score_answer(guess, row["answers"]["text"]))
    exact, f1 = (100 * sum(column) / len(scores) for column in zip(*scores, strict=True))
    return f"exact match {exact:.1f}, F1 {f1:.1f} on {len(test):,} questions: the most frequent answer in the text"


def read_json_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.open(encoding="utf-8")]


def score_answer(guess: str, answers: list[str]) -> tuple[float, float]:
    """Exact match and F1 of the characters in common, the best over the answers."""
    return max((float(guess == text), character_f1(guess, text)) for text in answers)


def character_f1(guess: str, text: str) -> float:
    common = (Counter(guess) & Counter(text)).total()
    return 2 * common / (len(guess) + len(text))


if __name__ == "__main__":
    main()
