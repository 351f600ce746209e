"""The pages that everybody reads first are short, and prose ends at column 100."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.source_files import ROOT

WORDS_MAX = {"README.md": 600, "ARCHITECTURE.md": 2_000}
"""Two minutes, and ten."""

COLUMNS_MAX = 100
PAGES = [
    path
    for pattern in ("*.md", "docs/**/*.md", "tests/*.md", "examples/**/*.md")
    for path in sorted(ROOT.glob(pattern))
]
_NOT_WRAPPED = re.compile(r"\s*(\||#|<|!\[)")
"""Tables, headings, HTML and pictures have lines of their own."""


def long_lines(text: str) -> Iterator[str]:
    in_code = False
    for line in text.splitlines():
        in_code ^= line.lstrip().startswith("```")
        breaks = " " in re.sub(r"`[^`]*`", "X", line.strip().removeprefix("- "))
        if len(line) > COLUMNS_MAX and not in_code and breaks and not _NOT_WRAPPED.match(line):
            yield line


@pytest.mark.parametrize("name", WORDS_MAX)
def test_a_first_page_is_short(name: str) -> None:
    assert len((ROOT / name).read_text().split()) <= WORDS_MAX[name]


def test_prose_ends_at_column_100() -> None:
    assert len(PAGES) > 40
    assert [
        f"{path.relative_to(ROOT)}: {line}"
        for path in PAGES
        for line in long_lines(path.read_text())
    ] == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("word " * 21, 1),
        ("word " * 20, 0),
        ("| " + "cell " * 30 + "|", 0),
        ("```\n" + "code " * 30 + "\n```\n" + "word " * 30, 1),
        ("- " + "x" * 120, 0),
    ],
)
def test_only_prose_that_can_be_wrapped_is_found(text: str, count: int) -> None:
    assert len(list(long_lines(text))) == count
