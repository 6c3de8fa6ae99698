"""Load a sequence classifier from its folder as a stranger would: with transformers and torch, without plainformer.

The code of the model comes out of the folder (`trust_remote_code=True`), the module cache starts empty, the Hub is not
asked, and importing `plainformer` is made impossible in this process, whether it is installed or not.

    python scripts/load_as_stranger.py outputs/quickstart "a film to remember" "two hours of my life"
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
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# What a stranger needs of the package is imported as a file: importing the package is what a stranger cannot do.
SHARING = Path(__file__).resolve().parents[1] / "plainformer" / "sharing"
SENTENCES = [
    "a gorgeous, witty, seductive movie",
    "a dull , lifeless and badly acted film",
    "not bad at all",
]


def load(folder: Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model, in eval mode, and its tokenizer."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
    return model, AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what save_pretrained of a classifier and of its tokenizer wrote")
    parser.add_argument("sentences", nargs="*", default=SENTENCES, help="sentences to classify (there are defaults)")
    parser.add_argument(
        "--expect",
        type=Path,
        metavar="FILE",
        help="JSON with sentences and the logits another process computed for them: fail unless all bits are the same",
    )
    args = parser.parse_intermixed_args()
    if not (args.folder / "config.json").is_file():
        parser.error(f"{args.folder} holds no saved model: there is no config.json in it")

    sys.path.append(str(SHARING))
    from stranger import NoPlainformer, compute_logits

    sys.meta_path.insert(0, NoPlainformer)
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as empty:
        os.environ["HF_MODULES_CACHE"] = empty  # read when transformers is imported, so not before here
        model, tokenizer = load(args.folder)
    print(f"{type(model).__name__} came out of the folder, as {type(model).__module__}")

    if args.expect:
        expected = json.loads(args.expect.read_text())
        logits = compute_logits(model, tokenizer, expected["sentences"]).tolist()
        if logits != expected["logits"]:
            sys.exit(f"error: the logits {logits} are not those in {args.expect}: {expected['logits']}")
        print(f"the logits of {len(logits)} sentences are the ones expected, bit for bit")

    probabilities = compute_logits(model, tokenizer, args.sentences).softmax(-1)
    for sentence, row in zip(args.sentences, probabilities, strict=True):
        label = int(row.argmax())
        print(f"  {model.config.id2label[label]:>9} {row[label]:6.1%}  {sentence}")


if __name__ == "__main__":
    main()
