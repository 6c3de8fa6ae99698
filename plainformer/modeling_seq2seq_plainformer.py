"""The encoder-decoder: texts to texts, and its encoder alone.

    input_ids [B, S] ─ the encoder of modeling_plainformer.py ─ hidden states of the source
    labels [B, L]    ─ moved by one place                     ─ decoder ─ a score for every entry of the vocabulary

Reference: Vaswani et al. 2017, "Attention Is All You Need".

Shapes: B batch, S source, L targets, N real targets, E hidden size, V vocabulary; [*] stands for a layout's leading
dimensions, real tokens or a rectangle.
"""

import copy
import os
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import ModelOutput, can_return_tuple, logging

from .attention_plainformer import PlainformerAttention  # noqa: F401  transformers 4.57 copies only what this file imports
from .causal_attention_plainformer import PlainformerCrossAttention  # noqa: F401
from .chunking_plainformer import apply_in_chunks  # noqa: F401
from .code_plainformer import keep_code  # noqa: F401
from .configuration_plainformer import PlainformerConfig  # noqa: F401
from .configuration_seq2seq_plainformer import PlainformerSeq2SeqConfig
from .decoder_plainformer import PlainformerDecoder
from .hooks_plainformer import is_observed
from .inputs_plainformer import read_labels, read_mask, read_shape
from .kernels_plainformer import KERNELS  # noqa: F401
from .labels_plainformer import HeadLabels
from .layouts_plainformer import Layout, PaddedLayout
from .losses_plainformer import IGNORE_INDEX, NumItems, class_loss
from .modeling_plainformer import EncoderOutput, PlainformerModel
from .names_plainformer import OF_TRANSFORMERS  # noqa: F401
from .packing_plainformer import refuse_packed
from .pairs_plainformer import PairLayout, Source, make_pair_layout
from .positions_plainformer import POSITION_KINDS  # noqa: F401
from .pretrained_plainformer import PlainformerPreTrainedModel
from .targets_plainformer import Targets, find_targets, read_prompts, read_targets, shift_right
from .values_plainformer import Questions, find_indices, mask_out, refuse_other_than_tensors

logger = logging.get_logger(__name__)

SharedCache = EncoderDecoderCache | Cache | None
# The output's field for the cache: "past_key_values" in older versions of transformers.
CACHE_FIELD = "cache" if "cache" in Seq2SeqLMOutput.__dataclass_fields__ else "past_key_values"


class PlainformerSeq2SeqEncoder(PlainformerModel):
    """The encoder of an encoder-decoder: what `AutoModel` makes of its checkpoint, and where the decoder reads from."""

    config_class = PlainformerSeq2SeqConfig
    _keys_to_ignore_on_load_unexpected = [r"^decoder\.", r"^lm_head\."]

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        head_labels: HeadLabels | None = None,
        observed: bool | None = None,
    ) -> EncoderOutput:
        """As `PlainformerModel.forward`, but packed rows are refused: a decoder reads one text from each row.

        It names its arguments: `generate` would pass on its own to `**kwargs`.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        options = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        internal = {"head_labels": HeadLabels() if head_labels is None else head_labels, "observed": observed}
        output = super().forward(*inputs, **options, **internal, return_dict=True)
        refuse_packed(output.layout.is_packed)
        if head_labels is not None:
            return output
        return EncoderOutput(output.layout.scatter(output.last_hidden_state), output.hidden_states, output.attentions)

    def save_pretrained(
        self, save_directory: str | os.PathLike, *args: Any, state_dict: dict[str, Tensor] | None = None, **kwargs: Any
    ) -> None:
        """Write an ordinary encoder: every class of this package opens it, and nothing of the decoder is in it."""
        with torch.device("meta"):
            encoder = PlainformerModel(self.config.encoder_config())
        encoder.load_state_dict(self.state_dict() if state_dict is None else state_dict, assign=True)
        encoder.save_pretrained(save_directory, *args, **kwargs)


class PlainformerForConditionalGeneration(PlainformerPreTrainedModel, GenerationMixin):
    """Encoder and decoder: a text [B, S] and the tokens so far [B, L] -> scores of the token that comes next."""

    config_class = PlainformerSeq2SeqConfig
    _auto_class = "AutoModelForSeq2SeqLM"
    _tied_weights_keys = {"lm_head.weight": "plainformer.embeddings.word_embeddings.weight"}
    _no_split_modules = ["PlainformerLayer", "PlainformerDecoderLayer"]

    def __init__(self, config: PlainformerSeq2SeqConfig) -> None:
        if not hasattr(config, "decoder_depth"):
            raise ValueError(
                f"The {type(config).__name__} for {type(self).__name__} says nothing of a decoder: give a "
                "PlainformerSeq2SeqConfig."
            )
        super().__init__(config)
        self.plainformer = PlainformerSeq2SeqEncoder(config)
        self.decoder = PlainformerDecoder(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike | None,
        *model_args: Any,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """As for every model here; an encoder, or a model with any head, is opened with a new decoder.

        Token ids that are given here hold for `generate` too. transformers reads those of `generate` from the files,
        and an encoder's files have none.
        """
        model, info = super().from_pretrained(
            pretrained_model_name_or_path, *model_args, output_loading_info=True, **kwargs
        )
        options = model.generation_config
        for name in ("decoder_start_token_id", "bos_token_id", "eos_token_id", "pad_token_id"):
            is_unset = kwargs.get("config") is not None and getattr(options, name) is None
            if name in kwargs or is_unset:
                setattr(options, name, getattr(model.config, name))
        return (model, info) if output_loading_info else model

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple | None = None,
        past_key_values: SharedCache = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        num_items_in_batch: NumItems = None,
        cache: SharedCache = None,
        return_dict: bool | None = None,
    ) -> Seq2SeqLMOutput:
        """Encode the sources, or take what was encoded, and decode the targets.

        Args:
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds: the sources, as
                `PlainformerModel.forward` takes them.
            decoder_input_ids: the tokens so far, [B, L]; None: made from `labels`.
            decoder_attention_mask: 1 for a token and 0 for padding, [B, K], of the tokens in the cache and of these;
                None: all are tokens, or, where there are labels, those of a target. A prompt before the labels, which
                has no loss, needs it.
            encoder_outputs: what the encoder gave for these sources, `last_hidden_state` [B, S, E]; they are then not
                encoded again, but `attention_mask` is still needed.
            past_key_values, cache: keys and values of what was computed before; the newer versions of transformers call
                it `cache`. It grows by the tokens of this call.
            decoder_inputs_embeds: word embeddings [B, L, E] in the place of those of `decoder_input_ids`.
            labels: ids of the tokens to predict, [B, L]. A target goes from a row's first label to its last, on
                whichever side the padding (-100) is; -100 inside of it is read as the padding token, and has no loss.
            use_cache: return a cache; None: as the configuration says, but not in training nor with labels.
            num_items_in_batch: labels in all batches of this optimizer step (`Trainer` gives it).

        Returns:
            `logits` [B, L, V]; `loss` if there are labels; the cache; and what was asked for. In training with labels
            and `sparse_prediction` the logits are computed where there is a label and nowhere else: [N, V], in
            row-major order.

        Raises:
            ValueError: input that cannot be meant; the message names what, its value and the remedy.
        """
        config = self.config
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states
        asked = {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        cache = self.open_cache(past_key_values, cache, use_cache, labels)
        given = (decoder_input_ids, decoder_attention_mask, decoder_inputs_embeds, labels)
        targets = read_targets(config, self.target_sizes(), *given, cache, self.get_input_embeddings(), self.training)

        # With a cache the decoder computes a rectangle in any case.
        observed = (cache is None or encoder_outputs is None) and is_observed(self)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
        inputs |= {"token_type_ids": token_type_ids, "position_ids": position_ids}
        source, encoded = self.encode(encoder_outputs, targets, observed=observed, **inputs, **asked)
        padded = cache is not None or output_attentions or observed
        layout = make_pair_layout(targets, source, unpad=config.unpad_inputs and not padded)
        hidden_states, decoded = self.decode(targets, source, layout, cache, **asked)
        logits, loss = self.score(hidden_states, layout.targets, targets, num_items_in_batch, observed)
        return Seq2SeqLMOutput(loss=loss, logits=logits, **{CACHE_FIELD: cache}, **decoded, **encoded)

    def encode(
        self, encoder_outputs: BaseModelOutput | tuple | None, targets: Targets, **inputs: Any
    ) -> tuple[Source, dict[str, Any]]:
        """Encode the sources, unless that was done before; targets are checked together with them.

        Args:
            inputs: of the encoder.

        Returns:
            The sources, and what the output tells of the encoder.
        """
        if encoder_outputs is None:
            encoded = self.plainformer(**inputs, head_labels=targets, return_dict=True)
            source, targets.num_labels = read_encoded(encoded), encoded.batch.num_labels
        else:
            is_output = isinstance(encoder_outputs, ModelOutput)
            encoded = encoder_outputs if is_output else BaseModelOutput(*encoder_outputs)
            source = read_given(encoded.last_hidden_state, inputs["attention_mask"], targets, self.config)
        states = {
            "encoder_hidden_states": encoded.get("hidden_states"),
            "encoder_attentions": encoded.get("attentions"),
        }
        return source, {"encoder_last_hidden_state": source.layout.scatter(source.states), **states}

    def decode(
        self,
        targets: Targets,
        source: Source,
        layout: PairLayout,
        cache: EncoderDecoderCache | None,
        output_attentions: bool,
        output_hidden_states: bool,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Hidden states of the targets, [*, E], and what the output tells of the decoder."""
        recorded = [] if output_hidden_states else None
        inputs = (self.embed(targets, layout.targets), lay_out(source, layout), layout, cache)
        hidden_states, attentions, cross_attentions = self.decoder(*inputs, output_attentions, recorded)
        return hidden_states, {
            "decoder_hidden_states": tuple(recorded) if output_hidden_states else None,
            "decoder_attentions": tuple(attentions) if output_attentions else None,
            "cross_attentions": tuple(cross_attentions) if output_attentions else None,
        }

    def open_cache(
        self, past_key_values: SharedCache, cache: SharedCache, use_cache: bool | None, labels: Tensor | None
    ) -> EncoderDecoderCache | None:
        """The cache that was given, or a new one where one is wanted, of self-attention and of the source; or None."""
        if past_key_values is not None and CACHE_FIELD == "cache":
            message = "`past_key_values` is deprecated: this version of transformers calls it `cache`."
            warnings.warn(message, FutureWarning, 3)
        cache = past_key_values if cache is None else cache
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training and labels is None
        if cache is None:
            return EncoderDecoderCache(DynamicCache(), DynamicCache()) if use_cache else None
        return cache if isinstance(cache, EncoderDecoderCache) else EncoderDecoderCache(cache, DynamicCache())

    def target_sizes(self) -> dict[str, int | None]:
        """How many ids each embedding of the decoder knows, as `PlainformerModel.embedding_sizes`."""
        positions = self.decoder.embeddings.position_embeddings
        limit = getattr(positions, "num_embeddings", self.config.position_limit)
        return {**self.plainformer.embedding_sizes(), "max_position_embeddings": limit}

    def embed(self, targets: Targets, layout: Layout) -> Tensor:
        """The word embeddings of the targets in their layout, [*, E]."""
        if targets.inputs_embeds is not None:
            return layout.gather(targets.inputs_embeds)
        return self.get_input_embeddings()(layout.gather(targets.input_ids))

    def score(
        self, hidden_states: Tensor, layout: Layout, targets: Targets, num_items_in_batch: NumItems, observed: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Hidden states of the targets [*, E] -> logits [B, L, V], or [N, V] where they are sparse; and the loss."""
        if targets.labels is None:
            return layout.scatter(self.lm_head(hidden_states)), None
        labels, num_labels = targets.labels.to(hidden_states.device), targets.num_labels
        if self.training and self.config.sparse_prediction and num_labels is not None and not observed:
            labels = labels.flatten()  # [B * L]
            labelled = find_indices(labels != IGNORE_INDEX, num_labels)  # [N]
            logits = self.lm_head(layout.select(hidden_states, labelled))  # [N, V]
            return logits, class_loss(logits, labels[labelled], num_items_in_batch)
        logits = layout.scatter(self.lm_head(hidden_states))  # [B, L, V]; the loss is one of what is handed out
        return logits, class_loss(layout.gather(logits), layout.gather(labels), num_items_in_batch)

    def get_position_embeddings(self) -> tuple[nn.Embedding, nn.Embedding]:
        """The tables of positions of the encoder and of the decoder, as transformers' encoder-decoders give them."""
        return super().get_position_embeddings(), self.decoder.embeddings.position_embeddings

    def embeddings_with_positions(self) -> list[nn.Module]:
        """Both halves have a table of positions, of the same length."""
        return [self.plainformer.embeddings, self.decoder.embeddings]

    def get_encoder(self, *args: Any, **kwargs: Any) -> PlainformerSeq2SeqEncoder:
        """The encoder; `generate` calls it once for each batch."""
        return self.plainformer

    def get_decoder(self) -> PlainformerDecoder:
        """The decoder."""
        return self.decoder

    def get_output_embeddings(self) -> nn.Linear:
        """The scores of the vocabulary, E -> V."""
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace them."""
        self.lm_head = new_embeddings

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The decoder's input ids for labels [B, L], moved by one place after the start token, as in `forward`."""
        return shift_right(labels, find_targets(labels), self.config)

    def generate(
        self,
        inputs: Tensor | None = None,
        *args: Any,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """As in transformers, but prompts are checked.

        Args:
            inputs: the sources, [B, S]; or `input_ids`, `inputs_embeds` or `encoder_outputs` by name.
            decoder_input_ids: prompts [B, L], with which the answers begin; None: the start token alone.
            decoder_attention_mask: 1 for a token of the prompt and 0 for padding, [B, L], which has to be on the left.

        Raises:
            TypeError: something is no tensor.
            ValueError: another number of prompts than of sources, padding in the wrong place or without a mask, or some
                prompts with and some without the start token.
        """
        refuse_other_than_tensors(inputs=inputs, **{name: kwargs.get(name) for name in ("input_ids", "inputs_embeds")})
        if decoder_input_ids is not None:
            sources = [inputs, kwargs.get("input_ids"), kwargs.get("inputs_embeds")]
            num_sources = next((len(source) for source in sources if source is not None), None)
            prompts = (decoder_input_ids, decoder_attention_mask)
            decoder_input_ids, decoder_attention_mask = read_prompts(*prompts, num_sources, self.config)
        given = {"decoder_input_ids": decoder_input_ids, "decoder_attention_mask": decoder_attention_mask}
        kwargs |= {name: value for name, value in given.items() if value is not None}
        kwargs |= self.limit_length(**kwargs)
        return super().generate(inputs, *args, **kwargs)

    def limit_length(
        self,
        decoder_input_ids: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        max_new_tokens: int | None = None,
        max_length: int | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """The arguments of `generate` that keep a text within the model's positions, where those given do not."""
        limit = self.target_sizes()["max_position_embeddings"]
        if limit is None:
            return {}
        options = generation_config or self.generation_config
        start = self.config.decoder_start_token_id
        if decoder_input_ids is None:
            begun = 1
        else:
            begun = decoder_input_ids.shape[1] + (start is not None and not (decoder_input_ids == start).any())
        new = options.max_new_tokens if max_new_tokens is None else max_new_tokens
        whole = (options.max_length if max_length is None else max_length) if new is None else begun + new
        if whole is None or whole <= limit + 1:  # the last token is written, and never read
            return {}
        logger.warning(
            f"Texts of up to {whole} tokens are asked for, but max_position_embeddings={limit} is the limit of this "
            f"model's positions: they end after {limit + 1} tokens. Other positions, such as "
            "position_embedding_type='sinusoidal', have no limit."
        )
        changed = {"max_length": limit + 1} if new is None else {"max_new_tokens": max(1, limit + 1 - begun)}
        if generation_config is None:
            return changed
        changed_config = copy.deepcopy(generation_config)
        changed_config.update(**changed)
        return {"generation_config": changed_config}

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As in transformers, without what only older versions pass: the cache knows where the tokens stand."""
        model_inputs = super().prepare_inputs_for_generation(*args, **kwargs)
        model_inputs.pop("cache_position", None)
        return model_inputs

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor | None:
        """The mask as it is: `forward` makes of it what attention needs."""
        return attention_mask


def read_encoded(encoded: EncoderOutput) -> Source:
    """What the encoder computed, with its layout."""
    batch = encoded.batch
    lengths = batch.lengths if batch.token_mask is not None else [batch.shape[1]] * batch.shape[0]
    return Source(encoded.last_hidden_state, encoded.layout, batch.shape, batch.token_mask, lengths)


def read_given(
    states: Tensor, attention_mask: Tensor | None, targets: Targets, config: PlainformerSeq2SeqConfig
) -> Source:
    """What an encoder computed before, [B, S, E].

    Raises:
        ValueError: another shape, or targets that cannot be meant.
    """
    (B, S), device = read_shape(None, states, config.hidden_size, "encoder_outputs.")
    questions = Questions()
    token_mask, _ = read_mask(attention_mask, (B, S), config.num_attention_heads, questions)
    lengths = None
    if targets.are_first:  # generation gives the same sources again at each step
        counts = states.new_full((B,), S, dtype=torch.long) if token_mask is None else token_mask.sum(dim=1)
        _, num_labels = read_labels(targets, None, (B, S), questions)
        asked = questions.ask(lambda: counts)
        questions.read()
        targets.num_labels = num_labels and num_labels.answer and num_labels.answer[0]
        lengths, states = asked.answer, mask_out(states, token_mask)
    else:
        targets.check_values(token_mask, (B, S), questions)
        questions.read()
    layout = PaddedLayout((B, S), torch.arange(S, device=device).expand(B, S))
    return Source(states, layout, (B, S), token_mask, lengths)


def lay_out(source: Source, layout: PairLayout) -> Tensor:
    """The source's states [*, E] as the pairs need them: in their order, or as the rectangle [B, S, E]."""
    if layout.source_indices is None:
        return source.layout.scatter(source.states)
    return source.layout.select(source.states, layout.source_indices)
