"""Reads of the device: a GPU makes the program wait at each, so a forward pass has one. Counted here on a CPU."""

from collections import Counter

import pytest
import torch
from helpers.models import MODELS, as_batch, make_inputs, make_labels, make_model, padding_mask, short_name
from torch.func import vmap
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from plainformer import PlainformerForMaskedLM, PlainformerForMultipleChoice, PlainformerForSequenceClassification
from plainformer.values_plainformer import Questions, find_indices, read_values

aten = torch.ops.aten
READING_OPERATORS = {
    aten._local_scalar_dense.default: "item",
    aten.nonzero.default: "nonzero",
    aten.masked_select.default: "masked_select",
    aten._unique2.default: "unique",
    aten.unique_consecutive.default: "unique",
    aten.unique_dim.default: "unique",
    aten.equal.default: "equal",
}
READING_METHODS = {torch.Tensor.tolist: "tolist", torch.Tensor.numpy: "numpy", torch.Tensor.cpu: "cpu"}


class ReadCounter:
    """Counts by kind what would make a program wait for its device."""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        self.modes = (_Operators(self.reads), _Methods(self.reads))

    def __enter__(self) -> Counter[str]:
        for mode in self.modes:
            mode.__enter__()
        return self.reads

    def __exit__(self, *error) -> None:
        for mode in reversed(self.modes):
            mode.__exit__(*error)


class _Operators(TorchDispatchMode):
    def __init__(self, reads: Counter[str]) -> None:
        super().__init__()
        self.reads = reads

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        kind = READING_OPERATORS.get(function)
        if function in (aten.index.Tensor, aten.index_put.default, aten.index_put_.default):
            is_boolean = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
            kind = "boolean index" if is_boolean else None
        if function is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
            kind = "repeat_interleave"
        if kind is not None:
            self.reads[kind] += 1
        return function(*args, **kwargs)


class _Methods(TorchFunctionMode):
    def __init__(self, reads: Counter[str]) -> None:
        super().__init__()
        self.reads = reads

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in READING_METHODS:
            self.reads[READING_METHODS[function]] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("kind", "read"),
    [
        ("item", lambda values: values[0].item()),
        ("item", lambda values: bool(values.any())),
        ("item", lambda values: int(values.max())),
        ("tolist", lambda values: values.tolist()),
        ("cpu", lambda values: values.cpu()),
        ("numpy", lambda values: values.numpy()),
        ("nonzero", lambda values: values.nonzero()),
        ("boolean index", lambda values: values[values > 1]),
        ("boolean index", lambda values: values.__setitem__(values > 1, 0)),
        ("masked_select", lambda values: values.masked_select(values > 1)),
        ("unique", lambda values: values.unique()),
        ("unique", lambda values: values.unique_consecutive()),
        ("equal", lambda values: torch.equal(values, values)),
        ("repeat_interleave", lambda values: values.repeat_interleave(values)),
    ],
)
def test_the_counter_sees_each_kind_of_read(kind, read):
    values = torch.tensor([1, 0, 2, 2])
    with ReadCounter() as reads:
        read(values)
    assert reads[kind] >= 1


def test_the_counter_sees_nothing_else():
    values = torch.tensor([1, 2, 2])
    with ReadCounter() as reads:
        values.repeat_interleave(values, output_size=5).cumsum(0)[values].where(values > 1, 0).sum()
    assert not reads


@pytest.mark.parametrize("training", [False, True], ids=["eval", "training"])
@pytest.mark.parametrize("with_labels", [False, True], ids=["no-labels", "labels"])
@pytest.mark.parametrize("model_class", MODELS, ids=short_name)
def test_one_read_per_forward_pass(model_class, training, with_labels):
    """Of a padded batch with segments: all checks, the layout and the labels share it."""
    model = make_model(model_class, problem_type="single_label_classification").train(training)
    inputs = make_inputs(model_class, 2 if model_class is PlainformerForMultipleChoice else 4)
    inputs |= as_batch(model_class, {"attention_mask": padding_mask("right", "left", "full", "empty")})
    inputs |= make_labels(model_class, inputs) if with_labels else {}
    with ReadCounter() as reads:
        model(**inputs)
    # The copy that the one read brings is looked at twice: whether it can be read, and what it holds.
    assert reads == {"item": 1, "tolist": 1}


@pytest.mark.parametrize("problem_type", ["regression", "multi_label_classification"])
def test_labels_that_are_values_need_no_further_read(problem_type):
    model = make_model(PlainformerForSequenceClassification, problem_type=problem_type)
    mask, labels = torch.zeros(4, 8, 8), torch.ones(4, 3)
    with ReadCounter() as reads:
        model(torch.randint(1, 50, (4, 8)), mask, labels=labels, num_items_in_batch=torch.tensor([4]))
    assert reads == {"item": 1, "tolist": 1}


@pytest.mark.parametrize(
    "packing",
    [
        {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2]])},
        {"seq_idx": torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]])},
        {name: torch.tensor([0, 3, 5, 8], dtype=torch.int32) for name in ("cu_seq_lens_q", "cu_seq_lens_k")},
    ],
    ids=["positions", "seq_idx", "boundaries"],
)
def test_packed_rows_need_no_further_read(packing):
    model = make_model(PlainformerForMaskedLM)
    with ReadCounter() as reads:
        model(torch.randint(1, 50, (1, 8)), **packing)
    assert reads == {"item": 1, "tolist": 1}


def test_questions_are_answered_in_order_and_checked():
    questions, seen = Questions(), []
    first = questions.ask(lambda: torch.tensor([3, 1]), seen.append)
    second = questions.ask(lambda: torch.tensor(True))
    assert first.answer is None
    questions.read()
    assert first.answer == [3, 1] and second.answer == [1] and seen == [[3, 1]]


def test_a_question_that_cannot_be_answered_leaves_the_others():
    seen = []

    def ask(mapped: torch.Tensor) -> torch.Tensor:
        questions = Questions()
        known = questions.ask(lambda: torch.tensor(4), seen.append)
        unknown = questions.ask(lambda: mapped, seen.append)
        doubtful = questions.ask(lambda: mapped, seen.append, otherwise=[9])
        questions.read()
        assert (known.answer, unknown.answer, doubtful.answer) == ([4], None, None)
        return mapped

    vmap(ask)(torch.zeros(2, 3))
    assert seen == [[4], [9]]


@pytest.mark.parametrize("shape", [(3,), (0,)])
def test_read_values(shape):
    assert read_values(torch.zeros(shape, dtype=torch.long)) == [0] * shape[0]
    assert read_values(torch.zeros(shape, dtype=torch.long, device="meta")) is None


def test_find_indices_is_nonzero():
    mask = torch.tensor([False, True, True, False, True])
    for one in (mask, ~mask, mask & ~mask, mask | ~mask):
        assert torch.equal(find_indices(one, int(one.sum())), one.nonzero()[:, 0])
