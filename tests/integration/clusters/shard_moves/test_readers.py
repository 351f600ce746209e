"""A shard that moves under load takes its log and its indexes along, for readers of every kind."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing

import confluent_kafka
import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.store.cells.cell import RESTORED_COLUMN
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.moves.underway import owners
from cellfeed.store.clusters.serving import placement
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.index_values import IndexTable
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.errors import ShardMoving
from cellfeed.store.failpoints import watch_failpoint
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.version import IndexVersion
from tests.support.kept_index import differences, index_worker, made_index
from tests.support.mariadb_cluster import SHARDS, TestCluster
from tests.support.move_steps import (
    SHARD,
    admins,
    cells,
    check,
    gateway,
    kafka_consumer,
    log,
    move,
    open_engine,
    paused_mover,
    polled,
    serving,
    shown,
    tailing,
    writing,
)
from tests.support.trigger_workers import Recorder, working
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]


def test_a_moved_shard_keeps_its_ids_times_epochs_and_start_for_old_and_new_readers(
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
    assert [result.outcome for result in engine.put(written[20:22])] == [
        Outcome.EXISTS,
        Outcome.EXISTS,
    ]
    [new] = engine.put(cells(2, 1))
    assert (new.outcome, new.added_id) == (Outcome.STORED, 300)
    shown(engine, 301)
    assert [cell.added_id for cell in engine.scan_many([LogRange(SHARD, 298, 10)])[0]] == [
        298,
        299,
        300,
    ]
    assert move(clusters, engine, "c2").was_there
    # And back, where the old rows were kept.
    assert move(clusters, engine, "c1").cells == 281
    shown(engine, 301)
    assert log(engine, 20)[:-1] == before
    assert engine.leader_epochs(SHARD) == [(0, 0), (1, 300), (2, 301)]
    [new] = engine.put(cells(3, 1))
    assert new.added_id == 301


INDEX = parse_definition("""
table: cells_by_n
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: n, type: int}]
""")


def test_readers_of_every_kind_continue_over_moves_there_and_back(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    recorder = Recorder()
    assigned, grouped, stop = list[tuple[int, int]](), list[tuple[int, int]](), threading.Event()
    with ExitStack() as stack:
        datastore = stack.enter_context(Datastore(open_engine(clusters)))
        reading = stack.enter_context(Datastore(open_engine(clusters)))
        coordinator = StoreCoordinator(reading.state)
        stack.callback(coordinator.close)
        stack.enter_context(index_worker(reading))
        version = made_index(reading, INDEX)
        stack.enter_context(working(reading, coordinator, recorder))
        bootstrap = stack.enter_context(gateway(reading, coordinator))
        by_hand, member = kafka_consumer(bootstrap, "by-hand"), kafka_consumer(bootstrap, "members")
        by_hand.assign(
            [confluent_kafka.TopicPartition("trips", shard, 0) for shard in range(SHARDS)]
        )
        member.subscribe(["trips"])
        threads = [polled(by_hand, assigned, stop), polled(member, grouped, stop)]
        with tailing(clusters) as tailer, writing(datastore) as writer:
            wait_until(lambda: bool(assigned and grouped and recorder.cells), "everybody reads")
            for target in ("c2", "c1", "c2"):
                done = move(clusters, engine, target)
                assert done.fence_s is not None
                writer.goes_on()
            writer.stop()
            check(clusters, writer, tailer)
        ends = {shard: head.next_added_id for shard, head in engine.heads().items()}
        wanted = {(shard, added_id) for shard, end in ends.items() for added_id in range(end)}
        wait_until(
            lambda: (
                wanted <= set(assigned) and wanted <= set(grouped) and wanted <= set(recorder.cells)
            ),
            "everybody has come to the ends",
        )
        stop.set()
        for thread in threads:
            thread.join()
        for read in (assigned, grouped, recorder.cells):
            for shard, end in ends.items():
                assert [added_id for number, added_id in read if number == shard] == list(
                    range(end)
                )
        assert differences(reading, version) == []
        by_hand.close()
        member.close()


def test_an_index_of_a_shard_that_moves_goes_with_it_under_writes(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    with Datastore(open_engine(clusters)) as datastore, index_worker(datastore):
        version = made_index(datastore, INDEX)
        datastore.put_new_cells([each for shard in range(SHARDS) for each in cells(1, 200, shard)])
        assert differences(datastore, version) == []
        table = version.table.name
        before = clusters["c1"].servers["a"].sql(f"SELECT COUNT(*) FROM trips_0001.{table}")
        move(clusters, engine, "c2")
        assert (
            clusters["c2"].servers["a"].sql(f"SELECT COUNT(*) FROM trips_0001.{table}")
            == before
            != [(0,)]
        )
        assert differences(datastore, version) == []
        other = made_index(datastore, parse_definition(INDEX_TEXT_2))
        assert differences(datastore, other) == []


def test_an_index_made_or_dropped_behind_a_fence_reaches_the_moving_shard_too(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def having(table: IndexTable) -> list[int]:
        """The shards that have it, on the cluster that serves them."""
        served = {
            shard: clusters[name].servers["a"] for shard, name in owners(admins(clusters)).items()
        }
        return [
            shard
            for shard, server in served.items()
            if server.sql(f"SHOW TABLES IN trips_{shard:04d} LIKE '{table.name}'")
        ]

    first, second = (IndexVersion(INDEX, number, SHARDS).table for number in (1, 2))
    engine.indexes.create(first)
    paused: list[threading.Event] = []
    with ExitStack() as stack:

        def fence() -> None:
            if not paused:
                go_on, ended = stack.enter_context(
                    paused_mover(clusters, engine, "move.after_hide")
                )
                paused.append(go_on)
                stack.callback(lambda: wait_until(lambda: bool(ended), "the move is over"))

        watch_failpoint(
            "mysql.index.listed", fence
        )  # when it is known which shards are served: one of them is not any more
        with monkeypatch.context() as patched:
            patched.setattr(placement, "MOVE_WAIT_S", 0.1)
            with pytest.raises(ShardMoving, match="shard 1 has no table"):
                engine.indexes.create(second)
            with pytest.raises(ShardMoving, match="shard 1 has its table"):
                engine.indexes.drop(first)
        paused[0].set()
        engine.indexes.create(second)
        engine.indexes.drop(first)
    assert (sorted(having(first)), sorted(having(second))) == ([], list(range(SHARDS)))
    if serving(clusters) == ["c1"]:  # the fence took too long, and it was given back
        move(clusters, engine, "c2")
        assert (sorted(having(first)), sorted(having(second))) == ([], list(range(SHARDS)))


INDEX_TEXT_2 = """
table: cells_by_number
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: n, type: int}]
"""


def test_ids_that_a_restore_left_out_stay_left_out(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    engine.put(cells(1, 10))
    shown(engine, 10)
    clusters["c1"].servers["a"].sql(
        f"UPDATE trips_meta.shard_counter SET next_added_id = 5000 WHERE shard = {SHARD}"
    )
    engine.put([cells(2, 1)[0]._replace(column_name=RESTORED_COLUMN)])
    shown(engine, 5_001)
    before = [*log(engine), *log(engine, 10)]  # a scan ends where ids are left out
    move(clusters, engine, "c2")
    assert [*log(engine), *log(engine, 10)] == before
    assert [each[0] for each in before] == [*range(10), 5_000]
    assert engine.put(cells(3, 1))[0].added_id == 5_001
