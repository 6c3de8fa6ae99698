"""Pages of documentation: their parts, what their code prints, and their links to single lines of the package.

`python tests/helpers/pages.py` writes into the walkthrough and its translation what their code prints, and the numbers
of the lines that they quote.
"""

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WALKTHROUGHS = [ROOT / "docs" / "walkthrough.md", ROOT / "docs" / "zh" / "walkthrough.md"]

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]*\.py)#L(\d+)\)")
# A link that is named after the file and the line, and behind it the line itself.
QUOTE = re.compile(r"\[([\w/]+\.py):(\d+)\]\(([^)#\s]*\.py)#L(\d+)\)\s+`([^`]+)`")
NUMBER = re.compile(r"-?\d+\.\d+")


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of each code block, in order."""
    return BLOCK.findall(text)


def printed_by(code: list[str], name: str) -> list[str]:
    """What each of these blocks prints, run in order as one program."""
    namespace, printed = {"__name__": "__main__"}, []
    for block in code:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(block, name, "exec"), namespace)
        printed.append(output.getvalue())
    return printed


def programs(text: str) -> tuple[list[str], list[str]]:
    """The Python blocks of a page, and what the page says that each of them prints: the text block right behind it."""
    code, printed = [], []
    for language, block in blocks(text):
        if language == "python":
            code.append(block)
            printed.append("")
        elif language == "text":
            printed[-1] = block
    return code, printed


def differences(expected: str, printed: str) -> list[str]:
    """Where two outputs differ. Blanks do not count, and decimals may differ by one in their last printed digit."""
    wrong = []
    if len(expected.splitlines()) != len(printed.splitlines()):
        return [f"{len(expected.splitlines())} lines, but {len(printed.splitlines())} are printed"]
    for ours, theirs in zip(expected.splitlines(), printed.splitlines(), strict=True):
        same_words = NUMBER.sub("0.0", ours).split() == NUMBER.sub("0.0", theirs).split()
        pairs = zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=False)
        if not same_words or not all(is_close(*pair) for pair in pairs):
            wrong.append(f"{ours!r}, but {theirs!r} is printed")
    return wrong


def is_close(ours: str, theirs: str) -> bool:
    """Whether two printed decimals have the same digits, give or take one in the last."""
    digits = len(ours.partition(".")[2])
    return digits == len(theirs.partition(".")[2]) and abs(float(ours) - float(theirs)) < 1.5 * 10**-digits


def quotes(page: Path, text: str) -> Iterator[tuple[Path, int, str, str]]:
    """The file, line number and quoted line of each link to a line, and the name of the link."""
    for name, number, target, linked, line in QUOTE.findall(text):
        yield (page.parent / target).resolve(), int(linked), line, f"{name}:{number}"


def line_links(page: Path, text: str) -> list[tuple[Path, int]]:
    """The file and the line number of each link to a line."""
    return [((page.parent / target).resolve(), int(number)) for target, number in LINK.findall(text)]


def line_numbers(file: Path, line: str) -> list[int]:
    """The numbers of the lines that begin with a quoted one."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [number for number, text in enumerate(lines, start=1) if text.strip().startswith(line)]


def without_code(text: str) -> str:
    """The page without its code blocks."""
    return BLOCK.sub("", text)


def headings(text: str) -> list[tuple[int, str]]:
    """Level and words of each heading."""
    return [(len(marks), words) for marks, words in re.findall(r"^(#+) (.*)$", without_code(text), re.MULTILINE)]


def slugs(text: str) -> list[str]:
    """The name under which a link finds each heading, as GitHub makes it."""
    return [re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-") for _, words in headings(text)]


def tables(text: str) -> list[list[list[str]]]:
    """The cells of each row of each table; the line below the head is left out."""
    found, inside = [], False
    for line in without_code(text).splitlines():
        is_row = line.startswith("|")
        if is_row and not inside:
            found.append([])
        if is_row and not re.fullmatch(r"[|\s:-]+", line):
            found[-1].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))])
        inside = is_row
    return found


def links(page: Path, text: str) -> Iterator[tuple[Path, str]]:
    """The file and the heading (or "") of each link and picture of a page; links into the web are left out."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        if not target.startswith(("http:", "https:")):
            path, _, anchor = target.partition("#")
            yield (page.parent / path).resolve() if path else page, anchor


def with_line_numbers(page: Path, text: str) -> str:
    """The page with the line numbers of today; of several lines that fit it takes the one nearest to the old number."""
    moved = {}
    for file, old, line, _ in quotes(page, text):
        found = line_numbers(file, line)
        if found:
            moved[file, old] = min(found, key=lambda number: abs(number - old))

    def link(match: re.Match) -> str:
        file, old = (page.parent / match[1]).resolve(), int(match[2])
        return f"]({match[1]}#L{moved.get((file, old), old)})"

    return re.sub(r"\.py:\d+(\]\([^)#\s]*\.py#L(\d+)\))", r".py:\2\1", LINK.sub(link, text))


def with_outputs(text: str, printed: list[str]) -> str:
    """The page with what each Python block prints in the text block behind it."""
    left = iter(printed)

    def block(match: re.Match) -> str:
        nonlocal output
        if match[1] == "python":
            output = next(left)
        return f"```text\n{output}```" if match[1] == "text" else match[0]

    output = ""
    return BLOCK.sub(block, text)


def main() -> None:
    """Bring the walkthrough and its translation up to date."""
    sys.path.insert(0, str(ROOT))
    code, _ = programs(WALKTHROUGHS[0].read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # the program writes a vocabulary
        printed = printed_by(code, "walkthrough.md")
        os.chdir(ROOT)
    for page in filter(Path.exists, WALKTHROUGHS):
        text = with_line_numbers(page, with_outputs(page.read_text(encoding="utf-8"), printed))
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    main()
