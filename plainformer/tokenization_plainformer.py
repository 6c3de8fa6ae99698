"""BERT WordPiece tokenizers: load one from a `vocab.txt`, or train one on your own texts.

Both return transformers' own fast BERT tokenizer. A saved tokenizer therefore needs none of our code:
`AutoTokenizer.from_pretrained(folder, trust_remote_code=False)` opens it anywhere.

WordPiece as in BERT (Devlin et al. 2018): clean the text, split it at whitespace and punctuation (and around Chinese
characters), then cut each word greedily into the longest entries of the vocabulary. An entry that continues a word
starts with `##`.
"""

from __future__ import annotations

import os
import string
import sys
import tempfile
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.utils import logging

if TYPE_CHECKING:
    from transformers import BertTokenizerFast

logger = logging.get_logger(__name__)

MOST_ENTRIES = 10_000_000  # the trainer allocates memory for all entries at once, and aborts if it fails
# Their order gives their ids in a trained vocabulary. [PAD] is 0, as in BERT and as the config's `pad_token_id`.
LOST_TOO_OFTEN = 0.01  # of the characters: German and French lose 1.5 to 4 %, Hindi, Thai and Japanese 5 to 20 %
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def load_tokenizer(
    vocab_file: str | os.PathLike[str],
    *,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
    model_max_length: int = 512,
) -> BertTokenizerFast:
    """Build a fast BERT tokenizer from a `vocab.txt`: one entry per line; the id is the line number, from 0.

    The file does not say how texts are normalized: pass the options that the vocabulary was made with
    (`do_lower_case=False` for a cased one). `tokenizer.backend_tokenizer.model.save(folder)` writes such a file.

    Args:
        vocab_file: the file, in UTF-8. It must hold [PAD], [UNK], [CLS], [SEP] and [MASK], on any line.
        do_lower_case: lowercase the text.
        strip_accents: remove accents, and with them the vowel signs of Hindi and Thai and the voicing marks of
            Japanese: が becomes か. `None` means the value of `do_lower_case` (BERT's rule).
        tokenize_chinese_chars: make each Chinese character a separate word.
        model_max_length: the length that `truncation=True` cuts to, special tokens included. Pass the model's
            `max_position_embeddings`.

    Returns:
        A `BertTokenizerFast`. As in BERT, a word of more than 100 characters becomes one [UNK].

    Raises:
        FileNotFoundError, IsADirectoryError: `vocab_file` is missing, or a folder.
        ValueError: the file is not UTF-8, lacks a special token, or has a blank or repeated line (so its ids would not
            be those of the training); or `model_max_length` is below 3.
        TypeError: a switch is not a boolean, or `model_max_length` is not an integer.
    """
    _check_options(do_lower_case, strip_accents, tokenize_chinese_chars, model_max_length)
    vocab = _read_vocab(Path(vocab_file))
    return _build_tokenizer(vocab, do_lower_case, strip_accents, tokenize_chinese_chars, model_max_length)


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int = 30522,
    *,
    do_lower_case: bool = True,
    strip_accents: bool | None = None,
    tokenize_chinese_chars: bool = True,
    split_digits: bool = False,
    min_frequency: int = 2,
    model_max_length: int = 512,
    show_progress: bool = True,
) -> BertTokenizerFast:
    """Train a WordPiece vocabulary on `texts` and build a fast BERT tokenizer with it.

    The ids are [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4; then every character of the corpus in Unicode order; then
    the characters that can continue a word, as `##` entries; then longer pieces, the most frequent pair first. No
    character of the corpus is left out. The same texts in any order give the same vocabulary in every process.

    Args:
        texts: any iterable of strings. It is read once and kept in a temporary file, not in memory.
        vocab_size: the maximum number of entries. A small corpus gives fewer, and a warning is logged.
        do_lower_case, strip_accents, tokenize_chinese_chars, model_max_length: see `load_tokenizer`. A warning is
            logged where more than 1 % of the characters lose an accent or another mark.
        split_digits: no piece holds two digits, or a digit and something else, so that each digit is a token: 1984 is
            1 ##9 ##8 ##4. Arithmetic needs it. All ten digits are entries. It is a matter of the vocabulary alone, so
            it outlives saving.
        min_frequency: a piece of several characters must occur this often.
        show_progress: progress bars for reading the texts and, on a terminal, for training.

    Returns:
        A `BertTokenizerFast`.

    Raises:
        TypeError: `texts` is a single string or not iterable, an item is not a string, or an option has the wrong type.
        ValueError: `texts` holds no text, or text that is not valid Unicode; `vocab_size` is too small for every
            character; `min_frequency` is below 1; or `model_max_length` is below 3.
    """
    _check_options(do_lower_case, strip_accents, tokenize_chinese_chars, model_max_length)
    _check_integer("vocab_size", vocab_size, len(SPECIAL_TOKENS) + 1)
    if vocab_size > MOST_ENTRIES:
        raise ValueError(f"vocab_size={vocab_size} is too large: pass {MOST_ENTRIES} or less.")
    _check_integer("min_frequency", min_frequency, 1)
    _check_switch("split_digits", split_digits)
    backend = _build_backend({}, do_lower_case, strip_accents, tokenize_chinese_chars)
    vocab = _train_vocab(backend, texts, vocab_size, min_frequency, split_digits, show_progress)
    if len(vocab) < vocab_size:
        logger.warning(
            f"The vocabulary has {len(vocab)} entries, fewer than vocab_size={vocab_size}: the texts hold no more "
            f"pieces (min_frequency={min_frequency}). The model that goes with it has "
            f"vocab_size=len(tokenizer), which is {len(vocab)}."
        )
    return _build_tokenizer(vocab, do_lower_case, strip_accents, tokenize_chinese_chars, model_max_length)


def _train_vocab(
    backend: Tokenizer,
    texts: Iterable[str],
    vocab_size: int,
    min_frequency: int,
    split_digits: bool,
    show_progress: bool,
) -> dict[str, int]:
    """The entries of a trained vocabulary and their ids; `backend` is used up. Arguments: see `train_tokenizer`."""
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder, "corpus.txt")
        characters = _write_corpus(texts, corpus, show_progress)
        if lost := describe_lost_marks(backend.normalizer.normalize_str, characters):
            remedy = "Pass strip_accents=False or do_lower_case=False (in a recipe: --strip_accents false, or --cased)"
            logger.warning(f"{lost} {remedy} to keep them.")
        # The trainer gives the first ids to special tokens, in their order. It would number all other characters in
        # hash order, which changes from process to process and also decides between equally frequent pairs.
        has_text = any(not character.isspace() for character in characters)
        alphabet = {*characters, *(string.digits if split_digits and has_text else "")}
        fixed = [*SPECIAL_TOKENS, *_alphabet(backend, alphabet, vocab_size)]
        if split_digits:  # for the training alone: what it learns has no piece to join digits with
            split = [backend.pre_tokenizer, pre_tokenizers.Digits(individual_digits=True)]
            backend.pre_tokenizer = pre_tokenizers.Sequence(split)
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=fixed,
            show_progress=show_progress and sys.stderr.isatty(),  # elsewhere its bars are empty lines on stdout
        )
        backend.train([str(corpus)], trainer)
    # `backend` now treats the alphabet as special tokens, and matches these before it normalizes a text. So only its
    # vocabulary is used.
    return backend.get_vocab()


def _check_options(
    do_lower_case: bool, strip_accents: bool | None, tokenize_chinese_chars: bool, model_max_length: int
) -> None:
    """Refuse wrong options at once; later errors would not name them."""
    _check_switch("do_lower_case", do_lower_case)
    _check_switch("tokenize_chinese_chars", tokenize_chinese_chars)
    if strip_accents is not None and not isinstance(strip_accents, bool):
        raise TypeError(f"strip_accents={strip_accents!r}: pass True, False, or None (as do_lower_case).")
    _check_integer("model_max_length", model_max_length, 3)  # [CLS] and both [SEP] of a pair


def _check_switch(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is not a boolean: pass True or False.")


def _check_integer(name: str, value: int, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is a {type(value).__name__}: pass an integer.")
    if value < minimum:
        raise ValueError(f"{name}={value} is too small: pass {minimum} or more.")


def _read_vocab(path: Path) -> dict[str, int]:
    """The entries of a `vocab.txt` and their ids. Errors: see `load_tokenizer`."""
    if path.is_dir():
        raise IsADirectoryError(
            f"vocab_file={str(path)!r} is a folder: pass the vocab.txt in it. A folder that save_pretrained wrote "
            "opens with AutoTokenizer.from_pretrained(folder, trust_remote_code=False)."
        )
    if not path.exists():
        raise FileNotFoundError(
            f"vocab_file={str(path)!r} does not exist (looked from {os.getcwd()!r}): check the path, or make a "
            "vocabulary with train_tokenizer."
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        value = error.object[error.start : error.end]
        raise ValueError(
            f"{str(path)!r}, line {line}: {value!r} is not UTF-8. Save the file as UTF-8, or check that it is a "
            "vocab.txt."
        ) from error
    entries = text.removesuffix("\n").split("\n")
    _check_entries(path, entries)
    return {entry: index for index, entry in enumerate(entries)}


def _check_entries(path: Path, entries: list[str]) -> None:
    missing = [token for token in SPECIAL_TOKENS if token not in entries]
    if missing:
        raise ValueError(
            f"{str(path)!r} has no line {' and no line '.join(missing)}; its first line is {entries[0][:40]!r}. A BERT "
            "vocabulary has one entry a line, nothing else on it, and holds all of "
            f"{' '.join(SPECIAL_TOKENS)}: check that this is a vocab.txt, or make one with train_tokenizer."
        )
    first_line: dict[str, int] = {}
    for line, entry in enumerate(entries, start=1):
        if not entry.strip():
            raise ValueError(
                f"{str(path)!r}, line {line}: the line is blank ({entry!r}), and ids are line numbers. Remove the line "
                "if no model was trained with it; otherwise put an unused entry such as [unused0] there."
            )
        if entry in first_line:
            raise ValueError(
                f"{str(path)!r}, line {line}: {entry!r} is on line {first_line[entry]} already, and an entry has one "
                "id. Remove the line if no model was trained with it; otherwise put an unused entry such as [unused0] "
                "in place of the one that is not used."
            )
        first_line[entry] = line


def describe_lost_marks(normalize: Callable[[str], str], characters: Counter[str]) -> str | None:
    """How many characters lose an accent, a vowel sign or another mark in `normalize`, and the commonest of them.

    Args:
        normalize: what a tokenizer does to a text first; here to one character at a time.
        characters: how often each stands in the texts.

    Returns:
        a sentence; None unless the share of all characters but blanks is above `LOST_TOO_OFTEN`.
    """
    total = sum(count for character, count in characters.items() if not character.isspace())
    lost = {character: count for character, count in characters.items() if _loses_mark(normalize, character)}
    if sum(lost.values()) <= LOST_TOO_OFTEN * total:
        return None
    examples = []
    for character in sorted(lost, key=lambda character: (-lost[character], character))[:4]:
        base = normalize(character)
        examples.append(f"{character!r} becomes {base!r}" if base.strip() else f"'\u25cc{character}' is left out")
    lead = f"The tokenizer takes a mark from {sum(lost.values()) / total:.1%} of the characters of the texts"
    return f"{lead} ({', '.join(examples)}): words that differ in nothing else get the same ids."


def _loses_mark(normalize: Callable[[str], str], character: str) -> bool:
    return not character.isascii() and _count_marks(normalize(character)) < _count_marks(character)


def _count_marks(text: str) -> int:
    """The combining marks of a text; without variation selectors, which only say how a character should look."""
    marks = [sign for sign in unicodedata.normalize("NFD", text) if unicodedata.category(sign) == "Mn"]
    return sum(not ("\ufe00" <= sign <= "\ufe0f" or sign >= "\U000e0100") for sign in marks)


def _write_corpus(texts: Iterable[str], path: Path, show_progress: bool) -> Counter[str]:
    """Write the texts to `path` and count their characters. Errors: see `train_tokenizer`.

    The alphabet must be known before the training, so the texts are read twice; an iterator can be read only once.
    """
    if isinstance(texts, str):
        raise TypeError(
            f"texts={texts[:40]!r} is one string, not an iterable of strings: pass [text] for a single text, or "
            "open(path, encoding='utf-8') to read a file line by line."
        )
    if isinstance(texts, Mapping) or not isinstance(texts, Iterable):
        raise TypeError(
            f"texts is a {type(texts).__name__}, not an iterable of texts: pass a list or a generator of strings."
        )
    characters: Counter[str] = Counter()
    progress = logging.tqdm(texts, desc="Reading texts", unit=" texts", disable=not show_progress)
    with open(path, "wb") as corpus:
        for index, text in enumerate(progress):
            corpus.write(_encode(text, index) + b"\n")
            characters.update(text)
    return characters


def _encode(text: str, index: int) -> bytes:
    if not isinstance(text, str):
        raise TypeError(
            f"texts[{index}] is a {type(text).__name__} ({str(text)[:40]!r}), not a string: pass the strings alone, "
            "for example (row['text'] for row in rows), and leave out missing values."
        )
    return to_utf8(text, index)


def to_utf8(text: str, index: int) -> bytes:
    """`texts[index]` in UTF-8; a ValueError where it holds half of a surrogate pair."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"texts[{index}], character {error.start}: {text[error.start]!r} is half of a surrogate pair, not a "
            "character. Read the texts again with the right encoding, or replace it: "
            "text.encode('utf-8', 'replace').decode('utf-8')."
        ) from error


def _alphabet(backend: Tokenizer, characters: Iterable[str], vocab_size: int) -> list[str]:
    """The one-character entries for these characters: `c` starts a word and `##c` continues one.

    Characters are normalized one by one, as the normalizer does. A character that is always a separate word
    (punctuation; Chinese characters, if these are split) needs no `##c`.
    """
    starts: set[str] = set()
    continuations: set[str] = set()
    for character in characters:
        starts.update(*_split(backend, character))
        for word in _split(backend, f"a{character}a"):
            continuations.update(f"##{inner}" for inner in word[1:-1])
    if not starts:
        raise ValueError(
            "texts holds no text, only blanks or nothing at all: pass strings with words in them. (An iterator that "
            "was read before is empty.)"
        )
    alphabet = [*sorted(starts), *sorted(continuations)]
    needed = len(SPECIAL_TOKENS) + len(alphabet)
    if vocab_size < needed:
        raise ValueError(
            f"vocab_size={vocab_size} is too small: {len(SPECIAL_TOKENS)} special tokens and {len(alphabet)} entries "
            f"for the {len(starts)} characters of the texts need {needed}. Pass vocab_size={needed} or more, or remove "
            "rare characters from the texts, which will then be [UNK]."
        )
    return alphabet


def _split(backend: Tokenizer, text: str) -> list[str]:
    """The words of a text, before WordPiece."""
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))]


def _build_backend(
    vocab: dict[str, int], do_lower_case: bool, strip_accents: bool | None, tokenize_chinese_chars: bool
) -> Tokenizer:
    """BERT's pipeline from text to word pieces.

    It must not differ from BERT's own: when transformers 5 loads a folder, it builds the pipeline again from the
    vocabulary and these three switches.
    """
    backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=do_lower_case, strip_accents=strip_accents, handle_chinese_chars=tokenize_chinese_chars
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _build_tokenizer(
    vocab: dict[str, int],
    do_lower_case: bool,
    strip_accents: bool | None,
    tokenize_chinese_chars: bool,
    model_max_length: int,
) -> BertTokenizerFast:
    """transformers' tokenizer around BERT's pipeline.

    It is made from a `tokenizer_object`: transformers 4.57 reads only `vocab_file` and transformers 5 reads only
    `vocab`. The switches are passed too, because `save_pretrained` saves them.
    """
    # Imported here, because `import plainformer` should not import BERT.
    from transformers import BertTokenizerFast

    backend = _build_backend(vocab, do_lower_case, strip_accents, tokenize_chinese_chars)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, vocab[token]) for token in ("[CLS]", "[SEP]")],
    )
    return BertTokenizerFast(
        tokenizer_object=backend,
        do_lower_case=do_lower_case,
        strip_accents=strip_accents,
        tokenize_chinese_chars=tokenize_chinese_chars,
        model_max_length=model_max_length,
        # Saved in the folder, so that a generic tokenizer class returns token types too.
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
