"""Where values cannot be read, a batch takes the padded rectangle by itself: transforms, tracers, fake tensors.

Shapes: N batches, B batch, L length.
"""

import copy

import pytest
import torch
from helpers.models import (
    NO_DROPOUT,
    answers,
    as_batch,
    assert_same,
    gradients,
    is_unpadded,
    layout_of,
    make_inputs,
    make_labels,
    make_model,
    padding_mask,
)
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, functionalize, grad, jacrev, jvp, stack_module_state, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import BertConfig, BertModel

from plainformer import PlainformerForMaskedLM, PlainformerForMultipleChoice, PlainformerModel

MASKS = [padding_mask("right", "left", "full", "both"), padding_mask("holes", "full", "right", "empty")]  # [4, 8] each


def padded_batches(model_class: type) -> dict[str, Tensor]:
    """Two batches of padded rows with labels, every tensor stacked: [N, B, ...]."""
    batches = []
    for mask in MASKS:
        batch_size = 2 if model_class is PlainformerForMultipleChoice else 4
        inputs = make_inputs(model_class, batch_size)
        mask = as_batch(model_class, {"attention_mask": mask})
        batches.append({**inputs, **mask, **make_labels(model_class, inputs)})
    return {name: torch.stack([batch[name] for batch in batches]) for name in batches[0]}


def batch_at(batches: dict[str, Tensor], index: int) -> dict[str, Tensor]:
    return {name: values[index] for name, values in batches.items()}


def results(model: torch.nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Answers, and the loss of a head."""
    output = model(**batch)
    return (answers(output),) if output.get("loss") is None else (answers(output), output.loss)


def test_vmap_over_batches(subject):
    model = make_model(subject[0], problem_type="single_label_classification", **subject[1])
    batches = padded_batches(subject[0])
    mapped = vmap(lambda batch: results(model, batch))(batches)
    for index in range(len(MASKS)):
        assert_same(tuple(values[index] for values in mapped), results(model, batch_at(batches, index)))


def test_the_padded_route_only_where_it_must():
    """A mask that is mapped over cannot be read; one beside values with gradients, or that is not mapped over, can."""
    model = make_model(PlainformerModel)
    batch = batch_at(padded_batches(PlainformerModel), 0)
    layouts = []

    def run(ids: Tensor, mask: Tensor) -> Tensor:
        layouts.append(layout_of(model, input_ids=ids, attention_mask=mask))
        return ids

    def run_embeds(embeds: Tensor) -> Tensor:
        layouts.append(layout_of(model, inputs_embeds=embeds, attention_mask=batch["attention_mask"]))
        return embeds.sum()

    ids, mask = (batch[name][None] for name in ("input_ids", "attention_mask"))
    vmap(run)(ids, mask)
    vmap(run, in_dims=(0, None))(ids, mask[0])
    grad(run_embeds)(torch.randn(4, 8, 32))
    assert [is_unpadded(layout) for layout in layouts] == [False, True, True]
    meta = {name: values.to("meta") for name, values in batch.items() if name != "labels"}
    assert not is_unpadded(layout_of(copy.deepcopy(model).to("meta"), **meta))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
def test_gradients_of_every_batch_at_once(model_class, training):
    """Per-sample gradients, as influence functions and differential privacy take them."""
    model = make_model(
        model_class,
        problem_type="single_label_classification",
        **NO_DROPOUT,
    )
    model.train(training)
    batches = padded_batches(model_class)

    def loss(parameters: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
        return results(_Called(model, parameters), batch)[-1].square().sum()

    mapped = vmap(grad(loss), in_dims=(None, 0))(dict(model.named_parameters()), batches)
    for index in range(len(MASKS)):
        model.zero_grad()
        results(model, batch_at(batches, index))[-1].square().sum().backward()
        for name, expected in gradients(model).items():
            assert_same(mapped[name][index], expected, 1e-4)


class _Called:
    """A model that computes with other parameters than its own."""

    def __init__(self, model: torch.nn.Module, parameters: dict[str, Tensor]) -> None:
        self.model, self.parameters = model, parameters

    def __call__(self, **batch: Tensor) -> object:
        return functional_call(self.model, self.parameters, (), batch)


def test_an_ensemble():
    models = [make_model(PlainformerModel) for _ in range(2)]
    with torch.no_grad():
        for parameter in models[1].parameters():
            parameter.mul_(1.1)
    batch = batch_at(padded_batches(PlainformerModel), 0)
    parameters, _ = stack_module_state(models)
    mapped = vmap(lambda one: _Called(models[0], one)(**batch).last_hidden_state)(parameters)
    for index, model in enumerate(models):
        assert_same(mapped[index], model(**batch).last_hidden_state)


def test_a_jacobian():
    """Of one row alone: of the other rows of a batch, and of padding, it is zero."""
    model = make_model(PlainformerModel)
    embeddings, mask = torch.randn(2, 8, 32), padding_mask("right", "left")
    jacobian = jacrev(lambda one: model(inputs_embeds=one, attention_mask=mask).last_hidden_state.sum((1, 2)))(
        embeddings
    )
    for row, other in ((0, 1), (1, 0)):
        assert jacobian[row, row][mask[row] == 1].any() and not jacobian[row, row][mask[row] == 0].any()
        assert not jacobian[row, other].any()


def test_forward_mode_needs_the_eager_kernel():
    """torch's fused kernel has no forward-mode derivative on a CPU."""
    embeddings, change = torch.randn(2, 4, 8, 32)
    batch = {"attention_mask": MASKS[0]}
    model = make_model(PlainformerModel)

    def run(embeddings: Tensor) -> Tensor:
        return model(inputs_embeds=embeddings, **batch).last_hidden_state

    with pytest.raises(NotImplementedError, match="forward AD"):
        jvp(run, (embeddings,), (change,))
    model.set_attn_implementation("eager")
    outputs, along = jvp(run, (embeddings,), (change,))
    step = 1e-3 * change
    assert_same(along, (run(embeddings + step) - run(embeddings - step)) / 2e-3, 1e-2)


def test_functionalize(model_class):
    model = make_model(model_class, problem_type="single_label_classification")
    batch = batch_at(padded_batches(model_class), 0)
    assert_same(functionalize(lambda one: results(model, one)[0])(batch), results(model, batch)[0])


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_make_fx(tracing_mode):
    """The graph holds for other masks than the one that it was made with."""
    model = make_model(PlainformerModel, num_hidden_layers=1)
    batches = padded_batches(PlainformerModel)

    def run(ids: Tensor, mask: Tensor) -> Tensor:
        return model(ids, attention_mask=mask).last_hidden_state

    inputs = [(batches["input_ids"][index], batches["attention_mask"][index]) for index in range(2)]
    graph = make_fx(run, tracing_mode=tracing_mode, _allow_non_fake_inputs=True)(*inputs[0])
    for one in inputs:
        assert_same(graph(*one), run(*one))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.torch.jit.trace:DeprecationWarning")
def test_jit_trace(model_class):
    """It holds for other masks, and other lengths."""
    model = make_model(model_class)
    names = ("input_ids", "attention_mask")

    class Answers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return answers(self.model(ids, attention_mask=mask))

    first, second = (batch_at(padded_batches(model_class), index) for index in range(2))
    traced = torch.jit.trace(Answers(), tuple(first[name] for name in names))
    shorter = {name: second[name][..., :7] for name in names}
    for batch in (first, second, shorter):
        assert_same(traced(*(batch[name] for name in names)), answers(model(**{name: batch[name] for name in names})))


def test_fake_tensors(model_class):
    """A whole step, gradients included, without a value: how memory is planned for."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = make_model(model_class, problem_type="single_label_classification").train()
        batch = batch_at(padded_batches(model_class), 0)
        output = model(**{name: values.clone() for name, values in batch.items()})
        output[0].sum().backward()
        assert gradients(model)
    token_mask = make_model(model_class, problem_type="single_label_classification", sparse_prediction=False).train()
    assert answers(output).shape == answers(token_mask(**batch_at(padded_batches(model_class), 0))).shape


def test_the_meta_device(model_class):
    token_mask = make_model(model_class, problem_type="single_label_classification")
    batch = batch_at(padded_batches(model_class), 0)
    output = copy.deepcopy(token_mask).to("meta")(**{name: values.to("meta") for name, values in batch.items()})
    assert answers(output).is_meta and answers(output).shape == answers(token_mask(**batch)).shape


def test_labels_alone_that_cannot_be_read():
    """The mask is known and the tokens are unpadded, but which places are labelled is not: complete logits."""
    model = make_model(PlainformerForMaskedLM, **NO_DROPOUT).train()
    batch = batch_at(padded_batches(PlainformerForMaskedLM), 0)
    labels = torch.stack([batch.pop("labels"), torch.full((4, 8), -100)])
    mapped = vmap(lambda one: model(**batch, labels=one).loss)(labels)
    assert_same(mapped, torch.stack([model(**batch, labels=one).loss for one in labels]))


@pytest.mark.parametrize("model_class", [PlainformerModel, BertModel])
def test_symbolic_tracing_fails(model_class):
    """docs/ecosystem.md says so; torch's own words depend on what it stumbles over first."""
    model = (
        make_model(PlainformerModel) if model_class is PlainformerModel else BertModel(BertConfig(num_hidden_layers=1))
    )
    with pytest.raises((RuntimeError, TypeError, ValueError, torch.fx.proxy.TraceError)):
        torch.fx.symbolic_trace(model)
