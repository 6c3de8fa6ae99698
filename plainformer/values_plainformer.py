"""Looking at tensors: their type, their shape, and their values, which are read from the device once per batch.

A GPU works behind the program's back; reading a value makes the program wait until the GPU has caught up. So a check of
values only asks a question. `Questions.read` then reads all of them together, and each check looks at its numbers.

Values cannot be read everywhere: not while a graph is captured (`torch.compile`, export), which has to hold for other
values too; nor on the meta device, for fake tensors, or where `torch.func.vmap` maps over a tensor. Then the questions
stay open: checks of values are left out, and a batch is computed as the padded rectangle.

Shapes: B batch, L length; [...] any shape.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def is_captured() -> bool:
    """Whether what is computed now is recorded as a graph, to be run again on other values and shapes."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def read_values(values: Tensor) -> list[int] | None:
    """The values of integers [n], read from their device; None where nothing may depend on them.

    Where reading fails cannot be listed, so it is tried. A CUDA graph is asked first: reading would spoil it.
    """
    if is_captured() or values.is_meta or (values.is_cuda and torch.cuda.is_current_stream_capturing()):
        return None
    try:
        if values.device.type != "cpu":
            values = values.cpu()  # the one read of the device; the next lines look at the copy
        bool(values[:1].any())  # a tracer refuses this and not the next
        return values.tolist()
    except RuntimeError:
        return None


@dataclass
class Question:
    """Integers that a check wants to know.

    Attributes:
        compute: gives the integers, [...]. It is not called while a graph is captured, so no check is in the graph.
        check: called with the answer; it may raise.
        otherwise: what the check sees where the values cannot be read; None: it is left out there.
        answer: their values; None before they were read, and where they cannot be.
    """

    compute: Callable[[], Tensor]
    check: Callable[[list[int]], None] | None
    otherwise: list[int] | None
    answer: list[int] | None = None


class Questions:
    """Questions about the values of a batch, answered by one read of the device."""

    def __init__(self) -> None:
        self.questions: list[Question] = []

    def ask(
        self,
        compute: Callable[[], Tensor],
        check: Callable[[list[int]], None] | None = None,
        otherwise: list[int] | None = None,
    ) -> Question:
        """Ask for the integers that `compute` gives; `check` sees their values once they are read."""
        question = Question(compute, check, otherwise)
        self.questions.append(question)
        return question

    def read(self) -> None:
        """Answer all questions, then run their checks in the order of asking."""
        if self.questions and not is_captured():
            self.answer([question.compute().flatten().long() for question in self.questions])
        for question in self.questions:
            seen = question.otherwise if question.answer is None else question.answer
            if question.check is not None and seen is not None:
                question.check(seen)

    def answer(self, asked: list[Tensor]) -> None:
        """Read the integers [n] of each question. One that cannot be read does not keep the others from being read."""
        together = read_values(torch.cat([one.to(asked[0].device) for one in asked]))
        for question, one in zip(self.questions, asked, strict=True):
            if together is None:
                question.answer = read_values(one)
            else:
                question.answer, together = together[: len(one)], together[len(one) :]


def refuse_other_than_tensors(**named: Any) -> None:
    """Raise a TypeError for a list or an array, and for a sparse or nested tensor.

    None is an argument that was not given.
    """
    for name, value in named.items():
        if value is None:
            continue
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{name} is a {type(value).__name__}, not a tensor: pass return_tensors='pt' to the tokenizer, or "
                f"torch.as_tensor({name})."
            )
        if value.is_nested or value.layout != torch.strided:
            form, remedy = str(value.layout), f"{name}.to_dense()"
            if value.is_nested:
                form, remedy = "nested", f"torch.nested.to_padded_tensor({name}, 0) and an attention_mask"
            raise TypeError(f"{name} is a tensor of the layout {form}, but the model takes dense ones: pass {remedy}.")


def check_integers(name: str, tensor: Tensor, what: str = "ids") -> None:
    """Raise a ValueError for numbers that are not integers. Booleans are: 0 and 1."""
    if tensor.is_floating_point() or tensor.is_complex():
        remedy = f"{name}.long()" if tensor.is_floating_point() else f"{name}.real.long()"
        raise ValueError(
            f"{name} {'is' if what == 'ids' else 'are'} {tensor.dtype}, but {what} are integers: pass {remedy}."
        )


def check_shape(name: str, tensor: Tensor, shapes: list[tuple[int, ...]]) -> None:
    """Raise a ValueError unless `tensor` has one of `shapes`."""
    if tuple(tensor.shape) not in shapes:
        expected = " or ".join(map(str, dict.fromkeys(shapes)))
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, but this batch takes {expected}.")


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums, softmax and losses of values of a type are computed: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)


def lowest_score(dtype: torch.dtype) -> float:
    """The score of what cannot be chosen: -1e15, whose square is finite, or the lowest number of float16."""
    return max(torch.finfo(dtype).min, -1e15)


def mask_out(values: Tensor, token_mask: Tensor | None, fill: float = 0) -> Tensor:
    """[B, L, ...] -> the same with `fill` at the padding.

    Args:
        token_mask: which places hold a token, bool [B, L]; None when all of them do.
    """
    if token_mask is None:
        return values
    token_mask = token_mask.to(values.device)
    return values.masked_fill(~token_mask.reshape(token_mask.shape + (1,) * (values.dim() - 2)), fill)


def find_indices(mask: Tensor, count: int) -> Tensor:
    """Where a bool mask [n] is True, [count], ascending: `nonzero` without a read, since the count is known."""
    slots = torch.where(mask, mask.long().cumsum(0) - 1, count)  # [n]; what is False goes behind the end
    indices = torch.arange(len(mask), device=mask.device)
    return indices.new_empty(count + 1).scatter_(0, slots, indices)[:count]
