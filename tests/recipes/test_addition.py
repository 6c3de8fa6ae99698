"""Adding numbers that are written as text: problems, training to the answer of a stranger, and what a person types."""

import json
import random
import re
import shlex
import shutil
from itertools import islice

import addition
import pytest
from addition import draw_problems, main
from helpers.processes import fast_python
from helpers.recipes import ROOT, weights

from plainformer import PlainformerForConditionalGeneration
from plainformer.recipes.errors import RecipeError
from plainformer.sharing import files as shareable_files
from plainformer.sharing.card import TASKS

TINY = "--hidden_size 32 --num_hidden_layers 1 --num_attention_heads 2 --batch_size 32".split()


def pairs(digits: int, count: int, seed: int = 0, *, for_test: bool) -> set[tuple[int, int]]:
    """The pairs of numbers, the smaller first, of so many problems."""
    problems = islice(draw_problems(digits, random.Random(seed), for_test=for_test), count)
    return {tuple(sorted(problem)) for problem in problems}


@pytest.mark.parametrize("digits", [1, 2, 3, 20])
def test_no_pair_of_numbers_is_in_training_and_test(digits):
    training, test = (pairs(digits, 3000, seed, for_test=seed == 1) for seed in (0, 1))
    assert training and test and not training & test
    assert all(0 <= number < 10**digits for pair in training | test for number in pair)
    lengths = {len(str(number)) for pair in training for number in pair}
    assert lengths == set(range(1, digits + 1))
    if digits == 1:  # nothing else is left out
        assert len(training | test) == 55 and 3 <= len(test) <= 10


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a tiny model, what the run printed, and what it trained on and was asked."""
    folder = tmp_path_factory.mktemp("addition") / "model"
    seen, train, answer = {}, addition.train, addition.answer
    with pytest.MonkeyPatch.context() as patch:

        def record_training(model, tokenizer, problems, args):
            seen["trained on"] = problems
            train(model, tokenizer, problems, args)

        def record_answers(model, tokenizer, texts, batch_size):
            seen["asked"], seen["answers"] = texts, answer(model, tokenizer, texts, batch_size)
            return seen["answers"]

        patch.setattr(addition, "train", record_training)
        patch.setattr(addition, "answer", record_answers)
        patch.setattr("sys.executable", str(fast_python()))  # for the stranger who answers at last
        words = ["--digits", 1, "--num_train_steps", 300, "--learning_rate", 0.003, "--output_dir", folder]
        seen["exact match"] = main([*words, *TINY, "--hidden_size", 64])
    return folder, seen


def ask(folder, text, capsys):
    main(["--answer", text, "--model", folder])
    return capsys.readouterr().out


def test_from_problems_to_answers(trained, capsys):
    folder, seen = trained
    asked = [tuple(map(int, text.split("+"))) for text in seen["asked"]]
    assert len({tuple(sorted(problem)) for problem in asked}) == len(asked) > 2
    assert not {tuple(sorted(problem)) for problem in asked} & {tuple(sorted(pair)) for pair in seen["trained on"]}
    right = sum(given == str(sum(problem)) for given, problem in zip(seen["answers"], asked, strict=True))
    assert seen["exact match"] == pytest.approx(right / len(asked))

    # Most of what was trained on is known, which a guess is not: the sums are 0 to 18.
    known = list(dict.fromkeys(seen["trained on"]))[:20]
    answers = [ask(folder, f" {first} + 0{second}", capsys) for first, second in known]
    assert sum(given == f"{sum(problem)}\n" for given, problem in zip(answers, known, strict=True)) >= 12
    assert any(len(given) == 3 for given in answers)  # two digits with nothing between them


def test_the_folder_can_be_uploaded(trained):
    files = shareable_files.sort_files(trained[0])
    shareable_files.check_model(trained[0], files, needs_tokenizer=True)
    assert list(files.stays) == ["recipe.json"] and not files.refused
    assert PlainformerForConditionalGeneration._auto_class in TASKS


def test_last_line(tmp_path, capsys, monkeypatch):
    """And the lines before it; here without another process."""
    report = {"opened": ["AutoModelForSeq2SeqLM"], "generated": ["7", "8", "9"]}
    monkeypatch.setattr(addition, "check_as_stranger", lambda *args, **options: report)
    monkeypatch.setattr(addition, "answer", lambda model, tokenizer, texts, size: ["7", "8", "9", *texts[3:]])
    words = ["--num_train_steps", 1, "--test_samples", 40, *TINY, "--pre_norm", "--output_dir"]
    main([*words, tmp_path / "one"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "exact match 0.0000 (40 unseen sums)"
    assert re.fullmatch(r"wrong: \d+\+\d+ = 7, and not \d+", lines[-6])
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    assert (config["model_type"], config["pre_norm"]) == ("plainformer-seq2seq", True)

    report["generated"] = ["7", "8", "10"]  # a stranger who gets something else is told of
    with pytest.raises(RecipeError, match=r"without plainformer, .* answers \['7', '8', '10'\] and not"):
        main([*words, tmp_path / "two"])


@pytest.mark.parametrize(
    "text", ["", "12", "12+", "+3", "1-2", "-1+2", "1+2+3", "1.5+2", "1,000+2", "١+٢", "a+b", "1e3+1"]
)
def test_what_is_no_sum(text, trained):
    with pytest.raises(
        RecipeError, match=re.escape(f'--answer {text!r} is no sum of two whole numbers: write "12+345"')
    ):
        main(["--answer", text, "--model", trained[0]])


def test_a_damaged_model(trained, tmp_path):
    folder = shutil.copytree(trained[0], tmp_path / "damaged")
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(RecipeError, match=re.escape(f"--model {folder} does not open: ")):
        main(["--answer", "1+2", "--model", folder])


@pytest.mark.parametrize("text, remedy", [("12+3", "train one with --digits 2"), ("1+" + "9" * 5000, "at most 1")])
def test_longer_numbers_than_were_learned(text, remedy, trained):
    with pytest.raises(RecipeError, match=f"a number has .* digits, and this model learned at most 1: .*{remedy}"):
        main(["--answer", text, "--model", trained[0]])


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "give either --output_dir FOLDER, to train, or --answer"),
        (["--output_dir", "new", "--answer", "1+2"], "give either --output_dir"),
        (["--answer", "1+2"], "--answer and --model go together"),
        (["--output_dir", "new", "--model", "old"], "--answer and --model go together"),
        (["--answer", "1+2", "--model", "nowhere"], "--model nowhere holds no model of addition.py"),
        (
            ["--answer", "1+2", "--model", "."],
            "holds no model of addition.py: train one with --output_dir and the name of a",
        ),
        (["--output_dir", "new", "--digits", 0], "--digits 0: give a number from 1 to 20"),
        (["--output_dir", "new", "--digits", 21], "--digits 21: give a number from 1 to 20"),
        (["--output_dir", "new", "--num_train_steps", 0], "--num_train_steps 0: give a whole number of at least 1"),
        (["--output_dir", "new", "--learning_rate", "nan"], "--learning_rate nan: give a number above 0"),
        (["--output_dir", "new", "--seed", -1], "--seed -1: give a whole number from 0"),
        (["--output_dir", "new", "--hidden_size", 33], "hidden_size=33"),
    ],
)
def test_wrong_arguments(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=re.escape(message)):
        main(words)
    assert not any(tmp_path.rglob("*/*"))


def test_a_folder_in_use_is_left_alone(trained, tmp_path):
    before = weights(trained[0])
    with pytest.raises(RecipeError, match="is not empty, and nothing is overwritten: name another"):
        main(["--output_dir", trained[0]])
    assert all((weights(trained[0])[name] == weight).all() for name, weight in before.items())
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RecipeError, match="is a file: name a folder"):
        main(["--output_dir", tmp_path / "file"])


def test_printed_commands():
    """Every command of docs/recipes.md, and the flags of its table, are ones that the recipe takes."""
    chapter = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").split("## Addition")[1].split("\n## ")[0]
    commands = re.findall("^python scripts/addition.py (.*)$", chapter, re.MULTILINE)
    flags = re.findall(r"\| `(--.*?)` \|", chapter)
    assert len(commands) == 2 and len(flags) >= 3
    for words in (*commands, *(f"--output_dir new {words}" for words in flags)):
        assert addition.parse_args(shlex.split(words))
