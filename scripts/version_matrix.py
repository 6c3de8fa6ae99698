"""Do checkpoints and tokenizers of each version of transformers give the same in each other one?

Run by version_matrix.sh, a step at a time, each in the environment of one version:

    python scripts/version_matrix.py write FOLDER             checkpoints of every kind, and what they compute here
    python scripts/version_matrix.py read FOLDER package      open all that were written, and compare
    python scripts/version_matrix.py read FOLDER stranger     the same without the package, by their own code
    python scripts/version_matrix.py table FOLDER             what was found
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

TEXTS = ["time flies like an arrow", "fruit flies like a banana", "flies", "an arrow, an arrow and a banana"]
PAIRS = [("time flies", "like an arrow"), ("fruit", "like bananas"), ("an arrow", "an arrow and a banana"), ("a", "b")]
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
WAYS = {"package": "with the package", "stranger": "as a stranger"}
# What a stranger needs of the package is imported as a file: importing the package is what a stranger cannot do.
SHARING = Path(__file__).resolve().parents[1] / "plainformer" / "sharing"
# As a checkpoint of an encoder-decoder keeps it: how it generates where nothing else is said.
GENERATION = {"num_beams": 2, "max_new_tokens": 5, "no_repeat_ngram_size": 3}
LIST = "checkpoints.json"  # of each checkpoint, by the name of its folder: position kind, norm placement, Auto class


def list_checkpoints() -> dict[str, tuple[str, bool, str]]:
    """All position kinds, norm placements and Auto classes, crossed."""
    from plainformer.configuration_plainformer import AUTO_MAP
    from plainformer.positions_plainformer import POSITION_KINDS

    autos = [*(auto for auto in AUTO_MAP if auto != "AutoConfig"), "AutoModelForSeq2SeqLM"]
    return {
        f"{kind}-{'pre' if pre_norm else 'post'}-{auto}": (kind, pre_norm, auto)
        for kind, pre_norm, auto in product(POSITION_KINDS, (False, True), autos)
    }


def read_list(folder: Path) -> dict[str, list]:
    """The `LIST` that `write` left."""
    return json.loads((folder / LIST).read_text(encoding="utf-8"))


def quieten() -> None:
    """No progress bars: there are dozens of checkpoints."""
    import transformers

    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()


# Write


def write(folder: Path) -> None:
    """Every checkpoint, with a tokenizer and `expected.json`, below `folder/VERSION`; their `LIST` beside it."""
    import torch
    import transformers

    import plainformer

    tokenizer = plainformer.train_tokenizer(TEXTS, show_progress=False, model_max_length=32)
    checkpoints = list_checkpoints()
    folder.mkdir(exist_ok=True)
    (folder / LIST).write_text(json.dumps(checkpoints), encoding="utf-8")
    for name, (kind, pre_norm, auto) in checkpoints.items():
        config = make_config(auto, tokenizer, position_embedding_type=kind, pre_norm=pre_norm)
        torch.manual_seed(0)
        model = getattr(transformers, auto).from_config(config).eval()
        if model.can_generate():
            model.generation_config.update(**GENERATION)
        checkpoint = folder / transformers.__version__ / name
        model.save_pretrained(checkpoint)
        tokenizer.save_pretrained(checkpoint)
        references = {**encode(tokenizer), **compute(model, tokenizer, model.base_model)}
        (checkpoint / "expected.json").write_text(json.dumps(references), encoding="utf-8")


def make_config(auto: str, tokenizer, **choices: Any):
    """A small configuration for what this Auto class makes."""
    import plainformer

    sizes = {"vocab_size": len(tokenizer), "num_labels": 3, "max_position_embeddings": 32, **SIZES}
    if auto != "AutoModelForSeq2SeqLM":
        return plainformer.PlainformerConfig(**sizes, **choices)
    ids = {"decoder_start_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
    # Large weights, so that what is generated is not one token again and again.
    return plainformer.PlainformerSeq2SeqConfig(**sizes, **ids, initializer_range=0.5, num_decoder_layers=1, **choices)


# Read


def read(folder: Path, way: str) -> None:
    """Open every checkpoint in this way, and note the differences in `folder/found-WRITER-READER-WAY.json`."""
    if way == "stranger":
        sys.path.append(str(SHARING))
        from stranger import NoPlainformer

        sys.meta_path.insert(0, NoPlainformer)
    else:
        import plainformer  # noqa: F401  (its import registers the classes)
    import transformers

    autos = {name: auto for name, (*_, auto) in read_list(folder).items()}
    for writer in versions(folder):
        found = {name: differences(folder / writer / name, auto, way) for name, auto in autos.items()}
        name = f"found-{writer}-{transformers.__version__}-{way}.json"
        (folder / name).write_text(json.dumps(found), encoding="utf-8")


def differences(checkpoint: Path, auto: str, way: str) -> list[str]:
    """What is not as it was written: token ids, token types, masks, numbers, where the code comes from."""
    import transformers

    trust = way == "stranger"
    try:
        references = json.loads((checkpoint / "expected.json").read_text(encoding="utf-8"))
        tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=trust)
        model = getattr(transformers, auto).from_pretrained(checkpoint, trust_remote_code=trust)
        encoder = transformers.AutoModel.from_pretrained(checkpoint, trust_remote_code=trust)
        wrong = list(compare(references, {**encode(tokenizer), **compute(model, tokenizer, encoder)}))
    except Exception as error:  # whatever it is, it belongs in the table
        return [f"{type(error).__name__}: {error}"]
    home = type(model).__module__.partition(".")[0]
    if home != ("transformers_modules" if trust else "plainformer"):
        wrong.append(f"the code comes from {home}")
    return wrong


def compare(references: dict[str, list], found: dict[str, list]) -> Iterator[str]:
    """What was written and is not found, what is found and was not written, and what is not the same."""
    for name in sorted({*references, *found}):
        if name not in found:
            yield f"{name} is missing"
        elif name not in references:
            yield f"{name} is new"
        elif references[name] != found[name]:
            yield f"{name} differs by {distance(references[name], found[name]):.1e}"


def encode(tokenizer) -> dict[str, list]:
    """Token ids, token types and mask of single texts and of pairs, padded."""
    texts, pairs = tokenizer(TEXTS, padding=True), tokenizer(*map(list, zip(*PAIRS, strict=True)), padding=True)
    batches = {"texts": texts, "pairs": pairs}
    return {f"{name} of {what}": values for what, batch in batches.items() for name, values in batch.items()}


def compute(model, tokenizer, encoder) -> dict[str, list]:
    """Every tensor that the model gives for the pairs, as nested lists: float32 survives that bit for bit.

    Of an encoder-decoder also what its encoder alone gives, what it generates, and how.
    """
    import torch

    if model.can_generate():
        return compute_answers(model, tokenizer, encoder)
    batch = tokenizer(*map(list, zip(*PAIRS, strict=True)), padding=True, return_tensors="pt")
    if type(model).__name__.endswith("MultipleChoice"):
        batch = {name: values[None] for name, values in batch.items()}  # one question with four choices
    with torch.no_grad():
        return as_lists(model(**batch))


def compute_answers(model, tokenizer, encoder) -> dict[str, list]:
    """Of the first text of each pair as source, and the second as target."""
    import torch

    sources, targets = (tokenizer(list(texts), padding=True, return_tensors="pt") for texts in zip(*PAIRS, strict=True))
    labels = targets["input_ids"].masked_fill(targets["attention_mask"] == 0, -100)[:, 1:]  # without [CLS]
    with torch.no_grad():
        forced, alone = model(**sources, labels=labels), encoder(**sources)
    generated = {
        "beams": model.generate(**sources),  # as the checkpoint says
        "greedy": model.generate(**sources, num_beams=1, no_repeat_ngram_size=0, max_new_tokens=8),
    }
    kept = (*GENERATION, "decoder_start_token_id", "eos_token_id")
    options = [getattr(model.generation_config, name) or 0 for name in kept]  # 0: it was not kept
    alone = {f"{name} of the encoder alone": values for name, values in as_lists(alone).items()}
    return {**as_lists(forced), **alone, **as_lists(generated), "generation_config": options}


def as_lists(tensors: Any) -> dict[str, list]:
    return {name: values.tolist() for name, values in tensors.items()}


def distance(one: Any, other: Any) -> float:
    """The largest difference between two tensors as lists; infinite where their shapes differ."""
    import torch

    one, other = torch.tensor(one), torch.tensor(other)
    return (one - other).abs().max().item() if one.shape == other.shape else float("inf")


def versions(folder: Path) -> list[str]:
    names = (item.name for item in folder.iterdir() if item.is_dir())
    return sorted(names, key=lambda name: [int(part) for part in name.split(".")])


# Table


def table(folder: Path) -> Iterator[str]:
    """A line for each writer, a column for each reader and way; below it what differs."""
    readers, names = [(version, way) for version in versions(folder) for way in WAYS], list(read_list(folder))
    yield "| written under | " + " | ".join(f"read under {version}, {WAYS[way]}" for version, way in readers) + " |"
    yield "| --- |" + " --- |" * len(readers)
    wrong = []
    for writer in versions(folder):
        cells = []
        for reader, way in readers:
            found = json.loads((folder / f"found-{writer}-{reader}-{way}.json").read_text(encoding="utf-8"))
            faults = {name: found.get(name, ["it was not read"]) for name in names if found.get(name) != []}
            cells.append(f"{len(names) - len(faults)} of {len(names)} equal")
            wrong += [f"{writer} -> {reader}, {WAYS[way]}: {n}: {'; '.join(f)}" for n, f in faults.items()]
        yield f"| {writer} | " + " | ".join(cells) + " |"
    yield ""
    yield from wrong
    yield f"{len(wrong)} checkpoints differ" if wrong else "all equal, bit for bit"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["write", "read", "table"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("way", nargs="?", choices=WAYS, default="package")
    args = parser.parse_args()

    os.environ["HF_HUB_OFFLINE"] = "1"
    if args.step != "write" and not versions(args.folder):
        sys.exit(f"error: no version has written checkpoints below {args.folder}")
    if args.step == "table":
        lines = list(table(args.folder))
        print("\n".join(lines))
        sys.exit(not lines[-1].startswith("all equal"))
    with tempfile.TemporaryDirectory() as empty:
        os.environ["HF_MODULES_CACHE"] = empty  # read when transformers is imported
        quieten()
        write(args.folder) if args.step == "write" else read(args.folder, args.way)


if __name__ == "__main__":
    main()
