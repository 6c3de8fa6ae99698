"""What the tests of the encoder-decoder share: tiny models, and pairs that are padded in different ways.

Shapes: B batch, S source, L targets.
"""

import torch
from torch import Tensor

from helpers.models import NO_DROPOUT, randomise
from plainformer import PlainformerForConditionalGeneration, PlainformerSeq2SeqConfig

START, END = 1, 2
GREEDY = {"do_sample": False, "max_new_tokens": 9}
# One row of seven places each: 1 for a token of the source, 0 for padding.
SOURCE_MASK = torch.tensor(
    [[1] * 7, [1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1, 0]]
)
# One row of six places each: padded on the right, not at all, left, with a gap in it, on both sides.
TARGET_MASK = torch.tensor(
    [[1, 1, 1, 1, 0, 0], [1] * 6, [0, 0, 0, 1, 1, 1], [1, 1, 0, 1, 1, 1], [0, 1, 1, 1, 0, 0]], dtype=torch.bool
)


def seq2seq_config(**overrides) -> PlainformerSeq2SeqConfig:
    """A configuration whose sizes all differ, without dropout."""
    sizes = {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_decoder_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 37,
        "max_position_embeddings": 24,
        "decoder_start_token_id": START,
        "eos_token_id": END,
    }
    return PlainformerSeq2SeqConfig(**{**sizes, **NO_DROPOUT, **overrides})


def make_seq2seq(**overrides) -> PlainformerForConditionalGeneration:
    """A model in eval mode with random weights everywhere."""
    return randomise(PlainformerForConditionalGeneration(seq2seq_config(**overrides))).eval()


def make_source(length: int = 7) -> dict[str, Tensor]:
    """Five sources of up to seven tokens, [5, S]."""
    mask = SOURCE_MASK[:, :length].clone()
    return {"input_ids": torch.randint(3, 50, mask.shape), "attention_mask": mask}


def make_pairs() -> dict[str, Tensor]:
    """Five sources with their labels, [5, 6]; the fourth row has an ignored label inside its target."""
    labels = torch.randint(3, 50, TARGET_MASK.shape).masked_fill(~TARGET_MASK, -100)
    return {**make_source(), "labels": labels}


def spans(labels: Tensor) -> list[slice]:
    """Where each row's target lies, from its first label to its last."""
    indices = [torch.nonzero(row != -100).flatten().tolist() for row in labels]
    return [slice(row[0], row[-1] + 1) if row else slice(0, 0) for row in indices]


def answers_of(logits: Tensor, labels: Tensor) -> Tensor:
    """The logits [B, L, V] at the places of the targets, row after row, [N, V]."""
    return torch.cat([row[span] for row, span in zip(logits, spans(labels), strict=True)])


def single(pairs: dict[str, Tensor], row: int) -> dict[str, Tensor]:
    """One pair without any padding, as a batch of one row."""
    here = pairs["attention_mask"][row].bool()
    span = spans(pairs["labels"])[row]
    return {"input_ids": pairs["input_ids"][row : row + 1, here], "labels": pairs["labels"][row : row + 1, span]}
