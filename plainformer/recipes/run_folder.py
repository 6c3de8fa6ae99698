"""The folder of a run: `recipe.json` in it holds the settings and the status, and says whether a run is continued."""

import dataclasses
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from .arguments import Arguments, DataArguments, ModelArguments
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
        self.settings["number of processes"] = self.training_args.world_size

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

    Anything else in it is a RecipeError; a run that is finished already ends the program. Nothing is written yet, so
    that a run that stops at its data leaves nothing behind.
    """
    run = Run(recipe, *arguments, model_class)
    folder, resume = run.folder, _resume(run.training_args)
    if not run.training_args.do_train:
        _check_trained(run.model_args, model_class)
    if isinstance(resume, str) and Path(resume).resolve().parent != folder.resolve():
        problem = f"--resume_from_checkpoint {resume} is not in --output_dir {folder}, where a run continues."
        raise RecipeError(f"{problem} To start from its weights, give --model_name_or_path {resume}.")
    with run.training_args.main_process_first(desc="look into the output folder"):
        if run.is_main:
            check_writable(folder, "--output_dir")
            if run.model_args.cache_dir:
                check_writable(Path(run.model_args.cache_dir), "--cache_dir")
        _look_into(run, resume)
        last = last_checkpoint(folder)
    if isinstance(resume, str) and not _is_complete(Path(resume)):
        remedy = f"the last complete one is {last}" if last else "there is no complete one yet"
        raise RecipeError(f"--resume_from_checkpoint {resume} is no complete checkpoint; {remedy}.")
    if resume:
        run.checkpoint = resume if isinstance(resume, str) else last
        nothing = f"{folder} has no checkpoint yet: starting anew"
        run.say(f"continuing from {run.checkpoint}" if run.checkpoint else nothing)
    return run


def check_writable(folder: Path, flag: str) -> None:
    """Raise a RecipeError unless files can be written in `folder`, which stays as it was, there or not."""
    made: list[Path] = []
    try:
        if folder.is_file():
            raise RecipeError(f"{flag} {folder} is a file: name a folder.")
        for path in (*reversed(folder.absolute().parents), folder.absolute()):
            if not path.exists():
                path.mkdir()
                made.append(path)
        os.listdir(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RecipeError(f"{flag} {folder} cannot be written ({error.strerror}): name another.") from error
    finally:
        for path in reversed(made):
            path.rmdir()


def _check_trained(model_args: ModelArguments, model_class: type) -> None:
    """A run that does not train needs a checkpoint of its own task: the outputs of another head would be noise."""
    needed, found = head_of([model_class.__name__]), head_of(model_args.checkpoint_config().get("architectures"))
    if found != needed and (needed, found) != ("ForMaskedLM", "ForPreTraining"):
        problem = f"it is a {found or 'model without a head'}, and a {needed} is needed"
        source = f"--model_name_or_path {model_args.model_name_or_path}"
        raise RecipeError(f"{source} was never trained for this ({problem}): train it first, with --train_file.")


def head_of(architectures: list[str] | None) -> str:
    """The part of the first class's name that says which head it has: "ForMaskedLM", ..., or "" for none."""
    name = architectures[0] if architectures else ""
    return name[name.find("For") :] if "For" in name else ""


def _resume(training_args: TrainingArguments) -> str | bool:
    """The value of `--resume_from_checkpoint`: a checkpoint, True for the last one, or False."""
    value = str(training_args.resume_from_checkpoint or "false")
    if value.lower() == "true" and training_args.save_only_model:
        raise RecipeError("--save_only_model keeps no optimizer, and without it no run continues: leave one out.")
    return {"true": True, "false": False}.get(value.lower(), value)


def _look_into(run: Run, resume: str | bool) -> None:
    """Raise a RecipeError unless the folder is free for this run, or holds its first part.

    A run that never came to a checkpoint has nothing to lose or to continue, and counts as none.
    """
    folder, named = run.folder, f"--output_dir {run.folder}"
    if not folder.exists() or not any(folder.iterdir()):
        return
    try:
        old = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        is_finished, recipe, settings = old["status"] == "finished", old["recipe"], old["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        raise RecipeError(f"{named} holds something else than a run of a recipe: name another.") from None
    if not is_finished and not any(folder.glob("checkpoint-*")) and not any(folder.glob("*.safetensors")):
        return
    if not resume and is_finished:
        raise RecipeError(f"{named} holds a finished run of {recipe}: name another --output_dir.")
    if not resume:
        remedy = "continue it with --resume_from_checkpoint true, or name another --output_dir."
        raise RecipeError(f"{named} holds an unfinished run of {recipe}: {remedy}")
    if recipe != run.recipe:
        raise RecipeError(f"{named} holds a run of {recipe}, not of {run.recipe}: name another.")
    if is_finished:
        print(f"{folder} holds a finished run: there is nothing to continue. Use it with --model_name_or_path {folder}")
        raise SystemExit(0)
    # Another version of transformers may have other arguments: only those that both know are compared.
    common = [name for name in run.settings if name in settings]
    pairs = {name: (settings[name], run.settings[name]) for name in common if settings[name] != run.settings[name]}
    if pairs:
        changed = "; ".join(f"{name} was {old!r} and is {new!r}" for name, (old, new) in pairs.items())
        remedy = "Give the same ones to continue it, or name another --output_dir."
        raise RecipeError(f"the run in {folder} was started with other settings: {changed}. {remedy}")


def _settings(*arguments: Any) -> dict[str, Any]:
    """What defines a run, as JSON: models and hyper-parameters by value, files by their name and content."""
    settings = {}
    for group in arguments:
        values = group.to_dict() if isinstance(group, TrainingArguments) else dataclasses.asdict(group)
        free = {name for name in values if name in FREE_NAMES or name.startswith(FREE_PREFIXES)}
        free -= {"dataloader_drop_last"}
        settings |= {name: value for name, value in values.items() if name not in free}
    for name in ("train_file", "validation_file"):
        if settings.get(name) and os.path.isfile(settings[name]):
            settings[name] = f"{Path(settings[name]).name}, SHA-256 {_digest(settings[name])}"
    return json.loads(json.dumps(settings, default=str))


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


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
