"""Padding does not exist: what it holds and where it lies changes nothing, on either route.

Shapes: B batch, R rows, L length, T real tokens, E hidden size.
"""

import pytest
import torch
from helpers.models import (
    NO_DROPOUT,
    PADDING,
    PER_ROW,
    SETTINGS,
    answers,
    as_batch,
    assert_equal,
    assert_finite,
    assert_same,
    is_unpadded,
    layout_of,
    learn,
    make_labels,
    make_model,
    make_rows,
    padding_mask,
    row_answers,
)
from torch import Tensor

from plainformer import (
    PlainformerForMaskedLM,
    PlainformerForMultipleChoice,
    PlainformerForQuestionAnswering,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
    PlainformerModel,
    kernels_plainformer,
)

BATCHES = {name: [name, "full"] for name in PADDING} | {"all": [*PADDING], "all empty": ["empty", "empty"]}

# The numbers of a row depend on nothing but its own tokens


def test_row_alone_equals_row_in_batch(subject):
    """Every padding pattern in one batch, against each row's tokens on their own, without any mask."""
    model = make_model(subject[0], **subject[1])
    rows = make_rows(padding_mask())
    together = row_answers(model, rows)
    for index, name in enumerate(PADDING):
        token_mask = rows["attention_mask"][index].bool()
        if not token_mask.any():
            continue
        alone = {key: rows[key][index : index + 1, token_mask] for key in ("input_ids", "token_type_ids")}
        expected = row_answers(model, alone, num_choices=1)[0]
        actual = together[index] if subject[0] in PER_ROW else together[index, token_mask]
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5, msg=lambda text, row=name: f"{row}: {text}")


def test_side_of_padding(subject):
    """The same five tokens, padded on the right, on the left, on both sides and in between."""
    model = make_model(subject[0], **subject[1])
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 0, 0]] * 2)
    mask[3] = torch.tensor([1, 0, 1, 1, 0, 1, 0, 1])
    rows = make_rows(mask)
    for name in ("input_ids", "token_type_ids"):
        rows[name][mask.bool()] = rows[name][0, :5].repeat(6)
    outputs = row_answers(model, rows)
    per_row = outputs if subject[0] in PER_ROW else outputs[mask.bool()].unflatten(0, (6, 5))
    assert_same(per_row, per_row[:1].expand_as(per_row))


def spoil_labels(model_class: type, labels: dict[str, Tensor], mask: Tensor) -> tuple[dict, dict]:
    """Labels that leave out what has no token, and the same with a label at each such place."""
    clean = {name: values.clone() for name, values in labels.items()}
    spoiled = {name: values.clone() for name, values in labels.items()}
    if model_class in (PlainformerForMaskedLM, PlainformerForTokenClassification):
        clean["labels"][mask == 0], spoiled["labels"][mask == 0] = -100, 777
    elif model_class is PlainformerForSequenceClassification:
        clean["labels"][5], spoiled["labels"][5] = -100, 777
    elif model_class is PlainformerForQuestionAnswering:
        for name, indices in (("start_positions", [2, 1, 1, 1, 7, 0]), ("end_positions", [6, 4, 4, 1, 2, 7])):
            spoiled[name] = torch.tensor(indices)
            clean[name] = spoiled[name].masked_fill(mask.gather(1, spoiled[name][:, None])[:, 0] == 0, -100)
    elif model_class is PlainformerForMultipleChoice:
        clean["labels"], spoiled["labels"] = torch.tensor([0, 1, -100]), torch.tensor([0, 1, 1])  # the empty choice
    return clean, spoiled


@pytest.mark.parametrize("route", ["input_ids", "inputs_embeds"])
def test_what_padding_holds(subject, route):
    """Ids outside the vocabulary, NaN, wrong segments, positions and labels at padding change no bit."""
    model = make_model(subject[0], **subject[1])
    rows = make_rows(padding_mask())
    padded = rows["attention_mask"] == 0
    counted = (rows["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    spoiled = {
        "attention_mask": rows["attention_mask"],
        "input_ids": torch.where(padded, torch.tensor([-100, 10**6, 49, 0, -1, 3, 50, 7]), rows["input_ids"]),
        "token_type_ids": torch.where(padded, torch.tensor([2, -5, 99, 1, 0, 1, 1, 0]), rows["token_type_ids"]),
        "position_ids": torch.where(padded, torch.tensor([-1, 10**6, 16, 2, 0, 0, 5, 0]), counted),
    }
    if route == "inputs_embeds":
        embeds = torch.randn(6, 8, 32)
        del rows["input_ids"], spoiled["input_ids"]
        rows["inputs_embeds"] = embeds
        spoiled["inputs_embeds"] = embeds.masked_fill(padded[..., None], torch.nan)
        spoiled["inputs_embeds"][0, -1] = torch.inf
        model.get_input_embeddings().requires_grad_(False)  # which nothing reads now
    labels = make_labels(subject[0], as_batch(subject[0], rows))
    clean_labels, spoiled_labels = spoil_labels(subject[0], labels, rows["attention_mask"])
    clean = learn(model, as_batch(subject[0], rows) | clean_labels)
    dirty = learn(model, as_batch(subject[0], spoiled) | spoiled_labels)
    assert_finite(dirty.outputs, dirty.loss, *dirty.gradients.values())
    assert_equal(dirty, clean)


def test_nothing_leaks_between_rows(subject):
    """Another text in one row leaves every other row's bits alone."""
    model = make_model(subject[0], **subject[1])
    rows = make_rows(padding_mask())
    other = {**rows, "input_ids": rows["input_ids"].clone()}
    other["input_ids"][1] = torch.randint(1, 50, (8,))
    before, after = row_answers(model, rows), row_answers(model, other)
    kept = [0, 2, 3, 4, 5]
    assert_equal(before[kept], after[kept])
    assert not torch.equal(before[1], after[1])


# A row without a token


def test_an_empty_row_changes_no_other_row(subject):
    """The other rows are the same, bit for bit, as beside a row with tokens; all numbers are finite."""
    model = make_model(subject[0], **subject[1])
    rows = make_rows(padding_mask("right", "full", "left", "holes"))
    empty = {**rows, "attention_mask": padding_mask("right", "full", "left", "empty")}
    beside_tokens, beside_nothing = row_answers(model, rows), row_answers(model, empty)
    assert_equal(beside_nothing[:3], beside_tokens[:3])
    assert_finite(beside_nothing)


def test_nothing_but_empty_rows(subject):
    model = make_model(subject[0], **subject[1])
    inputs = as_batch(subject[0], make_rows(padding_mask("empty", "empty")))
    outputs, loss, gradients = learn(model, inputs | make_labels(subject[0], inputs))
    assert_finite(outputs, *gradients.values())
    assert loss == 0 and not any(grad.any() for grad in gradients.values())


def test_hidden_states_at_padding_are_zero(setting):
    model = make_model(PlainformerModel, **setting)
    rows = make_rows(padding_mask())
    output = model(**rows, output_hidden_states=True)
    for states in (output.last_hidden_state, *output.hidden_states):
        assert not states[rows["attention_mask"] == 0].any()
        assert (states[rows["attention_mask"] == 1] != 0).any(dim=1).all()


# Text that is too long is refused by its real tokens: test_inputs.py


def test_only_real_tokens_count_as_length(subject):
    """Short sequences may be padded beyond the limit, and a batch may hold more tokens than it in all."""
    model = make_model(subject[0], **subject[1])
    mask = torch.zeros(4, 40, dtype=torch.long)
    mask[0, 24:] = mask[1, :16] = mask[2, 10:26] = mask[3, ::3] = 1
    rows = make_rows(mask)
    outputs = row_answers(model, rows)
    for index in range(4):
        token_mask = mask[index].bool()
        alone = {name: rows[name][index : index + 1, token_mask] for name in ("input_ids", "token_type_ids")}
        expected = row_answers(model, alone, num_choices=1)[0]
        assert_same(outputs[index] if subject[0] in PER_ROW else outputs[index, token_mask], expected)


# Unpadded and padded


def check_routes(model_class: type, rows: dict[str, Tensor], **fields) -> None:
    """In evaluation and in training: outputs, every hidden state, loss and gradients of both routes are the same."""
    inputs = as_batch(model_class, rows)
    labels = make_labels(model_class, inputs)
    results = []
    for unpad in (True, False):
        model = make_model(model_class, unpad_inputs=unpad, sparse_prediction=False, **NO_DROPOUT, **fields)
        with torch.no_grad():
            evaluated = model(**inputs, output_hidden_states=True)
        results.append((answers(evaluated), evaluated.hidden_states, learn(model.train(), inputs | labels)))
    assert_same(*results)


@pytest.mark.parametrize("names", BATCHES.values(), ids=BATCHES)
def test_unpadded_equals_padded(pooled_class, names):
    """Every padding pattern beside a full row, all patterns together, and nothing but padding."""
    check_routes(pooled_class[0], make_rows(padding_mask(*names)), **pooled_class[1])


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "padded"])
def test_unpadded_equals_padded_in_every_setting(name):
    check_routes(PlainformerModel, make_rows(padding_mask()), **SETTINGS[name])


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
def test_embeddings_positions_and_checkpointing_on_both_routes(subject):
    """The other ways in, together: embeddings with a gradient, explicit positions, recomputed layers."""
    mask = padding_mask()
    embeds, positions = torch.randn(*mask.shape, 32), torch.stack([torch.randperm(8) for _ in mask])
    labels = make_labels(subject[0], as_batch(subject[0], {"inputs_embeds": embeds}))
    results = []
    for unpad in (True, False):
        model = make_model(subject[0], **{**NO_DROPOUT, **subject[1], "unpad_inputs": unpad}).train()
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.get_input_embeddings().requires_grad_(False)  # which nothing reads here
        leaf = embeds.clone().requires_grad_()
        rows = {"inputs_embeds": leaf, "attention_mask": mask, "position_ids": positions}
        results.append((learn(model, as_batch(subject[0], rows) | labels), leaf.grad))
    assert_same(*results)
    assert (results[0][-1][mask == 0] == 0).all()


# Which route


def test_which_route(setting):
    """Real tokens only where there is padding; the rectangle where there is none, and for attention weights."""
    model = make_model(PlainformerModel, **setting)
    batch = make_rows(padding_mask())
    assert is_unpadded(layout_of(model, **batch)) == model.config.unpad_inputs
    assert not is_unpadded(layout_of(model, **batch, output_attentions=True))
    square = padding_mask()[:, None].expand(-1, 8, -1)
    assert not is_unpadded(layout_of(model, input_ids=batch["input_ids"], attention_mask=square))
    for mask in (None, torch.ones(6, 8)):
        assert not is_unpadded(layout_of(model, input_ids=batch["input_ids"], attention_mask=mask))
    model.config.unpad_inputs = False  # on a live model
    assert not is_unpadded(layout_of(model, **batch))


def test_every_module_sees_real_tokens_only(monkeypatch, model_class):
    """What a linear layer, a norm or an embedding is given has T rows, or one per row of the batch in a head."""
    model = make_model(model_class)
    mask = padding_mask()
    inputs = as_batch(model_class, {"input_ids": torch.randint(1, 50, mask.shape), "attention_mask": mask})
    seen = {}
    for kind in (torch.nn.Linear, torch.nn.LayerNorm, torch.nn.Embedding, torch.nn.Dropout):

        def forward(module, values, forward=kind.forward):
            seen.setdefault(module, set()).add(values.shape[0])
            return forward(module, values)

        monkeypatch.setattr(kind, "forward", forward)
    model(**inputs)
    for module in model.base_model.modules():
        assert seen.pop(module, {int(mask.sum())}) == {int(mask.sum())}
    assert set().union(*seen.values()) <= {int(mask.sum()), len(mask)}


def kernel_calls(monkeypatch, mask: Tensor | None) -> list[tuple]:
    """The arguments of every call of the kernel for one layer and a batch of six rows of eight tokens."""
    calls = []
    sdpa = kernels_plainformer.KERNELS["sdpa"]
    monkeypatch.setitem(kernels_plainformer.KERNELS, "sdpa", lambda *args: calls.append(args) or sdpa(*args))
    make_model(PlainformerModel, num_hidden_layers=1)(torch.randint(1, 50, (6, 8)), attention_mask=mask)
    return calls


def test_attention_runs_without_a_mask_in_buckets_of_equal_length(monkeypatch):
    calls = kernel_calls(monkeypatch, padding_mask())
    shapes = [tuple(args[0].shape) for args in calls]  # [sequences, H, L, D]
    assert [shape[2] for shape in shapes] == sorted({sum(row) for row in PADDING.values()} - {0})
    assert sum(shape[0] * shape[2] for shape in shapes) == padding_mask().sum()
    assert not any(isinstance(value, Tensor) for args in calls for value in args[3:])


@pytest.mark.parametrize("mask", [None, torch.ones(6, 8)], ids=["no mask", "ones"])
def test_a_full_batch_needs_no_mask(monkeypatch, mask):
    (call,) = kernel_calls(monkeypatch, mask)
    assert call[0].shape[:3] == (6, 2, 8)
    assert not any(isinstance(value, Tensor) for value in call[3:])


# torch's own kernel for sequences laid end to end needs a GPU: here its place is taken by its definition


def test_varlen_kernel_gets_the_sequences(monkeypatch):
    def varlen_attn(query, key, value, cu_seqlens, key_cu_seqlens, max_seqlen, key_max_seqlen):
        assert cu_seqlens.dtype == torch.int32 and torch.equal(cu_seqlens, key_cu_seqlens)
        lengths = cu_seqlens.diff().tolist()
        assert max(lengths) == max_seqlen == key_max_seqlen
        parts = zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True)
        states = [[part.transpose(0, 1)[None] for part in one] for one in parts]
        return torch.cat(
            [kernels_plainformer.eager_attention(*one, None, None, 0.0)[0][0].transpose(0, 1) for one in states]
        )

    model = make_model(PlainformerModel)
    inputs = make_rows(padding_mask())
    expected = model(**inputs).last_hidden_state
    monkeypatch.setattr(kernels_plainformer, "load_varlen_attn", lambda: varlen_attn)
    monkeypatch.setattr("plainformer.layouts_plainformer.varlen_fits", lambda query, dropout_p: dropout_p == 0)
    assert_same(model(**inputs).last_hidden_state, expected)


def test_varlen_kernel_is_left_alone_where_it_does_not_fit():
    assert not kernels_plainformer.varlen_fits(torch.zeros(3, 2, 8, dtype=torch.bfloat16), 0.0)  # not on a GPU
