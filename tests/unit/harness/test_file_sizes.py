"""One file has one idea: a file of the product stays below 400 lines, one of the tests at 500."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT = ("store", "bridge", "consumers", "schemas", "cellfeed")
OTHERS = ("tests", "benchmarks", "examples", "docs")
PRODUCT_LINES_MAX, LINES_MAX = 399, 500


def sizes(root: Path) -> dict[str, int]:
    return {
        str(path.relative_to(root)): len(path.read_text().splitlines())
        for folder in (*PRODUCT, *OTHERS)
        for path in sorted((root / folder).rglob("*.py"))
        if not any(parent.is_symlink() for parent in path.parents)
    }


def faults(sizes: Mapping[str, int]) -> Iterator[str]:
    for path, lines in sizes.items():
        limit = PRODUCT_LINES_MAX if path.split("/")[0] in PRODUCT else LINES_MAX
        if lines > limit:
            yield f"{path} has {lines} lines, at most {limit}: split it by idea"


def test_no_file_is_longer_than_one_idea() -> None:
    found = sizes(ROOT)
    assert len(found) > 1_000
    assert list(faults(found)) == []


def test_a_file_that_is_too_long_is_found() -> None:
    found = {"store/a.py": 400, "store/b.py": 399, "tests/c.py": 501, "tests/d.py": 500}
    assert [fault.split(" ")[0] for fault in faults(found)] == ["store/a.py", "tests/c.py"]
