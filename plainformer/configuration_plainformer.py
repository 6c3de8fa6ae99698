"""Every choice a Plainformer model leaves to its user, checked in one place."""

import copy
import difflib
import inspect
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import MISSING, Field
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from transformers.activations import ACT2FN
from transformers.utils import logging

from .code_plainformer import keep_code, read_code, restore_code, write_code
from .names_plainformer import OF_TRANSFORMERS, warn_about_unread
from .positions_plainformer import POSITION_KINDS

logger = logging.get_logger(__name__)

CLASSIFIER_POOLINGS = ("cls", "mean")
ACTIVATIONS = sorted(set(ACT2FN) - {"prelu", "xielu"})  # without those that have weights of their own
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")

# What `config.json` tells the Auto classes of a reader who has no plainformer installed. Every checkpoint lists them
# all, whichever head wrote it, so that each Auto class can open it.
AUTO_MAP = {
    "AutoConfig": "configuration_plainformer.PlainformerConfig",
    "AutoModel": "modeling_plainformer.PlainformerModel",
    "AutoModelForMaskedLM": "modeling_plainformer.PlainformerForMaskedLM",
    "AutoModelForSequenceClassification": "modeling_plainformer.PlainformerForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_plainformer.PlainformerForTokenClassification",
    "AutoModelForQuestionAnswering": "modeling_plainformer.PlainformerForQuestionAnswering",
    "AutoModelForMultipleChoice": "modeling_plainformer.PlainformerForMultipleChoice",
}


class PlainformerConfig(PretrainedConfig):
    """Configuration of a Plainformer encoder. The defaults are BERT-base.

    A subclass may have an `__init__` of its own. One that has none may declare fields (`width: int = 3`): they are
    further keywords, are saved, and set other defaults for fields of ours. With a `model_type` of its own it is
    another architecture, whose checkpoints are told apart from ours.

    Attributes:
        can_start_from: model types, besides its own, whose checkpoints a model of this configuration can start from.

    Args:
        vocab_size: entries of the vocabulary, V.
        hidden_size: width of the hidden states, E. A multiple of `num_attention_heads`.
        num_hidden_layers: encoder layers.
        num_attention_heads: attention heads, H; each is E / H wide.
        intermediate_size: width between the two linear maps of the feed-forward sub-layer.
        hidden_act: its activation, a name that `transformers.activations.ACT2FN` knows.
        hidden_dropout_prob: dropout on the embeddings and on each sub-layer's output.
        attention_probs_dropout_prob: dropout on the attention weights.
        max_position_embeddings: rows of the learned position table. Other positions have no limit.
        type_vocab_size: segments that `token_type_ids` may name; 0 for none, the ids are then ignored.
        initializer_range: standard deviation of the initial weights.
        layer_norm_eps: epsilon of every LayerNorm.
        pad_token_id: the id whose embedding starts at zero and gets no gradient; `None` for no such id. Padding is told
            by the `attention_mask` alone: without a mask these ids are tokens like any other.
        classifier_dropout: dropout before a classifier; `None` means `hidden_dropout_prob`.
        tie_word_embeddings: the masked-LM decoder shares the word embeddings.
        position_embedding_type: how a token learns its position: `"learned"` (a trained table), `"sinusoidal"`
            (the formula of Vaswani et al. 2017), `"rotary"` (queries and keys turn, Su et al. 2021), `"alibi"` (scores
            fall with the distance, Press et al. 2022), `"relative"` (a learned bias by distance, Raffel et al. 2020)
            or `"none"`, the control.
        pre_norm: LayerNorm before each sub-layer and once after the last layer (`norm_first` in torch.nn), instead of
            after each residual sum (Vaswani et al. 2017, BERT).
        embedding_norm: LayerNorm on the summed embeddings (BERT) or none (Vaswani et al. 2017).
        scale_embedding: multiply token embeddings by sqrt(E) before positions are added (Vaswani et al. 2017).
        classifier_pooling: what a sequence-level head reads: `"cls"`, the first real token, or `"mean"` over the
            real tokens.
        unpad_inputs: compute on real tokens only, where nothing else asks for the padded rectangle.
        sparse_prediction: in training, masked-LM logits only where there is a label.
        rope_theta: base of the angles of rotary positions; the larger, the slower the slowest columns turn.
        relative_attention_num_buckets: buckets of distances of relative positions, for keys on both sides together.
        relative_attention_max_distance: distances from here on have the last bucket.
        randomize_positions: N: in training the tokens of a text stand at a sorted random subset of the positions 0 to
            N - 1 (Ruoss et al. 2023), so that a model learns positions beyond the length of its texts; 0: they count.
        kwargs: whatever `PretrainedConfig` knows (`num_labels`, `id2label`, `problem_type`, `dtype`, ...).

    Raises:
        ValueError: a value that is out of range, or two that do not go together. The message names the field, the
            value and the remedy.
    """

    model_type = "plainformer"
    auto_maps = {model_type: AUTO_MAP}
    keys_to_ignore_at_inference = ["hidden_states", "attentions"]
    base_model_tp_plan = {  # tensor parallelism: each process computes some of the heads and of the inner width
        "layers.*.attention.q_proj": "colwise",
        "layers.*.attention.k_proj": "colwise",
        "layers.*.attention.v_proj": "colwise",
        "layers.*.attention.o_proj": "rowwise",
        "layers.*.mlp.fc1": "colwise",
        "layers.*.mlp.fc2": "rowwise",
    }
    can_start_from = ()
    _auto_class = "AutoConfig"

    def __init_subclass__(cls, *args: Any, **kwargs: Any) -> None:
        """Leave to a subclass what it inherits.

        transformers 5 makes a dataclass of it, whose `__init__` and `__eq__` would know the declared fields alone.
        """
        own, declared = set(vars(cls)), _declared_defaults(cls)
        super().__init_subclass__(*args, **kwargs)
        generated = {"__init__", "__eq__"} - own & vars(cls).keys()
        hidden = {name for name in declared if isinstance(getattr(PlainformerConfig, name, None), property)}
        for name in generated | hidden:  # a default on the class would hide a property of ours
            delattr(cls, name)
        if "__init__" not in own and declared:
            _add_init(cls, declared)
        keep_code(cls.__module__)

    def __init__(
        self,
        vocab_size: int = 30522,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        hidden_act: str = "gelu",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512,
        type_vocab_size: int = 2,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-12,
        pad_token_id: int | None = 0,
        classifier_dropout: float | None = None,
        tie_word_embeddings: bool = True,
        position_embedding_type: str = "learned",
        pre_norm: bool = False,
        embedding_norm: bool = True,
        scale_embedding: bool = False,
        classifier_pooling: str = "cls",
        unpad_inputs: bool = True,
        sparse_prediction: bool = True,
        rope_theta: float = 10000.0,
        relative_attention_num_buckets: int = 32,
        relative_attention_max_distance: int = 128,
        randomize_positions: int = 0,
        **kwargs: Any,
    ) -> None:
        is_new = "transformers_version" not in kwargs  # every saved configuration has it; what a file holds is no slip
        if is_new:
            unread = {name: value for name, value in kwargs.items() if name not in _names_of_subclasses(type(self))}
            warn_about_unread(type(self).__name__, unread, RULES)
        _read_labels(kwargs)
        if "auto_map" in kwargs:
            kwargs["auto_map"] = _own_auto_map(kwargs["auto_map"])
        output_attentions = kwargs.pop("output_attentions", False)  # transformers 5 would want the eager kernel for it
        super().__init__(**kwargs)
        self.output_attentions = output_attentions
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.max_position_embeddings = max_position_embeddings
        self.type_vocab_size = type_vocab_size
        self.initializer_range = initializer_range
        self.layer_norm_eps = layer_norm_eps
        self.pad_token_id = pad_token_id
        self.classifier_dropout = classifier_dropout
        self.tie_word_embeddings = tie_word_embeddings
        self.position_embedding_type = position_embedding_type
        self.pre_norm = pre_norm
        self.embedding_norm = embedding_norm
        self.scale_embedding = scale_embedding
        self.classifier_pooling = classifier_pooling
        self.unpad_inputs = unpad_inputs
        self.sparse_prediction = sparse_prediction
        self.rope_theta = rope_theta
        self.relative_attention_num_buckets = relative_attention_num_buckets
        self.relative_attention_max_distance = relative_attention_max_distance
        self.randomize_positions = randomize_positions
        self.check()
        if is_new:
            _warn_about_other_kinds(self, RULES)

    def check(self) -> None:
        """Raise a ValueError for the first field whose value cannot work.

        Models call it again when they are built, since a field may have been set after the configuration was made.
        """
        for field, (is_valid, expected) in RULES.items():
            value = getattr(self, field)
            if not is_valid(value):
                expected = expected() if callable(expected) else expected
                raise ValueError(f"{field}={value!r} is not valid: it must be {expected}.{_hint(field, value)}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads={self.num_attention_heads}: "
                "every head needs the same width. Change one of the two."
            )
        if self.pad_token_id is not None and self.pad_token_id >= self.vocab_size:
            raise ValueError(
                f"pad_token_id={self.pad_token_id} is outside the vocabulary (vocab_size={self.vocab_size}): "
                "give the id of your tokenizer's padding token, or None."
            )
        self._check_positions()
        for field in ("is_decoder", "add_cross_attention", "pruned_heads"):
            if getattr(self, field, False):
                raise ValueError(
                    f"{field}={getattr(self, field)!r} is not possible: Plainformer is an encoder. Leave it out."
                )
        if self.problem_type == "single_label_classification" and self.num_labels == 1:
            raise ValueError(
                "problem_type='single_label_classification' with num_labels=1 leaves nothing to choose: use "
                "num_labels=2, or problem_type='regression'."
            )

    def _check_positions(self) -> None:
        num_buckets, max_distance = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if max_distance <= num_buckets // 2:
            raise ValueError(
                f"relative_attention_max_distance={max_distance} is too near for relative_attention_num_buckets="
                f"{num_buckets}: each of the first {num_buckets // 2} distances has a bucket of its own. Give "
                f"more than {num_buckets // 2}, or fewer buckets."
            )
        if self.position_limit is not None and self.randomize_positions > self.position_limit:
            raise ValueError(
                f"randomize_positions={self.randomize_positions} is more than max_position_embeddings="
                f"{self.max_position_embeddings}, the limit of position_embedding_type="
                f"{self.position_embedding_type!r}: give at most as many, or raise max_position_embeddings."
            )

    def validate(self) -> None:
        """What transformers 5 calls before it saves. Its own rule, that attention weights need eager, is not ours."""
        self.check()

    @property
    def num_random_positions(self) -> int:
        """How many positions are drawn from in training; 0: they are counted, or nobody reads them."""
        kind = POSITION_KINDS[self.position_embedding_type]
        return self.randomize_positions if kind.reads_positions else 0

    @property
    def position_limit(self) -> int | None:
        """The longest text, in tokens; None where the kind of position holds for any length."""
        return self.max_position_embeddings if POSITION_KINDS[self.position_embedding_type].has_limit else None

    @property
    def output_attentions(self) -> bool:
        """Whether models return attention weights. Unlike transformers' own, it goes with every kernel."""
        return self._output_attentions

    @output_attentions.setter
    def output_attentions(self, value: bool) -> None:
        self._output_attentions = value

    def __eq__(self, other: object) -> bool:
        """Equal when every field is, those of ours included (a dataclass, as in transformers 5, knows only its own)."""
        return isinstance(other, PretrainedConfig) and self.__dict__ == other.__dict__

    def to_dict(self) -> dict[str, Any]:
        """The configuration as a dictionary, with the full `auto_map` of Auto classes."""
        output = super().to_dict()
        own, auto_map = self.auto_maps.get(self.model_type, {}), output.get("auto_map", {})
        if not own:  # our classes refuse the files of another architecture
            auto_map = {name: reference for name, reference in auto_map.items() if not self._is_ours(reference)}
        if own or auto_map:
            output["auto_map"] = {**own, **auto_map}
        else:
            output.pop("auto_map", None)
        return output

    def _is_ours(self, reference: str) -> bool:
        ours = (name for auto_map in self.auto_maps.values() for name in auto_map.values())
        return any(str(reference).startswith(f"{name.partition('.')[0]}.") for name in ours)

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any) -> None:
        """Write `config.json`, and beside it the code that its `auto_map` names, whoever is saving.

        transformers copies the file of the class being saved; for a subclass of yours that is not this package's.
        A reader who loaded nothing but the configuration has no modeling file to copy.
        """
        references = (reference for auto_map in self.auto_maps.values() for reference in auto_map.values())
        files = {f"{reference.partition('.')[0]}.py" for reference in references}
        code = [read_code(Path(__file__).with_name(file)) for file in files]
        if all(code) and not os.path.isfile(save_directory):
            for files in code:
                write_code(files, save_directory)
        restore_code(type(self).__module__)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers; another `num_labels` than the dictionary's replaces its label names."""
        _read_labels(kwargs)
        names, num_labels = config_dict.get("id2label"), kwargs.get("num_labels")
        if names is not None and num_labels is not None and len(names) != num_labels:
            config_dict = {key: value for key, value in config_dict.items() if key not in ("id2label", "label2id")}
        returns_unused = kwargs.pop("return_unused_kwargs", False)
        config_dict = {"transformers_version": None, **config_dict}  # see `__init__`
        config, unused = super().from_dict(config_dict, return_unused_kwargs=True, **kwargs)
        _warn_about_other_kinds(config, kwargs)
        if returns_unused:
            return config, unused
        warn_about_unread(cls.__name__, unused, RULES, warns_about_strange=False)  # some are meant for others
        return config

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike) -> "PlainformerConfig":
        """As in transformers, but a file of another architecture is refused."""
        return cls.from_dict(cls.get_config_dict(json_file)[0])

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | os.PathLike, **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read `config.json`, and refuse that of another architecture, unless it is in `can_start_from`.

        transformers would warn, and then give random weights.
        """
        config_dict, unused = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        model_type = config_dict.get("model_type", cls.model_type)
        refuse_other_model_type([model_type], cls, pretrained_model_name_or_path)
        if model_type != cls.model_type:
            theirs = ("auto_map", "architectures")  # name classes of the other architecture
            config_dict = {key: value for key, value in config_dict.items() if key not in theirs}
            config_dict["model_type"] = cls.model_type
        return config_dict, unused


def model_types(config_class: type) -> list[str]:
    """The model type of a configuration class, and then those of the classes that it is a subclass of.

    A class that came with a checkpoint (trust_remote_code) is not the installed one, but has the same model type.
    """
    return list(dict.fromkeys(getattr(base, "model_type", "") for base in config_class.__mro__))


def refuse_other_model_type(found: list[str], config_class: type, source: str | os.PathLike) -> None:
    """Raise a ValueError that names the model type of `source`, and the remedy, unless a model can be built from it.

    Args:
        found: the model type of a file, or the `model_types` of a configuration.
        config_class: the configuration that a model was written for.
    """
    expected, other = config_class.model_type, found[0]
    if expected in found or other in getattr(config_class, "can_start_from", ()):
        return
    remedy = "Open it with AutoModel, or with the class that wrote it, whose config_class has this model type."
    ours = PlainformerConfig.model_type
    if other == "bert" and ours in (expected, *config_class.can_start_from):
        remedy = "Convert it with plainformer.from_bert(...)."
    elif expected != ours:
        remedy += f" Where its weights fit nevertheless, name it in {config_class.__name__}.can_start_from."
    raise ValueError(
        f"{source!s} is of model_type={other!r}, not {expected!r}: a model of {config_class.__name__} would not "
        f"read its weights. {remedy}"
    )


def _declared_defaults(config_class: type) -> dict[str, Any]:
    """What a class body declares as `name: type = default`, with the defaults as they stand there."""
    defaults = {}
    for name, annotation in inspect.get_annotations(config_class).items():
        # Not the attributes of the class itself, as `model_type`.
        is_field = name in OF_TRANSFORMERS or not hasattr(PretrainedConfig, name)
        if name in vars(config_class) and is_field and "ClassVar" not in str(annotation):
            defaults[name] = vars(config_class)[name]
    return defaults


def _add_init(config_class: type, declared: dict[str, Any]) -> None:
    """An `__init__` that takes the declared fields as keywords, and leaves the rest to the class above."""

    def __init__(self: PretrainedConfig, *args: Any, **kwargs: Any) -> None:
        defaults = {name: _make_default(default) for name, default in declared.items()}
        super(config_class, self).__init__(*args, **{**defaults, **kwargs})

    config_class.__init__ = __init__


def _make_default(default: Any) -> Any:
    if not isinstance(default, Field):
        return copy.deepcopy(default)
    return default.default if default.default_factory is MISSING else default.default_factory()


def _names_of_subclasses(config_class: type) -> set[str]:
    """What subclasses of ours have or take: their attributes, and the parameters of their constructors."""
    bases = config_class.__mro__[: config_class.__mro__.index(PlainformerConfig)]
    return set().union(
        *((*vars(base), *inspect.get_annotations(base), *inspect.signature(base.__init__).parameters) for base in bases)
    )


def _is_int(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_probability(value: Any) -> bool:
    return _is_number(value) and 0 <= value < 1


def _is_positive(value: Any) -> bool:
    return _is_number(value) and 0 < value < float("inf")


_POSITIVE_INT = (lambda value: _is_int(value, 1), "an integer of at least 1")
_BOOL = (lambda value: isinstance(value, bool), "True or False")
_PROBABILITY = (_is_probability, "a number of at least 0 and below 1")
_POSITIVE = (_is_positive, "a number above 0")

# field: (what holds for a valid value, the same in words)
RULES: dict[str, tuple[Callable[[Any], bool], str | Callable[[], str]]] = {
    "vocab_size": _POSITIVE_INT,
    "hidden_size": _POSITIVE_INT,
    "num_hidden_layers": _POSITIVE_INT,
    "num_attention_heads": _POSITIVE_INT,
    "intermediate_size": _POSITIVE_INT,
    "hidden_act": (
        lambda value: isinstance(value, str) and value in ACTIVATIONS,
        f"one of {', '.join(ACTIVATIONS)}",
    ),
    "hidden_dropout_prob": _PROBABILITY,
    "attention_probs_dropout_prob": _PROBABILITY,
    "max_position_embeddings": _POSITIVE_INT,
    "type_vocab_size": (lambda value: _is_int(value, 0), "an integer of at least 0 (0: no segment embeddings)"),
    "initializer_range": _POSITIVE,
    "layer_norm_eps": _POSITIVE,
    "pad_token_id": (lambda value: value is None or _is_int(value, 0), "None or an integer of at least 0"),
    "classifier_dropout": (
        lambda value: value is None or _is_probability(value),
        "None (hidden_dropout_prob is used) or a number of at least 0 and below 1",
    ),
    "tie_word_embeddings": _BOOL,
    "position_embedding_type": (
        lambda value: isinstance(value, str) and value in POSITION_KINDS,
        lambda: f"one of {', '.join(map(repr, POSITION_KINDS))}",  # late: kinds may be added
    ),
    "pre_norm": _BOOL,
    "embedding_norm": _BOOL,
    "scale_embedding": _BOOL,
    "classifier_pooling": (
        lambda value: value in CLASSIFIER_POOLINGS,
        f"one of {', '.join(map(repr, CLASSIFIER_POOLINGS))}",
    ),
    "unpad_inputs": _BOOL,
    "sparse_prediction": _BOOL,
    "rope_theta": (lambda value: _is_positive(value) and value >= 1, "a number of at least 1"),
    "relative_attention_num_buckets": (
        lambda value: _is_int(value, 4) and value % 2 == 0,
        "an even integer of at least 4",
    ),
    "relative_attention_max_distance": _POSITIVE_INT,
    "randomize_positions": (lambda value: _is_int(value, 0), "an integer of at least 0 (0: positions count)"),
    "problem_type": (
        lambda value: value is None or value in PROBLEM_TYPES,
        f"None (inferred from the labels) or one of {', '.join(map(repr, PROBLEM_TYPES))}",
    ),
}


def _warn_about_other_kinds(config: PlainformerConfig, given: Collection[str]) -> None:
    """Warn about fields among `given` that are set, and that the kind of positions does not read."""
    chosen = POSITION_KINDS.get(config.position_embedding_type)
    if chosen is None:  # a model will not be built
        return
    readers = {field: name for name, kind in POSITION_KINDS.items() for field in kind.fields}
    unread = {field: f"only {name!r} reads it" for field, name in readers.items() if field not in chosen.fields}
    if not chosen.reads_positions:
        unread["randomize_positions"] = "it has no positions"
    defaults = inspect.signature(PlainformerConfig.__init__).parameters
    for field, reason in unread.items():
        if field in given and (value := getattr(config, field)) != defaults[field].default:
            logger.warning(
                f"{field}={value!r} changes nothing with position_embedding_type="
                f"{config.position_embedding_type!r}: {reason}."
            )


def _hint(field: str, value: Any) -> str:
    if field == "position_embedding_type" and value == "absolute":
        return " What BERT calls 'absolute' is 'learned' here."
    close = difflib.get_close_matches(str(value), ACTIVATIONS, n=1) if field == "hidden_act" else []
    if close:
        return f" Did you mean {close[0]!r}?"
    return " It takes plain Python numbers: call .item() on it." if hasattr(value, "item") else ""


def _read_labels(kwargs: dict[str, Any]) -> None:
    """Check the label names of `kwargs`; each of the two maps gives the other, and numbers as text become numbers.

    Which numbers there are matters to heads with classes alone: see `count_classes`.
    """
    num_labels, id2label, label2id = (kwargs.get(name) for name in ("num_labels", "id2label", "label2id"))
    if "num_labels" in kwargs and not _is_int(num_labels, 1):
        raise ValueError(f"num_labels={num_labels!r} is not valid: it must be an integer of at least 1.")
    if label2id is not None:
        numbers = _read_label_ids("label2id", label2id, getattr(label2id, "values", list)())
        label2id = kwargs["label2id"] = dict(zip(label2id, numbers, strict=True))
    if id2label is not None:
        numbers = _read_label_ids("id2label", id2label, getattr(id2label, "keys", list)())
        id2label = kwargs["id2label"] = dict(zip(numbers, id2label.values(), strict=True))
        if label2id is None:  # zero-shot pipelines look a name up in it
            kwargs["label2id"] = {label: index for index, label in id2label.items()}
    elif label2id is not None:
        id2label = kwargs["id2label"] = {index: label for label, index in sorted(label2id.items(), key=lambda x: x[1])}
        if len(id2label) < len(label2id):
            raise ValueError(f"label2id={label2id!r} gives two names one number: give each label a number of its own.")
    if num_labels is not None and id2label is not None and len(id2label) != num_labels:
        raise ValueError(
            f"num_labels={num_labels} does not go with an id2label of {len(id2label)} entries ({id2label}): "
            "give one name per label, or leave one of the two out."
        )


def _read_label_ids(field: str, names: Any, ids: Iterable[Any]) -> list[int]:
    """The numbers of the labels; a ValueError unless they are whole numbers, or text that says one."""
    try:
        numbers = [int(number) for number in ids]
        if numbers and all(str(number) == str(given).strip() for number, given in zip(numbers, ids, strict=True)):
            return numbers
    except (TypeError, ValueError):
        pass
    example = {0: "no", 1: "yes"} if field == "id2label" else {"no": 0, "yes": 1}
    raise ValueError(f"{field}={names!r} is not valid: it must number the labels, as {example}.")


def _own_auto_map(auto_map: dict[str, Any]) -> dict[str, Any]:
    """Drop the repository from `someone/repo--file.Class`: the code is copied into whatever folder is saved next."""
    return {name: ref.split("--")[-1] if isinstance(ref, str) else ref for name, ref in auto_map.items()}


keep_code(__name__)
