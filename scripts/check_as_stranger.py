"""Check that a stranger can use a saved Plainformer: someone with transformers and torch, and without plainformer.

Every Auto class that config.json lists opens the folder in a clean process and reads two sentences. What was found is
printed as JSON. push_to_hub.py makes the same check before it uploads anything.

    python scripts/check_as_stranger.py outputs/quickstart
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what save_pretrained of a model and of its tokenizer wrote")
    parser.add_argument("--no_tokenizer", action="store_true", help="there is none: read made-up ids instead")
    args = parser.parse_args()
    if not (args.folder / "config.json").is_file():
        parser.error(f"{args.folder} holds no saved model: there is no config.json in it")
    from plainformer.sharing.push import Refusal, check_as_stranger  # imports torch, which --help does not need

    try:
        print(json.dumps(check_as_stranger(args.folder, with_tokenizer=not args.no_tokenizer)))
    except Refusal as refusal:
        sys.exit(f"error: {refusal}")


if __name__ == "__main__":
    main()
