"""One file has one idea: a file of the product has at most 250 lines, one of the tests 500."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT = ("store", "bridge", "consumers", "schemas", "cellfeed")
OTHERS = ("tests", "benchmarks", "examples", "docs")
PRODUCT_LINES_MAX, LINES_MAX = 250, 500

LONGER = {
    # One tree of errors for the whole product: two lines a class, and its docstring draws the tree.
    "store/errors.py": 350,
}
"""Files of the product with more lines, each with its reason. One that is short enough leaves the
list."""


def sizes(root: Path) -> dict[str, int]:
    return {
        str(path.relative_to(root)): len(path.read_text().splitlines())
        for folder in (*PRODUCT, *OTHERS)
        for path in sorted((root / folder).rglob("*.py"))
        if not any(parent.is_symlink() for parent in path.parents)
    }


def faults(sizes: Mapping[str, int], longer: Mapping[str, int]) -> Iterator[str]:
    for path, lines in sizes.items():
        limit = PRODUCT_LINES_MAX if path.split("/")[0] in PRODUCT else LINES_MAX
        if lines > longer.get(path, limit):
            yield f"{path} has {lines} lines, at most {longer.get(path, limit)}: split it by idea"
        elif path in longer and lines <= limit:
            yield f"{path} is short enough: take it off the list"
    yield from (f"{path} is gone: take it off the list" for path in longer.keys() - sizes.keys())


def test_no_file_is_longer_than_one_idea() -> None:
    found = sizes(ROOT)
    assert len(found) > 1_000
    assert list(faults(found, LONGER)) == []


def test_a_file_that_is_too_long_grows_or_is_listed_without_need_is_found() -> None:
    found = {"store/a.py": 251, "store/b.py": 250, "tests/c.py": 501, "tests/d.py": 500}
    found |= {"store/e.py": 301, "store/f.py": 300, "store/g.py": 200}
    longer = {"store/e.py": 300, "store/f.py": 300, "store/g.py": 300, "store/h.py": 300}
    assert [fault.split(" ")[0] for fault in faults(found, longer)] == [
        "store/a.py",
        "tests/c.py",
        "store/e.py",
        "store/g.py",
        "store/h.py",
    ]
