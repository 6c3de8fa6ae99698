"""The model card: the README.md of a repository on the Hub, written from what is known about the model.

A card that we wrote carries a checksum of itself. Once somebody changes it, it is theirs and stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from ..positions_plainformer import POSITION_KINDS

MARK = "<!-- written by plainformer's push_to_hub.py; once you change this card it is yours and stays: {checksum} -->"
MARK_PATTERN = re.compile(r"\n<!-- written by plainformer's push_to_hub\.py.*: ([0-9a-f]{16}) -->\n\Z")
TASKS = {  # of an Auto class: the Hub's name, and what the card says
    "AutoModel": ("feature-extraction", "an encoder without a head: a vector for every token"),
    "AutoModelForMaskedLM": ("fill-mask", "a masked language model"),
    "AutoModelForSequenceClassification": ("text-classification", "a classifier of texts"),
    "AutoModelForTokenClassification": ("token-classification", "a classifier of tokens"),
    "AutoModelForQuestionAnswering": ("question-answering", "it finds the answer to a question in a text"),
    "AutoModelForMultipleChoice": ("multiple-choice", "it picks one of several continuations"),
    "AutoModelForSeq2SeqLM": ("text2text-generation", "an encoder with a decoder: it reads a text and writes another"),
}
METRIC_FILES = ("all_results.json", "eval_results.json", "trainer_state.json", "quickstart.json")
NOT_METRICS = ("runtime", "per_second", "total_flos", "seconds", "jit_compilation_time", "model_preparation_time")


@dataclass
class Card:
    """What the user says about the model; the rest is read from the folder."""

    repo_id: str
    license: str | None = None
    languages: list[str] = field(default_factory=list)
    datasets: list[str] = field(default_factory=list)


def is_ours(text: str) -> bool:
    """Whether we wrote this card and nobody has changed it since."""
    text = text.replace("\r\n", "\n")
    match = MARK_PATTERN.search(text)
    return bool(match) and match[1] == checksum(text[: match.start()])


def checksum(text: str) -> str:
    """Sixteen hex digits that change with the text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_card(card: Card, report: dict, folder: Path) -> str:
    """The text of the card. `report` is what `stranger.check` found."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        language=card.languages or None,
        license=card.license,
        library_name="transformers",
        tags=["plainformer", "custom_code"],
        datasets=card.datasets or None,
        pipeline_tag=TASKS[report["auto"]][0],
    )
    sections = [
        f"---\n{data.to_yaml()}\n---",
        *describe(card, report),
        "## Load it",
        *explain_loading(card, report),
        "## Choices",
        tabulate(("field", "value"), list_choices(report["choices"])),
        "## Data",
        list_data(card, folder),
        "## Metrics",
        list_metrics(folder),
    ]
    text = "\n\n".join(sections) + "\n"
    return f"{text}\n{MARK.format(checksum=checksum(text))}\n"


def describe(card: Card, report: dict) -> list[str]:
    """The title, and what the model is."""
    kind = TASKS[report["auto"]][1]
    lines = [
        f"# {card.repo_id.partition('/')[2]}",
        f"A [Transformer](https://arxiv.org/abs/1706.03762) encoder (`{report['class']}` of plainformer): {kind}. "
        f"{report['parameters']:,} parameters in {report['dtype']}, {position_text(report['choices'])}, "
        f"LayerNorm {'before' if report['choices']['pre_norm'] else 'after'} each sub-layer.",
    ]
    if report["labels"]:
        lines.append("Labels: " + ", ".join(f"`{label}`" for label in report["labels"]) + ".")
    return lines


def position_text(choices: dict) -> str:
    """What the registry says of the kind, the most tokens of a text where it has one, and whether they were random."""
    kind = POSITION_KINDS[choices["position_embedding_type"]]
    limit = f" (at most {choices['max_position_embeddings']} tokens)" if kind.has_limit else ""
    num_positions = choices.get("randomize_positions", 0)
    return kind.summary + limit + (f", in training drawn from {num_positions:,}" if num_positions else "")


def list_choices(choices: dict) -> list[tuple[str, str]]:
    """The fields and their values, without those that only other kinds of positions read."""
    own = POSITION_KINDS[choices["position_embedding_type"]].fields
    others = {field for kind in POSITION_KINDS.values() for field in kind.fields} - set(own)
    return [(f"`{name}`", f"`{value}`") for name, value in choices.items() if name not in others]


def explain_loading(card: Card, report: dict) -> list[str]:
    """The section on loading: as a stranger at a pinned revision, and with the package installed."""
    auto, repo_id = report["auto"], card.repo_id
    revision = 'revision="<commit hash>"'
    tokenizer = report["max_length"] is not None
    pinned = loading_lines(repo_id, auto, revision, tokenizer=tokenizer)
    installed = f'import plainformer\nfrom transformers import {auto}\n\nmodel = {auto}.from_pretrained("{repo_id}", '
    installed += "trust_remote_code=False)"
    return [
        "With `transformers` and `torch` alone:",
        f"```python\n{pinned}\n```",
        "**`trust_remote_code=True` runs the Python files of this repository on your machine.** Read them first, and "
        f"pin the version that you read: `{revision}`, with the hash of that commit from the history of the files. "
        "Without it you run whatever the repository holds tomorrow.",
        f"With the package plainformer installed ({package_address()}), its own code is used and none of the "
        "repository is run:",
        f"```python\n{installed}\n```",
    ]


def package_address() -> str:
    """The version of the installed package, and where to get it, as far as the package itself says so.

    It says so in its metadata; or else pip noted the Git repository that it came from.
    """
    try:
        package = distribution("plainformer")
    except PackageNotFoundError:  # imported from a folder
        return "it was not installed where this card was written: ask the author for it"
    urls = [package.metadata.get("Home-page"), *package.metadata.get_all("Project-URL", [])]
    source = json.loads(package.read_text("direct_url.json") or "{}")
    vcs, address = source.get("vcs_info"), next((url.rpartition(", ")[2] for url in urls if url), None)
    if address is None and vcs and not source["url"].startswith("file:"):
        address = f'`pip install "{vcs["vcs"]}+{source["url"]}@{vcs["commit_id"]}"`'
    return f"version {package.version}, {address or 'which names no address: ask the author for its source'}"


def loading_lines(repo_id: str, auto: str, revision: str, *, tokenizer: bool) -> str:
    """Python that opens the model, and its tokenizer if there is one, at a revision."""
    names = [auto, "AutoTokenizer"] if tokenizer else [auto]
    lines = [f"from transformers import {', '.join(names)}", ""]
    for variable, name in zip(("model", "tokenizer"), names, strict=False):
        lines.append(f'{variable} = {name}.from_pretrained("{repo_id}", trust_remote_code=True, {revision})')
    return "\n".join(lines)


def list_data(card: Card, folder: Path) -> str:
    """What the user says; else the dataset of the Hub, or the name and the digest of the file, of a recipe's run."""
    run = read_json(folder / "recipe.json").get("settings", {})
    names = card.datasets or [name for name in [run.get("dataset_name")] if name]
    if names:
        links = [f"[{name}](https://huggingface.co/datasets/{name})" for name in names]
        return "Trained on " + ", ".join(links) + "."
    return f"Trained on a file of its author's: {run['train_file']}." if run.get("train_file") else "Not stated."


def read_json(path: Path) -> dict:
    """What a JSON file holds; nothing where there is none, or where it is no object."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def list_metrics(folder: Path) -> str:
    """The table of the figures that the folder holds."""
    rows = [(name, format_number(value), f"`{file}`") for file, name, value in read_metrics(folder)]
    return tabulate(("metric", "value", "from"), rows) if rows else "Not stated."


def read_metrics(folder: Path) -> list[tuple[str, str, float]]:
    """File, name and value of every figure that Trainer or the quickstart left in the folder; a name counts once."""
    found: dict[str, tuple[str, float]] = {}
    for file in METRIC_FILES:
        values = read_json(folder / file)
        if file == "trainer_state.json":
            values = last_evaluation(values)
        for name, value in values.items():
            if is_metric(name, value):
                found.setdefault(name, (file, value))
    return [(file, name, value) for name, (file, value) in found.items()]


def last_evaluation(state: dict) -> dict:
    """The last entry of Trainer's log that holds an evaluation."""
    entries = [entry for entry in state.get("log_history", []) if any(name.startswith("eval_") for name in entry)]
    return entries[-1] if entries else {}


def is_metric(name: str, value: object) -> bool:
    """Whether an entry of a results file is a finite figure about the model, and not about time."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return number and not any(part in name for part in NOT_METRICS)


def format_number(value: float) -> str:
    """An integer with thousands apart, any other number with four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def tabulate(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
