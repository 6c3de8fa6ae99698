"""Answer questions with a passage of a text (extractive question answering), however long the text is.

    python scripts/run_qa.py --model_name_or_path bert-base-uncased \
        --train_file train.json --validation_file dev.json --test_file test.json --output_dir outputs/questions

The files are SQuAD's JSON, or JSON lines or Parquet with the columns `question`, `context` and `answers`, which are
{"text": [...], "answer_start": [...]}, and `id` if there is one. Long texts are read in windows that overlap by
--doc_stride tokens. Metrics: exact match and F1, in percent as for SQuAD. `predictions.json` has the answer to each
question of --test_file, `nbest_predictions.json` the best ones.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict
from scipy.special import softmax
from transformers import EvalPrediction, PreTrainedTokenizerBase

from plainformer import PlainformerForQuestionAnswering
from plainformer.recipes import arguments, columns
from plainformer.recipes.arguments import DataArguments, flag
from plainformer.recipes.columns import check_rows, find_column, find_label_column, labelled_splits
from plainformer.recipes.errors import DataError, RecipeError
from plainformer.recipes.metrics import ANSWER_METRICS, NEGATIVE_METRICS, score_answers
from plainformer.recipes.models import check_knows_words, load_model, load_tokenizer_for
from plainformer.recipes.reading import report_special
from plainformer.recipes.run_folder import Run, open_run
from plainformer.recipes.splits import cut, map_splits, read_splits, set_measured_apart
from plainformer.recipes.training import Measure, finish, launch, train_and_evaluate

FOR_READING = ["row", "first", "offsets"]  # what `find_answers` needs of a window, and the model does not

Answer = tuple[str, int]  # a text and its first character
Scores = tuple[float, float]  # the logits of a span's start and end


@dataclass
class QuestionArguments(DataArguments):
    """The data of a reader, and how its answers are found."""

    question_column_name: str = flag("The column of the question.", "question")
    context_column_name: str = flag("The column of the text with the answer.", "context")
    answer_column_name: str = flag("The column of the answers.", "answers")
    max_seq_length: int = flag("Tokens of a window: question and a part of the text.", 384)
    doc_stride: int = flag("Tokens that two neighbouring windows of a text have in common.", 128)
    version_2_with_negative: bool = flag("Some questions have no answer in their text, as in SQuAD 2.", False)
    null_score_diff_threshold: float = flag("With these: how far no answer must lead the best one to be chosen.", 0.0)
    n_best_size: int = flag("Best starts and ends to pair, and answers to keep.", 20)
    max_answer_length: int = flag("Longest answer that is looked for, in tokens.", 30)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    # 1. Arguments, and a folder for the run
    groups = arguments.parse_args(QuestionArguments, argv, __doc__)
    run = open_run("run_qa", groups, PlainformerForQuestionAnswering)
    _, data_args, training_args = groups
    arguments.check_at_least(data_args, n_best_size=1, max_answer_length=1, doc_stride=0)
    arguments.refuse_label_smoothing(training_args, "question answering")
    with_negative, answers = data_args.version_2_with_negative, data_args.answer_column_name
    names = [*ANSWER_METRICS, *(NEGATIVE_METRICS if with_negative else [])]
    arguments.choose_metric(data_args, training_args, names)

    # 2. Data: read, checked as a whole. With --version_2_with_negative no answer is an answer too.
    data = read_splits(run)
    find_label_column(data, data_args, "answer_column_name", (answers,), run.say)
    question, context = (find_column(data, data_args, f"{name}_column_name") for name in ("question", "context"))
    columns.check_texts(data, data_args, [question, context])
    check_ids(data, data_args)
    check_answers(data, data_args)

    # 3. Tokenizer; the texts in the order and the number that is used
    tokenizer = load_tokenizer_for(run, lambda: chain(*map(data["train"].unique, (question, context))))
    check_tokenizer(tokenizer, with_negative)
    check_room(data, data_args, tokenizer)
    data = cut(data, data_args, training_args.seed, same=[context])
    data = set_measured_apart(data, answers, lambda value: not as_answers(value), run, may_be_empty=with_negative)

    # 4. Model: two labels, for BERT's class too, which takes their number for the start and the end
    model = load_model(run, tokenizer, num_labels=2)
    report_special(data, [question, context], tokenizer, run, "rows")

    # 5. Windows: token ids, and where the answer starts and ends
    windows = map_splits(data, make_tokenize(tokenizer, data_args), run, with_indices=True)
    windows = {split: report_windows(rows, data[split], split, run) for split, rows in windows.items()}
    inputs = {split: rows.remove_columns(FOR_READING) for split, rows in windows.items()}

    # 6. Train, evaluate and predict
    measures = {split: make_measure(rows, windows[split], data_args) for split, rows in data.items()}
    metrics, logits = train_and_evaluate(run, model, tokenizer, inputs, measures)

    # 7. Write the predictions, and say where everything is
    if logits is not None:
        write_predictions(run, data["test"], find_answers(data["test"], windows["test"], logits, data_args))
    finish(run, "predictions.json" if logits is not None else None)
    return metrics


def check_ids(data: DatasetDict, data_args: QuestionArguments) -> None:
    """Raise a DataError where two questions of a split have one id: only one of them could be answered."""
    remedy = "Give each question an id of its own."
    for split, rows in data.items():
        ids = ids_of(rows)
        counts = Counter(ids)
        blank = [row for row, name in enumerate(ids) if not name.strip()]
        columns.refuse_rows(data_args, split, blank, f"'id' is empty. {remedy}")
        twice = [row for row, name in enumerate(ids) if counts[name] > 1]
        first = f"The first is {ids[twice[0]]!r}." if twice else ""
        columns.refuse_rows(data_args, split, twice, f"'id' is that of another question too. {remedy}", first)


def ids_of(rows: Dataset) -> list[str]:
    """The ids as text; without such a column the numbers of the rows, from 0."""
    if "id" not in rows.column_names:
        return [str(row) for row in range(len(rows))]
    return ["" if name is None else str(name) for name in rows["id"]]


def check_answers(data: DatasetDict, data_args: QuestionArguments) -> None:
    """Raise a DataError for answers of another form, for none where one is needed, and for misplaced ones."""
    column, context = data_args.answer_column_name, data_args.context_column_name
    form = '{"text": [...], "answer_start": [...]}'
    problem = f"{column!r} is not {form}, texts and as many whole numbers. Write it so, in JSON or Parquet."
    check_rows(data, data_args, [column], lambda value: as_answers(value) is None, problem)
    if data_args.version_2_with_negative:
        problem = f"{column!r} is missing. Give empty lists where the text has no answer, or remove these rows."
        check_rows(labelled_splits(data), data_args, [column], lambda value: value is None, problem)
    else:
        remedy = "Remove these rows, or give --version_2_with_negative if the text does not answer the question."
        problem = f"{column!r} has no answer. {remedy}"
        check_rows(labelled_splits(data), data_args, [column], lambda value: not as_answers(value), problem)

    def find_misplaced(value: Any, text: str) -> Answer | None:
        return next((pair for pair in as_answers(value) if pair[1] < 0 or not text.startswith(*pair)), None)

    def explain(row: dict[str, Any]) -> str:
        named = f", id {str(row['id'])!r}" if "id" in row else ""
        return f"The first{named}: {explain_start(row[context], *find_misplaced(row[column], row[context]))}"

    problem = f"an answer does not stand at its answer_start in {context!r} (characters, counted from 0)."
    check_rows(data, data_args, [column, context], find_misplaced, problem, explain)


def as_answers(value: Any) -> list[Answer] | None:
    """Texts with their starts, empty ones left out; None for what has another form.

    SQuAD's two forms: a dictionary of two lists, and, nested, a list of dictionaries. No value is no answer.
    """
    if value is None:
        return []
    if isinstance(value, list) and all(isinstance(answer, dict) for answer in value):
        value = {name: [answer.get(name) for answer in value] for name in ("text", "answer_start")}
    texts, starts = (value.get("text"), value.get("answer_start")) if isinstance(value, dict) else (None, None)
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        return None
    pairs = list(zip(texts, starts, strict=True))
    has_types = all(isinstance(text, str) and isinstance(start, int) for text, start in pairs)
    return [(text, start) for text, start in pairs if text.strip()] if has_types else None


def explain_start(text: str, answer: str, start: int) -> str:
    """Where an answer should stand, what stands there instead, and what to do."""
    found = text[start : start + len(answer)] if start >= 0 else ""
    starts = [match.start() for match in re.finditer(re.escape(answer), text)]
    if starts:
        remedy = f"it stands at {', '.join(map(str, starts[:5]))}: correct answer_start"
    elif (other := text.lower().find(answer.lower())) >= 0:
        remedy = f"{text[other : other + len(answer)]!r} stands at {other}: write the answer as the text does"
    else:
        remedy = "the text does not have it anywhere: correct the answer, or remove the question"
    return f"{answer[:60]!r} should stand at {start}, where {found[:60]!r} stands; {remedy}."


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, with_negative: bool) -> None:
    """Raise a RecipeError for a tokenizer that cannot say where a piece stands, or has no place for "no answer"."""
    check_knows_words(tokenizer, "finding answers in texts")
    tokenizer.padding_side = "right"  # the labels are positions in a row that is not padded yet
    if with_negative and tokenizer("a", "a").sequence_ids(0)[0] is not None:
        problem = f"{type(tokenizer).__name__} puts no special token such as [CLS] before the question"
        remedy = "leave it out, or give another --tokenizer_name"
        raise RecipeError(f"--version_2_with_negative marks no answer at the first token, and {problem}: {remedy}.")


def check_room(data: DatasetDict, data_args: QuestionArguments, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise an error where a question leaves a window no room beside what it has in common with the one before."""
    special, column = tokenizer.num_special_tokens_to_add(pair=True), data_args.question_column_name
    stride, length = f"--doc_stride {data_args.doc_stride}", f"--max_seq_length {data_args.max_seq_length}"
    room = data_args.max_seq_length - special - data_args.doc_stride - 1  # for the question
    if room < 1:
        needs = f"so many tokens are common to two windows, {special} are special, and the question and new text follow"
        raise RecipeError(f"{stride} leaves no room in {length}: {needs}. Choose a smaller one, or larger windows.")
    for split, rows in data.items():
        questions = tokenizer(list(rows[column]), add_special_tokens=False, verbose=False)["input_ids"]
        wrong = [row for row, ids in enumerate(questions) if len(ids) > room]
        needs = f"at most {room} fit beside {stride} and {special} special ones in {length}"
        problem = f"{column!r} has up to {max(map(len, questions))} tokens, and {needs}."
        columns.refuse_rows(data_args, split, wrong, f"{problem} Change these, or shorten the questions.")


def make_tokenize(tokenizer: PreTrainedTokenizerBase, data_args: QuestionArguments) -> Callable[..., dict]:
    """The function from rows, in columns, with their numbers, to windows: one or more for each row.

    A window has what the model takes and, to read an answer off it, `row`, the number of the row that it is of;
    `first`, the index of the first token of the text; and `offsets`, the characters of each token of the text.
    """
    # The function is a key of the cache: it should hold nothing but what its result depends on.
    question, context = data_args.question_column_name, data_args.context_column_name
    answers, length = data_args.answer_column_name, data_args.max_seq_length
    options = {"truncation": "only_second", "max_length": length, "stride": data_args.doc_stride}
    options |= {"return_overflowing_tokens": True, "return_offsets_mapping": True}
    # Where a window does not hold the answer: for a SQuAD 2 model "no answer", which is at [CLS]. For SQuAD 1 there is
    # no such answer to give, so the row is unlabelled: an index past every row, which our class and BERT's own both
    # ignore (BERT reads -100 as index 0).
    elsewhere = 0 if data_args.version_2_with_negative else length

    def tokenize(rows: dict[str, list], numbers: list[int]) -> dict[str, list]:
        encoded = tokenizer(rows[question], rows[context], **options)
        owners, offsets = encoded.pop("overflow_to_sample_mapping"), encoded.pop("offset_mapping")
        windows = {**encoded, "row": [numbers[owner] for owner in owners], "first": [], "offsets": []}
        spans = []
        neighbours = zip([None, *owners], owners, [*owners[1:], None], strict=False)
        for window, (before, owner, after) in enumerate(neighbours):
            of_text = [index for index, part in enumerate(encoded.sequence_ids(window)) if part == 1]
            windows["first"].append(min(of_text, default=0))
            windows["offsets"].append([list(offsets[window][index]) for index in of_text])
            if answers in rows:
                tokens = windows["offsets"][-1], windows["first"][-1]
                span = find_span(as_answers(rows[answers][owner]), *tokens, before != owner, after != owner)
                spans.append(span or (elsewhere, elsewhere))
        if answers in rows:
            windows |= {"start_positions": [start for start, _ in spans], "end_positions": [end for _, end in spans]}
        return windows

    return tokenize


def find_span(
    answers: list[Answer], offsets: list[list[int]], first: int, is_first: bool, is_last: bool
) -> tuple[int, int] | None:
    """The indices of the first and the last token of the first of these answers that the window holds as a whole.

    `offsets` are of the tokens of the text, from the index `first` on. The text begins in the window `is_first`, and
    ends in the window `is_last`.
    """
    for answer, start in answers:
        start, end = start + len(answer) - len(answer.lstrip()), start + len(answer.rstrip())
        tokens = [number for number, (left, right) in enumerate(offsets) if left < end and right > start]
        if tokens and (is_first or offsets[0][0] <= start) and (is_last or end <= offsets[-1][1]):
            return first + tokens[0], first + tokens[-1]
    return None


def report_windows(windows: Dataset, rows: Dataset, split: str, run: Run) -> Dataset:
    """Say how many windows there are; for training, leave out those without a label.

    They teach nothing, and gradient accumulation needs the mean over a batch to be one over labelled rows.
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
        problem = f"no window of --max_seq_length {length} holds a whole answer of the training data"
        raise DataError(f"{problem}: give a larger --max_seq_length, or a larger --doc_stride.")
    if unlearned:
        run.say(f"{split}: {unlearned} questions have an answer that no window holds as a whole (--doc_stride)")
    return windows.select(kept)


def find_answers(
    rows: Dataset, windows: Dataset, logits: tuple[np.ndarray, np.ndarray], data_args: QuestionArguments
) -> list[dict[str, Any]]:
    """For each row `text`, the answer, and `nbest`, the best ones over all of its windows with their probabilities.

    With --version_2_with_negative the text is empty where no answer is ahead of the best answer by more than
    --null_score_diff_threshold; `null_odds` is how far it is ahead. `logits` are of start and end, [windows, L] each.
    """
    spans: list[dict[tuple[int, int], Scores]] = [{} for _ in rows]
    nulls = [(np.inf, np.inf)] * len(rows)
    of_windows = zip(*(windows[name] for name in FOR_READING), *logits, strict=True)
    for row, first, offsets, start, end in of_windows:
        start, end = start.astype(np.float64), end.astype(np.float64)
        # A window without the answer has no answer; that the text has none, all windows must say.
        nulls[row] = min(nulls[row], (start[0], end[0]), key=sum)
        # Only tokens of the text take part, so no answer lies in the question or in padding.
        start, end = start[first : first + len(offsets)], end[first : first + len(offsets)]
        for left, right in best_spans(start, end, data_args.n_best_size, data_args.max_answer_length):
            span, scores = (offsets[left][0], offsets[right][1]), (start[left], end[right])
            spans[row][span] = max(scores, spans[row].get(span, scores), key=sum)  # windows overlap
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
    context: str, spans: dict[tuple[int, int], Scores], null: Scores, data_args: QuestionArguments
) -> dict[str, Any]:
    """The answer to one question, from the spans of its text and the scores of no answer."""
    best = sorted(spans, key=lambda span: -sum(spans[span]))[: data_args.n_best_size]
    candidates = [(context[left:right], spans[left, right]) for left, right in best]
    text = candidates[0][0] if best else ""
    if data_args.version_2_with_negative or not best:
        candidates = sorted([*candidates, ("", null)], key=lambda candidate: -sum(candidate[1]))
    chances = softmax([sum(scores) for _, scores in candidates])
    nbest = [
        {"text": text, "probability": float(chance), "start_logit": float(start), "end_logit": float(end)}
        for (text, (start, end)), chance in zip(candidates, chances, strict=True)
    ]
    if not data_args.version_2_with_negative:
        return {"text": text, "nbest": nbest}
    odds = float(sum(null) - sum(spans[best[0]])) if best else None  # None: the text has no tokens
    is_null = odds is None or odds > data_args.null_score_diff_threshold
    return {"text": "" if is_null else text, "null_odds": odds, "nbest": nbest}


def write_predictions(run: Run, rows: Dataset, found: list[dict[str, Any]]) -> None:
    """`predictions.json`, `nbest_predictions.json` and, where there may be no answer, `null_odds.json`, by id."""
    for key, name in {"text": "predictions", "nbest": "nbest_predictions", "null_odds": "null_odds"}.items():
        if run.is_main and key in found[0]:
            by_id = {question: answer[key] for question, answer in zip(ids_of(rows), found, strict=True)}
            text = json.dumps(by_id, ensure_ascii=False, indent=1)
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
