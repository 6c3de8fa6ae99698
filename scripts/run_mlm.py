"""Pre-train a masked language model on plain texts: from scratch, vocabulary included, or from a checkpoint.

    python scripts/run_mlm.py --train_file texts.txt --validation_split_percentage 5 --vocab_size 8000 \
        --hidden_size 256 --num_hidden_layers 4 --num_attention_heads 4 --intermediate_size 1024 \
        --max_seq_length 256 --output_dir outputs/pretrained

A text file has a document on each line; CSV, JSON and Parquet files have a column of texts. Documents are put side by
side into full rows, in which none sees another; --line_by_line gives each text rows of its own. A document longer than
a row is cut into pieces. Metrics: loss, perplexity and accuracy, over the masked tokens only, which are the same in
every evaluation. The folder that comes out is a checkpoint for --model_name_or_path of all recipes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from datasets import Dataset, DatasetDict, Features, Value
from transformers import PreTrainedTokenizerBase, TrainingArguments

from plainformer import PlainformerForMaskedLM
from plainformer.recipes import masking
from plainformer.recipes.arguments import (
    DataArguments,
    ModelArguments,
    check_at_least,
    choose_metric,
    flag,
    parse_args,
)
from plainformer.recipes.columns import check_texts, find_column, read_column
from plainformer.recipes.data_files import count_blank_lines, file_format
from plainformer.recipes.errors import DataError, RecipeError
from plainformer.recipes.metrics import IGNORE_INDEX, MASKED_LM_METRICS, score_masked, sum_up_rows
from plainformer.recipes.models import check_knows_words, load_model, load_tokenizer_for
from plainformer.recipes.reading import report_special
from plainformer.recipes.run_folder import Run, open_run
from plainformer.recipes.splits import cut, map_splits, read_splits
from plainformer.recipes.training import finish, launch, train_and_evaluate

TEXT_COLUMNS = ("text", "sentence", "content", "review")
AT_ONCE = 2000  # documents that fill rows together: more fill them a little better and need more memory
SAMPLE = 1000  # rows in which the masked tokens are counted


@dataclass
class MlmArguments(DataArguments):
    """The texts, and how they are masked."""

    text_column_name: str | None = flag("The column of the texts.")
    max_seq_length: int | None = flag("Tokens of a row; without it the model's positions, at most 512.")
    line_by_line: bool = flag("Each text in padded rows of its own: no packing.", False)
    mlm_probability: float = flag("The fraction of the tokens to predict.", 0.15)
    whole_word_masking: bool = flag("Mask all pieces of a word, or none.", False)
    segmenter: str | None = flag("With --whole_word_masking, for Chinese: module:function, from a text to its words.")


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    # 1. Arguments, and a folder for the run; the masks depend on columns that no model takes
    arguments = parse_args(MlmArguments, argv, __doc__, remove_unused_columns=False)
    check_settings(*arguments)
    _, data_args, training_args = arguments
    choose_metric(data_args, training_args, MASKED_LM_METRICS)
    run = open_run("run_mlm", arguments, PlainformerForMaskedLM)

    # 2. Data: read, checked as a whole, cut
    data = read_splits(run)
    column = find_column(data, data_args, "text_column_name", TEXT_COLUMNS)
    check_texts(data, data_args, [column], may_be_empty=True)
    data = leave_out_empty(data, column, run)
    data = cut(data, data_args, training_args.seed, same=[column])

    # 3. Tokenizer and model; and with them the length of a row
    tokenizer = load_tokenizer_for(run, lambda: read_column(data["train"], column))
    if data_args.whole_word_masking:
        check_knows_words(tokenizer, "--whole_word_masking")
    model = load_model(run, tokenizer)
    report_special(data, [column], tokenizer, run, "texts")
    if data_args.max_seq_length is None:
        data_args.max_seq_length = min(512, model.config.max_position_embeddings)
    template = masking.Template.of(tokenizer)
    masking.check_row_length(data_args.max_seq_length, template)

    # 4. Token ids, then rows. These are filled in one process, so that they do not depend on the number of processes.
    tokens = map_splits(data, make_tokenize(tokenizer, template, data_args, column), run)
    arrange = masking.cut_apart if data_args.line_by_line else masking.pack
    options = {
        "fn_kwargs": {"arrange": arrange, "row_length": data_args.max_seq_length, "template": template},
        "num_proc": None,
    }
    inputs = map_splits(tokens, lay_out, run, batch_size=AT_ONCE, features=row_features(data_args), **options)
    inputs = {split: masking.number_rows(rows, for_evaluation=split != "train") for split, rows in inputs.items()}

    # 5. Masks, anew in each epoch
    clock = masking.EpochClock()
    collator = masking.MaskingCollator(tokenizer, data_args.mlm_probability, training_args.seed, clock)
    for split, rows in inputs.items():
        report_rows(rows, split, len(data[split]), collator, run)

    # 6. Train and evaluate
    measures = dict.fromkeys(inputs, score_masked)
    options = {"data_collator": collator, "preprocess_logits_for_metrics": sum_up_rows, "callbacks": [clock]}
    metrics, _ = train_and_evaluate(run, model, tokenizer, inputs, measures, **options)

    # 7. There are no predictions to write: say where everything is
    finish(run)
    return metrics


def check_settings(model_args: ModelArguments, data_args: MlmArguments, training_args: TrainingArguments) -> None:
    """Raise a RecipeError for settings that do not go together."""
    segmenter = data_args.segmenter
    if model_args.bert_baseline and not data_args.line_by_line:
        problem = "--bert_baseline with packed documents: BERT lets the documents of a row see each other."
        raise RecipeError(f"{problem} Give --line_by_line, or leave out --bert_baseline.")
    masking.check_probability(data_args.mlm_probability)
    check_at_least(data_args, max_seq_length=1)
    if segmenter and not data_args.whole_word_masking:
        problem = f"--segmenter {segmenter} says what a word is, which matters to --whole_word_masking only"
        raise RecipeError(f"{problem}: give both or none.")
    if segmenter:
        masking.load_segmenter(segmenter)
    if training_args.remove_unused_columns:
        raise RecipeError("--remove_unused_columns true would remove what the masks depend on: leave it out.")


def leave_out_empty(data: DatasetDict, column: str, run: Run) -> DatasetDict:
    """The data without empty texts; a line says how many there were. Blank lines of text files are left out already."""
    kept = DatasetDict()
    for split, rows in data.items():
        filled = [row for row, text in enumerate(read_column(rows, column)) if text and text.strip()]
        if not filled:
            raise DataError(f"{split}: every text in {column!r} is empty. Is it the right column (--text_column_name)?")
        empty, path = len(rows) - len(filled), run.data_args.file_of(split)
        if path and file_format(path, run.data_args.file_format) == "text":
            empty += count_blank_lines(path)
        if empty:
            run.say(f"{split}: {empty:,} empty text{'s' * (empty > 1)} left out")
        kept[split] = rows if len(filled) == len(rows) else rows.select(filled)
    return kept


def make_tokenize(
    tokenizer: PreTrainedTokenizerBase, template: masking.Template, data_args: MlmArguments, column: str
) -> Callable[[dict], dict]:
    """The function from texts, in columns, to token ids; for --whole_word_masking also the word of each token."""
    # The function is a key of the cache: it should hold nothing but what its result depends on. A segmenter goes by its
    # name, since many cannot be sent to another process.
    whole_words, segmenter = data_args.whole_word_masking, data_args.segmenter

    def tokenize(rows: dict[str, list]) -> dict[str, list]:
        if not whole_words:
            return {"input_ids": tokenizer(rows[column], verbose=False)["input_ids"]}
        try:
            return masking.tokenize_texts(
                rows[column], tokenizer, template, segmenter and masking.load_segmenter(segmenter)
            )
        except ValueError as error:
            raise DataError(f"--segmenter {segmenter}: {error}") from error

    return tokenize


def lay_out(
    documents: dict[str, list], arrange: Callable, row_length: int, template: masking.Template
) -> dict[str, list]:
    """Rows of at most `row_length` tokens, and their lengths, from tokenized documents."""
    columns = arrange(dict(documents), row_length, template)
    return {**columns, "length": [len(ids) for ids in columns["input_ids"]]}


def row_features(data_args: MlmArguments) -> Features:
    """The columns that `lay_out` gives. They are named because a batch of documents may give no row to see them in."""
    names = ["input_ids"]
    names += [] if data_args.line_by_line else ["position_ids"]
    names += ["word_ids"] if data_args.whole_word_masking else []
    return Features({**{name: [Value("int32")] for name in names}, "length": Value("int64")})


def report_rows(rows: Dataset, split: str, documents: int, collator: masking.MaskingCollator, run: Run) -> None:
    """One line about the rows of a split; an error where there is nothing to predict in them."""
    some = rows.select(range(min(len(rows), SAMPLE)))
    chosen = sum(np.count_nonzero(collator.mask(row)[1] != IGNORE_INDEX) for row in some)
    ordinary = sum(np.count_nonzero(~np.isin(row["input_ids"], collator.special_ids)) for row in some)
    if not chosen:
        problem = f"{split}: no token to predict in {documents:,} texts: they are too few, or hold nothing"
        raise DataError(f"{problem} that the tokenizer knows (--tokenizer_name).")
    tokens, length = sum(read_column(rows, "length")), run.data_args.max_seq_length
    figures = f"{tokens / (len(rows) * length):.1%} full, {chosen / ordinary:.1%} masked"
    run.say(f"{split}: {documents:,} texts, {tokens:,} tokens in {len(rows):,} rows of {length}, {figures}")


if __name__ == "__main__":
    launch(main)
