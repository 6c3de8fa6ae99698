"""Tokenizer and model: from a Plainformer or BERT checkpoint, or new ones."""

import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..configuration_seq2seq_plainformer import PlainformerSeq2SeqConfig
from ..conversion import BERT_CLASSES, from_bert
from ..positions_plainformer import POSITION_KINDS
from ..tokenization_plainformer import describe_lost_marks, load_tokenizer, train_tokenizer
from .arguments import ARCHITECTURE, DataArguments, ModelArguments
from .errors import RecipeError
from .run_folder import Run, head_of

RARE = "\U00012000"  # a letter of cuneiform, which hardly a vocabulary has
ADJUSTABLE = ("classifier_pooling", "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")

LENGTHS = ("max_seq_length", "max_target_length", "max_new_tokens")  # the flags that positions limit


def load_tokenizer_for(run: Run, read_texts: Callable[[], Iterable[str]], columns: int = 1) -> PreTrainedTokenizerBase:
    """That of the continued checkpoint, `--tokenizer_name`, the model's, or a new one, trained on `read_texts()`.

    `columns` is 2 where rows are pairs of texts, which need more room (`--max_seq_length`).
    """
    model_args = run.model_args
    source = run.checkpoint or model_args.tokenizer_name or model_args.model_name_or_path
    length = model_args.max_position_embeddings or 512
    options = {"do_lower_case": not model_args.cased, "strip_accents": model_args.strip_accents}
    options["model_max_length"] = length
    try:
        if source is None:
            options |= {"split_digits": model_args.split_digits, "show_progress": run.is_main}
            tokenizer = train_tokenizer(read_texts(), model_args.vocab_size, **options)
        elif os.path.isfile(source):
            tokenizer = load_tokenizer(source, **options)
        else:
            # A BERT tokenizer needs no code of a checkpoint, and False keeps transformers from asking.
            is_of_model = source == model_args.model_name_or_path
            hub = model_args.hub_options() if is_of_model else {"token": model_args.token}
            tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **hub)
    except (ValueError, TypeError, OSError) as error:
        raise RecipeError(f"no tokenizer from {source or 'the texts'}: {error}") from error
    _check_room(tokenizer, run.data_args.max_seq_length, columns)
    if source is None:  # a new one knows all characters, and has looked for lost marks itself
        return tokenizer
    _check_unknown(tokenizer, source)
    if model_args.model_name_or_path not in (None, source) and not run.checkpoint:
        _report_other_entries(run, tokenizer)
    if run.training_args.do_train and run.is_main:
        _report_lost_marks(run, tokenizer, source, read_texts)
    return tokenizer


def _check_unknown(tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    """Raise a RecipeError for a tokenizer that fails at a character which its vocabulary does not have."""
    try:
        tokenizer(RARE)
    except Exception as error:  # the tokenizers library raises no narrower one
        remedy = "Add an entry for it to the vocabulary, such as [UNK], or choose another tokenizer"
        raise RecipeError(
            f"the tokenizer of {source} has no entry for what it does not know ({error}). {remedy}."
        ) from error


def _check_room(tokenizer: PreTrainedTokenizerBase, length: int | None, columns: int) -> None:
    """Raise a RecipeError where no token of a text fits into `length`: tokenizers ignore a limit that is too small."""
    special = tokenizer.num_special_tokens_to_add(pair=columns == 2)
    if length is not None and length < special + columns:
        needs = f"{special} are special tokens, and each text needs one of its own"
        raise RecipeError(f"--max_seq_length {length}: give a whole number of at least {special + columns}: {needs}.")


def _report_other_entries(run: Run, tokenizer: PreTrainedTokenizerBase) -> None:
    """One line where ids of `--tokenizer_name` are other entries than in the model's own tokenizer, if it has one."""
    source = run.model_args.model_name_or_path
    try:
        own = AutoTokenizer.from_pretrained(source, trust_remote_code=False, **run.model_args.hub_options()).get_vocab()
    except (ValueError, TypeError, OSError, KeyError):  # KeyError: what 4.57 raises where there is none
        return
    vocab = tokenizer.get_vocab()
    others = [entry for entry, number in vocab.items() if own.get(entry) != number]
    if others:
        problem = f"{len(others)} of {len(vocab)} entries of --tokenizer_name {run.model_args.tokenizer_name}"
        problem += f" have other ids in the tokenizer of {source}, such as {others[0]!r}"
        run.say(f"{problem}: what the model knows of these ids is of other entries")


def _report_lost_marks(
    run: Run, tokenizer: PreTrainedTokenizerBase, source: str, read_texts: Callable[[], Iterable[str]]
) -> None:
    """One line where a tokenizer that was not made for these texts drops many of their accents and vowel signs."""
    normalizer = tokenizer.backend_tokenizer.normalizer if tokenizer.is_fast else None
    if normalizer is None or normalizer.normalize_str("é") == "é":  # it keeps marks: the texts need not be read
        return
    characters: Counter[str] = Counter()
    for text in read_texts():
        characters.update(text)
    if lost := describe_lost_marks(normalizer.normalize_str, characters):
        remedy = "choose a cased checkpoint, or one whose tokenizer has strip_accents=False"
        if os.path.isfile(source):
            remedy = "give --strip_accents false or --cased, if the vocabulary was made so"
        run.say(f"{lost} To keep them, {remedy}.")


def check_knows_words(tokenizer: PreTrainedTokenizerBase, task: str) -> None:
    """Raise a RecipeError for a tokenizer written in Python, which cannot say where its pieces stand in a text."""
    if not tokenizer.is_fast:
        problem = f"{type(tokenizer).__name__} is written in Python and cannot say which word a piece is of, nor where"
        remedy = "give a fast tokenizer (a folder with tokenizer.json), or a vocab.txt, as --tokenizer_name"
        raise RecipeError(f"{task} needs to know the words: {problem} it stands: {remedy}.")


def load_model(
    run: Run, tokenizer: PreTrainedTokenizerBase, labels: list[str] | None = None, **config_fields: Any
) -> PreTrainedModel:
    """The model of the run's class: from a Plainformer or BERT checkpoint, or from random weights.

    `model.config.label2id` numbers the labels: as in the checkpoint where it was trained for the same ones, else in the
    order of `labels`. A classifier that was trained for other labels is replaced by a new one. What cannot be used or
    does not fit is a RecipeError.
    """
    model_args, model_class = run.model_args, run.model_class
    fields = {**model_args.chosen(ADJUSTABLE), **config_fields}
    if labels:
        fields |= {"id2label": dict(enumerate(labels)), "label2id": {name: i for i, name in enumerate(labels)}}
    if model_args.bert_baseline:
        if model_class.__name__ not in BERT_CLASSES:
            raise RecipeError(f"--bert_baseline: BERT has no class like {model_class.__name__}. Leave it out.")
        model_class = getattr(transformers, BERT_CLASSES[model_class.__name__])
    try:
        if model_args.model_name_or_path:
            model = _from_checkpoint(model_args, model_class, fields)
        else:
            fields |= {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
            model = model_class(model_class.config_class(**model_args.chosen(ARCHITECTURE), **fields))
    except RecipeError:
        raise
    except (ValueError, TypeError, OSError) as error:
        source = model_args.model_name_or_path
        raise RecipeError(f"--model_name_or_path {source}: {error}" if source else str(error)) from error
    _fit_together(model, tokenizer, run.data_args)
    run.say(f"{type(model).__name__}, {model.num_parameters():,} parameters")
    return model


def _from_checkpoint(model_args: ModelArguments, model_class: type, fields: dict[str, Any]) -> PreTrainedModel:
    source, hub = model_args.model_name_or_path, model_args.hub_options()
    old = model_args.checkpoint_config()
    kind, is_baseline = old.get("model_type"), model_args.bert_baseline
    if is_baseline and kind != "bert":
        raise RecipeError(f"--bert_baseline starts from a BERT checkpoint, and {source} is a {kind}.")
    config_class = model_class.config_class
    readable = dict.fromkeys((config_class.model_type, *getattr(config_class, "can_start_from", ()), "bert"))
    if kind not in readable:
        remedy = f"give a {' or '.join(readable)} checkpoint."
        if kind == PlainformerSeq2SeqConfig.model_type:
            remedy = "its encoder is one to start from, once model.plainformer.save_pretrained(FOLDER) has written it."
        raise RecipeError(f"--model_name_or_path {source} is of model_type {kind!r}: {remedy}")
    has_head = head_of(old.get("architectures")) == head_of([model_class.__name__])
    old_labels = model_args.trained_label_ids() if has_head else {}
    keeps_head = "label2id" in fields and has_head and set(old_labels) == set(fields["label2id"])
    if keeps_head:  # with the numbers that it was trained with
        fields |= {"label2id": old_labels, "id2label": {i: name for name, i in old_labels.items()}}
    if kind == "bert" and not is_baseline:
        model = from_bert(source, model_class, **hub, **fields)
    else:
        model = model_class.from_pretrained(source, ignore_mismatched_sizes=True, dtype=torch.float32, **hub, **fields)
    if "label2id" in fields and not keeps_head and hasattr(model, "classifier"):
        # Weights of a classifier mean nothing for other labels, not even where their number is the same.
        model.classifier.load_state_dict(type(model)(model.config).classifier.state_dict())
        if has_head:
            print(f"the labels are not those of {source} ({', '.join(old_labels)}): new classifier")
    return model


def _fit_together(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, data_args: DataArguments) -> None:
    """Raise a RecipeError where the model has too few entries for the tokenizer, or positions for a length."""
    config = model.config
    if len(tokenizer) > config.vocab_size:
        problem = f"the tokenizer has {len(tokenizer)} entries, and the model was made for {config.vocab_size}"
        raise RecipeError(f"{problem}: leave out --tokenizer_name, so that the model's own is used.")
    limit = getattr(config, "position_limit", config.max_position_embeddings)  # BERT's has no such property
    if limit is None:
        return
    tokenizer.model_max_length = min(tokenizer.model_max_length, limit)  # whatever the tokenizer was made for
    for name in LENGTHS:
        length = getattr(data_args, name, None)
        if length is not None and length > limit:
            problem = f"is more than the {limit} positions of the model (max_position_embeddings): give at most {limit}"
            unlimited = ", ".join(name for name, kind in POSITION_KINDS.items() if not kind.has_limit)
            remedy = f"or choose a --position_embedding_type without a limit ({unlimited})"
            raise RecipeError(f"--{name} {length} {problem}, {remedy}.")
