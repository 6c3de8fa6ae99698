"""Draw what a model computes: its positions, masks and attention, as PNG or SVG.

    python scripts/plot.py position_table --position_embedding_type sinusoidal --output positions.png
    python scripts/plot.py attention_maps --model FOLDER --text "the bank of the river" --layers 0 5 --output maps.svg
    python scripts/plot.py scores_by_distance --position_embedding_type rotary alibi relative --output scores.png

--model is a folder or a Hub id of a Plainformer or BERT checkpoint. Without it a model with random weights, always the
same, is built from the flags. Several kinds of position are drawn beside each other. Needs `pip install ".[plots]"`.
"""

import argparse
import inspect
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from transformers import AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from plainformer import (
    PlainformerConfig,
    PlainformerForConditionalGeneration,
    PlainformerModel,
    PlainformerSeq2SeqConfig,
    from_bert,
    plots,
)
from plainformer.plots.canvas import check_ending, style
from plainformer.plots.labels import LANGUAGES
from plainformer.positions_plainformer import POSITION_KINDS
from plainformer.recipes.arguments import KINDS_HELP
from plainformer.recipes.errors import RecipeError
from plainformer.recipes.run_folder import check_writable
from plainformer.recipes.training import launch

PERFORMANCE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
PICTURES: dict[str, Callable[..., Any]] = {
    "position_table": plots.plot_position_table,
    "position_curves": plots.plot_position_curves,
    "position_waves": plots.plot_position_waves,
    "position_frequencies": plots.plot_position_frequencies,
    "position_path": plots.plot_position_path,
    "position_similarity": plots.plot_position_similarity,
    "similarity_by_distance": plots.plot_similarity_by_distance,
    "scores_by_distance": plots.plot_scores_by_distance,
    "embedding_sizes": plots.plot_embedding_sizes,
    "causal_mask": plots.plot_causal_mask,
    "attention_maps": plots.plot_attention_maps,
    "cross_attention": plots.plot_cross_attention,
    "real_tokens": plots.plot_unpadded_batch,
}
OPTIONS = ("length", "dimensions", "count", "layer", "layers", "heads", "text", "num_padding", "lengths", "num_tokens")
SIZES = {"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
ARCHITECTURE = (*SIZES, "max_position_embeddings", "rope_theta", "initializer_range", "scale_embedding")
# The rows of docs/performance.md that stand in the picture for the README.
MEASURED = {
    "en": {
        "inference-shuffled": "reading texts",
        "classification": "training a classifier",
        "masked-lm-minilm": "masked-LM training",
    },
    "zh": {
        "inference-shuffled": "推理",
        "classification": "训练分类器",
        "masked-lm-minilm": "掩码语言模型训练",
    },
}


def main(argv: Sequence[str] | None = None) -> None:
    # 1. Arguments, checked before anything is computed
    args = parse_args(argv)
    options = read_options(args)

    # 2. Models: the one of --model, or one configuration for each kind of position
    try:
        sources = open_sources(args)

        # 3. The picture, and its file
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            axes = draw(args.picture, sources, options)
            plots.save_plot(axes, args.output)
    except (ValueError, TypeError, OSError) as error:
        raise RecipeError(str(error)) from error
    for message in dict.fromkeys(str(one.message) for one in caught):
        print(f"note: {message}", file=sys.stderr)
    print(args.output)


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; a RecipeError for values that cannot be meant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("picture", choices=PICTURES, metavar="PICTURE", help=f"one of {', '.join(PICTURES)}")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="FILE.png or FILE.svg")
    parser.add_argument("--language", choices=LANGUAGES, default="en", help="of the labels (%(default)s)")

    model = parser.add_argument_group("model")
    model.add_argument("--model", metavar="FOLDER", help="a checkpoint, or its Hub id; not given: random weights")
    kinds = {"choices": POSITION_KINDS, "metavar": "KIND", "help": KINDS_HELP}
    model.add_argument("--position_embedding_type", nargs="+", **kinds)
    for name, size in SIZES.items():
        model.add_argument(f"--{name}", type=int, help=f"({size})")
    model.add_argument("--max_position_embeddings", type=int, help="positions, where the kind has a limit")
    model.add_argument("--rope_theta", type=float, help="base of the angles of rotary positions")
    model.add_argument("--initializer_range", type=float, help="spread of the random weights")
    model.add_argument("--scale_embedding", action="store_true", default=None, help="tokens times sqrt(hidden_size)")

    picture = parser.add_argument_group("picture (each picture reads some of these)")
    picture.add_argument("--length", type=int, help="positions, or tokens of the causal row")
    picture.add_argument("--dimensions", type=int, nargs="+", help="columns of the position vectors, from 0")
    picture.add_argument("--count", type=int, help="waves")
    picture.add_argument("--layer", type=int, help="whose biases, from 0")
    picture.add_argument("--layers", type=int, nargs="+", help="of attention maps, from 0; not given: all")
    picture.add_argument("--heads", type=int, nargs="+", help="of attention maps, from 0; not given: all")
    picture.add_argument("--text", help="whose attention is drawn")
    picture.add_argument("--num_padding", type=int, help="padding behind the causal row")
    picture.add_argument("--lengths", type=int, nargs="+", help="tokens of each text of the batch")
    picture.add_argument("--num_tokens", type=int, help="entries of the vocabulary whose sizes are compared")
    return parser.parse_args(argv)


def read_options(args: argparse.Namespace) -> dict[str, Any]:
    """The picture's options that were given; a RecipeError for those of others, and for a file that cannot be."""
    try:
        check_ending(args.output)
    except ValueError as error:
        raise RecipeError(f"--output {error}") from error
    if args.output.is_dir():
        raise RecipeError(f"--output {args.output} is a folder: name a file in it.")
    check_writable(args.output.parent, "--output: the folder")
    known = {name: inspect.signature(draw).parameters for name, draw in PICTURES.items()}
    options = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    for name in options:
        if name not in known[args.picture]:
            readers = ", ".join(picture for picture, parameters in known.items() if name in parameters)
            raise RecipeError(f"--{name} does nothing to {args.picture}, only to {readers}: leave it out.")
    if "text" in known[args.picture] and (args.text is None or args.model is None):
        raise RecipeError(f'{args.picture} needs a trained model and a text: give --model FOLDER and --text "...".')
    if args.picture == "real_tokens":
        options["speeds"] = read_speeds(args.language)
    return options | {"language": args.language}


def read_speeds(language: str) -> dict[str, float]:
    """The ratios of docs/performance.md, by what was done: the picture shows what was measured."""
    rows = re.findall(r"^\| `([\w-]+)` \| [^|]+ \| ([\d.]+) \|", PERFORMANCE.read_text(encoding="utf-8"), re.MULTILINE)
    measured = dict(rows)
    return {label: float(measured[name]) for name, label in MEASURED[language].items()}


# Models


def open_sources(args: argparse.Namespace) -> list[Any]:
    """The model with its tokenizer, if the picture needs one; or a configuration for each kind."""
    chosen = {name: getattr(args, name) for name in ARCHITECTURE if getattr(args, name) is not None}
    needs_text = "text" in inspect.signature(PICTURES[args.picture]).parameters
    if args.model is None:
        kinds = args.position_embedding_type or [PlainformerConfig().position_embedding_type]
        return [(make_config(args.picture, position_embedding_type=kind, **chosen),) for kind in kinds]
    if chosen or args.position_embedding_type:
        given = next(iter(chosen), "position_embedding_type")
        raise RecipeError(
            f"--{given} with --model {args.model}: a checkpoint brings its own. Leave out one of the two."
        )
    model = open_model(args.model)
    return [(model, open_tokenizer(args.model)) if needs_text else (model,)]


def make_config(picture: str, **fields: Any) -> PlainformerConfig:
    """Small, unless flags say otherwise; of an encoder-decoder where the picture is of a decoder."""
    fields = SIZES | fields
    config_class = PlainformerSeq2SeqConfig if picture == "causal_mask" else PlainformerConfig
    return config_class(**fields, intermediate_size=2 * fields["hidden_size"])


def open_model(source: str) -> PreTrainedModel:
    """A Plainformer, encoder or encoder-decoder, or a BERT; a RecipeError for all else."""
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        raise RecipeError(f"--model {source} holds no config.json: this is no model.")
    if Path(source).is_file() or (not Path(source).exists() and (source[:1] in ".~/" or source.count("/") > 1)):
        raise RecipeError(f"--model {source}: there is no such folder (looked from {os.getcwd()}).")
    try:
        kind = PretrainedConfig.get_config_dict(source)[0].get("model_type")
    except (OSError, ValueError) as error:
        raise RecipeError(f"--model {source} has no config.json to read: {error}") from error
    if kind == PlainformerSeq2SeqConfig.model_type:
        return PlainformerForConditionalGeneration.from_pretrained(source).eval()
    if kind == PlainformerConfig.model_type:
        return PlainformerModel.from_pretrained(source).eval()
    if kind == "bert":
        return from_bert(source)
    raise RecipeError(f"--model {source} is of model_type {kind!r}: give a Plainformer or BERT checkpoint.")


def open_tokenizer(source: str) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RecipeError(
            f"--model {source} has no tokenizer, which a text needs: save one there ({error})."
        ) from error


# Pictures


def draw(picture: str, sources: list[Any], options: dict[str, Any]) -> Any:
    """The axes of one model, or of several kinds of position beside each other."""
    function = PICTURES[picture]
    if len(sources) == 1:
        return function(*sources[0], **options)
    if picture in ("causal_mask", "real_tokens"):
        raise RecipeError(f"{picture} is the same for every kind of position: name one.")
    rows, columns = math.ceil(len(sources) / 2), 2
    with style():
        figure = plt.figure(figsize=(12.0, 5.0 * rows), layout="constrained")
    axes = []
    for number, (config,) in enumerate(sources):
        projection = "3d" if picture == "position_path" else None
        with style():
            axes.append(figure.add_subplot(rows, columns, number + 1, projection=projection))
        try:
            function(config, **options, ax=axes[-1])
        except ValueError as error:
            with style():
                plots.write_instead(axes[-1], str(error))
    return axes


if __name__ == "__main__":
    launch(main)
