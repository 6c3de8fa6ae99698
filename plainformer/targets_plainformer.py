"""What a decoder is given: its input ids, or the labels that they are made of, checked and completed.

Teacher forcing: a decoder predicts each label from those before it. So it reads the labels moved by one place, after
the start token:

    labels   5      6  7  end
    input    start  5  6  7

A target is what lies from a row's first label to its last, on whichever side the padding is. A label that is ignored
inside of it keeps its place, and is read as the padding token.

Shapes: B batch, L targets of this call, K targets in all, E hidden size.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .inputs_plainformer import check_zero_one, read_embeds, read_ids, read_shape, refuse_too_long, refuse_too_many
from .labels_plainformer import HeadLabels
from .losses_plainformer import IGNORE_INDEX
from .packing_plainformer import count_positions
from .positions_plainformer import draw_positions
from .values_plainformer import Question, Questions, check_integers, check_shape, mask_out, refuse_other_than_tensors


@dataclass
class Targets(HeadLabels):
    """The targets of a batch. Their values are looked at together with the sources (`check_values`).

    Attributes:
        input_ids: [B, L]; None where embeddings were given.
        inputs_embeds: [B, L, E]; None where ids were given.
        labels: class ids [B, L], `IGNORE_INDEX` where there is none; None where none were given.
        attention_mask: of all targets as it was given, [B, K]; None where it was not.
        token_mask: which places hold a token, bool [B, L]; None when all do.
        key_mask: the same of all targets, those in the cache included, bool [B, K]; None when all do.
        counted: [B, L]; the tokens of a target count from 0.
        position_ids: [B, L]; those that are counted, or drawn at random in training.
        num_positions: how many positions were drawn from; 0: they are counted.
        cache_position: where the targets of this call stand among all of their row, [L].
        num_before: how many targets are in the cache; None where only the device knows.
        max_length: how many targets a row may have by now.
        are_first: none of these sources was seen before.
        sizes: how many ids each embedding knows, by the field of the configuration that sets it; None: no limit.
        num_labels: how many places are labelled; None where there are no labels or values cannot be read.
        asked: the question of how many tokens each row has; None where nobody asks.
        start, pad: the ids of the start token and of padding; None where there is none.
        training: the model is trained.
    """

    out_of_range = (
        f"ids of the targets go from 0 to {{last}} ({IGNORE_INDEX}: unlabelled). Use the tokenizer that belongs to "
        "this model, or resize_token_embeddings for new tokens."
    )
    input_ids: Tensor | None = None
    inputs_embeds: Tensor | None = None
    labels: Tensor | None = None
    attention_mask: Tensor | None = None
    token_mask: Tensor | None = None
    key_mask: Tensor | None = None
    counted: Tensor | None = None
    position_ids: Tensor | None = None
    num_positions: int = 0
    cache_position: Tensor | None = None
    num_before: int | None = 0
    max_length: int = 0
    are_first: bool = True
    sizes: dict[str, int | None] | None = None
    num_labels: int | None = None
    asked: Question | None = None
    start: int | None = None
    pad: int | None = None
    training: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(B, L)."""
        return tuple(self.position_ids.shape)

    @property
    def is_counted(self) -> bool:
        """Whether the tokens of a target count from 0."""
        return self.position_ids is self.counted

    @property
    def lengths(self) -> list[int] | None:
        """How many tokens each row has, [B]; None where they are not known."""
        return None if self.asked is None else self.asked.answer

    def read_labels(self, labels: Tensor, config: Any) -> None:
        """Labels [B, L] say where the targets lie, and what the input ids are where nothing else says it.

        Raises:
            ValueError: another shape, no integers, or no start token.
        """
        check_integers("labels", labels, "ids of the targets")
        if labels.dim() != 2 or labels.shape[1] == 0:
            raise ValueError(
                f"labels have shape {tuple(labels.shape)}, but must be [batch, length], with a place for a token. For "
                "a single target, add the batch dimension with unsqueeze(0)."
            )
        self.labels = labels.long()
        self.token_mask = self.key_mask = find_targets(self.labels)
        if self.input_ids is None and self.inputs_embeds is None:
            self.input_ids = shift_right(self.labels, self.token_mask, config)

    def read_mask(self, attention_mask: Tensor, shape: tuple[int, int], num_before: int | Tensor) -> None:
        """`decoder_attention_mask` says where the targets lie; a label elsewhere does not count.

        Raises:
            ValueError: another shape.
        """
        B, L = shape
        fits = attention_mask.dim() == 2 and attention_mask.shape[0] == B and attention_mask.shape[1] >= L
        if isinstance(num_before, int):
            fits = fits and attention_mask.shape[1] == num_before + L
        if not fits:
            raise ValueError(
                f"decoder_attention_mask has shape {tuple(attention_mask.shape)}, but must be [{B}, targets in all]: 1 "
                f"for a token, 0 for padding. {L} targets were given, and {num_before} are in the cache."
            )
        self.attention_mask, self.key_mask = attention_mask, attention_mask.bool()
        self.token_mask = self.key_mask[:, -L:]
        if self.labels is not None:
            self.labels = mask_out(self.labels, self.token_mask, IGNORE_INDEX)

    def count(self, B: int, L: int, num_before: int | Tensor) -> None:
        """Positions: the tokens of each row count from 0."""
        device = (self.input_ids if self.inputs_embeds is None else self.inputs_embeds).device
        self.num_before = None if isinstance(num_before, Tensor) else num_before
        self.cache_position = torch.arange(L, device=device) + num_before  # a new tensor: static caches count in place
        if self.key_mask is None:
            self.counted = self.cache_position.expand(B, L)
        else:
            self.counted = count_positions(self.key_mask, None, tuple(self.key_mask.shape), device)[:, -L:]
        self.position_ids = self.counted

    def draw(self, num_positions: int) -> None:
        """Positions at random, out of so many, where nothing was before."""
        self.num_positions = num_positions
        self.position_ids = draw_positions(self.counted, self.token_mask, num_positions)

    def read(self, token_mask: Tensor | None, shape: tuple[int, int]) -> Tensor | None:
        """The labels, whose values are then checked as those of any head."""
        return self.labels

    def check_values(self, token_mask: Tensor | None, shape: tuple[int, int], questions: Questions) -> None:
        """Ask for the lengths of the targets, and check ids, labels and positions; arguments as in `HeadLabels.read`.

        Raises:
            ValueError: another number of rows than of sources; once `questions` are read: an id or a position that the
                decoder does not have.
        """
        if self.shape[0] != shape[0]:
            raise ValueError(
                f"The targets have {self.shape[0]} rows and the sources {shape[0]}: give one target for each source."
            )
        remedy = "Truncate the labels to {limit} tokens, generate fewer (max_length={limit})"
        limit = self.sizes["max_position_embeddings"]
        refuse_too_long(self.counted, limit, questions, self.max_length, what="target", remedy=remedy)
        if self.num_positions:
            refuse_too_many(self.counted, self.num_positions, questions, what="target")
        if not self.are_first and self.shape[1] == 1:  # a token that generation chose
            return
        known = {"shape": self.shape, "token_mask": self.token_mask, "sizes": self.sizes, "questions": questions}
        if self.attention_mask is not None:
            check_zero_one("decoder_attention_mask", self.attention_mask, questions)
        if self.input_ids is not None:
            self.input_ids = read_ids("decoder_input_ids", self.input_ids, "vocab_size", **known)
            self.refuse_leading_padding(questions)
        counts = self.position_ids.new_full((self.shape[0],), self.shape[1])
        counts = counts if self.token_mask is None else self.token_mask.sum(dim=1)
        self.asked = questions.ask(lambda: counts)

    def refuse_leading_padding(self, questions: Questions) -> None:
        """Raise a ValueError for padding ids before the start token, where nothing says that they are padding.

        This is how labels that are padded on the left arrive under label smoothing: `Trainer` keeps the labels. Where
        one id is both, they are told in training only: `generate` may write padding after the start token.
        """
        start, pad = self.start, self.pad
        unknown = None in (start, pad) or (start == pad and not self.training)
        if self.token_mask is not None or unknown or self.input_ids.shape[1] < 2:
            return

        def check(values: list[int]) -> None:
            if values[0]:
                raise ValueError(
                    f"decoder_input_ids begin with pad_token_id={pad} before decoder_start_token_id={start}, and there "
                    "is no decoder_attention_mask: the padding would be read as tokens. Pass decoder_attention_mask. "
                    "Under label smoothing, pad labels on the right (tokenizer.padding_side='right')."
                )

        def look() -> Tensor:
            is_leading = (self.input_ids == pad).to(torch.int8).cummin(dim=1).values.bool()  # [B, L]
            return (is_leading[:, :-1] & (self.input_ids[:, 1:] == start)).any()

        questions.ask(look, check)


def read_targets(
    config: Any,
    sizes: dict[str, int | None],
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    inputs_embeds: Tensor | None,
    labels: Tensor | None,
    cache: Any = None,
    words: nn.Module | None = None,
    training: bool = False,
) -> Targets:
    """Read what a decoder was given; input ids are made of `labels` where neither ids nor embeddings are given.

    Args:
        config: a `PlainformerSeq2SeqConfig`.
        sizes: as in `Targets`.
        attention_mask: of all targets, [B, K]; None: labels, where given, say where a target lies.
        cache: keys and values of the targets before these; None: there are none.
        words: the module of the word embeddings, whose type is that of the model; None: its type is not known.
        training: the model is trained; without a cache, positions may then be drawn at random.

    Raises:
        TypeError: something is no tensor.
        ValueError: another shape, no start token, or floating point ids.
    """
    refuse_other_than_tensors(labels=labels, decoder_attention_mask=attention_mask)
    num_before = 0 if cache is None else cache.get_seq_length()  # a tensor in a static cache of newer versions
    targets = Targets(config.vocab_size, input_ids, inputs_embeds, sizes=sizes, training=training)
    targets.start, targets.pad = config.decoder_start_token_id, config.pad_token_id
    if labels is not None:
        targets.read_labels(labels, config)
    B, L = read_shape(targets.input_ids, inputs_embeds, config.hidden_size, "decoder_")[0]
    if labels is not None:
        check_shape("labels", labels, [(B, L)])
    if attention_mask is not None:
        targets.read_mask(attention_mask, (B, L), num_before)
    targets.count(B, L, num_before)
    if training and cache is None and config.num_random_positions:
        targets.draw(config.num_random_positions)
    if targets.num_before is not None:
        targets.max_length = L + num_before
    else:  # a static cache
        targets.max_length = cache.self_attention_cache.layers[0].max_cache_len
    targets.are_first = cache is None or not any(cache.is_updated.values())
    if inputs_embeds is not None:
        targets.inputs_embeds = read_embeds(inputs_embeds, targets.token_mask, words, "decoder_inputs_embeds")
    return targets


def find_targets(labels: Tensor) -> Tensor:
    """Which places lie from a row's first label to its last, bool [B, L].

    Args:
        labels: [B, L], `IGNORE_INDEX` where there is none.
    """
    labelled = (labels != IGNORE_INDEX).to(torch.int8)
    return (labelled.cummax(dim=1).values & labelled.flip(1).cummax(dim=1).values.flip(1)).bool()


def shift_right(labels: Tensor, token_mask: Tensor, config: Any) -> Tensor:
    """The input ids of teacher forcing, [B, L]: the start token at the first place of a target, then the labels before.

    Args:
        labels: [B, L]; ignored ones are read as the padding token.
        token_mask: where the targets lie, bool [B, L].

    Raises:
        ValueError: the configuration names no start token, or no padding token.
    """
    start, pad = config.decoder_start_token_id, config.pad_token_id
    if start is None:
        raise ValueError(
            "decoder_start_token_id=None: the decoder's input cannot be made from labels. Set "
            "config.decoder_start_token_id, for a BERT tokenizer to tokenizer.cls_token_id."
        )
    pad = start if pad is None else pad
    shifted = F.pad(labels.masked_fill(labels == IGNORE_INDEX, pad)[:, :-1], (1, 0), value=pad)
    is_first = token_mask & ~F.pad(token_mask[:, :-1], (1, 0))
    return shifted.masked_fill(is_first, start)


def read_prompts(
    input_ids: Tensor, attention_mask: Tensor | None, num_sources: int | None, config: Any
) -> tuple[Tensor, Tensor | None]:
    """Prompts of generation, [B, L], and their mask, without the places at which all of them are padded.

    Args:
        num_sources: how many sources there are; None: it is not known.

    Raises:
        TypeError: something is no tensor.
        ValueError: another number of prompts, another shape, padding in the wrong place or without a mask, or some
            with and some without the start token.
    """
    refuse_other_than_tensors(decoder_input_ids=input_ids, decoder_attention_mask=attention_mask)
    shape, _ = read_shape(input_ids, None, config.hidden_size, "decoder_")
    if num_sources not in (None, shape[0]):
        raise ValueError(
            f"decoder_input_ids have {shape[0]} rows, and there are {num_sources} sources: give one prompt for each."
        )
    start, pad = config.decoder_start_token_id, config.pad_token_id
    if attention_mask is None:
        if pad is not None and pad != start and (input_ids[:, 0] == pad).any():
            raise ValueError(
                f"decoder_input_ids begin with pad_token_id={pad}, and there is no decoder_attention_mask: the padding "
                "would be read as tokens. Pass decoder_attention_mask."
            )
        refuse_mixed_starts(input_ids[:, 0], start)
        return input_ids, None
    check_shape("decoder_attention_mask", attention_mask, [shape])
    if not attention_mask[:, -1].all():
        raise ValueError(
            "decoder_attention_mask ends with 0: a prompt is padded on the right, so that its padding would lie "
            "between the prompt and what is generated. Pad prompts on the left (tokenizer.padding_side='left')."
        )
    firsts = attention_mask.bool().to(torch.int8).argmax(dim=1, keepdim=True)  # [B, 1]
    refuse_mixed_starts(input_ids.gather(1, firsts)[:, 0], start)
    first = int(firsts.amin())
    return input_ids[:, first:], attention_mask[:, first:]


def refuse_mixed_starts(first_ids: Tensor, start: int | None) -> None:
    """Raise a ValueError where some prompts begin with the start token and others do not.

    `generate` puts it before all of them or before none.

    Args:
        first_ids: the first id of each prompt, [B].
    """
    begins = (first_ids == start).tolist() if start is not None else []
    if any(begins) and not all(begins):
        raise ValueError(
            f"decoder_input_ids: row {begins.index(True)} begins with decoder_start_token_id={start}, and row "
            f"{begins.index(False)} does not. Begin all prompts with it, or none."
        )
