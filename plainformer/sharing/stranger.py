"""What a stranger does with a saved Plainformer: open it with transformers and torch, without plainformer.

Every Auto class that config.json lists opens the folder with the code in it, and reads two sentences; the folder's own
class must find all of its weights there. Nothing is asked of the Hub, no cache is used, and importing `plainformer` is
made impossible in this process, whether it is installed or not. The last line of the output is JSON: what was found.

This file is run by its path, in a process of its own, so it imports nothing from beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

SENTENCES = ["A stranger opens the folder.", "It is read from here alone, without any other file."]
# What a model card tells about a model, besides what transformers itself knows.
CHOICES = (
    "position_embedding_type pre_norm embedding_norm scale_embedding classifier_pooling hidden_size num_hidden_layers "
    "num_attention_heads intermediate_size hidden_act max_position_embeddings vocab_size type_vocab_size "
    "tie_word_embeddings rope_theta relative_attention_num_buckets relative_attention_max_distance randomize_positions"
).split()


class NoPlainformer:
    """An import finder, asked before all others, that answers every request for the package with an ImportError."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "plainformer":
            raise ModuleNotFoundError(f"{name} is barred from this process", name=name)


class Problem(Exception):
    """What a stranger would run into, and the remedy."""


def check(folder: Path, with_tokenizer: bool, texts: Sequence[str] = ()) -> dict:
    """What the folder holds, as plain values; a `Problem` if a stranger cannot use it.

    Its own class, if it generates, answers each of the `texts` (`generated`).
    """
    from transformers import AutoConfig, AutoTokenizer

    auto_map = json.loads((folder / "config.json").read_text(encoding="utf-8"))["auto_map"]
    config = attempt("AutoConfig", AutoConfig.from_pretrained, folder)
    tokenizer = attempt("AutoTokenizer", AutoTokenizer.from_pretrained, folder) if with_tokenizer else None
    if tokenizer is not None:
        check_fit(tokenizer, config)
    own = find_own(config, auto_map)
    report = {}
    for auto in (auto for auto in auto_map if auto != "AutoConfig"):
        model = open_model(folder, auto, complete=auto == own)
        read_sentences(model, auto, tokenizer)
        if auto == own:
            report = {**describe(model, auto, tokenizer), "generated": answer(model, tokenizer, texts)}
    return {**report, "opened": [*auto_map] + (["AutoTokenizer"] if with_tokenizer else [])}


def attempt(name: str, function, *args, **kwargs):
    """The result, with `trust_remote_code`; every error of it becomes a `Problem` that says where it happened."""
    try:
        return function(*args, trust_remote_code=True, **kwargs)
    except Exception as error:  # whatever the code in the folder may raise
        raise Problem(
            f"{name}.from_pretrained fails for a stranger: {type(error).__name__}: {error}\n"
            "Save the model again with save_pretrained of this version of plainformer, which puts its code beside it."
        ) from error


def check_fit(tokenizer: PreTrainedTokenizerBase, config: PretrainedConfig) -> None:
    """Every id of the tokenizer must have an embedding."""
    if len(tokenizer) > config.vocab_size:
        raise Problem(
            f"the tokenizer has {len(tokenizer)} entries and the model vocab_size={config.vocab_size}: they do not "
            "belong together. Save the tokenizer the model was trained with, or call model.resize_token_embeddings."
        )


def find_own(config: PretrainedConfig, auto_map: dict[str, str]) -> str:
    """The Auto class of the class that was saved."""
    saved = (config.architectures or ["nothing"])[0]
    own = [auto for auto, place in auto_map.items() if place.rpartition(".")[2] == saved]
    if not own:
        raise Problem(
            f"config.json says that a {saved} was saved, and no entry of its auto_map leads to that class: a stranger "
            "would open something else. Save one of plainformer's own classes."
        )
    return own[0]


def open_model(folder: Path, auto: str, *, complete: bool) -> PreTrainedModel:
    """In eval mode. With `complete`, every weight must come out of the folder and every one there must be used."""
    import transformers

    # Another head than the saved one starts afresh, even where its layers have the names of the saved ones.
    options = {"output_loading_info": True, "ignore_mismatched_sizes": not complete}
    model, info = attempt(auto, getattr(transformers, auto).from_pretrained, folder, **options)
    for kind in ("missing_keys", "unexpected_keys") if complete else ():
        if info[kind]:
            names = ", ".join(sorted(info[kind])[:5])
            raise Problem(
                f"{auto}: the weights in the folder have {len(info[kind])} {kind.replace('_', ' ')} ({names}). They "
                "are not those of this config.json: save model and config together with save_pretrained."
            )
    return model.eval()


def read_sentences(model: PreTrainedModel, auto: str, tokenizer: PreTrainedTokenizerBase | None) -> None:
    """A forward pass that has to give numbers."""
    import torch

    batch = make_batch(model.config, tokenizer)
    if "MultipleChoice" in auto:
        batch = {name: values[None] for name, values in batch.items()}
    if "Seq2Seq" in auto:
        batch["decoder_input_ids"] = batch["input_ids"]
    try:
        with torch.no_grad():
            output = model(**batch)
    except Exception as error:
        raise Problem(f"{auto}: the forward pass fails: {type(error).__name__}: {error}") from error
    # Beside tensors there may be a cache.
    if not all(torch.isfinite(values).all() for values in output.to_tuple() if torch.is_tensor(values)):
        raise Problem(f"{auto}: the model gives NaN or infinity for {SENTENCES}: look at the training, not at the Hub.")


def answer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[str]:
    """What a model that generates makes of each text."""
    answers = []
    for text in texts:
        ids = model.generate(**tokenizer(text, truncation=True, return_tensors="pt"))
        answers.append(tokenizer.decode(ids[0], skip_special_tokens=True))
    return answers


def make_batch(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Tensor]:
    """The sentences, one of them padded; without a tokenizer two rows of ids."""
    import torch

    if tokenizer is None:
        return {"input_ids": (torch.arange(8).repeat(2, 1) * 7 + 5) % config.vocab_size}
    return tokenizer(SENTENCES, padding=True, truncation=True, return_tensors="pt")


def compute_logits(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: list[str]) -> Tensor:
    """The scores of a classifier for sentences, [sentences, labels]."""
    import torch

    batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        return model(**batch).logits


def describe(model: PreTrainedModel, auto: str, tokenizer: PreTrainedTokenizerBase | None) -> dict:
    """What the model card tells about a model."""
    config = model.config
    classes = "Classification" in auto
    return {
        "class": type(model).__name__,
        "auto": auto,
        "parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "choices": {name: getattr(config, name) for name in CHOICES},
        "labels": [config.id2label[index] for index in sorted(config.id2label)] if classes else [],
        "problem_type": config.problem_type if classes else None,
        "max_length": tokenizer.model_max_length if tokenizer is not None else None,
    }


def main() -> None:
    """Check the folder that the command line names; the last line of the output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what save_pretrained of a model and of its tokenizer wrote")
    parser.add_argument("--no_tokenizer", action="store_true", help="there is none: read made-up ids instead")
    parser.add_argument("--texts", nargs="+", default=[], help="a model that generates answers them: `generated`")
    args = parser.parse_args()
    folder = args.folder.resolve()
    if not (folder / "config.json").is_file():
        parser.error(f"{args.folder} holds no saved model: there is no config.json in it")

    sys.meta_path.insert(0, NoPlainformer)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):  # code out of a folder has no use for them
        os.environ.pop(name, None)
    with tempfile.TemporaryDirectory() as empty:  # read when transformers is imported, so not before here
        os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": empty, "HF_MODULES_CACHE": f"{empty}/modules"}
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            report = check(folder, with_tokenizer=not args.no_tokenizer, texts=args.texts)
        except Problem as problem:
            sys.exit(f"error: {problem}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
