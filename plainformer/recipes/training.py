"""Training, evaluating and predicting, and the end of the program, whether it is a result, an error or a signal."""

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import (
    EarlyStoppingCallback,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

from .errors import DataError, RecipeError
from .run_folder import Run, last_checkpoint

Measure = Callable[[EvalPrediction], dict[str, float]]
MEASURED = "measured"  # the split of the test rows that have labels, where only some have


class OrderedTrainer(Trainer):
    """A Trainer whose predictions come in the order of the rows, although grouping by length sorts them."""

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader:
        return self._in_order(super().get_eval_dataloader, eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader:
        return self._in_order(super().get_test_dataloader, test_dataset)

    def _in_order(self, make: Callable[[Any], DataLoader], rows: Any) -> DataLoader:
        """The setting has one name in transformers 4 and another in 5."""
        settings = {"group_by_length": False, "train_sampling_strategy": "random"}
        before = {name: getattr(self.args, name) for name in settings if hasattr(self.args, name)}
        vars(self.args).update({name: settings[name] for name in before})
        try:
            return make(rows)
        finally:
            vars(self.args).update(before)


class BestCheckpointHere(TrainerCallback):
    """A run that is continued in a folder which was moved finds its best checkpoint there, not where it was."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if state.best_model_checkpoint:
            state.best_model_checkpoint = str(Path(args.output_dir) / Path(state.best_model_checkpoint).name)


def train_and_evaluate(
    run: Run,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    inputs: dict[str, Dataset],
    measures: dict[str, Measure],
    callbacks: Iterable[TrainerCallback] = (),
    trainer_class: type[Trainer] = OrderedTrainer,
    **options: Any,
) -> tuple[dict[str, float], Any]:
    """Train, evaluate and predict, as far as the run does: all metrics, and the test split's predictions or None.

    `inputs` are what the model takes of each split; `measures` are the functions from predictions to metrics of those
    splits that have labels; `options` are further arguments of `Trainer`. Where only some test rows have labels, these
    are the split `MEASURED`, which gives the metrics.
    """
    args, patience = run.training_args, run.data_args.early_stopping_patience
    stopping = [EarlyStoppingCallback(early_stopping_patience=patience)] if patience else []
    trainer = trainer_class(
        model=model,
        args=args,
        train_dataset=inputs.get("train"),
        eval_dataset=inputs.get("validation"),
        processing_class=tokenizer,
        compute_metrics=measures.get("validation"),
        callbacks=[*callbacks, BestCheckpointHere(), *stopping],
        **options,
    )
    run.write("running")
    metrics, predictions = {}, None
    if args.do_train:
        metrics |= _report(trainer, "train", inputs["train"], _train(run, trainer))
    if args.do_eval:
        metrics |= _report(trainer, "eval", inputs["validation"], trainer.evaluate())
    if args.do_predict:
        predictions, figures = _predict(trainer, inputs, measures)
        metrics |= _report(trainer, "predict", inputs["test"], figures)
    return metrics, predictions


def _train(run: Run, trainer: Trainer) -> dict[str, float]:
    """Train from the run's checkpoint if it has one, and save the (best) model with its tokenizer."""
    if run.training_args.label_smoothing_factor:
        # Its loss is a mean over each batch, whatever the model says, and 4.57 would add these up instead of averaging.
        trainer.model_accepts_loss_kwargs = False
    with _interruptible(run):
        result = trainer.train(resume_from_checkpoint=run.checkpoint)
    trainer.save_model()
    trainer.save_state()
    return result.metrics


def _predict(
    trainer: Trainer, inputs: dict[str, Dataset], measures: dict[str, Measure]
) -> tuple[Any, dict[str, float]]:
    """The predictions of the test split, and its metrics: over the rows with labels, if there are any."""
    metrics, predictions = {}, None
    for split in (MEASURED, "test"):
        if split in inputs:
            trainer.compute_metrics = measures.get(split)
            output = trainer.predict(inputs[split], metric_key_prefix="predict")
            metrics, predictions = {**metrics, **output.metrics}, output.predictions
    if MEASURED in inputs:
        metrics["predict_measured_samples"] = len(inputs[MEASURED])
    return predictions, metrics


def _report(trainer: Trainer, name: str, rows: Dataset, metrics: dict[str, float]) -> dict[str, float]:
    metrics = {**metrics, f"{name}_samples": len(rows)}
    trainer.log_metrics(name, metrics)
    trainer.save_metrics(name, metrics)
    return metrics


def finish(run: Run, predictions: str | None = None) -> None:
    """Mark the run as finished, and say in three lines where its model, figures and predictions are.

    `predictions` is the name of the file with those for the test data, if they were written. A line of Python loads
    the model that they are of: the trained one, or the one that was only used.
    """
    run.write("finished")
    model, version = str(run.folder), "main"
    if not run.training_args.do_train:
        model, version = run.model_args.model_name_or_path, run.model_args.model_revision
    revision = "" if version == "main" else f", revision={version!r}"
    load = f"from_pretrained({model!r}, trust_remote_code=True{revision})"  # without it, transformers would ask
    run.say(
        f"model: {model}; load it with {run.model_class._auto_class}.{load}, its tokenizer with AutoTokenizer.{load}"
    )
    run.say(f"metrics: {run.folder / 'all_results.json'}")
    nothing = f"none; --model_name_or_path {model} --test_file FILE makes them"
    if run.recipe == "run_mlm":
        nothing = f"none; the model fine-tunes in the other recipes with --model_name_or_path {model}"
    run.say(f"predictions: {run.folder / predictions if predictions else nothing}")


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a run as Ctrl-C does."""


@contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """On Ctrl-C and SIGTERM a line says what is kept and how to continue."""

    def terminate(number: int, frame: Any) -> None:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, terminate)
    except ValueError:  # not the main thread: whoever started it handles signals
        before = None
    try:
        yield
    except KeyboardInterrupt:
        kept = last_checkpoint(run.folder)
        kept = f"The last checkpoint is {kept}" if kept else "There is no checkpoint yet"
        run.say(f"\nstopped. {kept}: the same command with --resume_from_checkpoint true goes on from there.")
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def launch(main: Callable[[], Any]) -> None:
    """Run a recipe as a program: errors of the user's are one line and exit code 2; Ctrl-C is 130 and SIGTERM 143."""
    try:
        main()
    except (RecipeError, DataError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt as signalled:
        sys.exit(143 if isinstance(signalled, Terminated) else 130)
