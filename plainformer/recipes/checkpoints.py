"""What config.json of --model_name_or_path says: the task that the checkpoint was trained for, and the labels."""

from typing import Any

from transformers import PretrainedConfig, TrainingArguments

from .arguments import ModelArguments
from .errors import RecipeError

NEVER_TRAINED = "was never trained for this ({}): train it first, with --train_file."


def checkpoint_config(model_args: ModelArguments) -> dict[str, Any]:
    """What `config.json` of --model_name_or_path says."""
    source = model_args.model_name_or_path
    try:
        config, _ = PretrainedConfig.get_config_dict(source, **model_args.hub_options())
    except (OSError, ValueError) as error:
        raise RecipeError(f"--model_name_or_path {source} has no config.json to read: {error}") from error
    return config


def check_trained(model_args: ModelArguments, training_args: TrainingArguments, model_class: type) -> None:
    """A run that does not train needs a checkpoint of its own task: the outputs of another head would be noise."""
    if training_args.do_train:
        return
    needed, found = head_name(model_class.__name__), head_of(checkpoint_config(model_args))
    if found != needed and (needed, found) != ("ForMaskedLM", "ForPreTraining"):
        problem = f"it is a {found or 'model without a head'}, and a {needed} is needed"
        raise RecipeError(f"--model_name_or_path {model_args.model_name_or_path} {NEVER_TRAINED.format(problem)}")


def head_of(config: dict[str, Any]) -> str:
    """The head that a checkpoint was saved from: "ForMaskedLM", ..., or "" for none."""
    return head_name((config.get("architectures") or [""])[0])


def head_name(class_name: str) -> str:
    """The part of a class's name that says which head it has."""
    return class_name[class_name.find("For") :] if "For" in class_name else ""


def trained_labels(model_args: ModelArguments) -> list[str]:
    """The class names of --model_name_or_path, in the order of their ids, for a run that does not train."""
    label2id = checkpoint_config(model_args).get("label2id")
    if not label2id:
        problem = "its config names no classes"
        raise RecipeError(f"--model_name_or_path {model_args.model_name_or_path} {NEVER_TRAINED.format(problem)}")
    return sorted(label2id, key=label2id.get)
