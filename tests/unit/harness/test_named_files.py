"""A file that the code or a guide names is there: a name that has moved leads nobody."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"(?<!`)`{1,2}([a-z0-9_/]+\.py)`{1,2}")
OF_OTHERS = {
    "file.py",
    "store.py",
    "schemas.py",
    "bridge.py",
    "consumers.py",
    "app.py",
    "trips_avro.py",
}
"""Files of users, which the guides speak of."""


FOLDERS = (
    "store",
    "bridge",
    "consumers",
    "schemas",
    "cellfeed",
    "tests",
    "benchmarks",
    "examples",
    "docs",
)


def listed(suffix: str) -> list[str]:
    """The repository's files of this kind, by path."""
    return [
        str(path.relative_to(ROOT))
        for path in (
            *ROOT.glob(f"*{suffix}"),
            *(each for folder in FOLDERS for each in (ROOT / folder).rglob(f"*{suffix}")),
        )
        if not any(parent.is_symlink() for parent in path.parents)
    ]


def missing(text: str, files: set[str]) -> list[str]:
    """The files that ``text`` names between backticks, by path or by the end of one, and that are
    none of ``files``."""
    return [
        name
        for name in NAMED.findall(text)
        if name not in files | OF_OTHERS and not any(file.endswith(f"/{name}") for file in files)
    ]


@pytest.mark.parametrize("suffix", [".md", ".py"])
def test_every_named_file_exists(suffix: str) -> None:
    files = set(listed(".py"))
    pages = [each for each in listed(suffix) if each != str(Path(__file__).relative_to(ROOT))]
    assert pages
    found = {page: names for page in pages if (names := missing((ROOT / page).read_text(), files))}
    assert found == {}


def test_a_file_that_has_moved_is_found() -> None:
    files = {"store/engines/mysql/trim.py"}
    assert missing("see ``mysql_trim.py`` and `engines/mysql/trim.py`", files) == ["mysql_trim.py"]
    assert missing("the service's `app.py`", files) == []
