"""The embeddings: tokens, scale, segments, and tools that wrap or hook them. Positions: test_positions.py.

Shapes: B batch, R rows, L length, E hidden size.
"""

import pytest
import torch
from helpers.models import (
    answers,
    as_batch,
    assert_equal,
    assert_same,
    learn,
    make_inputs,
    make_labels,
    make_model,
    make_rows,
    padding_mask,
    row_answers,
    tiny_config,
)
from transformers import Trainer, TrainingArguments, default_data_collator

from plainformer import PlainformerForSequenceClassification, PlainformerModel


def test_inputs_embeds_equals_input_ids(subject):
    """Answers, loss, and gradients down to the word embeddings; they are scaled as those of ids are."""
    model = make_model(subject[0], scale_embedding=True, **subject[1])
    by_ids = as_batch(subject[0], make_rows(padding_mask()))
    labels = make_labels(subject[0], by_ids)
    expected = learn(model, by_ids | labels)
    model.zero_grad()
    by_embeds = {**by_ids, "input_ids": None, "inputs_embeds": model.get_input_embeddings()(by_ids["input_ids"])}
    assert_same(learn(model, by_embeds | labels), expected)


def test_type_vocab_size_zero_ignores_segments(setting):
    model = make_model(PlainformerModel, type_vocab_size=0, **setting)
    rows = make_rows(padding_mask())
    expected = row_answers(model, {**rows, "token_type_ids": torch.full((6, 8), 99)})
    del rows["token_type_ids"]
    assert_equal(row_answers(model, rows), expected)


def test_no_segments_are_segment_zero():
    model = make_model(PlainformerModel)
    ids = make_inputs(PlainformerModel)["input_ids"]
    first, second = (model(ids, token_type_ids=torch.full_like(ids, segment)).last_hidden_state for segment in (0, 1))
    assert_equal(model(ids).last_hidden_state, first)
    assert not torch.allclose(first, second, atol=1e-3)
    one_row = torch.tensor([[0, 1] * 4])
    expected = model(ids, token_type_ids=one_row.expand_as(ids)).last_hidden_state
    assert_equal(model(ids, token_type_ids=one_row).last_hidden_state, expected)


def test_padding_embedding_does_not_learn():
    """Not even where its id stands at a token's place."""
    model = PlainformerModel(tiny_config(pad_token_id=3))
    assert not model.embeddings.word_embeddings.weight[3].any()
    ids = torch.tensor([[1, 3, 2, 3]])
    model(ids).last_hidden_state.square().sum().backward()
    words = model.embeddings.word_embeddings.weight.grad
    assert not words[3].any() and words[1].any()
    every = PlainformerModel(tiny_config(pad_token_id=None))
    assert every.embeddings.word_embeddings.weight.any(dim=1).all()


# Tools


def test_a_wrapped_embedding_keeps_its_checks():
    """As LoRA wraps them: the table is there, but does not tell its size."""

    class Wrapper(torch.nn.Module):
        def __init__(self, base_layer):
            super().__init__()
            self.base_layer = base_layer

        def forward(self, ids):
            return self.base_layer(ids)

    model = make_model(PlainformerModel)
    ids = torch.randint(1, 50, (1, 6))
    expected = model(ids)[0]
    model.embeddings.word_embeddings = Wrapper(model.embeddings.word_embeddings)
    model.embeddings.position_embeddings = Wrapper(model.embeddings.position_embeddings)
    assert torch.equal(model(ids)[0], expected)
    with pytest.raises(ValueError, match="max_position_embeddings=16 is the limit"):
        model(torch.ones(1, 17, dtype=torch.long))
    with pytest.raises(ValueError, match="vocab_size=50"):
        model(ids + 50)


def test_hooks_on_word_embeddings_see_the_rectangle(subject):
    """NEFTune, which `Trainer` hangs there, reads a third dimension; so do tools that attribute answers to tokens."""
    inputs = make_inputs(subject[0])
    rows = inputs["input_ids"].numel() // 8  # two for each question of multiple choice
    mask = padding_mask(*["right", "left", "holes", "full"] * (rows // 4))
    inputs |= as_batch(subject[0], {"attention_mask": mask})
    inputs["input_ids"] = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, 10**6)  # is not read
    answered, shapes = [], []
    for unpad in (True, False):
        model = make_model(
            subject[0], problem_type="single_label_classification", **{**subject[1], "unpad_inputs": unpad}
        )
        words = model.get_input_embeddings()
        words.register_forward_hook(lambda _, __, output: shapes.append(tuple(output.shape[:2])) or output + 1)
        answered.append(answers(model(**inputs)))
    assert_same(*answered)
    assert shapes == [(rows, 8)] * 2


def test_neftune(tmp_path):
    model = make_model(PlainformerForSequenceClassification, problem_type="single_label_classification")
    rows = [{"input_ids": [5] * 8, "attention_mask": [1] * n + [0] * (8 - n), "labels": n % 2} for n in (3, 7, 5, 2)]
    settings = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "neftune_noise_alpha": 5, "max_steps": 2}
    trainer = Trainer(model, TrainingArguments(tmp_path, **settings), default_data_collator, rows)
    assert trainer.train().global_step == 2
