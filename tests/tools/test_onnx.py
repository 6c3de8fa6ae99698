"""A model leaves as ONNX with free batch and length, and onnxruntime computes the same numbers.

An export takes seconds, so each norm placement and position kind goes with another head: the encoder is in all.
"""

from pathlib import Path

import onnxruntime
import pytest
import torch
from helpers.models import (
    HEADS,
    PADDING,
    VARIANTS,
    answers,
    assert_same,
    make_inputs,
    make_model,
    padding_mask,
    short_name,
)
from torch import Tensor, nn

from plainformer import PlainformerModel

PAIRS = list(zip([PlainformerModel, *HEADS], ("sinusoidal-pre", *list(VARIANTS)[:3], *list(VARIANTS)[4:]), strict=True))
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
    ("model_class", "name"), PAIRS, ids=lambda one: one if isinstance(one, str) else short_name(one)
)
def test_the_same_numbers(model_class, name, tmp_path):
    model = make_model(model_class, num_hidden_layers=1, **VARIANTS[name])
    session = export(model, with_mask(model_class, EXAMPLE), tmp_path / "model.onnx")
    assert [one.name for one in session.get_inputs()] == ["input_ids", "token_type_ids", "attention_mask"]
    lengths = [(3, 8), (1, 1), (5, 2), (2, 16)]  # 16: the end of the table of learned positions
    if not name.startswith("learned"):
        lengths.append((1, 600))  # longer than anything that was seen
    for shape in lengths:
        inputs = with_mask(model_class, shape)
        with torch.no_grad():
            assert_same(run(session, inputs), answers(model(**inputs)))

    # Padding changes nothing, whatever it holds; segments do; a row without a token disturbs nobody.
    inputs = with_mask(model_class, (4, 8), ("right", "left", "both", "full"))
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


def test_positions_end_where_the_table_ends(tmp_path):
    """onnxruntime refuses a text beyond the table of learned positions; it does not read something else."""
    model = make_model(PlainformerModel, num_hidden_layers=1)
    session = export(model, with_mask(PlainformerModel, EXAMPLE), tmp_path / "model.onnx")
    with pytest.raises(Exception, match="out of data bounds|indices"):
        run(session, {**make_inputs(PlainformerModel, 1, 17), "attention_mask": torch.ones(1, 17, dtype=torch.long)})
