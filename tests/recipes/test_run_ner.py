"""Tagging words: what is learned, how words map to pieces and back, metrics over all words, bad sentences."""

import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import prepare_data
import pytest
import run_ner
import torch
import transformers
from datasets import ClassLabel, Dataset, Features, Sequence, Value
from helpers.recipes import (
    TINY,
    conll,
    documented_commands,
    grouped_by_length,
    in_process,
    make_bert,
    make_sentences,
    weights,
    write,
)
from run_ner import CUT, VANISHED, NerArguments, main

from plainformer import PlainformerForTokenClassification
from plainformer.recipes import data_files, splits
from plainformer.recipes.errors import DataError, RecipeError
from plainformer.recipes.metrics import are_entity_tags, score_entities, score_tags, tag_metric_names
from plainformer.tokenization_plainformer import load_tokenizer


def read_predictions(folder) -> list[dict]:
    return [row for _, row in data_files.read_conll(str(folder / "predictions.conll"))]


@pytest.fixture
def files(tmp_path):
    """`--train_file` with 16 sentences and `--validation_file` with 8."""
    train = write(tmp_path / "train.conll", conll(make_sentences(16)))
    return ["--train_file", train, "--validation_file", write(tmp_path / "dev.conll", conll(make_sentences(8, seed=1)))]


@pytest.fixture
def run(tmp_path):
    """The recipe with these flags, in this process; its cache is the test's own."""
    return in_process(main, tmp_path)


def test_learns_entities_and_writes_everything(run, tmp_path, capsys):
    rows = make_sentences(6, seed=2)
    train = write(tmp_path / "train.conll", conll(make_sentences(64)))
    dev = write(tmp_path / "dev.jsonl", make_sentences(16, seed=1))
    test = write(tmp_path / "test.conll", conll([{"tokens": row["tokens"]} for row in rows]))
    flags = ["--train_file", train, "--validation_file", dev, "--test_file", test, *TINY, "--num_train_epochs", 3]
    flags += ["--per_device_train_batch_size", 2]
    metrics = run(*flags, "--learning_rate", 0.01, "--return_entity_level_metrics")
    names = ["precision", "recall", "f1", "accuracy", "PER_f1", "LOC_precision", "LOC_recall"]
    assert [metrics[f"eval_{name}"] for name in names] == [1] * len(names)
    references = [tag for row in make_sentences(16, seed=1) for tag in row["tags"]]
    assert metrics["eval_PER_number"] == references.count("B-PER")
    assert "entities: B-LOC, B-PER, I-PER, O" in capsys.readouterr().out

    folder = tmp_path / "out"
    assert read_predictions(folder) == rows
    assert json.loads((folder / "recipe.json").read_text())["status"] == "finished"
    assert json.loads((folder / "trainer_state.json").read_text())["best_metric"] == 1
    saved = json.loads((folder / "checkpoint-96" / "trainer_state.json").read_text())["log_history"]
    assert saved[-1]["eval_f1"] == metrics["eval_f1"]
    model = PlainformerForTokenClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tagger = transformers.pipeline("token-classification", model, tokenizer=tokenizer, aggregation_strategy="simple")
    assert [(e["entity_group"], e["word"]) for e in tagger("anna kant sees rome")] == [
        ("PER", "anna kant"),
        ("LOC", "rome"),
    ]

    # Test data with tags is measured as the validation data is, each with its own.
    tagged = write(tmp_path / "tagged.conll", conll(rows))
    again = run("--validation_file", dev, "--test_file", tagged, "--model_name_or_path", folder, out="again")
    predicted = json.loads((tmp_path / "again" / "predict_results.json").read_text())
    assert again["eval_f1"] == predicted["predict_f1"] == 1
    assert read_predictions(tmp_path / "again") == rows


def test_answers_keep_the_order_of_the_file(run, tmp_path):
    """Under grouping by length too, which sorts what is evaluated, and with a tokenizer that pads on the left."""
    train = write(tmp_path / "train.jsonl", make_sentences(24, most=12))
    data = ["--validation_file", train, "--test_file", train, "--per_device_eval_batch_size", 2]
    metrics = run("--train_file", train, *data, *TINY, "--max_steps", 8, "--learning_rate", 0.02)
    first = tmp_path / "out"
    assert 0.3 < metrics["eval_accuracy"] and len(read_predictions(first)) == 24

    again = run("--model_name_or_path", first, *data, *grouped_by_length(), out="grouped")
    assert again["eval_accuracy"] == metrics["eval_accuracy"]
    assert read_predictions(tmp_path / "grouped") == read_predictions(first)

    settings = json.loads((first / "tokenizer_config.json").read_text())
    (first / "tokenizer_config.json").write_text(json.dumps({**settings, "padding_side": "left"}))
    again = run("--model_name_or_path", first, *data, out="left")
    assert again["eval_accuracy"] == metrics["eval_accuracy"]
    assert read_predictions(tmp_path / "left") == read_predictions(first)


def test_parts_of_speech(run, tmp_path, capsys):
    words = {"the": "DET", "film": "NOUN", "ends": "VERB", "plot": "NOUN"}
    draw = random.Random(0)
    rows = [{"words": (w := draw.choices([*words], k=4)), "upos": [words[word] for word in w]} for _ in range(32)]
    train = write(tmp_path / "train.parquet", rows)
    flags = ["--train_file", train, "--validation_split_percentage", 25, *TINY, "--num_train_epochs", 4]
    flags += ["--per_device_train_batch_size", 2]
    metrics = run(*flags, "--learning_rate", 0.01, "--return_entity_level_metrics")
    assert "tags, each by itself: DET, NOUN, VERB" in capsys.readouterr().out
    assert metrics["eval_accuracy"] == metrics["eval_f1"] == metrics["eval_NOUN_f1"] == 1
    assert "eval_precision" not in metrics


@pytest.mark.parametrize("tags, best", [(["B-X", "O"], "f1"), (["DET", "NOUN"], "accuracy")])
def test_best_model_by_f1_of_entities_or_by_accuracy(tags, best):
    assert tag_metric_names(tags, each=True)[0] == tag_metric_names(tags, each=False)[0] == best


def test_bert_baseline_and_label_smoothing(run, files, tmp_path):
    bert = make_bert(tmp_path / "bert")
    flags = ["--model_name_or_path", bert, "--label_smoothing_factor", 0.1, "--max_steps", 1, "--learning_rate", 0]
    ours = run(*files, *flags)
    assert run(*files, *flags, "--bert_baseline", out="theirs").keys() == ours.keys()
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["model_type"] == "bert"
    assert torch.equal(
        *(
            weights(tmp_path / name)[f"{prefix}.embeddings.word_embeddings.weight"]
            for name, prefix in (("out", "plainformer"), ("theirs", "bert"))
        )
    )


# Words and pieces


@pytest.fixture
def encode(tmp_path):
    """`encode(rows, *flags)`: the columns that the model gets. `playing` and `plays` are of two pieces each."""
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "##s", "in", "rome", "."]
    tokenizer = load_tokenizer(write(tmp_path / "vocab.txt", "\n".join(entries)))

    def encode(rows: dict, tags: list[str], length: int = 16, **flags) -> dict[str, list]:
        args = NerArguments(max_seq_length=length, **flags)
        model = SimpleNamespace(config=SimpleNamespace(label2id={tag: number for number, tag in enumerate(tags)}))
        encoded = run_ner.make_tokenize(tokenizer, args, "tokens", "tags", model)(rows)
        return {name: encoded[name] for name in encoded if name in ("input_ids", "labels", "word_starts")}

    return encode


def test_first_piece_of_each_word_is_labelled(encode):
    tags = ["O", "B-X", "I-X", "B-Y"]
    rows = {"tokens": [["playing", "in", "\u200b", "plays", "rome."]], "tags": [["B-X", "I-X", "O", "B-Y", "B-X"]]}
    ids = [[2, 5, 6, 8, 5, 7, 9, 10, 3]]
    starts = [[1, 3, VANISHED, 4, 6]]
    assert encode(rows, tags) == {
        "input_ids": ids,
        "word_starts": starts,
        "labels": [[-100, 1, -100, 2, 3, -100, 1, -100, -100]],
    }
    # Within a word an entity goes on; there is no I-Y that could say so.
    assert encode(rows, tags, label_all_tokens=True) == {
        "input_ids": ids,
        "word_starts": starts,
        "labels": [[-100, 1, 2, 2, 3, 3, 1, 2, -100]],
    }
    assert encode({"tokens": rows["tokens"]}, tags) == {"input_ids": ids, "word_starts": starts}


def test_words_beyond_the_length_are_cut(encode):
    rows = {"tokens": [["in", "\u200b", "playing", "rome", "\u200b", "in"], ["in"]], "tags": [["O"] * 6, ["O"]]}
    encoded = encode(rows, ["O"], length=4)
    assert encoded["word_starts"] == [[1, VANISHED, 2, CUT, VANISHED, CUT], [1]]  # of `playing` the half
    assert encoded["labels"] == [[-100, 0, 0, -100], [-100, 0, -100]]


def test_predictions_come_back_to_words():
    model = SimpleNamespace(config=SimpleNamespace(id2label={0: "O", 1: "B-X", 2: "I-X"}))
    predictions = np.array([[0, 1, 2, 2, 0], [0, 2, -100, -100, -100]])
    starts = [[1, 3, VANISHED, CUT], [1]]
    assert run_ner.read_tags(model, predictions, starts) == [["B-X", "I-X", "O", "O"], ["I-X"]]
    with pytest.raises(ValueError):
        run_ner.read_tags(model, predictions, starts[:1])


def test_unseen_words_are_reported_and_count_as_misses(run, tmp_path, monkeypatch, capsys):
    """A model that is always right misses what it does not see: here two of four entities and three of 22 words."""
    row = {"tokens": ["anna", "the", "rome"], "tags": ["B-PER", "O", "B-LOC"]}
    train = write(tmp_path / "train.jsonl", [row] * 2)
    long = {"tokens": [*["anna", *["the"] * 13], "rome", "in"], "tags": ["B-PER", *["O"] * 13, "B-LOC", "O"]}
    gone = {"tokens": ["\u200b"], "tags": ["B-LOC"]}
    dev = write(tmp_path / "dev.jsonl", [long, gone, {"tokens": ["the"] * 4 + ["anna"], "tags": ["O"] * 4 + ["B-PER"]}])
    shapes = []

    def always_right(logits, labels):
        predictions = labels.clamp(min=0)
        shapes.append((logits.shape[:2], run_ner_best_tags(logits, labels).shape))
        return predictions

    run_ner_best_tags = run_ner.best_tags
    monkeypatch.setattr(run_ner, "best_tags", always_right)
    data = ["--train_file", train, "--validation_file", dev, "--test_file", dev]
    metrics = run(*data, *TINY, "--max_steps", 1, "--per_device_eval_batch_size", 1, "--vocab_size", 40)
    assert metrics["eval_precision"] == 1 and metrics["eval_recall"] == 2 / 4
    assert metrics["eval_f1"] == pytest.approx(2 / 3)
    assert metrics["eval_accuracy"] == 20 / 22  # the last `in` is O, which it counts as
    assert np.isfinite(metrics["eval_loss"])  # a sentence without a label is no division by zero
    assert all(given == gathered for given, gathered in shapes) and shapes  # the logits do not pile up in memory
    output = capsys.readouterr().out
    for split in ("validation", "test"):
        assert (
            f"{split}: 3 of 22 words are tagged O: 1 of which the tokenizer leaves nothing: '\\u200b'; "
            "2 beyond 16 tokens (--max_seq_length): 'rome', 'in'\n"
        ) in output
    assert "train: " not in output
    assert [row["tags"][-2:] for row in read_predictions(tmp_path / "out")] == [["O", "O"], ["O"], ["O", "B-PER"]]


# Metrics


SCHEMES = {
    "BIO": (["O", "B-a", "I-a", "B-b-c"], True),
    "one-kind": (["B", "I", "O"], True),
    "BMES": (["B", "M", "E", "S"], True),
    "BILOU": (["B-a", "I-a", "L-a", "U-a", "O"], True),
    "no-outside": (["S-a", "S-b"], True),
    "parts-of-speech": (["DET", "NOUN"], False),
    "letters": (["M", "S", "L"], False),
    "mixed": (["B-a", "O", "X"], False),
    "half-bare": (["B-a", "I", "O"], False),
    "no-place": (["PER", "O"], False),
}


@pytest.mark.parametrize("names, expected", SCHEMES.values(), ids=SCHEMES)
def test_scheme_is_seen_in_the_tags(names, expected):
    assert are_entity_tags(names) is expected


def test_entities_on_known_answers():
    references = ["B-PER I-PER O B-LOC".split(), "O B-LOC".split()]
    predictions = ["B-PER I-PER O O".split(), "B-PER B-PER".split()]
    expected = {"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3, "accuracy": 3 / 6}
    assert score_entities(references, predictions, False) == pytest.approx(expected)
    of_kinds = {"PER_precision": 1 / 3, "PER_recall": 1, "PER_f1": 1 / 2, "PER_number": 1}
    of_kinds |= {"LOC_precision": 0, "LOC_recall": 0, "LOC_f1": 0, "LOC_number": 2}
    assert score_entities(references, predictions, True) == pytest.approx({**expected, **of_kinds})
    nothing = score_entities([["O"]], [["O"]], False)
    assert nothing == {"precision": 0, "recall": 0, "f1": 0, "accuracy": 1}


@pytest.mark.parametrize("tags", ["B M E S", "B-x M-x E-x S-x", "B-x I-x L-x U-x", "B I E S"])
def test_words_and_other_schemes_count_as_wholes(tags):
    """Of three words the first is found; the second and third are taken for one."""
    b, m, e, s = tags.split()
    measured = score_entities([[b, m, e], [s, s]], [[b, m, e], [b, e]], False)
    assert measured == pytest.approx({"precision": 1 / 2, "recall": 1 / 3, "f1": 2 / 5, "accuracy": 3 / 5})


def test_plain_tags_on_known_answers():
    """The O of a word that was not seen is wrong, and no class of its own; nor is a tag that does not occur."""
    references, predictions = [["a", "b"], ["a", "b"]], [["a", "a"], ["a", "O"]]
    expected = {"accuracy": 2 / 4, "f1": (4 / 5 + 0) / 2}
    assert score_tags(references, predictions, ["a", "b", "c"], False) == pytest.approx(expected)
    each = {"a_precision": 2 / 3, "a_recall": 1, "a_f1": 4 / 5, "a_number": 2}
    each |= {"b_precision": 0, "b_recall": 0, "b_f1": 0, "b_number": 2}
    assert score_tags(references, predictions, ["a", "b", "c"], True) == pytest.approx({**expected, **each})


# Data


def test_class_numbers_and_named_columns(run, tmp_path, capsys):
    names = ["O", "B-PER", "B-LOC", "I-PER"]
    features = Features({"sentence": Sequence(Value("string")), "entities": Sequence(ClassLabel(names=names))})
    rows = make_sentences(8)
    columns = {
        "sentence": [row["tokens"] for row in rows],
        "entities": [[names.index(tag) for tag in row["tags"]] for row in rows],
    }
    Dataset.from_dict(columns, features).to_parquet(tmp_path / "train.parquet")
    run("--train_file", tmp_path / "train.parquet", "--label_column_name", "entities", *TINY, "--max_steps", 1)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert set(config["label2id"]) == set(names)
    with pytest.raises(DataError, match=r"no column 'entitis' \(--label_column_name\).*Did you mean 'entities'\?"):
        run("--train_file", tmp_path / "train.parquet", "--label_column_name", "entitis", *TINY, out="second")


BAD_FILES = {
    "ragged": ("a.conll", "the\tO\nrome\tB-LOC\n\nsees\n", "a.conll, line 4: 1 columns ('sees'), but line 1 has 2"),
    "untagged-file": ("a.conll", "the\nrome\n", "has none of the columns tags, ner_tags"),
    "one-tag": ("a.conll", "the\tO\nrome\tO\n", "has only the labels ['O'] in 'tags': there is nothing to tell apart"),
    "empty-sentence": (
        "a.jsonl",
        [(["a"], ["O"]), ([], [])],
        "has no words. Remove these rows. Here: {}, line 2",
    ),
    "null-sentence": ("a.jsonl", [(["a"], ["O"]), (None, ["O"])], "'tokens' has no words."),
    "untagged": (
        "a.jsonl",
        [(["a"], ["O"]), (["b"], [])],
        "'tags' is empty. Label these rows or remove them. Here: {}, line 2",
    ),
    "null-tags": ("a.jsonl", [(["a"], ["O"]), (["b"], None)], "'tags' is empty."),
    "too-few": (
        "a.jsonl",
        [(["a"], ["O"]), (["b", "c"], ["O"])],
        "has not exactly one for each of 'tokens'. Correct these rows or remove them. Here: {}, line 2",
    ),
    "null-tag": ("a.jsonl", [(["a"], ["O"]), (["b", "c"], ["O", None])], "'tags' has not exactly one for each"),
    "too-many": ("a.parquet", [(["a"], ["O"]), (["b"], ["O", "B-X"])], "'tags' has not exactly one for each"),
    "text": ("a.csv", "tokens,tags\na b,O O\n", "'tokens' is no list of words. Write CoNLL, or lists"),
    "numbers": ("a.jsonl", [([1, 2], ["O", "B-X"])], "'tokens' is no list of words."),
    "null-word": ("a.jsonl", [(["a", None], ["O", "B-X"])], "'tokens' is no list of words."),
}


@pytest.mark.parametrize("name, content, message", BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files(run, tmp_path, name, content, message):
    if isinstance(content, list):
        content = [{"tokens": tokens, "tags": tags} for tokens, tags in content]
    path = write(tmp_path / name, content)
    with pytest.raises(DataError) as error:
        run("--train_file", path, *TINY)
    assert message.format(path) in str(error.value) and name in str(error.value)
    assert not (tmp_path / "out").exists()


def test_tag_that_training_never_had(run, files, tmp_path):
    dev = write(tmp_path / "dev.conll", "the\tO\n\nrome\tB-LCO\n")
    message = "'tags' has labels that the training data never has, .* line 3. The first is 'B-LCO'. .* 'B-LOC'"
    with pytest.raises(DataError, match=f"1 row of .*dev.conll: {message}"):
        run(*files[:2], "--validation_file", dev, *TINY)


def test_test_data_with_and_without_tags(run, files, tmp_path, capsys):
    rows = [{"tokens": ["a\tb", "", "c\n"], "tags": ["O", "O", "O"]}, {"tokens": ["rome", "the"], "tags": []}]
    run(*files[:2], "--test_file", write(tmp_path / "test.jsonl", rows), *TINY, "--max_steps", 1)
    assert "test: 1 of 2 rows have no 'tags': predicted, and not measured; the metrics are of the other 1\n" in (
        capsys.readouterr().out
    )
    assert [row["tokens"] for row in read_predictions(tmp_path / "out")] == [["a b", "_", "c "], ["rome", "the"]]
    results = json.loads((tmp_path / "out" / "predict_results.json").read_text())
    assert (results["predict_samples"], results["predict_measured_samples"]) == (2, 1)
    assert results["predict_accuracy"] in (0, 1 / 3, 2 / 3, 1)  # of three words
    wrong = write(tmp_path / "wrong.jsonl", [{"tokens": ["rome", "the"], "tags": ["O"]}])
    trained = ["--model_name_or_path", tmp_path / "out", "--test_file"]
    with pytest.raises(DataError, match="wrong.jsonl: 'tags' has not exactly one for each of 'tokens'"):
        run(*trained, wrong, out="second")
    misspelt = write(tmp_path / "misspelt.jsonl", [{"tokens": ["rome"], "tgas": ["O"]}])
    run(*trained, misspelt, out="third")
    assert "test: no column 'tags' (there is 'tgas'): predicted, and not measured\n" in capsys.readouterr().out
    with pytest.raises(DataError, match=r"misspelt.jsonl has no column 'tag' \(--label_column_name\)"):
        run(*trained, misspelt, "--label_column_name", "tag", out="fourth")


@pytest.mark.parametrize("each", [[], ["--return_entity_level_metrics"]])
def test_metric_of_one_kind_of_entity(run, files, tmp_path, each):
    flags = [*files, *TINY, "--max_steps", 1, "--metric_for_best_model", "PER_f1", *each]
    if each:
        assert run(*flags)["eval_PER_f1"] >= 0
    else:
        with pytest.raises(RecipeError, match="--metric_for_best_model PER_f1: there is no such metric here, only f1"):
            run(*flags)


# Documentation


def test_commands_of_the_documentation(tmp_path, monkeypatch):
    """Every tagging command of docs/recipes.md, as printed, with a few rows; the newspaper's are stand-ins."""
    monkeypatch.chdir(tmp_path)
    few = "--max_train_samples 8 --max_eval_samples 4 --max_predict_samples 4 --num_train_epochs 1 --max_seq_length 16"
    few += " --eval_strategy no --save_strategy no"
    always = [*few.split(), "--cache_dir", "cache", "--use_cpu", "true", "--disable_tqdm", "true"]
    outputs = []
    for script, words in documented_commands("Tagging words", tmp_path / "minilm"):
        if script == "prepare_data":
            make_data(words[0], monkeypatch)
            continue
        assert script == "run_ner"
        main([*words, *always])
        outputs.append(Path(words[words.index("--output_dir") + 1]))
    assert [path.name for path in outputs] == ["tweets", "tweets-predictions", "words"]
    assert read_predictions(outputs[0]) == read_predictions(outputs[1])
    assert len(read_predictions(outputs[2])) == 4


def make_data(name: str, monkeypatch) -> None:
    if name == "tweets_ner":
        monkeypatch.setattr(sys, "argv", ["prepare_data.py", name, f"outputs/data/{name}"])
        prepare_data.main()
        return
    assert name == "chinese_news_segmentation"
    folder = Path("outputs/data", name)
    folder.mkdir(parents=True)
    for split in splits.SPLITS:
        write(folder / f"{split}.conll", "\u5317\tB\n\u4eac\tE\n\u7684\tS\n\n" * 8)
