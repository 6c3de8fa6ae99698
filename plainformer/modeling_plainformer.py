"""The Plainformer encoder and its heads, in the order data flows.

    input_ids [B, L] ─ embeddings: token (x sqrt(E)) + segment + position, norm, dropout
                     ─ N layers:   attention and feed-forward, each on a residual path
                     ─ final norm, if the layers normalise before their sub-layers
                     ─ a head

    post-norm (BERT)            pre-norm (norm_first)
    x = norm(x + attention(x))  x = x + attention(norm(x))
    x = norm(x + mlp(x))        x = x + mlp(norm(x))

References: Vaswani et al. 2017, "Attention Is All You Need"; Devlin et al. 2019, "BERT"; Xiong et al. 2020, "On Layer
Normalization in the Transformer Architecture".

Shapes: B batch, L length, H heads, D head size, E hidden size, V vocabulary, C classes; [*] stands for a layout's
leading dimensions: [T], the real tokens, or [B, L].
"""

import contextlib
import math
import os
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import can_return_tuple
from typing_extensions import Unpack

from .attention_plainformer import PlainformerAttention
from .configuration_plainformer import PlainformerConfig, refuse_other_model_type
from .inputs_plainformer import (
    is_captured,
    read_ids,
    read_shape,
    refuse_other_than_tensors,
    refuse_unknown,
    values_are_known,
)
from .kernels_plainformer import KERNELS
from .losses_plainformer import UNLABELLED, Count, choice_loss, class_loss, real_labels, sequence_loss, span_loss
from .padding_plainformer import (
    Layout,
    make_layout,
    mask_out,
    read_mask,
    read_positions,
    read_sequences,
    read_token_types,
    refuse_packed,
)
from .positions_plainformer import POSITION_KINDS, NoEmbedding

TOKENS_AT_ONCE = 1024  # of the feed-forward in evaluation on a CPU: 5 to 10 % faster at MiniLM's shape


def make_norm(config: PlainformerConfig, wanted: bool = True) -> nn.Module:
    """LayerNorm over the hidden size, or nothing in its place."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if wanted else nn.Identity()


class PlainformerEmbeddings(nn.Module):
    """token (x sqrt(E) if asked) + segment + position, then norm if asked, then dropout."""

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = POSITION_KINDS[config.position_embedding_type].embeddings(config)
        self.token_type_embeddings = (
            nn.Embedding(config.type_vocab_size, config.hidden_size) if config.type_vocab_size else NoEmbedding()
        )
        self.scale = math.sqrt(config.hidden_size) if config.scale_embedding else 1.0
        self.norm = make_norm(config, config.embedding_norm)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, position_ids: Tensor, token_type_ids: Tensor
    ) -> Tensor:
        """Ids [*], or embeddings [*, E] in the place of `input_ids` -> [*, E]."""
        tokens = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        embeddings = tokens * self.scale  # [*, E]
        embeddings = embeddings + self.token_type_embeddings(token_type_ids).to(embeddings)
        embeddings = embeddings + self.position_embeddings(position_ids).to(embeddings)  # the position enters
        return self.dropout(self.norm(embeddings))


class PlainformerMLP(nn.Module):
    """The position-wise feed-forward sub-layer: act(x W1 + b1) W2 + b2. Returns the residual branch."""

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.activation = ACT2FN[config.hidden_act]
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[*, E] -> [*, E]."""
        in_pieces = not self.training and not torch.is_grad_enabled() and hidden_states.device.type == "cpu"
        if not in_pieces or is_captured():
            return self._branch(hidden_states)
        # Nothing has to be kept for gradients: some tokens at a time, whose inner states stay in a CPU's cache. Not in
        # training: reentrant checkpointing runs a layer without gradients first, and must draw the same dropout again.
        pieces = hidden_states.flatten(0, -2).split(TOKENS_AT_ONCE)
        return torch.cat([self._branch(piece) for piece in pieces]).view_as(hidden_states)

    def _branch(self, hidden_states: Tensor) -> Tensor:
        return self.dropout(self.fc2(self.activation(self.fc1(hidden_states))))


class PlainformerLayer(GradientCheckpointingLayer):
    """One encoder layer: attention and feed-forward, each on a residual path."""

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention = PlainformerAttention(config)
        self.attn_norm = make_norm(config)
        self.mlp = PlainformerMLP(config)
        self.mlp_norm = make_norm(config)

    def forward(
        self, hidden_states: Tensor, layout: Layout, output_attentions: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """[*, E] -> [*, E], and the attention weights [B, H, L, L] if asked for."""
        if self.pre_norm:
            branch, weights = self.attention(self.attn_norm(hidden_states), layout, output_attentions)
            hidden_states = hidden_states + branch
            hidden_states = hidden_states + self.mlp(self.mlp_norm(hidden_states))
        else:
            branch, weights = self.attention(hidden_states, layout, output_attentions)
            hidden_states = self.attn_norm(hidden_states + branch)
            hidden_states = self.mlp_norm(hidden_states + self.mlp(hidden_states))
        return hidden_states, weights


class PlainformerPreTrainedModel(PreTrainedModel):
    """What the encoder and every head share: configuration, initialisation, loading, saving."""

    config_class = PlainformerConfig
    base_model_prefix = "plainformer"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["PlainformerLayer"]  # not the embeddings: FSDP2 handles tied ones apart from the others

    def __init__(self, config: PlainformerConfig, *inputs: Any, **kwargs: Any) -> None:
        refuse_other_model_type(config.model_type, f"The {type(config).__name__} for {type(self).__name__}")
        config.check()
        super().__init__(config, *inputs, **kwargs)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike | None,
        *model_args: Any,
        config: PlainformerConfig | str | os.PathLike | None = None,
        **kwargs: Any,
    ) -> "PlainformerPreTrainedModel":
        """As in transformers, but a checkpoint of another architecture is refused, whatever `config` is given.

        Raises:
            ValueError: the checkpoint's `model_type` is not "plainformer", or `tp_plan` would split an attention head
                over processes; the message names what is wrong and the remedy.
        """
        has_own_config = isinstance(config, PretrainedConfig) and config.name_or_path != str(
            pretrained_model_name_or_path
        )
        if (has_own_config or isinstance(config, (str, os.PathLike))) and pretrained_model_name_or_path is not None:
            # Weights without a configuration of their own are what an explicit one is for.
            with contextlib.suppress(OSError):
                cls.config_class.get_config_dict(pretrained_model_name_or_path, **kwargs)
        loaded = super().from_pretrained(pretrained_model_name_or_path, *model_args, config=config, **kwargs)
        _refuse_split_heads(loaded[0] if isinstance(loaded, tuple) else loaded)
        return loaded

    def save_pretrained(self, save_directory: str | os.PathLike, *args: Any, **kwargs: Any) -> None:
        """As in transformers, but a file in the place of the folder is an error, where transformers only logs one."""
        if os.path.isfile(save_directory):
            raise NotADirectoryError(f"save_directory={os.fspath(save_directory)!r} is a file: give a folder.")
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
        """The table of learned positions, `max_position_embeddings` x E.

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
            ValueError: positions are not learned, or the number is not an integer of at least 1.
        """
        old = self.get_position_embeddings()
        size = new_num_position_embeddings
        if type(size) is not int or size < 1:
            raise ValueError(f"new_num_position_embeddings={size!r} must be an integer of at least 1.")
        new = nn.Embedding(size, old.embedding_dim, device=old.weight.device, dtype=old.weight.dtype)
        nn.init.normal_(new.weight, std=self.config.initializer_range)
        kept = min(size, old.num_embeddings)
        with torch.no_grad():
            new.weight[:kept] = old.weight[:kept]
        new.weight.requires_grad_(old.weight.requires_grad)
        self.base_model.embeddings.position_embeddings = new
        self.config.max_position_embeddings = size


def _refuse_split_heads(model: PreTrainedModel) -> None:
    """Raise a ValueError where tensor parallelism does not give every process the same number of whole heads."""
    heads, processes = model.config.num_attention_heads, getattr(model, "tp_size", None) or 1
    if heads % processes:
        raise ValueError(
            f"num_attention_heads={heads} cannot be shared out equally among {processes} processes (tp_plan): start a "
            f"number of processes that divides {heads}."
        )


@dataclass
class EncoderOutput(BaseModelOutput):
    """`BaseModelOutput`, and for a head that asked for it the layout in which `last_hidden_state` lies."""

    layout: Layout | None = None


class EncoderArguments(TypedDict, total=False):
    """What a head passes on to the encoder as it is; see `PlainformerModel.forward`."""

    output_attentions: bool | None
    output_hidden_states: bool | None
    cu_seq_lens_q: Tensor | None
    cu_seq_lens_k: Tensor | None
    max_length_q: int | None
    max_length_k: int | None
    seq_idx: Tensor | None
    return_dict: bool | None


class PlainformerModel(PlainformerPreTrainedModel):
    """The encoder: token ids [B, L] -> hidden states [B, L, E]."""

    _auto_class = "AutoModel"

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__(config)
        self.embeddings = PlainformerEmbeddings(config)
        self.layers = nn.ModuleList(PlainformerLayer(config) for _ in range(config.num_hidden_layers))
        self.final_norm = make_norm(config, config.pre_norm)
        self.post_init()

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
        return_layout: bool = False,
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        max_length_q: int | None = None,
        max_length_k: int | None = None,
        seq_idx: Tensor | None = None,
        **kwargs: Any,
    ) -> EncoderOutput:
        """Encode a batch. Give either `input_ids` or `inputs_embeds`.

        Args:
            input_ids: token ids [B, L].
            attention_mask: [B, L], 1 for a token and 0 for padding; or who attends to whom, boolean or added to the
                scores, [B, L, L] or [B, 1|H, L, L]. None: every place is a token.
            token_type_ids: segment ids [B, L]; None: all 0.
            position_ids: [B, L] or [1, L]; None: the real tokens of a row count from 0.
            inputs_embeds: embeddings [B, L, E] in the place of the word embeddings of `input_ids`.
            output_attentions: also return the attention weights of every layer, [B, H, L, L] each.
            output_hidden_states: also return N + 1 hidden states [B, L, E]: the embeddings and the output of each
                layer, the last of which is `last_hidden_state`.
            cu_seq_lens_q, cu_seq_lens_k: boundaries [S + 1] of the sequences in a single packed row, as
                `DataCollatorWithFlattening` gives them; they decide where sequences end.
            max_length_q, max_length_k: given by the same collator, and not needed.
            seq_idx: which sequence of its row a place belongs to, [B, L]. Where neither boundaries nor `seq_idx` are
                given, a row whose `position_ids` return to their first value holds several sequences.
            return_layout: for a head: leave `last_hidden_state` as it lies in the layout, and return the layout.

        Returns:
            `last_hidden_state` [B, L, E], zero at padded places, and what was asked for.

        Raises:
            ValueError: input that cannot be meant; the message names what, its value and the remedy.
        """
        refuse_unknown(kwargs, PlainformerModel.forward)
        if output_attentions is None:
            output_attentions = self.config.output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states

        packing = {"cu_seq_lens_q": cu_seq_lens_q, "cu_seq_lens_k": cu_seq_lens_k, "seq_idx": seq_idx}
        unpad = self.config.unpad_inputs and not output_attentions
        hidden_states, layout = self._embed(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, packing, unpad
        )

        all_hidden_states: list[Tensor] = []
        all_attentions: list[Tensor | None] = []
        for layer in self.layers:
            layout = layout.to(hidden_states.device)  # where layers lie on several devices
            if output_hidden_states:
                # What is handed out lies on the path of the gradient, so that a user may ask for its gradient.
                all_hidden_states.append(layout.scatter(hidden_states))
                hidden_states = layout.gather(all_hidden_states[-1])
            hidden_states, weights = layer(hidden_states, layout, output_attentions)
            all_attentions.append(weights)
        hidden_states = self.final_norm(hidden_states)

        if output_hidden_states or not return_layout:
            all_hidden_states.append(layout.scatter(hidden_states))
            hidden_states = layout.gather(all_hidden_states[-1]) if return_layout else all_hidden_states[-1]
        return EncoderOutput(
            last_hidden_state=hidden_states,
            hidden_states=tuple(all_hidden_states) if output_hidden_states else None,
            attentions=tuple(all_attentions) if output_attentions else None,
            layout=layout if return_layout else None,
        )

    def _embed(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        packing: dict[str, Tensor | None],
        unpad: bool,
    ) -> tuple[Tensor, Layout]:
        """Read a batch as `forward` takes it, decide how it lies, and embed its tokens: [*, E]."""
        shape, device = read_shape(input_ids, inputs_embeds, self.config.hidden_size)
        refuse_other_than_tensors(
            attention_mask=attention_mask, token_type_ids=token_type_ids, position_ids=position_ids, **packing
        )
        real, allowed = read_mask(attention_mask, *shape, self.config.num_attention_heads)
        sequence_ids, packed = read_sequences(position_ids, real, packing, shape)
        # A table tells its size, unless something wraps it (LoRA does).
        limit = getattr(self.embeddings.position_embeddings, "num_embeddings", self.config.position_limit)
        position_ids = read_positions(position_ids, real, sequence_ids, shape, device, limit)
        token_type_ids = read_token_types(token_type_ids, real, shape, device, self.config.type_vocab_size)
        layout = make_layout(shape, real, sequence_ids, allowed, packed, unpad)
        words = self.embeddings.word_embeddings
        if inputs_embeds is None:
            size = getattr(words, "num_embeddings", self.config.vocab_size)
            if not words._forward_hooks:
                input_ids = read_ids("input_ids", layout.gather(input_ids), "vocab_size", size)
            else:  # whoever hooks word embeddings (NEFTune, attributions) expects [B, L, E]
                inputs_embeds = words(read_ids("input_ids", mask_out(input_ids, real), "vocab_size", size))
        if inputs_embeds is not None:
            inputs_embeds = layout.gather(inputs_embeds)
        position_ids, token_type_ids = layout.gather(position_ids), layout.gather(token_type_ids)
        return self.embeddings(input_ids, inputs_embeds, position_ids, token_type_ids), layout


class PlainformerPooler(nn.Module):
    """Dense and tanh on a pooled vector (BERT's pooler)."""

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, pooled: Tensor) -> Tensor:
        """[B, E] -> [B, E]."""
        return torch.tanh(self.dense(pooled))


class PlainformerLMHead(nn.Module):
    """Dense, activation, norm, then a score for every entry of the vocabulary (BERT's prediction head)."""

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = make_norm(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[*, E] -> [*, V]."""
        return self.decoder(self.norm(self.activation(self.dense(hidden_states))))


class PlainformerForMaskedLM(PlainformerPreTrainedModel):
    """The encoder with a masked-language-modelling head, whose decoder shares the word embeddings if tied."""

    _auto_class = "AutoModelForMaskedLM"
    _tied_weights_keys = {"lm_head.decoder.weight": "plainformer.embeddings.word_embeddings.weight"}

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__(config)
        self.plainformer = PlainformerModel(config)
        self.lm_head = PlainformerLMHead(config)
        self.post_init()

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As in transformers, and `tie_word_embeddings` may be another than the file's.

        The file of a tied model holds one copy of the shared weights: untied, the decoder starts from that copy instead
        of from noise. Tied, a decoder of its own is left out, whichever version of transformers reads it.
        """
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        (tied, source), *_ = cls._tied_weights_keys.items()
        missing = set(info["missing_keys"])
        if model.config.tie_word_embeddings:
            model.tie_weights()
        elif {key for key in missing if key.startswith("lm_head")} == {tied}:
            decoder, words = model.get_parameter(tied), model.get_parameter(source)
            if decoder.is_meta or words.is_meta:
                raise ValueError(
                    "tie_word_embeddings=False, but this is the file of a tied model, and its one copy of the weights "
                    "cannot be doubled while device_map offloads them. Load it without device_map, save it, load that."
                )
            with torch.no_grad():
                decoder.copy_(words)
            info["missing_keys"] = type(info["missing_keys"])(missing - {tied})
        return (model, info) if output_loading_info else model

    def get_output_embeddings(self) -> nn.Linear:
        """The decoder, E -> V."""
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the decoder."""
        self.lm_head.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Count = None,
        **kwargs: Unpack[EncoderArguments],
    ) -> MaskedLMOutput:
        """Score every entry of the vocabulary at every token. What is not named here: `PlainformerModel.forward`.

        Args:
            labels: ids of the tokens that were masked, [B, L]; -100, and whatever stands at padding, is unlabelled.
            num_items_in_batch: labels in all batches of this optimizer step (`Trainer` gives it).

        Returns:
            `logits` [B, L, V], and `loss` if there are labels. In training with labels and `sparse_prediction` the
            logits are computed where there is a label and nowhere else: [N, V], in row-major order of the labelled
            real tokens.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        encoded = self.plainformer(*inputs, return_layout=True, return_dict=True, **kwargs)
        hidden_states, layout = encoded.last_hidden_state, encoded.layout  # [*, E]
        if labels is not None:
            labels = real_labels(labels, layout).to(hidden_states.device)  # [B, L]
        if labels is not None and self.training and self.config.sparse_prediction and values_are_known(labels):
            chosen = labels != UNLABELLED
            logits = self.lm_head(layout.select(hidden_states, chosen))  # [N, V]
            loss = class_loss(logits, labels[chosen], num_items_in_batch)
            return MaskedLMOutput(loss, logits, encoded.hidden_states, encoded.attentions)
        logits = self.lm_head(hidden_states)  # [*, V]
        loss = None
        if labels is not None:
            loss = class_loss(logits, layout.gather(labels, UNLABELLED), num_items_in_batch)
        return MaskedLMOutput(loss, layout.scatter(logits), encoded.hidden_states, encoded.attentions)


class PlainformerForSequenceClassification(PlainformerPreTrainedModel):
    """The encoder with one answer per row: classes, several labels, or values, as `config.problem_type` says."""

    _auto_class = "AutoModelForSequenceClassification"

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__(config)
        self.plainformer = PlainformerModel(config)
        self.pooler = PlainformerPooler(config)
        self.dropout = make_classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Count = None,
        **kwargs: Unpack[EncoderArguments],
    ) -> SequenceClassifierOutput:
        """Classify each row. What is not named here: `PlainformerModel.forward`.

        Args:
            labels: class ids [B] (-100: unlabelled), or values [B, C] for several labels and for regression; a row
                without a real token counts as unlabelled.
            num_items_in_batch: labels in all batches of this optimizer step (`Trainer` gives it).

        Returns:
            `logits` [B, C], and `loss` if there are labels.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        encoded = self.plainformer(*inputs, return_layout=True, return_dict=True, **kwargs)
        pooled = encoded.layout.pool(encoded.last_hidden_state, self.config.classifier_pooling)  # [B, E]
        logits = self.classifier(self.dropout(self.pooler(pooled)))  # [B, C]
        loss = None
        if labels is not None:
            exists = encoded.layout.rows_with_tokens()
            loss = sequence_loss(logits, labels, self.config, exists, num_items_in_batch)
        return SequenceClassifierOutput(loss, logits, encoded.hidden_states, encoded.attentions)


class PlainformerForTokenClassification(PlainformerPreTrainedModel):
    """The encoder with a class for every token."""

    _auto_class = "AutoModelForTokenClassification"

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__(config)
        self.plainformer = PlainformerModel(config)
        self.dropout = make_classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Count = None,
        **kwargs: Unpack[EncoderArguments],
    ) -> TokenClassifierOutput:
        """Classify each token. What is not named here: `PlainformerModel.forward`.

        Args:
            labels: class ids [B, L]; -100, and whatever stands at padding, is unlabelled.
            num_items_in_batch: labels in all batches of this optimizer step (`Trainer` gives it).

        Returns:
            `logits` [B, L, C], and `loss` if there are labels.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        encoded = self.plainformer(*inputs, return_layout=True, return_dict=True, **kwargs)
        layout = encoded.layout
        logits = self.classifier(self.dropout(encoded.last_hidden_state))  # [*, C]
        loss = None
        if labels is not None:
            loss = class_loss(logits, layout.gather(real_labels(labels, layout), UNLABELLED), num_items_in_batch)
        return TokenClassifierOutput(loss, layout.scatter(logits), encoded.hidden_states, encoded.attentions)


class PlainformerForQuestionAnswering(PlainformerPreTrainedModel):
    """The encoder with the start and the end of an answer within the row."""

    _auto_class = "AutoModelForQuestionAnswering"

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__(config)
        self.plainformer = PlainformerModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_items_in_batch: Count = None,
        **kwargs: Unpack[EncoderArguments],
    ) -> QuestionAnsweringModelOutput:
        """Score every token as the start and as the end of the answer. The rest: `PlainformerModel.forward`.

        Args:
            start_positions, end_positions: places of the first and the last token of the answer, [B] each; one
                outside its row's real tokens counts as unlabelled.
            num_items_in_batch: labelled rows in all batches of this optimizer step.

        Returns:
            `start_logits` and `end_logits` [B, L], the lowest number of their type at padding, and `loss` if there
            are positions.
        """
        if (start_positions is None) != (end_positions is None):
            raise ValueError("Give both start_positions and end_positions, or neither: the loss needs the two.")
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        encoded = self.plainformer(*inputs, return_layout=True, return_dict=True, **kwargs)
        refuse_packed(encoded.layout.packed)
        logits = self.qa_outputs(encoded.last_hidden_state)  # [*, 2]
        logits = encoded.layout.scatter(logits, torch.finfo(logits.dtype).min)  # [B, L, 2]
        start_logits, end_logits = logits.unbind(dim=-1)  # [B, L] each
        loss = None
        if start_positions is not None:
            positions = (start_positions, end_positions)
            loss = span_loss((start_logits, end_logits), positions, encoded.layout.real, num_items_in_batch)
        return QuestionAnsweringModelOutput(loss, start_logits, end_logits, encoded.hidden_states, encoded.attentions)


class PlainformerForMultipleChoice(PlainformerPreTrainedModel):
    """The encoder with one score per choice; each choice is a sequence of its own."""

    _auto_class = "AutoModelForMultipleChoice"

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__(config)
        self.plainformer = PlainformerModel(config)
        self.pooler = PlainformerPooler(config)
        self.dropout = make_classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Count = None,
        **kwargs: Unpack[EncoderArguments],
    ) -> MultipleChoiceModelOutput:
        """Score the C choices of each row. What is not named here: `PlainformerModel.forward`.

        Args:
            input_ids and all others: as there, with a dimension for the choices after the first, [B, C, ...].
            labels: the right choice [B]; -100, or a choice that does not exist, is unlabelled.
            num_items_in_batch: labels in all batches of this optimizer step (`Trainer` gives it).

        Returns:
            `logits` [B, C], and `loss` if there are labels. A choice without a real token does not exist: it gets the
            lowest number of its type, so it is never chosen and changes no loss.
        """
        num_choices = count_choices(input_ids, inputs_embeds)
        refuse_other_than_tensors(
            attention_mask=attention_mask, token_type_ids=token_type_ids, position_ids=position_ids
        )
        flat = [
            None if values is None else values.flatten(0, 1)  # [B, C, ...] -> [B * C, ...]
            for values in (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        ]
        encoded = self.plainformer(*flat, return_layout=True, return_dict=True, **kwargs)
        pooled = encoded.layout.pool(encoded.last_hidden_state, self.config.classifier_pooling)  # [B * C, E]
        logits = self.classifier(self.dropout(self.pooler(pooled))).view(-1, num_choices)  # [B, C]
        exists = encoded.layout.rows_with_tokens()
        if exists is not None:
            exists = exists.view(-1, num_choices).to(logits.device)
            logits = logits.masked_fill(~exists, torch.finfo(logits.dtype).min)
        loss = None
        if labels is not None:
            loss = choice_loss(logits, labels, exists, num_items_in_batch)
        return MultipleChoiceModelOutput(loss, logits, encoded.hidden_states, encoded.attentions)


def make_classifier_dropout(config: PlainformerConfig) -> nn.Dropout:
    """Dropout before a classifier: `classifier_dropout`, or `hidden_dropout_prob` where that is None."""
    given = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if given is None else given)


def count_choices(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> int:
    """C of `input_ids` [B, C, L] or `inputs_embeds` [B, C, L, E].

    Raises:
        ValueError: another number of dimensions.
    """
    name, tensor, dims = "input_ids", input_ids, 3
    if tensor is None:
        name, tensor, dims = "inputs_embeds", inputs_embeds, 4
    refuse_other_than_tensors(**{name: tensor})
    if tensor is None or tensor.dim() != dims:
        shape = None if tensor is None else tuple(tensor.shape)
        raise ValueError(f"{name} has shape {shape}, but multiple choice takes [batch, choices, length, ...].")
    return tensor.shape[1]
