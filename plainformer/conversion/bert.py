"""BERT: its table, and the two functions that go by it.

A post-norm Plainformer with learned positions computes what BERT computes. `from_bert` reads any BERT checkpoint into
one, `to_bert` writes one as a BERT checkpoint.
"""

import os
from typing import TYPE_CHECKING, Any

import torch

from ..configuration_plainformer import PlainformerConfig
from ..modeling_plainformer import PlainformerModel
from ..pretrained_plainformer import PlainformerPreTrainedModel
from .family import Family
from .reading import read_checkpoint
from .writing import write_checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BERT_CLASSES = {
    "PlainformerModel": "BertModel",
    "PlainformerForMaskedLM": "BertForMaskedLM",
    "PlainformerForSequenceClassification": "BertForSequenceClassification",
    "PlainformerForTokenClassification": "BertForTokenClassification",
    "PlainformerForQuestionAnswering": "BertForQuestionAnswering",
    "PlainformerForMultipleChoice": "BertForMultipleChoice",
}

BERT = Family(
    title="BERT",
    model_type="bert",
    reader="from_bert",
    writer="to_bert",
    config_class="BertConfig",
    classes=BERT_CLASSES,
    prefix="bert.",
    modules={
        "embeddings.word_embeddings": "embeddings.word_embeddings",
        "embeddings.position_embeddings": "embeddings.position_embeddings",
        "embeddings.token_type_embeddings": "embeddings.token_type_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{}.attention.q_proj": "encoder.layer.{}.attention.self.query",
        "layers.{}.attention.k_proj": "encoder.layer.{}.attention.self.key",
        "layers.{}.attention.v_proj": "encoder.layer.{}.attention.self.value",
        "layers.{}.attention.o_proj": "encoder.layer.{}.attention.output.dense",
        "layers.{}.attn_norm": "encoder.layer.{}.attention.output.LayerNorm",
        "layers.{}.mlp.fc1": "encoder.layer.{}.intermediate.dense",
        "layers.{}.mlp.fc2": "encoder.layer.{}.output.dense",
        "layers.{}.mlp_norm": "encoder.layer.{}.output.LayerNorm",
        "pooler.dense": "pooler.dense",
        "classifier": "classifier",
        "qa_outputs": "qa_outputs",
        "lm_head.dense": "cls.predictions.transform.dense",
        "lm_head.norm": "cls.predictions.transform.LayerNorm",
        "lm_head.decoder": "cls.predictions.decoder",
    },
    encoder=("embeddings.", "encoder."),
    pooler=("pooler.",),
    word_embeddings="embeddings.word_embeddings.weight",
    decoder="cls.predictions.decoder.weight",
    renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    second_names={"cls.predictions.bias": "cls.predictions.decoder.bias"},
    label_layers=("classifier.", "qa_outputs."),
    buffers=("embeddings.position_ids", "embeddings.token_type_ids"),
    choices={
        "position_embedding_type": "learned",
        "pre_norm": False,
        "embedding_norm": True,
        "scale_embedding": False,
        "classifier_pooling": "cls",
    },
    choices_of_pooling=("classifier_pooling",),
    minimums={"type_vocab_size": (1, "BERT always adds segment embeddings")},
    fixed_fields=(
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "hidden_act",
        "max_position_embeddings",
        "type_vocab_size",
        "layer_norm_eps",
        "position_embedding_type",
        "pre_norm",
        "embedding_norm",
        "scale_embedding",
    ),
    file_fields=frozenset(
        {
            "_name_or_path",
            "add_cross_attention",
            "architectures",
            "auto_map",
            "dtype",
            "is_decoder",
            "is_encoder_decoder",
            "model_type",
            "pruned_heads",
            "transformers_version",
        }
    ),
    refused={
        "position_embedding_type": (None, "absolute"),
        "is_decoder": (None, False),
        "add_cross_attention": (None, False),
        "pruned_heads": (None, {}),
        "quantization_config": (None,),
    },
    refusal_remedy="Use transformers.AutoModel, or a checkpoint without it.",
    remedies={
        None: "If it is a BERT (the oldest files do not say), add that line to it.",
        PlainformerConfig.model_type: "Open it with from_pretrained.",
    },
    other_remedy="from_bert reads BERT checkpoints only; transformers.AutoModel opens others.",
    written_fields={"position_embedding_type": "absolute"},  # the newest transformers has dropped it; servers read it
    class_fields={"BertForQuestionAnswering": {"num_labels": 2}},  # the start and the end: the width of its last layer
    class_options={"BertModel": {"add_pooling_layer": False}},
    class_notes={
        "BertModel": "{folder} holds a BERT without a pooler, since the base model has none. Load it with "
        "BertModel.from_pretrained(folder, add_pooling_layer=False), or transformers adds a random one."
    },
)


def from_bert(
    source: str | os.PathLike,
    model_class: type[PlainformerPreTrainedModel] = PlainformerModel,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike | None = None,
    subfolder: str = "",
    local_files_only: bool = False,
    dtype: str | torch.dtype | None = None,
    **config_overrides: Any,
) -> PlainformerPreTrainedModel:
    """Read a BERT checkpoint into a Plainformer model that gives BERT's own numbers.

    Any checkpoint of `model_type: "bert"` will do, whichever BERT class wrote it: safetensors are preferred, and
    `pytorch_model.bin` is read as data only, never executed. What the file lacks (a classifier, say) is newly
    initialised, what the model has no place for is left out, and one logged warning names both.

    The numbers are BERT's at real tokens of right-padded text. Elsewhere Plainformer keeps to its own promises: hidden
    states at padding are zero, and left padding changes nothing.

    Args:
        source: a folder, or the id of a model on the Hub.
        model_class: the Plainformer class to build, or a subclass of yours.
        revision, token, cache_dir, subfolder, local_files_only: where to look, as in `from_pretrained`.
        dtype: of the weights: a torch dtype or its name; `"auto"` for that of the file. By default float32, whatever
            the file holds and whatever the version of transformers, so that the model can be trained as it is.
        config_overrides: fields that may differ from the file's: labels (`num_labels`, `id2label`, `label2id`,
            `problem_type`), dropouts, `classifier_pooling`, `attn_implementation`, .... A classifier whose shape no
            longer fits is newly initialised. `tie_word_embeddings=False` gives the decoder weights of its own.

    Returns:
        The model, in eval mode. Its `name_or_path` is the source.

    Raises:
        ValueError: the checkpoint is not a BERT or not one that can be expressed (relative positions, a decoder, ...),
            its weights do not fit its config, the pickle holds more than tensors, or an override would make the
            weights meaningless.
        TypeError: an override that no field of the configuration is called, or a `model_class` of another kind.
        OSError: the files cannot be found or fetched.
    """
    return read_checkpoint(
        BERT,
        source,
        model_class,
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        subfolder=subfolder,
        local_files_only=local_files_only,
        dtype=dtype,
        **config_overrides,
    )


def to_bert(
    model: PlainformerPreTrainedModel, folder: str | os.PathLike, tokenizer: "PreTrainedTokenizerBase | None" = None
) -> None:
    """Write a Plainformer model as a BERT checkpoint, for anything that serves BERT.

    The folder gets BERT's `config.json`, `model.safetensors` with BERT's names, and the tokenizer's files. The BERT
    class of the same task (`BertForMaskedLM` for `PlainformerForMaskedLM`, ...) loads it with nothing missing and
    nothing left over, and gives the same numbers at real tokens of right-padded text. Files of these names that are
    already in the folder are replaced, as by `save_pretrained`.

    The base model has no pooler, so neither has its checkpoint, and a logged warning says so: load it with
    `BertModel.from_pretrained(folder, add_pooling_layer=False)`. Without that argument transformers adds a pooler
    with random weights; `last_hidden_state` is right either way, `pooler_output` would be noise.

    Args:
        model: one of the Plainformer classes, or a subclass that adds no weights.
        folder: where to write; made if it does not exist.
        tokenizer: saved beside the model when given, with a `model_max_length` that the positions allow.

    Raises:
        ValueError: BERT has no such model; the message names the field. Or the model has weights BERT has no place for.
        TypeError: `model` is not a Plainformer model with a counterpart in BERT.
        NotADirectoryError: `folder` is a file.
    """
    write_checkpoint(BERT, model, folder, tokenizer)


def bert_name(name: str) -> str | None:
    """BERT's name for a parameter of ours, both without the encoder's prefix; `None` where BERT has none.

    `plainformer.layers.3.attn_norm.weight` is `encoder.layer.3.attention.output.LayerNorm.weight`.
    """
    return BERT.name_of(name)
