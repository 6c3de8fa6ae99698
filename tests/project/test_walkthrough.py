"""docs/walkthrough.md runs as one program, prints what it says, and quotes lines that are there.

`python tests/helpers/pages.py` brings the page up to date.
"""

import pytest
from helpers.pages import (
    WALKTHROUGHS,
    differences,
    line_links,
    line_numbers,
    printed_by,
    programs,
    quotes,
    with_line_numbers,
    with_outputs,
)

PAGE = WALKTHROUGHS[0]


def test_the_program_prints_what_the_page_says(tmp_path, monkeypatch):
    """The program also compares each step by hand with what the model computes, and stops where they differ."""
    code, expected = programs(PAGE.read_text(encoding="utf-8"))
    assert len(code) > 20 and sum("assert_close(" in block for block in code) > 15
    monkeypatch.chdir(tmp_path)
    printed = printed_by(code, PAGE.name)
    wrong = [line for pair in zip(expected, printed, strict=True) for line in differences(*pair)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", WALKTHROUGHS, ids=["english", "chinese"])
def test_each_quoted_line_is_where_the_link_leads(page):
    """And a link without its line leads to one that is quoted elsewhere on the page."""
    text = page.read_text(encoding="utf-8")
    quoted = list(quotes(page, text))
    assert len(quoted) > 60
    remedy = "run python tests/helpers/pages.py"
    for file, number, line, name in quoted:
        assert number in line_numbers(file, line), (
            f"{name}: line {number} is not {line!r}: {remedy}, or quote another line"
        )
        assert name == f"{file.name}:{number}", f"the link {name} leads to {file.name}:{number}: {remedy}"
    known = {(file, number) for file, number, _, _ in quoted}
    assert [link for link in line_links(page, text) if link not in known] == []


def test_the_checks_find_what_is_wrong(tmp_path):
    assert differences("a [2]\n  0.12 -0.00\n", "a [2]\n 0.13  0.00\n") == []
    for printed in ("a [2]\n 0.14 0.00\n", "a [3]\n 0.12 0.00\n", "a [2]\n 0.12\n", "a [2]\n 0.12 0.0\n", "a [2]\n"):
        assert len(differences("a [2]\n 0.12 0.00\n", printed)) == 1, printed

    page, file = tmp_path / "page.md", tmp_path / "code.py"
    text = "[code.py:1](code.py#L1)\n`x = 1` and [elsewhere](code.py#L1)"
    file.write_text("import y\nx = 1  # one\nif x:\n    x = 1\n")
    assert list(quotes(page, text)) == [(file, 1, "x = 1", "code.py:1")] and line_numbers(file, "x = 1") == [2, 4]
    assert with_line_numbers(page, text) == text.replace(":1", ":2").replace("L1", "L2")

    text = "```python\nx = 1\n```\n\n```python\nprint(x)\n```\n\n```text\n2\n```"
    code, expected = programs(text)
    assert expected == ["", "2\n"] and printed_by(code, "page") == ["", "1\n"]
    assert with_outputs(text, ["", "1\n"]) == text.replace("2", "1")
