"""The lines of a text file with their numbers, and what is no text as a DataError that names the line."""

from collections.abc import Iterator
from typing import Any

from .errors import DataError

Row = dict[str, Any]
Rows = Iterator[tuple[str, Row]]


def numbered_lines(path: str) -> Iterator[tuple[int, str]]:
    """`(line, text with its line end)`. A byte order mark is left out; another encoding than UTF-8 is a DataError."""
    with open(path, "rb") as file:
        for line, data in enumerate(file, start=1):
            if line == 1:
                refuse_utf_16(path, data)
            try:
                yield line, data.decode("utf-8-sig" if line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{path}, line {line}, byte {error.start + 1}: {not_utf_8(error)}") from error


def filled_lines(path: str) -> Iterator[tuple[int, str]]:
    """The numbered lines that hold more than blanks."""
    return ((line, text) for line, text in numbered_lines(path) if text.strip())


def refuse_utf_16(path: str, start: bytes) -> None:
    """Raise a DataError if the file's first bytes are not those of UTF-8: one of ASCII's characters would be two."""
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in start:
        raise DataError(f"{path}, line 1: this is UTF-16 or no text at all. Save the file as UTF-8.")


def refuse_carriage_returns(path: str, line: int, text: str) -> None:
    """Raise a DataError if the first line has carriage returns in it: they may be what ends all lines."""
    if line == 1 and "\r" in text.rstrip("\r\n"):
        problem = "a carriage return is in the first line. If the lines of the file end with it alone"
        raise DataError(f"{path}, line 1: {problem}, save it with line feeds (Unix) or both (Windows).")


def not_utf_8(error: UnicodeDecodeError) -> str:
    """What is wrong, and the remedy."""
    return f"{error.object[error.start : error.end]!r} is not UTF-8. Save the file as UTF-8."
