"""One file has one idea: a file of the product stays below 400 lines, one of the tests at 500."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT = ("store", "bridge", "consumers", "schemas", "cellfeed")
OTHERS = ("tests", "benchmarks", "examples", "docs")
PRODUCT_LINES_MAX, LINES_MAX = 399, 500

LONGER = {
    "tests/clients/test_beside_kafka.py": 1115,
    "tests/clients/test_gateway_rights.py": 1047,
    "tests/integration/clusters/test_backup_clusters.py": 661,
    "tests/integration/clusters/test_shard_moves.py": 542,
    "tests/integration/indexes/test_indexes.py": 568,
    "tests/integration/servers/test_local_servers.py": 674,
    "tests/integration/triggers/test_zookeeper.py": 559,
}
"""Files that are to be split yet. None may grow, and one that is short enough leaves the list."""


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


def test_a_file_that_is_too_long_grows_or_is_on_the_list_for_nothing_is_found() -> None:
    found = {"store/a.py": 400, "tests/b.py": 501, "tests/c.py": 601, "tests/d.py": 500}
    longer = {"tests/c.py": 600, "tests/d.py": 600, "tests/e.py": 600}
    assert [fault.split(" ")[0] for fault in faults(found, longer)] == [
        "store/a.py",
        "tests/b.py",
        "tests/c.py",
        "tests/d.py",
        "tests/e.py",
    ]
    assert list(faults({"store/a.py": 399, "tests/b.py": 500}, {})) == []
