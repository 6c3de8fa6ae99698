"""Give each word of a sentence a tag: named entities, parts of speech, where words begin (segmentation).

    python scripts/run_ner.py --model_name_or_path bert-base-cased \
        --train_file train.conll --validation_file dev.conll --test_file test.conll --output_dir outputs/entities

The data is CoNLL (a word a line, its tag last), or JSON lines or Parquet with a list of words and a list of tags. Tags
such as B-PER, I-PER and O, or B, M, E and S, are measured by whole entities: precision, recall and F1, and accuracy by
words. Other tags are measured one by one: accuracy and macro F1. All words of a file count: a word that the model does
not see is counted as O. `predictions.conll` has the tags of --test_file.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from datasets import DatasetDict
from tokenizers import Encoding
from torch import Tensor
from transformers import DataCollatorForTokenClassification, EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase

from plainformer import PlainformerForTokenClassification
from plainformer.recipes import metrics
from plainformer.recipes.arguments import DataArguments, choose_metric, flag, parse_args
from plainformer.recipes.columns import (
    as_labels,
    check_rows,
    find_column,
    find_label_column,
    label_names,
    labelled_splits,
    read_column,
)
from plainformer.recipes.metrics import IGNORE_INDEX, OUTSIDE
from plainformer.recipes.models import check_knows_words, load_model, load_tokenizer_for
from plainformer.recipes.reading import report_special
from plainformer.recipes.run_folder import Run, open_run
from plainformer.recipes.splits import cut, map_splits, read_splits, set_measured_apart
from plainformer.recipes.training import Measure, finish, launch, train_and_evaluate

WORD_COLUMNS = ("tokens", "words", "text", "sentence")
TAG_COLUMNS = ("tags", "ner_tags", "pos_tags", "upos", "labels")
VANISHED, CUT = -1, -2  # instead of the index of a word's first piece: the tokenizer leaves none; it is too far back


@dataclass
class NerArguments(DataArguments):
    """The data of a tagger."""

    text_column_name: str | None = flag("The column of the words, a list.")
    label_column_name: str | None = flag("The column of their tags, a list.")
    label_all_tokens: bool = flag("Train every piece of a word with its tag, not the first alone.", False)
    return_entity_level_metrics: bool = flag("Precision, recall and F1 of each kind of entity, or tag, too.", False)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    # 1. Arguments, and a folder for the run
    arguments = parse_args(NerArguments, argv, __doc__)
    run = open_run("run_ner", arguments, PlainformerForTokenClassification)
    model_args, data_args, training_args = arguments

    # 2. Data: read, checked as a whole
    data = read_splits(run)
    words, tags = find_columns(data, data_args, run)
    check_sentences(data, data_args, words, tags)

    # 3. Labels, and with them how to measure; then the rows that are used
    known = None if training_args.do_train else list(model_args.trained_label_ids())
    names = label_names(data, data_args, tags, known)
    each, of_entities = data_args.return_entity_level_metrics, metrics.are_entity_tags(names)
    choose_metric(data_args, training_args, metrics.tag_metric_names(names, each))
    run.say(f"{'entities' if of_entities else 'tags, each by itself'}: {', '.join(names[:20])}")
    data = cut(data, data_args, training_args.seed, same=[words])
    data = set_measured_apart(data, tags, lambda value: not as_labels(value), run)

    # 4. Tokenizer and model
    tokenizer = load_tokenizer_for(run, lambda: map(" ".join, read_column(data["train"], words)))
    check_knows_words(tokenizer, "tagging words")
    tokenizer.padding_side = "right"  # so that a word stands where it stood before its sentence was padded
    model = load_model(run, tokenizer, names)
    report_special(data, [words], tokenizer, run, "sentences")

    # 5. Token ids, labels, and where each word begins
    inputs = map_splits(data, make_tokenize(tokenizer, data_args, words, tags, model), run)
    starts = {split: rows["word_starts"] for split, rows in inputs.items()}
    inputs = {split: rows.remove_columns("word_starts") for split, rows in inputs.items()}
    for split, rows in data.items():
        report_unseen(rows[words], starts[split], split, run)

    # 6. Train, evaluate and predict
    labelled = {split: rows[tags] for split, rows in data.items() if tags in rows.features}
    measures = {split: make_measure(model, values, starts[split], each) for split, values in labelled.items()}
    collator = DataCollatorForTokenClassification(tokenizer)
    options = {"data_collator": collator, "preprocess_logits_for_metrics": best_tags}
    figures, label_ids = train_and_evaluate(run, model, tokenizer, inputs, measures, **options)

    # 7. Write the predictions, and say where everything is
    if label_ids is not None:
        write_predictions(run, data["test"][words], read_tags(model, label_ids, starts["test"]))
    finish(run, "predictions.conll" if label_ids is not None else None)
    return figures


def find_columns(data: DatasetDict, data_args: NerArguments, run: Run) -> tuple[str, str]:
    """The names of the columns of words and of tags. The test data may come without tags."""
    words = find_column(data, data_args, "text_column_name", WORD_COLUMNS)
    return words, find_label_column(data, data_args, "label_column_name", TAG_COLUMNS, run.say)


def check_sentences(data: DatasetDict, data_args: NerArguments, words: str, tags: str) -> None:
    """Raise a DataError for sentences without words, without tags, or with more of the ones than of the others."""

    def are_no_words(value: Any) -> bool:
        return value is not None and not (isinstance(value, list) and all(isinstance(word, str) for word in value))

    problem = f"{words!r} is no list of words. Write CoNLL, or lists of strings in JSON lines or Parquet."
    check_rows(data, data_args, [words], are_no_words, problem)
    check_rows(data, data_args, [words], lambda value: not value, f"{words!r} has no words. Remove these rows.")
    problem = f"{tags!r} is empty. Label these rows or remove them."
    check_rows(labelled_splits(data), data_args, [tags], lambda value: not as_labels(value), problem)

    def do_not_fit(sentence: list[str], value: Any) -> bool:
        return len(as_labels(value)) not in (0, len(sentence))

    problem = f"{tags!r} has not exactly one for each of {words!r}. Correct these rows or remove them."
    check_rows(data, data_args, [words, tags], do_not_fit, problem)


def make_tokenize(
    tokenizer: PreTrainedTokenizerBase, data_args: NerArguments, words: str, tags: str, model: PreTrainedModel
) -> Callable[[dict], dict]:
    """The function from sentences, in columns, to model inputs and `word_starts`: the index of each word's first piece.

    That piece has the word's label; with --label_all_tokens the others have labels too.
    """
    # The functions are a key of the cache: they should hold nothing but what their result depends on.
    label2id, all_tokens, length = model.config.label2id, data_args.label_all_tokens, data_args.max_seq_length

    def to_labels(encoding: Encoding, starts: list[int], sentence_tags: list[str]) -> list[int]:
        labels = [IGNORE_INDEX] * len(encoding)
        for index, word in enumerate(encoding.word_ids):
            if word is not None and starts[word] == index:
                labels[index] = label2id[sentence_tags[word]]
            elif word is not None and all_tokens:
                labels[index] = label2id[continue_tag(sentence_tags[word], label2id)]
        return labels

    def tokenize(rows: dict[str, list]) -> dict[str, list]:
        encoded = tokenizer(rows[words], is_split_into_words=True, truncation=True, max_length=length)
        starts = list(map(first_pieces, encoded.encodings, map(len, rows[words])))
        labels = {}
        if tags in rows:
            labels["labels"] = list(map(to_labels, encoded.encodings, starts, map(as_labels, rows[tags])))
        return {**encoded, **labels, "word_starts": starts}

    return tokenize


def first_pieces(encoding: Encoding, count: int) -> list[int]:
    """The index of the first piece of each of `count` words; VANISHED or CUT for a word that has none."""
    starts = dict.fromkeys(range(count), VANISHED)
    starts |= {word: CUT for part in encoding.overflowing for word in part.word_ids}
    starts |= {word: index for index, word in reversed(list(enumerate(encoding.word_ids)))}
    return [starts[word] for word in range(count)]


def continue_tag(tag: str, known: Iterable[str]) -> str:
    """The tag of the other pieces of a word: after B-PER comes I-PER (or M-PER) where there is such a tag."""
    inside = [prefix + tag[1:] for prefix in "IM" if tag.startswith("B")]
    return next((name for name in inside if name in known), tag)


def report_unseen(sentences: Iterable[list[str]], starts: Iterable[list[int]], split: str, run: Run) -> None:
    """One line about the words that the model does not see, if there are any: how many, why, and the first of them."""
    reasons = {
        VANISHED: "of which the tokenizer leaves nothing",
        CUT: f"beyond {run.data_args.max_seq_length} tokens (--max_seq_length)",
    }
    unseen: dict[int, list[str]] = {why: [] for why in reasons}
    count = 0
    for word, index in zip(chain.from_iterable(sentences), chain.from_iterable(starts), strict=True):
        count += 1
        if index < 0:
            unseen[index].append(word)
    parts = []
    for why, found in unseen.items():
        distinct = [repr(word) for word in dict.fromkeys(found)]
        if found:
            parts.append(f"{len(found)} {reasons[why]}: {', '.join(distinct[:3])}{', ...' * (len(distinct) > 3)}")
    if parts:
        effect = "not learned" if split == "train" else f"tagged {OUTSIDE}"
        run.say(f"{split}: {sum(map(len, unseen.values()))} of {count} words are {effect}: {'; '.join(parts)}")


def best_tags(logits: Tensor, labels: Tensor) -> Tensor:
    """What is gathered for the metrics: a number per token, instead of one for every tag."""
    return logits.argmax(-1)


def make_measure(model: PreTrainedModel, tags: Iterable[Any], starts: Iterable[list[int]], each: bool) -> Measure:
    """The metrics of one split, over all its words; Trainer passes on the labels of those alone that the model saw."""
    names = list(model.config.label2id)

    def measure(prediction: EvalPrediction) -> dict[str, float]:
        references, predictions = list(map(as_labels, tags)), read_tags(model, prediction.predictions, starts)
        if metrics.are_entity_tags(names):
            return metrics.score_entities(references, predictions, each)
        return metrics.score_tags(references, predictions, names, each)

    return measure


def read_tags(model: PreTrainedModel, predictions: np.ndarray, starts: Iterable[list[int]]) -> list[list[str]]:
    """The tag of every word of every sentence, from label ids [sentences, tokens]; O for a word without a piece."""
    id2label = model.config.id2label
    return [
        [id2label[int(row[index])] if index >= 0 else OUTSIDE for index in indices]
        for row, indices in zip(predictions, starts, strict=True)
    ]


def write_predictions(run: Run, sentences: Iterable[list[str]], predictions: list[list[str]]) -> None:
    """`predictions.conll`: a word, a tab and its tag on each line; an empty line after each sentence."""
    if not run.is_main:
        return
    with open(run.folder / "predictions.conll", "w", encoding="utf-8", newline="\n") as file:
        for sentence, tags in zip(sentences, predictions, strict=True):
            for word, tag in zip(sentence, tags, strict=True):
                cell = word.replace("\t", " ").replace("\n", " ") if word.strip() else "_"
                file.write(f"{cell}\t{tag}\n")
            file.write("\n")


if __name__ == "__main__":
    launch(main)
