"""Several sequences in one row are computed as the separate sequences, or refused; never mixed.

Shapes: B batch, L length, E hidden size.
"""

import pytest
import torch
from helpers.models import (
    NO_DROPOUT,
    PER_ROW,
    SETTINGS,
    answers,
    as_batch,
    assert_equal,
    assert_same,
    gradients,
    make_model,
    padding_mask,
    short_name,
)
from transformers import DataCollatorWithFlattening

from plainformer import (
    PlainformerForMaskedLM,
    PlainformerForQuestionAnswering,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
    PlainformerModel,
)

ROW_HEADS = [*PER_ROW, PlainformerForQuestionAnswering]  # one answer per row
both_routes = pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])

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


# Computed as the separate sequences


def check_packed(model_class: type, names: list[str], **fields) -> None:
    """Answers of one packed row, with and without attention weights, are those of its texts one by one."""
    model = make_model(model_class, **fields)
    texts, batch = pack(LENGTHS)
    inputs = {name: batch[name] for name in ("input_ids", *names)}
    with torch.no_grad():
        separate = torch.cat([answers(model(text[None])) for text in texts], dim=1)
        packed = model(**inputs, output_hidden_states=True)
        with_weights = model(**inputs, output_attentions=True)
    assert_same(answers(packed), separate)
    assert_same(answers(with_weights), separate)
    assert packed.hidden_states[-1].shape == (1, sum(LENGTHS), 32)
    sequence = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    across = sequence[:, None] != sequence[None]
    assert all((weights[0, :, across] == 0).all() for weights in with_weights.attentions)


@both_routes
@pytest.mark.parametrize("names", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    "packed_class", [PlainformerModel, PlainformerForMaskedLM, PlainformerForTokenClassification], ids=short_name
)
def test_packed_equals_separate(packed_class, names, unpad):
    check_packed(packed_class, names, unpad_inputs=unpad)


@both_routes
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "padded"])
def test_packed_equals_separate_in_every_setting(name, unpad):
    check_packed(PlainformerModel, ["position_ids"], unpad_inputs=unpad, **SETTINGS[name])


@both_routes
def test_packed_rows_of_a_batch_under_a_mask(unpad):
    """Two rows of several sequences each, padded on either side."""
    model = make_model(PlainformerModel, unpad_inputs=unpad)
    texts = [torch.randint(1, 50, (length,)) for length in (3, 4, 2, 6)]
    ids, mask = torch.zeros(2, 9, dtype=torch.long), torch.zeros(2, 9, dtype=torch.long)
    positions = torch.full((2, 9), 3)
    ids[0, :7], mask[0, :7], positions[0, :7] = torch.cat(texts[:2]), 1, torch.tensor([0, 1, 2, 0, 1, 2, 3])
    ids[1, 1:], mask[1, 1:], positions[1, 1:] = torch.cat(texts[2:]), 1, torch.tensor([0, 1, 0, 1, 2, 3, 4, 5])
    separate = torch.cat([model(text[None])[0][0] for text in texts])
    states = model(ids, attention_mask=mask, position_ids=positions).last_hidden_state
    assert_same(states[mask.bool()], separate)
    assert (states[mask == 0] == 0).all()


def test_packed_gradients_equal_separate(setting):
    """The loss over a packed row is that of the separate texts, with every gradient."""
    model = make_model(PlainformerForTokenClassification, **NO_DROPOUT, **setting).train()
    texts, batch = pack(LENGTHS)
    labels = torch.randint(0, 3, (1, sum(LENGTHS)))
    model(batch["input_ids"], position_ids=batch["position_ids"], labels=labels).loss.backward()
    packed = gradients(model)
    model.zero_grad()
    for text, label in zip(texts, labels[0].split(LENGTHS), strict=True):
        model(text[None], labels=label[None], num_items_in_batch=sum(LENGTHS)).loss.backward()
    assert_same(packed, gradients(model))


def test_nothing_leaks_between_packed_sequences(setting):
    model = make_model(PlainformerModel, **setting)
    _, batch = pack(LENGTHS)
    other = batch["input_ids"].clone()
    other[0, 6:21] = torch.randint(1, 50, (15,))
    before, after = (model(ids, position_ids=batch["position_ids"])[0][0] for ids in (batch["input_ids"], other))
    kept = torch.arange(sum(LENGTHS))
    kept = (kept < 6) | (kept >= 21)
    assert torch.equal(before[kept], after[kept])
    assert not torch.equal(before[~kept], after[~kept])


MASKED_SEQUENCES = {  # (mask, seq_idx, the indices of each sequence)
    "starts with padding": ([0, 1, 1, 0, 1, 1], [0, 0, 0, 1, 1, 1], [[1, 2], [4, 5]]),
    "a number comes back": ([1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0], [[0, 1], [2, 3], [4, 5]]),
    "padding has a number": ([1, 1, 0, 1, 1, 1], [0, 0, -1, 0, 0, 0], [[0, 1, 3, 4, 5]]),
    "padding between": ([1, 1, 0, 0, 1, 1], [3, 3, 3, 4, 4, 4], [[0, 1], [4, 5]]),
}


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize(("mask", "seq_idx", "sequences"), MASKED_SEQUENCES.values(), ids=MASKED_SEQUENCES)
def test_sequences_under_a_mask(unpad, mask, seq_idx, sequences):
    model = make_model(PlainformerModel, unpad_inputs=unpad)
    ids = torch.randint(1, 50, (1, 6))
    states = model(ids, attention_mask=torch.tensor([mask]), seq_idx=torch.tensor([seq_idx]))[0][0]
    for indices in sequences:
        assert_same(states[indices], model(ids[:, indices])[0][0])
    assert not states[torch.tensor(mask) == 0].any()
    if seq_idx == [0, 0, 0, 1, 1, 1]:
        bounds = torch.tensor([0, 3, 6], dtype=torch.int32)
        same = model(ids, attention_mask=torch.tensor([mask]), cu_seq_lens_q=bounds, cu_seq_lens_k=bounds)[0][0]
        assert torch.equal(same, states)


def test_packed_without_detection_in_a_captured_graph():
    """Where values cannot be read, explicit positions still tell the sequences apart."""
    model = make_model(PlainformerModel)
    _, batch = pack([5, 1, 4])
    inputs = {"input_ids": batch["input_ids"], "position_ids": batch["position_ids"]}
    exported = torch.export.export(model, (), kwargs=inputs, strict=False).module()
    assert_same(exported(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
    for positions in (torch.arange(10), torch.full((10,), 2)):
        one = {**inputs, "position_ids": positions[None]}
        assert_same(exported(**one).last_hidden_state, model(**one).last_hidden_state)


# Which positions mean that a row is packed

PATTERNS = {  # positions: the sequence of each token
    "one sequence": ([0, 1, 2, 3], [0, 0, 0, 0]),
    "two": ([0, 1, 0, 1], [0, 0, 1, 1]),
    "start at 2": ([2, 3, 4, 2], [0, 0, 0, 1]),
    "all zero": ([0, 0, 0, 0], [0, 0, 0, 0]),
    "all three": ([3, 3, 3, 3], [0, 0, 0, 0]),
    "equal, then on": ([0, 0, 0, 1], [0, 1, 2, 2]),
    "permuted": ([2, 0, 1, 3], [0, 0, 0, 0]),
    "gapped": ([0, 2, 4, 6], [0, 0, 0, 0]),
    "reversed": ([3, 2, 1, 0], [0, 0, 0, 0]),
    "return to another value": ([0, 1, 2, 1], [0, 0, 0, 0]),
    "return and gap": ([0, 1, 0, 3], [0, 0, 0, 0]),
    "repeated": ([0, 1, 1, 2], [0, 0, 0, 0]),
    "return twice": ([0, 1, 0, 0], [0, 0, 1, 2]),
}


@both_routes
@pytest.mark.parametrize(("positions", "sequences"), PATTERNS.values(), ids=PATTERNS)
def test_which_positions_mean_packed(positions, sequences, unpad):
    """As with `seq_idx`, which says it outright; under a mask, what stands at padding says nothing."""
    model = make_model(PlainformerModel, unpad_inputs=unpad)
    ids, positions = torch.randint(1, 50, (1, 4)), torch.tensor([positions])
    states = model(ids, position_ids=positions).last_hidden_state
    for numbers, same in ((sequences, True), ([0, 0, 0, 0], max(sequences) == 0), ([0, 1, 2, 3], max(sequences) == 3)):
        other = model(ids, position_ids=positions, seq_idx=torch.tensor([numbers])).last_hidden_state
        assert torch.allclose(states, other, atol=1e-5) == same, numbers
    mask = torch.tensor([[0, 1, 0, 1, 1, 0, 1, 0]])
    for at_padding in (0, 7):
        spread = [torch.full((1, 8), at_padding).masked_scatter(mask.bool(), values) for values in (ids, positions)]
        under_mask = model(spread[0], mask, position_ids=spread[1]).last_hidden_state
        assert_same(under_mask[mask.bool()], states[0])


@both_routes
@pytest.mark.parametrize(
    "names", [WAYS["cu_seq_lens"], WAYS["seq_idx"], WAYS["all"]], ids=["cu_seq_lens", "seq_idx", "all"]
)
def test_texts_of_one_token_need_boundaries(names, unpad):
    """Their positions are all 0, which says that the row is one sequence."""
    model = make_model(PlainformerModel, unpad_inputs=unpad)
    texts, batch = pack([1, 1, 1])
    separate = torch.cat([model(text[None]).last_hidden_state for text in texts], dim=1)
    assert_same(model(batch["input_ids"], **{name: batch[name] for name in names}).last_hidden_state, separate)
    with_positions_alone = model(batch["input_ids"], position_ids=batch["position_ids"]).last_hidden_state
    assert not torch.allclose(with_positions_alone, separate, atol=1e-3)


def test_single_tokens_are_not_packed():
    model = make_model(PlainformerModel)
    ids = torch.randint(1, 50, (3, 1))
    outputs = model(ids, position_ids=torch.zeros(3, 1, dtype=torch.long)).last_hidden_state
    assert_equal(outputs, model(ids).last_hidden_state)


# Refused

PACKED = {
    "two": [[0, 1, 2, 3, 0, 1, 2, 3]],
    "three": [[0, 1, 2, 0, 1, 0, 1, 2]],
    "beside-equal-positions": [[0, 0, 0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 0, 1, 2, 3]],
    "first-of-one-token": [[0, 0, 1, 2, 3, 4, 5, 6]],
    "last-of-one-token": [[0, 1, 2, 3, 4, 5, 6, 0]],
    "from-five": [[5, 6, 7, 5, 6, 7, 8, 9]],
    "second-row": [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 0, 1, 2, 3]],
    "one-of-several": [[7, 6, 5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5, 0, 1], [0, 2, 4, 6, 8, 10, 12, 14]],
}

REMEDY = "several sequences.*row of its own"


@both_routes
@pytest.mark.parametrize("row_class", ROW_HEADS, ids=short_name)
@pytest.mark.parametrize("positions", PACKED.values(), ids=PACKED)
def test_packed_rows_are_refused(row_class, positions, unpad):
    """By every head that gives one answer per row."""
    model = make_model(row_class, unpad_inputs=unpad)
    positions = as_batch(row_class, {"positions": torch.tensor(positions)}, num_choices=1)["positions"]
    ids = torch.randint(1, 50, positions.shape)
    for mask in (None, torch.ones_like(ids)):
        with pytest.raises(ValueError, match=REMEDY):
            model(ids, attention_mask=mask, position_ids=positions)


@both_routes
@pytest.mark.parametrize("row_class", ROW_HEADS, ids=short_name)
@pytest.mark.parametrize("names", WAYS.values(), ids=WAYS)
def test_packed_rows_are_refused_whoever_says_so(row_class, names, unpad):
    """Positions, boundaries, or the numbers of the sequences."""
    _, batch = pack([3, 4])
    rows = as_batch(row_class, {name: batch[name] for name in ("input_ids", "position_ids", "seq_idx")}, num_choices=1)
    if row_class.__name__.endswith("MultipleChoice"):  # `seq_idx` has no dimension for the choices
        rows["seq_idx"] = batch["seq_idx"]
    with pytest.raises(ValueError, match="one answer per row.*DataCollatorWithPadding"):
        inputs = {name: rows.get(name, batch[name]) for name in names}
        make_model(row_class, unpad_inputs=unpad)(rows["input_ids"], **inputs)


@pytest.mark.parametrize("padding", ["right", "left", "both", "holes"])
def test_packed_rows_are_found_between_padding(padding):
    """Only real tokens count: what stands at padding neither hides a return to the start nor makes one."""
    model = make_model(PlainformerForSequenceClassification)
    mask = padding_mask("full", padding)
    token_mask = mask[1].bool()
    ids = torch.randint(1, 50, (2, 8))
    starts_again = [0, 1, 0, 1, 2, 3][: token_mask.sum()]
    goes_on = list(range(int(token_mask.sum())))
    for at_padding in (0, 1, 7):
        positions = torch.stack((torch.arange(8), torch.full((8,), at_padding)))
        positions[1, token_mask] = torch.tensor(starts_again)
        with pytest.raises(ValueError, match=REMEDY):
            model(ids, mask, position_ids=positions)
        positions[1, token_mask] = torch.tensor(goes_on)
        assert_equal(model(ids, mask, position_ids=positions).logits, model(ids, mask).logits)


def test_packed_rows_are_refused_with_the_positions_of_one_row():
    with pytest.raises(ValueError, match=REMEDY):
        make_model(PlainformerForSequenceClassification)(
            torch.randint(1, 50, (3, 8)), position_ids=torch.tensor(PACKED["two"])
        )


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
