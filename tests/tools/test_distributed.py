"""Two processes train as one: with DistributedDataParallel, with accelerate's DDP and with its FSDP2."""

import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from helpers.models import HEADS, KIND_AND_NORM, assert_same, gradients, is_unpadded, kept_layouts, short_name
from helpers.processes import meet, spawn
from helpers.training import make_halves
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

# Each head with another position kind and norm placement.
CASES = {
    f"{short_name(head)}-{name}": (head, KIND_AND_NORM[name])
    for head, name in zip(HEADS * len(KIND_AND_NORM), KIND_AND_NORM, strict=False)
}


def check_ddp(rank: int, case: str) -> dict[str, torch.Tensor]:
    """Gradients after two steps: a parameter without a gradient in the first would be an error in the second."""
    head, variant = CASES[case]
    model, halves = make_halves(head, **variant)
    parallel = DistributedDataParallel(model, find_unused_parameters=False)
    for _ in range(2):
        model.zero_grad()
        parallel(**halves[rank]).loss.backward()
    return gradients(model)


def make_accelerator(kind: str) -> Accelerator:
    """A new one for each model, as each script has."""
    AcceleratorState._reset_state()
    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2 and accelerator.distributed_type == DistributedType.MULTI_CPU
    if kind == "fsdp2":  # accelerate chooses it where there are GPUs, and is asked to here
        accelerator.state.distributed_type = DistributedType.FSDP
        accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
        )
    return accelerator


def take_step(rank: int, kind: str, case: str) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of this process's half of the batch, and the parameters after a step of the optimizer."""
    head, variant = CASES[case]
    model, halves = make_halves(head, **variant)
    accelerator, encoder = make_accelerator(kind), model.base_model
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with kept_layouts(encoder) as layouts:
        loss = model(**halves[rank]).loss
    assert is_unpadded(layouts[0]) == (rank == 0), kind  # the other half has no padding
    accelerator.backward(loss)
    optimizer.step()
    parameters = {name.removeprefix("module."): value.detach() for name, value in model.named_parameters()}
    assert all(isinstance(value, DTensor) == (kind == "fsdp2") for value in parameters.values())
    whole = {n: value.full_tensor() if isinstance(value, DTensor) else value for n, value in parameters.items()}
    return float(loss.detach()), whole


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ.update(ranks, ACCELERATE_USE_CPU="true", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    meet(rank, folder)
    results = {case: {"gradients": check_ddp(rank, case)} for case in CASES}
    for case in CASES:
        for kind in ("ddp", "fsdp2"):
            results[case][kind] = take_step(rank, kind, case)
    torch.save(results, f"{folder}/results-{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_equal_one(tmp_path: Path):
    spawn(work, str(tmp_path))
    results = [torch.load(tmp_path / f"results-{rank}.pt", weights_only=True) for rank in (0, 1)]
    for case, (head, variant) in CASES.items():
        model, halves = make_halves(head, **variant)
        losses = [model(**half).loss for half in halves]
        sum(loss / 2 for loss in losses).backward()
        expected = gradients(model)
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        for rank, result in enumerate(results):
            assert_same(result[case]["gradients"], expected)
            for kind in ("ddp", "fsdp2"):
                loss, parameters = result[case][kind]
                assert_same(loss, float(losses[rank].detach()))
                assert_same(parameters, {name: value.detach() for name, value in model.named_parameters()})
