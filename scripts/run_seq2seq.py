"""Train a model that writes texts for texts: translation, summaries, answers, spelling to sounds.

    python scripts/run_seq2seq.py --train_file train.csv --validation_file dev.csv --test_file test.csv \
        --output_dir outputs/translation

Two columns, of sources and of targets. A target may be a list of texts: training uses each of them, and in evaluation
any of them is right. Metrics: exact match, and what --metrics names. `predictions.csv` has the texts for --test_file.
The model starts from an encoder, a BERT, an encoder-decoder, or random weights.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from datasets import Dataset, DatasetDict
from transformers import DataCollatorForSeq2Seq, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from plainformer import PlainformerForConditionalGeneration
from plainformer.recipes import columns
from plainformer.recipes.arguments import DataArguments, check_at_least, choose_metric, flag, parse_args
from plainformer.recipes.columns import find_column, labelled_splits, read_column
from plainformer.recipes.data_files import DELIMITERS, file_format
from plainformer.recipes.errors import DataError, RecipeError
from plainformer.recipes.generation import GeneratingTrainer, make_measure, make_write
from plainformer.recipes.label_lists import parse_list, with_lists
from plainformer.recipes.metrics import TEXT_METRICS, find_text_metrics
from plainformer.recipes.models import load_model, load_tokenizer_for
from plainformer.recipes.reading import find_special, report_reading, report_special, sort_sources, sort_targets
from plainformer.recipes.run_folder import Run, open_run
from plainformer.recipes.splits import cut, map_splits, read_splits, set_measured_apart
from plainformer.recipes.training import finish, launch, train_and_evaluate
from plainformer.recipes.truncation import are_cut, report_truncation

SOURCE_COLUMNS = ("source", "input", "text", "question", "word", "article", "document")
TARGET_COLUMNS = ("target", "output", "summary", "answer", "pronunciation", "translation", "highlights")

UNKNOWN_SOURCES = "sources are nothing but characters that the vocabulary lacks"
UNKNOWN_TARGETS = "targets hold characters that the vocabulary lacks, and can never be written"


@dataclass
class Seq2SeqArguments(DataArguments):
    """The data of an encoder-decoder, and how it writes."""

    source_column_name: str | None = flag("The column of the texts that are read.")
    target_column_name: str | None = flag("The column of the texts to write: a text, or a list of texts.")
    target_delimiter: str | None = flag("Several targets a row in CSV: what stands between them, as in one;two.")
    max_seq_length: int = flag("Longer sources are cut at so many tokens.", 128)
    max_target_length: int | None = flag("The same for targets; without it, --max_seq_length.")
    max_new_tokens: int | None = flag("Tokens to write at most; without it, as many as a target has.")
    num_beams: int | None = flag("Beams of the search; 1 takes the best token at each step, as a new model does.")
    metrics: str = flag(f"Any of {', '.join(TEXT_METRICS)}: the first chooses the best model.", "exact_match")
    num_decoder_layers: int | None = flag("Decoder layers; without it, as many as encoder layers.")

    def target_length(self) -> int:
        """Tokens of a target at most, the end token included."""
        return self.max_target_length or self.max_seq_length


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    # 1. Arguments, and a folder for the run
    arguments = parse_args(Seq2SeqArguments, argv, __doc__, per_device_eval_batch_size=64)
    run = open_run("run_seq2seq", arguments, PlainformerForConditionalGeneration)
    _, data_args, training_args = arguments
    check_at_least(data_args, max_seq_length=2, max_target_length=2, max_new_tokens=1, num_beams=1)
    metric_names = find_text_metrics(data_args.metrics)
    choose_metric(data_args, training_args, metric_names)

    # 2. Data: read, checked as a whole. From here on a target is a list of texts.
    data = read_splits(run)
    source, target = find_columns(data, data_args)
    columns.check_texts(data, data_args, [source])
    data = read = read_targets(data, run, target)

    # 3. The rows that are used; in training one for each target
    data = cut(data, data_args, training_args.seed, same=[source])
    data = set_measured_apart(data, target, lambda texts: not texts, run)
    if "train" in data:
        data["train"] = give_each_target_a_row(data["train"], source, target)

    # 4. Tokenizer and model
    tokenizer = load_tokenizer_for(run, lambda: read_all_texts(data["train"], source, target))
    model = load_model(run, tokenizer, **find_decoder_fields(run, tokenizer))
    set_generation(model, data_args)
    refuse_special_targets(read, data_args, target, tokenizer, end_of(model))
    report_special(data, [source], tokenizer, run, "sources")

    # 5. Token ids; what is predicted is sorted, the longest sources first, so that a batch has little padding
    inputs = map_splits(data, make_tokenize(tokenizer, data_args, source, target, model), run)
    inputs = report_reading(inputs, data, read, [source], "source_kind", tokenizer, run, UNKNOWN_SOURCES)
    inputs = report_reading(inputs, data, read, [target], "target_kind", tokenizer, run, UNKNOWN_TARGETS)
    inputs = {split: report_lengths(rows, split, run) for split, rows in inputs.items()}
    orders = {split: sort_by_length(rows) for split, rows in inputs.items() if split != "train"}
    inputs |= {split: inputs[split].select(order) for split, order in orders.items()}

    # 6. Train, evaluate and predict
    end = end_of(model)
    references = {
        split: data[split].select(order)[target]
        for split, order in orders.items()
        if target in data[split].column_names
    }
    measures = {split: make_measure(texts, tokenizer, end, metric_names) for split, texts in references.items()}
    collator = DataCollatorForSeq2Seq(tokenizer, model if training_args.label_smoothing_factor else None)
    options = {"trainer_class": GeneratingTrainer, "data_collator": collator}
    metrics, generated = train_and_evaluate(run, model, tokenizer, inputs, measures, **options)

    # 7. Write the predictions, and say where everything is
    if generated is not None:
        write_predictions(run, map(make_write(tokenizer, end), generated), orders["test"])
    finish(run, "predictions.csv" if generated is not None else None)
    return metrics


def find_columns(data: DatasetDict, data_args: Seq2SeqArguments) -> tuple[str, str]:
    """The names of the columns of sources and targets. The test data may come without targets."""
    source = find_column(data, data_args, "source_column_name", SOURCE_COLUMNS)
    labelled = labelled_splits(data)
    if labelled:
        target = find_column(labelled, data_args, "target_column_name", TARGET_COLUMNS)
    else:
        usual = (name for name in TARGET_COLUMNS if name in data["test"].column_names)
        target = data_args.target_column_name or next(usual, "target")
    if source == target:
        raise DataError(f"{source!r} is the column of both sources and targets: name two, with --source_column_name.")
    return source, target


def read_targets(data: DatasetDict, run: Run, column: str) -> DatasetDict:
    """The data with a list of texts as each target; an empty list where the test data has none.

    Raises:
        DataError: something else than texts; a row to train or evaluate on without a target.
    """
    data_args = run.data_args
    problem = f"{column!r} is no text, and no list of texts. Write strings there."
    columns.check_rows(data, data_args, [column], lambda value: as_targets(value) is None, problem)
    data = read_list_targets(data, run, column)

    def read(value: Any) -> list[str]:
        return as_targets(value, data_args.target_delimiter)

    splits = {split: column in rows.column_names for split, rows in data.items()}
    for split in filter(splits.get, data):
        values = read_column(data[split], column)
        count = sum(isinstance(value, list) and len(as_targets(value)) < len(value) for value in values)
        if count:
            run.say(f"{split}: {count} of {len(data[split])} rows have null or empty targets in a list: left out")
    data = DatasetDict(
        {split: with_lists(data[split], column, read) if has else data[split] for split, has in splits.items()}
    )
    problem = f"{column!r} is empty. Fill these rows in or remove them."
    columns.check_rows(labelled_splits(data), data_args, [column], lambda texts: not texts, problem)
    return data


def read_list_targets(data: DatasetDict, run: Run, column: str) -> DatasetDict:
    """The data with lists in the place of the text cells of CSV that all hold a list of texts, as pandas writes it.

    In other formats a text is a text. A file in which only some cells are so is a DataError.
    """
    read = {}
    for split, rows in data.items():
        path = run.data_args.file_of(split)
        is_csv = path is not None and file_format(path, run.data_args.file_format) in DELIMITERS
        cells = list(read_column(rows, column)) if is_csv and column in rows.column_names else []
        filled = {row: cell for row, cell in enumerate(cells) if cell and cell.strip()}
        lists = [row for row, cell in filled.items() if is_list_of_texts(cell)]
        if lists:
            others = sorted(filled.keys() - set(lists))
            example, remedy = filled[lists[0]][:60], "JSON lines say which it is"
            if run.data_args.target_delimiter:
                problem = f"{column!r} holds a list, which --target_delimiter cannot split. Leave the flag out."
                columns.refuse_rows(run.data_args, split, lists, problem)
            problem = f"{column!r} is no list, and other cells are, such as {example}. Write all of them in one way"
            columns.refuse_rows(run.data_args, split, others, f"{problem}; {remedy}.")
            run.say(f"{split}: the text cells of {column!r} are read as lists, such as {example} ({remedy})")
            rows = with_lists(rows, column, lambda cell: parse_list(cell) if cell and cell.strip() else [])
        read[split] = rows
    return DatasetDict(read)


def is_list_of_texts(cell: str) -> bool:
    """Whether a cell holds a list of texts in quotes. A list of numbers alone may be a text to write."""
    return parse_list(cell) is not None and any(quote in cell for quote in "'\"")


def as_targets(value: Any, delimiter: str | None = None) -> list[str] | None:
    """A text, what a delimiter parts in it, or a list of texts, as a list without what is empty; None for others."""
    texts = value if isinstance(value, list) else [value]
    if not all(text is None or isinstance(text, str) for text in texts):
        return None
    parts = chain.from_iterable(text.split(delimiter) if delimiter else [text] for text in texts if text)
    return [part.strip() for part in parts if part.strip()]


def refuse_special_targets(
    read: DatasetDict, data_args: Seq2SeqArguments, column: str, tokenizer: PreTrainedTokenizerBase, end: int
) -> None:
    """Raise a DataError for targets with the text of a special token: what is written ends there, or leaves it out."""
    special = list(filter(None, (*tokenizer.all_special_tokens, tokenizer.convert_ids_to_tokens(end))))

    def explain(row: dict[str, Any]) -> str:
        return f"The first is {find_special(row[column], special)[0]}."

    problem = f"{column!r} holds the text of a special token, which cannot be written. Write it otherwise."
    columns.check_rows(read, data_args, [column], lambda texts: find_special(texts, special), problem, explain)


def give_each_target_a_row(rows: Dataset, source: str, target: str) -> Dataset:
    """One row for each target of a source."""

    def expand(batch: dict[str, list]) -> dict[str, list]:
        pairs = zip(batch[source], batch[target], strict=True)
        expanded = [(text, [one]) for text, texts in pairs for one in texts]
        return {source: [text for text, _ in expanded], target: [texts for _, texts in expanded]}

    return rows.map(
        expand, batched=True, remove_columns=rows.column_names, features=rows.select_columns([source, target]).features
    )


def read_all_texts(rows: Dataset, source: str, target: str) -> chain[str]:
    """All sources, then all targets."""
    return chain(read_column(rows, source), chain.from_iterable(read_column(rows, target)))


def find_decoder_fields(run: Run, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The fields that a new decoder is made with: its layers, and the ids that a target starts and ends with.

    Raises:
        RecipeError: layers for a model that has a decoder; a tokenizer without a token to start or to end with.
    """
    layers, source = run.data_args.num_decoder_layers, run.model_args.model_name_or_path
    config = run.model_args.checkpoint_config() if source else {}
    has_decoder = config.get("model_type") == run.model_class.config_class.model_type
    if has_decoder and layers is not None:
        problem = f"--num_decoder_layers {layers} with --model_name_or_path {source}"
        raise RecipeError(f"{problem}: the checkpoint brings its own decoder. Leave out one of the two.")
    start = tokenizer.bos_token_id if tokenizer.cls_token_id is None else tokenizer.cls_token_id
    end = tokenizer.eos_token_id if tokenizer.sep_token_id is None else tokenizer.sep_token_id
    fields = {"decoder_start_token_id": start, "eos_token_id": end}
    fields = {name: value for name, value in fields.items() if not has_decoder or config.get(name) is None}
    if None in fields.values():
        problem = f"{type(tokenizer).__name__} has no token for a target to start or to end with"
        raise RecipeError(f"{problem}: give a --tokenizer_name with [CLS] and [SEP].")
    return fields if layers is None else {**fields, "num_decoder_layers": layers}


def set_generation(model: PreTrainedModel, data_args: Seq2SeqArguments) -> None:
    """How `generate` writes, here and, since it is saved with the model, wherever it is loaded.

    What a checkpoint says of it beside these stays.
    """
    settings = model.generation_config.to_diff_dict()
    kept = {name: value for name, value in settings.items() if name[0] != "_" and name != "transformers_version"}
    kept |= {name: getattr(model.config, name) for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id")}
    kept["max_new_tokens"] = data_args.max_new_tokens or data_args.target_length()
    if data_args.num_beams is not None:
        kept["num_beams"] = data_args.num_beams
    model.generation_config = GenerationConfig(**kept)


def end_of(model: PreTrainedModel) -> int:
    """The id that ends a target; of several the first."""
    end = model.config.eos_token_id
    return end[0] if isinstance(end, list) else end


def make_tokenize(
    tokenizer: PreTrainedTokenizerBase, data_args: Seq2SeqArguments, source: str, target: str, model: PreTrainedModel
) -> Callable[[dict], dict]:
    """The function from rows, in columns, to what the model takes, and what it read and cut of source and target.

    Labels are the ids of a row's first target with the end token, and without the start token: the model puts it first.
    """
    # The function is a key of the cache: it should hold nothing but what its result depends on.
    length, target_length, end = data_args.max_seq_length, data_args.target_length(), end_of(model)

    def tokenize(rows: dict[str, list]) -> dict[str, list]:
        encoded = tokenizer(rows[source], truncation=True, max_length=length)
        inputs = {**encoded, "source_is_cut": are_cut(tokenizer, [rows[source]], encoded, length)}
        inputs["source_kind"] = sort_sources(tokenizer, encoded["input_ids"])
        if target in rows:
            texts = list(chain.from_iterable(rows[target]))
            ids = iter(tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"])
            encoded = [list(islice(ids, len(texts))) for texts in rows[target]]
            inputs["labels"] = [[*first[: target_length - 1], end] for first, *_ in encoded]
            inputs["target_is_cut"] = [len(first) > target_length - 1 for first, *_ in encoded]
            inputs["target_kind"] = sort_targets(tokenizer, encoded)
        return inputs

    return tokenize


def report_lengths(rows: Dataset, split: str, run: Run) -> Dataset:
    """Say how many sources and targets were cut; the rows without the columns that say which."""
    data_args = run.data_args
    rows = report_truncation(rows, split, run, "source_is_cut", "sources", "max_seq_length", data_args.max_seq_length)
    if "target_is_cut" in rows.column_names:
        length = data_args.target_length()
        rows = report_truncation(rows, split, run, "target_is_cut", "targets", "max_target_length", length)
    return rows


def sort_by_length(rows: Dataset) -> list[int]:
    """The numbers of the rows, those of the longest sources first."""
    lengths = [len(ids) for ids in read_column(rows, "input_ids")]
    return sorted(range(len(lengths)), key=lambda row: -lengths[row])


def write_predictions(run: Run, texts: Sequence[str], order: list[int]) -> None:
    """`predictions.csv`: the text for each row of the test data, in the order of the file."""
    if not run.is_main:
        return
    predictions = sorted(zip(order, texts, strict=True))
    with open(run.folder / "predictions.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["index", "prediction"], *predictions])


if __name__ == "__main__":
    launch(main)
