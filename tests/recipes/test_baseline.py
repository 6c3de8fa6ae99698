"""The cheap figures to beat: each method on a few rows whose result can be worked out by hand."""

import json
import sys

import baseline
import pytest


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """What the script prints for the files in `tmp_path`."""

    def run() -> str:
        monkeypatch.setattr(sys, "argv", ["baseline.py", str(tmp_path)])
        baseline.main()
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(("good", "bad", "unit"), [("a good film", "a bad film", "word"), ("很好看", "很难看", "char")])
def test_classification(run, tmp_path, good, bad, unit):
    rows = [f"{good},positive", f"{bad},negative"] * 20
    for name, part in (("train", rows), ("validation", rows[:4]), ("test", [*rows[:3], f"{bad},positive"])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["text,label", *part]) + "\n", encoding="utf-8")
    line = run()
    assert line.startswith("accuracy 0.750 on 4 texts") and f"{unit} 1-2 grams" in line


def conll(*rows: str) -> str:
    return "".join("".join(token.replace("/", "\t") + "\n" for token in row.split()) + "\n" for row in rows)


def test_tags(run, tmp_path):
    """Paris is a place twice of three times; Rome is new and gets the commonest tag of all, O."""
    (tmp_path / "train.conll").write_text(conll("Paris/B-LOC is/O", "Paris/B-LOC", "Paris/O is/O"))
    (tmp_path / "test.conll").write_text(conll("Paris/B-LOC is/O", "Rome/B-LOC is/O", "Paris/O"))
    assert run().startswith("precision 0.500, recall 0.500, F1 0.500 on 3 rows")


def test_segmentation_counts_whole_words(run, tmp_path):
    """Of the words 北京, 的, 北 and 京 the first two are found; the most frequent tags make the others one."""
    (tmp_path / "train.conll").write_text(conll("北/B 京/E 的/S", "北/B 大/M 学/E"), encoding="utf-8")
    (tmp_path / "test.conll").write_text(conll("北/B 京/E 的/S", "北/S 京/S"), encoding="utf-8")
    assert run().startswith("precision 0.667, recall 0.500, F1 0.571 on 2 rows")


def test_questions(run, tmp_path):
    """The first has its answer by frequency in the text; the second gets one of three characters right."""
    context = {"question": "谁？", "context": "李鹏和江泽民"}
    train = [{**context, "answers": {"text": [text], "answer_start": [0]}} for text in ("江泽民", "江泽民", "李鹏")]
    test = [train[0], {**context, "context": "江水", "answers": {"text": ["江"], "answer_start": [0]}}]
    for name, rows in (("train", train), ("test", test)):
        (tmp_path / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run().startswith("exact match 50.0, F1 75.0 on 2 questions")


def test_a_folder_without_data_is_named(run, tmp_path):
    with pytest.raises(SystemExit, match=f"error: {tmp_path} holds none of train.csv"):
        run()


GOOD = "text,label\na good film,x\na bad film,y\n"


def test_unlabelled_test_rows_are_left_out(run, tmp_path):
    for name, more in (("train", ""), ("validation", ""), ("test", "good,\nbad,\n")):
        (tmp_path / f"{name}.csv").write_text(GOOD + "a good film,x\na bad film,y\n" + more)
    left_out, figures = run().splitlines()
    assert left_out.endswith("test.csv: 2 of 6 rows have no 'label': left out, and not measured")
    assert figures.startswith("accuracy 1.000 on 4 texts")


def question(**fields) -> str:
    row = {"question": "who?", "context": "a b", "answers": {"text": ["a"], "answer_start": [0]}}
    return json.dumps({**row, **fields}) + "\n"


BROKEN = {
    "column": ({"train.csv": "text,lable\na,x\n"}, "train.csv, line 2: 'label' is missing, only text, lable is there"),
    "label": ({"train.csv": "text,label\na,x\nb, \n"}, "train.csv, line 3: 'label' is empty or of another form"),
    "no-labels": (
        dict.fromkeys(["train.csv"], GOOD) | {"validation.csv": GOOD, "test.csv": "text,label\na,\n"},
        "test.csv",
    ),
    "one-label": (dict.fromkeys(["train.csv", "validation.csv", "test.csv"], "text,label\na,x\n"), "all rows have the"),
    "tags": ({"train.conll": "a\nb\n"}, "train.conll, line 1: 'tags' is missing, only tokens is there"),
    "answers": ({"train.json": question(answers={"text": []})}, "train.json, line 1: 'answers' is empty or of another"),
    "question": (
        {"train.json": question(), "test.json": question(question="x?")},
        "the question 'x.' is not in .*train",
    ),
}


@pytest.mark.parametrize("files, message", BROKEN.values(), ids=BROKEN)
def test_what_does_not_fit_is_named(run, tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        run()


def test_a_broken_file_is_named(run, tmp_path):
    (tmp_path / "train.conll").write_text("Paris\tB-LOC\nis\n")
    with pytest.raises(SystemExit, match="error: .*train.conll, line 2: 1 columns"):
        run()
