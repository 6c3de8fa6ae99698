"""What every Plainformer model shares besides its layers: loading, saving, initialising and resizing.

The models themselves are in modeling_plainformer.py.
"""

import contextlib
import os
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from .code_plainformer import keep_code, restore_code
from .configuration_plainformer import PlainformerConfig, model_types, refuse_other_model_type
from .kernels_plainformer import KERNELS
from .positions_plainformer import POSITION_KINDS


class PlainformerPreTrainedModel(PreTrainedModel):
    """What the encoder and every head share: configuration, initialisation, loading, saving."""

    config_class = PlainformerConfig
    base_model_prefix = "plainformer"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["PlainformerLayer"]  # not the embeddings: FSDP2 handles tied ones apart from the others

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        keep_code(cls.__module__)

    def __init__(self, config: PlainformerConfig, *inputs: Any, **kwargs: Any) -> None:
        source = f"The {type(config).__name__} for {type(self).__name__}"
        refuse_other_model_type(model_types(type(config)), self.config_class, source)
        if hasattr(config, "encoder_config") and self.config_class.model_type == PlainformerConfig.model_type:
            raise ValueError(
                f"{source} is that of an encoder-decoder, and what this class saves with it would open nowhere: give "
                "config.encoder_config()."
            )
        config.check()
        super().__init__(config, *inputs, **kwargs)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike | None,
        *model_args: Any,
        config: PlainformerConfig | str | os.PathLike | None = None,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As in transformers, but a checkpoint of another architecture is refused, whatever `config` is given.

        `tie_word_embeddings` may be another than the file's: see `_settle_tied_weights`.

        Raises:
            ValueError: the checkpoint's `model_type` is not that of this class, or `tp_plan` would split an attention
                head over processes, or a tied file is to be untied while it is offloaded.
        """
        has_own_config = isinstance(config, PretrainedConfig) and config.name_or_path != str(
            pretrained_model_name_or_path
        )
        if (has_own_config or isinstance(config, (str, os.PathLike))) and pretrained_model_name_or_path is not None:
            # Weights without a configuration of their own are what an explicit one is for.
            with contextlib.suppress(OSError):
                cls.config_class.get_config_dict(pretrained_model_name_or_path, **kwargs)
        elif isinstance(config, PretrainedConfig):
            refuse_other_model_type([config.model_type], cls.config_class, config.name_or_path)
        model, info = super().from_pretrained(
            pretrained_model_name_or_path, *model_args, config=config, output_loading_info=True, **kwargs
        )
        _refuse_split_heads(model)
        _settle_tied_weights(model, info)
        return (model, info) if output_loading_info else model

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """As in transformers, but a file in the place of the folder is an error, where transformers only logs one.

        Code that was deleted since it was imported is saved from memory.
        """
        if os.path.isfile(save_directory):
            raise NotADirectoryError(f"save_directory={os.fspath(save_directory)!r} is a file: give a folder.")
        restore_code(type(self).__module__)
        super().save_pretrained(save_directory, *args, **kwargs)

    def get_correct_attn_implementation(self, requested_attention: str | None, is_init_check: bool = False) -> str:
        """The kernel to use; only those that our tests run are accepted.

        Raises:
            ValueError: any other `attn_implementation`.
        """
        if requested_attention is not None and requested_attention not in KERNELS:
            raise ValueError(
                f'Specified `attn_implementation="{requested_attention}"` is not supported by {type(self).__name__}: '
                f"choose one of {', '.join(map(repr, KERNELS))}."
            )
        return super().get_correct_attn_implementation(requested_attention, is_init_check)

    def init_weights(self) -> None:
        """As in transformers, but a meta tensor does not count as initialised: 4.57 would skip it later."""
        super().init_weights()
        for module in self.modules():
            if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
                module._is_hf_initialized = False

    def _init_weights(self, module: nn.Module) -> None:
        """As in transformers; a module of a position kind initialises itself, in `reset_parameters`."""
        super()._init_weights(module)
        if not type(module).__module__.startswith("torch.") and hasattr(module, "reset_parameters"):
            module.reset_parameters()

    def get_input_embeddings(self) -> nn.Embedding:
        """The word embeddings, V x E."""
        return self.base_model.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the word embeddings."""
        self.base_model.embeddings.word_embeddings = value

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Embedding:
        """As in transformers, but the padding token cannot be cut off.

        Raises:
            ValueError: `new_num_tokens` does not reach beyond `pad_token_id`.
        """
        pad_token_id = self.config.pad_token_id
        if new_num_tokens is not None and pad_token_id is not None and new_num_tokens <= pad_token_id:
            raise ValueError(
                f"new_num_tokens={new_num_tokens} would cut off the padding token, pad_token_id={pad_token_id}: keep "
                "more tokens, or set config.pad_token_id to another one first."
            )
        embeddings = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        if (output := self.get_output_embeddings()) is not None:  # transformers 5.3 ties the weights and leaves this
            output.out_features = embeddings.num_embeddings
        return embeddings

    def get_position_embeddings(self) -> nn.Embedding:
        """The table of positions, `max_position_embeddings` x E.

        Raises:
            ValueError: positions are not learned, so there is no table.
        """
        if self.config.position_limit is None:
            raise ValueError(
                f"position_embedding_type={self.config.position_embedding_type!r} has no table of positions, and "
                "no limit on the length: only 'learned' has one."
            )
        return self.base_model.embeddings.position_embeddings

    def resize_position_embeddings(self, new_num_position_embeddings: int) -> None:
        """Let learned positions reach `new_num_position_embeddings`: rows are kept, cut off, or added at random.

        Added rows are initialised as in a fresh model, so they have to be trained.

        Raises:
            ValueError: positions are not learned, or the number is not an integer of at least 1, or it is less than
                `randomize_positions`.
        """
        self.get_position_embeddings()  # raises where there is none
        size = new_num_position_embeddings
        if type(size) is not int or size < 1:
            raise ValueError(f"new_num_position_embeddings={size!r} must be an integer of at least 1.")
        if size < self.config.randomize_positions:
            raise ValueError(
                f"new_num_position_embeddings={size} is less than randomize_positions={self.config.randomize_positions}"
                ", from which positions are drawn in training: keep as many, or set config.randomize_positions first."
            )
        for embeddings in self.embeddings_with_positions():
            embeddings.position_embeddings = self._resize_table(embeddings.position_embeddings, size)
        self.config.max_position_embeddings = size

    def embeddings_with_positions(self) -> list[nn.Module]:
        """The modules that hold a table of positions each."""
        return [self.base_model.embeddings]

    def _resize_table(self, old: nn.Embedding, size: int) -> nn.Embedding:
        new = nn.Embedding(size, old.embedding_dim, device=old.weight.device, dtype=old.weight.dtype)
        nn.init.normal_(new.weight, std=self.config.initializer_range)
        kept = min(size, old.num_embeddings)
        with torch.no_grad():
            new.weight[:kept] = old.weight[:kept]
        new.weight.requires_grad_(old.weight.requires_grad)
        return new


def _refuse_split_heads(model: PreTrainedModel) -> None:
    """Raise a ValueError where tensor parallelism does not give every process the same number of whole heads.

    Nor does a process know which heads it has, as it would need to for a bias of its heads.
    """
    heads, processes = model.config.num_attention_heads, getattr(model, "tp_size", None) or 1
    kind = model.config.position_embedding_type
    if processes > 1 and POSITION_KINDS[kind].bias is not None:
        raise ValueError(
            f"position_embedding_type={kind!r} adds a bias of each head to the scores, and with tensor parallelism "
            "(tp_plan) a process does not know which heads it computes: load the model without tp_plan."
        )
    if heads % processes:
        raise ValueError(
            f"num_attention_heads={heads} cannot be shared out equally among {processes} processes (tp_plan): start a "
            f"number of processes that divides {heads}."
        )


def _settle_tied_weights(model: PreTrainedModel, info: dict[str, Any]) -> None:
    """After loading: `tie_word_embeddings` holds, whatever the file was saved with.

    The file of a tied model has one copy of the shared weights. Untied, the decoder starts from that copy instead of
    from random values. Tied, a decoder in the file is left out, whichever version of transformers reads it.

    Args:
        info: transformers' report on loading; weights that were settled here are no longer missing in it.
    """
    for tied, source in (model._tied_weights_keys or {}).items():
        missing = set(info["missing_keys"])
        if model.config.tie_word_embeddings:
            model.tie_weights()
        elif {key for key in missing if key.split(".")[0] == tied.split(".")[0]} == {tied}:
            decoder, words = model.get_parameter(tied), model.get_parameter(source)
            if decoder.is_meta or words.is_meta:
                raise ValueError(
                    "tie_word_embeddings=False, but this is the file of a tied model, and its one copy of the weights "
                    "cannot be doubled while device_map offloads them. Load it without device_map, save it, load that."
                )
            with torch.no_grad():
                decoder.copy_(words)
            info["missing_keys"] = type(info["missing_keys"])(missing - {tied})
