"""One reader for each file format, and what is wrong with a file as a DataError that names the line and the remedy.

A reader is a generator of `(place, row)`: where the row starts, counted from 1, as "line 7", "record 7" (of a JSON
array) or "row 7" (of Parquet), and the row as a dictionary. It stops at the first line that is not right. It opens the
file itself: a library that takes paths for patterns would read another file in the place of `train[12].jsonl`.
"""

import csv
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pyarrow as pa
from pyarrow import compute, parquet

from .errors import DataError
from .json_files import find_types, fit, read_json
from .lines import Row, Rows, filled_lines, numbered_lines, refuse_carriage_returns

EXTENSIONS = {
    **{".csv": "csv", ".tsv": "tsv", ".json": "json", ".jsonl": "json", ".txt": "text", ".text": "text"},
    **{".parquet": "parquet", **dict.fromkeys((".conll", ".conllu", ".bio", ".iob", ".iob2"), "conll")},
}
FORMATS = tuple(dict.fromkeys(EXTENSIONS.values()))
DELIMITERS = {"csv": ",", "tsv": "\t"}
DELIMITER_NAMES = {"\t": "tab"}  # how a delimiter is written on the command line
QUOTINGS = ("double", "literal")
BLANKS = " \t\n\r\f\v"  # between the columns of CoNLL
MAX_FIELD = 2**31 - 1  # characters in one CSV field; the csv module's own limit is 131,072, which a long text exceeds
MOST_VALUES = 1000  # of a column that are remembered; labels are fewer
QUOTING_REMEDY = "Give --quoting literal if quotes are text, or --quoting double if a field in quotes may be so."
COMPRESSED = re.compile(rb"\x1f\x8b|PK\x03\x04|BZh\d1AY&SY|\xfd7zXZ|\x28\xb5\x2f\xfd")  # gzip, zip, bzip2, xz, zstd

Note = Callable[[str], None]  # takes what the user should know about a file that is right


def file_format(path: str, given: str | None = None) -> str:
    """The name of the format that `path` is read as: the `given` one, or what the extension says."""
    extension = Path(path).suffix.lower()
    if given is None and extension not in EXTENSIONS:
        remedy = f"Rename it to one of {' '.join(EXTENSIONS)}, or give --file_format ({', '.join(FORMATS)})."
        raise DataError(f"{path}: what {extension or 'a file without extension'} holds is not known. {remedy}")
    return given or EXTENSIONS[extension]


def read_rows(
    kind: str, path: str, delimiter: str | None = None, quoting: str | None = None, note: Note = lambda text: None
) -> Rows:
    """The rows of a file. `delimiter` and `quoting` are for CSV and TSV, as in `read_csv`."""
    if kind in DELIMITERS:
        return read_csv(path, DELIMITERS[kind], delimiter, quoting, note)
    return {"json": read_json, "text": read_text, "conll": read_conll, "parquet": read_parquet}[kind](path)


def find_schema(kind: str, path: str, note: Note, **options: str | None) -> pa.Schema | None:
    """The columns of a whole file and their types, or None if it has no rows; what is wrong with it is a DataError.

    JSON and Parquet have types of their own. A CSV file says nothing about types. Guessed ones depend on the rest of
    the column: a review "1984" would be a number, and the label "NA" a missing value. So all else is text.
    """
    if kind == "parquet":
        return parquet_schema(path, note)
    rows = read_rows(kind, path, note=note, **options)
    if kind == "json":
        return find_types(path, rows)
    first = None
    for _, row in rows:
        first = first or row
    types = {True: pa.list_(pa.string()), False: pa.string()}
    return pa.schema([(name, types[isinstance(value, list)]) for name, value in first.items()]) if first else None


def typed_rows(kind: str, path: str, schema: pa.Schema, **options: str | None) -> Iterator[Row]:
    """The rows of a file with the columns, and the types, of a schema."""
    row_type = pa.struct(list(schema))
    rows = read_parquet(path, schema.names) if kind == "parquet" else read_rows(kind, path, **options)
    for _, row in rows:
        yield fit(row, row_type) if kind == "json" else row


def read_csv(
    path: str, usual: str, delimiter: str | None = None, quoting: str | None = None, note: Note = lambda text: None
) -> Rows:
    """A CSV or TSV file with a header and `delimiter`s (None: the `usual` one). Columns without a name are left out.

    With the quoting "double" a field may stand in double quotes, and then span lines. With "literal", quotes are
    characters like any other. None is "double"; but a field that holds what looks like rows is a DataError, and between
    tabs, where quoting is rare, any field that spans lines. `note` gets a line about what is left out or spans lines.
    """
    header, kept = None, []
    for line, cells in _split_lines(path, usual, delimiter, quoting, note):
        if header is None:
            header = cells
            _check_delimiter(path, header, usual, delimiter)
            kept = _named_columns(path, header, note)
        elif len(cells) not in (0, len(header)):
            fields = f"{len(cells)} field{'s' * (len(cells) > 1)}, but the header has {len(header)}"
            remedy = "Fill in what is missing; an empty field needs its delimiter too."
            if len(cells) > len(header):
                remedy = "Put a field that holds the delimiter in double quotes."
            if len(cells) == len(header) + 1:
                remedy += " If each row begins with its number, the header must begin with a delimiter."
            raise DataError(f"{path}, line {line}: {fields} ({', '.join(header)}). {remedy}")
        elif cells:
            yield f"line {line}", {header[index]: cells[index] for index in kept}


def _split_lines(
    path: str, usual: str, delimiter: str | None, quoting: str | None, note: Note
) -> Iterator[tuple[int, list[str]]]:
    """The line where each row starts, and its cells."""
    given, delimiter = delimiter, delimiter or usual
    if quoting == "literal":
        for line, text in numbered_lines(path):
            refuse_carriage_returns(path, line, text)
            text = text.rstrip("\r\n")
            yield line, text.split(delimiter) if text else []
        return
    csv.field_size_limit(MAX_FIELD)
    lines: list[str] = []  # of the row that is read
    reader = csv.reader(_kept(path, lines), delimiter=delimiter, strict=True)
    line, fields = 1, QuotedLines(path, delimiter, note)
    try:
        for cells in reader:
            if quoting is None and delimiter == "\t" and len(lines) > 1:
                problem = f"a field begins with a double quote, and the next one is on line {reader.line_num}"
                raise DataError(f"{path}, line {line}: {problem}. {QUOTING_REMEDY}")
            fields.add(line, lines, cells)
            yield line, cells
            lines.clear()
            line = reader.line_num + 1
    except csv.Error as error:
        if line == 1:
            refuse_carriage_returns(path, line, lines[0])
            _check_delimiter(path, lines[0].rstrip().split(usual), usual, given)
        problem = "a carriage return is in a field without quotes" if "new-line" in str(error) else str(error)
        remedy = "Put a field that holds a quote or a line break in double quotes, and write a quote in it twice; "
        remedy += "or give --quoting literal if quotes are text like any other."
        raise DataError(f"{path}, line {line}: {problem}. {remedy}") from error
    fields.report(may_hold_rows=quoting is not None)


def _kept(path: str, lines: list[str]) -> Iterator[str]:
    """The lines of a file, each also added to `lines`."""
    for _, text in numbered_lines(path):
        lines.append(text)
        yield text


class QuotedLines:
    """Watches the fields in quotes that span lines: a lone quote may have swallowed whole rows up to the next one.

    Such rows are known by this: each line has as many cells as any row, and in one column they have nothing but values
    that rows on one line have there too, as labels are.
    """

    def __init__(self, path: str, delimiter: str, note: Note):
        self.path, self.delimiter, self.note = path, delimiter, note
        self.values: dict[int, set[str]] = {}  # by column, of rows on one line
        self.spans: list[tuple[int, int]] = []  # the first line, and how many follow
        self.suspects: list[tuple[int, list[list[str]]]] = []  # the first line, and the cells of each line

    def add(self, line: int, lines: list[str], cells: list[str]) -> None:
        """One more row: where it starts, its lines as they are in the file, and its cells."""
        if len(lines) == 1:
            for index, cell in enumerate(cells):
                values = self.values.setdefault(index, set())
                if cell.strip() and len(values) < MOST_VALUES:
                    values.add(cell)
            return
        self.spans.append((line, len(lines) - 1))
        parts = [text.rstrip("\r\n").split(self.delimiter) for text in lines]
        if all(len(part) == len(cells) for part in parts):
            self.suspects.append((line, parts))

    def report(self, may_hold_rows: bool) -> None:
        """Say how many rows span lines; a DataError for the first that holds rows, unless these may."""
        for line, parts in self.suspects:
            columns = map(set, zip(*parts, strict=True))
            is_known = any(cells <= self.values.get(index, set()) for index, cells in enumerate(columns))
            if is_known and not may_hold_rows:
                problem = f"the quotes that begin here hold {len(parts)} lines which look like rows of their own"
                raise DataError(f"{self.path}, line {line}: {problem}. {QUOTING_REMEDY}")
        if self.spans:
            line, more = max(self.spans, key=lambda span: span[1])
            count = f"{len(self.spans)} row{'s' * (len(self.spans) > 1)} with line breaks in quotes"
            lines = f"the longest from line {line} to line {line + more}"
            self.note(f"{self.path}: {count}, {lines} (give --quoting literal if quotes are text)")


def _check_delimiter(path: str, header: list[str], usual: str, given: str | None) -> None:
    """Raise a DataError where another delimiter than the usual one parts the header into more names."""
    if given is not None:
        return
    text = usual.join(header)
    other = max(",;\t|", key=text.count)
    if text.count(other) > text.count(usual):
        flags = [f"--delimiter {DELIMITER_NAMES.get(delimiter, repr(delimiter))}" for delimiter in (other, usual)]
        remedy = f"Give {flags[0]}; or {flags[1]}, if the names are right so."
        problem = f"the header {text[:80]!r} seems to have {other!r} between its names, not {usual!r}"
        raise DataError(f"{path}, line 1: {problem}. {remedy}")


def _named_columns(path: str, header: list[str], note: Note) -> list[int]:
    """The indices of the columns that have a name; pandas and R write row numbers into a column without."""
    kept = [index for index, name in enumerate(header) if name.strip()]
    if not kept or len({header[index] for index in kept}) < len(kept):
        names = ", ".join(map(repr, header)) or "is blank: it"
        raise DataError(f"{path}, line 1: the header {names} must name every column, and each once.")
    if unnamed := [str(index + 1) for index in range(len(header)) if index not in kept]:
        note(f"{path}: left out, since the header gives no name to it: column {', '.join(unnamed)} of {len(header)}")
    return kept


def read_text(path: str) -> Rows:
    """`{"text": ...}` for every line that is not blank."""
    for line, text in filled_lines(path):
        refuse_carriage_returns(path, line, text)
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
        refuse_carriage_returns(path, line, text)
        cells = _split_at_blanks(text)
        is_comment = text.startswith("# ") and (len(cells), cells[-1]) not in shapes
        if text.strip() and not is_comment and not text.startswith("-DOCSTART-"):
            columns = text.rstrip(BLANKS).split("\t") if "\t" in text else cells
            width, first = width or len(columns), first or line
            filled = [column for column in columns if column.strip(BLANKS)]
            if len(columns) != width or len(filled) < width:
                problem = f"{len(filled)} columns ({' '.join(columns)[:40]!r})"
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
    lines = (text for _, text in filled_lines(path) if not text.startswith("# ") and "\t" not in text)
    return {(len(columns), columns[-1]) for columns in map(_split_at_blanks, lines)}


def _split_at_blanks(text: str) -> list[str]:
    """The cells between blanks of ASCII: others, such as the no-break space, are characters of a token."""
    return [cell for cell in re.split(f"[{BLANKS}]+", text) if cell]


def parquet_schema(path: str, note: Note = lambda text: None) -> pa.Schema | None:
    """The columns of a Parquet file with their types, or None if it has no rows. Categories are what they stand for.

    Columns of types that no recipe reads, such as maps, are left out, and `note` gets a line about each.
    """
    with _explained(path), open(path, "rb") as file:
        content = parquet.ParquetFile(file)
        schema, count = content.schema_arrow, content.metadata.num_rows
        odd = {field.name: str(field.type)[:80] for field in schema if not _is_readable(field.type)}
        unsigned = [field.name for field in schema if field.type == pa.uint64()]
        odd |= {name: "numbers of 2^63 and more" for name in unsigned if _is_beyond_int64(content, name)}
    twice = [name for name in schema.names if schema.names.count(name) > 1]
    if twice:
        raise DataError(f"{path} has two columns {twice[0]!r}. Name each column once.")
    for name, what in odd.items():
        note(f"{path}: left out column {name!r}, which holds {what}: write texts, numbers or lists there to use it")
        schema = schema.remove(schema.get_field_index(name))
    if not len(schema):
        raise DataError(f"{path} has no column of texts, numbers or lists. Write some.")
    for index, field in enumerate(schema):
        if pa.types.is_dictionary(field.type):
            schema = schema.set(index, field.with_type(field.type.value_type))
    return schema if count else None


def _is_readable(kind: pa.DataType) -> bool:
    """Whether a column of this type becomes values of Python that `datasets` has a type for."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind) or types.is_dictionary(kind):
        return _is_readable(kind.value_type)
    if types.is_struct(kind):
        return all(_is_readable(field.type) for field in kind)
    is_text = (
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )
    return is_text or types.is_primitive(kind) or types.is_decimal(kind) or types.is_null(kind)


def _is_beyond_int64(content: parquet.ParquetFile, name: str) -> bool:
    batches = content.iter_batches(columns=[name])
    return any((compute.max(batch.column(0)).as_py() or 0) >= 2**63 for batch in batches)


def read_parquet(path: str, columns: list[str] | None = None) -> Rows:
    """The rows of a Parquet file, with these columns or with all."""
    number = 0
    with _explained(path), open(path, "rb") as file:
        content = parquet.ParquetFile(file)
        columns = columns or content.schema_arrow.names
        for batch in content.iter_batches(batch_size=1000, columns=columns):
            for row in batch.select(columns).to_pylist():
                number += 1
                yield f"row {number}", row


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} is not a readable Parquet file: {' '.join(str(error).split()).rstrip('.')}. Write it again."
        ) from error
