"""A model leaves as ONNX with free batch and length, and onnxruntime computes the same numbers.

An export takes seconds, so each position kind and norm placement goes with another head: the encoder is in all.
"""

from pathlib import Path

import onnxruntime
import pytest
import torch
from helpers.axes import paired
from helpers.models import HEADS, PADDING, answers, assert_same, make_inputs, make_model, padding_mask
from torch import Tensor, nn

from plainformer.positions_plainformer import POSITION_KINDS

EXAMPLE = (2, 5)  # (B, L) that the export sees


def export(model: nn.Module, inputs: dict[str, Tensor], file: Path) -> onnxruntime.InferenceSession:
    """Batch and length free, the choices of multiple choice not."""
    free = dict.fromkeys((0, inputs["input_ids"].dim() - 1), torch.export.Dim.DYNAMIC)
    program = torch.onnx.export(
        model, (), kwargs=inputs, dynamic_shapes=dict.fromkeys(inputs, free), dynamo=True, verbose=False
    )
    program.save(file)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(file, options)


def run(session: onnxruntime.InferenceSession, inputs: dict[str, Tensor]) -> Tensor:
    outputs = [torch.from_numpy(values) for values in session.run(None, {n: v.numpy() for n, v in inputs.items()})]
    return outputs[0] if len(outputs) == 1 else torch.stack(outputs, dim=-1)  # the start and end of an answer


def with_mask(model_class: type, shape: tuple[int, int], patterns: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Ids, segments, and a mask that repeats the patterns of `PADDING` [R, 8] over rows and places."""
    inputs = make_inputs(model_class, *shape)
    ids = inputs["input_ids"]
    rows = padding_mask(*(patterns or ("right", "left", "holes", "full")))
    rows = rows.repeat(ids.shape[0], -(-shape[1] // 8))[:, : shape[1]]  # more than enough rows
    rows = rows[: ids.flatten(0, -2).shape[0]]
    rows[:, -1] |= rows.sum(dim=1) == 0  # each row has a token
    return {**inputs, "attention_mask": rows.view(ids.shape).contiguous()}


@pytest.mark.parametrize(
    ("head", "kind", "pre_norm"), paired(HEADS, list(POSITION_KINDS), {"post": False, "pre": True})
)
def test_the_same_numbers(head, kind, pre_norm, tmp_path):
    model = make_model(head, num_hidden_layers=1, position_embedding_type=kind, pre_norm=pre_norm)
    session = export(model, with_mask(head, EXAMPLE), tmp_path / "model.onnx")
    assert [one.name for one in session.get_inputs()] == ["input_ids", "token_type_ids", "attention_mask"]
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
