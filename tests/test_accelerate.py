"""accelerate: layers on several devices, in memory or on disk; two processes, sharded or not, train as one."""

import os
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from accelerate import Accelerator, cpu_offload, dispatch_model
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from helpers import (
    HEADS,
    answers,
    as_batch,
    assert_same,
    make_inputs,
    make_labels,
    make_model,
    padding_mask,
    short_name,
    tiny_config,
)
from test_distributed import make_case
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor

from plainformer import PlainformerForMaskedLM, modeling_plainformer
from plainformer.padding_plainformer import make_layout

CASES = [(variant, head) for variant in ("learned-post", "sinusoidal-pre") for head in HEADS]


def make_batch(model_class: type) -> dict[str, Tensor]:
    """Four rows of eight places, padded in different ways, with labels."""
    inputs = make_inputs(model_class)
    choices = inputs["input_ids"].dim() - 1  # two rows for each question of multiple choice
    mask = padding_mask(*["right", "left", "both", "full"] * choices)
    batch = {**inputs, **as_batch(model_class, {"attention_mask": mask})}
    return {**batch, **make_labels(model_class, inputs)}


# A model that is spread out.


@pytest.mark.parametrize("unpad_inputs", [True, False], ids=["unpadded", "padded"])
def test_device_map_auto(model_class, unpad_inputs, tmp_path):
    """On a machine without another device everything is on the CPU; on disk what its memory may not hold."""
    make_model(model_class, unpad_inputs=unpad_inputs).save_pretrained(tmp_path / "model")
    batch = make_batch(model_class)
    expected = answers(model_class.from_pretrained(tmp_path / "model")(**batch))
    plain = model_class.from_pretrained(tmp_path / "model", device_map="auto")
    assert set(plain.hf_device_map.values()) == {"cpu"}
    assert torch.equal(answers(plain(**batch)), expected)
    spread = model_class.from_pretrained(
        tmp_path / "model",
        device_map="auto",
        max_memory={"cpu": "40KB"},
        offload_folder=os.fspath(tmp_path / "offloaded"),
    )
    assert set(spread.hf_device_map.values()) == {"cpu", "disk"}
    assert torch.equal(answers(spread(**batch)), expected)


@pytest.mark.parametrize("unpad_inputs", [True, False], ids=["unpadded", "padded"])
def test_weights_wait_in_memory_or_on_disk(model_class, unpad_inputs, tmp_path):
    """Each is brought to the device for its own part of the work only."""
    model = make_model(model_class, unpad_inputs=unpad_inputs)
    batch = make_batch(model_class)
    with torch.no_grad():
        expected = answers(model(**batch))
        offloaded = cpu_offload(model, execution_device="cpu")
        assert all(parameter.is_meta for parameter in offloaded.parameters())
        assert torch.equal(answers(offloaded(**batch)), expected)
        on_disk = dispatch_model(
            make_model(model_class, unpad_inputs=unpad_inputs),
            {"": "disk"},
            main_device="cpu",
            offload_dir=os.fspath(tmp_path / "offloaded"),
        )
        assert all(parameter.is_meta for parameter in on_disk.parameters())
        assert torch.equal(answers(on_disk(**batch)), expected)


def place(module: nn.Module, device: str) -> None:
    """Put one module's own weights on a device, and accelerate's hook before its forward."""
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            part._parameters[name] = nn.Parameter(parameter.detach().to(device))
    add_hook_to_module(module, AlignDevicesHook(execution_device=device))


@pytest.mark.parametrize("unpad_inputs", [True, False], ids=["unpadded", "padded"])
def test_layers_on_several_devices(head_class, variant, unpad_inputs, monkeypatch):
    """As `device_map` spreads them over GPUs: whatever follows from the mask goes where it is needed.

    Tensors that only know their shape and their device stand for those on GPUs, and refuse to be mixed. They have no
    values to be looked at, so the layout of real tokens is made beforehand.
    """
    batch = make_batch(head_class)
    mask = batch["attention_mask"].flatten(0, -2)
    real = None if unpad_inputs else mask.bool()
    layout = make_layout(tuple(mask.shape), mask.bool(), None, None, False, unpad=unpad_inputs)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with FakeTensorMode() as mode:
        model = head_class(tiny_config(classifier_pooling="mean", **variant)).eval()
        place(model.base_model.embeddings, "cuda:1")
        for layer, device in zip(model.base_model.layers, ("cuda:1", "cuda:2"), strict=True):
            place(layer, device)
        place(model.base_model.final_norm, "cuda:3")
        for name, part in model.named_children():
            if name != model.base_model_prefix:
                place(part, "cuda:4")
        add_hook_to_module(model, AlignDevicesHook(execution_device="cuda:0", io_same_device=True))
        if real is None:
            there = {name: mode.from_tensor(getattr(layout, name)).to("cuda:0") for name in ("real", "places")}
            layout = type(layout)(packed=False, runs=layout.runs, **there)
            monkeypatch.setattr(modeling_plainformer, "make_layout", lambda *args: layout)
        output = model(**{name: mode.from_tensor(value).to("cuda:0") for name, value in batch.items()})
        assert answers(output).device == output.loss.device == torch.device("cuda:0")


# Two processes.


def set_up_accelerator(kind: str, rank: int, folder: str) -> Accelerator:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", ACCELERATE_USE_CPU="true")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2 and accelerator.distributed_type == DistributedType.MULTI_CPU
    if kind == "fsdp2":  # accelerate chooses it where there are GPUs, and is told to here
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
        )
        state = AcceleratorState()
        state.distributed_type, state.fsdp_plugin = DistributedType.FSDP, plugin
    return accelerator


def work(rank: int, kind: str, folder: str) -> None:
    """An optimizer step of every head on this process's half of the batch; what was lost and what was learnt."""
    torch.set_num_threads(1)
    accelerator = set_up_accelerator(kind, rank, folder)
    results = {}
    for variant, head in CASES:
        model, halves = make_case(variant, head)
        model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        loss = model(**halves[rank]).loss
        accelerator.backward(loss)
        optimizer.step()
        learnt = {name.removeprefix("module."): value.detach() for name, value in model.named_parameters()}
        assert all(isinstance(value, DTensor) == (kind == "fsdp2") for value in learnt.values())
        learnt = {n: value.full_tensor() if isinstance(value, DTensor) else value for n, value in learnt.items()}
        results[variant, short_name(head)] = (float(loss.detach()), learnt)
    torch.save(results, f"{folder}/results-{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_equal_one(kind, tmp_path: Path):
    mp.spawn(work, args=(kind, str(tmp_path)), nprocs=2)
    results = [torch.load(tmp_path / f"results-{rank}.pt", weights_only=True) for rank in (0, 1)]
    for variant, head in CASES:
        model, halves = make_case(variant, head)
        losses = [model(**half).loss for half in halves]
        sum(loss / 2 for loss in losses).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        for rank, result in enumerate(results):
            loss, learnt = result[variant, short_name(head)]
            assert_same(loss, float(losses[rank].detach()))
            assert_same(learnt, {name: value.detach() for name, value in model.named_parameters()})


def test_untied_decoder_on_disk(tmp_path):
    """The file of a tied model holds one copy: untied and spread out, the decoder starts from it all the same."""
    make_model(PlainformerForMaskedLM).save_pretrained(tmp_path / "model")
    batch = make_batch(PlainformerForMaskedLM)
    expected = answers(PlainformerForMaskedLM.from_pretrained(tmp_path / "model")(**batch))
    spread = PlainformerForMaskedLM.from_pretrained(
        tmp_path / "model",
        tie_word_embeddings=False,
        device_map={"plainformer": "cpu", "lm_head": "disk"},
        offload_folder=os.fspath(tmp_path / "offloaded"),
    )
    assert torch.equal(answers(spread(**batch)), expected)
