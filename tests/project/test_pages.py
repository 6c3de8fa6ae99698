"""Pages of documentation: every link leads somewhere, and the Chinese pages keep step with the English ones."""

import re
from collections import Counter
from pathlib import Path

import pytest
from helpers.pages import ROOT, blocks, headings, links, slugs, tables, without_code

TRANSLATED = {ROOT / "README.md": ROOT / "README_zh.md"}
TRANSLATED |= {ROOT / "docs" / path.name: path for path in (ROOT / "docs" / "zh").glob("*.md")}
ENGLISH = {chinese: english for english, chinese in TRANSLATED.items()}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]

PAIRS = pytest.mark.parametrize("english", TRANSLATED, ids=lambda path: path.stem.lower())


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def targets(page: Path) -> Counter:
    """What a page links to; a translation counts as its original, and a heading as its number on the page."""
    found = Counter()
    for target, anchor in links(page, read(page)):
        number = slugs(read(target)).index(anchor) if anchor and target.suffix == ".md" else None
        found[ENGLISH.get(target, target), number] += 1
    return found


def numbers(cell: str) -> list[str]:
    """The numbers of a cell of a table; not those in the address of a link."""
    return sorted(re.findall(r"\d+(?:\.\d+)?", re.sub(r"\]\([^)]*\)", "]", cell)))


def code_spans(text: str) -> set[str]:
    return {" ".join(span.split()) for span in re.findall(r"`([^`]+)`", without_code(text))}


def decimals(text: str) -> set[str]:
    return set(re.findall(r"\d+\.\d+", without_code(text)))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for target, anchor in links(page, read(page)):
        assert target.exists(), target
        if anchor and target.suffix == ".md":
            assert anchor in slugs(read(target)), f"{target.name} has no heading #{anchor}"


def test_the_pages_that_learners_need_are_translated():
    names = {path.relative_to(ROOT).as_posix() for path in TRANSLATED}
    assert names >= {"README.md", "docs/walkthrough.md", "docs/recipes.md", "docs/performance.md"}


@PAIRS
def test_a_page_and_its_translation_lead_to_each_other(english):
    chinese = TRANSLATED[english]
    for page, other in ((english, chinese), (chinese, english)):
        first = "\n".join(read(page).splitlines()[:4])
        assert (other, "") in list(links(page, first)), f"the first lines of {page} do not link to {other.name}"
    others = Counter(target for target, _ in links(chinese, read(chinese)) if target in TRANSLATED)
    assert others == {english: 1}, "a Chinese page links to English ones that have a translation"


@PAIRS
def test_a_translation_has_the_same_parts(english):
    ours, theirs = read(english), read(TRANSLATED[english])
    assert [level for level, _ in headings(ours)] == [level for level, _ in headings(theirs)]
    assert blocks(ours) == blocks(theirs)
    assert targets(english) == targets(TRANSLATED[english])
    assert code_spans(ours) == code_spans(theirs)
    assert decimals(ours) == decimals(theirs)


@PAIRS
def test_a_translation_has_the_same_tables(english):
    ours, theirs = tables(read(english)), tables(read(TRANSLATED[english]))
    assert [len(rows) for rows in ours] == [len(rows) for rows in theirs]
    for rows, translated in zip(ours, theirs, strict=True):
        for row, other in zip(rows, translated, strict=True):
            assert [numbers(cell) for cell in row] == [numbers(cell) for cell in other], (row, other)


def test_the_parts_of_a_page_are_found(tmp_path):
    page = tmp_path / "page.md"
    text = "# A `b` (c): d\n\n```python\n# no heading\n```\n\n## 词元，与 x\n\n"
    text += "| a | `b \\| c` |\n| --- | --- |\n| 1 | 2.5 |\n"
    assert headings(text) == [(1, "A `b` (c): d"), (2, "词元，与 x")] and slugs(text) == ["a-b-c-d", "词元与-x"]
    assert tables(text) == [[["a", "`b \\| c`"], ["1", "2.5"]]]
    assert list(links(page, "[a](b.md#c) ![d](e/f.png) [g](#h) [i](https://j)")) == [
        (tmp_path / "b.md", "c"),
        (tmp_path / "e" / "f.png", ""),
        (page, "h"),
    ]
