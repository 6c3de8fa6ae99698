"""What the recipes share besides data: arguments, tokenizer and model, the folder of a run, training to the end.

A recipe is a `main(argv)` of numbered steps that reads top to bottom; `launch(main)` runs it as a program. Errors that
a user can act on are `RecipeError` (or `DataError`), and become one line on the terminal.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from datasets import Dataset, DatasetDict
from recipe_data import SPLITS, DataArguments, DataError, read_column
from torch.utils.data import DataLoader
from transformers import (
    AutoTokenizer,
    EarlyStoppingCallback,
    HfArgumentParser,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_utils import PredictionOutput

from plainformer import PlainformerConfig, PlainformerPreTrainedModel, from_bert
from plainformer.conversion import BERT_CLASSES
from plainformer.tokenization_plainformer import load_tokenizer, train_tokenizer

Data = TypeVar("Data", bound=DataArguments)
LOWER_IS_BETTER = ("loss", "mse", "perplexity")  # Trainer itself knows the loss only
MARKER = "recipe.json"  # the settings and the state of the run; tells a folder of ours from somebody else's
STATE = "trainer_state.json"  # what Trainer writes last into a checkpoint
ARCHITECTURE = (
    "position_embedding_type",
    "pre_norm",
    "embedding_norm",
    "scale_embedding",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "initializer_range",
)
ADJUSTABLE = ("classifier_pooling", "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
# What may change between the two halves of a run without changing its result. All else defines the run.
FREE = re.compile(
    r"(logging_|log_|hub_|push_to_hub|dataloader_(?!drop_last)|trackio_|ddp_|report_to|run_name|project|disable_tqdm|debug"
    r"|output_dir|overwrite_|resume_from_checkpoint|save_total_limit|local_rank|skip_memory_metrics|eval_accumulation"
    r"|do_train|do_eval|do_predict|use_cpu|no_cuda|token$|cache_dir|preprocessing_num_workers|test_file"
    r"|max_predict_samples|given|_n_gpu|deepspeed_plugin)"
)


class RecipeError(ValueError):
    """Something about the settings that the user has to change; the message says what."""


@dataclass
class ModelArguments:
    """Which model. Without --model_name_or_path the architecture flags build one from random weights."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "A Plainformer or BERT checkpoint, a folder or a Hub id, to start from."}
    )
    model_revision: str = field(default="main", metadata={"help": "Its branch, tag or commit on the Hub."})
    token: str | None = field(default=None, metadata={"help": "A Hub token, for private checkpoints."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads and prepared data are kept."})
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "A tokenizer (folder or Hub id) or a vocab.txt, instead of the model's."}
    )
    vocab_size: int = field(
        default=30522, metadata={"help": "Without tokenizer and model: the size of a vocabulary trained on the texts."}
    )
    cased: bool = field(default=False, metadata={"help": "A vocab.txt or a trained vocabulary keeps upper case."})
    # None is "not chosen"; of `bool | None` the parser would make a flag that needs a value.
    position_embedding_type: str | None = field(
        default=None, metadata={"help": "learned, sinusoidal or none.", "choices": ["learned", "sinusoidal", "none"]}
    )
    pre_norm: bool = field(default=None, metadata={"help": "LayerNorm before each sub-layer."})
    embedding_norm: bool = field(default=None, metadata={"help": "LayerNorm on the summed embeddings."})
    scale_embedding: bool = field(default=None, metadata={"help": "Token embeddings times sqrt(hidden_size)."})
    hidden_size: int | None = field(default=None, metadata={"help": "Width of the hidden states."})
    num_hidden_layers: int | None = field(default=None, metadata={"help": "Encoder layers."})
    num_attention_heads: int | None = field(default=None, metadata={"help": "Attention heads."})
    intermediate_size: int | None = field(default=None, metadata={"help": "Width of the feed-forward layers."})
    max_position_embeddings: int | None = field(default=None, metadata={"help": "Rows of the learned positions."})
    initializer_range: float | None = field(
        default=None, metadata={"help": "Spread of the random weights (0.02); narrow models learn faster from 0.06."}
    )
    classifier_pooling: str | None = field(
        default=None, metadata={"help": "What a classifier of whole texts reads.", "choices": ["cls", "mean"]}
    )
    hidden_dropout_prob: float | None = field(default=None, metadata={"help": "Dropout on hidden states."})
    attention_probs_dropout_prob: float | None = field(default=None, metadata={"help": "Dropout on attention weights."})
    classifier_dropout: float | None = field(default=None, metadata={"help": "Dropout before the classifier."})
    bert_baseline: bool = field(
        default=False,
        metadata={"help": "transformers' own BERT class instead, to compare with; no Plainformer comes out."},
    )

    def chosen(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of these fields that the user has given a value."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


# 1. Arguments


def parse_args(data_class: type[Data], argv: Sequence[str] | None, description: str, **defaults: Any) -> tuple:
    """The command line as `(ModelArguments, data_class, TrainingArguments)`; a single .json or .yaml file works too.

    What the user did not give comes from `defaults` (the recipe's own), from what the given files imply (`do_train`
    where there is a training file, ...), and else from the dataclasses.
    """
    parser = HfArgumentParser(
        (ModelArguments, data_class, TrainingArguments),
        allow_abbrev=False,
        description=description,
        usage="%(prog)s --train_file FILE --output_dir FOLDER [--FLAG VALUE ...]  (--help has all flags)",
    )
    given = _given(parser, sys.argv[1:] if argv is None else [str(word) for word in argv])
    if not given.get("output_dir"):
        raise RecipeError("--output_dir is missing: say where the model goes.")
    values = {**_general_defaults(given), **defaults, **given}
    try:
        model_args, data_args, training_args = parser.parse_dict({**values, **_evaluation_defaults(values)})
    except (ValueError, TypeError, ImportError) as error:
        raise RecipeError(str(error)) from error
    data_args.given = tuple(sorted(given))  # sorted: it is part of what prepared data is cached by
    if data_args.early_stopping_patience:  # or a run that is continued would wait anew
        training_args.restore_callback_states_from_checkpoint = True
    _check_arguments(model_args, data_args, training_args)
    transformers.set_seed(training_args.seed)
    return model_args, data_args, training_args


def _given(parser: HfArgumentParser, argv: list[str]) -> dict[str, Any]:
    """The values that the user gave, and no defaults."""
    if len(argv) == 1 and argv[0].endswith((".json", ".yaml", ".yml")):
        argv = _read_settings(argv[0])
    names, unset = {action.dest for action in parser._actions} - {"help"}, object()
    parser.set_defaults(**dict.fromkeys(names, unset))
    namespace, unknown = parser.parse_known_args(argv)
    values = {name: value for name, value in vars(namespace).items() if value is not unset}
    values.update({word.removeprefix("--").split("=")[0]: None for word in unknown[:1]})
    for name in set(values) - names:
        close = difflib.get_close_matches(name, names, n=1)
        raise RecipeError(f"--{name} is no argument.{f' Did you mean --{close[0]}?' if close else ' See --help.'}")
    return values


def _read_settings(path: str) -> list[str]:
    """The words of a command line that says the same, so that values are checked and converted as they are there."""
    import yaml  # comes with transformers

    read = json.loads if path.endswith(".json") else yaml.safe_load
    try:
        values = read(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RecipeError(f"{path} could not be read: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{path} holds no settings: write name: value pairs, or an object in JSON.")
    for name, value in values.items():
        if isinstance(value, list):
            raise RecipeError(f"{path}: {name} is a list. Write it as on the command line, as one text: a,b.")
    given = {name: value for name, value in values.items() if value is not None}
    return [f"--{name}={json.dumps(value) if isinstance(value, dict) else value}" for name, value in given.items()]


def _general_defaults(given: dict[str, Any]) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "report_to": "none",
        "save_total_limit": 2,
        "logging_steps": 0.05,  # twenty times in all
        "dataloader_pin_memory": torch.cuda.is_available(),
        # Random weights need larger steps than trained ones.
        "learning_rate": 5e-5 if given.get("model_name_or_path") else 3e-4,
    }
    if not {"do_train", "do_eval", "do_predict"} & set(given):
        from_hub = bool(given.get("dataset_name"))
        defaults["do_train"] = from_hub or bool(given.get("train_file"))
        has_validation = given.get("validation_file") or given.get("validation_split_percentage")
        defaults["do_eval"] = from_hub or bool(has_validation)
        defaults["do_predict"] = bool(given.get("test_file"))
    return defaults


def _evaluation_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Evaluate and save together and keep the best, as far as the user has not said otherwise."""
    if not values.get("do_train") or not values.get("do_eval"):
        return {}
    by_steps = {"eval_steps", "save_steps"} & set(values)
    strategy = values.get("eval_strategy", values.get("save_strategy", "steps" if by_steps else "epoch"))
    defaults = {"eval_strategy": strategy, "save_strategy": strategy, "load_best_model_at_end": strategy != "no"}
    if strategy == "steps":
        steps = values.get("eval_steps", values.get("save_steps", 500))
        defaults |= {"eval_steps": steps, "save_steps": steps}
    return {name: value for name, value in defaults.items() if name not in values}


def _check_arguments(model_args: ModelArguments, data_args: DataArguments, training_args: TrainingArguments) -> None:
    if not (training_args.do_train or training_args.do_eval or training_args.do_predict):
        raise RecipeError(
            "there is nothing to do: give --train_file, --validation_file, --test_file or --dataset_name."
        )
    ours = model_args.chosen((*ARCHITECTURE[:4], "classifier_pooling"))
    if model_args.bert_baseline and ours:
        raise RecipeError(f"--bert_baseline is BERT as it is, without {', '.join(ours)}: leave out one of the two.")
    chosen = model_args.chosen(ARCHITECTURE)
    if model_args.model_name_or_path and chosen:
        named = " ".join(f"--{name} {value}" for name, value in chosen.items())
        raise RecipeError(
            f"{named} with --model_name_or_path {model_args.model_name_or_path}: a checkpoint brings its own "
            "architecture and weights. Leave out one of the two."
        )
    if not training_args.do_train and not model_args.model_name_or_path:
        raise RecipeError("without training there must be a model: give --model_name_or_path, or --train_file.")
    if data_args.early_stopping_patience and not training_args.load_best_model_at_end:
        raise RecipeError(
            f"--early_stopping_patience {data_args.early_stopping_patience} needs evaluations while training: give "
            "--validation_file or --validation_split_percentage, and leave --load_best_model_at_end on."
        )
    if getattr(training_args, "overwrite_output_dir", False):
        raise RecipeError("--overwrite_output_dir is not supported, so that no run is lost: name another --output_dir.")


def splits_needed(training_args: TrainingArguments) -> list[str]:
    """The splits that the run reads, for `load_data`."""
    wanted = (training_args.do_train, training_args.do_eval, training_args.do_predict)
    return [split for split, is_wanted in zip(SPLITS, wanted, strict=True) if is_wanted]


def choose_metric(data_args: DataArguments, training_args: TrainingArguments, names: Sequence[str]) -> None:
    """The metric that decides which model is the best, and which way is better, unless the user gave them.

    Args:
        names: the metrics of the recipe, the one that decides by default first.

    Raises:
        RecipeError: the user's metric is none of them, which Trainer would see at the first evaluation.
    """
    if not training_args.load_best_model_at_end:
        return
    if "metric_for_best_model" not in data_args.given:
        training_args.metric_for_best_model = names[0]
    chosen = training_args.metric_for_best_model.removeprefix("eval_")
    if chosen not in (*names, "loss"):
        raise RecipeError(
            f"--metric_for_best_model {training_args.metric_for_best_model}: there is no such metric here, only "
            f"{', '.join(dict.fromkeys((*names, 'loss')))}."
        )
    if "greater_is_better" not in data_args.given:
        training_args.greater_is_better = chosen not in LOWER_IS_BETTER


def refuse_label_smoothing(training_args: TrainingArguments, task: str) -> None:
    """For tasks without class labels, where Trainer would hide the labels from the model."""
    if training_args.label_smoothing_factor:
        raise RecipeError(
            f"--label_smoothing_factor {training_args.label_smoothing_factor} does not go with {task}, whose labels "
            "are not one class each: leave it out."
        )


class BestCheckpointHere(TrainerCallback):
    """A run that is continued in a folder which was moved finds its best checkpoint there, not where it was."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.best_model_checkpoint:
            state.best_model_checkpoint = str(Path(args.output_dir) / Path(state.best_model_checkpoint).name)


def callbacks(data_args: DataArguments) -> list[TrainerCallback]:
    """Early stopping, if it was asked for, and what a run needs anyway."""
    patience = data_args.early_stopping_patience
    stopping = [EarlyStoppingCallback(early_stopping_patience=patience)] if patience else []
    return [BestCheckpointHere(), *stopping]


# 2. The folder of a run


@dataclass
class Run:
    """A run in its folder: `recipe.json` there holds its settings and its status."""

    folder: Path
    recipe: str
    settings: dict[str, Any]
    checkpoint: str | None  # to resume from
    is_main: bool  # whether this process is the one that writes

    def write(self, status: str) -> None:
        """Replace `recipe.json` in one step, so that it is never half-written."""
        if not self.is_main:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.folder / f"{MARKER}.new"
        content = {"recipe": self.recipe, "status": status, "settings": self.settings}
        new.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
        os.replace(new, self.folder / MARKER)


def open_run(
    recipe: str, model_args: ModelArguments, data_args: DataArguments, training_args: TrainingArguments
) -> Run:
    """Check that `--output_dir` is free for a new run, or find where an earlier one is to be continued.

    Nothing is written yet, so that a run that stops at its data leaves nothing behind: `train` and the others do.

    Raises:
        RecipeError: the folder holds something else, or another run, or this run with other settings.
        SystemExit: the run is finished already.
    """
    folder = Path(training_args.output_dir)
    settings = _settings(model_args, data_args, training_args)
    run = Run(folder, recipe, settings, None, training_args.process_index == 0)
    resume = _resume(training_args)
    if isinstance(resume, str) and Path(resume).resolve().parent != folder.resolve():
        raise RecipeError(
            f"--resume_from_checkpoint {resume} is not in --output_dir {folder}: a run continues in its own folder. "
            f"To start from its weights, give --model_name_or_path {resume}."
        )
    with training_args.main_process_first(desc="look into the output folder"):
        old = _look_into(folder, recipe, resume)
        if old and resume:
            _check_same_settings(folder, old["settings"], settings)
        if resume:
            run.checkpoint = _find_checkpoint(folder, resume)
    if run.is_main and resume:
        print(
            f"continuing from {run.checkpoint}" if run.checkpoint else f"{folder} has no checkpoint yet: starting anew"
        )
    return run


def _resume(training_args: TrainingArguments) -> str | bool:
    """What `--resume_from_checkpoint` says: a checkpoint, True for the last one, or False."""
    value = str(training_args.resume_from_checkpoint or "false")
    if value.lower() not in ("true", "false"):
        return value
    if training_args.save_only_model and value.lower() == "true":
        raise RecipeError(
            "--save_only_model keeps no optimizer, and without it no run continues: leave out one of the two."
        )
    return value.lower() == "true"


def _look_into(folder: Path, recipe: str, resume: str | bool) -> dict[str, Any] | None:
    """What `recipe.json` says of an earlier run in the folder that may be continued; None where there is none.

    A run that never came to a checkpoint has nothing to lose or to continue, and counts as none.
    """
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"--output_dir {folder} is a file: name a folder.")
    if not folder.exists() or not any(folder.iterdir()):
        return None
    try:
        old = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        old["status"], old["recipe"], old["settings"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        raise RecipeError(f"--output_dir {folder} holds something else than a run of a recipe: name another.") from None
    is_empty = not any(folder.glob("checkpoint-*")) and not any(folder.glob("*.safetensors"))
    if old["status"] != "finished" and is_empty:
        return None
    if not resume:
        state = "a finished run" if old["status"] == "finished" else "an unfinished run"
        go_on = "" if old["status"] == "finished" else "continue it with --resume_from_checkpoint true, or "
        raise RecipeError(f"--output_dir {folder} holds {state} of {old['recipe']}: {go_on}name another --output_dir.")
    if old["recipe"] != recipe:
        raise RecipeError(f"--output_dir {folder} holds a run of {old['recipe']}, not of {recipe}: name another.")
    if old["status"] == "finished":
        print(f"{folder} holds a finished run: there is nothing to continue. Use it with --model_name_or_path {folder}")
        raise SystemExit(0)
    return old


def _settings(*arguments: Any) -> dict[str, Any]:
    """What defines a run, as JSON: models and hyper-parameters by value, files by their name and content."""
    settings = {}
    for group in arguments:
        values = group.to_dict() if isinstance(group, TrainingArguments) else dataclasses.asdict(group)
        settings.update({name: value for name, value in values.items() if not FREE.match(name)})
        if isinstance(group, TrainingArguments):
            settings["number of processes"] = group.world_size
    for name in ("train_file", "validation_file"):
        if settings.get(name) and os.path.isfile(settings[name]):
            settings[name] = f"{Path(settings[name]).name}, SHA-256 {_digest(settings[name])}"
    return json.loads(json.dumps(settings, default=str))


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _check_same_settings(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Another version of transformers may have other arguments: only those that both know are compared."""
    changed = [
        f"{name} was {old[name]!r} and is {new[name]!r}" for name in new if name in old and old[name] != new[name]
    ]
    if changed:
        raise RecipeError(
            f"the run in {folder} was started with other settings: {'; '.join(changed)}. Give the same ones to "
            "continue it, or name another --output_dir."
        )


def _find_checkpoint(folder: Path, resume: str | bool) -> str | None:
    if isinstance(resume, bool):
        return last_checkpoint(folder)
    if not _is_complete(Path(resume)):
        last = last_checkpoint(folder)
        remedy = f"the last complete one is {last}" if last else "there is no complete one yet"
        raise RecipeError(f"--resume_from_checkpoint {resume} is no complete checkpoint; {remedy}.")
    return resume


def last_checkpoint(folder: Path) -> str | None:
    """The last checkpoint that was written to the end.

    Trainer writes a checkpoint's `trainer_state.json` after everything else, and removes older checkpoints only then: a
    process killed at any moment leaves a complete one, whatever half-written ones lie beside it.
    """
    found = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdigit() and _is_complete(path)]
    return str(max(found, key=lambda path: int(path.name[11:]))) if found else None


def _is_complete(checkpoint: Path) -> bool:
    try:
        return "global_step" in json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


# 3. Tokenizer and model


def load_tokenizer_for(model_args: ModelArguments, run: Run, texts: Iterable[str]) -> PreTrainedTokenizerBase:
    """The tokenizer of the checkpoint that is continued, or `--tokenizer_name`, or the model's, or a new one.

    Args:
        texts: what a new vocabulary is trained on; read only in that case.
    """
    source = run.checkpoint or model_args.tokenizer_name or model_args.model_name_or_path
    options = {"do_lower_case": not model_args.cased}
    options["model_max_length"] = model_args.max_position_embeddings or 512
    try:
        if source is None:
            return train_tokenizer(texts, model_args.vocab_size, show_progress=run.is_main, **options)
        if os.path.isfile(source):
            return load_tokenizer(source, **options)
        # A BERT tokenizer needs no code of a checkpoint, and False keeps transformers from asking.
        hub = _hub(model_args) if source == model_args.model_name_or_path else {"token": model_args.token}
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False, **hub)
    except (ValueError, TypeError, OSError) as error:
        raise RecipeError(f"no tokenizer from {source or 'the texts'}: {error}") from error


def _hub(model_args: ModelArguments) -> dict[str, Any]:
    return {"revision": model_args.model_revision, "token": model_args.token, "cache_dir": model_args.cache_dir}


def load_model(
    model_args: ModelArguments,
    model_class: type[PlainformerPreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    labels: list[str] | None = None,
    **config_fields: Any,
) -> PreTrainedModel:
    """The model: from a Plainformer or BERT checkpoint, or from random weights.

    `model.config.label2id` numbers the labels: as in the checkpoint where it was trained for the same ones, else in the
    order of `labels`. A classifier that was trained for other labels is replaced by a new one.

    Args:
        labels: names of the classes; None for a model without classes.
        config_fields: further fields of the configuration (`problem_type`, `num_labels`).

    Raises:
        RecipeError: the checkpoint cannot be used, or the configuration is not valid.
    """
    fields = {**model_args.chosen(ADJUSTABLE), **config_fields}
    if labels is not None:
        fields |= {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    try:
        if model_args.model_name_or_path is None:
            model = _from_scratch(model_args, model_class, tokenizer, fields)
        else:
            model = _from_checkpoint(model_args, model_class, fields)
    except (ValueError, TypeError, OSError) as error:
        raise RecipeError(str(error)) from error
    _check_vocabulary(model, tokenizer)
    if (limit := _positions(model)) is not None:  # whatever the tokenizer was made for
        tokenizer.model_max_length = min(tokenizer.model_max_length, limit)
    return model


def _from_scratch(model_args: ModelArguments, model_class: type, tokenizer: Any, fields: dict[str, Any]):
    fields = {**model_args.chosen(ARCHITECTURE), **fields}
    ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    config = PlainformerConfig(**ids, **fields)
    if not model_args.bert_baseline:
        return model_class(config)
    return _bert_class(model_class)(transformers.BertConfig(**ids, **fields))


def _bert_class(model_class: type) -> type:
    return getattr(transformers, BERT_CLASSES[model_class.__name__])


def checkpoint_config(model_args: ModelArguments) -> dict[str, Any]:
    """What `config.json` of --model_name_or_path says."""
    source = model_args.model_name_or_path
    try:
        config, _ = transformers.PretrainedConfig.get_config_dict(source, **_hub(model_args))
    except (OSError, ValueError) as error:
        raise RecipeError(f"--model_name_or_path {source} has no config.json to read: {error}") from error
    return config


def check_trained(model_args: ModelArguments, training_args: TrainingArguments, model_class: type) -> None:
    """A run that does not train needs a checkpoint of its own task: what another head says would be noise."""
    if training_args.do_train:
        return
    head = model_class.__name__.removeprefix("Plainformer")
    trained_as = _head_of(checkpoint_config(model_args))
    if trained_as != head and (head, trained_as) != ("ForMaskedLM", "ForPreTraining"):
        raise RecipeError(
            f"--model_name_or_path {model_args.model_name_or_path} was never trained for this (it is a "
            f"{trained_as or 'model without a head'}, and a {head} is needed): train it first, with --train_file."
        )


def _head_of(config: dict[str, Any]) -> str:
    """The head that a checkpoint was saved from: "ForMaskedLM", ..., or "" for none."""
    architecture = (config.get("architectures") or [""])[0]
    return architecture[architecture.find("For") :] if "For" in architecture else ""


def trained_labels(model_args: ModelArguments) -> list[str]:
    """The class names of --model_name_or_path, in the order of their ids, for a run that does not train."""
    label2id = checkpoint_config(model_args).get("label2id")
    if not label2id:
        raise RecipeError(
            f"--model_name_or_path {model_args.model_name_or_path} was never trained for classes (its config names "
            "none): train it first, with --train_file."
        )
    return sorted(label2id, key=label2id.get)


def _from_checkpoint(model_args: ModelArguments, model_class: type, fields: dict[str, Any]) -> PreTrainedModel:
    source, hub = model_args.model_name_or_path, _hub(model_args)
    old = checkpoint_config(model_args)
    kind = old.get("model_type")
    if kind not in ("plainformer", "bert"):
        raise RecipeError(
            f"--model_name_or_path {source} is of model_type {kind!r}: give a plainformer or bert checkpoint."
        )
    if model_args.bert_baseline and kind != "bert":
        raise RecipeError(f"--bert_baseline starts from a BERT checkpoint, and {source} is a {kind}.")
    same_head = _head_of(old) == model_class.__name__.removeprefix("Plainformer")
    keeps_head = "label2id" in fields and same_head and set(old.get("label2id") or ()) == set(fields["label2id"])
    if keeps_head:  # with the numbers that it was trained with
        label2id = old["label2id"]
        fields |= {"label2id": label2id, "id2label": {i: name for name, i in label2id.items()}}
    if model_args.bert_baseline:
        model_class = _bert_class(model_class)
    if kind == "bert" and not model_args.bert_baseline:
        model = from_bert(source, model_class, **hub, **fields)
    else:
        model = model_class.from_pretrained(source, ignore_mismatched_sizes=True, dtype=torch.float32, **hub, **fields)
    if "label2id" in fields and not keeps_head and hasattr(model, "classifier"):
        _renew_classifier(model, old, source)
    return model


def _renew_classifier(model: PreTrainedModel, old: dict[str, Any], source: str) -> None:
    """Weights of a classifier mean nothing for other labels, not even where their number is the same."""
    fresh = type(model)(model.config).classifier
    model.classifier.load_state_dict(fresh.state_dict())
    if _head_of(old) and type(model).__name__.endswith(_head_of(old)):
        print(f"the labels are not those of {source} ({', '.join(old.get('label2id') or ['unnamed'])}): new classifier")


def _check_vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    if len(tokenizer) > model.config.vocab_size:
        raise RecipeError(
            f"the tokenizer has {len(tokenizer)} entries, and the model was made for {model.config.vocab_size}: leave "
            "out --tokenizer_name, so that the model's own is used."
        )


def check_length(model: PreTrainedModel, data_args: DataArguments) -> None:
    """Raise a RecipeError where --max_seq_length exceeds learned positions."""
    limit, length = _positions(model), data_args.max_seq_length
    if limit is not None and length > limit:
        raise RecipeError(
            f"--max_seq_length {length} is more than the {limit} learned positions of the model "
            f"(max_position_embeddings): give at most {limit}, or choose --position_embedding_type sinusoidal."
        )


def _positions(model: PreTrainedModel) -> int | None:
    """The number of learned positions, of a Plainformer or a BERT; None for positions without end."""
    kind = getattr(model.config, "position_embedding_type", "learned")
    return model.config.max_position_embeddings if kind in ("learned", "absolute") else None


# 4. Prepare


def drop_missing_labels(
    data: DatasetDict, column: str, is_missing: Callable[[Any], bool], run: Run, some_may_be: bool = False
) -> DatasetDict:
    """The data, without the labels of the test split where they are missing: it is predicted, and not measured.

    Args:
        some_may_be: an empty label is an answer too, so that labels are missing only where all of them are empty.
    """
    if "test" not in data or column not in data["test"].column_names:
        return data
    missing, count = sum(map(is_missing, read_column(data["test"], column))), len(data["test"])
    if not missing or (some_may_be and missing < count):
        return data
    say(f"test: {missing} of {count} rows have no {column!r}: predicted, and not measured", run)
    return DatasetDict({**data, "test": data["test"].remove_columns(column)})


def map_rows(
    rows: Dataset,
    function: Callable,
    data_args: DataArguments,
    training_args: TrainingArguments,
    what: str,
    **options: Any,
) -> Dataset:
    """`rows.map` in batches, without the old columns; the main process first, so that the others find its cache."""
    workers = data_args.preprocessing_num_workers
    options = {"batched": True, "remove_columns": rows.column_names, "num_proc": workers, **options}
    with training_args.main_process_first(desc=what):
        return rows.map(
            function,
            load_from_cache_file=not data_args.overwrite_cache,
            desc=what,
            **options,
        )


def say(text: str, run: Run) -> None:
    """A line on the terminal, of the main process."""
    if run.is_main:
        print(text, flush=True)


# 5. Train, evaluate, predict


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a run as Ctrl-C does."""


@contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """Ctrl-C and SIGTERM say what is kept and how to go on."""

    def terminate(number: int, frame: Any) -> None:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, terminate)
    except ValueError:  # not the main thread: whoever started it handles signals
        before = None
    try:
        yield
    except KeyboardInterrupt:
        kept = last_checkpoint(run.folder)
        kept = f"The last checkpoint is {kept}" if kept else "There is no checkpoint yet"
        say(f"\nstopped. {kept}: the same command with --resume_from_checkpoint true goes on from there.", run)
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


class OrderedTrainer(Trainer):
    """A Trainer whose answers come in the order of the rows.

    Grouping by length, which is meant for training, sorts the rows that are evaluated and predicted too, and the
    answers come back in that order.
    """

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        with self._in_order():
            return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        with self._in_order():
            return super().get_test_dataloader(test_dataset)

    @contextmanager
    def _in_order(self) -> Iterator[None]:
        """The setting has one name in transformers 4 and another in 5."""
        settings = {"group_by_length": False, "train_sampling_strategy": "random"}
        before = {name: getattr(self.args, name) for name in settings if hasattr(self.args, name)}
        for name in before:
            setattr(self.args, name, settings[name])
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(self.args, name, value)


def train(trainer: Trainer, run: Run) -> dict[str, float]:
    """Train to the end, from the run's checkpoint if it has one, and save the (best) model with its tokenizer."""
    run.write("running")
    if trainer.args.label_smoothing_factor:
        # Its loss is a mean over each batch, whatever the model says, and 4.57 would add these up instead of averaging.
        trainer.model_accepts_loss_kwargs = False
    with _interruptible(run):
        result = trainer.train(resume_from_checkpoint=run.checkpoint)
    trainer.save_model()
    trainer.save_state()
    metrics = {**result.metrics, "train_samples": len(trainer.train_dataset)}
    return _report(trainer, "train", metrics)


def evaluate(trainer: Trainer, run: Run, rows: Dataset, add: Callable[[dict], dict] | None = None) -> dict[str, float]:
    """Evaluate the (best) model. `add` may add figures that follow from others, such as perplexity."""
    run.write("running")
    metrics = {**trainer.evaluate(eval_dataset=rows), "eval_samples": len(rows)}
    return _report(trainer, "eval", {**metrics, **(add(metrics) if add else {})})


def predict(trainer: Trainer, run: Run, rows: Dataset) -> PredictionOutput:
    """The model's answers to `rows`; where these have labels, the metrics too, as `predict_results.json`."""
    run.write("running")
    output = trainer.predict(rows, metric_key_prefix="predict")
    _report(trainer, "predict", {**output.metrics, "predict_samples": len(rows)})
    return output


def _report(trainer: Trainer, split: str, metrics: dict[str, float]) -> dict[str, float]:
    trainer.log_metrics(split, metrics)
    trainer.save_metrics(split, metrics)
    return metrics


def launch(main: Callable[[], Any]) -> None:
    """Run a recipe as a program: errors of the user's are one line and exit code 2; Ctrl-C is 130 and SIGTERM 143."""
    try:
        main()
    except (RecipeError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except Terminated:
        sys.exit(143)
    except KeyboardInterrupt:
        sys.exit(130)
