"""Give each word of a sentence a tag: named entities, parts of speech, where words begin (segmentation).

    python scripts/run_ner.py --model_name_or_path bert-base-cased \
        --train_file train.conll --validation_file dev.conll --test_file test.conll --output_dir outputs/entities

The data is CoNLL (a word a line, its tag last), or JSON lines or Parquet with a list of words and a list of tags. Tags
such as B-PER, I-PER and O, or B, M, E and S, are measured by whole entities: precision, recall and F1, and accuracy by
words. Other tags are measured one by one: accuracy and macro F1. All words of a file count: a word that the model does
not see is counted as O. `predictions.conll` has the tags of --test_file. What the steps share with the other recipes is
in recipe.py and recipe_data.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from datasets import DatasetDict
from recipe import (
    OrderedTrainer,
    RecipeError,
    Run,
    callbacks,
    check_length,
    check_trained,
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
    say,
    splits_needed,
    train,
    trained_labels,
)
from recipe_data import (
    UNLABELLED,
    DataArguments,
    as_labels,
    check_rows,
    cut,
    find_column,
    label_names,
    load_data,
    read_column,
)
from seqeval.metrics.sequence_labeling import classification_report as entity_report
from seqeval.metrics.sequence_labeling import precision_recall_fscore_support
from sklearn.metrics import accuracy_score
from sklearn.metrics import classification_report as tag_report
from tokenizers import Encoding
from torch import Tensor
from transformers import DataCollatorForTokenClassification, EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from plainformer import PlainformerForTokenClassification

WORD_COLUMNS = ("tokens", "words", "text", "sentence")
TAG_COLUMNS = ("tags", "ner_tags", "pos_tags", "upos", "labels")
OUTSIDE = "O"  # the tag of a word of no entity
ENTITY_TAG = re.compile("(?P<place>[BIMELUS])(-(?P<kind>.+))?")
# seqeval knows B, I, E and S; others write the same with M for I, or L for E and U for S.
SEQEVAL_PLACES = {"M": "I", "L": "E", "U": "S"}
VANISHED, CUT = -1, -2  # in the place of a word's first piece: the tokenizer leaves nothing of it; it is too far back
EACH = {"precision": "precision", "recall": "recall", "f1": "f1-score", "number": "support"}  # as reports name them


@dataclass
class NerArguments(DataArguments):
    """The data of a tagger."""

    text_column_name: str | None = field(default=None, metadata={"help": "The column of the words, a list."})
    label_column_name: str | None = field(default=None, metadata={"help": "The column of their tags, a list."})
    label_all_tokens: bool = field(
        default=False, metadata={"help": "Train every piece of a word with its tag, not the first alone."}
    )
    return_entity_level_metrics: bool = field(
        default=False, metadata={"help": "Precision, recall and F1 of each kind of entity (of each tag) as well."}
    )


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    # 1. Arguments, and a folder for the run
    model_args, data_args, training_args = parse_args(NerArguments, argv, __doc__)
    check_trained(model_args, training_args, PlainformerForTokenClassification)
    run = open_run("run_ner", model_args, data_args, training_args)

    # 2. Data: read, checked as a whole, cut
    data = load_data(data_args, splits_needed(training_args), model_args.cache_dir)
    words, tags = find_columns(data, data_args)
    data = drop_missing_labels(data, tags, lambda value: not as_labels(value), run)
    check_sentences(data, data_args, words, tags)

    # 3. Labels, and with them how to measure
    names = label_names(data, data_args, tags, None if training_args.do_train else trained_labels(model_args))
    choose_metric(data_args, training_args, metric_names(names, data_args))
    data = cut(data, data_args, training_args.seed, same=[words])

    # 4. Tokenizer and model
    corpus = (" ".join(sentence) for column in [words] for sentence in read_column(data["train"], column))
    tokenizer = load_tokenizer_for(model_args, run, corpus)
    check_tokenizer(tokenizer)
    model = load_model(model_args, PlainformerForTokenClassification, tokenizer, names)
    check_length(model, data_args)
    say(f"{'entities' if are_entity_tags(names) else 'tags, each by itself'}: {', '.join(names[:20])}", run)
    say(f"{type(model).__name__}, {model.num_parameters():,} parameters", run)

    # 5. Token ids, labels, and where each word begins
    encode = make_encoder(tokenizer, data_args, words, tags, model)
    encoded = {split: map_rows(rows, encode, data_args, training_args, split) for split, rows in data.items()}
    starts = {split: rows["word_starts"] for split, rows in encoded.items()}
    encoded = {split: rows.remove_columns("word_starts") for split, rows in encoded.items()}
    for split, rows in data.items():
        report_unseen(rows[words], starts[split], split, data_args, run)
    measures = {
        split: make_measure(model, rows[tags], starts[split], data_args)
        for split, rows in data.items()
        if tags in rows.features
    }

    # 6. Train
    trainer = OrderedTrainer(
        model=model,
        args=training_args,
        train_dataset=encoded.get("train"),
        eval_dataset=encoded.get("validation"),
        processing_class=tokenizer,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        compute_metrics=measures.get("validation"),
        preprocess_logits_for_metrics=best_tags,
        callbacks=callbacks(data_args),
    )
    metrics = {}
    if training_args.do_train:
        metrics |= train(trainer, run)

    # 7. Evaluate and predict
    if training_args.do_eval:
        metrics |= evaluate(trainer, run, encoded["validation"])
    if training_args.do_predict:
        trainer.compute_metrics = measures.get("test")
        output = predict(trainer, run, encoded["test"])
        write_predictions(run, data["test"][words], read_tags(model, output.predictions, starts["test"]))
    run.write("finished")
    return metrics


# 2. Data


def find_columns(data: DatasetDict, data_args: NerArguments) -> tuple[str, str]:
    """The names of the columns of words and of tags. The test data may come without tags."""
    words = find_column(data, data_args, "--text_column_name", data_args.text_column_name, WORD_COLUMNS)
    labelled = [split for split in data if split != "test"]
    if not labelled:
        usual = (name for name in TAG_COLUMNS if name in data["test"].features)
        return words, data_args.label_column_name or next(usual, TAG_COLUMNS[0])
    flag = "--label_column_name"
    return words, find_column(data, data_args, flag, data_args.label_column_name, TAG_COLUMNS, labelled)


def check_sentences(data: DatasetDict, data_args: NerArguments, words: str, tags: str) -> None:
    """Raise a DataError for sentences without words, without tags, or with more of the ones than of the others."""

    def are_no_words(value: Any) -> bool:
        return value is not None and not (isinstance(value, list) and all(isinstance(word, str) for word in value))

    def do_not_match(sentence: list[str], value: Any) -> bool:
        return len(as_labels(value)) != len(sentence)

    problem = f"{words!r} is no list of words. Write CoNLL, or lists of strings in JSON lines or Parquet."
    check_rows(data, data_args, [words], are_no_words, problem)
    check_rows(data, data_args, [words], lambda value: not value, f"{words!r} has no words. Remove these rows.")
    labelled = DatasetDict({split: rows for split, rows in data.items() if tags in rows.features})
    problem = f"{tags!r} is empty. Label these rows or remove them."
    check_rows(labelled, data_args, [tags], lambda value: not as_labels(value), problem)
    problem = f"{tags!r} has not exactly one for each of {words!r}. Correct these rows or remove them."
    check_rows(labelled, data_args, [words, tags], do_not_match, problem)


# 4. Tokenizer


def check_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a RecipeError for a tokenizer that cannot say which word a piece is of. Padding goes to the right."""
    if not tokenizer.is_fast:
        raise RecipeError(
            f"{type(tokenizer).__name__} cannot say which word a piece is of: give a fast tokenizer (one with a "
            "tokenizer.json), or a vocab.txt, as --tokenizer_name."
        )
    tokenizer.padding_side = "right"  # so that a word stands where it stood before its sentence was padded


# 5. Token ids


def make_encoder(
    tokenizer: PreTrainedTokenizerBase, data_args: NerArguments, words: str, tags: str, model: PreTrainedModel
) -> Callable[[dict], dict]:
    """The function from sentences, in columns, to what the model takes, and the place of each word (`word_starts`).

    The label of a word is that of its first piece; with --label_all_tokens its other pieces have labels too.
    """
    # The functions are a key of the cache: they should hold nothing but what their result depends on.
    label2id, all_tokens, length = model.config.label2id, data_args.label_all_tokens, data_args.max_seq_length

    def to_labels(encoding: Encoding, starts: list[int], sentence_tags: list[str]) -> list[int]:
        labels = [UNLABELLED] * len(encoding)
        if all_tokens:
            for place, word in enumerate(encoding.word_ids):
                if word is not None:
                    labels[place] = label2id[continue_tag(sentence_tags[word], label2id)]
        for start, tag in zip(starts, sentence_tags, strict=True):
            if start >= 0:
                labels[start] = label2id[tag]
        return labels

    def encode(rows: dict[str, list]) -> dict[str, list]:
        options = {"is_split_into_words": True, "truncation": True, "max_length": length}
        encoded = tokenizer(rows[words], **options)
        pairs = zip(encoded.encodings, rows[words], strict=True)
        starts = [first_pieces(encoding, len(sentence)) for encoding, sentence in pairs]
        columns = {**encoded, "word_starts": starts}
        if tags not in rows:
            return columns
        named = [as_labels(value) for value in rows[tags]]
        labels = [to_labels(*row) for row in zip(encoded.encodings, starts, named, strict=True)]
        return {**columns, "labels": labels}

    return encode


def first_pieces(encoding: Encoding, count: int) -> list[int]:
    """The place of the first piece of each of `count` words; VANISHED or CUT for a word that has none."""
    starts = [VANISHED] * count
    for part in encoding.overflowing:
        for word in part.word_ids:
            if word is not None:
                starts[word] = CUT
    for place, word in reversed(list(enumerate(encoding.word_ids))):
        if word is not None:
            starts[word] = place
    return starts


def continue_tag(tag: str, known: Iterable[str]) -> str:
    """The tag of the other pieces of a word: after B-PER comes I-PER (or M-PER) where there is such a tag."""
    if tag.startswith("B"):
        return next((place + tag[1:] for place in "IM" if place + tag[1:] in known), tag)
    return tag


def report_unseen(
    sentences: Iterable[list[str]], starts: Iterable[list[int]], split: str, data_args: NerArguments, run: Run
) -> None:
    """One line about the words that the model does not see, if there are any: how many, why, and the first of them."""
    unseen: dict[int, list[str]] = {VANISHED: [], CUT: []}
    count = 0
    for sentence, places in zip(sentences, starts, strict=True):
        count += len(sentence)
        for word, place in zip(sentence, places, strict=True):
            if place < 0:
                unseen[place].append(word)
    if not any(unseen.values()):
        return
    reasons = {
        VANISHED: "of which the tokenizer leaves nothing",
        CUT: f"beyond {data_args.max_seq_length} tokens (--max_seq_length)",
    }
    parts = (f"{len(found)} {reasons[why]}: {name_words(found)}" for why, found in unseen.items() if found)
    effect = "not learned" if split == "train" else f"tagged {OUTSIDE}"
    say(f"{split}: {sum(map(len, unseen.values()))} of {count} words are {effect}: {'; '.join(parts)}", run)


def name_words(words: list[str]) -> str:
    """The first three different words, quoted."""
    distinct = list(dict.fromkeys(words))
    return ", ".join(map(repr, distinct[:3])) + (", ..." if len(distinct) > 3 else "")


# 6. and 7. Measure and write


def best_tags(logits: Tensor, labels: Tensor) -> Tensor:
    """What is gathered for the metrics: a number per token, instead of one for every tag."""
    return logits.argmax(-1)


def make_measure(
    model: PreTrainedModel, tags: Iterable[Any], starts: Iterable[list[int]], data_args: NerArguments
) -> Callable[[EvalPrediction], dict[str, float]]:
    """The metrics of one split, over all words that are in it.

    The labels that Trainer passes on are those of the words that the model saw. So both sides are words here: the tags
    of the data, and the model's answers, read off at the first piece of each word.
    """
    names, each = list(model.config.label2id), data_args.return_entity_level_metrics

    def compute_metrics(prediction: EvalPrediction) -> dict[str, float]:
        told, answers = [as_labels(value) for value in tags], read_tags(model, prediction.predictions, starts)
        if are_entity_tags(names):
            return measure_entities(told, answers, each)
        return measure_tags(told, answers, names, each)

    return compute_metrics


def read_tags(model: PreTrainedModel, predictions: np.ndarray, starts: Iterable[list[int]]) -> list[list[str]]:
    """The tag of every word of every sentence, from label ids [sentences, tokens]; O for a word without a place."""
    id2label = model.config.id2label
    return [
        [id2label[int(row[place])] if place >= 0 else OUTSIDE for place in places]
        for row, places in zip(predictions, starts, strict=True)
    ]


def are_entity_tags(names: Iterable[str]) -> bool:
    """Whether tags say where entities begin: B-PER, I-PER (BIO, BIOES, BILOU, BMES), or B, M, E, S for words."""
    found = [ENTITY_TAG.fullmatch(name) for name in names if name != OUTSIDE]
    if not all(found):
        return False
    kinds = {match["kind"] for match in found}
    return None not in kinds or (len(kinds) == 1 and any(match["place"] == "B" for match in found))


def metric_names(names: Sequence[str], data_args: NerArguments) -> list[str]:
    """The metrics of these tags, the one that chooses the best model first."""
    is_of_entities = are_entity_tags(names)
    kinds = {tag.partition("-")[2] or "WORD" for tag in names if tag != OUTSIDE} if is_of_entities else names
    each = (
        [f"{kind}_{name}" for kind in sorted(kinds) for name in EACH] if data_args.return_entity_level_metrics else []
    )
    return [*(("f1", "precision", "recall", "accuracy") if is_of_entities else ("accuracy", "f1")), *each]


def for_seqeval(tag: str) -> str:
    """A tag as seqeval knows it. A tag without a kind of entity, such as M, is of a word."""
    if tag == OUTSIDE:
        return tag
    place, _, kind = tag.partition("-")
    return f"{SEQEVAL_PLACES.get(place, place)}-{kind or 'WORD'}"


def measure_entities(told: list[list[str]], answers: list[list[str]], each: bool) -> dict[str, float]:
    """Entities that are right from their first word to their last, and in kind (as CoNLL's own script counts them)."""
    sides = [[list(map(for_seqeval, sentence)) for sentence in side] for side in (told, answers)]
    scores = precision_recall_fscore_support(*sides, average="micro", zero_division=0)
    figures = {name: float(score) for name, score in zip(("precision", "recall", "f1"), scores, strict=False)}
    figures["accuracy"] = accuracy_score(list(chain(*told)), list(chain(*answers)))
    if each:
        figures |= each_kind(entity_report(*sides, output_dict=True, zero_division=0))
    return figures


def measure_tags(told: list[list[str]], answers: list[list[str]], names: Iterable[str], each: bool) -> dict[str, float]:
    """The share of right tags, and the unweighted mean of F1 over the tags; the O of unseen words need not be one."""
    told, answers = list(chain(*told)), list(chain(*answers))
    present = [name for name in names if name in {*told, *answers}]
    report = tag_report(told, answers, labels=present, output_dict=True, zero_division=0)
    figures = {"accuracy": accuracy_score(told, answers), "f1": report["macro avg"]["f1-score"]}
    return {**figures, **(each_kind(report) if each else {})}


def each_kind(report: dict[str, dict[str, float]]) -> dict[str, float]:
    """Precision, recall, F1 and number of each kind of entity (or tag) in a classification report."""
    return {
        f"{kind}_{name}": float(scores[column])
        for kind, scores in report.items()
        if isinstance(scores, dict) and not kind.endswith(" avg")  # sklearn puts the accuracy among them
        for name, column in EACH.items()
    }


def write_predictions(run: Run, sentences: Iterable[list[str]], answers: list[list[str]]) -> None:
    """`predictions.conll`: a word, a tab and its tag on each line; an empty line after each sentence."""
    if not run.is_main:
        return
    with open(run.folder / "predictions.conll", "w", encoding="utf-8", newline="\n") as file:
        for sentence, tags in zip(sentences, answers, strict=True):
            for word, tag in zip(sentence, tags, strict=True):
                file.write(f"{as_cell(word)}\t{tag}\n")
            file.write("\n")


def as_cell(word: str) -> str:
    """A word as it can stand in a column: without tabs and line breaks, and `_` where it is blank."""
    return word.replace("\t", " ").replace("\n", " ") if word.strip() else "_"


if __name__ == "__main__":
    launch(main)
