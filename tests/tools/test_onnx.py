"""A model leaves as ONNX with free batch and length, and onnxruntime computes the same numbers.

An export takes a second, so each position kind and norm placement goes with another head: the encoder is in all.
The older exporter (`dynamo=False`) is quicker, and other tools use it: it gets the same checks.
"""

from pathlib import Path

import onnxruntime
import pytest
import torch
from helpers.axes import paired
from helpers.models import HEADS, KIND_AND_NORM, PADDING, answers, assert_same, make_inputs, make_model, padding_mask
from torch import Tensor, nn

from plainformer import (
    PlainformerForMaskedLM,
    PlainformerForMultipleChoice,
    PlainformerForQuestionAnswering,
    PlainformerForTokenClassification,
)

EXAMPLE = (2, 5)  # (B, L) that the export sees


def export_dynamo(model: nn.Module, inputs: dict[str, Tensor], free: tuple[int, ...], file: Path) -> None:
    """The newer exporter, which reads Python's bytecode."""
    shapes = dict.fromkeys(inputs, dict.fromkeys(free, torch.export.Dim.DYNAMIC))
    torch.onnx.export(model, (), kwargs=inputs, dynamic_shapes=shapes, dynamo=True, verbose=False).save(file)


def export_traced(model: nn.Module, inputs: dict[str, Tensor], free: tuple[int, ...], file: Path) -> None:
    """The older exporter, which records one run. It knows fewer operators, and some of them not for booleans."""
    axes = {name: {axis: f"axis_{axis}" for axis in free} for name in inputs}
    torch.onnx.export(model, (), file, kwargs=inputs, input_names=list(inputs), dynamic_axes=axes, dynamo=False)


EXPORTERS = {"dynamo": export_dynamo, "traced": export_traced}


def export(exporter: str, model: nn.Module, inputs: dict[str, Tensor], file: Path) -> onnxruntime.InferenceSession:
    """Batch and length free, the choices of multiple choice not."""
    EXPORTERS[exporter](model, inputs, (0, inputs["input_ids"].dim() - 1), file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options)


def run(session: onnxruntime.InferenceSession, inputs: dict[str, Tensor]) -> Tensor:
    outputs = [torch.from_numpy(values) for values in session.run(None, {n: v.numpy() for n, v in inputs.items()})]
    return outputs[0] if len(outputs) == 1 else torch.stack(outputs, dim=-1)  # the start and end of an answer


def with_mask(model_class: type, shape: tuple[int, int], patterns: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Ids, a mask that repeats the patterns of `PADDING` [R, 8] over rows and places, and segments.

    In the order of `forward`, since the older exporter names inputs by it.
    """
    inputs = make_inputs(model_class, *shape)
    ids = inputs["input_ids"]
    rows = padding_mask(*(patterns or ("right", "left", "holes", "full")))
    rows = rows.repeat(ids.shape[0], -(-shape[1] // 8))[:, : shape[1]]  # more than enough rows
    rows = rows[: ids.flatten(0, -2).shape[0]]
    rows[:, -1] |= rows.sum(dim=1) == 0  # each row has a token
    mask = rows.view(ids.shape).contiguous()
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": inputs["token_type_ids"]}


# The newer exporter needs seconds: with the heads that have more than a linear map.
HARD = [PlainformerForMaskedLM, PlainformerForQuestionAnswering, PlainformerForMultipleChoice]
CASES = paired(["traced"], HEADS, KIND_AND_NORM) + paired(["dynamo"], HARD, KIND_AND_NORM)


@pytest.mark.parametrize(("exporter", "head", "variant"), CASES)
@pytest.mark.filterwarnings(
    "ignore:You are using the legacy TorchScript-based ONNX export", "ignore::torch.jit.TracerWarning"
)
def test_the_same_numbers(exporter, head, variant, tmp_path):
    model = make_model(head, num_hidden_layers=1, **variant)
    session = export(exporter, model, with_mask(head, EXAMPLE), tmp_path / "model.onnx")
    assert [one.name for one in session.get_inputs()] == ["input_ids", "attention_mask", "token_type_ids"]
    limit = model.config.position_limit
    lengths = [(3, 8), (1, 1), (5, 2), (2, limit or 600)]  # 600: longer than anything that was seen
    for shape in lengths:
        inputs = with_mask(head, shape)
        with torch.no_grad():
            assert_same(run(session, inputs), answers(model(**inputs)))

    # Padding changes nothing, whatever it holds; segments do; a row without a token disturbs no other.
    inputs = with_mask(head, (4, 8), ("right", "left", "both", "full"))
    expected = run(session, inputs)
    noise = torch.randint(1, 50, inputs["input_ids"].shape)
    other = {**inputs, "input_ids": torch.where(inputs["attention_mask"] == 1, inputs["input_ids"], noise)}
    assert_same(run(session, other), expected, 0)
    other = {**inputs, "token_type_ids": 1 - inputs["token_type_ids"]}
    assert not torch.allclose(run(session, other), expected, atol=1e-3)
    other = {**inputs, "attention_mask": inputs["attention_mask"].clone()}
    other["attention_mask"][0] = torch.tensor(PADDING["empty"])
    found = run(session, other)
    assert found.isfinite().all()
    assert_same(found[1:], expected[1:])
    if limit is not None:  # onnxruntime refuses a text beyond the table of positions; it does not read something else
        with pytest.raises(Exception, match="out of data bounds|indices"):
            run(session, with_mask(head, (1, limit + 1), ("full",)))


def pair_mask(shape: tuple[int, int]) -> Tensor:
    """Each token may attend to itself and to those before it, bool [B, 1, L, L]."""
    B, L = shape
    return torch.ones(B, 1, L, L, dtype=torch.bool).tril()


MASKS = {
    "none": lambda shape: None,
    "bool": lambda shape: with_mask(PlainformerForTokenClassification, shape)["attention_mask"].bool(),
    "pairs": pair_mask,
    "added": lambda shape: torch.zeros(shape[0], 1, shape[1], shape[1]).masked_fill(~pair_mask(shape), -1e9),
    "cube": lambda shape: pair_mask(shape)[:, 0],
}


@pytest.mark.parametrize(("variant", "mask"), paired(KIND_AND_NORM, MASKS))
@pytest.mark.filterwarnings("ignore:You are using the legacy", "ignore::torch.jit.TracerWarning")
def test_the_older_exporter_takes_every_mask(variant, mask, tmp_path):
    """A mask [B, L, L] or larger has more free axes than the others, so it is exported by itself."""
    model = make_model(PlainformerForTokenClassification, num_hidden_layers=1, **variant)

    def batch(shape: tuple[int, int]) -> dict[str, Tensor]:
        inputs = {"input_ids": torch.randint(1, 50, shape), "attention_mask": mask(shape)}
        return {name: values for name, values in inputs.items() if values is not None}

    example = batch(EXAMPLE)
    sizes = {EXAMPLE[0]: "batch", EXAMPLE[1]: "length"}
    axes = {name: {axis: sizes[n] for axis, n in enumerate(x.shape) if n in sizes} for name, x in example.items()}
    file, options = tmp_path / "model.onnx", {"input_names": list(example), "dynamic_axes": axes, "dynamo": False}
    torch.onnx.export(model, (), file, kwargs=example, **options)
    session = onnxruntime.InferenceSession(file)
    for shape in ((3, 8), (1, 1), (5, 2)):
        inputs = batch(shape)
        with torch.no_grad():
            assert_same(run(session, inputs), answers(model(**inputs)))
