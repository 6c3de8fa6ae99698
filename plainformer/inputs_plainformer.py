"""What a user passes to a model: checked, refused or completed, before any kernel runs.

    read_batch   the arguments of `forward` -> Batch: complete ids, masks and positions, [B, L], and what their values
                 say, which is read from the device once

Every error names what was wrong, its value and the remedy.

Padding does not exist: where the attention mask is 0, all ids and embeddings are 0 from here on, whatever stood there.
Without a mask there is no padding: every place is a token, also one with the padding id.

Shapes: B batch, L length, S sequences, H heads, E hidden size.
"""

import difflib
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import logging

from .configuration_plainformer import PlainformerConfig
from .labels_plainformer import HeadLabels
from .losses_plainformer import IGNORE_INDEX
from .packing_plainformer import count_positions, count_tokens, find_sequences
from .positions_plainformer import POSITION_KINDS, draw_positions
from .values_plainformer import Question, Questions, check_integers, check_shape, mask_out, refuse_other_than_tensors

logger = logging.get_logger(__name__)

REMEDIES = {  # for an id that is out of range, by the field that sets the range
    "vocab_size": "Use the tokenizer that belongs to this model, or resize_token_embeddings for new tokens.",
    "max_position_embeddings": "Truncate the text, or use a model that reaches further (resize_position_embeddings, or "
    "a position_embedding_type without a limit).",
    "type_vocab_size": "Leave token_type_ids out, or build the model with a larger type_vocab_size.",
}
HEAD_ARGUMENTS = ("labels", "start_positions", "end_positions")  # what heads take beyond the encoder's arguments
INTERNAL_ARGUMENTS = ("self", "kwargs", "head_labels", "observed")


@dataclass
class Batch:
    """A batch as it was read.

    Attributes:
        shape: (B, L).
        input_ids: [B, L], or None where embeddings were given.
        inputs_embeds: [B, L, E], or None where ids were given.
        token_type_ids: segment ids [B, L].
        position_ids: [B, L]; the real tokens of a sequence count from 0 unless the user gave others.
        token_mask: which places hold a token, bool [B, L]; None when all of them do.
        attention_mask: who may attend to whom, bool or added to the scores, [B, 1|H, L, L]; None where the user's
            mask did not say.
        sequence_ids: the number of each place's sequence in the batch, [B, L]; None when each row is one sequence.
        is_packed: some row is known to hold several sequences.
        is_counted: `position_ids` are known to count the real tokens of each sequence from 0.
        lengths: how many tokens each sequence has, in order, [S]; None where all places hold tokens of one sequence a
            row, and where values cannot be read.
        labels: class ids for the head's loss, `IGNORE_INDEX` where there is none.
        num_labels: how many of them are labelled; None where there are none or values cannot be read.
    """

    shape: tuple[int, int]
    input_ids: Tensor | None
    inputs_embeds: Tensor | None
    token_type_ids: Tensor
    position_ids: Tensor
    token_mask: Tensor | None
    attention_mask: Tensor | None
    sequence_ids: Tensor | None = None
    is_packed: bool = False
    is_counted: bool = False
    lengths: list[int] | None = None
    labels: Tensor | None = None
    num_labels: int | None = None


def read_batch(
    config: PlainformerConfig,
    sizes: dict[str, int | None],
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    packing: dict[str, Tensor | None],
    words: nn.Module | None,
    head_labels: HeadLabels | None = None,
    training: bool = False,
) -> Batch:
    """Read the arguments of `forward`, whose documentation says what each may be.

    Args:
        sizes: how many ids each embedding knows, by the field of the configuration that sets it; None: no limit.
        packing: `cu_seq_lens_q`, `cu_seq_lens_k` and `seq_idx`.
        words: the module of the word embeddings, whose type is that of the model; None: its type is not known.
        head_labels: the labels of a head, which are looked at together with everything else.
        training: positions may be drawn at random, if the configuration says so.

    Raises:
        TypeError: something is no tensor.
        ValueError: input that cannot be meant.
    """
    shape, device = read_shape(input_ids, inputs_embeds, config.hidden_size)
    refuse_other_than_tensors(attention_mask=attention_mask, token_type_ids=token_type_ids, position_ids=position_ids)
    questions = Questions()
    token_mask, attention_mask = read_mask(attention_mask, shape, config.num_attention_heads, questions)
    sequence_ids = find_sequences(position_ids, token_mask, packing, shape, questions)
    num_sequences, lengths = ask_lengths(token_mask, sequence_ids, questions)
    known = {"shape": shape, "token_mask": token_mask, "sizes": sizes, "questions": questions}
    num_positions = config.num_random_positions if training else 0
    counted = count_positions(token_mask, sequence_ids, shape, device)
    position_ids, differ = read_positions(position_ids, counted, sequence_ids, num_positions, **known)
    token_type_ids = read_token_types(token_type_ids, config.type_vocab_size, device, **known)
    if inputs_embeds is not None:
        inputs_embeds = read_embeds(inputs_embeds, token_mask, words)
    else:
        input_ids = read_input_ids(input_ids, attention_mask, config.pad_token_id, **known)
    labels, num_labels = read_labels(head_labels, token_mask, shape, questions)
    questions.read()
    inputs = (input_ids, inputs_embeds, token_type_ids, position_ids)
    batch = Batch(shape, *inputs, token_mask, attention_mask, sequence_ids, labels=labels)
    batch.lengths = lengths and lengths.answer
    batch.is_counted = position_ids is counted or (differ is not None and differ.answer == [0])
    batch.num_labels = num_labels and num_labels.answer and num_labels.answer[0]
    if sequence_ids is not None:
        decide_packing(batch, num_sequences.answer, packing["cu_seq_lens_q"])
    if batch.lengths is not None and sum(batch.lengths) == shape[0] * shape[1]:
        batch.token_mask = None  # there is no padding
    return batch


def flatten_choices(
    input_ids: Tensor | None, inputs_embeds: Tensor | None, *others: Tensor | None
) -> tuple[int, dict[str, Tensor | None]]:
    """C, and the arguments of multiple choice, [B, C, ...] each, as the encoder takes them, [B * C, ...].

    Args:
        others: attention_mask, token_type_ids and position_ids.

    Raises:
        TypeError: something is no tensor.
        ValueError: another number of dimensions, or another number of rows or choices than the ids have.
    """
    names = ("input_ids", "inputs_embeds", "attention_mask", "token_type_ids", "position_ids")
    named = dict(zip(names, (input_ids, inputs_embeds, *others), strict=True))
    refuse_other_than_tensors(**named)
    name, dims = ("inputs_embeds", 4) if input_ids is None and inputs_embeds is not None else ("input_ids", 3)
    shape = None if named[name] is None else tuple(named[name].shape)
    if shape is None or len(shape) != dims or shape[1] == 0:
        raise ValueError(f"{name} has shape {shape}, but multiple choice takes [batch, choices, length, ...].")
    for other, values in named.items():
        if values is not None and tuple(values.shape[:2]) != shape[:2]:
            raise ValueError(
                f"{other} has shape {tuple(values.shape)}, but this batch has {shape[0]} rows of {shape[1]} choices: "
                f"it must be [{shape[0]}, {shape[1]}, ...]."
            )
    return shape[1], {name: None if values is None else values.flatten(0, 1) for name, values in named.items()}


def read_shape(
    input_ids: Tensor | None, inputs_embeds: Tensor | None, hidden_size: int, prefix: str = ""
) -> tuple[tuple[int, int], torch.device]:
    """(B, L) and device of a batch given as ids [B, L] or as embeddings [B, L, E].

    Args:
        prefix: what the names of the two begin with; "decoder_" for targets.

    Raises:
        TypeError: what was given is not a tensor.
        ValueError: both are given or neither, or the shape is another one, or there is not one place for a token.
    """
    if (input_ids is None) == (inputs_embeds is None):
        given = "neither" if input_ids is None else "both"
        raise ValueError(f"Give either {prefix}input_ids or {prefix}inputs_embeds: {given} was given.")
    name, tensor = ("input_ids", input_ids) if inputs_embeds is None else ("inputs_embeds", inputs_embeds)
    name = prefix + name
    refuse_other_than_tensors(**{name: tensor})
    expected = "[batch, length]" if inputs_embeds is None else f"[batch, length, {hidden_size}]"
    fits = tensor.dim() == 2 if inputs_embeds is None else tensor.dim() == 3 and tensor.shape[2] == hidden_size
    if not fits:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, but must be {expected}. "
            "For a single text, add the batch dimension with unsqueeze(0)."
        )
    if tensor.shape[1] == 0:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: there is no token in it. Leave out empty texts.")
    return (tensor.shape[0], tensor.shape[1]), tensor.device


def read_mask(
    attention_mask: Tensor | None, shape: tuple[int, int], num_heads: int, questions: Questions
) -> tuple[Tensor | None, Tensor | None]:
    """What an `attention_mask` of any accepted form says.

    Args:
        attention_mask: None; [B, L] of 1 (token) and 0 (padding); or [B, L, L] or [B, 1|H, L, L] that say who attends
            to whom, boolean (or integer 0/1), or float to be added to the scores. In the last two every place is a
            token.
        shape: (B, L).
        num_heads: H.

    Returns:
        token_mask: which places hold a token, bool [B, L]; None when all do.
        attention_mask: who attends to whom, bool or float [B, 1|H, L, L]; None when the mask does not say.

    Raises:
        ValueError: another shape, or values that could be read in two ways.
    """
    if attention_mask is None:
        return None, None
    (B, L), H = shape, num_heads
    if tuple(attention_mask.shape) not in [(B, L), (B, L, L), (B, 1, L, L), (B, H, L, L)]:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}, but this batch of {B} rows of {L} tokens takes "
            f"{(B, L)} (1 for a token, 0 for padding), {(B, L, L)}, {(B, 1, L, L)} or {(B, H, L, L)} "
            "(who attends to whom)."
        )
    if attention_mask.is_complex():
        raise ValueError(
            f"attention_mask is {attention_mask.dtype}, but holds no complex numbers: pass attention_mask.real."
        )
    is_additive = attention_mask.dim() > 2 and attention_mask.is_floating_point()
    if is_additive:
        _check_additive(attention_mask, questions)
    else:
        check_zero_one("attention_mask", attention_mask, questions)
    if attention_mask.dim() == 2:
        return attention_mask.to(torch.bool), None
    attention_mask = attention_mask[:, None] if attention_mask.dim() == 3 else attention_mask  # [B, 1|H, L, L]
    return None, attention_mask if is_additive else attention_mask.to(torch.bool)


def ask_lengths(
    token_mask: Tensor | None, sequence_ids: Tensor | None, questions: Questions
) -> tuple[Question | None, Question | None]:
    """Ask for the number of sequences, and for the number of tokens of each; None where the shape tells them."""
    if sequence_ids is not None:
        return (
            questions.ask(lambda: sequence_ids.amax() + 1),
            questions.ask(lambda: count_tokens(token_mask, sequence_ids)),
        )
    return None, None if token_mask is None else questions.ask(lambda: token_mask.sum(dim=1))


def decide_packing(batch: Batch, num_sequences: list[int] | None, boundaries: Tensor | None) -> None:
    """Is some row packed? Where each row turns out to be one sequence, nothing has to tell sequences apart.

    Args:
        num_sequences: how many the batch has, [1]; None where values cannot be read. The number of boundaries has to
            do then.
    """
    if num_sequences is None:
        batch.is_packed = boundaries is not None and boundaries.numel() > 2
        return
    batch.is_packed = num_sequences[0] > batch.shape[0]
    batch.lengths = batch.lengths and batch.lengths[: num_sequences[0]]
    batch.sequence_ids = batch.sequence_ids if batch.is_packed else None


def read_positions(
    position_ids: Tensor | None,
    counted: Tensor,
    sequence_ids: Tensor | None,
    num_positions: int,
    token_mask: Tensor | None,
    sizes: dict[str, int | None],
    questions: Questions,
    shape: tuple[int, int],
) -> tuple[Tensor, Question | None]:
    """Position ids [B, L]: as they were given, counted, or drawn at random.

    Args:
        position_ids: as they were given; None: they were not.
        counted: the tokens of each sequence counted from 0, [B, L].
        sequence_ids: given where a row may be packed.
        num_positions: draw from so many; 0: do not draw.

    Returns:
        position ids, and where they were given the question whether they are not those that are counted.

    Raises:
        ValueError: as `read_ids` and `refuse_too_long`.
    """
    if num_positions and (position_ids is not None or sequence_ids is not None):
        logger.warning_once(
            f"randomize_positions={num_positions} changes nothing here: position_ids were given, or rows are packed. "
            "Only positions that the model counts itself, with a row for each text, are drawn at random."
        )
    if position_ids is not None:
        known = {"shape": shape, "token_mask": token_mask, "sizes": sizes, "questions": questions}
        position_ids = read_ids("position_ids", position_ids, "max_position_embeddings", **known)
        return position_ids, questions.ask(lambda: (position_ids != counted).any())
    refuse_too_long(counted, sizes["max_position_embeddings"], questions)
    if not num_positions or sequence_ids is not None:
        return counted, None
    refuse_too_many(counted, num_positions, questions)
    return draw_positions(counted, token_mask, num_positions), None


def refuse_too_long(
    position_ids: Tensor,
    limit: int | None,
    questions: Questions,
    padded_length: int | None = None,
    what: str = "text",
    remedy: str = "Truncate it (tokenizer(..., truncation=True, max_length={limit}))",
) -> None:
    """Raise a ValueError for more real tokens in a sequence than the model has positions, `limit`; None: no limit.

    Args:
        position_ids: counted, [B, L].
        padded_length: with what is in a cache; None: it is that of `position_ids`.
        what: the name of a sequence.
        remedy: how to make one shorter.
    """
    kinds = (name for name, kind in POSITION_KINDS.items() if kind.reads_positions and not kind.has_limit)
    _ask_length(
        position_ids,
        limit,
        questions,
        f"The {what} is {{length}} tokens long, but max_position_embeddings={limit} is the limit of this model's "
        f"positions. {remedy.format(limit=limit)} or use a model that reaches further (resize_position_embeddings, or "
        f"a position_embedding_type without a limit: {', '.join(map(repr, kinds))}).",
        padded_length,
    )


def refuse_too_many(position_ids: Tensor, num_positions: int, questions: Questions, what: str = "text") -> None:
    """Raise a ValueError for more real tokens in a row than there are positions to draw from.

    Args:
        position_ids: counted, [B, L].
        what: the name of a sequence.
    """
    _ask_length(
        position_ids,
        num_positions,
        questions,
        f"The {what} is {{length}} tokens long, but in training its positions are drawn from randomize_positions="
        f"{num_positions}. Truncate it, set config.randomize_positions to at least {{length}}, or to 0 to count them.",
    )


def _ask_length(
    position_ids: Tensor, limit: int | None, questions: Questions, message: str, padded_length: int | None = None
) -> None:
    """Raise a ValueError with this message for more tokens than `limit`.

    Values are asked for only where the padded length leaves a doubt. Where they cannot be read, that length counts.
    """
    padded_length = position_ids.shape[1] if padded_length is None else padded_length
    if limit is None or padded_length <= limit or not position_ids.numel():
        return

    def check(values: list[int]) -> None:
        if values[0] > limit:
            raise ValueError(message.format(length=values[0]))

    questions.ask(lambda: position_ids.amax() + 1, check, otherwise=[padded_length])


def read_ids(
    name: str,
    ids: Tensor,
    field: str,
    shape: tuple[int, int],
    token_mask: Tensor | None,
    sizes: dict[str, int | None],
    questions: Questions,
) -> Tensor:
    """Ids [B, L] as int64, since an embedding takes no bytes or shorts; 0 at padding.

    Args:
        ids: [B, L], or [1, L] for the same ids in each row.
        field: the field of the configuration that limits them, to 0 .. sizes[field] - 1.

    Raises:
        ValueError: another shape, or no integers in this range.
    """
    check_shape(name, ids, [shape, (1, shape[1])])
    check_integers(name, ids)
    ids, size = mask_out(ids.expand(shape).long(), token_mask), sizes[field]

    def check(values: list[int]) -> None:
        low, high = values
        if low < 0 or high >= size:
            raise ValueError(
                f"{name} holds {low if low < 0 else high}, but {field}={size} allows 0 to {size - 1}. {REMEDIES[field]}"
            )

    if size is not None and ids.numel():
        questions.ask(lambda: torch.stack(ids.aminmax()), check)
    return ids


def read_input_ids(input_ids: Tensor, attention_mask: Tensor | None, pad_token_id: int | None, **known: Any) -> Tensor:
    """Token ids [B, L]. Without a mask, padding ids at an end of a row are warned about, once, as in transformers."""
    ids, questions = read_ids("input_ids", input_ids, "vocab_size", **known), known["questions"]

    def check(values: list[int]) -> None:
        if values[0]:
            logger.warning_once(
                f"input_ids begin or end with pad_token_id={pad_token_id}, and there is no attention_mask: these ids "
                "are read as tokens. If they are padding, pass the attention_mask that the tokenizer gives."
            )

    has_mask = attention_mask is not None or known["token_mask"] is not None
    if not has_mask and pad_token_id is not None and ids.numel():
        outermost = ids[:, :: max(ids.shape[1] - 1, 1)]  # [B, 2], or [B, 1]
        questions.ask(lambda: (outermost == pad_token_id).any(), check)
    return ids


def read_embeds(
    inputs_embeds: Tensor, token_mask: Tensor | None, words: nn.Module | None, name: str = "inputs_embeds"
) -> Tensor:
    """Embeddings [B, L, E] in the type of the model; 0 at padding.

    A narrower type is widened, as in BERT, where the token types do it. A wider one is rounded under autocast only.

    Args:
        words: the module of the word embeddings. One without a table of floating point numbers says nothing.

    Raises:
        ValueError: no floating point numbers, or ones that would lose precision in the model.
    """
    if not inputs_embeds.is_floating_point():
        raise ValueError(
            f"{name} is {inputs_embeds.dtype}, but embeddings are floating point numbers: pass ids as "
            f"{name.replace('inputs_embeds', 'input_ids')}, or {name}.to(model.dtype)."
        )
    table = getattr(words, "weight", inputs_embeds)
    dtype = table.dtype if table.is_floating_point() else inputs_embeds.dtype
    fits = torch.promote_types(inputs_embeds.dtype, dtype) == dtype
    if not fits and (inputs_embeds.is_meta or not torch.is_autocast_enabled(inputs_embeds.device.type)):
        raise ValueError(f"{name} is {inputs_embeds.dtype}, but the model is {dtype}: pass {name}.to(model.dtype).")
    return mask_out(inputs_embeds.to(dtype), token_mask)


def read_token_types(
    token_type_ids: Tensor | None, num_types: int, device: torch.device, shape: tuple[int, int], **known: Any
) -> Tensor:
    """Segment ids [B, L], all 0 where none are given; a model without segments does not look at them."""
    if token_type_ids is None or num_types == 0:
        return torch.zeros(shape, dtype=torch.long, device=device)
    return read_ids("token_type_ids", token_type_ids, "type_vocab_size", shape, **known)


def read_labels(
    head_labels: HeadLabels | None, token_mask: Tensor | None, shape: tuple[int, int], questions: Questions
) -> tuple[Tensor | None, Question | None]:
    """The class ids of a head, and the question of how many of them are labelled.

    Raises:
        TypeError: `head_labels` is not what a head makes of its labels.
        ValueError: a class that the head does not have, or a value that is no number.
    """
    if head_labels is None:
        return None, None
    if not hasattr(head_labels, "read"):  # not by its class: a head's code may come from a checkpoint
        raise TypeError(
            f"head_labels is a {type(head_labels).__name__}, but it is what a head passes on to its encoder, which "
            "has no loss. Pass labels to a model with a head."
        )
    labels = head_labels.read(token_mask, shape)
    has_ids = labels is not None and labels.numel()
    question = _ask_labels(labels, head_labels, questions) if has_ids else None
    head_labels.check_values(token_mask, shape, questions)
    return labels, question


def _ask_labels(labels: Tensor, head_labels: HeadLabels, questions: Questions) -> Question:
    labelled = labels != IGNORE_INDEX

    def check(values: list[int]) -> None:
        _, low, high = values
        if head_labels.num_classes is not None and (low < 0 or high >= head_labels.num_classes):
            raise ValueError(
                f"labels hold {low if low < 0 else high}, but "
                f"{head_labels.out_of_range.format(last=head_labels.num_classes - 1)}"
            )

    def count() -> Tensor:
        return torch.stack((labelled.sum(), *labels.masked_fill(~labelled, 0).aminmax()))

    return questions.ask(count, check)


def check_zero_one(name: str, mask: Tensor, questions: Questions) -> None:
    """Raise a ValueError for a mask that holds something else than 0 and 1."""
    if mask.dtype == torch.bool:
        return

    meaning = "1 for a token and 0 for padding" if mask.dim() == 2 else "1 for a pair that may attend and 0 for others"

    def is_odd() -> Tensor:
        return mask != mask.to(torch.bool)  # neither 0 nor 1

    def check(values: list[int]) -> None:
        if values[0]:
            raise ValueError(
                f"{name} of shape {tuple(mask.shape)} holds {mask[is_odd()][0].item()}, but takes {meaning}. "
                "Scores to add go into a float mask with 3 or 4 dimensions; several sequences in one row are told "
                "apart by position_ids."
            )

    questions.ask(lambda: is_odd().any(), check)


def refuse_unknown(kwargs: dict[str, Any], forward: Any) -> None:
    """Raise a TypeError for a keyword that nothing would read: a mistyped `attention_mask` must not go unseen."""
    for name in kwargs:
        known = [known for known in inspect.signature(forward).parameters if known not in INTERNAL_ARGUMENTS]
        close = difflib.get_close_matches(name, [*known, *HEAD_ARGUMENTS], n=1)
        if name in HEAD_ARGUMENTS:
            hint = "Only some models with a head take it."
        else:
            hint = f"Did you mean {close[0]!r}?" if close else f"It takes {', '.join(known)}."
        raise TypeError(f"The model got an unexpected keyword argument {name!r}. {hint}")


def _check_additive(mask: Tensor, questions: Questions) -> None:

    def look() -> Tensor:
        is_one = mask == 1
        return torch.stack((is_one.any(), (is_one | (mask == 0)).all(), (mask < torch.inf).all()))

    def check(values: list[int]) -> None:
        has_ones, is_zero_one, is_below_infinity = values
        if not is_below_infinity:
            raise ValueError(
                f"attention_mask of shape {tuple(mask.shape)} holds {mask[~(mask < torch.inf)][0].item()}, but what is "
                "added to scores is a number, or -inf where a token may not attend."
            )
        if has_ones and is_zero_one:
            raise ValueError(
                f"attention_mask is {mask.dtype} of shape {tuple(mask.shape)} and holds only 0 and 1: it could mean "
                "'0 forbids' or 'add 0 or 1 to the score'. Pass mask.bool() for the first, or use 0 and "
                "torch.finfo(mask.dtype).min for an additive mask."
            )

    questions.ask(look, check)
