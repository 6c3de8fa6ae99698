"""`torch.compile` in training, as machine code, and without a mask. Every variant and head: `test_oracles.py`."""

import pytest
import torch
from helpers.models import answers, assert_same, gradients, make_inputs, make_labels, make_model, padding_mask
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from plainformer import PlainformerForSequenceClassification, PlainformerModel

SHAPES = [(2, 5), (3, 5), (2, 9), (4, 16), (5, 7), (6, 2), (2, 3), (7, 11), (8, 8), (3, 13)]  # (B, L)


def padded_batch(model_class: type, batch_size: int, length: int) -> dict[str, Tensor]:
    """The first row is padded on the left, the others on the right, and the last is full."""
    inputs = make_inputs(model_class, batch_size, length)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1:-1, length // 2 + 1 :] = 0
    mask[0, : length // 2] = 0
    return {**inputs, "attention_mask": mask, **make_labels(model_class, inputs)}


def step(run, model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Loss, answers and gradients of one training step of `run`, which is `model` or made from it."""
    model.zero_grad()
    output = run(**inputs)
    output.loss.backward()
    return output.loss.detach(), answers(output).detach(), gradients(model)


def without_dropout(model_class: type, **overrides) -> nn.Module:
    settings = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0, "num_hidden_layers": 1}
    return make_model(model_class, problem_type="single_label_classification", **{**settings, **overrides})


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def test_training_over_ten_shapes():
    """`aot_eager` traces the backward pass too."""
    model = without_dropout(PlainformerForSequenceClassification).train()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend=counter)
    for shape in SHAPES:
        inputs = padded_batch(PlainformerForSequenceClassification, *shape)
        assert_same(step(compiled, model, inputs), step(model, model, inputs), 1e-4)
    assert 1 <= counter.frame_count <= 3


def test_machine_code():
    """torch's own compiler makes C++ of the forward and the backward pass."""
    model = without_dropout(PlainformerForSequenceClassification, position_embedding_type="sinusoidal").train()
    counter = CompileCounterWithBackend("inductor")
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend=counter)
    for shape in SHAPES[:4]:
        inputs = padded_batch(PlainformerForSequenceClassification, *shape)
        assert_same(step(compiled, model, inputs), step(model, model, inputs), 1e-4)
    assert 1 <= counter.frame_count <= 3


def test_without_a_mask():
    """Another graph than with one, and no more than that."""
    model = without_dropout(PlainformerModel)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend=counter)
    for shape in SHAPES[:5]:
        inputs = make_inputs(PlainformerModel, *shape)
        assert_same(compiled(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
        inputs["attention_mask"] = padding_mask("right")[:, : shape[1]].expand(shape[0], -1).clone()
        if shape[1] <= 8:
            assert_same(compiled(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
    assert 1 <= counter.frame_count <= 4


def test_one_row_or_one_token_is_another_graph():
    model = without_dropout(PlainformerModel)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend=counter)
    counts = []
    for shape in [(2, 5), (3, 9), (1, 6), (4, 1)]:
        inputs = padded_batch(PlainformerModel, *shape)
        assert_same(compiled(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
        counts.append(counter.frame_count)
    assert counts[1] <= 3 and counts[-1] <= counts[1] + 2
