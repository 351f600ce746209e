"""Moves of shards between two clusters of real MariaDB servers, under everybody who writes and reads; killed, paused and promoted in the middle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from uuid import UUID, uuid5

import pytest

from store.body_codec import decode_body
from store.cells import NewCell, Outcome, new_cell
from store.clusters.engine import ClusteredEngine
from store.clusters.moves import mover
from store.clusters.shard_map import even_map
from store.engines.contract import LogRange
from store.sharding import shard_of
from tests.services.local_mariadb import MariaDB
from tests.services.mariadb_cluster import DATASTORE, SHARDS, TestCluster, make_cluster
from tests.services.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mariadb-cluster"), pytest.mark.timeout(240)]

NAMESPACE = UUID("5d1c3e0e-55a4-4b5e-9a55-7b7d2f1f0a29")
SHARD = 1
"""On c1 when the clusters are made: the one that moves."""


@pytest.fixture
def clusters(servers: list[MariaDB]) -> Iterator[dict[str, TestCluster]]:
    """c1 has a master and a minion, c2 one node."""
    divided = even_map(DATASTORE, SHARDS, ["c1", "c2"])
    made = {"c1": make_cluster("c1", servers[:2], divided), "c2": make_cluster("c2", servers[2:], divided)}
    yield made
    for each in made.values():
        each.admin.close()
        each.bare()


def open_engine(clusters: dict[str, TestCluster], copies: int = 0) -> ClusteredEngine:
    return ClusteredEngine(DATASTORE, SHARDS, {name: each.openers() for name, each in clusters.items()}, copies=copies)


@pytest.fixture
def engine(clusters: dict[str, TestCluster]) -> Iterator[ClusteredEngine]:
    with closing(open_engine(clusters)) as opened:
        yield opened


def cells(first: int, count: int, shard: int = SHARD) -> list[NewCell]:
    """So many cells of a shard; others for another ``first``."""
    found, number = [], first * 10_000
    while len(found) < count:
        row = uuid5(NAMESPACE, str(number))
        number += 1
        if shard_of(row.bytes, SHARDS) == shard:
            found.append(new_cell(row, "BASE", 1, {"n": number}))
    return found


def move(clusters: dict[str, TestCluster], engine: ClusteredEngine, to: str, shard: int = SHARD) -> mover.Moved:
    return mover.move_shard({name: each.admin for name, each in clusters.items()}, shard, to, engine.dictionaries.complete)


def log(engine: ClusteredEngine, start: int = 0) -> list[tuple[int, bytes, bytes, int]]:
    return [(cell.added_id, cell.row_key, decode_body(cell.body), cell.created_at_us) for cell in engine.scan(SHARD, start, 10_000)]


def shown(engine: ClusteredEngine, ends: int) -> None:
    wait_until(lambda: engine.heads()[SHARD].watermark == ends, f"all {ends} cells are shown")


def test_a_moved_shard_goes_on_with_its_ids_times_epochs_and_start_for_those_who_were_there_and_those_who_come(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    written = cells(1, 300)
    engine.put(written)
    shown(engine, 300)
    wait_until(lambda: engine.trim_limits([SHARD])[SHARD] == 300, "every node has them")
    engine.trim(SHARD, 20)
    before, head = log(engine, 20), engine.heads()[SHARD]
    done = move(clusters, engine, "c2")
    assert (done.source, done.target, done.cells) == ("c1", "c2", 280)
    with closing(open_engine(clusters)) as another:
        for reader in (engine, another):
            assert reader.heads()[SHARD] == head._replace(leader_epoch=1)
            assert log(reader, 20) == before
            assert reader.leader_epochs(SHARD) == [(0, 0), (1, 300)]
            assert reader.get([written[30].triple])[0] is not None
            assert reader.commit_group(SHARD) == "c2"
    assert [result.outcome for result in engine.put(written[20:22])] == [Outcome.EXISTS, Outcome.EXISTS]
    [new] = engine.put(cells(2, 1))
    assert (new.outcome, new.added_id) == (Outcome.STORED, 300)
    shown(engine, 301)
    assert [cell.added_id for cell in engine.scan_many([LogRange(SHARD, 298, 10)])[0]] == [298, 299, 300]
    assert move(clusters, engine, "c2").was_there
    # And back, where the old rows were kept.
    assert move(clusters, engine, "c1").cells == 281
    shown(engine, 301)
    assert log(engine, 20)[:-1] == before
    assert engine.leader_epochs(SHARD) == [(0, 0), (1, 300), (2, 301)]
    [new] = engine.put(cells(3, 1))
    assert new.added_id == 301
