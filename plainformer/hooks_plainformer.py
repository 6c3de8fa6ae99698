"""Who looks into a model from outside: hooks, and modules or `forward` methods that were replaced.

They expect what other models compute, the padded rectangle [B, L, E] with a row for each sample. So

    on `embeddings` and its parts            get the rectangle; its result is gathered, and the layers stay unpadded
    on any other module that has parts,      get the rectangle: the pass takes the padded route
    such as a layer or its attention
    on a single module, such as a Linear     gets the real tokens [T, E], all in one call; but a backward hook gets the
    or a LayerNorm                           rectangle: the gradient of each sample is read off its rows

Hooks of packages that only place, split or count weights change nothing. A layer, attention or feed-forward of somebody
else in the place of ours may mix the tokens that it is given, so it gets the rectangle too; what takes the place of a
single module computes each token alone.

Shapes: B batch, L length, T real tokens, E hidden size.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules import module as global_hooks

from .values_plainformer import is_captured

BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", *BACKWARD_HOOKS)
# FSDP2, tensor parallelism, pruning and counters; input gradients; device_map and offloading; ZeRO.
BLIND_PACKAGES = ("torch", "transformers", "accelerate", "deepspeed")


def is_observed(model: nn.Module) -> bool:
    """Whether somebody expects the padded rectangle of a module inside `model`, the embeddings excepted.

    What goes into `model` itself and comes out is the rectangle in any case, so hooks there do not count.
    """
    if is_captured():  # a graph is computed as the rectangle in any case
        return False
    encoder = model.base_model
    embeddings, waiting = encoder.embeddings, _parts(model)
    if any(types_of_layer(layer) != encoder.layer_types for layer in encoder.layers):
        return True
    while waiting:
        module = waiting.pop()
        if module is not embeddings:
            parts = _parts(module)
            if any(map(_looks, _find_hooks(module, HOOKS if parts else BACKWARD_HOOKS))):
                return True
            waiting += parts
    return _is_observed_globally()


def is_observed_inside(embeddings: nn.Module, built_types: list[type]) -> bool:
    """Whether somebody expects the padded rectangle of the embeddings or of their parts.

    Args:
        built_types: `types_of_modules` of the embeddings as they were built.
    """
    is_replaced = types_of_modules(embeddings) != built_types
    return is_replaced or any(_find_hooks(module, HOOKS) for module in embeddings.modules()) or _is_observed_globally()


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody looks at a module or at one of its parts, and so expects to be called once for a batch."""
    found = (hook for part in module.modules() for hook in _find_hooks(part, HOOKS))
    return any(map(_looks, found)) or _is_observed_globally()


def types_of_layer(layer: nn.Module) -> list[type]:
    """The types of a layer, its attention and its feed-forward; those that FSDP2 made of them are the same."""
    modules = (layer, getattr(layer, "attention", None), getattr(layer, "mlp", None))
    return [
        next((kind for kind in type(module).__mro__ if _package(kind) not in BLIND_PACKAGES), None)
        for module in modules
    ]


def types_of_modules(module: nn.Module) -> list[type]:
    """The types of a module and of all its parts: another list tells that one was replaced."""
    return [type(part) for part in module.modules()]


def _parts(module: nn.Module) -> list[nn.Module]:
    """The modules directly inside. `children()` says the same in five times the time, at each pass for each module."""
    return [part for part in vars(module)["_modules"].values() if part is not None]


def _find_hooks(module: nn.Module, kinds: tuple[str, ...]) -> list[Callable]:
    """The hooks of these kinds on a module; with `HOOKS` also a `forward` of its own, which hides that of its class."""
    attributes = vars(module)
    hooks = [hook for kind in kinds if attributes[kind] for hook in attributes[kind].values()]
    if kinds is HOOKS and "_hf_hook" in attributes:  # accelerate puts its `forward` in the place of the class's
        hooks += getattr(attributes["_hf_hook"], "hooks", [attributes["_hf_hook"]])
    elif kinds is HOOKS and "forward" in attributes:
        hooks.append(attributes["forward"])
    return hooks


def _is_observed_globally() -> bool:
    """Whether there is a hook on all modules of the process."""
    return any(_looks(hook) for kind in HOOKS for hook in getattr(global_hooks, f"_global{kind}").values())


def _looks(hook: Callable) -> bool:
    """Whether a hook may look at single samples: it is of none of the packages that never do."""
    while isinstance(hook, partial):
        hook = hook.func
    return _package(hook) not in BLIND_PACKAGES


def _package(thing: Any) -> str:
    """Of a function, an object or a class; "None" for what is written in C."""
    return str(getattr(thing, "__module__", None)).partition(".")[0]
