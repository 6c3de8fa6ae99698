"""A model in float64 computes in float64: no step goes through a narrower type.

Shapes: B batch, L length, C classes.
"""

import pytest
import torch
from helpers.models import (
    KIND_AND_NORM,
    PER_ROW,
    answers,
    as_batch,
    assert_same,
    learn,
    make_labels,
    make_model,
    make_rows,
    padding_mask,
    short_name,
)

from plainformer import PlainformerForSequenceClassification, PlainformerModel
from plainformer.kernels_plainformer import eager_attention
from plainformer.losses_plainformer import class_loss, sequence_loss, span_loss, value_loss


@pytest.mark.parametrize("fields", KIND_AND_NORM.values(), ids=KIND_AND_NORM)
def test_kernels_and_routes_agree_in_float64(fields):
    rows = make_rows(padding_mask())
    expected = answers(make_model(PlainformerModel, **fields).double()(**rows))
    assert expected.dtype == torch.float64
    for other in ({"attn_implementation": "eager"}, {"unpad_inputs": False}):
        assert_same(answers(make_model(PlainformerModel, **fields, **other).double()(**rows)), expected, 1e-12)


@pytest.mark.parametrize("head", PER_ROW, ids=short_name)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_routes_agree_on_pooled_rows_in_float64(head, pooling):
    """With the loss and every gradient."""
    batch = as_batch(head, make_rows(padding_mask()))
    batch |= make_labels(head, batch)
    steps = []
    for unpad in (True, False):
        model = make_model(head, classifier_pooling=pooling, unpad_inputs=unpad).double()
        steps.append(learn(model, batch))
    assert steps[0].loss.dtype == torch.float64
    assert_same(*steps, 1e-12)


def test_mean_pooling_in_float64():
    model = make_model(PlainformerForSequenceClassification, classifier_pooling="mean").double()
    rows = make_rows(padding_mask("right", "full"))
    states = model.plainformer(**rows).last_hidden_state
    mean = torch.stack([row[mask.bool()].mean(dim=0) for row, mask in zip(states, rows["attention_mask"], strict=True)])
    assert_same(model(**rows).logits, model.classifier(model.pooler(mean)), 1e-12)


IDS = torch.tensor([0, 2, -100, 1])
EXISTS = torch.tensor([True, True, False, True])
LOSSES = {  # of logits [4, 3]
    "classes": lambda logits: class_loss(logits, IDS),
    "classes-counted": lambda logits: class_loss(logits, IDS, torch.tensor([7])),
    "span": lambda logits: span_loss((logits, logits.flip(0)), torch.stack((IDS, IDS))),
    "regression": lambda logits: value_loss(logits, torch.arange(12.0).view(4, 3), "regression", EXISTS),
    "multi-label": lambda logits: value_loss(logits, torch.eye(4, 3), "multi_label_classification", None),
    "sequence": lambda logits: sequence_loss(logits, IDS, PlainformerForSequenceClassification.config_class(), EXISTS),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_gradients_of_losses(loss):
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert loss(logits).dtype == torch.float64
    assert torch.autograd.gradcheck(loss, (logits,))


def test_labels_in_float64_are_not_rounded():
    logits, labels = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 1 + 1e-12, dtype=torch.float64)
    assert value_loss(logits + 1, labels, "regression", None).item() == pytest.approx(1e-24, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_goes_through_float32(dtype):
    """The softmax of the eager kernel is rounded once."""
    query, key, value = torch.randn(3, 2, 2, 8, 4, dtype=dtype)
    _, weights = eager_attention(query, key, value, None, None, 0.0)
    scores = (query @ key.transpose(-1, -2) * 0.5).float()
    assert weights.dtype == dtype and torch.equal(weights, scores.softmax(dim=-1).to(dtype))
