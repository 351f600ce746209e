"""Erasures on real MariaDB: on every node, kept over a promotion, fenced, and no copy in another
cluster's buffer brings a row back."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import ERASED_COLUMN, NewCell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.errors import OutcomeUnknown, RowErased, StaleWriter
from tests.integration.clusters.test_cluster_trim import SHARD, cells, on_every_node
from tests.support.cli_instance import cellfeed
from tests.support.cluster_steps import (
    checksums,
    open_engine,
    put_until_stored,
    two_buffering_clusters,
)
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, configured
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


def bodies_of(cluster: TestCluster, node: str, row_key: bytes) -> list[bytes]:
    return [
        body
        for (body,) in cluster.servers[node].sql(
            f"SELECT body FROM trips_{SHARD:04d}.cell WHERE row_key = X'{row_key.hex()}' ORDER BY"
            " added_id"
        )
    ]


def tables_with(server: MariaDB, needle: bytes) -> list[str]:
    """Tables of a server in which a column of a row has these bytes."""
    wanted = (
        "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE"
        " TABLE_SCHEMA LIKE 'trips\\_%'"
    )
    found = []
    for schema, table, column in server.sql(wanted):
        [(count,)] = server.sql(
            f"SELECT COUNT(*) FROM {schema}.{table} WHERE INSTR({column}, X'{needle.hex()}') > 0"
        )
        if int(count):
            found.append(f"{schema}.{table}.{column}")
    return found


def test_a_row_is_erased_on_every_node_and_stays_so_after_a_promotion(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    written = cells(1, 20)
    victim = written[7]
    engine.put(written)
    on_every_node(engine, 20)
    before = engine.scan(SHARD, 0, 100)
    [stored] = [cell.body for cell in before if cell.row_key == victim.row_key]
    assert all(tables_with(server, stored[1:]) for server in cluster.servers.values()), (
        "it is there before"
    )
    erasures = engine.heads()[SHARD].erasures
    step = engine.erase(victim.row_key)
    assert (step.shard, step.added_id, step.cells, step.done) == (SHARD, 20, 1, True)
    on_every_node(engine, 21)
    for name, server in cluster.servers.items():
        assert all(map(is_erased, bodies_of(cluster, name, victim.row_key)))
        assert tables_with(server, stored[1:]) == []
    assert engine.heads()[SHARD].erasures != erasures
    after = engine.scan(SHARD, 0, 100)
    assert [cell for cell in after if cell.row_key != victim.row_key] == [
        cell for cell in before if cell.row_key != victim.row_key
    ]
    assert (after[20].column_name, is_erased(after[20].body)) == (ERASED_COLUMN, True)
    cluster.servers["a"].kill()
    promoted = promote(cluster.admin)
    put_until_stored(engine, cells(2, 3))
    [refused] = engine.put([victim])
    assert (refused.outcome, isinstance(refused.error, RowErased)) == (Outcome.FAILED, True)
    assert engine.erase(victim.row_key)[1:] == (20, 0, True, ())
    others = [name for name in "abc" if name not in ("a", promoted.master)]
    wait_until(
        lambda: checksums(cluster, others[0]) == checksums(cluster, promoted.master),
        "the minion has the same log, counters and all",
    )


def test_an_erasure_with_another_epoch_is_refused(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    [cell] = cells(1, 1)
    engine.put([cell])
    with closing(MySqlEngine(MySqlServer(cluster.servers["a"].url), DATASTORE, SHARDS)) as node:
        with pytest.raises(StaleWriter):
            node.erase(cell.row_key, terms=WriteTerms(7))
        assert node.heads()[SHARD][1:3] == (1, 1)


def test_an_erasure_and_a_trim_are_answered_when_a_minion_has_them(
    asynchronous: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellfeed.store.clusters.serving.cluster.MINION_WAIT_S", 1.0)
    victim, *others = cells(1, 6)
    with closing(open_engine(asynchronous)) as engine:
        engine.put([victim, *others])
        on_every_node(engine, 6)
        for name in "bc":
            asynchronous.servers[name].sql("STOP SLAVE IO_THREAD")
        for _ in range(2):  # the second one finds nothing left to do on the master
            with pytest.raises(
                OutcomeUnknown,
                match=r"a erased in shard \d, but no minion has it after 1 s.*repeat it",
            ):
                engine.erase(victim.row_key)
        with pytest.raises(OutcomeUnknown, match=r"a trimmed shard \d, but no minion has it"):
            engine.trim(SHARD, 3)
        assert all(map(is_erased, bodies_of(asynchronous, "a", victim.row_key))), (
            "done on the master, and a promotion would undo it"
        )
        for name in "bc":
            asynchronous.servers[name].sql("START SLAVE IO_THREAD")
        assert engine.erase(victim.row_key).done
        assert engine.trim(SHARD, 3) == 3
        asynchronous.servers["a"].kill()
        done = promote(asynchronous.admin)
        assert all(map(is_erased, bodies_of(asynchronous, done.master, victim.row_key)))
        put_until_stored(engine, cells(2, 1))
        assert engine.heads()[SHARD].log_start == 3


def test_an_erasure_that_only_the_old_master_had_is_done_again(
    asynchronous: TestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellfeed.store.clusters.serving.cluster.MINION_WAIT_S", 0.5)
    config = configured(asynchronous, tmp_path, semi_sync=False)
    victim, *others = cells(1, 6)
    late = NewCell(victim.row_key, "NOTES", 1, b"{}")
    with closing(open_engine(asynchronous)) as engine:
        engine.put([victim, *others])
        on_every_node(engine, 6)
        for name in "bc":
            asynchronous.servers[name].sql("STOP SLAVE IO_THREAD")
        engine.put([late])
        with pytest.raises(OutcomeUnknown, match="no minion has it"):
            engine.erase(victim.row_key, 0)  # the entry; the bodies are there still
        asynchronous.servers["a"].kill()
        promote(asynchronous.admin, "b")
        assert not any(map(is_erased, bodies_of(asynchronous, "b", victim.row_key))), "undone"
        asynchronous.servers["a"].start()
        refused = cellfeed("cluster", "rejoin", "c1", "a", "--config", str(config))
        assert refused.returncode == 3, refused.stderr
        assert (
            f"never replicated: the erasure of {UUID(bytes=victim.row_key)}"
            in refused.stdout + refused.stderr
        )
        assert "0 cells and 1 erasures" in " ".join(refused.stderr.split()), (
            "no cell of the erased row is put again"
        )
        done = cellfeed("cluster", "rejoin", "c1", "a", "--put-again", "--config", str(config))
        assert done.returncode == 0, done.stderr
        wait_until(
            lambda: checksums(asynchronous, "a") == checksums(asynchronous, "b"),
            "a copy of the master",
        )
        for name in "abc":
            assert all(map(is_erased, bodies_of(asynchronous, name, victim.row_key)))
        assert engine.put([late])[0].outcome is Outcome.FAILED


def test_the_erasure_count_of_heads_changes_for_each_node_that_reaches_an_erasure(
    cluster: TestCluster, engine: ClusteredEngine
) -> None:
    """A gateway that read from a minion that was behind drops its kept blocks once the minion has
    caught up."""
    [cell] = cells(1, 1)
    engine.put([cell])
    on_every_node(engine, 1)
    cluster.servers["c"].sql("STOP SLAVE SQL_THREAD")
    try:
        engine.erase(cell.row_key)
        wait_until(lambda: engine.heads()[SHARD].watermark == 2, "the erasure is shown")

        def b_has_it() -> bool:
            view = engine.clusters["c1"].nodes["b"].view
            return view is not None and view.heads[SHARD].erasures == 1

        wait_until(b_has_it, "b has it")
        behind = engine.heads()[SHARD].erasures
        assert engine.clusters["c1"].nodes["c"].view.heads[SHARD].erasures == 0  # type: ignore[union-attr]
    finally:
        cluster.servers["c"].sql("START SLAVE SQL_THREAD")
    wait_until(
        lambda: engine.heads()[SHARD].erasures > behind, "c has come to it, and the heads tell"
    )


def test_copies_of_an_erased_row_in_another_clusters_buffer_are_removed_for_good(
    servers: list[MariaDB],
) -> None:
    with two_buffering_clusters(servers) as engine:
        shard = next(shard for shard in range(SHARDS) if engine.commit_group(shard) == "c1")
        first, second, third = cells(1, 3, shard)

        def waiting() -> set[UUID]:
            return {
                UUID(bytes=row_key)
                for (row_key,) in servers[1].sql("SELECT row_key FROM trips_meta.buffered_cell")
            }

        engine.put([first, second])
        assert waiting() == {UUID(bytes=cell.row_key) for cell in (first, second)}
        engine.erase(first.row_key)
        assert waiting() == {UUID(bytes=second.row_key)}
        # A put that comes later leaves no copy behind; one whose process died behind its copy,
        # or that was accepted, is dropped by the drain.
        again = NewCell(second.row_key, "NOTES", 1, b"{}")
        engine.erase(second.row_key)
        assert [result.outcome for result in engine.put([again, third])] == [
            Outcome.FAILED,
            Outcome.STORED,
        ]
        assert waiting() == {UUID(bytes=third.row_key)}
        buffer = engine.clusters["c2"]
        buffer.write(lambda node, role: node.buffer.add("c1", [first, again], role.terms))
        buffer.write(lambda node, role: node.buffer.accept("c1", [first], role.terms))
        assert engine.drain.drain_once(0) == 3
        assert waiting() == set()
        assert [cell.column_name for cell in engine.row_cells(second.row_key)] == [
            "BASE",
            ERASED_COLUMN,
        ]
        servers[1].kill()
        with pytest.raises(OutcomeUnknown, match="copies of its puts may still wait"):
            engine.erase(third.row_key)
        assert [is_erased(cell.body) for cell in engine.row_cells(third.row_key)] == [
            True,
            True,
        ]
        servers[1].start()
        wait_until(
            lambda: not engine.clusters["c2"].nodes["a"].breaker.is_open,
            "it may be asked again",
        )
        wait_until(lambda: _erased(engine, third.row_key), "the copies are gone as well")
        assert waiting() == set()


def _erased(engine: ClusteredEngine, row_key: bytes) -> bool:
    try:
        return engine.erase(row_key).done
    except OutcomeUnknown:
        return False
