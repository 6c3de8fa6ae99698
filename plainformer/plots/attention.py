"""Who attends to whom: the causal mask of a decoder, and attention weights for a text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from torch import Tensor

from ..checks import check_model
from ..configuration_plainformer import PlainformerConfig
from ..pairs_plainformer import CausalRectangle
from .canvas import UNSIGNED, open_axes, open_grid, picture
from .labels import Translate, readable
from .values import check_range

MOST_TOKENS = 64  # of a text: more cannot be read on the axes
MOST_INCHES = 40


# The causal mask


def causal_mask(length: int, num_padding: int) -> Tensor:
    """Who may attend to whom in a row of `length` tokens with padding behind them, bool [L, L], L with padding."""
    L = length + num_padding
    position_ids = torch.arange(L)
    token_mask = None if num_padding == 0 else (position_ids < length)[None]  # [1, L]
    layout = CausalRectangle(
        (1, L), position_ids[None], token_mask, cache_position=position_ids, num_before=0, key_mask=token_mask
    )
    attention_mask, fully_masked = layout.mask_later_keys(L)  # [1, 1, L, L]
    return (attention_mask if fully_masked is None else attention_mask & ~fully_masked)[0, 0]


@picture
def plot_causal_mask(
    model_or_config: Any, length: int = 8, num_padding: int = 0, *, ax: Axes | None = None, words: Translate
) -> Axes:
    """The mask of a decoder's self-attention for one row: each token attends to itself and to those before it.

    Raises:
        ValueError: an encoder, which has none.
    """
    config = model_or_config
    if not isinstance(config, PlainformerConfig):
        check_model(model_or_config)
        config = model_or_config.config
    if not hasattr(config, "decoder_depth"):
        raise ValueError(
            f"{type(model_or_config).__name__}: an encoder has no causal mask, all its tokens attend to each other. "
            "Give a PlainformerSeq2SeqConfig, or a model with a decoder."
        )
    for name, value, least in (("length", length, 1), ("num_padding", num_padding, 0)):
        if type(value) is not int or not least <= value <= MOST_TOKENS:
            raise ValueError(f"{name}={value!r}: give a whole number from {least} to {MOST_TOKENS}.")
    mask = causal_mask(length, num_padding)
    ax = open_axes(ax, size=(10.0, 7.0))
    colours = ListedColormap(["#d9d9d9", "#21618c"])
    ax.pcolormesh(mask.numpy().astype(float), cmap=colours, vmin=0, vmax=1, edgecolors="white", linewidth=1.5)
    ax.invert_yaxis()
    ax.set_aspect("equal")
    labels = [str(number) for number in range(length)] + [words("padding")] * num_padding
    ax.set_xticks(np.arange(len(labels)) + 0.5, labels, rotation=90 if num_padding or length > 20 else 0)
    ax.set_yticks(np.arange(len(labels)) + 0.5, labels)
    ax.set(xlabel=words("token attended to"), ylabel=words("token that attends"), title=words("Causal mask"))
    patches = [Patch(color=colours(one), label=words(name)) for one, name in ((1, "may attend"), (0, "masked"))]
    ax.legend(handles=patches, loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


# Attention weights


@picture
def plot_attention_maps(
    model: Any,
    tokenizer: Any,
    text: str,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    *,
    ax: Any = None,
    words: Translate,
) -> Any:
    """Attention weights of an encoder for a text: a row of maps for each layer, a column for each head.

    Args:
        layers, heads: which, from 0; None: all.
        ax: as many axes as there are maps; a single one for a single map.

    Returns:
        The axes [layers, heads]; a single one where there is a single map.
    """
    check_model(model)
    inputs = tokenize(tokenizer, text, model)
    with torch.no_grad():
        weights = torch.cat(evaluate(model.base_model, **inputs, output_attentions=True).attentions)  # [N, H, L, L]
    tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())
    labels = (words("token attended to"), words("token that attends"), words("Attention"))
    return draw_maps(weights.float().cpu(), (tokens, tokens), (layers, heads), labels, ax, words)


@picture
def plot_cross_attention(
    model: Any,
    tokenizer: Any,
    text: str,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    *,
    ax: Any = None,
    words: Translate,
) -> Any:
    """How an encoder-decoder looks at the source while it writes its answer: a row for each token that it writes.

    The answer is the greedy one. Arguments as of `plot_attention_maps`.

    Raises:
        ValueError: an encoder, which has no cross-attention.
    """
    check_model(model)
    if not hasattr(model, "decoder"):
        raise ValueError(
            f"model is a {type(model).__name__}, which has no decoder and so no cross-attention: open it with "
            "PlainformerForConditionalGeneration. plot_attention_maps draws an encoder's attention."
        )
    inputs = tokenize(tokenizer, text, model)
    with torch.no_grad():
        ids = evaluate(model, do_sample=False, num_beams=1, method="generate", **inputs)[:, : MOST_TOKENS + 1]  # [1, K]
        options = {"decoder_input_ids": ids[:, :-1], "output_attentions": True, "use_cache": False}
        weights = torch.cat(evaluate(model, **inputs, **options).cross_attentions)  # [N, H, K - 1, S]
    source, target = (tokenizer.convert_ids_to_tokens(row.tolist()) for row in (inputs["input_ids"][0], ids[0, 1:]))
    labels = (words("token of the source"), words("token being written"), words("Cross-attention"))
    return draw_maps(weights.float().cpu(), (target, source), (layers, heads), labels, ax, words)


def evaluate(model: Any, method: str = "forward", **inputs: Any) -> Any:
    """What the model gives in evaluation; each module's mode is restored."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        return getattr(model, method)(**inputs)
    finally:
        for module in training:
            module.training = True


def tokenize(tokenizer: Any, text: str, model: Any) -> dict[str, Tensor]:
    """One row of tokens for the model; a ValueError for a text that is empty or longer than can be read or drawn."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"text={text!r}: give a text that is not empty.")
    inputs = tokenizer(text, return_tensors="pt")
    count = inputs["input_ids"].shape[1]
    limits = [limit for limit in (MOST_TOKENS, model.config.position_limit) if limit is not None]
    if count > min(limits):
        raise ValueError(f"text has {count} tokens, and a map shows at most {min(limits)}: give a shorter text.")
    names = ("input_ids", "attention_mask", "token_type_ids")
    return {name: inputs[name].to(model.device) for name in names if name in inputs}


def measure(shape: tuple[int, int], lengths: tuple[int, int]) -> tuple[float, tuple[float, float]]:
    """Inches: the width of one of [layers, heads] maps of [queries, keys] tokens, and the size of them all."""
    (layers, heads), (queries, keys) = shape, lengths
    width = max(10.0 / max(heads, 2), 2.0, 0.1 * max(lengths))
    height = max(width * (queries + 2) / (keys + 2), 1.2)
    size = (max(width * heads, 8.0), height * layers + 2.0)
    if max(size) > MOST_INCHES:
        raise ValueError(
            f"{layers} layers x {heads} heads with {max(lengths)} tokens make a picture of {max(size):.0f} inches, "
            f"more than {MOST_INCHES}: choose fewer layers or heads, or a shorter text."
        )
    return width, size


def draw_maps(
    weights: Tensor,
    tokens: tuple[list[str], list[str]],
    chosen: tuple[Sequence[int] | None, Sequence[int] | None],
    labels: tuple[str, str, str],
    ax: Any,
    words: Translate,
) -> Any:
    """Maps [N, H, Q, K] of the chosen layers and heads, with one scale of colours from 0 to the highest weight."""
    names = (("layers", weights.shape[0]), ("heads", weights.shape[1]))
    layers, heads = (
        list(range(count)) if numbers is None else list(numbers)
        for numbers, (_, count) in zip(chosen, names, strict=True)
    )
    for numbers, (name, count) in zip((layers, heads), names, strict=True):
        check_range(name, numbers, count, name)
    queries, keys = (readable(one) for one in tokens)
    width, size = measure((len(layers), len(heads)), (len(queries), len(keys)))
    axes = open_grid(ax, (len(layers), len(heads)), size, sharex=True, sharey=True)
    shown = weights[layers][:, heads]
    letters = max(5.0, min(13.0, 45.0 * width / max(len(queries), len(keys))))
    for (row, column), one in np.ndenumerate(axes):
        image = one.imshow(shown[row, column].numpy(), cmap=UNSIGNED, vmin=0, vmax=float(shown.max()), aspect="auto")
        one.set_xticks(range(len(keys)), keys, rotation=90, fontsize=letters)
        one.set_yticks(range(len(queries)), queries, fontsize=letters)
        name = words("layer {}, head {}").format(layers[row], heads[column])
        one.set_title(name, fontsize=min(14.0, 6 + 2.4 * width))
    figure = axes[0, 0].figure
    figure.colorbar(image, ax=axes, label=words("attention weight"))
    if ax is None:
        figure.supxlabel(labels[0])
        figure.supylabel(labels[1])
        figure.suptitle(labels[2])
    return axes if axes.size > 1 else axes[0, 0]
