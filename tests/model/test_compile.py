"""`torch.compile` and `torch.export`: a captured graph holds for other batches, and gives the same numbers."""

import pytest
import torch
from helpers.axes import paired
from helpers.models import (
    CLASSES,
    MODELS,
    NO_DROPOUT,
    answers,
    assert_same,
    learn,
    make_inputs,
    make_labels,
    make_model,
    padding_mask,
)
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

from plainformer import PlainformerForSequenceClassification, PlainformerModel
from plainformer.positions_plainformer import POSITION_KINDS

SHAPES = [(2, 5), (3, 5), (2, 9), (4, 16), (5, 7), (6, 2), (2, 3), (7, 11), (8, 8), (3, 13)]  # (B, L)

# Captured graphs are always padded, and need a second each: what does not change their form is left out.
KINDS = {kind: {"position_embedding_type": kind} for kind in POSITION_KINDS}
COMPILED = paired(MODELS, KINDS) + [pytest.param(PlainformerModel, {"attn_implementation": "eager"}, id="Model-eager")]


def padded_batch(model_class: type, batch_size: int, length: int) -> dict[str, Tensor]:
    """The first row is padded on the left, the others on the right, and the last is full."""
    inputs = make_inputs(model_class, batch_size, length)
    mask = torch.ones_like(inputs["input_ids"])
    mask[1:-1, length // 2 + 1 :] = 0
    mask[0, : length // 2] = 0
    return {**inputs, "attention_mask": mask, **make_labels(model_class, inputs)}


def small_model(model_class: type, **overrides) -> nn.Module:
    """One layer, no dropout."""
    settings = {**NO_DROPOUT, "num_hidden_layers": 1, "problem_type": "single_label_classification"}
    return make_model(model_class, **{**settings, **overrides})


def compiled(model: nn.Module, backend: str) -> tuple[nn.Module, CompileCounterWithBackend]:
    """The model as one graph for every shape, and the counter of its compilations."""
    counter = CompileCounterWithBackend(backend)
    return torch.compile(model, dynamic=True, fullgraph=True, backend=counter), counter


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


# Compiled


def test_training_over_ten_shapes():
    """At most three graphs; `aot_eager` traces the backward pass too."""
    model = small_model(PlainformerForSequenceClassification).train()
    run, counter = compiled(model, "aot_eager")
    for shape in SHAPES:
        inputs = padded_batch(PlainformerForSequenceClassification, *shape)
        assert_same(learn(model, inputs, run), learn(model, inputs), 1e-4)
    assert 1 <= counter.frame_count <= 3


@pytest.mark.parametrize(("model_class", "fields"), COMPILED)
def test_every_head_and_setting(model_class, fields):
    """One graph for two shapes; the answers, the loss and the gradients of the plain model."""
    model = small_model(model_class, **fields)
    run, counter = compiled(model, "eager")
    for shape in ((3, 5), (5, 16)):
        inputs = padded_batch(model_class, *shape)
        assert_same(learn(model, inputs, run), learn(model, inputs))
    assert counter.frame_count == 1


def test_machine_code():
    """torch's own compiler makes C++ of the forward pass. For the backward pass it would need half a minute more."""
    model = small_model(PlainformerForSequenceClassification, position_embedding_type="sinusoidal")
    run, counter = compiled(model, "inductor")
    inputs = padded_batch(PlainformerForSequenceClassification, 3, 5)
    with torch.no_grad():
        found, expected = run(**inputs), model(**inputs)
    assert_same((found.loss, found.logits), (expected.loss, expected.logits), 1e-4)
    assert 1 <= counter.frame_count <= 2


def test_without_a_mask():
    """Another graph than with one, and no more than that."""
    model = small_model(PlainformerModel)
    run, counter = compiled(model, "eager")
    for shape in SHAPES[:5]:
        inputs = make_inputs(PlainformerModel, *shape)
        assert_same(run(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
        inputs["attention_mask"] = padding_mask("right")[:, : shape[1]].expand(shape[0], -1).clone()
        if shape[1] <= 8:
            assert_same(run(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
    assert 1 <= counter.frame_count <= 4


def test_one_row_or_one_token_is_another_graph():
    model = small_model(PlainformerModel)
    run, counter = compiled(model, "eager")
    counts = []
    for shape in [(2, 5), (3, 9), (1, 6), (4, 1)]:
        inputs = padded_batch(PlainformerModel, *shape)
        assert_same(run(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
        counts.append(counter.frame_count)
    assert counts[1] <= 3 and counts[-1] <= counts[1] + 2


def test_text_that_is_too_long_is_refused():
    """Where values are not known, the shape decides."""
    run = torch.compile(small_model(PlainformerModel), backend="eager", dynamic=True)
    for length in (5, 16):
        run(torch.randint(1, 50, (2, length)))
    with pytest.raises(ValueError, match="17 tokens long, but max_position_embeddings=16"):
        run(torch.randint(1, 50, (2, 17)))


# Exported


@pytest.mark.parametrize(("pooled_class", "fields"), paired(CLASSES, KINDS))
def test_export_with_a_free_batch(pooled_class, fields):
    """Batch and length are free, and the mask may be any other; `strict` follows Python's own bytecode."""
    model_class, pooling = pooled_class
    model = small_model(model_class, **pooling, **fields)
    batch, length = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("length", min=2, max=16)
    example = padded_batch(model_class, 3, 7)
    inputs = {name: example[name] for name in ("input_ids", "token_type_ids", "attention_mask")}
    dimensions = {0: batch, inputs["input_ids"].dim() - 1: length}
    exported = torch.export.export(
        model,
        (),
        kwargs=inputs,
        dynamic_shapes=dict.fromkeys(inputs, dimensions),
        strict=model_class is PlainformerModel,
    ).module()
    for shape in ((3, 7), (2, 16), (5, 4)):
        batch = padded_batch(model_class, *shape)
        other = {name: batch[name] for name in inputs}
        assert_same(answers(exported(**other)), answers(model(**other)))
