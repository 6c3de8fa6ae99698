"""The pre-training recipe: rows and masks as promised, the right loss, resuming, and what others do with the result."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import prepare_data
import pytest
import run_classification
import run_mlm
import torch
from helpers.recipes import (
    NO_DROPOUT,
    SIZES,
    TINY,
    assert_same_run,
    documented_commands,
    in_process,
    inputs_of,
    make_bert,
    make_rows,
    stop_at,
    weights,
    write,
)
from run_mlm import main
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, EvalPrediction, Trainer, pipeline

from plainformer import PlainformerForMaskedLM
from plainformer.recipes.errors import DataError, RecipeError
from plainformer.recipes.metrics import score_masked, sum_up_rows

TEXTS = [row["text"] for row in make_rows(24)]


@pytest.fixture
def files(tmp_path):
    """`--train_file` with 24 texts and `--validation_file` with 8."""
    train = write(tmp_path / "train.txt", "\n".join(TEXTS))
    dev = write(tmp_path / "dev.txt", "\n".join(row["text"] for row in make_rows(8, seed=1)))
    return ["--train_file", train, "--validation_file", dev]


@pytest.fixture
def run(tmp_path):
    """The recipe with these flags, in this process; its cache is the test's own."""
    return in_process(main, tmp_path)


@pytest.fixture
def batches(monkeypatch) -> list[dict[str, torch.Tensor]]:
    """Every batch that is trained on, as it was before the step."""
    seen, original = [], Trainer.training_step

    def training_step(self, model, inputs, *args, **kwargs):
        seen.append({name: tensor.clone() for name, tensor in inputs.items()})
        return original(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(Trainer, "training_step", training_step)
    return seen


def rows_of(batches: list[dict]) -> list[tuple[list[int], list[int], list[int]]]:
    """Of each row the ids before they were masked, the positions, and the labels; without padding."""
    rows = []
    for batch in batches:
        ids = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
        columns = (ids, batch["position_ids"], batch["labels"])
        for number, mask in enumerate(batch["attention_mask"].bool()):
            rows.append(tuple(column[number][mask].tolist() for column in columns))
    return rows


# Rows


def test_learns_and_writes_everything(run, files, tmp_path, capsys):
    texts = [row["text"] for row in make_rows(96)]
    write(files[1], "\n \n".join([*texts, "\u3000", ""]))
    before = run(*files, *TINY, "--max_steps", 1, "--learning_rate", 0, out="before")
    metrics = run(*files, *TINY, "--num_train_epochs", 6, "--learning_rate", 0.01, "--eval_strategy", "no")
    assert metrics["eval_loss"] < before["eval_loss"] - 1
    assert metrics["eval_accuracy"] > before["eval_accuracy"]
    assert metrics["eval_perplexity"] == pytest.approx(np.exp(metrics["eval_loss"]))
    out = capsys.readouterr().out
    assert "train: 98 empty texts left out" in out
    line = re.search(r"train: 96 texts, (\d+) tokens in (\d+) rows of 16, ([\d.]+)% full, ([\d.]+)% masked", out)
    tokens, rows, fill, masked = (float(number) for number in line.groups())
    assert fill == pytest.approx(100 * tokens / (rows * 16), abs=0.05) and fill > 90 and 5 < masked < 25
    assert metrics["train_samples"] == rows

    folder = tmp_path / "out"
    assert json.loads((folder / "eval_results.json").read_text())["eval_loss"] == metrics["eval_loss"]
    assert json.loads((folder / "recipe.json").read_text())["status"] == "finished"
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    fill_mask = pipeline("fill-mask", PlainformerForMaskedLM.from_pretrained(folder), tokenizer=tokenizer)
    assert fill_mask("good [MASK]")[0]["token_str"] in " ".join(texts)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "line-by-line"])
def test_rows_hold_every_text(run, tmp_path, batches, packed):
    """Each text once, whole, or in pieces where it is longer than a row; and positions begin anew with each."""
    texts = [*TEXTS, " ".join(TEXTS[:4])]
    train = write(tmp_path / "train.txt", "\n".join(texts))
    run("--train_file", train, *TINY, "--num_train_epochs", 1, *(() if packed else ["--line_by_line"]))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=False)
    start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    pieces = []
    for ids, positions, _ in rows_of(batches):
        assert len(ids) <= 16
        starts = [place for place, position in enumerate(positions) if position == 0]
        assert starts == [place for place, token in enumerate(ids) if token == start]
        assert packed or starts == [0]
        for first, after in zip(starts, [*starts[1:], len(ids)], strict=True):
            assert positions[first:after] == list(range(after - first)) and ids[after - 1] == end
            pieces.append(tuple(ids[first + 1 : after - 1]))
    expected = []
    for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]:
        expected += [tuple(ids[place : place + 14]) for place in range(0, len(ids), 14)]
    assert len(expected) > len(texts) and sorted(pieces) == sorted(expected)
    assert packed == (len(rows_of(batches)) < len(expected))


def test_formats_give_the_same_rows(run, files, tmp_path):
    expected = inputs_of(run_mlm, run, *files[:2], *TINY, out="txt")
    assert len(expected[1]["train"]) > 8
    for name in ("body.csv", "body.jsonl", "body.parquet"):
        rows = [{"body": text, "number": "1"} for text in [*TEXTS, "", " "]]
        flags = ["--train_file", write(tmp_path / name, rows), "--text_column_name", "body"]
        assert inputs_of(run_mlm, run, *flags, *TINY, out=Path(name).suffix) == expected, name


def test_row_length_follows_from_the_model(files, tmp_path, capsys):
    always = ["--cache_dir", tmp_path / "cache", "--disable_tqdm", "true", "--use_cpu", "true", "--max_steps", 1]
    main([*files[:2], *TINY, *always, "--output_dir", tmp_path / "out"])
    assert "rows of 16" in capsys.readouterr().out


def test_any_number_of_workers_gives_the_same_model(run, files, tmp_path, monkeypatch):
    monkeypatch.setattr(run_mlm, "AT_ONCE", 5)  # texts fill rows together, whichever process has tokenized them
    plan = [*files, *TINY, "--num_train_epochs", 2, "--logging_steps", 1, "--per_device_train_batch_size", 4]
    run(*plan, "--whole_word_masking", out="alone")
    workers = ["--preprocessing_num_workers", 2, "--dataloader_num_workers", 2]
    run(*plan, "--whole_word_masking", *workers, "--cache_dir", tmp_path / "other-cache", out="several")
    assert_same_run(tmp_path / "alone", tmp_path / "several")


# Masks


def test_masks_follow_the_flags(run, files, batches):
    flags = [*files[:2], *TINY, "--num_train_epochs", 8, "--mlm_probability", 0.4]
    run(*flags)
    labels = torch.cat([batch["labels"].flatten() for batch in batches])
    special = torch.cat([batch["input_ids"].flatten() for batch in batches])[labels == -100].lt(4)  # not [MASK]
    ordinary = len(labels) - special.sum()
    assert 0.36 < (labels != -100).sum() / ordinary < 0.44
    first, second = ({tuple(row) for *_, row in rows_of(half)} for half in (batches[: len(batches) // 8], batches))
    assert len(second) > 4 * len(first)  # other masks in each epoch


@pytest.mark.parametrize("segmenter", [None, "pairs_of_characters:split"])
def test_a_segmenter_says_what_a_chinese_word_is(run, tmp_path, monkeypatch, batches, segmenter):
    write(tmp_path / "pairs_of_characters.py", "def split(text):\n    return [text[i:i+2] for i in range(0, 12, 2)]\n")
    monkeypatch.syspath_prepend(tmp_path)
    text = "天地玄黄宇宙洪荒日月盈昃"
    train = write(tmp_path / "train.txt", "\n".join(text[i:] + text[:i] for i in range(12)))
    flags = ["--train_file", train, *TINY, "--whole_word_masking", "--num_train_epochs", 2]
    run(*flags, *(["--segmenter", segmenter] if segmenter else []))
    alike = []
    for ids, _, labels in rows_of(batches):
        assert len(ids) == 14
        masked = np.array(labels)[1:-1] != -100
        alike += list(masked[::2] == masked[1::2])
    assert all(alike) if segmenter else not all(alike)


def test_a_segmenter_that_changes_the_text(run, files, tmp_path, monkeypatch):
    write(tmp_path / "shouting.py", "def split(text):\n    return text.upper().split()\n")
    monkeypatch.syspath_prepend(tmp_path)
    flags = [*files[:2], *TINY, "--whole_word_masking", "--segmenter", "shouting:split"]
    with pytest.raises(DataError, match="--segmenter shouting:split: The segmenter gave the word 'DULL'"):
        run(*flags, "--preprocessing_num_workers", 2)


# Figures


def test_figures_by_hand():
    logits = torch.tensor([[[2.0, 0, 0], [0, 1, 0], [9, 9, 9]], [[0, 0, 3], [9, 9, 9], [9, 9, 9]]])
    labels = torch.tensor([[0, 2, -100], [2, -100, -100]])
    expected = [cross_entropy(logits[row][place], labels[row][place]) for row, place in ((0, 0), (0, 1), (1, 0))]
    sums = sum_up_rows(logits, labels)
    assert torch.allclose(sums, torch.tensor([[expected[0] + expected[1], 1], [expected[2], 1]]))
    measured = score_masked(EvalPrediction(sums.numpy(), labels.numpy()))
    loss = float(sum(expected)) / 3
    assert measured == pytest.approx({"loss": loss, "perplexity": np.exp(loss), "accuracy": 2 / 3})


def test_evaluation_is_the_same_whatever_the_batches(run, files, tmp_path, monkeypatch):
    shapes, original = [], score_masked
    monkeypatch.setattr(run_mlm, "score_masked", lambda kept: shapes.append(kept.predictions.shape) or original(kept))
    first = run(*files, *TINY, "--num_train_epochs", 3, "--learning_rate", 0.01)
    same = ["--validation_file", files[3], "--model_name_or_path", tmp_path / "out"]
    again = [run(*same, "--per_device_eval_batch_size", size, out=f"by-{size}") for size in (1, 3)]
    for metrics in again:
        assert metrics["eval_loss"] == pytest.approx(first["eval_loss"], rel=1e-5)
        assert metrics["eval_accuracy"] == first["eval_accuracy"]
    assert set(shapes) == {(first["eval_samples"], 2)}  # and not the logits
    tested = run("--test_file", files[3], "--model_name_or_path", tmp_path / "out", out="test")
    assert tested["predict_loss"] == pytest.approx(first["eval_loss"], rel=1e-5)


def test_best_model_is_kept(run, files, tmp_path, monkeypatch):
    scores = iter([0.9, 0.1, 0.2, 0.1])
    monkeypatch.setattr(run_mlm, "score_masked", lambda kept: {"loss": next(scores)})
    run(*files, *TINY, "--num_train_epochs", 3, "--learning_rate", 0.01)
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    assert state["best_metric"] == 0.1
    best, last = (weights(tmp_path / "out" / f"checkpoint-{state['max_steps'] // 3 * epoch}") for epoch in (2, 3))
    ours = weights(tmp_path / "out")
    assert all(torch.equal(weight, best[name]) for name, weight in ours.items())
    assert not all(torch.equal(weight, last[name]) for name, weight in ours.items())


def test_label_smoothing(run, files, tmp_path, batches):
    """The loss that is trained on, by hand: a mean over batches of the smoothed loss; evaluation is as without it."""
    flags = [*files, *TINY, *NO_DROPOUT, "--max_steps", 1, "--learning_rate", 0, "--per_device_train_batch_size", 2]
    flags += ["--gradient_accumulation_steps", 2]
    plain = run(*flags, out="plain")
    batches.clear()
    smooth = run(*flags, "--label_smoothing_factor", 0.2)
    model = PlainformerForMaskedLM.from_pretrained(tmp_path / "out").eval()
    expected = []
    for batch in batches:
        labels = batch.pop("labels")
        logits = model(**batch).logits.flatten(0, 1)
        expected.append(cross_entropy(logits, labels.flatten(), label_smoothing=0.2).item())
    assert len(expected) == 2
    assert smooth["train_loss"] == pytest.approx(np.mean(expected), rel=1e-4)
    assert abs(smooth["train_loss"] - plain["train_loss"]) > 1e-5
    assert smooth["eval_loss"] == plain["eval_loss"]


# Resuming


def test_resume_continues_bit_for_bit(run, files, tmp_path, monkeypatch):
    """Six steps, and three and three, of several batches each; the break is in the middle of the second epoch."""
    plan = [*files[:2], *TINY, "--whole_word_masking", "--per_device_train_batch_size", 6]
    plan += ["--gradient_accumulation_steps", 3, "--max_steps", 6, "--save_steps", 3, "--logging_steps", 1]
    plan += ["--vocab_size", 60]  # words of several pieces
    run(*plan, out="straight")
    stop_at(monkeypatch, 11, lambda: run(*plan))
    state = json.loads((tmp_path / "out" / "checkpoint-3" / "trainer_state.json").read_text())
    assert 1 < state["epoch"] < 2
    run(*plan, "--resume_from_checkpoint", "true")
    assert_same_run(tmp_path / "out", tmp_path / "straight")


# Models


def test_goes_on_from_its_own_folder_and_into_classification(run, files, tmp_path):
    run(*files[:2], *TINY, "--max_steps", 2, "--learning_rate", 0.01)
    first = weights(tmp_path / "out")
    flags = ["--model_name_or_path", tmp_path / "out", "--max_steps", 1, "--learning_rate", 0]
    run(*files[:2], *flags, out="more")
    assert all(torch.equal(weight, first[name]) for name, weight in weights(tmp_path / "more").items())

    reviews = write(tmp_path / "train.csv", make_rows(8))
    always = ["--cache_dir", tmp_path / "cache", "--use_cpu", "true", "--disable_tqdm", "true", "--max_seq_length", 16]
    run_classification.main(["--train_file", reviews, *flags, *always, "--output_dir", tmp_path / "classifier"])
    tuned = weights(tmp_path / "classifier")
    encoder = {name for name in first if name.startswith("plainformer.")}
    assert encoder == {name for name in tuned if name.startswith("plainformer.")} and len(encoder) > 20
    assert all(torch.equal(tuned[name], first[name]) for name in encoder)
    one, other = (AutoTokenizer.from_pretrained(tmp_path / n, trust_remote_code=False) for n in ("out", "classifier"))
    assert one.get_vocab() == other.get_vocab()


def test_starts_from_bert_and_the_baseline_agrees(run, files, tmp_path):
    """BERT's own class has the same figures on the same rows and masks. A BERT without this head gets a new one."""
    bert = make_bert(tmp_path / "bert")
    tokenizer = AutoTokenizer.from_pretrained(bert)
    full = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=16, **SIZES))
    full.save_pretrained(tmp_path / "full")
    tokenizer.save_pretrained(tmp_path / "full")
    flags = [*files, "--line_by_line", "--max_steps", 1, "--learning_rate", 0, *NO_DROPOUT]
    source = ["--model_name_or_path", tmp_path / "full"]
    ours, theirs = run(*flags, *source), run(*flags, *source, "--bert_baseline", out="theirs")
    for name in ("eval_loss", "eval_accuracy", "train_loss"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-5), name
    kinds = [json.loads((tmp_path / out / "config.json").read_text())["model_type"] for out in ("out", "theirs")]
    assert kinds == ["plainformer", "bert"]

    run(*files[:2], "--model_name_or_path", bert, "--max_steps", 1, "--learning_rate", 0, out="headless")
    words = "embeddings.word_embeddings.weight"
    assert torch.equal(weights(tmp_path / "headless")[f"plainformer.{words}"], weights(bert)[words])


# Errors


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--bert_baseline"], "--bert_baseline with packed documents: BERT lets the documents of a row see each other"),
        (["--mlm_probability", 1], "--mlm_probability 1.0: give a fraction above 0 and below 1"),
        (["--max_seq_length", 2], "--max_seq_length 2: give a whole number of at least 3: 2 are special tokens"),
        (["--max_seq_length", 17], "--max_seq_length 17 is more than the 16 positions"),
        (["--segmenter", "sys:intern"], "--segmenter sys:intern says what a word is, which matters to --whole_word"),
        (["--whole_word_masking", "--segmenter", "jiebba:lcut"], "--segmenter 'jiebba:lcut': No module named 'jiebba'"),
        (["--remove_unused_columns", "true"], "--remove_unused_columns true would remove what the masks depend on"),
        (["--text_column_name", "txet"], "has no column 'txet' (--text_column_name), only text. Did you mean 'text'?"),
    ],
)
def test_settings_that_cannot_work(run, files, tmp_path, flags, message):
    with pytest.raises((RecipeError, DataError)) as error:
        run(*files[:2], *TINY, *flags)
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_texts_that_cannot_be_learned_from(run, files, tmp_path):
    bert = make_bert(tmp_path / "bert")
    blank = write(tmp_path / "blank.csv", [{"text": " "}, {"text": ""}])
    with pytest.raises(DataError, match="train: every text in 'text' is empty"):
        run("--train_file", blank, *TINY)
    unknown = write(tmp_path / "unknown.txt", "天地玄黄\n宇宙洪荒\n")
    with pytest.raises(DataError, match="train: no token to predict in 2 texts"):
        run("--train_file", unknown, "--model_name_or_path", bert)
    invisible = write(tmp_path / "invisible.txt", "\u200b\n\u200b\n")
    with pytest.raises(DataError, match="validation: no token to predict in 2 texts"):
        run(*files[:2], "--validation_file", invisible, *TINY)
    numbers = write(tmp_path / "numbers.jsonl", '{"text": 1}\n{"text": 2}\n')
    with pytest.raises(DataError, match="'text' is no text. Write strings there"):
        run("--train_file", numbers, *TINY)


# Documentation


def test_commands_of_the_documentation(tmp_path, monkeypatch):
    """Every command of the chapter, as printed, with a few rows."""
    monkeypatch.chdir(tmp_path)
    few = "--max_train_samples 8 --max_eval_samples 4 --max_predict_samples 4 --max_steps 1 --max_seq_length 16"
    few += " --save_strategy no --cache_dir cache --use_cpu true --disable_tqdm true"
    monkeypatch.setitem(sys.modules, "snownlp.seg", SimpleNamespace(seg=list))  # the real one is in test_masking.py
    programs = {"run_mlm": main, "run_classification": run_classification.main}
    outputs = []
    for name, words in documented_commands("Masked-LM", tmp_path / "minilm"):
        if name == "prepare_data":
            monkeypatch.setattr(sys, "argv", ["prepare_data.py", *words])
            prepare_data.main()
        else:
            programs[name]([*words, *few.split()])
            outputs.append(Path(words[words.index("--output_dir") + 1]).name)
    assert outputs == ["pretrained-short", "pretrained", "reviews-zh", "pretrained-words", "adapted"]
