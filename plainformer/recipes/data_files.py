"""One reader for each file format, and what is wrong with a file as a DataError that names the line and the remedy.

A reader is a generator of `(line, row)`: the line, counted from 1, at which the row starts, and the row as a
dictionary. It stops at the first line that is not right. `read_rows` finds the reader by the format.
"""

import csv
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import Features, Sequence, Value

from .errors import DataError

EXTENSIONS = {
    **{".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".txt": "text", ".text": "text"},
    **{".parquet": "parquet", **dict.fromkeys((".conll", ".conllu", ".bio", ".iob", ".iob2"), "conll")},
}
FORMATS = tuple(dict.fromkeys(EXTENSIONS.values()))
DELIMITERS = {"csv": ",", "tsv": "\t"}
MAX_FIELD = 2**31 - 1  # characters in one CSV field; the csv module's own limit is 131,072, which a long text exceeds

Row = dict[str, Any]
Rows = Iterator[tuple[int, Row]]


def file_format(path: str, given: str | None = None) -> str:
    """The name of the format that `path` is read as: the `given` one, or what the extension says."""
    extension = Path(path).suffix.lower()
    if given is None and extension not in EXTENSIONS:
        raise DataError(
            f"{path}: what {extension or 'a file without extension'} holds is not known. Rename it to one of "
            f"{' '.join(EXTENSIONS)}, or give --file_format ({', '.join(FORMATS)})."
        )
    return given or EXTENSIONS[extension]


def read_rows(kind: str, path: str) -> Rows:
    """The rows of a file that is not Parquet; for a JSON file that is no JSON lines, the record instead of the line."""
    if kind == "json":
        return read_json_lines(path) if json_layout(path) == "lines" else read_json(path)
    if kind in DELIMITERS:
        return read_csv(path, DELIMITERS[kind])
    return {"text": read_text, "conll": read_conll}[kind](path)


def text_features(kind: str, path: str) -> Features | None:
    """The types of formats that hold nothing but strings; None for JSON, whose values have types of their own.

    A CSV file says nothing about types. Guessed ones depend on the rest of the column: a review "1984" would be a
    number, and the label "NA" a missing value.
    """
    if kind in DELIMITERS:
        return Features({name: Value("string") for name in _csv_header(path, DELIMITERS[kind])})
    if kind == "text":
        return Features({"text": Value("string")})
    if kind == "conll":
        _, row = next(read_conll(path), (0, {"tokens": []}))
        return Features({name: Sequence(Value("string")) for name in row})
    return None


# CSV and TSV


def read_csv(path: str, delimiter: str) -> Rows:
    """A CSV or TSV file with a header. A quoted field may span lines."""
    csv.field_size_limit(MAX_FIELD)
    header = _csv_header(path, delimiter)
    reader = csv.reader((text for _, text in numbered_lines(path)), delimiter=delimiter, strict=True)
    line = 1
    try:
        for cells in reader:
            if line > 1 and cells:
                if len(cells) != len(header):
                    remedy = "Fill in what is missing; an empty field needs its delimiter too."
                    if len(cells) > len(header):
                        remedy = "Put a field that holds the delimiter in double quotes."
                    raise DataError(
                        f"{path}, line {line}: {len(cells)} field{'s' * (len(cells) > 1)}, but the header has "
                        f"{len(header)} ({', '.join(header)}). {remedy}"
                    )
                yield line, dict(zip(header, cells, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path}, line {line}: {error}. Put a field that holds a quote in double quotes, and write the quote twice."
        ) from error


def _csv_header(path: str, delimiter: str) -> list[str]:
    _, first = next(numbered_lines(path), (1, ""))
    header = next(csv.reader([first], delimiter=delimiter), [])
    if "" in header or len(set(header)) < len(header):
        raise DataError(
            f"{path}, line 1: the header {', '.join(map(repr, header))} must name every column, and each once."
        )
    if not header:
        raise DataError(f"{path}, line 1 is blank: the first line must name the columns.")
    return header


# Text


def read_text(path: str) -> Rows:
    """`{"text": ...}` for every line that is not blank."""
    for line, text in _filled_lines(path):
        yield line, {"text": text.strip()}


def count_blank_lines(path: str) -> int:
    """The lines of a text file that `read_text` leaves out."""
    return sum(not text.strip() for _, text in numbered_lines(path))


# CoNLL


def read_conll(path: str) -> Rows:
    """`{"tokens": [...], "tags": [...]}` for every sentence.

    One token a line, in columns between tabs or blanks: the token first, its tag last; a blank line ends a sentence.
    `-DOCSTART-` lines and, as in CoNLL-U, comments that start with `# ` are left out; `# O` is the token `#`
    and its tag where others have that tag. A file of one column has no tags. CoNLL-U itself (`.conllu`, ten columns)
    has the word second and its part of speech, `UPOS`, fourth.
    """
    rows: list[list[str]] = []
    start, width, first = 0, 0, 0
    is_conllu = Path(path).suffix.lower() == ".conllu"
    shapes = set() if is_conllu else _shapes_between_blanks(path)
    for line, text in chain(numbered_lines(path), [(0, "")]):
        is_comment = text.startswith("# ") and (len(text.split()), text.split()[-1]) not in shapes
        if text.strip() and not is_comment and not text.startswith("-DOCSTART-"):
            columns = text.rstrip().split("\t") if "\t" in text else text.split()
            width, first = width or len(columns), first or line
            _check_conll_line(path, line, columns, width, first)
            start = start if rows else line
            if not is_conllu or width != 10:
                rows.append(columns)
            elif columns[0].isdigit():  # 1-2 joins two words that have lines of their own, 2.1 is not in the text
                rows.append([columns[1], columns[3]])
        elif rows and not is_comment:
            yield start, _sentence(rows)
            rows = []


def _shapes_between_blanks(path: str) -> set[tuple[int, str]]:
    """The number of columns, and the tag, of each line that can be no comment and has blanks between its columns.

    `# O` is then a token where there are others of two columns with the tag O, and `# newdoc` a comment.
    """
    lines = (text.split() for _, text in _filled_lines(path) if not text.startswith("# ") and "\t" not in text)
    return {(len(columns), columns[-1]) for columns in lines}


def _check_conll_line(path: str, line: int, columns: list[str], width: int, first: int) -> None:
    if len(columns) != width or not all(column.strip() for column in columns):
        raise DataError(
            f"{path}, line {line}: {len([c for c in columns if c.strip()])} columns ({' '.join(columns)[:40]!r}), but "
            f"line {first} has {width}. Write one token a line with its tag last, and a blank line between sentences."
        )


def _sentence(rows: list[list[str]]) -> dict[str, list[str]]:
    tokens = {"tokens": [columns[0] for columns in rows]}
    return {**tokens, "tags": [columns[-1] for columns in rows]} if len(rows[0]) > 1 else tokens


# JSON


def json_layout(path: str) -> str:
    """`"lines"` for one object a line; `"whole"` where the whole file is one array or one object."""
    _, first = next(_filled_lines(path), (0, ""))
    if first.lstrip().startswith("["):
        return "whole"
    try:
        value = json.loads(first)
    except json.JSONDecodeError as error:  # at its end: the object goes on in the next line
        return "whole" if error.pos >= len(first.rstrip()) else "lines"
    return "whole" if isinstance(value, dict) and isinstance(value.get("data"), list) else "lines"


def read_json_lines(path: str) -> Rows:
    """One object a line; blank lines are left out."""
    for line, text in _filled_lines(path):
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            message = f"{path}, line {line}, column {error.colno}: not JSON ({error.msg}). Correct the line."
            raise DataError(message) from error
        if not isinstance(row, dict):
            raise DataError(f"{path}, line {line}: {text.strip()[:40]!r} is no JSON object: write one {{...}} a line.")
        yield line, row


def check_json_lines(path: str) -> None:
    """Raise a DataError for the first line that is no JSON object, or in which a value changes its type."""
    types: dict[str, tuple[type, int]] = {}
    for line, row in read_json_lines(path):
        for name, value in row.items():
            kind = float if isinstance(value, int) and not isinstance(value, bool) else type(value)
            seen, first = types.setdefault(name, (kind, line)) if value is not None else (kind, line)
            if seen is not kind:
                raise DataError(
                    f"{path}, line {line}: {name!r} is {value!r}, of type {kind.__name__}, but on line {first} it is "
                    f"of type {seen.__name__}. Give it one type throughout."
                )


def read_json(path: str) -> Rows:
    """A JSON file that is an array of objects, or an object that holds one as `data`; with the record for the line.

    What SQuAD nests as `data`, `paragraphs`, `qas` comes as flat rows: `id`, `title`, `context`, `question`, `answers`.
    """
    try:
        content = json.loads("".join(text for _, text in numbered_lines(path)))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}, column {error.colno}: not JSON ({error.msg}).") from error
    records = content.get("data") if isinstance(content, dict) else content
    if not isinstance(records, list):
        raise DataError(f"{path} holds neither an array of objects nor an object with one as 'data': rewrite it so.")
    for number, record in enumerate(records, start=1):
        if not isinstance(record, dict):
            raise DataError(f"{path}, record {number}: {str(record)[:40]!r} is no object: write {{...}}.")
        for row in _flatten_squad(path, number, record) if "paragraphs" in record else [record]:
            yield number, row


def _flatten_squad(path: str, number: int, article: dict) -> Iterator[Row]:
    for paragraph in article["paragraphs"]:
        for question in paragraph.get("qas", []):
            try:
                answers = question.get("answers", [])
                yield {
                    "id": str(question["id"]),
                    "title": article.get("title", ""),
                    "context": paragraph["context"],
                    "question": question["question"],
                    "answers": {
                        "text": [answer["text"] for answer in answers],
                        "answer_start": [answer["answer_start"] for answer in answers],
                    },
                }
            except (KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"{path}, record {number}, question {str(question)[:60]}: {error} is missing. A question needs id, "
                    "question and answers (each with text and answer_start), its paragraph a context."
                ) from error


# Lines


def numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    """`(line, text with its line end)`. A byte order mark is left out; another encoding than UTF-8 is a DataError."""
    with open(path, "rb") as file:
        for line, data in enumerate(file, start=1):
            try:
                yield line, data.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {line}, byte {error.start + 1}: {data[error.start : error.end]!r} is not UTF-8. "
                    "Save the file as UTF-8."
                ) from error


def _filled_lines(path: str) -> Iterator[tuple[int, str]]:
    return ((line, text) for line, text in numbered_lines(path) if text.strip())
