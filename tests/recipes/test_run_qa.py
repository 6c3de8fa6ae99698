"""Question answering: windows and their labels, the answers read off them, the metrics, bad files."""

import json
import re
from pathlib import Path

import numpy as np
import prepare_data
import pytest
import run_qa
import torch
from datasets import Dataset
from helpers.models import TRAINER_DIVIDES_TWICE
from helpers.recipes import (
    SIZES,
    TINY,
    documented_commands,
    inputs_of,
    make_questions,
    weights,
    with_template,
    write,
)
from run_qa import QuestionArguments, best_spans, check_tokenizer, find_answers, find_span, main, make_tokenize
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from plainformer import PlainformerForQuestionAnswering
from plainformer.recipes.errors import DataError, RecipeError
from plainformer.recipes.metrics import score_answers
from plainformer.tokenization_plainformer import train_tokenizer


def as_squad(rows: list[dict]) -> dict:
    """The same rows as SQuAD nests them, two paragraphs an article."""
    paragraphs = []
    for row in rows:
        pairs = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
        question = {"id": row["id"], "question": row["question"], "answers": answers}
        paragraphs.append({"context": row["context"], "qas": [question]})
    return {"data": [{"title": "t", "paragraphs": paragraphs[i : i + 2]} for i in range(0, len(rows), 2)]}


@pytest.fixture
def files(tmp_path):
    """`--train_file` with 24 questions and `--validation_file` with 8."""
    train, dev = (
        write(tmp_path / "train.jsonl", make_questions(24)),
        write(tmp_path / "dev.jsonl", make_questions(8, seed=1)),
    )
    return ["--train_file", train, "--validation_file", dev]


@pytest.fixture
def run(tmp_path):
    """The recipe with these flags, in this process, with windows of 16 tokens; its cache is the test's own."""

    def run(*flags, out: str = "out") -> dict[str, float]:
        always = ["--cache_dir", tmp_path / "cache", "--output_dir", tmp_path / out]
        always += ["--max_seq_length", 16, "--doc_stride", 4, "--per_device_eval_batch_size", 64]
        return main([*always, "--disable_tqdm", "true", "--use_cpu", "true", *flags])

    return run


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([text for row in make_questions(64) for text in (row["question"], row["context"])])


# Training


def test_learns_and_writes_everything(run, tmp_path, capsys):
    train, dev = (
        write(tmp_path / "train.jsonl", make_questions(96)),
        write(tmp_path / "dev.jsonl", make_questions(16, seed=1)),
    )
    test_rows = [
        {name: row[name] for name in ("id", "question", "context")} | {"gold": row["answers"]["text"][0]}
        for row in make_questions(8, seed=2)
    ]
    flags = ["--train_file", train, "--validation_file", dev, "--test_file", write(tmp_path / "t.jsonl", test_rows)]
    metrics = run(*flags, *TINY, "--num_train_epochs", 4, "--learning_rate", 0.02)
    assert metrics["eval_exact_match"] == metrics["eval_f1"] == 100
    assert metrics["eval_loss"] < 0.5
    output = capsys.readouterr().out
    assert "PlainformerForQuestionAnswering, " in output
    windows = int(re.search(r"train: 96 questions in (\d+) windows of at most 16 tokens", output)[1])
    left_out = int(re.search(r"train: (\d+) windows without the answer are left out", output)[1])
    assert metrics["train_samples"] == windows - left_out >= 96

    folder = tmp_path / "out"
    predictions = json.loads((folder / "predictions.json").read_text())
    assert predictions == {row["id"]: row["gold"] for row in test_rows}
    nbest = json.loads((folder / "nbest_predictions.json").read_text())
    for name, answers in nbest.items():
        assert answers[0]["text"] == predictions[name]
        chances = [answer["probability"] for answer in answers]
        assert chances == sorted(chances, reverse=True) and sum(chances) == pytest.approx(1)
    assert not (folder / "null_odds.json").exists()
    assert "eval_f1" in json.loads((folder / "eval_results.json").read_text())
    state = json.loads((folder / "trainer_state.json").read_text())
    assert state["best_metric"] == 100  # F1 chose the model, and each evaluation has the loss beside it
    assert [("eval_f1" in entry, "eval_loss" in entry) for entry in state["log_history"]].count((True, True)) == 4
    assert json.loads((folder / "recipe.json").read_text())["status"] == "finished"

    # The folder is a model like any other.
    model = PlainformerForQuestionAnswering.from_pretrained(folder)
    reader = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    inputs = reader("who wins?", "plot king eve film", return_tensors="pt")
    output = model(**inputs)
    span = inputs["input_ids"][0, output.start_logits.argmax() : output.end_logits.argmax() + 1]
    assert reader.decode(span) == "king eve"


def test_no_answer_is_learned_too(run, tmp_path, capsys):
    train = write(tmp_path / "train.json", json.dumps(as_squad(make_questions(96, unanswered=40))))
    dev = write(tmp_path / "dev.jsonl", make_questions(16, seed=1, unanswered=6))
    flags = ["--train_file", train, "--validation_file", dev, "--test_file", dev, "--version_2_with_negative"]
    metrics = run(*flags, *TINY, "--max_steps", 40, "--learning_rate", 0.03, "--eval_strategy", "no")
    assert metrics["eval_f1"] == metrics["eval_has_answer_f1"] == metrics["eval_no_answer_accuracy"] == 100
    folder = tmp_path / "out"
    predictions = json.loads((folder / "predictions.json").read_text())
    assert [text == "" for text in predictions.values()] == [False] * 10 + [True] * 6
    odds = json.loads((folder / "null_odds.json").read_text())
    assert [value > 0 for value in odds.values()] == [False] * 10 + [True] * 6
    assert json.loads((folder / "predict_results.json").read_text())["predict_f1"] == 100

    # The threshold moves the decision. An answer that is missing, and not empty, is one that nobody knows.
    rows = make_questions(16, seed=1, unanswered=6)
    rows[0]["answers"] = None
    test = write(tmp_path / "test.jsonl", rows)
    always = ["--model_name_or_path", folder, "--test_file", test, "--version_2_with_negative"]
    run(*always, "--null_score_diff_threshold", 1000, out="brave")
    predictions = json.loads((tmp_path / "brave" / "predictions.json").read_text())
    assert len(predictions) == 16 and all(predictions.values())
    assert "test: 1 of 16 rows have no 'answers'" in capsys.readouterr().out
    results = json.loads((tmp_path / "brave" / "predict_results.json").read_text())
    assert results["predict_f1"] == pytest.approx(100 * 9 / 15)
    with pytest.raises(DataError, match="test.jsonl: 'answers' is missing. Give empty lists where .* line 1"):
        run("--model_name_or_path", folder, "--validation_file", test, "--version_2_with_negative", out="none")


def test_starts_from_bert(run, files, tmp_path, tokenizer):
    """From a classifier of five classes, whose number of labels is not that of start and end."""
    bert = tmp_path / "bert"
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, num_labels=5, **SIZES)
    BertForSequenceClassification(config).save_pretrained(bert)
    tokenizer.save_pretrained(bert)
    settings = json.loads((bert / "tokenizer_config.json").read_text())
    (bert / "tokenizer_config.json").write_text(json.dumps({**settings, "padding_side": "left"}))
    flags = [*files, "--model_name_or_path", bert, "--learning_rate", 0, "--max_steps", 1, "--eval_strategy", "no"]
    run(*flags)
    words = "embeddings.word_embeddings.weight"
    assert torch.equal(weights(tmp_path / "out")[f"plainformer.{words}"], weights(bert)[f"bert.{words}"])
    # Padding on the left would move the answers away from their labels.
    assert AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=False).padding_side == "right"
    run(*flags, "--bert_baseline", out="baseline")
    config = json.loads((tmp_path / "baseline" / "config.json").read_text())
    assert config["architectures"] == ["BertForQuestionAnswering"]
    assert torch.equal(weights(tmp_path / "baseline")[f"bert.{words}"], weights(bert)[f"bert.{words}"])
    with pytest.raises(
        RecipeError,
        match="never trained for this .*ForSequenceClassification.*ForQuestionAnswering is",
    ):
        run("--validation_file", files[3], "--model_name_or_path", bert, out="third")


def test_formats_give_the_same_run(run, tmp_path):
    rows = make_questions(8)
    listed = [{**row, "answers": [{key: values[0] for key, values in row["answers"].items()}]} for row in rows]
    renamed = [dict(zip(("id", "q", "c", "a"), row.values(), strict=True)) for row in rows]
    names = ["--question_column_name", "q", "--context_column_name", "c", "--answer_column_name", "a"]
    written = {
        "flat": [write(tmp_path / "flat.jsonl", rows)],
        "squad": [write(tmp_path / "squad.json", json.dumps(as_squad(rows)))],
        "parquet": [write(tmp_path / "flat.parquet", rows)],
        "listed": [write(tmp_path / "listed.jsonl", listed)],
        "renamed": [write(tmp_path / "renamed.jsonl", renamed), *names],
    }
    inputs = {out: inputs_of(run_qa, run, "--train_file", *flags, *TINY, out=out) for out, flags in written.items()}
    assert len(inputs["flat"][1]["train"]) >= 8
    for out in written:
        assert inputs[out] == inputs["flat"], out


def test_evaluates_without_training(run, files, tmp_path, capsys):
    metrics = run(*files, *TINY, "--num_train_epochs", 1)
    other = write(tmp_path / "other.jsonl", [{"Answers": row.pop("answers"), **row} for row in make_questions(2)])
    flags = ["--validation_file", files[3], "--test_file", other, "--model_name_or_path", tmp_path / "out"]
    again = run(*flags, out="again")
    assert "test: no column 'answers' (there is 'Answers'): predicted, and not measured\n" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"other.jsonl has no column 'gold' \(--answer_column_name\)"):
        run(*flags[2:], "--answer_column_name", "gold", out="named")
    for name in ("eval_loss", "eval_exact_match", "eval_f1"):
        assert again[name] == metrics[name]
    cut = run(*files[:2], *TINY, "--validation_split_percentage", 25, "--max_steps", 1, out="cut")
    assert cut["eval_samples"] >= 6


@TRAINER_DIVIDES_TWICE
def test_accumulated_gradients_are_those_of_the_big_batch(run, files, tmp_path):
    plan = [*files[:2], *TINY, "--max_steps", 3, "--optim", "sgd", "--learning_rate", 0.5]
    plan += ["--hidden_dropout_prob", 0, "--attention_probs_dropout_prob", 0, "--max_grad_norm", 0]
    run(*plan, "--per_device_train_batch_size", 8, out="big")
    run(*plan, "--per_device_train_batch_size", 2, "--gradient_accumulation_steps", 4)
    for name, weight in weights(tmp_path / "big").items():
        torch.testing.assert_close(weights(tmp_path / "out")[name], weight, rtol=1e-4, atol=1e-6)


# Windows


def test_no_answer_needs_a_special_token_before_the_question():
    tokenizer = train_tokenizer(["who wins?"] * 2, show_progress=False)
    check_tokenizer(tokenizer, with_negative=True)
    bare = with_template(tokenizer, "$A [SEP]")
    check_tokenizer(bare, with_negative=False)
    with pytest.raises(RecipeError, match="--version_2_with_negative marks no answer at the first token, and"):
        check_tokenizer(bare, with_negative=True)


def encode(tokenizer, rows: list[dict], **fields) -> list[dict]:
    args = QuestionArguments(**{"max_seq_length": 12, "doc_stride": 3, **fields})
    columns = make_tokenize(tokenizer, args)(Dataset.from_list(rows)[:], list(range(len(rows))))
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def test_windows_cover_the_text_and_know_their_answers(tokenizer):
    rows = make_questions(40, seed=3)
    windows = encode(tokenizer, rows)
    covered, labelled = {}, set()
    for window in windows:
        row = rows[window["row"]]
        assert len(window["input_ids"]) <= 12
        spans = [row["context"][left:right] for left, right in window["offsets"]]
        ids = window["input_ids"][window["first"] : window["first"] + len(spans)]
        assert tokenizer.convert_ids_to_tokens(ids) == spans  # every word of the rows is one token
        start, end = window["start_positions"], window["end_positions"]
        answer = row["answers"]["text"][0].split()
        holds = any(spans[i : i + 2] == answer for i in range(len(spans)))
        assert (start < 12) == (end < 12) == holds
        if holds:
            assert tokenizer.convert_ids_to_tokens(window["input_ids"][start : end + 1]) == answer
            labelled.add(window["row"])
        else:
            assert start == end == 12  # a place that no row has
        before = covered.setdefault(window["row"], [])
        overlap = 3 if before else 0
        assert before[len(before) - overlap :] == window["offsets"][:overlap]
        before += window["offsets"][overlap:]
    assert [len(offsets) for offsets in covered.values()] == [len(row["context"].split()) for row in rows]
    assert len(labelled) == 40 and len(windows) > 80

    negative = encode(tokenizer, rows, version_2_with_negative=True)
    for one, other in zip(windows, negative, strict=True):
        for name in ("start_positions", "end_positions"):
            assert other[name] == (0 if one[name] == 12 else one[name])


@pytest.mark.parametrize(
    "answers, is_first, is_last, expected",
    [
        ([("bb", 3)], False, False, (6, 6)),
        ([("bb ccc", 3)], False, False, (6, 7)),
        ([("aa bb ccc", 0)], False, False, (5, 7)),
        ([(" bb ", 2)], False, False, (6, 6)),
        ([("b c", 4)], False, False, (6, 7)),  # tokens that an answer cuts are taken as a whole
        ([("ccc ddd", 6)], False, False, None),
        ([("ccc ddd", 6), ("aa", 0)], False, False, (5, 5)),  # the first that is here
        ([("ccc!", 6)], False, True, (7, 7)),  # the tokenizer left "!" out: no other window has more of it
        ([("ccc!", 6)], False, False, None),
        ([], True, True, None),
    ],
)
def test_place_of_an_answer(answers, is_first, is_last, expected):
    """The text "aa bb ccc ddd" with the window "aa bb ccc", whose first token is at place 5."""
    assert find_span(answers, [[0, 2], [3, 5], [6, 9]], 5, is_first, is_last) == expected


def test_place_of_an_answer_between_neighbours():
    assert find_span([("中", 1)], [[0, 1], [1, 2], [2, 3]], 1, True, True) == (2, 2)


def test_windows_without_an_answer_are_reported(run, tmp_path, capsys):
    rows = make_questions(6)
    rows[0]["context"] = "king " + "film " * 12 + "ada"
    rows[0]["answers"] = {"text": [rows[0]["context"]], "answer_start": [0]}  # longer than any window
    run("--train_file", write(tmp_path / "train.jsonl", rows), *TINY, "--max_steps", 1)
    assert "train: 1 questions have an answer that no window holds as a whole" in capsys.readouterr().out
    train = write(tmp_path / "long.jsonl", rows[:1])
    with pytest.raises(DataError, match="no window of --max_seq_length 16 holds a whole answer"):
        run("--train_file", train, *TINY, "--max_steps", 1, out="long")


# Answers


def make_windows(*windows: tuple[int, int, int]) -> Dataset:
    """Windows of one-letter tokens: row, first place of the text, number of the first letter; four letters each."""
    return Dataset.from_list(
        [
            {"row": row, "first": first, "offsets": [[letter + i, letter + i + 1] for i in range(4)]}
            for row, first, letter in windows
        ]
    )


def make_logits(*peaks: dict[int, float]) -> np.ndarray:
    logits = np.full((len(peaks), 8), -5.0, dtype=np.float32)
    for window, starts in enumerate(peaks):
        for place, value in starts.items():
            logits[window, place] = value
    return logits


ROWS = Dataset.from_dict({"context": ["abcdefgh", "ijklmnop"]})


def test_best_answer_over_all_windows():
    windows = make_windows((0, 2, 0), (0, 2, 3), (1, 3, 0))
    start = make_logits({1: 99, 3: 4, 5: 3}, {3: 5}, {2: 99, 3: 1})  # 99: in the question, and past the text
    end = make_logits({0: 99, 4: 4, 5: 3}, {5: 6, 6: 99}, {4: 1, 7: 99})
    found = find_answers(ROWS, windows, (start, end), QuestionArguments())
    assert [answer["text"] for answer in found] == ["efg", "ij"]
    best = found[0]["nbest"][0]
    assert (best["text"], best["start_logit"], best["end_logit"]) == ("efg", 5, 6)
    texts = [answer["text"] for answer in found[0]["nbest"]]
    assert len(texts) == len(set(texts))  # windows overlap: "d" is in both, and scored by the better one
    assert found[0]["nbest"][texts.index("d")]["start_logit"] == 3

    short = QuestionArguments(max_answer_length=2)
    assert find_answers(ROWS, windows, (start, end), short)[0]["text"] == "bc"
    one = QuestionArguments(n_best_size=1)
    assert [len(answer["nbest"]) for answer in find_answers(ROWS, windows, (start, end), one)] == [1, 1]


def test_no_answer_needs_every_window():
    windows = make_windows((0, 2, 0), (0, 2, 4), (1, 2, 0))
    start = make_logits({0: 9, 3: 1}, {0: 2, 3: 3}, {0: 4, 2: 1})
    end = make_logits({0: 9, 3: 1}, {0: 2, 4: 3}, {0: 4, 2: 1})

    def answer(threshold: float) -> list[dict]:
        args = QuestionArguments(version_2_with_negative=True, null_score_diff_threshold=threshold)
        return find_answers(ROWS, windows, (start, end), args)

    assert [found["text"] for found in answer(0)] == ["fg", ""]  # the first window alone would say no answer
    assert [found["null_odds"] for found in answer(0)] == [4 - 6, 8 - 2]
    assert [found["text"] for found in answer(-2.5)] == ["", ""]
    assert [found["text"] for found in answer(6)] == ["fg", "i"]
    assert answer(0)[1]["nbest"][0]["text"] == ""


def test_text_without_tokens_has_an_empty_answer():
    windows = Dataset.from_list([{"row": 0, "first": 0, "offsets": []}, {"row": 1, "first": 1, "offsets": [[0, 1]]}])
    logits = make_logits({}, {})
    for negative in (False, True):
        found = find_answers(ROWS, windows, (logits, logits), QuestionArguments(version_2_with_negative=negative))
        assert found[0]["text"] == ""
        json.dumps(found, allow_nan=False)


def test_best_spans_are_those_of_all_pairs():
    draw = np.random.default_rng(0)
    for length in (1, 2, 7, 30):
        start, end = draw.normal(size=(2, length))
        pairs = [(i, j) for i in range(length) for j in range(i, min(i + 5, length))]
        expected = sorted(pairs, key=lambda pair: -(start[pair[0]] + end[pair[1]]))
        assert best_spans(start, end, n_best=30, max_length=5) == expected[:30]
    # The best start is after the best end: of no other there is an answer either.
    assert best_spans(np.array([0.0, 5]), np.array([6.0, 0]), n_best=1, max_length=5) == [(0, 0)]


# Metrics


@pytest.mark.parametrize(
    "text, answers, exact, f1",
    [
        ("The Eiffel Tower!", ["eiffel tower"], 100, 100),
        ("the big Eiffel Tower", ["Eiffel Tower"], 0, 2 * 2 / (3 + 2) * 100),
        ("in Paris, France", ["Paris", "France in 1889"], 0, 2 * 2 / (3 + 3) * 100),
        ("a a b", ["b b"], 0, 2 * 1 / (1 + 2) * 100),  # articles are gone
        ("x x y", ["x y y"], 0, 2 * 2 / (3 + 3) * 100),  # a word counts as often as both have it
        ("London", ["Paris"], 0, 0),
        ("state-of-the-art", ["stateoftheart"], 100, 100),
        ("1986–87", ["198687"], 0, 0),  # SQuAD knows ASCII's punctuation only
        ("", ["Paris"], 0, 0),
        ("", [], 100, 100),
        ("Paris", [], 0, 0),
        ("北京大学", ["北京"], 0, 2 * 2 / (4 + 2) * 100),
        ("“北京”，", ["北京"], 100, 100),
        ("北京 大学", ["北京大学"], 100, 100),
        ("1998年1月", ["1998年"], 0, 2 * 2 / (4 + 2) * 100),  # 1998, 年, 1, 月
        ("A股 the 上海", ["a股上海"], 100, 100),
        ("東京タワー", ["東京"], 0, 2 * 2 / (5 + 2) * 100),
        ("서울 대학교", ["서울"], 0, 2 * 1 / (2 + 1) * 100),  # Korean has spaces
    ],
)
def test_metrics_worked_out_by_hand(text, answers, exact, f1):
    assert score_answers([text], [answers]) == pytest.approx({"exact_match": exact, "f1": f1})


def test_metrics_of_several_questions():
    texts, right = ["Paris", "", "Rome"], [["Paris"], [], []]
    assert score_answers(texts, right) == pytest.approx({"exact_match": 200 / 3, "f1": 200 / 3})
    parts = {"has_answer_exact_match": 100, "has_answer_f1": 100, "no_answer_accuracy": 50}
    assert score_answers(texts, right, True) == pytest.approx({"exact_match": 200 / 3, "f1": 200 / 3, **parts})
    assert "no_answer_accuracy" not in score_answers(texts[:1], right[:1], True)


# Bad input


def change(row: dict, **fields) -> dict:
    return {**row, **fields}


GOOD = {"id": "a", "question": "who?", "context": "so Bob and bob", "answers": {"text": ["Bob"], "answer_start": [3]}}
BAD_ROWS = {
    "misplaced": (
        change(GOOD, answers={"text": ["Bob"], "answer_start": [4]}),
        "line 2. The first, id 'b': 'Bob' should stand at 4, where 'ob ' stands; it stands at 3: correct answer_start.",
    ),
    "past-the-end": (
        change(GOOD, answers={"text": ["o"], "answer_start": [99]}),
        "'o' should stand at 99, where '' stands; it stands at 1, 4, 12: correct",
    ),
    "before-the-start": (
        change(GOOD, answers={"text": ["bob"], "answer_start": [-3]}),
        "'bob' should stand at -3, where '' stands; it stands at 11",
    ),
    "other-case": (
        change(GOOD, answers={"text": ["AND"], "answer_start": [7]}),
        "where 'and' stands; 'and' stands at 7: write the answer as the text does.",
    ),
    "nowhere": (
        change(GOOD, answers={"text": ["Eve"], "answer_start": [3]}),
        "where 'Bob' stands; the text does not have it anywhere",
    ),
    "no-answer": (
        change(GOOD, answers={"text": [], "answer_start": []}),
        "1 row of {file}: 'answers' has no answer. Remove these rows, or give --version_2_with_negative",
    ),
    "blank-answer": (
        change(GOOD, answers={"text": [""], "answer_start": [3]}),
        "1 row of {file}: 'answers' has no answer.",
    ),
    "lengths": (
        change(GOOD, answers={"text": ["Bob", "bob"], "answer_start": [3]}),
        '\'answers\' is not {{"text": [...], "answer_start": [...]}}',
    ),
    "question": (change(GOOD, question=" "), "1 row of {file}: 'question' is empty"),
    "context": (change(GOOD, context=""), "1 row of {file}: 'context' is empty"),
    "id": (
        change(GOOD, id=" "),
        "1 row of {file}: 'id' is empty. Give each question an id of its own. Here: {file}, line 2.",
    ),
    "long-question": (
        change(GOOD, question="who? " * 5),
        "'question' has up to 10 tokens, and at most 8 fit beside --doc_stride 4 and 3 special ones in "
        "--max_seq_length 16. Change these, or shorten the questions. Here: {file}, line 2.",
    ),
}


@pytest.mark.parametrize("bad, message", BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows(run, tmp_path, bad, message):
    name = " " if bad["id"] == " " else "b"
    train = write(tmp_path / "train.jsonl", [GOOD, change(bad, id=name), change(GOOD, id="c")])
    with pytest.raises(DataError) as error:
        run("--train_file", train, *TINY)
    assert message.format(file=train) in str(error.value)
    assert not (tmp_path / "out").exists()


def test_answers_that_are_no_answers(run, tmp_path):
    rows = [change(GOOD, answers="Bob"), change(GOOD, id="b", answers="bob")]
    with pytest.raises(
        DataError, match=r"2 rows of .*: 'answers' is not .* in JSON or Parquet. Here: .*line 2; .*line 3"
    ):
        run("--train_file", write(tmp_path / "train.csv", rows), *TINY)


def test_misplaced_answers_of_squad_name_record_and_id(run, tmp_path):
    squad = as_squad(make_questions(6))
    squad["data"][2]["paragraphs"][1]["qas"][0]["answers"][0]["answer_start"] += 1
    with pytest.raises(DataError, match=r"1 row of .*Here: .*train.json, record 3\. The first, id 'q5'"):
        run("--train_file", write(tmp_path / "train.json", json.dumps(squad)), *TINY)


def test_ids_that_are_there_twice(run, tmp_path, files):
    train = write(tmp_path / "twice.jsonl", [GOOD, change(GOOD, id="b"), GOOD])
    message = "2 rows of .*: 'id' is that of another question too.* line 1; .*twice.jsonl, line 3. The first is 'a'."
    with pytest.raises(DataError, match=message):
        run("--train_file", train, *TINY)
    rows = [{name: row[name] for name in ("question", "context", "answers")} for row in make_questions(3)]
    plain = write(tmp_path / "plain.jsonl", rows)  # ids are not needed
    run("--train_file", plain, "--test_file", plain, *TINY, "--max_steps", 1)
    assert list(json.loads((tmp_path / "out" / "predictions.json").read_text())) == ["0", "1", "2"]


def test_misspelt_columns_get_the_nearest_name(run, tmp_path):
    for name in ("question", "context", "answers"):
        rows = [{(key if key != name else key[:-2]): value for key, value in GOOD.items()}]
        train = write(tmp_path / f"{name}.jsonl", rows)
        flag = f"--{name.removesuffix('s')}_column_name"
        with pytest.raises(DataError, match=rf"no column '{name}' \({flag}\).* Did you mean '{name[:-2]}'\?"):
            run("--train_file", train, *TINY)


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--doc_stride", 12], "--doc_stride 12 leaves no room in --max_seq_length 16"),
        (["--doc_stride", -1], "--doc_stride -1: give a whole number of at least 0"),
        (["--n_best_size", 0], "--n_best_size 0: give a whole number of at least 1"),
        (["--max_answer_length", 0], "--max_answer_length 0: give a whole number of at least 1"),
        (["--label_smoothing_factor", 0.1], "--label_smoothing_factor 0.1 does not go with question answering"),
        (["--max_seq_length", 17], "--max_seq_length 17 is more than the 16 positions"),
    ],
)
def test_settings_that_cannot_work(run, files, flags, message):
    with pytest.raises((RecipeError, DataError)) as error:
        run(*files[:2], *TINY, *flags)
    assert message in str(error.value)


# Documentation


def test_commands_of_the_documentation(tmp_path, monkeypatch):
    """Every command on questions of docs/recipes.md, as printed, with a few rows of the data that it names."""
    commands = documented_commands("Question answering", tmp_path / "minilm")
    assert [name for name, _ in commands] == ["prepare_data", "run_qa", "run_qa"]
    assert commands[0][1] == ["chinese_news_qa"]
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "outputs" / "data" / "chinese_news_qa"
    folder.mkdir(parents=True)
    prepared = prepare_data.chinese_news_qa()
    for split, rows in prepared.splits.items():
        (folder / f"{split}.{prepared.extension}").write_text(prepared.write(rows[:20]), encoding="utf-8")
    few = "--max_train_samples 8 --max_eval_samples 4 --max_predict_samples 4 --max_steps 1 --use_cpu true".split()
    always = [*few, "--cache_dir", "cache", "--disable_tqdm", "true"]
    outputs = []
    for _, words in commands[1:]:
        main([*words, *always])
        outputs.append(Path(words[words.index("--output_dir") + 1]))
    assert [path.name for path in outputs] == ["news-questions", "news-answers"]
    one, other = (json.loads((path / "predictions.json").read_text(encoding="utf-8")) for path in outputs)
    assert one == other and len(one) == 4
