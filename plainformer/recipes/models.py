"""Tokenizer and model: from a Plainformer or BERT checkpoint, or new ones."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..conversion import BERT_CLASSES, from_bert
from ..positions_plainformer import POSITION_KINDS
from ..tokenization_plainformer import load_tokenizer, train_tokenizer
from .arguments import ARCHITECTURE, ModelArguments
from .checkpoints import checkpoint_config, head_name, head_of
from .errors import RecipeError
from .run_folder import Run

ADJUSTABLE = ("classifier_pooling", "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")


def load_tokenizer_for(run: Run, read_texts: Callable[[], Iterable[str]]) -> PreTrainedTokenizerBase:
    """The tokenizer of the checkpoint that is continued, or `--tokenizer_name`, or the model's, or a new one.

    Args:
        read_texts: gives the texts that a new vocabulary is trained on; called only in that case.
    """
    model_args = run.model_args
    source = run.checkpoint or model_args.tokenizer_name or model_args.model_name_or_path
    options = {"do_lower_case": not model_args.cased}
    options["model_max_length"] = model_args.max_position_embeddings or 512
    try:
        if source is None:
            return train_tokenizer(read_texts(), model_args.vocab_size, show_progress=run.is_main, **options)
        if os.path.isfile(source):
            return load_tokenizer(source, **options)
        # A BERT tokenizer needs no code of a checkpoint, and False keeps transformers from asking.
        is_of_model = source == model_args.model_name_or_path
        hub = model_args.hub_options() if is_of_model else {"token": model_args.token}
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False, **hub)
    except (ValueError, TypeError, OSError) as error:
        raise RecipeError(f"no tokenizer from {source or 'the texts'}: {error}") from error


def load_model(
    run: Run, tokenizer: PreTrainedTokenizerBase, labels: list[str] | None = None, **config_fields: Any
) -> PreTrainedModel:
    """The model of the run's class: from a Plainformer or BERT checkpoint, or from random weights.

    `model.config.label2id` numbers the labels: as in the checkpoint where it was trained for the same ones, else in the
    order of `labels`. A classifier that was trained for other labels is replaced by a new one.

    Args:
        labels: names of the classes; None for a model without classes.
        config_fields: further fields of the configuration (`problem_type`, `num_labels`).

    Raises:
        RecipeError: the checkpoint cannot be used, the configuration is not valid, or --max_seq_length too large.
    """
    fields = {**run.model_args.chosen(ADJUSTABLE), **config_fields}
    if labels is not None:
        fields |= {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    model_class = run.model_class
    if run.model_args.bert_baseline:
        model_class = getattr(transformers, BERT_CLASSES[model_class.__name__])
    try:
        if run.model_args.model_name_or_path:
            model = _from_checkpoint(run.model_args, model_class, fields)
        else:
            model = _from_scratch(run.model_args, model_class, tokenizer, fields)
    except (ValueError, TypeError, OSError) as error:
        raise RecipeError(str(error)) from error
    if len(tokenizer) > model.config.vocab_size:
        raise RecipeError(
            f"the tokenizer has {len(tokenizer)} entries, and the model was made for {model.config.vocab_size}: leave "
            "out --tokenizer_name, so that the model's own is used."
        )
    if (limit := position_limit(model)) is not None:  # whatever the tokenizer was made for
        tokenizer.model_max_length = min(tokenizer.model_max_length, limit)
    _check_length(run.data_args.max_seq_length, limit)
    run.say(f"{type(model).__name__}, {model.num_parameters():,} parameters")
    return model


def _from_scratch(model_args: ModelArguments, model_class: type, tokenizer: Any, fields: dict[str, Any]):
    fields = {**model_args.chosen(ARCHITECTURE), **fields}
    fields |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    return model_class(model_class.config_class(**fields))


def _from_checkpoint(model_args: ModelArguments, model_class: type, fields: dict[str, Any]) -> PreTrainedModel:
    source, hub = model_args.model_name_or_path, model_args.hub_options()
    old = checkpoint_config(model_args)
    kind, is_baseline = old.get("model_type"), model_args.bert_baseline
    if kind not in ("plainformer", "bert"):
        raise RecipeError(
            f"--model_name_or_path {source} is of model_type {kind!r}: give a plainformer or bert checkpoint."
        )
    if is_baseline and kind != "bert":
        raise RecipeError(f"--bert_baseline starts from a BERT checkpoint, and {source} is a {kind}.")
    has_head = head_of(old) == head_name(model_class.__name__)
    keeps_head = "label2id" in fields and has_head and set(old.get("label2id") or ()) == set(fields["label2id"])
    if keeps_head:  # with the numbers that it was trained with
        label2id = old["label2id"]
        fields |= {"label2id": label2id, "id2label": {i: name for name, i in label2id.items()}}
    if kind == "bert" and not is_baseline:
        model = from_bert(source, model_class, **hub, **fields)
    else:
        model = model_class.from_pretrained(source, ignore_mismatched_sizes=True, dtype=torch.float32, **hub, **fields)
    if "label2id" in fields and not keeps_head and hasattr(model, "classifier"):
        # Weights of a classifier mean nothing for other labels, not even where their number is the same.
        model.classifier.load_state_dict(type(model)(model.config).classifier.state_dict())
        if has_head:
            names = ", ".join(old.get("label2id") or ["unnamed"])
            print(f"the labels are not those of {source} ({names}): new classifier")
    return model


def _check_length(max_length: int | None, limit: int | None) -> None:
    """Raise a RecipeError where --max_seq_length exceeds the positions of the model."""
    if max_length is not None and limit is not None and max_length > limit:
        unlimited = ", ".join(name for name, kind in POSITION_KINDS.items() if not kind.has_limit)
        raise RecipeError(
            f"--max_seq_length {max_length} is more than the {limit} positions of the model "
            f"(max_position_embeddings): give at most {limit}, or choose a --position_embedding_type without a limit "
            f"({unlimited})."
        )


def position_limit(model: PreTrainedModel) -> int | None:
    """The most tokens that a model has positions for, a Plainformer or a BERT; None where there is no limit."""
    config = model.config
    is_limited = config.model_type == "bert" or POSITION_KINDS[config.position_embedding_type].has_limit
    return config.max_position_embeddings if is_limited else None
