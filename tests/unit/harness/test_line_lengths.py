"""Code ends at column 100. A pragma for a tool may stand behind that, with its reason: no tool
reads one on the next line.

ruff's E501 permits more: long literals without blanks, and lines that switch it off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.source_files import ROOT, modules

COLUMNS_MAX = 100
FOLDERS = ("store", "bridge", "consumers", "schemas", "cellfeed", "tests", "benchmarks", "examples")
_PRAGMA = re.compile(r"\s+# (type: ignore|noqa: (?!.*\bE501\b)).*$")


def long_lines(text: str) -> Iterator[str]:
    """Lines whose code passes the column, and those that switch the rule off."""
    for number, line in enumerate(text.splitlines(), 1):
        if len(_PRAGMA.sub("", line)) > COLUMNS_MAX or re.search(r"# noqa:.*\bE501\b", line):
            yield f"{number}: {line}"


@pytest.mark.parametrize("folder", [*FOLDERS, "docs"])
def test_code_ends_at_column_100(folder: str) -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in modules(folder)
        if (lines := list(long_lines(path.read_text())))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("x = 1".ljust(101, "0"), 1),
        ("x = 1".ljust(100, "0"), 0),
        ("x = 1".ljust(100, "0") + "  # type: ignore[misc]", 0),
        ("x = 1".ljust(100, "0") + "  # noqa: S608 - a checked name", 0),
        ("x = 1  # noqa: S608, E5" + "01", 1),
        ("x = 1".ljust(100, "0") + "  # a reason for people", 1),
        ('"""' + "https://" + "x" * 100 + '"""', 1),
    ],
)
def test_a_long_line_is_found(line: str, count: int) -> None:
    assert len(list(long_lines(line))) == count
