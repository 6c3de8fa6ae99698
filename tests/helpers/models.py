"""What the tests share: the axes they run over, tiny models whose every weight matters, and batches for them.

Shapes: B batch, L length, R rows (the choices of multiple choice count as rows), C choices, E hidden size.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

import pytest
import torch
import transformers
from torch import Tensor
from transformers.utils import ModelOutput

from plainformer import (
    PlainformerConfig,
    PlainformerForMaskedLM,
    PlainformerForMultipleChoice,
    PlainformerForQuestionAnswering,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
    PlainformerModel,
    PlainformerPreTrainedModel,
)
from plainformer.positions_plainformer import POSITION_KINDS

# Its Trainer tells accelerate how many batches are accumulated, and the gradient is divided by them once more.
TRAINER_DIVIDES_TWICE = pytest.mark.xfail(
    transformers.__version__.startswith("5.3."),
    strict=True,
    reason="transformers 5.3 divides accumulated gradients twice",
)
HEADS = [
    PlainformerForMaskedLM,
    PlainformerForSequenceClassification,
    PlainformerForTokenClassification,
    PlainformerForQuestionAnswering,
    PlainformerForMultipleChoice,
]
MODELS = [PlainformerModel, *HEADS]
KERNELS = ("sdpa", "eager")
# Models that answer once per row; the others answer once per token.
PER_ROW = (PlainformerForSequenceClassification, PlainformerForMultipleChoice)
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# The id of a variant, "sinusoidal-pre", and the configuration fields that it stands for.
VARIANTS = {
    f"{kind}-{'pre' if pre_norm else 'post'}": {"position_embedding_type": kind, "pre_norm": pre_norm}
    for kind in POSITION_KINDS
    for pre_norm in (False, True)
}
# Every position kind and every norm placement; each kind with one placement, as the two do not interact.
KIND_AND_NORM = dict(list(VARIANTS.items())[2 * index + index % 2] for index in range(len(POSITION_KINDS)))


def short_name(model_class: type) -> str:
    """`PlainformerForMaskedLM` -> `MaskedLM`, `PlainformerModel` -> `Model`."""
    return model_class.__name__.removeprefix("Plainformer").removeprefix("For")


# A behaviour is tested over one axis at a time, the others at their defaults: a new kind costs one case, not twelve.
# Every position kind, norm placement, kernel and route.
SETTINGS = {kind: {"position_embedding_type": kind} for kind in POSITION_KINDS}
SETTINGS |= {
    "pre-norm": {"pre_norm": True},
    "eager": {"attn_implementation": "eager"},
    "padded": {"unpad_inputs": False},
}
# Every class, and again with mean pooling where it pools.
CLASSES = {short_name(model_class): (model_class, {}) for model_class in MODELS}
CLASSES |= {f"{short_name(model_class)}-mean": (model_class, {"classifier_pooling": "mean"}) for model_class in PER_ROW}
# Every class in the default setting, and the base model in every other.
SUBJECTS = CLASSES | {
    f"Model-{name}": (PlainformerModel, fields)
    for name, fields in SETTINGS.items()
    if any(getattr(PlainformerConfig(), field, None) != value for field, value in fields.items())
}

# One row of eight places each: 1 for a token, 0 for padding.
PADDING = {
    "right": [1, 1, 1, 1, 1, 0, 0, 0],
    "left": [0, 0, 1, 1, 1, 1, 1, 1],
    "both": [0, 1, 1, 1, 1, 0, 0, 0],
    "holes": [1, 0, 1, 1, 0, 0, 1, 0],
    "full": [1, 1, 1, 1, 1, 1, 1, 1],
    "empty": [0, 0, 0, 0, 0, 0, 0, 0],
}


def tiny_config(**overrides) -> PlainformerConfig:
    """A configuration whose sizes all differ, so that no two dimensions can be confused."""
    sizes = {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 37,
        "max_position_embeddings": 16,
        "num_labels": 3,
    }
    return PlainformerConfig(**{**sizes, **overrides})


def make_model(
    model_class: type[PlainformerPreTrainedModel], config: PlainformerConfig | None = None, **overrides
) -> PlainformerPreTrainedModel:
    """A model in eval mode with random weights everywhere, norms, biases and the padding embedding included.

    `attn_implementation` is among the overrides that a configuration takes.
    """
    model = model_class(tiny_config(**overrides) if config is None else config)
    return randomise(model).eval()


def randomise(model: torch.nn.Module) -> torch.nn.Module:
    """Give every parameter values that change the result: a fresh norm is 1 and a fresh bias 0."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.25
            parameter.copy_(1 + noise if name.endswith("norm.weight") else noise)
    return model


def make_inputs(model_class: type, batch_size: int = 4, length: int = 8, num_choices: int = 2) -> dict[str, Tensor]:
    """Random `input_ids` and `token_type_ids`, [B, L], or [B, C, L] for multiple choice. There is no mask."""
    shape = (batch_size, length)
    if model_class is PlainformerForMultipleChoice:
        shape = (batch_size, num_choices, length)
    return {"input_ids": torch.randint(1, 50, shape), "token_type_ids": torch.randint(0, 2, shape)}


def make_labels(model_class: type, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Random labels for every place or row of `inputs`, as the model's keywords; nothing for the base model.

    Class ids go from 0 to 2, the three labels of `tiny_config`.
    """
    tokens = inputs["input_ids"] if inputs.get("input_ids") is not None else inputs["inputs_embeds"][..., 0]
    B, L = tokens.shape[0], tokens.shape[-1]
    labels = {
        "Model": lambda: {},
        "MaskedLM": lambda: {"labels": torch.randint(0, 50, (B, L))},
        "SequenceClassification": lambda: {"labels": torch.randint(0, 3, (B,))},
        "TokenClassification": lambda: {"labels": torch.randint(0, 3, (B, L))},
        "QuestionAnswering": lambda: {
            "start_positions": torch.randint(0, L, (B,)),
            "end_positions": torch.randint(0, L, (B,)),
        },
        "MultipleChoice": lambda: {"labels": torch.randint(0, tokens.shape[1], (B,))},
    }
    return labels[short_name(model_class)]()


def padding_mask(*patterns: str) -> Tensor:
    """The rows of `PADDING` with these names as an attention mask [R, 8]; all of them by default."""
    return torch.tensor([PADDING[name] for name in patterns or PADDING])


def as_batch(model_class: type, rows: dict[str, Tensor], num_choices: int = 2) -> dict[str, Tensor]:
    """Rows [R, L, ...] as the model takes them: unchanged, or [R / C, C, L, ...] for multiple choice."""
    if model_class is not PlainformerForMultipleChoice:
        return rows
    return {name: values.unflatten(0, (-1, num_choices)) for name, values in rows.items()}


def answers(output: ModelOutput) -> Tensor:
    """What a model says, with the rows first: [R, L, ...] of one that answers per token, [R, ...] of one per row."""
    if "last_hidden_state" in output:
        return output.last_hidden_state
    if "start_logits" in output:
        return torch.stack((output.start_logits, output.end_logits), dim=-1)
    return output.logits


def row_answers(model: PlainformerPreTrainedModel, rows: dict[str, Tensor], num_choices: int = 2) -> Tensor:
    """`answers` to rows [R, L, ...] without gradients, the choices of multiple choice as rows, [R]."""
    with torch.no_grad():
        outputs = answers(model(**as_batch(type(model), rows, num_choices)))
    return outputs.flatten() if isinstance(model, PlainformerForMultipleChoice) else outputs


def make_rows(mask: Tensor) -> dict[str, Tensor]:
    """Random rows [R, L] for a mask [R, L]."""
    ids = torch.randint(1, 50, mask.shape)
    return {"input_ids": ids, "token_type_ids": torch.randint(0, 2, mask.shape), "attention_mask": mask}


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    """The gradient of every parameter that is not frozen, by name; a missing one is an error."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    missing = [name for name, parameter in parameters.items() if parameter.grad is None]
    assert not missing, f"no gradient reached {missing}"
    return {name: parameter.grad.clone() for name, parameter in parameters.items()}


class Step(NamedTuple):
    """What one training step computes: `answers`, the loss, and the gradient of every parameter by name."""

    outputs: Tensor
    loss: Tensor
    gradients: dict[str, Tensor]


def learn(model: torch.nn.Module, inputs: dict[str, Tensor], run: Callable | None = None) -> Step:
    """Forward and backward over `inputs`, labels among them, with `run`, which is `model` itself or made from it.

    Without labels, the mean square of the answers stands for a loss.
    """
    model.zero_grad()
    output = (model if run is None else run)(**inputs)
    outputs = answers(output)
    loss = output.loss if output.get("loss") is not None else outputs.square().mean()
    loss.backward()
    return Step(outputs.detach(), loss.detach(), gradients(model))


@contextmanager
def kept_layouts(model: PlainformerPreTrainedModel) -> Iterator[list]:
    """The layouts that are made for batches meanwhile. A hook on a layer would change them."""
    layouts, code = [], sys.modules[model.base_model.forward.__module__]
    make_layout = code.make_layout

    def keep(*args, **kwargs) -> object:
        layouts.append(make_layout(*args, **kwargs))
        return layouts[-1]

    with mock.patch.object(code, "make_layout", keep):
        yield layouts


def layout_of(model: PlainformerPreTrainedModel, **batch) -> object:
    """The layout that is made for a batch."""
    with kept_layouts(model) as layouts:
        model(**batch)
    return layouts[0]


def is_unpadded(layout: object) -> bool:
    """Whether a layout holds the real tokens only."""
    return type(layout).__name__ == "UnpaddedLayout"


def assert_equal(actual, expected) -> None:
    """The same bits."""
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def assert_finite(*tensors: Tensor) -> None:
    """No NaN and no infinity."""
    assert all(tensor.isfinite().all() for tensor in tensors)


def assert_same(actual, expected, tolerance: float = 1e-5) -> None:
    """Numbers that agree to `tolerance`, relative or absolute."""
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


# Every field of ours, at a value that is not its default.
NON_DEFAULT = {
    "vocab_size": 51,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 41,
    "hidden_act": "relu",
    "hidden_dropout_prob": 0.25,
    "attention_probs_dropout_prob": 0.0,
    "max_position_embeddings": 17,
    "type_vocab_size": 0,
    "initializer_range": 0.03,
    "layer_norm_eps": 1e-5,
    "pad_token_id": 4,
    "classifier_dropout": 0.5,
    "tie_word_embeddings": False,
    "position_embedding_type": "sinusoidal",
    "pre_norm": True,
    "embedding_norm": False,
    "scale_embedding": True,
    "classifier_pooling": "mean",
    "unpad_inputs": False,
    "sparse_prediction": False,
    "rope_theta": 500.0,
    "relative_attention_num_buckets": 16,
    "relative_attention_max_distance": 64,
    "randomize_positions": 40,
}
