"""One file has one idea: a file of the product has at most 250 lines, one of the tests 500."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT = ("store", "bridge", "consumers", "schemas", "cellfeed")
OTHERS = ("tests", "benchmarks", "examples", "docs")
PRODUCT_LINES_MAX, LINES_MAX = 250, 500

LONGER = {
    "bridge/coordination/zookeeper/sessions.py": 291,
    "bridge/export/unit_run.py": 343,
    "bridge/gateway/groups/cluster.py": 265,
    "bridge/gateway/groups/group.py": 396,
    "cellfeed/testing/kit.py": 316,
    "cellfeed/testing/zookeeper_tree.py": 357,
    "consumers/warehouse/loader.py": 383,
    "store/backups/binlogs/archive.py": 304,
    "store/backups/binlogs/archiver.py": 352,
    "store/backups/binlogs/stream.py": 268,
    "store/backups/binlogs/tail.py": 317,
    "store/backups/check.py": 253,
    "store/backups/create.py": 375,
    "store/backups/folder.py": 301,
    "store/backups/into_clusters.py": 324,
    "store/backups/into_mysql.py": 312,
    "store/backups/partial.py": 363,
    "store/backups/point.py": 257,
    "store/cells/body_codec.py": 351,
    "store/cells/cell.py": 290,
    "store/clusters/moves/heal.py": 292,
    "store/clusters/moves/shard_diff.py": 261,
    "store/clusters/operating/auto_failover.py": 279,
    "store/clusters/operating/create.py": 305,
    "store/clusters/operating/promote.py": 279,
    "store/clusters/serving/buffer.py": 351,
    "store/clusters/serving/dictionaries.py": 256,
    "store/clusters/serving/indexes.py": 350,
    "store/clusters/serving/node.py": 371,
    "store/commit/group_commit.py": 285,
    "store/dictionaries/blanking.py": 253,
    "store/engines/contract/dictionaries.py": 281,
    "store/engines/contract/engine.py": 312,
    "store/engines/contract/indexes.py": 323,
    "store/engines/mysql/cells.py": 279,
    "store/engines/mysql/checks.py": 394,
    "store/engines/mysql/connections.py": 280,
    "store/engines/mysql/engine.py": 345,
    "store/engines/mysql/guard.py": 307,
    "store/engines/mysql/index.py": 299,
    "store/engines/mysql/put.py": 286,
    "store/engines/mysql/replication.py": 371,
    "store/engines/mysql/scrub.py": 345,
    "store/errors.py": 315,
    "store/following/heads.py": 270,
    "store/http/calls/datastore.py": 340,
    "store/http/messages.py": 378,
    "store/http/server/app.py": 252,
    "store/http/server/openapi.py": 334,
    "store/http/server/reads.py": 362,
    "store/http/server/requests.py": 304,
    "store/indexes/catalog.py": 261,
    "store/indexes/check.py": 338,
    "store/indexes/query.py": 376,
    "store/indexes/request.py": 267,
    "store/outlet_watch.py": 350,
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
