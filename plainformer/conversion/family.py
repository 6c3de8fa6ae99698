"""What must be known about a family of checkpoints in order to read and to write them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Family:
    """The table of a family: names of modules, classes and fields, and what is refused.

    Names of parameters stand without the encoder's own prefix, `plainformer.` on our side and `prefix` on theirs.

    Attributes:
        title: the family in messages.
        model_type: its value in the family's config.json.
        reader, writer: the public functions, as messages call them.
        config_class: the name of its configuration in transformers.
        classes: the name of each of our classes, and of theirs for the same task in transformers.
        prefix: what a class with a head puts before the names of its encoder's parameters.
        modules: a module of ours, `{}` for the index of a layer: the same module of theirs.
        encoder: beginnings of names inside the encoder; a checkpoint must have all of these.
        pooler: beginnings of other names that a class with a head keeps under `prefix`.
        word_embeddings: the name of the word embeddings' weight.
        decoder: the name of the masked LM's decoder weight, which may be tied to the word embeddings.
        renamed: what parts of names were called in older files, and what they are called now.
        second_names: a second name of a parameter, by which their classes hold the same tensor: its first name.
        label_layers: beginnings of names of final layers whose width is the number of labels.
        buffers: names of buffers that older versions of transformers saved among the weights.
        choices: what our fields must say for the model to compute what the family computes.
        choices_of_pooling: those among `choices` that matter only to a head that pools.
        minimums: a field of ours, and the smallest value that the family can express, with the reason.
        fixed_fields: our fields that say what the weights mean; all other fields may change on the way in.
        file_fields: fields of config.json that describe the file or its class, or what is refused anyway; they are
            never copied or overridden.
        refused: a field of their config.json that asks for what we cannot compute: the values that do not ask for it.
        refusal_remedy: what to do with a checkpoint that is refused by `refused`.
        remedies: what to do with a config.json of another model_type; `other_remedy` where it is not listed.
        written_fields: fields of config.json that are written as they stand here.
        class_fields: of one of their classes, further fields that are written as they stand here.
        class_options: of one of their classes, the options to build it with.
        class_notes: of one of their classes, the warning after it was written; `{folder}` stands for the folder.
    """

    title: str
    model_type: str
    reader: str
    writer: str
    config_class: str
    classes: Mapping[str, str]
    prefix: str
    modules: Mapping[str, str]
    encoder: tuple[str, ...]
    pooler: tuple[str, ...]
    word_embeddings: str
    decoder: str
    renamed: Mapping[str, str]
    second_names: Mapping[str, str]
    label_layers: tuple[str, ...]
    buffers: tuple[str, ...]
    choices: Mapping[str, Any]
    choices_of_pooling: tuple[str, ...]
    minimums: Mapping[str, tuple[int, str]]
    fixed_fields: tuple[str, ...]
    file_fields: frozenset[str]
    refused: Mapping[str, tuple[Any, ...]]
    refusal_remedy: str
    remedies: Mapping[str | None, str]
    other_remedy: str
    written_fields: Mapping[str, Any]
    class_fields: Mapping[str, Mapping[str, Any]]
    class_options: Mapping[str, Mapping[str, Any]]
    class_notes: Mapping[str, str]

    def name_of(self, name: str) -> str | None:
        """Their name for a parameter of ours, both without the encoder's prefix; `None` where they have none."""
        module, _, parameter = name.removeprefix("plainformer.").rpartition(".")
        index = re.compile(r"(?<=\.)\d+(?=\.)")
        theirs = self.modules.get(index.sub("{}", module))
        return None if theirs is None else f"{theirs.format(*index.findall(module))}.{parameter}"
