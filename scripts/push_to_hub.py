"""Push a saved Plainformer to the Hugging Face Hub, after making sure that a stranger can use what goes up.

The files that may be shared are set apart (what Trainer leaves behind stays, pickles and secrets are refused), opened
in a clean process by every Auto class, described in a model card, and uploaded in one commit: the repository changes
completely or not at all. Log in first with `hf auth login`, or set HF_TOKEN.

    python scripts/push_to_hub.py outputs/quickstart your-name/film-reviews --dry_run
    python scripts/push_to_hub.py outputs/quickstart your-name/film-reviews --license apache-2.0 --language en
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what save_pretrained of a model and of its tokenizer wrote")
    parser.add_argument("repo", help="OWNER/NAME on the Hub; it is made if it is not there")
    parser.add_argument("--dry_run", action="store_true", help="check, write the card and list; upload nothing")
    parser.add_argument("--no_tokenizer", action="store_true", help="push although the folder has no tokenizer")

    hub = parser.add_argument_group("on the Hub")
    hub.add_argument("--private", action="store_true", help="a new repository is for your eyes only")
    hub.add_argument("--revision", default="main", help="branch; it is made if it is not there (%(default)s)")
    hub.add_argument("--commit_message", default="Upload model", help="(%(default)s)")
    hub.add_argument("--token", help="(HF_TOKEN, or else the login of `hf auth login`, which are safer places for it)")

    card = parser.add_argument_group("model card")
    card.add_argument("--license", help="as the Hub abbreviates it: apache-2.0, mit, cc-by-4.0, ...")
    card.add_argument("--language", nargs="+", default=[], help="ISO 639 codes: en, ja, ...")
    card.add_argument("--dataset", nargs="+", default=[], help="names of data sets on the Hub")
    card.add_argument("--replace_card", action="store_true", help="write README.md anew even where it is not ours")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    from plainformer.sharing import push  # imports torch and transformers, which --help does not need

    try:
        push.run(args)
    except push.Refusal as refusal:
        sys.exit(f"error: {refusal}")
    except KeyboardInterrupt:
        sys.exit(f"error: broken off. {push.ALL_OR_NOTHING}")


if __name__ == "__main__":
    main()
