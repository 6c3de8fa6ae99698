"""Answer questions with a passage of a text (extractive question answering), however long the text is.

    python scripts/run_qa.py --model_name_or_path bert-base-uncased \
        --train_file train.json --validation_file dev.json --test_file test.json --output_dir outputs/questions

The files are SQuAD's JSON, or JSON lines or Parquet with the columns `question`, `context` and `answers`, which are
{"text": [...], "answer_start": [...]}, and `id` if there is one. Long texts are read in windows that overlap by
--doc_stride tokens. Metrics: exact match and F1, in percent as for SQuAD. `predictions.json` has the answer to each
question of --test_file, `nbest_predictions.json` the best ones. What the steps share with the other recipes is in
plainformer.recipes.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict
from scipy.special import softmax
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedTokenizerBase

from plainformer import PlainformerForQuestionAnswering
from plainformer.recipes.arguments import (
    DataArguments,
    check_at_least,
    choose_metric,
    flag,
    parse_args,
    refuse_label_smoothing,
)
from plainformer.recipes.columns import check_rows, check_texts, find_column, labelled_splits, rows_message, where
from plainformer.recipes.errors import DataError, RecipeError
from plainformer.recipes.metrics import ANSWER_METRICS, NEGATIVE_METRICS, score_answers
from plainformer.recipes.models import load_model, load_tokenizer_for
from plainformer.recipes.run_folder import Run, open_run
from plainformer.recipes.splits import cut, drop_missing_labels, map_splits, read_splits
from plainformer.recipes.training import Measure, launch, make_trainer, train_and_evaluate

FOR_READING = ["row", "first", "offsets"]  # what `find_answers` needs of a window, and the model does not


@dataclass
class QuestionArguments(DataArguments):
    """The data of a reader, and how its answers are found."""

    question_column_name: str = flag("The column of the question.", "question")
    context_column_name: str = flag("The column of the text with the answer.", "context")
    answer_column_name: str = flag("The column of the answers.", "answers")
    max_seq_length: int = flag("Tokens of a window: question and a part of the text.", 384)
    doc_stride: int = flag("Tokens that two neighbouring windows of a text have in common.", 128)
    version_2_with_negative: bool = flag("Some questions have no answer in their text, as in SQuAD 2.", False)
    null_score_diff_threshold: float = flag(
        "With these: how far no answer must be ahead of the best one to be chosen.", 0.0
    )
    n_best_size: int = flag("Best starts and ends to pair, and answers to keep.", 20)
    max_answer_length: int = flag("Longest answer that is looked for, in tokens.", 30)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    # 1. Arguments, and a folder for the run
    arguments = parse_args(QuestionArguments, argv, __doc__)
    run = open_run("run_qa", arguments, PlainformerForQuestionAnswering)
    _, data_args, training_args = arguments
    check_at_least(data_args, 1, "n_best_size", "max_answer_length")
    check_at_least(data_args, 0, "doc_stride")
    refuse_label_smoothing(training_args, "question answering")
    with_negative, answers = data_args.version_2_with_negative, data_args.answer_column_name
    choose_metric(data_args, training_args, [*ANSWER_METRICS, *(NEGATIVE_METRICS if with_negative else [])])

    # 2. Data: read, checked as a whole. With --version_2_with_negative no answer is an answer too.
    data = read_splits(run)
    question, context = find_columns(data, data_args)
    for column in (question, context):
        check_texts(data, data_args, column)
    check_ids(data, data_args)
    check_answers(data, data_args)
    data = drop_missing_labels(data, answers, lambda value: not as_answers(value), run, some_may_be=with_negative)

    # 3. Tokenizer; the texts in the order and the number that is used
    tokenizer = load_tokenizer_for(run, lambda: chain(*map(data["train"].unique, (question, context))))
    tokenizer.padding_side = "right"  # the labels are positions in a row that is not padded yet
    check_room(data, data_args, tokenizer)
    data = cut(data, data_args, training_args.seed, same=[context])

    # 4. Model: two labels, for BERT's class too, which takes their number for the start and the end
    model = load_model(run, tokenizer, num_labels=2)

    # 5. Windows: token ids, and where the answer starts and ends
    windows = map_splits(data, make_tokenize(tokenizer, data_args), run, with_indices=True)
    windows = {split: report_windows(rows, data[split], split, run) for split, rows in windows.items()}
    inputs = {split: rows.remove_columns(FOR_READING) for split, rows in windows.items()}

    # 6. Train, evaluate and predict
    measures = {split: make_measure(rows, windows[split], data_args) for split, rows in data.items()}
    trainer = make_trainer(run, model, tokenizer, inputs, measures, data_collator=DataCollatorWithPadding(tokenizer))
    metrics, logits = train_and_evaluate(run, trainer, inputs, measures)

    # 7. Write the predictions
    if logits is not None:
        write_predictions(run, data["test"], find_answers(data["test"], windows["test"], logits, data_args))
    run.write("finished")
    return metrics


# Checks


def find_columns(data: DatasetDict, data_args: QuestionArguments) -> tuple[str, str]:
    """The names of the columns of question and context, once all are known to be there; the test may lack answers."""
    find_column(labelled_splits(data), data_args, "--answer_column_name", data_args.answer_column_name)
    question = find_column(data, data_args, "--question_column_name", data_args.question_column_name)
    return question, find_column(data, data_args, "--context_column_name", data_args.context_column_name)


def check_ids(data: DatasetDict, data_args: QuestionArguments) -> None:
    """Raise a DataError where two questions of a split have one id: only one of them could be answered."""
    for split, rows in data.items():
        seen: dict[str, int] = {}
        for row, name in enumerate(ids_of(rows)):
            if not name.strip():
                raise DataError(f"{where(data_args, split, row)}: 'id' is empty. Give each question an id of its own.")
            if name in seen:
                raise DataError(
                    f"{where(data_args, split, row)}: the id {name!r} is that of {where(data_args, split, seen[name])} "
                    "too. Give each question an id of its own."
                )
            seen[name] = row


def ids_of(rows: Dataset) -> list[str]:
    """The ids as text; without such a column the numbers of the rows, from 0."""
    if "id" not in rows.column_names:
        return [str(row) for row in range(len(rows))]
    return ["" if name is None else str(name) for name in rows["id"]]


def check_answers(data: DatasetDict, data_args: QuestionArguments) -> None:
    """Raise a DataError for answers of another form, for none where one is needed, and for misplaced ones."""
    column, context = data_args.answer_column_name, data_args.context_column_name
    problem = (
        f'{column!r} is not {{"text": [...], "answer_start": [...]}}, texts and as many whole numbers. '
        "Write it so, in JSON or Parquet."
    )
    check_rows(data, data_args, [column], lambda value: as_answers(value) is None, problem)
    if not data_args.version_2_with_negative:
        problem = (
            f"{column!r} has no answer. Remove these rows, or give --version_2_with_negative if it means that the "
            "text does not answer the question."
        )
        check_rows(labelled_splits(data), data_args, [column], lambda value: not as_answers(value), problem)
    for split, rows in data.items():
        if column in rows.column_names:
            _check_starts(rows, split, data_args, column, context)


def as_answers(value: Any) -> list[tuple[str, int]] | None:
    """Texts with their starts, empty ones left out; None for what has another form.

    SQuAD's two forms: a dictionary of two lists, and, nested, a list of dictionaries. No value is no answer.
    """
    if isinstance(value, dict):
        texts, starts = value.get("text"), value.get("answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            return None
        pairs = list(zip(texts, starts, strict=True))
    elif isinstance(value, list) and all(isinstance(answer, dict) for answer in value):
        pairs = [(answer.get("text"), answer.get("answer_start")) for answer in value]
    else:
        return [] if value is None else None
    if not all(isinstance(text, str) and isinstance(start, int) for text, start in pairs):
        return None
    return [(text, start) for text, start in pairs if text.strip()]


def _check_starts(rows: Dataset, split: str, data_args: QuestionArguments, column: str, context: str) -> None:
    """Raise a DataError where an answer does not stand in its text where `answer_start` says."""
    wrong, first = [], ""
    for row, (value, text) in enumerate(zip(rows[column], rows[context], strict=True)):
        for answer, start in as_answers(value):
            if start < 0 or text[start : start + len(answer)] != answer:
                first = first or _explain_start(ids_of(rows)[row], text, answer, start)
                wrong.append(row)
                break
    if wrong:
        problem = f"an answer does not stand at its answer_start in {context!r} (characters, counted from 0)."
        raise DataError(f"{rows_message(data_args, split, wrong, problem)} {first}")


def _explain_start(name: str, text: str, answer: str, start: int) -> str:
    """Where an answer should stand, what stands there instead, and what to do."""
    found = text[start : start + len(answer)] if start >= 0 else ""
    starts = [match.start() for match in re.finditer(re.escape(answer), text)]
    if starts:
        remedy = f"it stands at {', '.join(map(str, starts[:5]))}: correct answer_start"
    elif (other := text.lower().find(answer.lower())) >= 0:
        remedy = f"{text[other : other + len(answer)]!r} stands at {other}: write the answer as the text does"
    else:
        remedy = "the text does not have it anywhere: correct the answer, or remove the question"
    return f"The first, id {name!r}: {answer[:60]!r} should stand at {start}, where {found[:60]!r} stands; {remedy}."


def check_room(data: DatasetDict, data_args: QuestionArguments, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise an error where a question leaves a window no room beside what it has in common with the one before."""
    special = tokenizer.num_special_tokens_to_add(pair=True)
    length, stride, column = data_args.max_seq_length, data_args.doc_stride, data_args.question_column_name
    room = length - special - stride - 1  # for the question
    if room < 1:
        raise RecipeError(
            f"--doc_stride {stride} leaves no room in --max_seq_length {length}: two windows have so many "
            f"tokens in common, {special} are special, and the question and new text need room too. Choose a smaller "
            "one, or larger windows."
        )

    for split, rows in data.items():
        questions = tokenizer(list(rows[column]), add_special_tokens=False, verbose=False)["input_ids"]
        counts = list(map(len, questions))
        wrong = [row for row, number in enumerate(counts) if number > room]
        if wrong:
            problem = (
                f"{column!r} has up to {max(counts)} tokens, and at most {room} fit beside --doc_stride {stride} and "
                f"{special} special ones in --max_seq_length {length}. Change these, or shorten the questions."
            )
            raise DataError(rows_message(data_args, split, wrong, problem))


# Windows


def make_tokenize(
    tokenizer: PreTrainedTokenizerBase, data_args: QuestionArguments
) -> Callable[[dict, list[int]], dict]:
    """The function from rows, in columns, with their numbers, to windows: one or more for each row.

    A window has what the model takes and, to read an answer off it, `row`, the number of the row that it is of;
    `first`, the index of the first token of the text; and `offsets`, the characters of each token of the text.
    """
    # Where a window does not hold the answer: for a SQuAD 2 model "no answer", which is at [CLS]. For SQuAD 1 there is
    # no such answer to give, so the row is unlabelled: an index past every row, which our class and BERT's own both
    # ignore (BERT reads -100 as index 0).
    length, stride = data_args.max_seq_length, data_args.doc_stride
    elsewhere = 0 if data_args.version_2_with_negative else length
    # The function is a key of the cache: it should hold nothing but what its result depends on.
    question, context = data_args.question_column_name, data_args.context_column_name
    answer_column = data_args.answer_column_name

    def tokenize(rows: dict[str, list], numbers: list[int]) -> dict[str, list]:
        options = {"truncation": "only_second", "max_length": length, "stride": stride}
        options |= {"return_overflowing_tokens": True, "return_offsets_mapping": True}
        encoded = tokenizer(rows[question], rows[context], **options)
        owners, offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
        columns = {**encoded, "row": [numbers[owner] for owner in owners], "first": [], "offsets": []}
        for window, spans in enumerate(offsets):
            of_text = [index for index, part in enumerate(encoded.sequence_ids(window)) if part == 1]
            columns["first"].append(min(of_text, default=0))
            columns["offsets"].append([list(spans[index]) for index in of_text])
        if answer_column in rows:
            answers = [as_answers(rows[answer_column][owner]) for owner in owners]
            edges = [None, *owners, None]
            tokens = zip(answers, columns["offsets"], columns["first"], strict=True)
            spans = [
                find_span(*of_window, edges[i] != owners[i], edges[i + 2] != owners[i])
                for i, of_window in enumerate(tokens)
            ]
            columns["start_positions"] = [elsewhere if span is None else span[0] for span in spans]
            columns["end_positions"] = [elsewhere if span is None else span[1] for span in spans]
        return columns

    return tokenize


def find_span(
    answers: list[tuple[str, int]], offsets: list[list[int]], first: int, is_first: bool, is_last: bool
) -> tuple[int, int] | None:
    """The indices of the first and the last token of the first of these answers that the window holds as a whole.

    Args:
        offsets: of the tokens of the text, the first of which has the index `first`.
        is_first, is_last: whether the text begins, and ends, in this window.
    """
    for answer, start in answers:
        start, end = start + len(answer) - len(answer.lstrip()), start + len(answer.rstrip())
        if not offsets or not (is_first or offsets[0][0] <= start) or not (is_last or end <= offsets[-1][1]):
            continue
        tokens = [number for number, (left, right) in enumerate(offsets) if left < end and right > start]
        if tokens:
            return first + tokens[0], first + tokens[-1]
    return None


def report_windows(windows: Dataset, rows: Dataset, split: str, run: Run) -> Dataset:
    """Say how many windows there are; for training, leave out those without a label.

    They teach nothing, and without them the mean over a batch is one over labelled rows, as gradient accumulation
    needs it.
    """
    length = run.data_args.max_seq_length
    run.say(f"{split}: {len(rows)} questions in {len(windows)} windows of at most {length} tokens")
    if split != "train" or run.data_args.version_2_with_negative:
        return windows
    kept = np.flatnonzero(np.array(windows["start_positions"]) < length)
    unlearned = len(rows) - len(set(np.array(windows["row"])[kept]))
    if len(kept) < len(windows):
        run.say(f"{split}: {len(windows) - len(kept)} windows without the answer are left out")
    if unlearned == len(rows):
        raise DataError(
            f"no window of --max_seq_length {length} holds a whole answer of the training data: "
            "give a larger --max_seq_length, or a larger --doc_stride."
        )
    if unlearned:
        run.say(f"{split}: {unlearned} questions have an answer that no window holds as a whole (--doc_stride)")
    return windows.select(kept)


# Answers


def find_answers(
    rows: Dataset, windows: Dataset, logits: tuple[np.ndarray, np.ndarray], data_args: QuestionArguments
) -> list[dict[str, Any]]:
    """For each row `text`, the answer, and `nbest`, the best ones over all of its windows with their probabilities.

    With --version_2_with_negative the text is empty where no answer is ahead of the best answer by more than
    --null_score_diff_threshold; `null_odds` is how far it is ahead.

    Args:
        logits: of start and end, [windows, L] each.
    """
    spans: list[dict[tuple[int, int], tuple[float, float]]] = [{} for _ in rows]
    nulls = [(np.inf, np.inf)] * len(rows)
    columns = zip(windows["row"], windows["first"], windows["offsets"], strict=True)
    for (row, first, offsets), start, end in zip(columns, *logits, strict=True):
        start, end = start.astype(np.float64), end.astype(np.float64)
        # Only tokens of the text take part, so no answer lies in the question or in padding.
        inside = slice(first, first + len(offsets))
        for left, right in best_spans(start[inside], end[inside], data_args.n_best_size, data_args.max_answer_length):
            span = offsets[left][0], offsets[right][1]
            scores = start[inside][left], end[inside][right]
            spans[row][span] = max(scores, spans[row].get(span, scores), key=sum)  # windows overlap
        # A window without the answer has no answer; that the text has none, all windows must say.
        nulls[row] = min(nulls[row], (start[0], end[0]), key=sum)
    contexts = rows[data_args.context_column_name]
    return [choose(*found, data_args) for found in zip(contexts, spans, nulls, strict=True)]


def best_spans(start: np.ndarray, end: np.ndarray, n_best: int, max_length: int) -> list[tuple[int, int]]:
    """The best pairs of one of the best starts and one of the best ends, best first; or else the best single token."""
    first, last = np.argsort(-start)[:n_best], np.argsort(-end)[:n_best]
    lengths = last[None, :] - first[:, None] + 1  # [n_best, n_best]
    scores = np.where((lengths > 0) & (lengths <= max_length), start[first][:, None] + end[last][None, :], -np.inf)
    best = np.argsort(-scores, axis=None)[: min(n_best, np.isfinite(scores).sum())]
    if len(start) and not len(best):
        return [(int((start + end).argmax()),) * 2]
    return [(int(first[i]), int(last[j])) for i, j in zip(*np.unravel_index(best, scores.shape), strict=True)]


def choose(
    context: str,
    spans: dict[tuple[int, int], tuple[float, float]],
    null: tuple[float, float],
    data_args: QuestionArguments,
) -> dict[str, Any]:
    """The answer to one question, from the spans of its text and their two scores each."""
    best = sorted(spans, key=lambda span: -sum(spans[span]))[: data_args.n_best_size]
    candidates = [(context[left:right], spans[left, right]) for left, right in best]
    if data_args.version_2_with_negative or not candidates:
        candidates.append(("", null))
    candidates.sort(key=lambda candidate: -sum(candidate[1]))
    chances = softmax([sum(scores) for _, scores in candidates])
    found = {
        "nbest": [
            {"text": text, "probability": float(chance), "start_logit": float(start), "end_logit": float(end)}
            for (text, (start, end)), chance in zip(candidates, chances, strict=True)
        ]
    }
    text = context[best[0][0] : best[0][1]] if best else ""
    if not data_args.version_2_with_negative:
        return {"text": text, **found}
    odds = float(sum(null) - sum(spans[best[0]])) if best else None  # None: the text has no tokens
    is_null = odds is None or odds > data_args.null_score_diff_threshold
    return {"text": "" if is_null else text, "null_odds": odds, **found}


def write_predictions(run: Run, rows: Dataset, found: list[dict[str, Any]]) -> None:
    """`predictions.json`, `nbest_predictions.json` and, where there may be no answer, `null_odds.json`, by id."""
    ids = ids_of(rows)
    files = {"text": "predictions", "nbest": "nbest_predictions", "null_odds": "null_odds"}
    for key, name in files.items():
        if run.is_main and key in found[0]:
            content = {name: answer[key] for name, answer in zip(ids, found, strict=True)}
            text = json.dumps(content, ensure_ascii=False, indent=1)
            (run.folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def make_measure(rows: Dataset, windows: Dataset, data_args: QuestionArguments) -> Measure:
    """The function from the logits of all windows of a split, in order, to its metrics."""

    def measure(prediction: EvalPrediction) -> dict[str, float]:
        found = find_answers(rows, windows, prediction.predictions, data_args)
        references = [[text for text, _ in as_answers(value)] for value in rows[data_args.answer_column_name]]
        return score_answers([answer["text"] for answer in found], references, data_args.version_2_with_negative)

    return measure


if __name__ == "__main__":
    launch(main)
