"""Texts for texts: what is learned, several right targets, metrics, where a model starts from, bad columns."""

import csv
import importlib.util
import json
import random
from pathlib import Path
from types import SimpleNamespace

import prepare_data
import pytest
import run_mlm
import run_seq2seq
import torch
from datasets import Dataset, DatasetDict
from helpers.recipes import (
    NO_DROPOUT,
    SIZES,
    TINY,
    assert_same_run,
    documented_commands,
    in_process,
    inputs_of,
    make_bert,
    stop_at,
    weights,
    write,
)
from run_seq2seq import as_targets, main
from transformers import AutoTokenizer, GenerationConfig

from plainformer import (
    PlainformerConfig,
    PlainformerForConditionalGeneration,
    PlainformerForMaskedLM,
    PlainformerForSequenceClassification,
)
from plainformer.recipes.errors import DataError, RecipeError
from plainformer.recipes.generation import make_measure, make_write
from plainformer.recipes.metrics import edit_distance, find_text_metrics, score_texts
from plainformer.tokenization_plainformer import SPECIAL_TOKENS, train_tokenizer

LETTERS = "abcdef"
FAST = ["--learning_rate", 1e-2, "--initializer_range", 0.2, "--per_device_train_batch_size", 32]


def make_pairs(count: int, seed: int = 0, most: int = 4) -> list[dict[str, str]]:
    """Letters, and the same ones as capitals in the place of sounds."""
    draw = random.Random(seed)
    texts = [" ".join(draw.choices(LETTERS, k=draw.randint(1, most))) for _ in range(count)]
    return [{"source": text, "target": text.upper()} for text in texts]


def read_predictions(folder) -> list[list[str]]:
    with open(folder / "predictions.csv", encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@pytest.fixture
def files(tmp_path):
    """`--train_file` with 16 pairs and `--validation_file` with 8."""
    train, dev = write(tmp_path / "train.csv", make_pairs(16)), write(tmp_path / "dev.csv", make_pairs(8, seed=1))
    return ["--train_file", train, "--validation_file", dev]


@pytest.fixture
def run(tmp_path):
    """The recipe with these flags, in this process; its cache is the test's own."""
    return in_process(main, tmp_path)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(["It is 12.5 euros", "a b c"] * 2, show_progress=False, model_max_length=16)


def test_learns_and_writes_everything(run, tmp_path, capsys):
    """Several pronunciations in lists; the predictions in the order of the file, although the longest come first."""
    test = [{**row, "target": [row["target"], "other"]} for row in make_pairs(9, seed=2)]
    train = write(tmp_path / "train.jsonl", make_pairs(256))
    dev, test_file = write(tmp_path / "dev.jsonl", make_pairs(20, seed=1)), write(tmp_path / "test.jsonl", test)
    data = ["--train_file", train, "--validation_file", dev, "--test_file", test_file, "--cased"]
    names = ["--metrics", "word_error_rate,phoneme_error_rate"]
    metrics = run(*data, *TINY, *FAST, *NO_DROPOUT, "--num_train_epochs", 12, "--eval_steps", 32, *names)
    assert metrics["predict_word_error_rate"] <= 0.2 and metrics["predict_phoneme_error_rate"] <= 0.1
    predictions = read_predictions(tmp_path / "out")
    assert predictions[0] == ["index", "prediction"]
    assert [int(number) for number, _ in predictions[1:]] == list(range(9))
    right = [text in row["target"] for (_, text), row in zip(predictions[1:], test, strict=True)]
    assert 1 - sum(right) / 9 == pytest.approx(metrics["predict_word_error_rate"])

    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    errors = [entry["eval_word_error_rate"] for entry in state["log_history"] if "eval_loss" in entry]
    assert state["best_metric"] == min(errors) < max(errors)
    # The folder writes by itself, as the recipe did.
    model = PlainformerForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=False)
    ids = model.generate(**tokenizer([row["source"] for row in test], padding=True, return_tensors="pt"))
    write_text = make_write(tokenizer, model.config.eos_token_id)
    assert [write_text(row[1:]) for row in ids] == [text for _, text in predictions[1:]]


def test_targets_have_an_end_and_no_start(run, files, tmp_path, monkeypatch, capsys):
    """The start token is the model's to put; a target that is cut is counted, and so is a source."""
    seen = {}

    def keep(run, model, tokenizer, inputs, *args, **options):
        seen.update(inputs=inputs, tokenizer=tokenizer, model=model)
        return {}, None

    monkeypatch.setattr(run_seq2seq, "train_and_evaluate", keep)
    run(*files, *TINY, "--max_seq_length", 5, "--max_target_length", 3)
    tokenizer, rows = seen["tokenizer"], make_pairs(16)
    for row, ids in zip(rows, seen["inputs"]["train"]["labels"], strict=True):
        whole = tokenizer(row["target"])["input_ids"][1:]
        assert ids == [*whole[:-1][:2], tokenizer.sep_token_id]
    lengths = [len(row["source"].split()) for row in rows]
    printed = capsys.readouterr().out
    for what, flag, most in (("sources", "max_seq_length", 5), ("targets", "max_target_length", 3)):
        count = sum(length > (3 if what == "sources" else 2) for length in lengths)
        assert f"train: {count} of 16 {what} are longer than {most} tokens and were cut (--{flag})" in printed
    config = seen["model"].config
    assert (config.decoder_start_token_id, config.eos_token_id) == (tokenizer.cls_token_id, tokenizer.sep_token_id)


def test_each_target_is_trained_on_and_any_is_right(run, tmp_path, monkeypatch):
    rows = [{"word": "a b", "target": "A B;B"}, {"word": "c", "target": "C"}]
    seen = {}

    def keep(run, model, tokenizer, inputs, measures):
        labels = {split: [tokenizer.decode(ids[:-1]) for ids in rows["labels"]] for split, rows in inputs.items()}
        seen.update(labels=labels, measure=measures["validation"], tokenizer=tokenizer)
        return {}, None

    monkeypatch.setattr(run_seq2seq, "train_and_evaluate", lambda *args, trainer_class, data_collator: keep(*args))
    data = ["--train_file", write(tmp_path / "t.csv", rows), "--validation_file", write(tmp_path / "d.csv", rows)]
    run(*data, *TINY, "--cased", "--target_delimiter", ";")
    assert seen["labels"] == {"train": ["A B", "B", "C"], "validation": ["A B", "C"]}
    answers = [seen["tokenizer"](text)["input_ids"][1:] for text in ("B", "C")]
    assert seen["measure"](SimpleNamespace(predictions=answers))["exact_match"] == 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a", ["a"]), (["a", "", None, " b"], ["a", "b"]), (None, []), (" ", []), (3, None), ([3], None), ({}, None)],
)
def test_what_counts_as_targets(value, expected):
    assert as_targets(value) == expected
    assert as_targets("a; b;", ";") == ["a", "b"]


def read_cells(path: Path, cells: list, **arguments) -> list:
    data_args = run_seq2seq.Seq2SeqArguments(train_file=str(path), **arguments)
    data = DatasetDict(train=Dataset.from_list([{"target": cell} for cell in cells]))
    write(path, [{"target": cell} for cell in cells])
    return run_seq2seq.read_targets(data, SimpleNamespace(data_args=data_args, say=print), "target")["train"]["target"]


def test_targets_in_lists(tmp_path, capsys):
    """Text cells of CSV that all hold a list are lists, and in JSON they are texts; what is empty is counted."""
    cells = ["['b1', 'c']", "['d']"]
    assert list(read_cells(tmp_path / "t.csv", cells)) == [["b1", "c"], ["d"]]
    assert "train: the text cells of 'target' are read as lists, such as ['b1', 'c']" in capsys.readouterr().out
    assert list(read_cells(tmp_path / "t.jsonl", cells)) == [[cell] for cell in cells]
    assert list(read_cells(tmp_path / "t.csv", ["[3, 4]", "(a)"])) == [["[3, 4]"], ["(a)"]]
    with pytest.raises(DataError, match=r"1 row of .*is no list, and other cells are, such as \['b1'.*line 3"):
        read_cells(tmp_path / "t.csv", [cells[0], "d"])
    with pytest.raises(DataError, match=r"--target_delimiter cannot split"):
        read_cells(tmp_path / "t.csv", cells, target_delimiter=";")
    assert list(read_cells(tmp_path / "t.jsonl", [["a", None], ["b", ""], ["c"]])) == [["a"], ["b"], ["c"]]
    assert "train: 2 of 3 rows have null or empty targets in a list: left out" in capsys.readouterr().out


@pytest.mark.parametrize("extension", ["csv", "json", "jsonl", "parquet"])
def test_usual_names_in_every_format(run, tmp_path, extension):
    rows = [{"id": "1", "input": row["source"], "output": row["target"]} for row in make_pairs(8)]
    train = write(tmp_path / f"train.{extension}", rows)
    _, inputs = inputs_of(run_seq2seq, run, "--train_file", train, *TINY, out="out")
    assert len(inputs["train"]) == 8 and inputs["train"][0].keys() >= {"input_ids", "labels"}


def test_resumes_bit_for_bit(run, files, tmp_path, monkeypatch):
    flags = [*files, *TINY, "--num_train_epochs", 3, "--per_device_train_batch_size", 8]
    flags += ["--logging_steps", 1, "--metrics", "exact_match,phoneme_error_rate"]
    run(*flags, out="whole")
    stop_at(monkeypatch, 4, lambda: run(*flags, out="broken"))
    run(*flags, "--resume_from_checkpoint", "true", out="broken")
    assert_same_run(tmp_path / "whole", tmp_path / "broken")


def test_label_smoothing_is_of_the_right_tokens(run, files, tmp_path):
    """With a factor near 0 the loss is that without it."""
    plain = run(*files, *TINY, "--max_steps", 1, out="plain")
    smooth = run(*files, *TINY, "--max_steps", 1, "--label_smoothing_factor", 1e-6, out="smooth")
    assert smooth["eval_loss"] == pytest.approx(plain["eval_loss"], rel=1e-4)


@pytest.mark.parametrize("kind", ["bert", "encoder", "masked LM", "encoder-decoder"])
def test_starts_from_any_checkpoint(run, files, tmp_path, kind):
    """An encoder's weights come over unchanged; an encoder-decoder predicts without training."""
    make_bert(tmp_path / "bert")
    start = tmp_path / "bert"
    name = "embeddings.word_embeddings.weight"
    if kind != "bert":
        tokenizer = AutoTokenizer.from_pretrained(start, trust_remote_code=False)
        start = tmp_path / "start"
        fields = {name.removeprefix("--"): size for name, size in zip(TINY[::2], TINY[1::2], strict=True)}
        config = PlainformerConfig(vocab_size=len(tokenizer), **fields)
        model = PlainformerForMaskedLM(config)
        (model.plainformer if kind == "encoder" else model).save_pretrained(start)
        tokenizer.save_pretrained(start)
    before = weights(start)
    if kind == "encoder-decoder":
        run(
            *files,
            "--model_name_or_path",
            start,
            "--max_steps",
            1,
            "--num_decoder_layers",
            1,
            "--num_beams",
            3,
            out="first",
        )
        flags = ["--model_name_or_path", tmp_path / "first", "--test_file", files[1]]
        assert "predict_exact_match" in run(*flags)
        assert GenerationConfig.from_pretrained(tmp_path / "first").num_beams == 3
        with pytest.raises(RecipeError, match="--num_decoder_layers 2 .* brings its own decoder"):
            run(*files, "--model_name_or_path", tmp_path / "first", "--num_decoder_layers", 2, out="second")
        with pytest.raises(RecipeError, match="was never trained for this"):
            run("--model_name_or_path", start, "--test_file", files[1], out="second")
        return
    run(*files, "--model_name_or_path", start, "--max_steps", 1, "--learning_rate", 0, "--num_decoder_layers", 1)
    after = weights(tmp_path / "out")
    key = next(other for other in before if other.endswith(name))
    assert torch.equal(after[f"plainformer.{name}"], before[key])
    assert not any("decoder.layers.1." in other for other in after)


def test_other_recipes_say_how_to_get_the_encoder(run, files, tmp_path):
    run(*files, *TINY, "--max_steps", 1)
    import run_classification

    rows = [{"text": "a b", "label": "x"}, {"text": "c", "label": "y"}]
    flags = ["--train_file", write(tmp_path / "c.csv", rows), "--max_steps", 1]
    classify = in_process(run_classification.main, tmp_path)
    with pytest.raises(RecipeError, match="plainformer-seq2seq'.*model.plainformer.save_pretrained"):
        classify(*flags, "--model_name_or_path", tmp_path / "out", out="classes")
    model = PlainformerForConditionalGeneration.from_pretrained(tmp_path / "out")
    model.plainformer.save_pretrained(tmp_path / "encoder")
    assert PlainformerForSequenceClassification.from_pretrained(tmp_path / "encoder").config.model_type == "plainformer"


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--source_column_name", "sauce"], "no column 'sauce'.*Did you mean 'source'"),
        (["--target_column_name", "source"], "'source' is the column of both"),
        (["--metrics", "exact_match,blue"], "blue is no metric here; choose from exact_match"),
        (["--metrics", ","], "nothing is no metric here"),
        (["--metric_for_best_model", "accuracy"], "no such metric here, only exact_match, loss"),
        (["--max_target_length", 17], "--max_target_length 17 is more than the 16 positions"),
        (["--max_new_tokens", 17], "--max_new_tokens 17 is more than the 16 positions"),
        (["--num_beams", 0], "--num_beams 0: give a whole number of at least 1"),
        (["--num_decoder_layers", 0], "num_decoder_layers=0 is not valid"),
        (["--bert_baseline"], "--bert_baseline: BERT has no class like PlainformerForConditionalGeneration"),
    ],
)
def test_bad_flags(run, files, flags, error):
    with pytest.raises((DataError, RecipeError), match=error):
        run(*files, *TINY, *flags)


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([{"source": "a", "target": 3}], r"'target' is no text, and no list of texts.*line 1"),
        ([{"source": "a", "target": []}], r"'target' is empty.*line 1"),
        ([{"source": " ", "target": "a"}], r"'source' is empty.*line 1"),
        ([{"source": "a", "goal": "b"}], r"none of the columns target, .*only source, goal"),
    ],
)
def test_bad_rows(run, tmp_path, rows, error):
    with pytest.raises(DataError, match=error):
        run("--train_file", write(tmp_path / "bad.jsonl", rows), *TINY)


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([("a", "b"), ("a", "b [SEP] c")], r"'target' holds the text of a special token.*line 2. The first is \[SEP\]"),
        ([("a", ["b", "[UNK]"])], r"'target' holds the text of a special token.*line 1. The first is \[UNK\]"),
        ([("a", ["b"]), ("a", ["b", "\u200d"])], r"leaves nothing of 'target'.*line 2"),
        ([("a", "b"), ("\u200d", "b")], r"leaves nothing of 'source'.*line 2"),
    ],
)
def test_targets_that_cannot_be_written(run, tmp_path, rows, error):
    """The whole file is looked at, also what is cut off to evaluate on."""
    train = write(tmp_path / "t.jsonl", [{"source": source, "target": target} for source, target in rows])
    with pytest.raises(DataError, match=error):
        run("--train_file", train, *TINY)


def test_characters_that_the_vocabulary_lacks(run, files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run_seq2seq, "train_and_evaluate", lambda *args, **options: ({}, None))
    rows = [{"source": "a [MASK]", "target": ["\u65e5"]}, {"source": "\u65e5", "target": ["A", "A \u65e5"]}]
    other = write(tmp_path / "other.jsonl", rows)
    run("--train_file", files[1], "--validation_file", other, *TINY)
    printed = capsys.readouterr().out
    assert "validation: 1 of 2 targets hold characters that the vocabulary lacks, and can never be" in printed
    assert (
        "validation: 1 of 2 sources are nothing but characters that the vocabulary lacks, such as '\u65e5'" in printed
    )
    assert "validation: 1 of 2 sources hold the text of a special token, such as [MASK]" in printed
    vocab = write(tmp_path / "vocab.txt", "\n".join([*SPECIAL_TOKENS, "a"]))
    bad = write(tmp_path / "bad.jsonl", [{"source": "a", "target": "\u65e5"}])
    with pytest.raises(RecipeError, match="train: 1 of 1 targets hold .*--tokenizer_name, or leave that out"):
        run("--train_file", bad, "--tokenizer_name", vocab, *TINY, out="bad")


def test_predicts_rows_without_targets(run, files, tmp_path):
    """With no targets there are no metrics; with some, the metrics are of those rows."""
    rows = make_pairs(4, seed=3)
    without = write(tmp_path / "without.jsonl", [{"source": row["source"]} for row in rows])
    some = write(tmp_path / "some.jsonl", [rows[0], *({**row, "target": None} for row in rows[1:])])
    metrics = run(*files, *TINY, "--max_steps", 1, "--test_file", without)
    assert "predict_exact_match" not in metrics and len(read_predictions(tmp_path / "out")) == 5
    metrics = run("--model_name_or_path", tmp_path / "out", "--test_file", some, out="some")
    assert metrics["predict_measured_samples"] == 1 and "predict_exact_match" in metrics
    assert read_predictions(tmp_path / "some") == read_predictions(tmp_path / "out")


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "ba", 2), ("abcd", "abd", 1)],
)
def test_edit_distance(one, other, distance):
    assert edit_distance(one, other) == distance == edit_distance(other, one)


def test_metrics_by_hand():
    """Two of three words are right, one in its second pronunciation; the third lacks one sound of its nearer one."""
    references = [["AH0 B", "EY1 B"], ["K AE1 T"], ["D AO1 G", "D AO1 G Z Z"]]
    predictions = ["EY1 B", "K AE1 T", "D AO1"]
    scores = score_texts(predictions, references, ["exact_match", "word_error_rate", "phoneme_error_rate"])
    assert scores == pytest.approx({"exact_match": 2 / 3, "word_error_rate": 1 / 3, "phoneme_error_rate": 1 / 8})
    nothing = score_texts([""], [["K AE1 T"]], ["phoneme_error_rate"])
    assert nothing == {"phoneme_error_rate": 1.0}


def test_sacrebleu_takes_several_references():
    """BLEU by hand: precisions 4/5, 3/4, 2/3, 1/2 of 5 words, brevity penalty 1 since one reference has 5."""
    text, references = "the cat sat down here", ["the cat sat down there", "a cat"]
    scores = score_texts([text, "x y z v"], [references, ["x y z v"]], ["bleu", "chrf"])
    precisions = [8 / 9, 6 / 7, 4 / 5, 2 / 3]
    product = 1.0
    for precision in precisions:
        product *= precision
    assert scores["bleu"] == pytest.approx(100 * product**0.25)
    assert 50 < scores["chrf"] < 100
    assert score_texts(["a b c d"], [["x", "a b c d"]], ["bleu", "chrf"]) == pytest.approx({"bleu": 100, "chrf": 100})


def test_a_missing_sacrebleu_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match="pip install sacrebleu"):
        find_text_metrics("exact_match,chrf")
    assert find_text_metrics(" exact_match, word_error_rate") == ["exact_match", "word_error_rate"]


def test_references_are_compared_as_the_tokenizer_writes_them(tokenizer):
    """Case and spaces around punctuation do not count; what the vocabulary cannot write is never right."""
    end = tokenizer.sep_token_id
    ids = tokenizer("it is 12.5 euros")["input_ids"][1:]
    measure = make_measure([["IT is 12.5  Euros"], ["a \u2603"]], tokenizer, end, ["exact_match"])
    unknown = [*tokenizer("a \u2603")["input_ids"][1:], *[-100] * 4]
    assert tokenizer.unk_token_id in unknown
    scores = measure(SimpleNamespace(predictions=[ids, unknown]))
    assert scores == {"exact_match": 0.5, "generated_length": (len(ids) + 3) / 2}


def test_what_is_written_ends_at_the_end(tokenizer):
    write_text = make_write(tokenizer, tokenizer.sep_token_id)
    first, second = tokenizer("a b", add_special_tokens=False)["input_ids"]
    special = [tokenizer.cls_token_id, tokenizer.mask_token_id, tokenizer.pad_token_id, -100]
    assert write_text([first, *special, second, tokenizer.sep_token_id, first]) == "a b"
    assert write_text([tokenizer.unk_token_id, first]) == "[UNK] a"
    assert write_text([]) == write_text([tokenizer.sep_token_id]) == ""


# Documentation


def test_commands_of_the_documentation(tmp_path, monkeypatch):
    """Every command of the chapter, as printed, with a few rows and a tiny model."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "outputs" / "data" / "cmudict"
    folder.mkdir(parents=True)
    prepared = prepare_data.cmudict()
    for split, rows in prepared.splits.items():
        (folder / f"{split}.json").write_text(prepared.write(rows[:20]), encoding="utf-8")
    for name, content in prepared.more_files.items():
        (folder / name).write_text(content[:1000], encoding="utf-8")
    few = "--max_train_samples 8 --max_eval_samples 4 --max_predict_samples 4 --max_steps 1 --use_cpu true"
    few += " --max_new_tokens 3 --cache_dir cache --disable_tqdm true"
    outputs = []
    for name, words in documented_commands("Text to text", tmp_path / "minilm"):
        if name == "prepare_data":
            assert words == ["cmudict"]
            continue
        run = {"run_seq2seq": main, "run_mlm": run_mlm.main}[name]
        run([*words, *(few if name == "run_seq2seq" else few.replace("--max_new_tokens 3", "")).split()])
        outputs.append(Path(words[words.index("--output_dir") + 1]))
    assert [path.name for path in outputs] == ["sounds", "spellings", "sounds-pretrained", "sounds-beams"]
    assert len(read_predictions(outputs[0])) == len(read_predictions(outputs[3])) == 5
    word = "plainformer.embeddings.word_embeddings.weight"
    assert weights(outputs[2])[word].shape == weights(outputs[1])[word].shape == (5 + 29 + 69, SIZES["hidden_size"])
