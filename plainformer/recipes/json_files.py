"""JSON: rows one by one, however large the file is, and the type of each column over all of them.

A library that guesses the types from the first rows fails at a later one that has another, and may read a text as a
date. So a file is read twice: `find_types` looks at every value, and then the rows are read with types that fit all.
"""

import codecs
import json
import math
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from .errors import DataError
from .lines import Row, Rows, filled_lines, not_utf_8, refuse_utf_16

BLOCK = 2**20  # bytes that are read at once
BLANKS = re.compile(r"[ \t\n\r]*")
TOKEN_LENGTH = 12  # characters, of a surrogate pair: an error that is nearer to the end may be the end's
MOST_FIELDS = 10_000  # of one object: each row has a place for every one of them
SCALARS = {str: pa.string(), bool: pa.bool_(), int: pa.int64(), float: pa.float64()}


def read_json(path: str) -> Rows:
    """JSON lines; or an array of objects, or an object that holds one as `data`.

    What SQuAD nests as `data`, `paragraphs`, `qas` comes as flat rows: `id`, `title`, `context`, `question`, `answers`.
    """
    if is_lines := is_json_lines(path):
        records = ((f"line {line}", _decode_line(path, line, text)) for line, text in filled_lines(path))
    else:
        records = ((f"record {number}", record) for number, record in enumerate(_items(path), start=1))
    for place, record in records:
        if not isinstance(record, dict):
            raise DataError(f"{path}, {place}: {str(record)[:40]!r} is no JSON object: write {{...}}.")
        is_nested = not is_lines and "paragraphs" in record
        for row in _flatten_squad(f"{path}, {place}", record) if is_nested else [record]:
            yield place, row


def is_json_lines(path: str) -> bool:
    """Whether there is one object a line; or else the whole file is one array, or one object that holds one."""
    stream = JsonStream(path)
    try:
        return stream.peek() != "[" and not (stream.peek() == "{" and stream.enter_data())
    except NotJsonError:  # reading the lines says more
        return True


class NotJsonError(DataError):
    """A text that is not JSON."""


class UniqueKeysError(ValueError):
    """An object has a key twice."""


def _to_object(pairs: list[tuple[str, Any]]) -> Row:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise UniqueKeysError(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return row


DECODER = json.JSONDecoder(object_pairs_hook=_to_object)


def _explain(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply. Write it flat."
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg}). Correct the line."
    return f"{error if isinstance(error, UniqueKeysError) else 'a number has too many digits'}. Correct the line."


def _decode_line(path: str, line: int, text: str) -> Any:
    text = text.rstrip()
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        where, problem = f"{path}, line {line}", _explain(error)
        if isinstance(error, json.JSONDecodeError):
            where += f", column {error.colno}"
            if error.pos >= len(text):
                problem = f"not JSON ({error.msg}): the line ends too early"
                problem += ". Write each object on one line of its own, or all of them in one array, [...]."
        raise DataError(f"{where}: {problem}") from error


class JsonStream:
    """The text of a JSON file, from which one value is taken after another; only what is not read yet is held."""

    def __init__(self, path: str):
        self.path, self.text, self.index = path, "", 0
        self.line, self.column = 1, 1  # of the text's start
        self.blocks = self._read_blocks()

    def _read_blocks(self) -> Iterator[str]:
        """Text blocks, as large as what is left of the one before, so that a long value is not begun too often."""
        decoder, line = codecs.getincrementaldecoder("utf-8-sig")(), 1
        with open(self.path, "rb") as file:
            while data := file.read(max(BLOCK, len(self.text))):
                if file.tell() == len(data):
                    refuse_utf_16(self.path, data.partition(b"\n")[0])
                yield self._decode(decoder, data, line)
                line += data.count(b"\n")
        yield self._decode(decoder, b"", line, final=True)

    def _decode(self, decoder: codecs.IncrementalDecoder, data: bytes, line: int, final: bool = False) -> str:
        try:
            return decoder.decode(data, final)
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
            raise DataError(f"{self.path}, line {line}: {not_utf_8(error)}") from error

    def _read_on(self) -> bool:
        """Drop what was read and add another block; False at the end of the file."""
        block = next(self.blocks, None)
        if block is not None:
            self.line, self.column = self._position(self.index)
            self.text, self.index = self.text[self.index :] + block, 0
        return block is not None

    def _position(self, index: int) -> tuple[int, int]:
        """The line and the column of a character of the text."""
        lines, last = self.text.count("\n", 0, index), self.text.rfind("\n", 0, index)
        return self.line + lines, index - last if lines else self.column + index

    def error(self, problem: str, index: int | None = None) -> NotJsonError:
        line, column = self._position(self.index if index is None else index)
        return NotJsonError(f"{self.path}, line {line}, column {column}: {problem}")

    def peek(self) -> str:
        """The next character that is no blank; "" at the end."""
        while True:
            self.index = BLANKS.match(self.text, self.index).end()
            if self.index < len(self.text):
                return self.text[self.index]
            if not self._read_on():
                return ""

    def take(self, characters: str) -> str:
        """The next character that is no blank, which has to be one of these."""
        found = self.peek()
        if not found or found not in characters:
            needed = " or ".join(map(repr, characters))
            raise self.error(f"not JSON ({found or 'the end'!r} instead of {needed}). Correct the line.")
        self.index += 1
        return found

    def value(self) -> Any:
        """The next value."""
        self.peek()
        while True:
            try:
                value, end = DECODER.raw_decode(self.text, self.index)
            except json.JSONDecodeError as error:
                is_cut = error.msg.startswith("Unterminated") or len(self.text) - error.pos <= TOKEN_LENGTH
                if not is_cut or not self._read_on():
                    raise self.error(_explain(error), error.pos) from error
            except (ValueError, RecursionError) as error:
                raise self.error(f"in the value that begins here, {_explain(error)}") from error
            else:
                if len(self.text) - end > TOKEN_LENGTH or not self._read_on():  # or else a number may go on
                    self.index = end
                    return value

    def enter_data(self) -> bool:
        """Go to the array that the next object holds as `data`; False behind the object if there is none."""
        self.take("{")
        while self.peek() != "}":
            if self.peek() != '"':
                raise self.error("not JSON (a key is missing). Correct the line.")
            key = self.value()
            self.take(":")
            if key == "data" and self.peek() == "[":
                return True
            self.value()
            if self.take(",}") == "}":
                return False
        self.take("}")
        return False


def _items(path: str) -> Iterator[Any]:
    """The values of the array that a file holds, or that its object holds as `data`."""
    stream = JsonStream(path)
    is_object = stream.peek() == "{"
    if is_object:
        stream.enter_data()
    stream.take("[")
    end = stream.take("]") if stream.peek() == "]" else ","
    while end != "]":
        yield stream.value()
        end = stream.take(",]")
    while is_object and stream.take(",}") == ",":
        stream.value()
        stream.take(":")
        stream.value()
    if stream.peek():
        remedy = "Put all objects into one array; or write one a line, where no list is called 'data'."
        raise stream.error(f"more follows behind the {'object' if is_object else 'array'}. {remedy}")


def _flatten_squad(where: str, article: Row) -> Iterator[Row]:
    needs = "A question needs id, question, answers (each with text and answer_start) and a context."
    question: Any = None
    try:
        for paragraph in article["paragraphs"]:
            for question in paragraph.get("qas", []):
                answers = question.get("answers", [])
                yield {
                    "id": str(question["id"]),
                    "title": article.get("title", ""),
                    "context": paragraph["context"],
                    "question": question["question"],
                    "answers": {name: [answer[name] for answer in answers] for name in ("text", "answer_start")},
                }
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else f"not SQuAD's form ({error})"
        raise DataError(f"{where}, question {str(question)[:60]}: {problem}. {needs}") from error


class Column:
    """The type of a column, or of a part of its values, as far as they have been seen."""

    def __init__(self, name: str):
        self.name, self.kind, self.first = name, None, ""  # the type of its values, and where the first one stands
        self.parts: dict[str, Column] = {}  # of lists their items, as ""; of objects their values

    def add(self, value: Any, place: str) -> None:
        """Take in one more value; a ValueError if it does not go with the others, or fits into no column at all."""
        if value is None:
            return
        kind = type(value)
        if kind is not self.kind:
            self._change_kind(kind, value, place)
        if kind is str:
            self._check_text(value)
        elif kind is int and not -(2**63) <= value < 2**63:
            raise ValueError(f"{self.name!r} is {str(value)[:60]}, more than 64 bits. Write it as text, in quotes.")
        elif kind is float and not math.isfinite(value):
            raise ValueError(f"{self.name!r} is {value}, which JSON does not have. Write null for what is missing.")
        elif kind is list:
            for item in value:
                self._part("").add(item, place)
        elif kind is dict:
            for key, item in value.items():
                self._part(key).add(item, place)

    def _change_kind(self, kind: type, value: Any, place: str) -> None:
        if self.kind is None:
            self.kind, self.first = kind, place
        elif {self.kind, kind} == {int, float}:
            self.kind = float
        else:
            problem = f"{self.name!r} is {repr(value)[:60]}, of type {kind.__name__}"
            remedy = f"but on {self.first} it is of type {self.kind.__name__}. Give it one type throughout."
            raise ValueError(f"{problem}, {remedy}")

    def _part(self, key: str) -> "Column":
        if key not in self.parts:
            self._check_text(key)
            if len(self.parts) == MOST_FIELDS:
                remedy = "Write such an object as a list of pairs, or leave it out."
                whose = f"the objects of {self.name!r}" if self.name else "the rows"
                raise ValueError(f"{whose} have more than {MOST_FIELDS:,} different keys. {remedy}")
            inner = f"{self.name}[]" if self.kind is list else f"{self.name}.{key}".lstrip(".")
            self.parts[key] = Column(inner)
        return self.parts[key]

    def _check_text(self, text: str) -> None:
        try:
            text.isascii() or text.encode()
        except UnicodeEncodeError as error:
            half = text[error.start : error.end].encode("ascii", "backslashreplace").decode()
            problem = f"{repr(self.name) if self.name else 'a key'} has {half}, which is half of a character"
            raise ValueError(f"{problem}. Remove it, or write the whole character.") from error

    def arrow_type(self) -> pa.DataType:
        """The type that all values seen so far have."""
        if self.kind is list:
            return pa.list_(self._part("").arrow_type())
        fields = [(name, part.arrow_type()) for name, part in self.parts.items()]
        return pa.struct(fields) if fields else SCALARS.get(self.kind, pa.null())


def find_types(path: str, rows: Rows) -> pa.Schema | None:
    """The columns that any row has, with types that fit the values of all rows; None if there are no rows."""
    root, place = Column(""), None
    for place, row in rows:
        try:
            root.add(row, place)
        except ValueError as error:
            raise DataError(f"{path}, {place}: {error}") from error
    if place and not root.parts:
        raise DataError(f"{path}: all objects are empty. Give each row its values.")
    return pa.schema(list(root.arrow_type())) if place else None


def fit(value: Any, kind: pa.DataType) -> Any:
    """A value with every key that others have, None where it has none, and whole numbers among others as such."""
    if value is None or pa.types.is_null(kind):
        return None
    if pa.types.is_floating(kind):
        return float(value)
    if pa.types.is_list(kind):
        return [fit(item, kind.value_type) for item in value]
    return {field.name: fit(value.get(field.name), field.type) for field in kind} if pa.types.is_struct(kind) else value
