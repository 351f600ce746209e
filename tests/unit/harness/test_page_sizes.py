"""The pages that everybody reads first are short, prose ends at column 100, and the changelog has
one line for a change."""

from __future__ import annotations

import itertools
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


_RELEASE = re.compile(r"## (\d+)\.(\d+)\.(\d+)( - \d{4}-\d{2}-\d{2})?")
"""A semantic version, and its day."""


def changelog_faults(text: str) -> Iterator[str]:
    """Bullets that are no single line, and headings that are no versions, newest first."""
    lines = text.splitlines()
    for before, line in itertools.pairwise(lines):
        if line.startswith("- ") and len(line) > COLUMNS_MAX:
            yield f"one line of at most {COLUMNS_MAX} columns for a change: {line}"
        if before.startswith("- ") and line and not line.startswith("- "):
            yield f"a change is one line; this continues one: {line}"
        if re.match(r"\s+[-*] |\* ", line):
            yield f"a change begins with '- ' at the first column: {line}"
    releases = [line for line in lines if line.startswith("## ")]
    if releases[:1] != ["## Unreleased"]:
        yield "'## Unreleased' is the first heading"
    versions = []
    for heading in releases[1:]:
        if found := _RELEASE.fullmatch(heading):
            versions.append(tuple(int(number) for number in found.groups()[:3]))
        else:
            yield f"a heading is a semantic version and its day: {heading}"
    if versions != sorted(set(versions), reverse=True):
        yield "the newest version is on top, each once"


def test_a_change_is_one_line_of_the_changelog() -> None:
    assert list(changelog_faults((ROOT / "CHANGELOG.md").read_text())) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("## Unreleased\n\n- a change\n  of two lines\n", "continues one"),
        (f"## Unreleased\n\n- {'word ' * 20}end\n", "100 columns"),
        ("## Unreleased\n\n  - a change\n", "first column"),
        ("## 1.0.0\n\n- a change\n", "first heading"),
        ("## Unreleased\n\n## The first\n", "semantic version"),
        ("## Unreleased\n\n## 1.9.0\n\n## 1.10.0 - 2026-11-28\n", "newest version"),
    ],
)
def test_a_changelog_that_breaks_a_rule_is_found(text: str, fault: str) -> None:
    assert [each for each in changelog_faults(f"# Changelog\n\n{text}") if fault in each] != []


def test_a_changelog_by_the_rules_passes() -> None:
    text = "# Changelog\n\n## Unreleased\n\n- a change\n\n## 1.10.0 - 2026-11-28\n\n## 1.9.0\n"
    assert list(changelog_faults(text)) == []
