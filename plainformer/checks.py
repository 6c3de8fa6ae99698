"""Checks of arguments that more than one function of the package makes. This file does not travel."""

from typing import Any

from transformers import PreTrainedModel

from .configuration_plainformer import PlainformerConfig, model_types


def check_model(model: Any) -> None:
    """Raise a TypeError unless `model` is a Plainformer model itself.

    By name: a class that came with a checkpoint (trust_remote_code) is not the installed one.
    """
    if PlainformerConfig.model_type not in model_types(type(getattr(model, "config", None))):
        raise TypeError(
            f"model is a {type(model).__name__}, not a Plainformer model. "
            "Convert a BERT with plainformer.from_bert(...)."
        )
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"model is a {type(model).__name__} around a Plainformer model: pass what is in it. Of a model of peft "
            "that is model.get_base_model(), with active LoRA layers, or model.merge_and_unload(), with merged ones."
        )
