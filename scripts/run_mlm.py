"""Pre-train a masked language model on plain texts: from scratch, vocabulary included, or from a checkpoint.

    python scripts/run_mlm.py --train_file texts.txt --validation_split_percentage 5 --vocab_size 8000 \
        --hidden_size 256 --num_hidden_layers 4 --num_attention_heads 4 --intermediate_size 1024 \
        --max_seq_length 256 --output_dir outputs/pretrained

A text file has a document on each line; CSV, JSON and Parquet files have a column of texts. Documents are put side by
side into full rows, in which none sees another; --line_by_line gives each text rows of its own. A document longer than
a row is cut into pieces. Metrics: loss, perplexity and accuracy, over the masked places only, which are the same in
every evaluation. The folder that comes out is a checkpoint for --model_name_or_path of all recipes. What the steps
share with the other recipes is in recipe.py and recipe_data.py; rows and masks are made in masking.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from datasets import Dataset, DatasetDict, Features, Value
from datasets import Sequence as ListOf
from masking import (
    EpochClock,
    MaskingCollator,
    cut_apart,
    load_segmenter,
    number_rows,
    pack,
    tokenize_texts,
)
from recipe import (
    ModelArguments,
    RecipeError,
    Run,
    callbacks,
    check_length,
    check_trained,
    choose_metric,
    evaluate,
    launch,
    load_model,
    load_tokenizer_for,
    map_rows,
    open_run,
    parse_args,
    predict,
    say,
    splits_needed,
    train,
)
from recipe_data import (
    UNLABELLED,
    DataArguments,
    DataError,
    check_texts,
    count_blank_lines,
    cut,
    find_column,
    load_data,
    read_column,
)
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerFast, Trainer, TrainingArguments

from plainformer import PlainformerForMaskedLM

TEXT_COLUMNS = ("text", "sentence", "content", "review")
AT_ONCE = 2000  # documents that share rows: more fill them a little better and need more memory
SAMPLE = 1000  # rows on which the share of masked tokens is measured


@dataclass
class MlmArguments(DataArguments):
    """The texts, and how they are masked."""

    text_column_name: str | None = field(default=None, metadata={"help": "The column of the texts."})
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Tokens of a row; without it the model's positions, at most 512."}
    )
    line_by_line: bool = field(default=False, metadata={"help": "Each text in padded rows of its own: no packing."})
    mlm_probability: float = field(default=0.15, metadata={"help": "The share of the tokens to predict."})
    whole_word_masking: bool = field(default=False, metadata={"help": "Mask all pieces of a word, or none."})
    segmenter: str | None = field(
        default=None,
        metadata={"help": "For --whole_word_masking, as Chinese needs it: module:function, from a text to its words."},
    )


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    # 1. Arguments, and a folder for the run
    defaults = {"remove_unused_columns": False}  # the masks depend on columns that no model takes
    model_args, data_args, training_args = parse_args(MlmArguments, argv, __doc__, **defaults)
    check_trained(model_args, training_args, PlainformerForMaskedLM)
    check_settings(model_args, data_args, training_args)
    choose_metric(data_args, training_args, ["loss", "perplexity", "accuracy"])
    run = open_run("run_mlm", model_args, data_args, training_args)

    # 2. Data: read, checked as a whole, cut
    data = load_data(data_args, splits_needed(training_args), model_args.cache_dir)
    column = find_column(data, data_args, "--text_column_name", data_args.text_column_name, TEXT_COLUMNS)
    check_texts(data, data_args, column, may_be_empty=True)
    data = leave_out_empty(data, data_args, column, run)
    data = cut(data, data_args, training_args.seed, same=[column])

    # 3. Tokenizer and model
    corpus = (text for split in ["train"] for text in read_column(data[split], column))
    tokenizer = load_tokenizer_for(model_args, run, corpus)
    model = load_model(model_args, PlainformerForMaskedLM, tokenizer)
    choose_length(data_args, model)
    check_length(model, data_args)
    say(f"{type(model).__name__}, {model.num_parameters():,} parameters", run)

    # 4. Token ids, then rows. These are filled in one process, so that they do not depend on the number of processes.
    tokenize, lay_out = make_tokenize(tokenizer, data_args, column), make_lay_out(data_args)
    encoded = {split: map_rows(rows, tokenize, data_args, training_args, split) for split, rows in data.items()}
    options = {"batch_size": AT_ONCE, "num_proc": None, "features": row_features(data_args)}
    encoded = {
        split: number_rows(
            map_rows(rows, lay_out, data_args, training_args, f"{split}: rows", **options),
            for_evaluation=split != "train",
        )
        for split, rows in encoded.items()
    }

    # 5. Masks, anew in each epoch
    clock = EpochClock()
    collator = make_collator(tokenizer, data_args, training_args.seed, clock)
    for split, rows in encoded.items():
        report_rows(rows, split, len(data[split]), data_args, collator, run)

    # 6. Train
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=encoded.get("train"),
        eval_dataset=encoded.get("validation"),
        processing_class=tokenizer,
        data_collator=collator,
        compute_metrics=measure,
        preprocess_logits_for_metrics=sum_up_rows,
        callbacks=[clock, *callbacks(data_args)],
    )
    metrics = {}
    if training_args.do_train:
        metrics |= train(trainer, run)

    # 7. Evaluate
    if training_args.do_eval:
        metrics |= evaluate(trainer, run, encoded["validation"])
    if training_args.do_predict:
        metrics |= predict(trainer, run, encoded["test"]).metrics
    run.write("finished")
    return metrics


def check_settings(model_args: ModelArguments, data_args: MlmArguments, training_args: TrainingArguments) -> None:
    """Raise a RecipeError for settings that do not go together."""
    if model_args.bert_baseline and not data_args.line_by_line:
        raise RecipeError(
            "--bert_baseline with packed documents: BERT lets the documents of a row see each other. Give "
            "--line_by_line, or leave out --bert_baseline."
        )
    if not 0 < data_args.mlm_probability < 1:
        raise RecipeError(
            f"--mlm_probability {data_args.mlm_probability}: give a share above 0 and below 1; 0.15 is usual."
        )
    if data_args.max_seq_length is not None and data_args.max_seq_length < 3:
        raise RecipeError(
            f"--max_seq_length {data_args.max_seq_length}: a row needs room for [CLS], a token and [SEP]: 3 or more."
        )
    if data_args.segmenter and not data_args.whole_word_masking:
        raise RecipeError(
            f"--segmenter {data_args.segmenter} says what a word is, which matters to --whole_word_masking only: give "
            "both or none."
        )
    if data_args.segmenter:
        try:
            load_segmenter(data_args.segmenter)
        except ValueError as error:
            raise RecipeError(str(error)) from error
    if training_args.remove_unused_columns:
        raise RecipeError("--remove_unused_columns true would remove what the masks depend on: leave it out.")


def leave_out_empty(data: DatasetDict, data_args: MlmArguments, column: str, run: Run) -> DatasetDict:
    """The data without empty texts; a line says how many there were. Blank lines of text files are left out already."""
    kept = DatasetDict()
    for split, rows in data.items():
        filled = [row for row, text in enumerate(read_column(rows, column)) if text and text.strip()]
        if not filled:
            raise DataError(f"{split}: every text in {column!r} is empty. Is it the right column (--text_column_name)?")
        empty = len(rows) - len(filled) + count_blank_lines(data_args, split)
        if empty:
            say(f"{split}: {empty:,} empty text{'s' * (empty > 1)} left out", run)
        kept[split] = rows if len(filled) == len(rows) else rows.select(filled)
    return kept


def choose_length(data_args: MlmArguments, model: PreTrainedModel) -> None:
    """Without --max_seq_length a row has as many tokens as the model has positions, and at most 512."""
    if data_args.max_seq_length is None:
        data_args.max_seq_length = min(512, model.config.max_position_embeddings)


def make_tokenize(tokenizer: PreTrainedTokenizerFast, data_args: MlmArguments, column: str) -> Callable[[dict], dict]:
    """The function from texts, in columns, to token ids; for --whole_word_masking also the word of each token."""
    # The function is a key of the cache: it should hold nothing but what its result depends on. A segmenter goes by its
    # name, since many cannot be sent to another process.
    whole_words, segmenter = data_args.whole_word_masking, data_args.segmenter
    ids_only = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}

    def tokenize(rows: dict[str, list]) -> dict[str, list]:
        if not whole_words:
            return {"input_ids": tokenizer(rows[column], **ids_only)["input_ids"]}
        try:
            return tokenize_texts(rows[column], tokenizer, load_segmenter(segmenter) if segmenter else None)
        except ValueError as error:
            raise DataError(f"--segmenter {segmenter}: {error}") from error

    return tokenize


def make_lay_out(data_args: MlmArguments) -> Callable[[dict], dict]:
    """The function from tokenized documents to rows of at most --max_seq_length tokens, and their lengths."""
    arrange, row_length = cut_apart if data_args.line_by_line else pack, data_args.max_seq_length

    def lay_out(rows: dict[str, list]) -> dict[str, list]:
        columns = arrange(rows["input_ids"], row_length, rows.get("word_ids"))
        return {**columns, "length": [len(ids) for ids in columns["input_ids"]]}

    return lay_out


def row_features(data_args: MlmArguments) -> Features:
    """The columns that `lay_out` gives. They are named because a batch of documents may give no row to see them in."""
    names = ["input_ids"]
    names += [] if data_args.line_by_line else ["position_ids"]
    names += ["word_ids"] if data_args.whole_word_masking else []
    return Features({**{name: ListOf(Value("int32")) for name in names}, "length": Value("int64")})


def make_collator(
    tokenizer: PreTrainedTokenizerFast, data_args: MlmArguments, seed: int, clock: EpochClock
) -> MaskingCollator:
    """The collator, whose word about the tokenizer is the user's business."""
    try:
        return MaskingCollator(tokenizer, data_args.mlm_probability, seed, clock)
    except ValueError as error:
        raise RecipeError(str(error)) from error


def report_rows(
    rows: Dataset, split: str, documents: int, data_args: MlmArguments, collator: MaskingCollator, run: Run
) -> None:
    """One line about the rows of a split; an error where there is nothing to predict in them."""
    some = rows.select(range(min(len(rows), SAMPLE)))
    chosen = sum(np.count_nonzero(collator.mask(row)[1] != UNLABELLED) for row in some)
    ordinary = sum(np.count_nonzero(~np.isin(row["input_ids"], collator.special_ids)) for row in some)
    if not chosen:
        raise DataError(
            f"{split}: no token to predict in {documents:,} texts: they are too few, or hold nothing that the "
            "tokenizer knows (--tokenizer_name)."
        )
    tokens, length = sum(read_column(rows, "length")), data_args.max_seq_length
    say(
        f"{split}: {documents:,} texts, {tokens:,} tokens in {len(rows):,} rows of {length}, "
        f"{tokens / (len(rows) * length):.1%} full, {chosen / ordinary:.1%} masked",
        run,
    )


def sum_up_rows(logits: Tensor, labels: Tensor) -> Tensor:
    """Logits [B, L, V] and labels [B, L] -> each row's summed loss and number of right answers, [B, 2].

    `Trainer` keeps what this returns for the whole evaluation, and would keep all logits without it.
    """
    masked = labels != UNLABELLED
    answers, truth = logits[masked].float(), labels[masked]  # [N, V] and [N]
    figures = torch.zeros(*labels.shape, 2, device=answers.device)
    figures[masked] = torch.stack(
        [cross_entropy(answers, truth, reduction="none"), (answers.argmax(-1) == truth).float()], dim=-1
    )
    return figures.sum(dim=1)


def measure(prediction: EvalPrediction) -> dict[str, float]:
    """Loss, perplexity and accuracy over all masked places.

    The loss takes the place of `Trainer`'s, which averages over batches, so that it depends on their size and a place
    counts for more where few are masked; and which label smoothing would change.
    """
    count = np.count_nonzero(prediction.label_ids != UNLABELLED)
    loss, right = prediction.predictions.sum(axis=0, dtype=np.float64) / count
    return {"loss": float(loss), "perplexity": float(np.exp(loss)), "accuracy": float(right)}


if __name__ == "__main__":
    launch(main)
