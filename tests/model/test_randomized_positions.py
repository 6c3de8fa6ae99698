"""Positions drawn at random in training (`randomize_positions`), and counted everywhere else.

Shapes: B batch, L length, N positions to draw from.
"""

import pytest
import torch
from helpers.models import (
    NO_DROPOUT,
    assert_equal,
    assert_same,
    layout_of,
    learn,
    make_model,
    make_rows,
    padding_mask,
    row_answers,
)
from helpers.seq2seq import make_pairs, make_seq2seq, make_source
from torch import Tensor
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

from plainformer import (
    PlainformerForMaskedLM,
    PlainformerForTokenClassification,
    PlainformerModel,
    modeling_plainformer,
    modeling_seq2seq_plainformer,
)
from plainformer.positions_plainformer import draw_positions

SIXTEEN = {"randomize_positions": 16, **NO_DROPOUT}


def draw(lengths: list[int], num_positions: int, L: int = 8) -> Tensor:
    """Positions of right-padded rows, [B, L]."""
    token_mask = torch.arange(L) < torch.tensor(lengths)[:, None]
    return draw_positions(torch.arange(L).where(token_mask, 0), token_mask, num_positions)


def test_a_sorted_random_subset():
    positions = draw([8, 5, 1, 0], 20)
    for row, length in zip(positions, [8, 5, 1, 0], strict=True):
        tokens = row[:length].tolist()
        assert tokens == sorted(set(tokens)) and set(tokens) <= set(range(20))
        assert not row[length:].any()
    assert not torch.equal(draw([8], 20), draw([8], 20))
    assert_equal(draw([8], 8)[0], torch.arange(8))  # there is only one way
    assert_equal(draw([3], 3)[0, :3], torch.arange(3))  # a row may be padded beyond N


def test_every_subset_is_as_likely():
    """Two of four positions: each of the six pairs, in a batch whose other rows are longer."""
    pairs = draw([2] * 6000 + [4], 4, L=4)[:6000, :2]
    counts = torch.bincount(4 * pairs[:, 0] + pairs[:, 1], minlength=16)
    assert (counts > 0).sum() == 6
    assert ((counts[counts > 0] - 1000).abs() < 150).all()  # five standard deviations


def test_in_training_only(kind):
    """And both routes, and gradient checkpointing, compute with the same positions."""
    fields = {**SIXTEEN, "position_embedding_type": kind}
    model = make_model(PlainformerForTokenClassification, **fields)
    rows = make_rows(padding_mask())
    batch = {**rows, "labels": torch.randint(0, 3, (6, 8))}
    counted = make_model(PlainformerForTokenClassification, **{**fields, "randomize_positions": 0})
    assert_equal(row_answers(model, rows), row_answers(counted, rows))

    def learn_again(**others) -> tuple:
        again = make_model(PlainformerForTokenClassification, **fields, **others).train()
        torch.manual_seed(3)
        return learn(again, batch)

    first = learn_again()
    assert torch.allclose(first.loss, learn(counted.train(), batch).loss, atol=1e-4) == (kind == "none")
    assert_same(learn_again(unpad_inputs=False), first)
    assert_equal(learn_again(), first)
    checkpointed = make_model(PlainformerForTokenClassification, **fields).train()
    checkpointed.gradient_checkpointing_enable({"use_reentrant": False})
    torch.manual_seed(3)
    assert_same(learn(checkpointed, batch), first)


def test_positions_given_by_the_user_are_left_alone(monkeypatch):
    """So are packed rows; one warning says so."""
    warnings = []
    logger = type("Logger", (), {"warning_once": lambda self, message: warnings.append(message)})()
    monkeypatch.setattr("plainformer.inputs_plainformer.logger", logger)
    model = make_model(PlainformerModel, **SIXTEEN).train()
    ids, positions = torch.randint(1, 50, (2, 8)), torch.arange(8)[None] + 2
    assert layout_of(model, input_ids=ids).position_ids.amax() > 7
    assert not warnings
    assert_equal(layout_of(model, input_ids=ids, position_ids=positions).position_ids, positions.expand(2, 8))
    packed = DataCollatorWithFlattening()([{"input_ids": [5] * length} for length in (3, 4)])
    packed.pop("labels")
    counted = torch.tensor([0, 1, 2, 0, 1, 2, 3])
    assert_equal(layout_of(model, **packed).position_ids, counted)
    seq_idx = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    assert_equal(layout_of(model, input_ids=packed["input_ids"], seq_idx=seq_idx).position_ids, counted)
    assert len(warnings) == 3 and len(set(warnings)) == 1
    assert warnings[0].startswith("randomize_positions=16 changes nothing here")


def test_a_text_longer_than_the_positions_to_draw_from():
    model = make_model(PlainformerForMaskedLM, randomize_positions=6)
    rows = make_rows(padding_mask("full", "right"))
    row_answers(model, rows)
    with pytest.raises(ValueError, match="8 tokens long.*drawn from randomize_positions=6.*to at least 8"):
        model.train()(**rows)
    model(**make_rows(padding_mask("right", "left")))  # rows of 5 and 6 tokens, padded to 8
    target = {"labels": torch.randint(3, 50, (5, 8))}
    with pytest.raises(ValueError, match="The target is 8 tokens long.*randomize_positions=7"):
        make_seq2seq(randomize_positions=7).train()(**make_source(), **target)


# The encoder-decoder


def pair_layouts(model, monkeypatch, **batch) -> tuple:
    """The layouts of sources and of targets that a training step makes."""
    layouts = {}
    for module, name in ((modeling_plainformer, "make_layout"), (modeling_seq2seq_plainformer, "make_pair_layout")):
        make = getattr(module, name)
        keep = lambda *args, make=make, name=name, **kwargs: layouts.setdefault(name, make(*args, **kwargs))  # noqa: E731
        monkeypatch.setattr(module, name, keep)
    model(**batch)
    return layouts["make_layout"], layouts["make_pair_layout"].targets


def test_source_and_target_draw_on_their_own(monkeypatch):
    model = make_seq2seq(**SIXTEEN).train()
    ids = torch.randint(3, 50, (64, 7))
    source, target = pair_layouts(model, monkeypatch, input_ids=ids, labels=ids)
    source_ids, target_ids = (layout.position_ids.reshape(64, 7) for layout in (source, target))
    for positions in (source_ids, target_ids):
        assert (positions.diff(dim=1) > 0).all() and positions.amax() == 15
    assert not torch.equal(source_ids, target_ids)


def test_both_routes_of_an_encoder_decoder(kind):
    steps = []
    for unpad in (True, False):
        model = make_seq2seq(**SIXTEEN, position_embedding_type=kind, unpad_inputs=unpad).train()
        pairs = make_pairs()
        pairs["input_ids"] = pairs["input_ids"] * 0 + torch.arange(3, 10)
        pairs["labels"] = pairs["labels"].clamp(max=20)
        torch.manual_seed(5)
        loss = model(**pairs).loss
        loss.backward()
        steps.append((loss.detach(), model.decoder.layers[0].attention.q_proj.weight.grad))
        torch.manual_seed(0)
    assert_same(*steps)


def test_what_follows_a_cache_is_counted():
    """`generate` in training mode goes on where the cache ends."""
    model, source = make_seq2seq(**SIXTEEN).train(), make_source()
    options = {"do_sample": False, "max_new_tokens": 4}
    encoded = model.eval().get_encoder()(**source)
    expected = model.generate(encoder_outputs=encoded, attention_mask=source["attention_mask"], **options)
    model.train()
    answers = model.generate(encoder_outputs=encoded, attention_mask=source["attention_mask"], **options)
    assert_equal(answers, expected)


def test_positions_that_nobody_reads_are_not_drawn():
    """Without positions a text may be longer than N, and dropout draws the same numbers."""
    config = {"position_embedding_type": "none", "hidden_dropout_prob": 0.5, "randomize_positions": 4}
    rows = make_rows(padding_mask())
    results = []
    for changes in (config, config | {"randomize_positions": 0}):
        model = make_model(PlainformerModel, **changes).train()
        torch.manual_seed(1)
        results.append(model(**rows).last_hidden_state)
    assert_equal(*results)


def test_the_table_holds_all_positions_that_are_drawn():
    model = make_model(PlainformerModel, position_embedding_type="learned", **SIXTEEN)
    with pytest.raises(ValueError, match="new_num_position_embeddings=15 is less than randomize_positions=16"):
        model.resize_position_embeddings(15)
    model.resize_position_embeddings(20)


def test_a_resumed_training_draws_on(tmp_path):
    """From the random state that `Trainer` saves: the weights are those of a training that was not interrupted."""
    rows = [{"input_ids": torch.randint(1, 30, (6,)), "labels": torch.randint(0, 3, (6,))} for _ in range(12)]
    results = []
    for folder, checkpoint in (("whole", None), ("resumed", tmp_path / "whole" / "checkpoint-2")):
        model = make_model(PlainformerForTokenClassification, position_embedding_type="rotary", **SIXTEEN)
        steps = {"max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 2, "learning_rate": 1e-2}
        args = TrainingArguments(tmp_path / folder, **steps, report_to="none", use_cpu=True, disable_tqdm=True)
        trainer = Trainer(model, args, train_dataset=rows)
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        results.append(trainer.model.state_dict())
    assert_equal(*results)
