"""One node's damage is not the cluster's: its read goes to another node, and its status names the
damage. Without a good copy it is an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from cellfeed.store.backups.create import create
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.taking import Source
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.clusters.serving.node import DAMAGE_S
from cellfeed.store.clusters.serving.shown_heads import Watermark
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import LogRange, Replica
from cellfeed.store.errors import DataDamaged
from cellfeed.store.indexes.definition_file import parse_definition
from tests.support.cluster_steps import shown
from tests.support.kept_index import index_worker, made_index
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, cells_of_shard
from tests.support.move_steps import gateway, kafka_consumer
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

SHARD = 1
CELLS = cells_of_shard(SHARD, 0, 40)
INDEX = parse_definition(
    """
table: cells_by_n
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: n, type: int}]
"""
)
FLIP = "UPDATE trips_0001.cell SET body = CONCAT(X'00', SUBSTR(body, 2)) WHERE added_id = 7"
LOSE = "DELETE FROM trips_0001.cell WHERE added_id BETWEEN 7 AND 9"


@pytest.fixture
def engine(cluster: TestCluster) -> Iterator[ClusteredEngine]:
    nodes = {cluster.name: cluster.openers()}
    with closing(
        ClusteredEngine(
            DATASTORE, SHARDS, nodes, watermark=Watermark.REPLICATED, read_first=Replica.MINION
        )
    ) as engine:
        engine.put(CELLS)

        def heads(node: str) -> list[tuple[Any, ...]]:
            return cluster.servers[node].sql(
                "SELECT SUM(next_added_id) FROM trips_meta.shard_counter"
            )

        wait_until(
            lambda: shown(engine) == 40 and all(heads(node) == [(40,)] for node in "bc"),
            "all nodes have all",
        )
        yield engine


def hurt(cluster: TestCluster, nodes: str, change: str) -> None:
    for node in nodes:
        cluster.servers[node].sql("SET SESSION sql_log_bin = 0", change)


def all_of_it(engine: ClusteredEngine) -> None:
    """Every kind of read, several times: the minions take turns."""
    for _ in range(3):
        assert [cell.added_id for cell in engine.scan(SHARD, 0, 1_000)] == list(range(40))
        [found] = engine.scan_many([LogRange(SHARD, 0, 1_000)])
        assert [cell.row_key for cell in found] == [cell.row_key for cell in CELLS]
        for replica in Replica:
            assert all(engine.get([cell.triple for cell in CELLS], replica))
            assert all(engine.latest([(cell.row_key, cell.column_name) for cell in CELLS], replica))
            assert all(engine.row([cell.row_key for cell in CELLS], replica))


def told(engine: ClusteredEngine) -> dict[str, str]:
    return {node.name: node.error for each in engine.status() for node in each.nodes if node.error}


@pytest.mark.parametrize("nodes", ["b", "bc", "a"])
def test_a_rotten_body_of_some_nodes_is_read_from_another_and_shown_in_the_status(
    engine: ClusteredEngine, cluster: TestCluster, nodes: str
) -> None:
    hurt(cluster, nodes, FLIP)
    all_of_it(engine)
    assert sorted(told(engine)) == list(nodes)
    assert all(
        f"added_id 7 of shard {SHARD} is damaged" in error for error in told(engine).values()
    )
    assert engine.put(cells_of_shard(SHARD, 1, 5)), "the cluster takes writes"


@pytest.mark.parametrize("nodes", ["b", "bc"])
def test_cells_that_minions_have_lost_are_read_from_the_master_and_shown_in_the_status(
    engine: ClusteredEngine, cluster: TestCluster, nodes: str
) -> None:
    hurt(cluster, nodes, LOSE)
    for _ in range(3):
        assert [cell.added_id for cell in engine.scan(SHARD, 0, 1_000)] == list(range(40))
        assert [
            [cell.added_id for cell in cells] for cells in engine.scan_many([LogRange(SHARD, 8, 1)])
        ] == [[8]]
    assert sorted(told(engine)) == list(nodes)
    assert all(
        f"shard {SHARD} has no cells from added_id" in error for error in told(engine).values()
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (FLIP, "added_id 7 of shard 1 is damaged"),
        (LOSE, "shard 1 has no cells from added_id 7 to 9"),
    ],
)
def test_damage_of_every_node_is_an_error(
    engine: ClusteredEngine, cluster: TestCluster, change: str, match: str
) -> None:
    hurt(cluster, "abc", change)
    with pytest.raises(DataDamaged, match=match):
        engine.scan(SHARD, 0, 1_000)
    with pytest.raises(DataDamaged, match="added_id 7"):
        engine.scan_many([LogRange(SHARD, 7, 3)])
    if change == FLIP:
        with pytest.raises(DataDamaged, match=match):
            engine.get([CELLS[7].triple])
    assert len(engine.scan(SHARD, 10, 1_000)) == 30, "the others are there"


def test_a_minion_that_answered_with_damage_is_not_asked_for_a_while(
    engine: ClusteredEngine, cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurt(cluster, "b", FLIP)
    all_of_it(engine)
    node, asked = engine.clusters[cluster.name].nodes["b"], list[object]()
    real = node.call

    def noted(what: Any, *given: Any) -> Any:
        asked.append(what)
        return real(what, *given)

    monkeypatch.setattr(node, "call", noted)
    all_of_it(engine)
    assert asked == []
    node._damaged_at_s -= DAMAGE_S
    all_of_it(engine)
    assert asked, "it may be mended by now"


def test_index_queries_gateway_export_and_backup_read_past_a_damaged_node(
    engine: ClusteredEngine, cluster: TestCluster, tmp_path: Path
) -> None:
    datastore = Datastore(engine)
    with index_worker(datastore) as coordinator:
        version = made_index(datastore, INDEX)
        hurt(cluster, "bc", FLIP)
        wanted = sorted(cell.row_key for cell in CELLS)
        table = engine.indexes
        found = [
            entry.row_key
            for shard in range(SHARDS)
            for entry in table.walk(version.table, shard, None, 1_000)
        ]
        assert sorted(found) == wanted
        for _ in range(3):
            current = engine.indexes.current({SHARD: wanted}, None, Replica.MINION).cells
            assert sorted(current) == wanted
        with gateway(datastore, coordinator) as bootstrap:
            consumer = kafka_consumer(bootstrap, "g")
            consumer.assign([TopicPartition(DATASTORE, SHARD, 0)])
            offsets: list[int | None] = []

            def all_read() -> bool:
                messages = consumer.consume(100, 0.5)
                offsets.extend(each.offset() for each in messages if each.error() is None)
                return len(offsets) >= 40

            wait_until(all_read, "all")
            consumer.close()
        assert offsets == list(range(40))
    made = create(BackupFolder(tmp_path / "backups"), Source(engine, lambda _: True))
    assert made.manifest.cells == 40
    assert told(engine)
