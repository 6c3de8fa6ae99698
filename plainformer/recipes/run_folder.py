"""The folder of a run: `recipe.json` in it holds the settings and the status, and says whether a run is continued."""

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from .arguments import Arguments, DataArguments, ModelArguments
from .checkpoints import check_trained
from .errors import RecipeError

MARKER = "recipe.json"  # tells a folder of ours from somebody else's
STATE = "trainer_state.json"  # what Trainer writes last into a checkpoint

# Arguments that do not change the result of a run, so that they may differ where it is continued. All others define it.
FREE_PREFIXES = ("logging_", "log_", "hub_", "push_to_hub", "dataloader_", "trackio_", "ddp_", "overwrite_")
FREE_NAMES = {
    *("report_to", "run_name", "project", "disable_tqdm", "debug", "skip_memory_metrics"),  # what is printed and logged
    *("output_dir", "cache_dir", "token", "resume_from_checkpoint", "save_total_limit"),  # where files are, how many
    *("do_train", "do_eval", "do_predict", "test_file", "max_predict_samples"),  # what is done beside training
    *("use_cpu", "no_cuda", "local_rank", "_n_gpu", "deepspeed_plugin"),  # the machine
    *("preprocessing_num_workers", "eval_accumulation_steps"),  # how fast
    "given",  # which flags were given: their values count
}
DEFINES_ALL_THE_SAME = {"dataloader_drop_last"}


@dataclass
class Run:
    """A run: its arguments, its model class, its folder, and the checkpoint that it continues from."""

    recipe: str
    model_args: ModelArguments
    data_args: DataArguments
    training_args: TrainingArguments
    model_class: type
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        self.folder = Path(self.training_args.output_dir)
        self.is_main = self.training_args.process_index == 0  # whether this process is the one that writes
        self.settings = _settings(self.model_args, self.data_args, self.training_args)

    def say(self, text: str) -> None:
        """A line on the terminal, of the main process."""
        if self.is_main:
            print(text, flush=True)

    def write(self, status: str) -> None:
        """Replace `recipe.json` in one step, so that it is never half-written."""
        if not self.is_main:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.folder / f"{MARKER}.new"
        content = {"recipe": self.recipe, "status": status, "settings": self.settings}
        new.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
        os.replace(new, self.folder / MARKER)


def open_run(recipe: str, arguments: Arguments, model_class: type) -> Run:
    """Check that `--output_dir` is free for a new run, or find where an earlier one is to be continued.

    Nothing is written yet, so that a run that stops at its data leaves nothing behind: `train` and the others do.

    Raises:
        RecipeError: the folder holds something else, or another run, or this run with other settings; or there is
            nothing to train and the checkpoint was trained for another task.
        SystemExit: the run is finished already.
    """
    run = Run(recipe, *arguments, model_class)
    check_trained(run.model_args, run.training_args, model_class)
    folder, resume = run.folder, _resume(run.training_args)
    if isinstance(resume, str) and Path(resume).resolve().parent != folder.resolve():
        raise RecipeError(
            f"--resume_from_checkpoint {resume} is not in --output_dir {folder}: a run continues in its own folder. "
            f"To start from its weights, give --model_name_or_path {resume}."
        )
    with run.training_args.main_process_first(desc="look into the output folder"):
        old = _look_into(folder, recipe, resume)
        if old and resume:
            _check_same_settings(folder, old["settings"], run.settings)
        if resume:
            run.checkpoint = _find_checkpoint(folder, resume)
    if resume:
        run.say(
            f"continuing from {run.checkpoint}" if run.checkpoint else f"{folder} has no checkpoint yet: starting anew"
        )
    return run


def _resume(training_args: TrainingArguments) -> str | bool:
    """The value of `--resume_from_checkpoint`: a checkpoint, True for the last one, or False."""
    value = str(training_args.resume_from_checkpoint or "false")
    if value.lower() not in ("true", "false"):
        return value
    if training_args.save_only_model and value.lower() == "true":
        raise RecipeError(
            "--save_only_model keeps no optimizer, and without it no run continues: leave out one of the two."
        )
    return value.lower() == "true"


def _look_into(folder: Path, recipe: str, resume: str | bool) -> dict[str, Any] | None:
    """What `recipe.json` says of an earlier run in the folder that may be continued; None where there is none.

    A run that never came to a checkpoint has nothing to lose or to continue, and counts as none.
    """
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"--output_dir {folder} is a file: name a folder.")
    if not folder.exists() or not any(folder.iterdir()):
        return None
    try:
        old = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        status, name, _ = old["status"], old["recipe"], old["settings"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        raise RecipeError(f"--output_dir {folder} holds something else than a run of a recipe: name another.") from None
    is_finished = status == "finished"
    if not is_finished and not any(folder.glob("checkpoint-*")) and not any(folder.glob("*.safetensors")):
        return None
    if not resume:
        state, go_on = "a finished run", ""
        if not is_finished:
            state, go_on = "an unfinished run", "continue it with --resume_from_checkpoint true, or "
        raise RecipeError(f"--output_dir {folder} holds {state} of {name}: {go_on}name another --output_dir.")
    if name != recipe:
        raise RecipeError(f"--output_dir {folder} holds a run of {name}, not of {recipe}: name another.")
    if is_finished:
        print(f"{folder} holds a finished run: there is nothing to continue. Use it with --model_name_or_path {folder}")
        raise SystemExit(0)
    return old


def _settings(*arguments: Any) -> dict[str, Any]:
    """What defines a run, as JSON: models and hyper-parameters by value, files by their name and content."""
    settings = {}
    for group in arguments:
        values = group.to_dict() if isinstance(group, TrainingArguments) else dataclasses.asdict(group)
        settings.update({name: value for name, value in values.items() if not is_free(name)})
        if isinstance(group, TrainingArguments):
            settings["number of processes"] = group.world_size
    for name in ("train_file", "validation_file"):
        if settings.get(name) and os.path.isfile(settings[name]):
            settings[name] = f"{Path(settings[name]).name}, SHA-256 {_digest(settings[name])}"
    return json.loads(json.dumps(settings, default=str))


def is_free(name: str) -> bool:
    """Whether an argument may change between the two halves of a run."""
    return (name in FREE_NAMES or name.startswith(FREE_PREFIXES)) and name not in DEFINES_ALL_THE_SAME


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _check_same_settings(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Another version of transformers may have other arguments: only those that both know are compared."""
    changed = [
        f"{name} was {old[name]!r} and is {new[name]!r}" for name in new if name in old and old[name] != new[name]
    ]
    if changed:
        raise RecipeError(
            f"the run in {folder} was started with other settings: {'; '.join(changed)}. Give the same ones to "
            "continue it, or name another --output_dir."
        )


def _find_checkpoint(folder: Path, resume: str | bool) -> str | None:
    last = last_checkpoint(folder)
    if isinstance(resume, bool):
        return last
    if not _is_complete(Path(resume)):
        remedy = f"the last complete one is {last}" if last else "there is no complete one yet"
        raise RecipeError(f"--resume_from_checkpoint {resume} is no complete checkpoint; {remedy}.")
    return resume


def last_checkpoint(folder: Path) -> str | None:
    """The last checkpoint that was written completely.

    Trainer writes a checkpoint's `trainer_state.json` after everything else, and removes older checkpoints only then: a
    process killed at any moment leaves a complete one, whatever half-written ones lie beside it.
    """
    found = [path for path in folder.glob("checkpoint-*") if path.name[11:].isdigit() and _is_complete(path)]
    return str(max(found, key=lambda path: int(path.name[11:]))) if found else None


def _is_complete(checkpoint: Path) -> bool:
    try:
        return "global_step" in json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
