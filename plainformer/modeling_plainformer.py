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

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
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
from .chunking_plainformer import apply_in_chunks
from .code_plainformer import keep_code  # noqa: F401  transformers 4.57 copies only the files that this one imports
from .configuration_plainformer import PlainformerConfig
from .hooks_plainformer import is_observed, is_observed_inside, types_of_layer, types_of_modules
from .inputs_plainformer import Batch, flatten_choices, read_batch, refuse_unknown
from .kernels_plainformer import KERNELS  # noqa: F401  as above
from .labels_plainformer import ChoiceLabels, HeadLabels, RowLabels, SpanLabels, TokenLabels, count_classes
from .layouts_plainformer import Layout, make_layout, pool, prepare_positions, record_states
from .losses_plainformer import IGNORE_INDEX, NumItems, class_loss, sequence_loss, span_loss
from .names_plainformer import NAMES_ELSEWHERE  # noqa: F401  as above
from .packing_plainformer import refuse_packed
from .positions_plainformer import POSITION_KINDS, NoEmbedding
from .pretrained_plainformer import PlainformerPreTrainedModel
from .values_plainformer import find_indices, lowest_score


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
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Ids [*], or embeddings [*, E] in the place of `input_ids` -> [*, E].

        Args:
            token_type_ids: segment ids [*]; None: all 0.
            position_ids: [*]; None: places count from 0, in a rectangle [B, L].
        """
        tokens = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds  # [*, E]
        if position_ids is None:
            position_ids = torch.arange(tokens.shape[-2], device=tokens.device).expand(tokens.shape[:-1])
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(position_ids)
        embeddings = tokens * self.scale
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
        return apply_in_chunks(self, self.compute, hidden_states)

    def compute(self, hidden_states: Tensor) -> Tensor:
        """The sub-layer itself, [*, E] -> [*, E]."""
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
        self, hidden_states: Tensor, layout: Layout | None = None, output_attentions: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """[*, E] -> [*, E]; with `output_attentions` also the attention weights [B, H, L, L].

        Args:
            layout: how the hidden states lie; None: as a rectangle [B, L, E] without padding.
        """
        if self.pre_norm:
            branch, weights = as_pair(self.attention(self.attn_norm(hidden_states), layout, output_attentions))
            hidden_states = hidden_states + branch
            hidden_states = hidden_states + self.mlp(self.mlp_norm(hidden_states))
        else:
            branch, weights = as_pair(self.attention(hidden_states, layout, output_attentions))
            hidden_states = self.attn_norm(hidden_states + branch)
            hidden_states = self.mlp_norm(hidden_states + self.mlp(hidden_states))
        return (hidden_states, weights) if output_attentions else hidden_states


def as_pair(output: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    """What attention or a layer returns, as hidden states and attention weights, which may be None."""
    return output if isinstance(output, tuple) else (output, None)


def run_layers(
    layers: Iterable[nn.Module],
    hidden_states: Tensor,
    layout: Layout,
    output_attentions: bool = False,
    record: Callable[[Tensor], Tensor] = lambda hidden_states: hidden_states,
) -> tuple[Tensor, list[Tensor | None]]:
    """The layers, one after the other.

    Args:
        hidden_states: [*, E].
        record: sees the input of each layer, and gives it back.

    Returns:
        hidden states [*, E], and the attention weights [B, H, L, L] of each layer if asked for.
    """
    attentions = []
    for layer in layers:
        hidden_states = record(hidden_states)
        output = layer(hidden_states, layout.to(hidden_states.device), output_attentions)
        hidden_states, weights = as_pair(output)
        attentions.append(weights)
    return hidden_states, attentions


@dataclass
class EncoderOutput(BaseModelOutput):
    """`BaseModelOutput`, and for a head the batch as it was read and the layout in which `last_hidden_state` lies."""

    batch: Batch | None = None
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
        self.embedding_types = types_of_modules(self.embeddings)
        self.layers = nn.ModuleList(PlainformerLayer(config) for _ in range(config.num_hidden_layers))
        self.layer_types = types_of_layer(self.layers[0])
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
        cu_seq_lens_q: Tensor | None = None,
        cu_seq_lens_k: Tensor | None = None,
        max_length_q: int | None = None,
        max_length_k: int | None = None,
        seq_idx: Tensor | None = None,
        head_labels: HeadLabels | None = None,
        observed: bool | None = None,
        **kwargs: Any,
    ) -> EncoderOutput:
        """Encode a batch. Give either `input_ids` or `inputs_embeds`.

        Args:
            input_ids: token ids [B, L].
            attention_mask: [B, L], 1 for a token and 0 for padding; or who attends to whom, boolean or added to the
                scores, [B, L, L] or [B, 1|H, L, L]. None: every place is a token.
            token_type_ids: segment ids [B, L]; None: all 0.
            position_ids: [B, L] or [1, L]; None: the real tokens of a row count from 0.
            inputs_embeds: embeddings [B, L, E] in the place of the word embeddings of `input_ids`, of the model's
                type or one that it holds exactly.
            output_attentions: also return the attention weights of every layer, [B, H, L, L] each.
            output_hidden_states: also return N + 1 hidden states [B, L, E]: the embeddings and the output of each
                layer, the last of which is `last_hidden_state`.
            cu_seq_lens_q, cu_seq_lens_k: boundaries [S + 1] of the sequences in a single packed row, as
                `DataCollatorWithFlattening` gives them; they decide where sequences end.
            max_length_q, max_length_k: given by the same collator, and not needed.
            seq_idx: which sequence of its row a place belongs to, [B, L] or [1, L]. Where neither boundaries nor
                `seq_idx` are given, a row whose `position_ids` return to their first value holds several sequences,
                unless they are all equal.
            head_labels: of a head, which reads its labels together with the batch. `last_hidden_state` then stays as
                it lies in the layout, [*, E], and comes with the batch and the layout.
            observed: of a head, whether somebody expects the padded rectangle of a module inside it.

        Returns:
            `last_hidden_state` [B, L, E], zero at padded places, and what was asked for.

        Raises:
            ValueError: input that cannot be meant; the message names what, its value and the remedy.
        """
        refuse_unknown(kwargs, PlainformerModel.forward)
        config = self.config
        output_attentions = config.output_attentions if output_attentions is None else output_attentions
        output_hidden_states = config.output_hidden_states if output_hidden_states is None else output_hidden_states

        packing = {"cu_seq_lens_q": cu_seq_lens_q, "cu_seq_lens_k": cu_seq_lens_k, "seq_idx": seq_idx}
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        words = getattr(self.embeddings, "word_embeddings", None)  # None in what somebody put in the place of ours
        batch = read_batch(config, self.embedding_sizes(), *inputs, packing, words, head_labels, self.training)
        padded = output_attentions or (is_observed(self) if observed is None else observed)
        layout = make_layout(batch, unpad=config.unpad_inputs and not padded)

        all_hidden_states = [] if output_hidden_states else None
        record = record_states(layout, all_hidden_states)
        hidden_states = self.embed(batch, layout)  # [*, E]
        hidden_states, attentions = run_layers(self.layers, hidden_states, layout, output_attentions, record)
        hidden_states = record(self.final_norm(hidden_states))  # [*, E]
        states = tuple(all_hidden_states) if output_hidden_states else None
        weights = tuple(attentions) if output_attentions else None
        if head_labels is None:
            return EncoderOutput(layout.scatter(hidden_states), states, weights)
        return EncoderOutput(hidden_states, states, weights, batch, layout)

    def embedding_sizes(self) -> dict[str, int | None]:
        """How many ids each embedding knows, by the field of the configuration that says so; None: no limit.

        A table tells its size, unless something wraps or replaces it (LoRA does).
        """
        words, positions = (getattr(self.embeddings, f"{name}_embeddings", None) for name in ("word", "position"))
        return {
            "vocab_size": getattr(words, "num_embeddings", self.config.vocab_size),
            "max_position_embeddings": getattr(positions, "num_embeddings", self.config.position_limit),
            "type_vocab_size": self.config.type_vocab_size,
        }

    def embed(self, batch: Batch, layout: Layout) -> Tensor:
        """The embeddings of a batch in its layout, [*, E]; the layout gets what layers need of the positions."""
        tokens = {"input_ids": batch.input_ids, "inputs_embeds": batch.inputs_embeds}
        ids = {"token_type_ids": batch.token_type_ids, "position_ids": batch.position_ids}
        inputs = {name: values for name, values in (tokens | ids).items() if values is not None}  # [B, L, ...] each
        if is_observed_inside(self.embeddings, self.embedding_types):
            hidden_states = layout.gather(self.embeddings(**inputs))
        else:
            hidden_states = self.embeddings(**{name: layout.gather(values) for name, values in inputs.items()})
        prepare_positions(layout, self.config, hidden_states.dtype)
        return hidden_states


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

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: NumItems = None,
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
        head_labels, observed = TokenLabels(self.config.vocab_size, labels), is_observed(self)
        encoded = self.plainformer(*inputs, head_labels=head_labels, observed=observed, return_dict=True, **kwargs)
        hidden_states, batch, layout = encoded.last_hidden_state, encoded.batch, encoded.layout  # [*, E]
        is_sparse = self.training and self.config.sparse_prediction and not observed
        if is_sparse and batch.num_labels is not None:
            labels = batch.labels.to(hidden_states.device).flatten()  # [B * L]
            labelled = find_indices(labels != IGNORE_INDEX, batch.num_labels)  # [N]
            logits = self.lm_head(layout.select(hidden_states, labelled))  # [N, V]
            loss = class_loss(logits, labels[labelled], num_items_in_batch)
            return MaskedLMOutput(loss, logits, encoded.hidden_states, encoded.attentions)
        logits = self.lm_head(hidden_states)  # [*, V]
        loss = None
        if labels is not None:
            loss = class_loss(logits, layout.gather(batch.labels), num_items_in_batch)
        return MaskedLMOutput(loss, layout.scatter(logits), encoded.hidden_states, encoded.attentions)

    def get_output_embeddings(self) -> nn.Linear:
        """The decoder, E -> V."""
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the decoder."""
        self.lm_head.decoder = new_embeddings


class PlainformerForSequenceClassification(PlainformerPreTrainedModel):
    """The encoder with one answer per row: classes, several labels, or values, as `config.problem_type` says."""

    _auto_class = "AutoModelForSequenceClassification"

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__(config)
        self.plainformer = PlainformerModel(config)
        self.pooler = PlainformerPooler(config)
        self.dropout = make_classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, count_classes(config))
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
        num_items_in_batch: NumItems = None,
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
        head_labels, observed = RowLabels(self.config.num_labels, labels, self.config.problem_type), is_observed(self)
        encoded = self.plainformer(*inputs, head_labels=head_labels, observed=observed, return_dict=True, **kwargs)
        pooled = pool(encoded.last_hidden_state, encoded.layout, self.config.classifier_pooling)  # [B, E]
        logits = self.classifier(self.dropout(self.pooler(pooled)))  # [B, C]
        loss = None
        if labels is not None:
            class_ids = encoded.batch.labels
            labels = labels if class_ids is None else class_ids
            loss = sequence_loss(logits, labels, self.config, rows_with_tokens(encoded.batch), num_items_in_batch)
        return SequenceClassifierOutput(loss, logits, encoded.hidden_states, encoded.attentions)


class PlainformerForTokenClassification(PlainformerPreTrainedModel):
    """The encoder with a class for every token."""

    _auto_class = "AutoModelForTokenClassification"

    def __init__(self, config: PlainformerConfig) -> None:
        super().__init__(config)
        self.plainformer = PlainformerModel(config)
        self.dropout = make_classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, count_classes(config))
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
        num_items_in_batch: NumItems = None,
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
        head_labels, observed = TokenLabels(self.config.num_labels, labels), is_observed(self)
        encoded = self.plainformer(*inputs, head_labels=head_labels, observed=observed, return_dict=True, **kwargs)
        layout = encoded.layout
        logits = self.classifier(self.dropout(encoded.last_hidden_state))  # [*, C]
        loss = None
        if labels is not None:
            loss = class_loss(logits, layout.gather(encoded.batch.labels), num_items_in_batch)
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
        num_items_in_batch: NumItems = None,
        **kwargs: Unpack[EncoderArguments],
    ) -> QuestionAnsweringModelOutput:
        """Score every token as the start and as the end of the answer. The rest: `PlainformerModel.forward`.

        Args:
            start_positions, end_positions: places of the first and the last token of the answer, [B] each; one
                outside its row's real tokens counts as unlabelled.
            num_items_in_batch: labelled rows in all batches of this optimizer step.

        Returns:
            `start_logits` and `end_logits` [B, L], and `loss` if there are positions. Padding scores -1e15, so it is
            never the answer; its square is finite, except in float16, where it scores the lowest number.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        head_labels, observed = SpanLabels(None, start_positions, end_positions), is_observed(self)
        encoded = self.plainformer(*inputs, head_labels=head_labels, observed=observed, return_dict=True, **kwargs)
        refuse_packed(encoded.layout.is_packed)
        logits = self.qa_outputs(encoded.last_hidden_state)  # [*, 2]
        logits = encoded.layout.scatter(logits, lowest_score(logits.dtype))  # [B, L, 2]
        start_logits, end_logits = logits.unbind(dim=-1)  # [B, L] each
        loss = None
        if start_positions is not None:
            loss = span_loss((start_logits, end_logits), encoded.batch.labels, num_items_in_batch)
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
        num_items_in_batch: NumItems = None,
        **kwargs: Unpack[EncoderArguments],
    ) -> MultipleChoiceModelOutput:
        """Score the C choices of each row. What is not named here: `PlainformerModel.forward`.

        Args:
            input_ids and all others: as there, with a dimension for the choices after the first, [B, C, ...].
            labels: the right choice [B]; -100, or a choice that does not exist, is unlabelled.
            num_items_in_batch: labels in all batches of this optimizer step (`Trainer` gives it).

        Returns:
            `logits` [B, C], and `loss` if there are labels. A choice without a real token does not exist: it
            scores -1e15 (the lowest number in float16), so it is never chosen and changes no loss.
        """
        others = (attention_mask, token_type_ids, position_ids)
        num_choices, inputs = flatten_choices(input_ids, inputs_embeds, *others)  # [B * C, ...] each
        head_labels, observed = ChoiceLabels(num_choices, labels), is_observed(self)
        encoded = self.plainformer(**inputs, head_labels=head_labels, observed=observed, return_dict=True, **kwargs)
        pooled = pool(encoded.last_hidden_state, encoded.layout, self.config.classifier_pooling)  # [B * C, E]
        logits = self.classifier(self.dropout(self.pooler(pooled))).view(-1, num_choices)  # [B, C]
        exists = rows_with_tokens(encoded.batch)
        if exists is not None:
            exists = exists.view(-1, num_choices).to(logits.device)
            logits = logits.masked_fill(~exists, lowest_score(logits.dtype))
        loss = None
        if labels is not None:
            loss = class_loss(logits, encoded.batch.labels, num_items_in_batch)
        return MultipleChoiceModelOutput(loss, logits, encoded.hidden_states, encoded.attentions)


def rows_with_tokens(batch: Batch) -> Tensor | None:
    """Which rows hold a token at all, bool [B]; None when all do."""
    return None if batch.token_mask is None else batch.token_mask.any(dim=1)


def make_classifier_dropout(config: PlainformerConfig) -> nn.Dropout:
    """Dropout before a classifier: `classifier_dropout`, or `hidden_dropout_prob` where that is None."""
    given = config.classifier_dropout
    return nn.Dropout(config.hidden_dropout_prob if given is None else given)
