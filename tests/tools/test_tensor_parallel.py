"""Tensor parallelism (`tp_plan="auto"`): two processes, each with half of the heads and of the inner width, are one."""

import os
from pathlib import Path

import pytest
import torch
import transformers
from helpers.models import (
    KERNELS,
    MODELS,
    NO_DROPOUT,
    VARIANTS,
    answers,
    assert_same,
    gradients,
    is_unpadded,
    layout_of,
    make_inputs,
    make_model,
    short_name,
    tiny_config,
)
from helpers.processes import meet, spawn
from helpers.training import make_batch
from torch import Tensor
from torch.distributed.tensor import DTensor

from plainformer import PlainformerConfig, PlainformerForMaskedLM, PlainformerModel, PlainformerPreTrainedModel
from plainformer.positions_plainformer import POSITION_KINDS

BIASES = [name for name, kind in POSITION_KINDS.items() if kind.bias is not None]
# transformers 4 takes the digit of `fc1` for a layer's number, finds no rule, and leaves the feed-forward whole. And at
# the first forward it takes the bias out of the layers it splits by rows: with 4 it is for inference.
TRANSFORMERS_4 = transformers.__version__.startswith("4.")
INNER = 40 if TRANSFORMERS_4 else 20
# Every class, and for the encoder the other positions, norm placement, padding route and kernels.
CASES = {short_name(model_class): (model_class, {}) for model_class in MODELS}
CASES |= {name: (PlainformerModel, VARIANTS[name]) for name in ("sinusoidal-pre", "rotary-post", "none-pre")}
CASES |= {kernel: (PlainformerModel, {"attn_implementation": kernel, "unpad_inputs": False}) for kernel in KERNELS}


def make_case(name: str) -> tuple[PlainformerPreTrainedModel, dict[str, Tensor]]:
    """A model with four heads, and a batch of rows padded in different ways, with labels where there is a loss."""
    torch.manual_seed(0)
    model_class, overrides = CASES[name]
    config = tiny_config(num_attention_heads=4, intermediate_size=40, **NO_DROPOUT, **overrides)
    return make_model(model_class, config), make_batch(model_class)


def train(model: PlainformerPreTrainedModel, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """The outputs in evaluation, then the loss in training (of the base model, a mean), and the gradients."""
    with torch.no_grad():
        outputs = answers(model.eval()(**batch))
    output = model.train()(**batch)
    loss = output["loss"] if "loss" in output else output.last_hidden_state.square().mean()
    loss.backward()
    return outputs, loss.detach(), {} if TRANSFORMERS_4 else gradients(model)


def work(rank: int, folder: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    meet(rank, folder)
    results = {}
    for name, (model_class, _) in CASES.items():
        _, batch = make_case(name)
        model = model_class.from_pretrained(f"{folder}/{name}", tp_plan="auto")
        layer = model.base_model.layers[0]
        for linear, shape in ((layer.attention.q_proj, (16, 32)), (layer.attention.o_proj, (32, 16))):
            assert linear.weight.to_local().shape == shape, name
        for linear, shape in ((layer.mlp.fc1, (INNER, 32)), (layer.mlp.fc2, (32, INNER))):
            weight = linear.weight.to_local() if isinstance(linear.weight, DTensor) else linear.weight
            assert weight.shape == shape, name
        if model_class is PlainformerForMaskedLM:
            model.save_pretrained(f"{folder}/saved")
        with torch.no_grad():
            assert is_unpadded(layout_of(model, **batch)) == model.config.unpad_inputs, name
        outputs, loss, parts = train(model, batch)
        whole = {key: value.full_tensor() if isinstance(value, DTensor) else value for key, value in parts.items()}
        results[name] = (outputs, loss, whole)
    check_heads(folder)
    torch.save(results, f"{folder}/results-{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def check_heads(folder: str) -> None:
    """Each process has half of the heads, and what speaks of all of them is refused by name."""
    batch = make_inputs(PlainformerModel)
    model = PlainformerModel.from_pretrained(f"{folder}/Model", tp_plan="auto")
    with torch.no_grad():
        assert model(**batch, output_attentions=True).attentions[0].shape == (4, 2, 8, 8)
        with pytest.raises(ValueError, match=r"tells 4 heads apart.*computes 2 of them.*\[B, 1, L, L\]"):
            model(**batch, attention_mask=torch.ones(4, 4, 8, 8, dtype=torch.bool))
    for kind in BIASES:
        with pytest.raises(ValueError, match=f"position_embedding_type='{kind}' adds a bias of each head"):
            PlainformerModel.from_pretrained(f"{folder}/{kind}", tp_plan="auto")
    with pytest.raises(ValueError, match="num_attention_heads=3 cannot be shared out equally among 2 processes"):
        PlainformerModel.from_pretrained(f"{folder}/three heads", tp_plan="auto")


def test_two_processes_equal_one(tmp_path: Path):
    for name in CASES:
        make_case(name)[0].save_pretrained(tmp_path / name)
    three_heads = tiny_config(num_attention_heads=3, hidden_size=24, intermediate_size=40)
    make_model(PlainformerModel, three_heads).save_pretrained(tmp_path / "three heads")
    for kind in BIASES:
        make_model(PlainformerModel, position_embedding_type=kind).save_pretrained(tmp_path / kind)
    spawn(work, str(tmp_path))
    for rank in (0, 1):
        results = torch.load(tmp_path / f"results-{rank}.pt", weights_only=True)
        for name in CASES:
            assert_same(results[name], train(*make_case(name)))
    whole, _ = make_case("MaskedLM")  # what two processes save is the whole model
    assert_same(PlainformerForMaskedLM.from_pretrained(tmp_path / "saved").state_dict(), whole.state_dict())


def test_the_plan_names_every_linear_layer_of_the_encoder(model_class):
    model = make_model(model_class)
    assert model.supports_tp_plan
    linear = {
        name for name, module in PlainformerModel(tiny_config()).named_modules() if hasattr(module, "in_features")
    }
    planned = {rule.replace("*", str(layer)) for rule in PlainformerConfig.base_model_tp_plan for layer in (0, 1)}
    assert planned == linear
