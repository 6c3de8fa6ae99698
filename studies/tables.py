"""Markdown tables of results, and the page docs/choosing.md, which is made of nothing else but results."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from .intervals import write
from .points import POINTS, write_point
from .results import Results, read_results
from .runner import MARKER, NAMES, ROWS, SEEDS, load_study, settings_of
from .study import Study

PICTURE, TABLE = "picture.png", "table.md"
FOLDER = "studies"  # of the results, beside the page

HEAD = """# Choosing

Which choice for which purpose, as far as small studies can tell. Everything on this page that is a result, the
sentences included, is computed from the results in [`studies/`](studies), by

```bash
python scripts/compare.py --report docs/choosing.md
```

A figure is a mean over seeds, with its 95 % interval (Student's t) in brackets. "Better" and "worse" are said only
where the 95 % interval of the difference (Welch's t) excludes 0. "No difference is shown" does not mean that there is
none. Of many comparisons, one in twenty is wrong by chance alone, so read patterns, not single lines. The models are
small, and each study says what it cannot show.
"""


def write_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def cell_table(results: Results) -> str:
    """A row for each cell: its levels, its means with intervals, seeds, and how many trainings diverged."""
    study = results.study
    rows = []
    for cell in study.cells:
        means = [write(results.mean(measure, **cell)) for measure in study.measures]
        count = len(results.of(**cell))
        seconds = write(results.mean("seconds", **cell), 1)
        rows.append([*map(str, cell.values()), *means, f"{results.diverged(**cell)} of {count}", seconds])
    return write_table([*study.factors, *study.measures, "diverged", "seconds"], rows)


def write_results(results: Results, folder: Path) -> None:
    """The table with its sentences, and the picture."""
    sentences = "".join(f"- {sentence}\n" for sentence in results.study.conclude(results))
    text = f"# {results.study.name}: {results.study.question}\n\n{cell_table(results)}\n{sentences}"
    (folder / TABLE).write_text(text, encoding="utf-8")
    results.study.draw(results).savefig(folder / PICTURE, metadata={"Software": None})


# The page


def read_all(folder: Path) -> dict[str, Results]:
    """The studies whose results are in the folder, made with today's budget, as far as every cell has them."""
    found = {}
    for name in NAMES:
        study, path = load_study(name), folder / name / ROWS
        if path.exists() and has_budget_of(folder / name, study):
            results = read_results(path, study).whole()
            if results.seeds > 1:
                found[name] = results
    return found


def has_budget_of(folder: Path, study: Study) -> bool:
    """Whether the results in a folder were made with the budget that the study has now."""
    held = json.loads((folder / MARKER).read_text(encoding="utf-8"))
    return settings_of(study, False).items() <= held.items()


def write_page(folder: Path) -> str:
    """The text of docs/choosing.md, from the results in `folder`, that is beside it."""
    found = read_all(folder)
    parts = [HEAD, write_missing(found), write_advice(found), write_claims(found), write_points()]
    return "\n".join(filter(None, [*parts, *map(write_study, found.values())]))


def write_missing(found: dict[str, Results]) -> str:
    lacking = [f"- `{name}`: {load_study(name).question}\n" for name in NAMES if name not in found]
    if not lacking:
        return ""
    intro = "These studies were not run, so nothing is said of them:"
    return f"{intro}\n\n{''.join(lacking)}"


def write_advice(found: dict[str, Results]) -> str:
    rows = [row for results in found.values() for row in results.study.advise(results)]
    table = write_table(["purpose", "choice", "because of"], rows)
    return f"## Which choice for which purpose\n\n{table}" if rows else ""


def write_claims(found: dict[str, Results]) -> str:
    """What is published beside what was seen here."""
    rows = [
        [claim.text, claim.published, claim.here(results)]
        for results in found.values()
        for claim in results.study.claims
    ]
    table = write_table(["claim", "published", "here"], rows)
    return f"## Claims, published and here\n\n{table}" if rows else ""


def write_points() -> str:
    """The starting points: a table, then a block to paste for each."""
    table = write_table(["starting point", "what it is", "weights"], [[p.name, p.text, p.weights()] for p in POINTS])
    blocks = "\n".join(f"**{point.name}**\n\n```python\n{write_point(point)}```\n" for point in POINTS)
    intro = "Configurations to paste, with random weights. Those of a paper are its encoder, not its training.\n"
    return f"## Starting points\n\n{intro}\n{table}\n{blocks}"


def write_study(results: Results) -> str:
    study = results.study
    sentences = "".join(f"- {sentence}\n" for sentence in study.conclude(results))
    options = f"--study {study.name} --output_dir outputs/{study.name}"
    few = f"**Not finished: {results.seeds} of {SEEDS} seeds.** " if results.seeds < SEEDS else ""
    minutes = sum(float(row["seconds"]) for row in results.rows) / 60
    return f"""## Study: {study.name}

{study.question}

```bash
python scripts/compare.py {options}
```

{few}Budget: {study.budget}.
{results.seeds} seeds of {len(study.cells)} cells; the trainings took {minutes:.1f} minutes
of one thread.

![{study.name}]({FOLDER}/{study.name}/{PICTURE})

{sentences}
What this cannot show: {study.limits}

<details><summary>All cells</summary>

{cell_table(results)}
</details>
"""
