"""The page of one put and one fetch names files that are there, all that ARCHITECTURE.md names, and
counts them truly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "inside" / "put-and-fetch.md"
ROW = re.compile(r"^\| [^|]+ \| `([a-z0-9_/]+\.py)` \| (\S+) \|$", re.MULTILINE)
NO_FILE = "none"
WAYS = {
    "a put into SQLite": ("put", "put on SQLite"),
    "a put into clusters": ("put", "put on clusters"),
    "a fetch": ("fetch",),
    "what clusters add to a fetch": ("fetch on clusters",),
}


def steps(name: str) -> list[tuple[str, str]]:
    """The files of a table, each with the one before."""
    [table] = re.findall(rf"<!-- {name} -->\n(.*?)\n\n", PAGE.read_text(), re.DOTALL)
    return [(now, before) for now, before in ROW.findall(table)]


def counted(way: str) -> tuple[int, int]:
    """The page's own count: files before, and now."""
    [(before, now)] = re.findall(
        rf"^\| {way} \| (\d+) \| (\d+) \|$", PAGE.read_text(), re.MULTILINE
    )
    return int(before), int(now)


@pytest.mark.parametrize("table", sorted({each for tables in WAYS.values() for each in tables}))
def test_every_step_names_an_existing_file(table: str) -> None:
    files = [now for now, _ in steps(table)]
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("way", WAYS)
def test_the_counts_are_those_of_the_tables(way: str) -> None:
    found = [each for table in WAYS[way] for each in steps(table)]
    before = {before for _, before in found} - {NO_FILE}
    assert counted(way) == (len(before), len({now for now, _ in found}))


@pytest.mark.parametrize("what", ["put", "fetch"])
def test_the_architecture_page_names_steps_of_the_page(what: str) -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    [section] = re.findall(
        rf"^## One {what}, as files\n(.*?)^(?:##|\[)", text, re.DOTALL | re.MULTILINE
    )
    named = re.findall(r"`([a-z0-9_/]+\.py)`", section)
    known = {
        now
        for table in ("put", "put on SQLite", "put on clusters", "fetch")
        for now, _ in steps(table)
    }
    assert named
    assert [file for file in named if file not in known] == []
