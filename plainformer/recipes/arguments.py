"""The command line of a recipe: the flags that all recipes have, their defaults, and which of them go together."""

import difflib
import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import HfArgumentParser, PretrainedConfig, TrainingArguments

from ..positions_plainformer import POSITION_KINDS
from .data_files import FORMATS
from .errors import RecipeError

LOWER_IS_BETTER = (
    "loss",
    "mse",
    "perplexity",
    "word_error_rate",
    "phoneme_error_rate",
)  # Trainer itself knows the loss only
BEYOND_BERT = ("position_embedding_type", "pre_norm", "embedding_norm", "scale_embedding")
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
ARCHITECTURE = (*BEYOND_BERT, *SIZES, "max_position_embeddings", "randomize_positions", "initializer_range")
# Numbers of transformers' own arguments that are checked here: it would notice them late, or not at all.
AT_LEAST_1 = (
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "max_steps"),
    *("preprocessing_num_workers", "eval_accumulation_steps"),
)
AT_LEAST_0 = (
    *("learning_rate", "weight_decay", "adam_epsilon", "warmup_steps", "warmup_ratio", "max_grad_norm", "eval_delay"),
    *("dataloader_num_workers", "label_smoothing_factor"),
)
ABOVE_0 = ("num_train_epochs", "logging_steps", "eval_steps", "save_steps")
BELOW_1 = ("adam_beta1", "adam_beta2", "warmup_ratio", "label_smoothing_factor")
KINDS_HELP = ", ".join(f"{name} ({kind.summary})" for name, kind in POSITION_KINDS.items())


def flag(help_text: str, default: Any = None, **metadata: Any) -> Any:
    """A field of a dataclass of arguments, with what --help says of it."""
    return field(default=default, metadata={"help": help_text, **metadata})


@dataclass
class ModelArguments:
    """Which model. Without --model_name_or_path the architecture flags build one from random weights."""

    model_name_or_path: str | None = flag("A Plainformer or BERT checkpoint, a folder or a Hub id, to start from.")
    model_revision: str = flag("Its branch, tag or commit on the Hub.", "main")
    token: str | None = flag("A Hub token, for private checkpoints.")
    cache_dir: str | None = flag("Where downloads and prepared data are kept.")
    tokenizer_name: str | None = flag("A tokenizer (folder or Hub id) or a vocab.txt, instead of the model's.")
    vocab_size: int = flag("Without tokenizer and model: the size of a vocabulary trained on the texts.", 30522)
    cased: bool = flag("A vocab.txt or a trained vocabulary keeps upper case.", False)
    split_digits: bool = flag("In a trained vocabulary each digit is a token of its own.", False)
    # None is "not chosen"; of `bool | None` the parser would make a flag that needs a value.
    position_embedding_type: str | None = flag(f"{KINDS_HELP}.", choices=POSITION_KINDS.keys())
    strip_accents: bool = flag("A vocab.txt or a trained vocabulary drops accents; not given: if it is not --cased.")
    pre_norm: bool = flag("LayerNorm before each sub-layer.")
    embedding_norm: bool = flag("LayerNorm on the summed embeddings.")
    scale_embedding: bool = flag("Token embeddings times sqrt(hidden_size).")
    hidden_size: int | None = flag("Width of the hidden states.")
    num_hidden_layers: int | None = flag("Encoder layers.")
    num_attention_heads: int | None = flag("Attention heads.")
    intermediate_size: int | None = flag("Width of the feed-forward layers.")
    max_position_embeddings: int | None = flag("Positions, where the position kind has a limit.")
    randomize_positions: int | None = flag(
        "N: in training, tokens stand at a random subset of the positions 0 to N - 1; rows that are packed do not."
    )
    initializer_range: float | None = flag("Spread of the random weights (0.02); narrow models learn faster from 0.06.")
    classifier_pooling: str | None = flag("What a classifier of whole texts reads.", choices=["cls", "mean"])
    hidden_dropout_prob: float | None = flag("Dropout on hidden states.")
    attention_probs_dropout_prob: float | None = flag("Dropout on attention weights.")
    classifier_dropout: float | None = flag("Dropout before the classifier.")
    bert_baseline: bool = flag("transformers' own BERT class instead of Plainformer's, to compare with.", False)

    def chosen(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of these fields that the user has given a value."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def hub_options(self) -> dict[str, Any]:
        """How the checkpoint is loaded from the Hub."""
        return {"revision": self.model_revision, "token": self.token, "cache_dir": self.cache_dir}

    def checkpoint_config(self) -> dict[str, Any]:
        """What `config.json` of --model_name_or_path says."""
        try:
            return PretrainedConfig.get_config_dict(self.model_name_or_path, **self.hub_options())[0]
        except (OSError, ValueError) as error:
            source = f"--model_name_or_path {self.model_name_or_path}"
            raise RecipeError(f"{source} has no config.json to read: {error}") from error

    def trained_label_ids(self) -> dict[str, int]:
        """The class names of --model_name_or_path with their ids, in the order of these; LABEL_0, ... for no names.

        The ids may stand in its config as text, and the names in one of the two maps alone. Where the two disagree
        id2label decides, as in transformers.
        """
        config = self.checkpoint_config()
        label2id, id2label = config.get("label2id"), config.get("id2label")
        count = config.get("num_labels") or 2
        pairs = [(name, number) for number, name in (id2label or {}).items()] or list((label2id or {}).items())
        pairs = pairs or [(f"LABEL_{number}", number) for number in range(count)]
        names, source = (
            [str(name) for name, _ in pairs],
            f"the config of --model_name_or_path {self.model_name_or_path}",
        )
        if twice := [name for name in names if names.count(name) > 1]:
            raise RecipeError(f"{source} has two labels {twice[0]!r}. Give each of them a name of its own in id2label.")
        try:
            return dict(sorted(((str(name), int(number)) for name, number in pairs), key=lambda pair: pair[1]))
        except (TypeError, ValueError) as error:
            problem = f"{source} numbers its labels as {dict(pairs)}"
            raise RecipeError(f"{problem}: {error}. Give each of them a whole number, from 0.") from error


@dataclass
class DataArguments:
    """Where the data is and how much of it is used. Each recipe adds the flags of its own."""

    dataset_name: str | None = flag("A dataset of the Hub, instead of files.")
    dataset_config_name: str | None = flag("Its configuration, where it has several.")
    train_file: str | None = flag("Training data: .csv .tsv .json .jsonl .txt .parquet or .conll.")
    validation_file: str | None = flag("Data to evaluate on, in any of these formats.")
    test_file: str | None = flag("Data to predict on; labels are not needed.")
    file_format: str | None = flag(f"How to read the files whatever their names are: {', '.join(FORMATS)}.")
    delimiter: str | None = flag("What is between the fields of .csv (a comma) or .tsv (tab): a character, or tab.")
    quoting: str | None = flag("Quotes around a field of .csv or .tsv: no part of it (double), or text (literal).")
    validation_split_percentage: int | None = flag("Without validation data: cut off so much of the training data.")
    max_train_samples: int | None = flag("For a try-out: train on so many rows, drawn at random with --seed.")
    max_eval_samples: int | None = flag("The same for evaluation.")
    max_predict_samples: int | None = flag("Predict the first so many rows only.")
    max_seq_length: int = flag("Longer inputs are cut at so many tokens.", 128)
    preprocessing_num_workers: int | None = flag("Processes that tokenize.")
    overwrite_cache: bool = flag("Tokenize anew, whatever is cached.", False)
    early_stopping_patience: int | None = flag("Stop after so many evaluations in a row without a better metric.")
    # The flags that the user gave; `parse_args` fills it in, and it is none of the flags.
    given: tuple[str, ...] = field(default=(), init=False, repr=False)

    def file_of(self, split: str) -> str | None:
        """The file that a split is read from, if any."""
        return getattr(self, f"{split}_file")

    def reading_options(self) -> dict[str, str | None]:
        """How CSV and TSV files are read."""
        delimiter = {"tab": "\t", "\\t": "\t"}.get(self.delimiter, self.delimiter)
        return {"delimiter": delimiter, "quoting": self.quoting}


Arguments = tuple[ModelArguments, DataArguments, TrainingArguments]


def parse_args(
    data_class: type[DataArguments], argv: Sequence[str] | None, description: str, **defaults: Any
) -> Arguments:
    """The command line, or a single .json or .yaml file; a RecipeError for unknown flags and for what does not fit.

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
    _check_numbers(given)
    _check_checkpoint(given.get("model_name_or_path"), given.get("tokenizer_name"))
    _check_tokenizer(given.get("tokenizer_name"))
    values = {**_general_defaults(given), **defaults, **given}
    try:
        model_args, data_args, training_args = parser.parse_dict(_evaluation_defaults(values) | values)
    except (ValueError, TypeError, ImportError) as error:
        raise RecipeError(str(error)) from error
    data_args.given = tuple(sorted(given))  # sorted: it is part of what prepared data is cached by
    if data_args.early_stopping_patience:  # or a run that is continued would wait anew
        training_args.restore_callback_states_from_checkpoint = True
    _check_together(model_args, data_args, training_args)
    transformers.set_seed(training_args.seed)
    return model_args, data_args, training_args


def _given(parser: HfArgumentParser, argv: list[str]) -> dict[str, Any]:
    """The values that the user gave, and no defaults."""
    if len(argv) == 1 and argv[0].endswith((".json", ".yaml", ".yml")):
        argv = _read_settings(argv[0])
    if {"-h", "--help"} & set(argv):  # while the parser still knows the defaults
        parser.parse_args(argv)
    names, unset = {action.dest for action in parser._actions} - {"help"}, object()
    parser.set_defaults(**dict.fromkeys(names, unset))
    namespace, unknown = parser.parse_known_args(argv)
    for name in [word.removeprefix("--").split("=")[0] for word in unknown]:
        close = difflib.get_close_matches(name, names, n=1)
        raise RecipeError(f"--{name} is no argument.{f' Did you mean --{close[0]}?' if close else ' See --help.'}")
    return {name: value for name, value in vars(namespace).items() if value is not unset}


def _read_settings(path: str) -> list[str]:
    """The words of the same command line, so that values are checked and converted as they are there."""
    import yaml  # comes with transformers

    read = json.loads if path.endswith(".json") else yaml.safe_load
    try:
        values = read(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RecipeError(f"{path} could not be read: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{path} holds no settings: write name: value pairs, or an object in JSON.")
    words = []
    for name, value in values.items():
        if isinstance(value, list):
            raise RecipeError(f"{path}: {name} is a list. Write it as on the command line, as one text: a,b.")
        if value is not None:
            words.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return words


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
        is_given = {name for name, value in given.items() if value}
        defaults["do_train"] = bool(is_given & {"dataset_name", "train_file"})
        defaults["do_eval"] = bool(is_given & {"dataset_name", "validation_file", "validation_split_percentage"})
        defaults["do_predict"] = "test_file" in is_given
    return defaults


def _evaluation_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Evaluate and save together and keep the best."""
    if not values.get("do_train") or not values.get("do_eval"):
        return {}
    by_steps = {"eval_steps", "save_steps"} & set(values)
    strategy = values.get("eval_strategy", values.get("save_strategy", "steps" if by_steps else "epoch"))
    defaults = {"eval_strategy": strategy, "save_strategy": strategy, "load_best_model_at_end": strategy != "no"}
    if strategy == "steps":
        steps = values.get("eval_steps", values.get("save_steps", 500))
        defaults |= {"eval_steps": steps, "save_steps": steps}
    return defaults


def _check_numbers(given: dict[str, Any]) -> None:
    """Raise a RecipeError for numbers that no training can use. -1 is how `max_steps` is left open."""
    for name, value in given.items():
        if not isinstance(value, (int, float)) or (name, value) == ("max_steps", -1):
            continue
        if name in AT_LEAST_1 and value < 1:
            raise RecipeError(f"--{name} {value}: give a whole number of at least 1.")
        if name in AT_LEAST_0 and not 0 <= value < math.inf:
            raise RecipeError(f"--{name} {value}: give a number of at least 0.")
        if name == "seed" and not 0 <= value < 2**32:
            raise RecipeError(f"--seed {value}: give a whole number from 0 to {2**32 - 1}.")
        if name in ABOVE_0 and not 0 < value < math.inf:
            raise RecipeError(f"--{name} {value}: give a number above 0.")
        if name in BELOW_1 and not 0 <= value < 1:
            raise RecipeError(f"--{name} {value}: give a number from 0 to below 1.")


def _check_checkpoint(source: str | None, tokenizer: str | None) -> None:
    """Raise a RecipeError for a path of `--model_name_or_path` that holds no model, or of the two no tokenizer.

    A Hub id is not looked up here.
    """
    if source is None:
        return
    name, folder = f"--model_name_or_path {source}", Path(source)
    if folder.is_file():
        raise RecipeError(f"{name} is a file: give the folder of a checkpoint, or a Hub id.")
    if not folder.exists():
        if _is_path(source):
            raise RecipeError(f"{name}: there is no such folder (looked from {os.getcwd()}).")
        return
    if (folder / "config.json").is_file():
        if tokenizer is None and not _has_tokenizer(folder):
            raise RecipeError(f"{name} holds a model but no tokenizer: give one as --tokenizer_name.")
        return
    if _has_tokenizer(folder):
        raise RecipeError(f"{name} holds a tokenizer but no model: give it as --tokenizer_name.")
    raise RecipeError(f"{name} holds no config.json: this is no model.{_named_checkpoint(folder)}")


def _check_tokenizer(source: str | None) -> None:
    """The same for `--tokenizer_name`, which may be a file too."""
    if source is None:
        return
    if _is_path(source) and not os.path.exists(source):
        raise RecipeError(f"--tokenizer_name {source}: there is no such folder or file (looked from {os.getcwd()}).")
    if os.path.isdir(source) and not _has_tokenizer(Path(source)):
        raise RecipeError(f"--tokenizer_name {source} holds no tokenizer: give another folder, or a vocab.txt.")


def _is_path(source: str) -> bool:
    """Whether it can be no Hub id, which is a name or owner/name."""
    return source[:1] in (".", "~", os.sep) or source.endswith(os.sep) or source.count("/") > 1 or "\\" in source


def _has_tokenizer(folder: Path) -> bool:
    patterns = ("tokenizer*", "vocab*", "*.model", "special_tokens_map.json")
    return any(path.is_file() for pattern in patterns for path in folder.glob(pattern))


def _named_checkpoint(folder: Path) -> str:
    """` Did you mean ...?` where a run that did not end has left a checkpoint in the folder."""
    found = sorted((path.parent for path in folder.glob("checkpoint-*/config.json")), key=lambda path: len(path.name))
    return f" Did you mean {found[-1]}?" if found else ""


def _check_together(model_args: ModelArguments, data_args: DataArguments, training_args: TrainingArguments) -> None:
    """Raise a RecipeError for flags that do not go together."""
    source, patience = model_args.model_name_or_path, data_args.early_stopping_patience
    if not (training_args.do_train or training_args.do_eval or training_args.do_predict):
        raise RecipeError("there is nothing to do: give --train_file, --validation_file, --test_file, --dataset_name.")
    if model_args.bert_baseline and (ours := model_args.chosen((*BEYOND_BERT, "classifier_pooling"))):
        raise RecipeError(f"--bert_baseline is BERT as it is, without {', '.join(ours)}: leave out one of the two.")
    if source and (chosen := model_args.chosen(ARCHITECTURE)):
        named = " ".join(f"--{name} {value}" for name, value in chosen.items())
        problem = f"{named} with --model_name_or_path {source}: a checkpoint brings its own architecture and weights."
        raise RecipeError(f"{problem} Leave out one of the two.")
    if not training_args.do_train and not source:
        raise RecipeError("without training there must be a model: give --model_name_or_path, or --train_file.")
    if patience and not training_args.load_best_model_at_end:
        remedy = "give --validation_file or --validation_split_percentage, and leave --load_best_model_at_end on."
        raise RecipeError(f"--early_stopping_patience {patience} needs evaluations while training: {remedy}")
    if getattr(training_args, "overwrite_output_dir", False):
        raise RecipeError("--overwrite_output_dir is not supported, so that no run is lost: name another --output_dir.")


def check_at_least(data_args: DataArguments, **least_of: int) -> None:
    """Raise a RecipeError for arguments that are given and smaller."""
    for name, least in least_of.items():
        value = getattr(data_args, name)
        if value is not None and value < least:
            raise RecipeError(f"--{name} {value}: give a whole number of at least {least}.")


def choose_metric(data_args: DataArguments, training_args: TrainingArguments, names: Sequence[str]) -> None:
    """Unless the user chose a metric, the first of the recipe's decides which model is the best.

    Any other than the recipe's is a RecipeError here, since Trainer would notice it at the first evaluation only.
    """
    if not training_args.load_best_model_at_end:
        return
    if "metric_for_best_model" not in data_args.given:
        training_args.metric_for_best_model = names[0]
    chosen, known = training_args.metric_for_best_model, dict.fromkeys((*names, "loss"))
    if chosen.removeprefix("eval_") not in known:
        raise RecipeError(f"--metric_for_best_model {chosen}: there is no such metric here, only {', '.join(known)}.")
    if "greater_is_better" not in data_args.given:
        training_args.greater_is_better = chosen.removeprefix("eval_") not in LOWER_IS_BETTER


def refuse_label_smoothing(training_args: TrainingArguments, task: str) -> None:
    """For tasks without class labels, where Trainer would hide the labels from the model."""
    if factor := training_args.label_smoothing_factor:
        problem = f"--label_smoothing_factor {factor} does not go with {task}"
        raise RecipeError(f"{problem}, whose labels are not one class each: leave it out.")
