"""accelerate: layers on several devices, in memory or on disk; two processes, sharded or not, train as one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator, cpu_offload, disk_offload
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from helpers.models import (
    HEADS,
    answers,
    as_batch,
    assert_same,
    make_inputs,
    make_labels,
    make_model,
    padding_mask,
    short_name,
)
from helpers.processes import meet, spawn
from test_distributed import make_case
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from plainformer import PlainformerForMaskedLM

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
    assert {parameter.device.type for parameter in plain.parameters()} == {"cpu"}
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
        on_disk = disk_offload(
            make_model(model_class, unpad_inputs=unpad_inputs), tmp_path / "offloaded", execution_device="cpu"
        )
        assert all(parameter.is_meta for parameter in on_disk.parameters())
        assert torch.equal(answers(on_disk(**batch)), expected)


class PretendedDevices(TorchFunctionMode):
    """Tensors on the CPU that say they are on GPUs, and refuse to be mixed as those would."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function == Tensor.device.__get__:
            return where(args[0])
        if function is Tensor.to:
            return self.move(*args, **kwargs)
        places = {where(value) for value in tensors_in((args, kwargs)) if value.dim()}
        if len(places) > 1:
            raise RuntimeError(f"{function.__name__} was given tensors on {places}")
        device = kwargs.get("device")
        if device is not None:
            places, kwargs["device"] = {torch.device(device)}, "cpu"
        result = function(*args, **kwargs)
        for value in tensors_in(result):
            value.place = next(iter(places), where(value))
        return result

    @staticmethod
    def move(value: Tensor, *args, device=None, **kwargs) -> Tensor:
        """`Tensor.to` a device, a type, both, or where another tensor is."""
        place = where(value)
        for argument in (*args, device):
            if isinstance(argument, Tensor):
                place, kwargs["dtype"] = where(argument), argument.dtype
            elif isinstance(argument, torch.dtype):
                kwargs["dtype"] = argument
            elif isinstance(argument, (torch.device, str, int)) and not isinstance(argument, bool):
                place = torch.device(argument)
        moved = value.to(**kwargs).view_as(value)  # never the tensor itself, which stays where it is
        moved.place = place
        return moved


def where(value: Tensor) -> torch.device:
    return getattr(value, "place", torch.device("cpu"))


def tensors_in(values) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (tuple, list, dict)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from tensors_in(value)


def place(module: nn.Module, device: str, **options) -> None:
    """Put a module on a pretended device, with the hook of accelerate that sends there what its forward is given."""
    for parameter in module.parameters():
        parameter.place = torch.device(device)
    hook = AlignDevicesHook(**options)
    add_hook_to_module(module, hook)
    hook.execution_device = torch.device(device)  # now, so that it does not really move the weights


@pytest.mark.parametrize("asked", ["nothing", "hidden_states", "attentions"])
@pytest.mark.parametrize("unpad_inputs", [True, False], ids=["unpadded", "padded"])
def test_layers_on_several_devices(head_class, variant, unpad_inputs, asked):
    """As `device_map` spreads them over GPUs: whatever follows from the mask goes where it is needed."""
    overrides = {"unpad_inputs": unpad_inputs, "tie_word_embeddings": False}
    overrides["classifier_pooling"] = "mean" if variant["pre_norm"] else "cls"
    model = make_model(head_class, problem_type="single_label_classification", **overrides, **variant)
    batch = make_batch(head_class)
    options = {} if asked == "nothing" else {f"output_{asked}": True}
    expected = model(**batch, **options)
    encoder, embeddings = model.base_model, model.base_model.embeddings
    parts = [embeddings.position_embeddings, embeddings.word_embeddings, embeddings.token_type_embeddings]
    parts += [embeddings.norm, *encoder.layers, encoder.final_norm]
    parts += [part for part in model.children() if part is not encoder]
    for number, part in enumerate(parts, start=1):
        place(part, f"cuda:{number}")
    hook = AlignDevicesHook(execution_device=torch.device("cuda:0"), io_same_device=True)
    with PretendedDevices():
        add_hook_to_module(model, hook)
        output = model(**{name: value.to("cuda:0") for name, value in batch.items()}, **options)
        assert answers(output).device == output.loss.device == torch.device("cuda:0")
        output.loss.backward()
    assert_same(output.to_tuple(), expected.to_tuple())


def test_untying_and_offloading_at_once_is_refused(tmp_path):
    """The file of a tied model holds one copy, from which an untied decoder starts; on disk it cannot be copied."""
    make_model(PlainformerForMaskedLM).save_pretrained(tmp_path / "model")
    device_map = {"plainformer": "cpu", "lm_head": "disk"}
    options = {"device_map": device_map, "offload_folder": os.fspath(tmp_path / "offloaded")}
    with pytest.raises(ValueError, match="tie_word_embeddings=False.*without device_map"):
        PlainformerForMaskedLM.from_pretrained(tmp_path / "model", tie_word_embeddings=False, **options)

    untied = PlainformerForMaskedLM.from_pretrained(tmp_path / "model", tie_word_embeddings=False)
    untied.save_pretrained(tmp_path / "untied")
    spread = PlainformerForMaskedLM.from_pretrained(tmp_path / "untied", **options)
    batch = make_batch(PlainformerForMaskedLM)
    assert torch.equal(answers(spread(**batch)), answers(untied(**batch)))


# Two processes.


def make_accelerator(kind: str) -> Accelerator:
    """A new one for each model, as each script has."""
    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2 and accelerator.distributed_type == DistributedType.MULTI_CPU
    if kind == "fsdp2":  # accelerate chooses it where there are GPUs, and is told to here
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
        )
    return accelerator


def work(rank: int, kind: str, folder: str) -> None:
    """An optimizer step of every head on this process's half of the batch; what was lost and what was learnt."""
    torch.set_num_threads(1)
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ.update(ranks, ACCELERATE_USE_CPU="true", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    meet(rank, folder)
    results = {}
    for variant, head in CASES:
        model, halves = make_case(variant, head)
        accelerator = make_accelerator(kind)
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
    spawn(work, kind, str(tmp_path))
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
