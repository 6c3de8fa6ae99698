"""The fast path: real tokens only, packed rows, and logits only where there is a label, with the same numbers.

Shapes: B batch, L length, T real tokens, N labelled tokens, V vocabulary.
"""

import pytest
import torch
from helpers.models import (
    PADDING,
    PER_ROW,
    answers,
    as_batch,
    assert_same,
    gradients,
    make_inputs,
    make_labels,
    make_model,
    padding_mask,
    short_name,
)
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments, default_data_collator

from plainformer import (
    PlainformerForMaskedLM,
    PlainformerForQuestionAnswering,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
    PlainformerModel,
    kernels_plainformer,
    modeling_plainformer,
)
from plainformer.padding_plainformer import PaddedLayout, UnpaddedLayout, ids_from_positions

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BATCHES = {name: [name, "full"] for name in PADDING} | {"all": [*PADDING], "all empty": ["empty", "empty"]}
PACKABLE = [PlainformerModel, PlainformerForMaskedLM, PlainformerForTokenClassification]


def learn(model, inputs: dict, labels: dict, unpad: bool) -> tuple:
    """Answers in evaluation, every hidden state, the loss and all gradients, on one of the two routes."""
    model.config.unpad_inputs = unpad
    model.train().zero_grad()
    output = model(**inputs, **labels, output_hidden_states=True)
    loss = output.loss if labels else answers(output).square().mean()
    loss.backward()
    with torch.no_grad():
        said = answers(model.eval()(**inputs))
    return said, output.hidden_states, loss.detach(), gradients(model)


def layout_of(model, **inputs):
    return model.base_model(**inputs, return_layout=True).layout


@pytest.mark.parametrize("names", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_unpadded_equals_padded(variant, model_class, kernel, names, pooling):
    """Outputs, hidden states, loss and every gradient, with logits computed everywhere and only where needed."""
    if pooling == "mean" and model_class not in PER_ROW:
        pooling = "cls"  # read by nobody: the same case under another id costs little and keeps the product plain
    model = make_model(model_class, attn_implementation=kernel, classifier_pooling=pooling, **NO_DROPOUT, **variant)
    mask = padding_mask(*names)
    rows = {"input_ids": torch.randint(1, 50, mask.shape), "attention_mask": mask}
    rows["token_type_ids"] = torch.randint(0, 2, mask.shape)
    inputs = as_batch(model_class, rows)
    labels = make_labels(model_class, inputs)
    assert_same(learn(model, inputs, labels, unpad=True), learn(model, inputs, labels, unpad=False))


def test_inputs_embeds_positions_and_checkpointing(variant, model_class):
    """The other ways in, together: embeddings with a gradient, explicit positions, recomputed layers."""
    model = make_model(model_class, **NO_DROPOUT, **variant)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.get_input_embeddings().requires_grad_(False)  # which nothing reads here
    mask = padding_mask()
    results = []
    embeds = torch.randn(*mask.shape, 32)
    positions = torch.stack([torch.randperm(8) for _ in mask])
    labels = make_labels(model_class, as_batch(model_class, {"inputs_embeds": embeds}))
    for unpad in (True, False):
        leaf = embeds.clone().requires_grad_()
        rows = {"inputs_embeds": leaf, "attention_mask": mask, "position_ids": positions}
        results.append((*learn(model, as_batch(model_class, rows), labels, unpad), leaf.grad))
    assert_same(results[0], results[1])
    assert (results[0][-1][mask == 0] == 0).all()


def test_which_route(variant):
    """Real tokens only where there is padding; the rectangle where there is none, and for attention weights."""
    model = make_model(PlainformerModel, **variant)
    ids = torch.randint(1, 50, (6, 8))
    layout = layout_of(model, input_ids=ids, attention_mask=padding_mask())
    assert isinstance(layout, UnpaddedLayout)
    assert sum(count * length for count, length in layout.runs) == padding_mask().sum() == len(layout.places)
    for mask in (None, torch.ones(6, 8)):
        layout = layout_of(model, input_ids=ids, attention_mask=mask)
        assert layout == PaddedLayout(layout.shape, real=None)  # no mask for the kernel either
    assert isinstance(
        layout_of(model, input_ids=ids, attention_mask=padding_mask(), output_attentions=True), PaddedLayout
    )
    square = padding_mask()[:, None].expand(-1, 8, -1)
    assert isinstance(layout_of(model, input_ids=ids, attention_mask=square), PaddedLayout)
    model.config.unpad_inputs = False
    assert isinstance(layout_of(model, input_ids=ids, attention_mask=padding_mask()), PaddedLayout)


def test_every_module_sees_real_tokens_only(variant, model_class):
    """What a linear layer, a norm or an embedding is given has T rows, or one per row of the batch."""
    model = make_model(model_class, **variant)
    mask = padding_mask()
    inputs = as_batch(model_class, {"input_ids": torch.randint(1, 50, mask.shape), "attention_mask": mask})
    seen = set()
    for module in model.modules():
        if not list(module.children()):
            module.register_forward_hook(lambda _, args, __: seen.add(args[0].shape[0]))
    model(**inputs)
    assert seen <= {int(mask.sum()), len(mask)}


def test_attention_runs_without_a_mask_in_buckets_of_equal_length(monkeypatch):
    calls = []

    def spy(query, key, value, mask, nobody, dropout_p):
        calls.append((tuple(query.shape), mask))
        return kernels_plainformer.eager_attention(query, key, value, mask, nobody, dropout_p)

    monkeypatch.setitem(kernels_plainformer.KERNELS, "sdpa", spy)
    model = make_model(PlainformerModel, num_hidden_layers=1)
    model(torch.randint(1, 50, (6, 8)), attention_mask=padding_mask())
    lengths = sorted({sum(row) for row in PADDING.values()} - {0})
    assert [shape[2] for shape, _ in calls] == lengths
    assert all(mask is None for _, mask in calls)
    assert sum(shape[0] * shape[2] for shape, _ in calls) == padding_mask().sum()


def test_nothing_leaks_between_rows(variant, model_class):
    """Another text in one row leaves every other row's bits alone."""
    model = make_model(model_class, **variant)
    mask = padding_mask()
    ids = torch.randint(1, 50, mask.shape)
    other = ids.clone()
    other[1] = torch.randint(1, 50, (8,))
    before, after = (
        answers(model(**as_batch(model_class, {"input_ids": one, "attention_mask": mask}))) for one in (ids, other)
    )
    changed = 0 if short_name(model_class) == "MultipleChoice" else 1
    kept = [row for row in range(len(before)) if row != changed]
    torch.testing.assert_close(before[kept], after[kept], rtol=0, atol=0)
    assert not torch.equal(before[changed], after[changed])


def test_autocast(variant, model_class):
    model = make_model(model_class, **NO_DROPOUT, **variant)
    mask = padding_mask()
    inputs = as_batch(model_class, {"input_ids": torch.randint(1, 50, mask.shape), "attention_mask": mask})
    with torch.autocast("cpu", torch.bfloat16):
        said, _, _, grads = learn(model, inputs, make_labels(model_class, inputs), unpad=True)
    model.config.unpad_inputs = False
    with torch.no_grad():
        expected = answers(model(**inputs))
    real = expected > torch.finfo(torch.bfloat16).min
    torch.testing.assert_close(said[real].float(), expected[real], rtol=0.1, atol=0.1 * float(expected[real].std()))
    assert all(gradient.isfinite().all() for gradient in grads.values())


@pytest.mark.parametrize("padded", [True, False], ids=["[T]", "[B, L]"])
def test_evaluation_in_pieces(variant, padded, monkeypatch):
    """Without gradients the feed-forward takes some tokens at a time, which changes nothing."""
    monkeypatch.setattr(modeling_plainformer, "TOKENS_AT_ONCE", 5)
    model = make_model(PlainformerModel, **variant)
    inputs = make_inputs(PlainformerModel)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, 3:] = 0 if padded else 1
    sizes = []
    model.layers[0].mlp.fc1.register_forward_hook(lambda _, args, __: sizes.append(args[0].shape[:-1].numel()))
    expected = model(**inputs).last_hidden_state
    with torch.no_grad():
        assert_same(model(**inputs).last_hidden_state, expected)
    whole = 27 if padded else 32
    assert sizes == [whole, *[5] * (whole // 5), whole % 5]


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_draws_the_same_dropout_again(variant, reentrant, monkeypatch):
    """Reentrant checkpointing runs a layer without gradients first: more tokens than are taken at once there."""
    monkeypatch.setattr(modeling_plainformer, "TOKENS_AT_ONCE", 5)
    model = make_model(PlainformerModel, hidden_dropout_prob=0.5, **variant).train()
    inputs = make_inputs(PlainformerModel)

    def learn_once() -> dict:
        torch.manual_seed(1)
        model.zero_grad()
        model(**inputs).last_hidden_state.square().sum().backward()
        return gradients(model)

    expected = learn_once()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    assert_same(learn_once(), expected)


def test_dropout_is_on_in_training_only(variant):
    model = make_model(PlainformerModel, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5, **variant)
    inputs = {"input_ids": torch.randint(1, 50, (6, 8)), "attention_mask": padding_mask()}
    assert torch.equal(model(**inputs)[0], model(**inputs)[0])
    model.train()
    assert not torch.equal(model(**inputs)[0], model(**inputs)[0])


# Packed rows

LENGTHS = [5, 1, 15, 1, 7, 2]  # 31 tokens, far beyond the 16 positions of a tiny model


def pack(lengths: list[int]) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Texts, and what `DataCollatorWithFlattening` makes of them."""
    texts = [torch.randint(1, 50, (length,)) for length in lengths]
    features = [{"input_ids": text.tolist(), "labels": text.tolist()} for text in texts]
    batch = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)(
        features, return_tensors="pt"
    )
    return texts, {name: value for name, value in batch.items() if name != "labels"}


WAYS = {
    "position_ids": ["position_ids"],
    "cu_seq_lens": ["cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"],
    "seq_idx": ["seq_idx"],
    "all": ["position_ids", "seq_idx", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"],
}


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize("names", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("packed_class", PACKABLE, ids=short_name)
def test_packed_equals_separate(variant, kernel, packed_class, names, unpad):
    model = make_model(packed_class, attn_implementation=kernel, unpad_inputs=unpad, **variant)
    texts, batch = pack(LENGTHS)
    with torch.no_grad():
        separate = torch.cat([answers(model(text[None])) for text in texts], dim=1)
        packed = model(batch["input_ids"], **{name: batch[name] for name in names}, output_hidden_states=True)
        with_weights = model(batch["input_ids"], **{name: batch[name] for name in names}, output_attentions=True)
    assert_same(answers(packed), separate)
    assert_same(answers(with_weights), separate)
    assert packed.hidden_states[-1].shape == (1, sum(LENGTHS), 32)
    sequence = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    across = sequence[:, None] != sequence[None]
    assert all((weights[0, :, across] == 0).all() for weights in with_weights.attentions)


def test_packed_rows_of_a_batch_under_a_mask(variant):
    """Two rows of several sequences each, padded on either side."""
    model = make_model(PlainformerModel, **variant)
    texts = [torch.randint(1, 50, (length,)) for length in (3, 4, 2, 6)]
    ids, mask = torch.zeros(2, 9, dtype=torch.long), torch.zeros(2, 9, dtype=torch.long)
    positions = torch.full((2, 9), 3)
    ids[0, :7], mask[0, :7], positions[0, :7] = torch.cat(texts[:2]), 1, torch.tensor([0, 1, 2, 0, 1, 2, 3])
    ids[1, 1:], mask[1, 1:], positions[1, 1:] = torch.cat(texts[2:]), 1, torch.tensor([0, 1, 0, 1, 2, 3, 4, 5])
    separate = torch.cat([model(text[None])[0][0] for text in texts])
    for unpad in (True, False):
        model.config.unpad_inputs = unpad
        states = model(ids, attention_mask=mask, position_ids=positions).last_hidden_state
        assert_same(states[mask.bool()], separate)
        assert (states[mask == 0] == 0).all()


def test_packed_gradients_equal_separate(variant):
    """The loss over a packed row is that of the separate texts, with every gradient."""
    model = make_model(PlainformerForTokenClassification, **NO_DROPOUT, **variant).train()
    texts, batch = pack(LENGTHS)
    labels = torch.randint(0, 3, (1, sum(LENGTHS)))
    model(batch["input_ids"], position_ids=batch["position_ids"], labels=labels).loss.backward()
    packed = gradients(model)
    model.zero_grad()
    for text, label in zip(texts, labels[0].split(LENGTHS), strict=True):
        model(text[None], labels=label[None], num_items_in_batch=sum(LENGTHS)).loss.backward()
    assert_same(packed, gradients(model))


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
def test_nothing_leaks_between_packed_sequences(variant, unpad):
    model = make_model(PlainformerModel, unpad_inputs=unpad, **variant)
    _, batch = pack(LENGTHS)
    other = batch["input_ids"].clone()
    other[0, 6:21] = torch.randint(1, 50, (15,))
    before, after = (model(ids, position_ids=batch["position_ids"])[0][0] for ids in (batch["input_ids"], other))
    kept = torch.arange(sum(LENGTHS))
    kept = (kept < 6) | (kept >= 21)
    assert torch.equal(before[kept], after[kept])
    assert not torch.equal(before[~kept], after[~kept])


def test_packed_without_detection_in_a_captured_graph(variant):
    """Where values cannot be read, explicit positions still tell the sequences apart."""
    model = make_model(PlainformerModel, **variant)
    _, batch = pack([5, 1, 4])
    inputs = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"]}
    exported = torch.export.export(model, (), kwargs=inputs, strict=False).module()
    assert_same(exported(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
    one = {**inputs, "position_ids": torch.arange(10)[None]}
    assert_same(exported(**one).last_hidden_state, model(**one).last_hidden_state)


PATTERNS = {  # positions: the sequence of each place
    "one sequence": ([0, 1, 2, 3], [0, 0, 0, 0]),
    "two": ([0, 1, 0, 1], [0, 0, 1, 1]),
    "start at 2": ([2, 3, 4, 2], [0, 0, 0, 1]),
    "all zero": ([0, 0, 0, 0], [0, 1, 2, 3]),
    "permuted": ([2, 0, 1, 3], [0, 0, 0, 0]),
    "gapped": ([0, 2, 4, 6], [0, 0, 0, 0]),
    "reversed": ([3, 2, 1, 0], [0, 0, 0, 0]),
    "return to another value": ([0, 1, 2, 1], [0, 0, 0, 0]),
    "return and gap": ([0, 1, 0, 3], [0, 0, 0, 0]),
}


@pytest.mark.parametrize(("positions", "expected"), PATTERNS.values(), ids=PATTERNS)
def test_which_positions_mean_packed(positions, expected):
    assert ids_from_positions(torch.tensor([positions]), None).tolist() == [expected]
    # the same under a mask: what stands at padding says nothing
    real = torch.tensor([[0, 1, 0, 1, 1, 0, 1, 0]], dtype=torch.bool)
    spread = torch.full((1, 8), 7).masked_scatter(real, torch.tensor(positions))
    assert ids_from_positions(spread, real)[real].tolist() == expected


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize(
    "row_class", [PlainformerForSequenceClassification, PlainformerForQuestionAnswering], ids=short_name
)
def test_heads_with_one_answer_per_row_refuse_packed_rows(row_class, unpad):
    model = make_model(row_class, unpad_inputs=unpad)
    _, batch = pack([3, 4])
    for names in WAYS.values():
        with pytest.raises(ValueError, match="one answer per row.*DataCollatorWithPadding"):
            model(batch["input_ids"], **{name: batch[name] for name in names})


MASKED_SEQUENCES = {  # (mask, seq_idx, the sequences as places)
    "starts with padding": ([0, 1, 1, 0, 1, 1], [0, 0, 0, 1, 1, 1], [[1, 2], [4, 5]]),
    "a number comes back": ([1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0], [[0, 1], [2, 3], [4, 5]]),
    "padding has a number": ([1, 1, 0, 1, 1, 1], [0, 0, -1, 0, 0, 0], [[0, 1, 3, 4, 5]]),
    "padding between": ([1, 1, 0, 0, 1, 1], [3, 3, 3, 4, 4, 4], [[0, 1], [4, 5]]),
}


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize(("mask", "seq_idx", "sequences"), MASKED_SEQUENCES.values(), ids=MASKED_SEQUENCES)
def test_sequences_under_a_mask(variant, unpad, mask, seq_idx, sequences):
    model = make_model(PlainformerModel, unpad_inputs=unpad, **variant)
    ids = torch.randint(1, 50, (1, 6))
    states = model(ids, attention_mask=torch.tensor([mask]), seq_idx=torch.tensor([seq_idx]))[0][0]
    for places in sequences:
        assert_same(states[places], model(ids[:, places])[0][0])
    assert not states[torch.tensor(mask) == 0].any()
    if seq_idx == [0, 0, 0, 1, 1, 1]:
        bounds = torch.tensor([0, 3, 6], dtype=torch.int32)
        same = model(ids, attention_mask=torch.tensor([mask]), cu_seq_lens_q=bounds, cu_seq_lens_k=bounds)[0][0]
        assert torch.equal(same, states)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
def test_ids_of_any_integer_type(model_class, dtype):
    model = make_model(model_class)
    inputs = make_inputs(model_class)
    inputs = {name: ids % 2 for name, ids in inputs.items()}
    inputs["position_ids"] = (1 - torch.arange(8) % 2).expand_as(inputs["input_ids"])  # 1, 0, 1, ...: one sequence
    expected = answers(model(**inputs))
    assert torch.equal(answers(model(**{name: ids.to(dtype) for name, ids in inputs.items()})), expected)


@pytest.mark.parametrize("name", ["attention_mask", "token_type_ids", "position_ids", "seq_idx"])
def test_what_is_no_tensor_is_named(model_class, name):
    inputs = make_inputs(model_class)
    inputs[name] = torch.ones_like(inputs["input_ids"]).tolist()
    with pytest.raises(TypeError, match=f"{name} is a list, not a tensor"):
        make_model(model_class)(**inputs)


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


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_export_with_a_free_batch(model_class, pooling):
    model = make_model(model_class, classifier_pooling=pooling)
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=16)
    inputs = {"input_ids": make_inputs(model_class)["input_ids"]}
    inputs["attention_mask"] = (torch.arange(8) < 6).long().expand_as(inputs["input_ids"]).clone()
    places = {0: batch, inputs["input_ids"].dim() - 1: length}
    exported = torch.export.export(
        model, (), kwargs=inputs, dynamic_shapes=dict.fromkeys(inputs, places), strict=False
    ).module()
    other = {"input_ids": make_inputs(model_class, batch_size=3, length=11)["input_ids"]}
    other["attention_mask"] = torch.ones_like(other["input_ids"])
    assert_same(answers(exported(**other)), answers(model(**other)))


@pytest.mark.parametrize(
    "row_class", [PlainformerForSequenceClassification, PlainformerForQuestionAnswering], ids=short_name
)
def test_boundaries_of_packed_rows_are_refused_in_a_captured_graph(row_class):
    model = make_model(row_class)
    bounds = torch.tensor([0, 3, 6], dtype=torch.int32)
    inputs = {"input_ids": torch.randint(1, 50, (1, 6)), "cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds}
    with pytest.raises(Exception, match="one answer per row"):
        torch.export.export(model, (), kwargs=inputs, strict=False)


def test_boundaries_that_do_not_fit_are_refused():
    model = make_model(PlainformerModel)
    ids = torch.randint(1, 50, (1, 6))
    for bad in ([0, 4], [1, 6], [0, 4, 2, 6], [0, 9], [6]):
        bounds = torch.tensor(bad, dtype=torch.int32)
        with pytest.raises(ValueError, match="do not divide a row of 6 tokens"):
            model(ids, cu_seq_lens_q=bounds, cu_seq_lens_k=bounds)
    good = torch.tensor([0, 2, 6], dtype=torch.int32)
    with pytest.raises(ValueError, match="do not divide"):
        model(ids, cu_seq_lens_q=good, cu_seq_lens_k=torch.tensor([0, 3, 6], dtype=torch.int32))
    with pytest.raises(ValueError, match="both cu_seq_lens_q and cu_seq_lens_k"):
        model(ids, cu_seq_lens_q=good)
    with pytest.raises(ValueError, match="this batch has 2 rows"):
        model(ids.view(2, 3), cu_seq_lens_q=good, cu_seq_lens_k=good)
    with pytest.raises(ValueError, match="seq_idx has shape"):
        model(ids, seq_idx=torch.zeros(1, 5, dtype=torch.int32))


def test_a_sequence_longer_than_the_table_is_refused_in_a_packed_row():
    model = make_model(PlainformerModel)  # 16 positions
    ids = torch.randint(1, 50, (1, 40))
    bounds = torch.tensor([0, 20, 40], dtype=torch.int32)
    with pytest.raises(ValueError, match="20 tokens long"):
        model(ids, cu_seq_lens_q=bounds, cu_seq_lens_k=bounds)
    fits = torch.tensor([0, 16, 32, 40], dtype=torch.int32)
    assert model(ids, cu_seq_lens_q=fits, cu_seq_lens_k=fits).last_hidden_state.shape == (1, 40, 32)


# Logits only where there is a label


def masked_lm_batch() -> dict[str, torch.Tensor]:
    mask = padding_mask()
    ids = torch.randint(1, 50, mask.shape)
    labels = ids.masked_fill(torch.rand(mask.shape) < 0.6, -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}  # labels at padding as well


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
def test_sparse_equals_dense(variant, unpad):
    model = make_model(PlainformerForMaskedLM, unpad_inputs=unpad, **NO_DROPOUT, **variant).train()
    batch = masked_lm_batch()
    labelled = (batch["labels"] != -100) & batch["attention_mask"].bool()
    results = []
    for sparse in (True, False):
        model.config.sparse_prediction = sparse
        for count in (None, 100):
            model.zero_grad()
            output = model(**batch, num_items_in_batch=count)
            output.loss.backward()
            logits = output.logits if sparse else output.logits[labelled]  # both in row-major order
            results.append((output.loss.detach(), logits.detach(), gradients(model)))
    assert results[0][1].shape == (int(labelled.sum()), 50)
    assert_same(results[:2], results[2:])


def test_logits_are_complete_outside_training(variant):
    model = make_model(PlainformerForMaskedLM, **variant)
    batch = masked_lm_batch()
    assert model(**batch).logits.shape == (6, 8, 50)  # evaluation
    model.train()
    without = {name: values for name, values in batch.items() if name != "labels"}
    assert model(**without).logits.shape == (6, 8, 50)
    assert model(**batch).logits.dim() == 2


def test_nothing_labelled(variant):
    model = make_model(PlainformerForMaskedLM, **variant).train()
    batch = masked_lm_batch()
    batch["labels"].fill_(-100)
    output = model(**batch)
    output.loss.backward()
    assert output.loss == 0 and output.logits.shape == (0, 50)
    assert all((gradient == 0).all() for gradient in gradients(model).values())


# torch's own kernel for sequences laid end to end needs a GPU: here its place is taken by its definition


def test_varlen_kernel_gets_the_sequences(monkeypatch, variant):
    def varlen_attn(query, key, value, ends, ends_key, longest, longest_key):
        assert ends.dtype == torch.int32 and torch.equal(ends, ends_key) and longest == longest_key
        lengths = ends.diff().tolist()
        assert max(lengths) == longest
        parts = zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True)
        states = [[part.transpose(0, 1)[None] for part in one] for one in parts]
        return torch.cat(
            [kernels_plainformer.eager_attention(*one, None, None, 0.0)[0][0].transpose(0, 1) for one in states]
        )

    model = make_model(PlainformerModel, **variant)
    inputs = make_inputs(PlainformerModel, 6) | {"attention_mask": padding_mask()}
    expected = model(**inputs).last_hidden_state
    monkeypatch.setattr(kernels_plainformer, "load_varlen_attn", lambda: varlen_attn)
    monkeypatch.setattr("plainformer.padding_plainformer.varlen_fits", lambda query, dropout_p: dropout_p == 0)
    assert_same(model(**inputs).last_hidden_state, expected)


def test_varlen_kernel_is_left_alone_where_it_does_not_fit():
    assert not kernels_plainformer.varlen_fits(torch.zeros(3, 2, 8, dtype=torch.bfloat16), 0.0)  # not on a GPU


# Hooks


def test_hooks_on_word_embeddings_see_the_rectangle(model_class, variant):
    """NEFTune, which `Trainer` hangs there, reads a third dimension; so do tools that attribute answers to tokens."""
    inputs = make_inputs(model_class)
    rows = inputs["input_ids"].numel() // 8  # two for each question of multiple choice
    mask = padding_mask(*["right", "left", "holes", "full"] * (rows // 4))
    inputs |= as_batch(model_class, {"attention_mask": mask})
    inputs["input_ids"] = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, 10**6)  # is not read
    answered, shapes = [], []
    for unpad in (True, False):
        model = make_model(model_class, problem_type="single_label_classification", unpad_inputs=unpad, **variant)
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
