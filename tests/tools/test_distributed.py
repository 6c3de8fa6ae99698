"""Two processes train as one: under DistributedDataParallel every parameter gets its gradient in each of them."""

import torch
import torch.distributed as dist
from helpers.models import HEADS, VARIANTS, assert_same, gradients, make_inputs, make_labels, make_model, short_name
from helpers.processes import meet, spawn
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

CASES = [(variant, head) for variant in VARIANTS for head in HEADS]
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def make_case(variant: str, head: type) -> tuple[torch.nn.Module, list[dict[str, Tensor]]]:
    """A model in training mode, and a batch of four rows in two halves, of which the first is padded."""
    torch.manual_seed(0)
    model = make_model(head, problem_type="single_label_classification", **NO_DROPOUT, **VARIANTS[variant])
    inputs = make_inputs(head)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][0, ..., 5:] = 0
    batch = {**inputs, **make_labels(head, inputs)}
    return model.train(), [{name: values[:2] for name, values in batch.items()}, {n: v[2:] for n, v in batch.items()}]


def work(rank: int, folder: str) -> None:
    """Two steps of each case: a parameter without a gradient in the first would be an error in the second."""
    torch.set_num_threads(1)
    meet(rank, folder)
    learnt = {}
    for variant, head in CASES:
        model, halves = make_case(variant, head)
        parallel = DistributedDataParallel(model, find_unused_parameters=False)
        for _ in range(2):
            model.zero_grad()
            parallel(**halves[rank]).loss.backward()
        learnt[variant, short_name(head)] = gradients(model)
    torch.save(learnt, f"{folder}/gradients-{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_equal_one(tmp_path):
    spawn(work, str(tmp_path))
    learnt = [torch.load(tmp_path / f"gradients-{rank}.pt", weights_only=True) for rank in (0, 1)]
    for variant, head in CASES:
        model, halves = make_case(variant, head)
        sum(model(**half).loss / 2 for half in halves).backward()
        for one in learnt:
            assert_same(one[variant, short_name(head)], gradients(model))
