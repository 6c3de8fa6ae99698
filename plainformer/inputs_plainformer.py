"""What may be passed to a model, checked before any kernel runs.

Every error names what was wrong, its value and the remedy. Checks that read values are left out where there are none
to read: while a graph is captured (`torch.compile`, export), under `torch.func.vmap`, on the meta device.
"""

import difflib
import inspect
from typing import Any

import torch
from torch import Tensor

REMEDIES = {  # for an id that is out of range, by the field that sets the range
    "vocab_size": "Use the tokenizer that belongs to this model, or resize_token_embeddings for new tokens.",
    "max_position_embeddings": "Truncate the text, or use a model that reaches further (resize_position_embeddings, or "
    "position_embedding_type='sinusoidal').",
    "type_vocab_size": "Leave token_type_ids out, or build the model with a larger type_vocab_size.",
}
HEAD_ARGUMENTS = ("labels", "start_positions", "end_positions")  # what heads take beyond the encoder's arguments


def is_captured() -> bool:
    """Whether what runs now is being written down as a graph, to be run again on other values and shapes."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def values_are_known(tensor: Tensor) -> bool:
    """Whether anything may depend on the values of `tensor` [...], of at least one dimension.

    It may not while a graph is captured, which has to hold for other values too; nor where reading fails: on the meta
    device, for a fake tensor, for one that `torch.func.vmap` maps over, under a tracer. Nobody lists all of those, so
    a value is read to find out. A CUDA graph is asked first: reading would spoil it.
    """
    if is_captured() or tensor.is_meta or (tensor.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    try:
        value = tensor[:1].any()
        bool(value), value.tolist()  # some refuse only one way of reading
    except RuntimeError:
        return False
    return True


def read_shape(
    input_ids: Tensor | None, inputs_embeds: Tensor | None, hidden_size: int
) -> tuple[tuple[int, int], torch.device]:
    """(B, L) and device of a batch given as ids [B, L] or as embeddings [B, L, E].

    Raises:
        TypeError: what was given is not a tensor.
        ValueError: both are given or neither, or the shape is another one, or there is not one place for a token.
    """
    if (input_ids is None) == (inputs_embeds is None):
        given = "neither" if input_ids is None else "both"
        raise ValueError(f"Give either input_ids or inputs_embeds: {given} was given.")
    name, tensor = ("input_ids", input_ids) if inputs_embeds is None else ("inputs_embeds", inputs_embeds)
    refuse_other_than_tensors(**{name: tensor})
    expected = "[batch, length]" if inputs_embeds is None else f"[batch, length, {hidden_size}]"
    fits = tensor.dim() == 2 if inputs_embeds is None else tensor.dim() == 3 and tensor.shape[2] == hidden_size
    if not fits:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, but must be {expected}. "
            "For a single text, add the batch dimension with unsqueeze(0)."
        )
    if tensor.shape[1] == 0:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: there is no token in it. Leave out empty texts.")
    return (tensor.shape[0], tensor.shape[1]), tensor.device


def refuse_other_than_tensors(**named: Any) -> None:
    """Raise a TypeError for a list or an array; None is an argument that was not given."""
    for name, value in named.items():
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(
                f"{name} is a {type(value).__name__}, not a tensor: pass return_tensors='pt' to the tokenizer, or "
                f"torch.as_tensor({name})."
            )


def check_shape(name: str, tensor: Tensor, shapes: list[tuple[int, ...]]) -> None:
    """Raise a ValueError unless `tensor` has one of `shapes`."""
    if tuple(tensor.shape) not in shapes:
        allowed = " or ".join(map(str, shapes))
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, but this batch takes {allowed}.")


def read_ids(name: str, ids: Tensor, field: str, size: int | None) -> Tensor:
    """Ids as int64: an embedding takes no bytes or shorts.

    Raises:
        ValueError: they are no integers from 0 to size - 1; `field` sets the size, None is no limit.
    """
    if ids.is_floating_point():
        raise ValueError(f"{name} is {ids.dtype}, but ids are integers: pass {name}.long().")
    ids = ids.long()
    if size is None or not values_are_known(ids) or not ids.numel():
        return ids
    low, high = (int(value) for value in ids.aminmax())
    if low < 0 or high >= size:
        raise ValueError(
            f"{name} holds {low if low < 0 else high}, but {field}={size} allows 0 to {size - 1}. {REMEDIES[field]}"
        )
    return ids


def refuse_unknown(kwargs: dict[str, Any], forward: Any) -> None:
    """Raise a TypeError for a keyword that nothing would read: a mistyped `attention_mask` must not go unseen."""
    for name in kwargs:
        known = [known for known in inspect.signature(forward).parameters if known not in ("self", "kwargs")]
        close = difflib.get_close_matches(name, [*known, *HEAD_ARGUMENTS], n=1)
        if name in HEAD_ARGUMENTS:
            hint = "Only some models with a head take it."
        else:
            hint = f"Did you mean {close[0]!r}?" if close else f"It takes {', '.join(known)}."
        raise TypeError(f"The model got an unexpected keyword argument {name!r}. {hint}")
