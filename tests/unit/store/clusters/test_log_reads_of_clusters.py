"""Reads of shards' logs over clusters: never beyond a watermark, and never a hole where a node is
behind. Clusters are values here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cellfeed.store.clusters.serving import log_reads
from cellfeed.store.clusters.serving.log_reads import ClusteredLogReads
from cellfeed.store.engines.contract.values import Head, LogRange, Replica
from cellfeed.store.errors import StorageUnavailable, UnknownShard
from tests.support.stand_in_nodes import head


class Engine:
    """A node's: the ids that it has of each shard."""

    def __init__(self, ids: dict[int, list[int]]) -> None:
        self.ids = ids

    def scan(self, shard: int, location: int, limit: int) -> list[Any]:
        there = [each for each in self.ids.get(shard, []) if each >= location]
        return [SimpleNamespace(shard=shard, added_id=each) for each in there[:limit]]

    def scan_many(self, ranges: Sequence[LogRange]) -> list[list[Any]]:
        return [self.scan(*each) for each in ranges]

    def locate(self, shard: int, created_at_us: int) -> int:
        return created_at_us

    def superseded(self, *asked: int) -> set[int]:
        return set(asked)


class Log:
    """A cluster. ``watermarks``: of its shards; a look at its nodes shows them. ``behind``: so many
    reads are answered by a node without cells."""

    def __init__(self, name: str, ids: dict[int, list[int]], watermarks: dict[int, int]) -> None:
        self.name, self.watermarks = name, watermarks
        self._has, self._shown = Engine(ids), dict[int, int]()
        self.behind = self.looks = self.reads = 0
        self.firsts: list[Replica | None] = []

    def update(self) -> None:
        self.looks += 1
        self._shown |= self.watermarks

    def lacks(self) -> bool:
        return False

    def shown(self, shard: int) -> int:
        return self._shown.get(shard, 0)

    def head(self, shard: int) -> Head | None:
        return head(self._shown[shard]) if shard in self._shown else None

    def acknowledged_ends(self) -> dict[int, tuple[int, int]]:
        return {shard: (1, end) for shard, end in self.watermarks.items()}

    def read(
        self,
        read: Callable[[Any], Any],
        first: Replica | None = None,
        _enough: Callable[[Any], bool] | None = None,
        **_: object,
    ) -> tuple[Any, str]:
        self.reads += 1
        self.firsts.append(first)
        return read(Engine({}) if self.reads <= self.behind else self._has), "a node"


class Map:
    """The placement: shard 0 and 1 in the first cluster, 2 and 3 in the second one."""

    def __init__(self, one: Log, two: Log) -> None:
        self._of = [one, one, two, two]

    def cluster_of(self, shard: int) -> Log:
        return self._of[shard]

    def name_of(self, shard: int) -> str:
        return self._of[shard].name

    def retry_while_moving(self, call: Callable[[], Any]) -> Any:
        return call()


@pytest.fixture
def one(monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(log_reads, "_PAUSE_S", 0.0)
    return Log("c1", {0: [*range(10)], 1: [0, 1, 5, 6]}, {0: 7, 1: 6})


@pytest.fixture
def two() -> Log:
    return Log("c2", {2: [*range(4)]}, {2: 4, 3: 0})


@pytest.fixture
def logs(one: Log, two: Log) -> ClusteredLogReads:
    clusters = cast("Any", {"c1": one, "c2": two})
    return ClusteredLogReads(clusters, cast("Any", Map(one, two)), 4, Replica.MINION)


def ids(cells: Sequence[Any]) -> list[int]:
    return [each.added_id for each in cells]


def test_a_scan_has_cells_below_the_watermark_alone(logs: ClusteredLogReads, one: Log) -> None:
    assert ids(logs.scan(0, 0, 100)) == [0, 1, 2, 3, 4, 5, 6]
    assert ids(logs.scan(0, 5, 100)) == [5, 6]
    assert ids(logs.scan(0, 2, 3)) == [2, 3, 4]
    assert one.firsts == [Replica.MINION] * 3
    reads = one.reads
    assert logs.scan(0, 7, 100) == logs.scan(0, 9, 100) == logs.scan(0, 0, 0) == []
    assert one.reads == reads, "there is nothing to read at the end of a log"


def test_a_scan_over_ids_that_a_restore_left_out_stays_below_the_watermark(
    logs: ClusteredLogReads,
) -> None:
    assert ids(logs.scan(1, 0, 100)) == [0, 1, 5]
    assert ids(logs.scan(1, 2, 100)) == [5]
    assert [ids(each) for each in logs.scan_many([LogRange(1, 0, 9)])] == [[0, 1, 5]]


def test_a_scan_looks_at_the_nodes_only_at_the_end_of_the_cells_that_were_shown(
    logs: ClusteredLogReads, one: Log
) -> None:
    logs.scan(0, 0, 100)
    assert one.looks == 1
    one.watermarks = {0: 9, 1: 6}
    assert ids(logs.scan(0, 6, 100)) == [6]
    assert one.looks == 1
    assert ids(logs.scan(0, 7, 100)) == [7, 8]
    assert one.looks == 2


def test_a_scan_of_many_gives_each_range_its_own_cells(logs: ClusteredLogReads, one: Log) -> None:
    ranges = [
        *(LogRange(2, 1, 2), LogRange(0, 7, 5), LogRange(0, 4, 100)),
        *(LogRange(3, 0, 5), LogRange(1, 1, 1), LogRange(2, 3, 9)),
    ]
    assert [ids(each) for each in logs.scan_many(ranges)] == [[1, 2], [], [4, 5, 6], [], [1], [3]]
    reads = one.reads
    assert logs.scan_many([LogRange(0, 7, 5)]) == [[]]
    assert one.reads == reads
    one.watermarks = {0: 9, 1: 6}
    assert [ids(each) for each in logs.scan_many([LogRange(0, 7, 5)])] == [[7, 8]]
    one.watermarks = {0: 10, 1: 6}
    one_at_its_end = [LogRange(0, 0, 1), LogRange(0, 9, 5)]
    assert [ids(each) for each in logs.scan_many(one_at_its_end)] == [[0], [9]]


@pytest.mark.parametrize(
    "scan",
    [
        lambda logs: logs.scan(0, 3, 2),
        lambda logs: logs.scan_many([LogRange(0, 3, 2)])[0],
    ],
    ids=["one", "many"],
)
def test_nodes_that_are_behind_are_asked_again_and_none_of_them_makes_a_hole(
    logs: ClusteredLogReads, one: Log, scan: Callable[[ClusteredLogReads], list[Any]]
) -> None:
    one.behind = 4
    assert ids(scan(logs)) == [3, 4]
    assert one.reads == 5
    one.reads, one.behind = 0, 5
    with pytest.raises(StorageUnavailable, match="shard 0 from 3 on, which was shown"):
        scan(logs)


def test_one_range_without_its_cells_fails_the_scan_of_many(
    logs: ClusteredLogReads, two: Log
) -> None:
    two.watermarks = {2: 4, 3: 1}  # no node has the cell of shard 3
    with pytest.raises(StorageUnavailable, match="shard 3 from 0 on"):
        logs.scan_many([LogRange(2, 0, 9), LogRange(3, 0, 9)])


def test_a_time_is_found_at_the_watermark_at_the_latest(logs: ClusteredLogReads) -> None:
    assert logs.locate(0, 5) == 5
    assert logs.locate(0, 9) == 7


def test_superseded_cells_are_asked_of_the_shards_cluster(
    logs: ClusteredLogReads, one: Log, two: Log
) -> None:
    assert logs.superseded(2, 10, 20, 30, 40) == {2, 10, 20, 30, 40}
    assert (one.reads, two.reads, two.firsts) == (0, 1, [Replica.MINION])


def test_the_acknowledged_end_of_a_shard_is_its_clusters(logs: ClusteredLogReads, two: Log) -> None:
    two.watermarks = {0: 99, 2: 4}  # shard 0 is another cluster's
    assert logs.acknowledged_ends() == {0: (1, 7), 1: (1, 6), 2: (1, 4)}


@pytest.mark.parametrize("shard", [-1, 4])
@pytest.mark.parametrize(
    "ask",
    [
        lambda logs, shard: logs.scan(shard, 0, 1),
        lambda logs, shard: logs.scan_many([LogRange(shard, 0, 1)]),
        lambda logs, shard: logs.superseded(shard, 0, 1, 0, 1),
        lambda logs, shard: logs.locate(shard, 0),
        lambda logs, shard: logs.heads([shard]),
    ],
    ids=["scan", "scan_many", "superseded", "locate", "heads"],
)
def test_a_shard_that_the_datastore_does_not_have_is_refused(
    logs: ClusteredLogReads, shard: int, ask: Callable[[ClusteredLogReads, int], object]
) -> None:
    with pytest.raises(UnknownShard):
        ask(logs, shard)
