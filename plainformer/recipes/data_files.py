"""One reader for each file format, and what is wrong with a file as a DataError that names the line and the remedy.

A reader is a generator of `(place, row)`: where the row starts, counted from 1, as "line 7" or "record 7" (of a JSON
array), and the row as a dictionary. It stops at the first line that is not right.
"""

import csv
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from .errors import DataError

EXTENSIONS = {
    **{".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".txt": "text", ".text": "text"},
    **{".parquet": "parquet", **dict.fromkeys((".conll", ".conllu", ".bio", ".iob", ".iob2"), "conll")},
}
FORMATS = tuple(dict.fromkeys(EXTENSIONS.values()))
DELIMITERS = {"csv": ",", "tsv": "\t"}
MAX_FIELD = 2**31 - 1  # characters in one CSV field; the csv module's own limit is 131,072, which a long text exceeds

Row = dict[str, Any]
Rows = Iterator[tuple[str, Row]]


def file_format(path: str, given: str | None = None) -> str:
    """The name of the format that `path` is read as: the `given` one, or what the extension says."""
    extension = Path(path).suffix.lower()
    if given is None and extension not in EXTENSIONS:
        remedy = f"Rename it to one of {' '.join(EXTENSIONS)}, or give --file_format ({', '.join(FORMATS)})."
        raise DataError(f"{path}: what {extension or 'a file without extension'} holds is not known. {remedy}")
    return given or EXTENSIONS[extension]


def read_rows(kind: str, path: str) -> Rows:
    """The rows of a file that is not Parquet."""
    if kind in DELIMITERS:
        return read_csv(path, DELIMITERS[kind])
    return {"json": read_json, "text": read_text, "conll": read_conll}[kind](path)


def read_csv(path: str, delimiter: str) -> Rows:
    """A CSV or TSV file with a header. A quoted field may span lines."""
    csv.field_size_limit(MAX_FIELD)
    reader = csv.reader((text for _, text in numbered_lines(path)), delimiter=delimiter, strict=True)
    header, line = None, 1
    try:
        for cells in reader:
            if header is None:
                header = _check_header(path, cells)
            elif len(cells) not in (0, len(header)):
                fields = f"{len(cells)} field{'s' * (len(cells) > 1)}, but the header has {len(header)}"
                remedy = "Fill in what is missing; an empty field needs its delimiter too."
                if len(cells) > len(header):
                    remedy = "Put a field that holds the delimiter in double quotes."
                raise DataError(f"{path}, line {line}: {fields} ({', '.join(header)}). {remedy}")
            elif cells:
                yield f"line {line}", dict(zip(header, cells, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        remedy = "Put a field that holds a quote in double quotes, and write the quote twice."
        raise DataError(f"{path}, line {line}: {error}. {remedy}") from error


def _check_header(path: str, header: list[str]) -> list[str]:
    if not header or "" in header or len(set(header)) < len(header):
        names = ", ".join(map(repr, header)) or "is blank: it"
        raise DataError(f"{path}, line 1: the header {names} must name every column, and each once.")
    return header


def read_text(path: str) -> Rows:
    """`{"text": ...}` for every line that is not blank."""
    for line, text in _filled_lines(path):
        yield f"line {line}", {"text": text.strip()}


def count_blank_lines(path: str) -> int:
    """The lines of a text file that `read_text` leaves out."""
    return sum(not text.strip() for _, text in numbered_lines(path))


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
            if len(columns) != width or not all(map(str.strip, columns)):
                problem = f"{len(list(filter(str.strip, columns)))} columns ({' '.join(columns)[:40]!r})"
                remedy = "Write one token a line with its tag last, and a blank line between sentences."
                raise DataError(f"{path}, line {line}: {problem}, but line {first} has {width}. {remedy}")
            start = start if rows else line
            if not is_conllu or width != 10:
                rows.append(columns)
            elif columns[0].isdigit():  # 1-2 joins two words that have lines of their own, 2.1 is not in the text
                rows.append([columns[1], columns[3]])
        elif rows and not is_comment:
            tags = {"tags": [columns[-1] for columns in rows]} if len(rows[0]) > 1 else {}
            yield f"line {start}", {"tokens": [columns[0] for columns in rows], **tags}
            rows = []


def _shapes_between_blanks(path: str) -> set[tuple[int, str]]:
    """The number of columns, and the tag, of each line that can be no comment and has blanks between its columns.

    `# O` is then a token where there are others of two columns with the tag O, and `# newdoc` a comment.
    """
    lines = (text.split() for _, text in _filled_lines(path) if not text.startswith("# ") and "\t" not in text)
    return {(len(columns), columns[-1]) for columns in lines}


def is_json_lines(path: str) -> bool:
    """Whether there is one object a line; or else the whole file is one array or one object."""
    _, first = next(_filled_lines(path), (0, ""))
    try:
        value = json.loads(first)
    except json.JSONDecodeError as error:  # at its end: the object, or the array, goes on in the next line
        return error.pos < len(first.rstrip())
    return isinstance(value, dict) and not isinstance(value.get("data"), list)


def read_json(path: str) -> Rows:
    """JSON lines; or an array of objects, or an object that holds one as `data`.

    What SQuAD nests as `data`, `paragraphs`, `qas` comes as flat rows: `id`, `title`, `context`, `question`, `answers`.
    """
    if is_lines := is_json_lines(path):
        records = ((f"line {line}", _parse(path, text, line)) for line, text in _filled_lines(path))
    else:
        content = _parse(path, "".join(text for _, text in numbered_lines(path)))
        content = content.get("data") if isinstance(content, dict) else content
        if not isinstance(content, list):
            raise DataError(f"{path} holds no array of objects, and no object with one as 'data': rewrite it so.")
        records = ((f"record {number}", record) for number, record in enumerate(content, start=1))
    for place, record in records:
        if not isinstance(record, dict):
            raise DataError(f"{path}, {place}: {str(record)[:40]!r} is no JSON object: write {{...}}.")
        is_nested = not is_lines and "paragraphs" in record
        for row in _flatten_squad(f"{path}, {place}", record) if is_nested else [record]:
            yield place, row


def _parse(path: str, text: str, line: int = 1) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}, line {line + error.lineno - 1}, column {error.colno}"
        raise DataError(f"{where}: not JSON ({error.msg}). Correct the line.") from error


def check_json_lines(path: str) -> None:
    """Raise a DataError for the first line that is no JSON object, or in which a value changes its type."""
    types: dict[str, tuple[type, str]] = {}
    for line, row in read_json(path):
        for name, value in row.items():
            kind = float if isinstance(value, int) and not isinstance(value, bool) else type(value)
            seen, first = types.setdefault(name, (kind, line)) if value is not None else (kind, line)
            if seen is not kind:
                problem = f"{name!r} is {value!r}, of type {kind.__name__}"
                remedy = f"but on {first} it is of type {seen.__name__}. Give it one type throughout."
                raise DataError(f"{path}, {line}: {problem}, {remedy}")


def _flatten_squad(where: str, article: Row) -> Iterator[Row]:
    for paragraph in article["paragraphs"]:
        for question in paragraph.get("qas", []):
            try:
                answers = question.get("answers", [])
                yield {
                    "id": str(question["id"]),
                    "title": article.get("title", ""),
                    "context": paragraph["context"],
                    "question": question["question"],
                    "answers": {name: [answer[name] for answer in answers] for name in ("text", "answer_start")},
                }
            except (KeyError, TypeError, AttributeError) as error:
                needs = "A question needs id, question, answers (each with text and answer_start) and a context."
                raise DataError(f"{where}, question {str(question)[:60]}: {error} is missing. {needs}") from error


def numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    """`(line, text with its line end)`. A byte order mark is left out; another encoding than UTF-8 is a DataError."""
    with open(path, "rb") as file:
        for line, data in enumerate(file, start=1):
            try:
                yield line, data.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                problem = f"{data[error.start : error.end]!r} is not UTF-8. Save the file as UTF-8."
                raise DataError(f"{path}, line {line}, byte {error.start + 1}: {problem}") from error


def _filled_lines(path: str) -> Iterator[tuple[int, str]]:
    return ((line, text) for line, text in numbered_lines(path) if text.strip())
