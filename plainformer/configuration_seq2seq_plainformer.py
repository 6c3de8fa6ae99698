"""The choices of an encoder-decoder: those of the encoder, and what the decoder adds."""

import copy
from typing import Any

from .code_plainformer import keep_code  # noqa: F401  transformers 4.57 copies only what this file imports
from .configuration_plainformer import PlainformerConfig
from .names_plainformer import OF_TRANSFORMERS  # noqa: F401
from .positions_plainformer import POSITION_KINDS  # noqa: F401

SEQ2SEQ_AUTO_MAP = {
    "AutoConfig": "configuration_seq2seq_plainformer.PlainformerSeq2SeqConfig",
    "AutoModel": "modeling_seq2seq_plainformer.PlainformerSeq2SeqEncoder",
    "AutoModelForSeq2SeqLM": "modeling_seq2seq_plainformer.PlainformerForConditionalGeneration",
}


class PlainformerSeq2SeqConfig(PlainformerConfig):
    """Configuration of an encoder-decoder. Both halves share the vocabulary and every choice of `PlainformerConfig`.

    It can start from the checkpoint of an encoder: the decoder is then new.

    Args:
        num_decoder_layers: decoder layers; None: as many as `num_hidden_layers`.
        decoder_start_token_id: the id that every target begins with; training from labels and `generate` need it. For a
            BERT tokenizer `tokenizer.cls_token_id`.
        bos_token_id: the id that begins a text, where the tokenizer has one.
        eos_token_id: the id that ends a target; `generate` stops there. For a BERT tokenizer `tokenizer.sep_token_id`.
        use_cache: keep keys and values between the steps of `generate`.
        kwargs: the arguments of `PlainformerConfig`.

    Raises:
        ValueError: a value that is out of range; the message names the field, the value and the remedy.
    """

    model_type = "plainformer-seq2seq"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]
    can_start_from = ("plainformer",)
    auto_maps = {model_type: SEQ2SEQ_AUTO_MAP}

    def __init__(
        self,
        *args: Any,
        num_decoder_layers: int | None = None,
        decoder_start_token_id: int | None = None,
        bos_token_id: int | None = None,
        eos_token_id: int | list[int] | None = None,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        self.num_decoder_layers = num_decoder_layers
        self.decoder_start_token_id = decoder_start_token_id
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.use_cache = use_cache
        ids = {"bos_token_id": bos_token_id, "eos_token_id": eos_token_id}
        kwargs["is_encoder_decoder"] = True
        super().__init__(*args, decoder_start_token_id=decoder_start_token_id, use_cache=use_cache, **ids, **kwargs)

    def check(self) -> None:
        """As for the encoder, and for the fields of the decoder."""
        super().check()
        layers = self.num_decoder_layers
        if layers is not None and (type(layers) is not int or layers < 1):
            raise ValueError(
                f"num_decoder_layers={layers!r} is not valid: it must be None (as many as num_hidden_layers) or an "
                "integer of at least 1."
            )
        if not isinstance(self.use_cache, bool):
            raise ValueError(f"use_cache={self.use_cache!r} is not valid: it must be True or False.")
        for field in ("decoder_start_token_id", "bos_token_id", "eos_token_id"):
            given = getattr(self, field)
            for value in given if isinstance(given, list) else [given]:
                if value is not None and (type(value) is not int or not 0 <= value < self.vocab_size):
                    raise ValueError(
                        f"{field}={given!r} is not valid: it must be None or an id of the vocabulary, 0 to "
                        f"{self.vocab_size - 1} (vocab_size={self.vocab_size})."
                    )

    @property
    def decoder_depth(self) -> int:
        """How many layers the decoder has."""
        return self.num_hidden_layers if self.num_decoder_layers is None else self.num_decoder_layers

    def encoder_config(self) -> PlainformerConfig:
        """The configuration of the encoder alone."""
        own = ("auto_map", "architectures", "model_type", "is_encoder_decoder", "use_cache", "num_decoder_layers")
        own += ("decoder_start_token_id", "bos_token_id", "eos_token_id")
        return PlainformerConfig.from_dict({name: value for name, value in self.to_dict().items() if name not in own})

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PlainformerConfig:
        """Of the decoder: a copy whose `num_hidden_layers` are the decoder's, which caches are made by."""
        if not decoder or self.num_decoder_layers is None:
            return self
        text_config = copy.copy(self)
        text_config.num_hidden_layers, text_config.num_decoder_layers = self.num_decoder_layers, None
        return text_config
