"""A model leaves for OpenVINO with free batch and length and computes the same numbers; in int8 nearly the same."""

import nncf
import openvino
import pytest
import torch
import torch.nn.functional as F
from helpers.axes import paired
from helpers.models import answers, assert_same, make_inputs, make_model, padding_mask
from torch import Tensor, nn

from plainformer import (
    PlainformerForQuestionAnswering,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
    PlainformerModel,
)
from plainformer.positions_plainformer import POSITION_KINDS

NAMES = ("input_ids", "attention_mask", "token_type_ids")
NEED_64_BITS = ("sinusoidal", "rotary")  # their angles are integers, of which OpenVINO keeps 32 bits
CANNOT_CONVERT = ("alibi",)  # torch.exp2; as ONNX it comes in
KINDS = [kind for kind in POSITION_KINDS if kind not in (*NEED_64_BITS, *CANNOT_CONVERT)]
HEADS = [
    PlainformerForSequenceClassification,
    PlainformerForQuestionAnswering,
    PlainformerForTokenClassification,
]


def make_batch(rows: int, length: int) -> dict[str, Tensor]:
    """[B, L] each, with padding of every sort; each row has a token."""
    inputs = make_inputs(PlainformerModel, rows, length)
    mask = padding_mask("right", "left", "holes", "full").repeat(rows, -(-length // 8))[:rows, :length]
    mask[:, -1] |= mask.sum(dim=1) == 0
    return {**inputs, "attention_mask": mask}


def convert(model: nn.Module) -> openvino.Model:
    example = {name: torch.ones(2, 5, dtype=torch.long) for name in NAMES}
    return openvino.convert_model(model, example_input=example, input=[(name, [-1, -1]) for name in NAMES])


def run(graph: openvino.Model, batch: dict[str, Tensor], precision: str = "f32") -> Tensor:
    settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": 1}
    found = openvino.compile_model(graph, "CPU", settings)({name: batch[name].numpy() for name in NAMES})
    outputs = [torch.from_numpy(found[index].copy()) for index in range(len(graph.outputs))]
    return outputs[0] if len(outputs) == 1 else torch.stack(outputs, dim=-1)  # the start and end of an answer


@pytest.mark.parametrize(("kind", "head"), paired(KINDS, HEADS))
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_the_same_numbers(kind, head):
    model = make_model(head, num_hidden_layers=1, position_embedding_type=kind)
    graph = convert(model)
    for shape in ((4, 8), (1, 1), (2, 16)):
        batch = make_batch(*shape)
        with torch.no_grad():
            assert_same(run(graph, batch), answers(model(**batch)))


@pytest.mark.parametrize("kind", CANNOT_CONVERT)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_the_way_through_onnx(kind, tmp_path):
    model, batch = make_model(PlainformerModel, num_hidden_layers=1, position_embedding_type=kind), make_batch(4, 8)
    with pytest.raises(Exception, match="No conversion rule"):
        convert(model)
    axes = dict.fromkeys(NAMES, {0: "batch", 1: "length"})
    example = {name: torch.ones(2, 5, dtype=torch.long) for name in NAMES}
    options = {"kwargs": example, "input_names": list(NAMES), "dynamic_axes": axes, "dynamo": False}
    torch.onnx.export(model, (), tmp_path / "model.onnx", **options)
    with torch.no_grad():
        assert_same(run(openvino.convert_model(tmp_path / "model.onnx"), batch), model(**batch).last_hidden_state)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_bfloat16_and_int8_are_close():
    model = make_model(PlainformerModel)
    graph, batch = convert(model), make_batch(4, 8)
    texts = [{name: ids.numpy() for name, ids in make_batch(1, 8).items()} for _ in range(8)]
    quantized = nncf.quantize(graph, nncf.Dataset(texts), model_type=nncf.ModelType.TRANSFORMER)
    with torch.no_grad():
        expected = model(**batch).last_hidden_state
    token_mask = batch["attention_mask"].bool()
    for found in (run(graph, batch, "bf16"), run(quantized, batch)):
        assert 0.99 < F.cosine_similarity(found, expected, dim=-1)[token_mask].mean()


@pytest.mark.parametrize("kind", NEED_64_BITS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_kinds_that_come_out_wrong(kind):
    """docs/ecosystem.md warns of them."""
    model = make_model(PlainformerModel, num_hidden_layers=1, position_embedding_type=kind)
    batch = make_batch(2, 8)
    with torch.no_grad():
        expected = model(**batch).last_hidden_state
    assert (run(convert(model), batch) - expected).abs().max() > 0.1
