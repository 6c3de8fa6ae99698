"""Training where the predictions are texts that the model generates."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn
from transformers import EvalPrediction, PreTrainedTokenizerBase

from ..losses_plainformer import IGNORE_INDEX
from .metrics import score_texts
from .training import Measure, OrderedTrainer

SOURCE_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class GeneratingTrainer(OrderedTrainer):
    """A Trainer whose predictions are ids [rows, tokens] as `generation_config` has them made; -100 is padding."""

    def prediction_step(
        self, model: nn.Module, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: Any = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The loss of a batch (None where there are no labels), what is generated for its sources, and its labels."""
        loss = None
        if inputs.get("labels") is not None:  # the collator of transformers sets None where there are none
            loss, _, _ = super().prediction_step(model, inputs, True, ignore_keys)
        if prediction_loss_only:
            return loss, None, None
        inputs = self._prepare_inputs(inputs)
        sources = {name: inputs[name] for name in SOURCE_INPUTS if name in inputs}
        generated = self.model.generate(**sources)[:, 1:]  # without the start token
        return loss, generated, inputs.get("labels")


def make_write(tokenizer: PreTrainedTokenizerBase, end: int) -> Callable[[Sequence[int]], str]:
    """The function from ids to the text: all before the `end`, with [UNK] and without the other special tokens."""
    left_out = {*tokenizer.all_special_ids, IGNORE_INDEX} - {tokenizer.unk_token_id}

    def write(ids: Sequence[int]) -> str:
        ids = list(map(int, ids))
        kept = [number for number in ids[: ids.index(end) if end in ids else None] if number not in left_out]
        return tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    return write


def make_measure(
    references: Sequence[list[str]], tokenizer: PreTrainedTokenizerBase, end: int, names: Sequence[str]
) -> Measure:
    """The function from what was generated to the metrics `names` and the mean number of tokens.

    A tokenizer may change case, accents and spaces, so each reference is compared as the tokenizer writes it. One that
    the vocabulary cannot write, with [UNK] in it, stays as it is, and nothing equals it.
    """
    write = make_write(tokenizer, end)

    def rewrite(text: str) -> str:
        ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return text if tokenizer.unk_token_id in ids else write(ids)

    rewritten = [[rewrite(text) for text in texts] for texts in references]

    def measure(prediction: EvalPrediction) -> dict[str, float]:
        texts = [write(ids) for ids in prediction.predictions]
        lengths = [
            np.isin(ids, [IGNORE_INDEX, tokenizer.pad_token_id], invert=True).sum() for ids in prediction.predictions
        ]
        return {**score_texts(texts, rewritten, names), "generated_length": float(np.mean(lengths))}

    return measure
