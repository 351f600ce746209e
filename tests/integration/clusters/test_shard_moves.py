"""Moves of shards between two clusters of real MariaDB servers, under everybody who writes and
reads; killed, paused and promoted in the middle."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import confluent_kafka
import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.store.cells.cell import RESTORED_COLUMN, NewCell, Outcome, PutResult
from cellfeed.store.clusters.model.shard_map import read_map
from cellfeed.store.clusters.moves import mover, waiting
from cellfeed.store.clusters.moves.underway import owners, underway
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.rejoin import follow_again
from cellfeed.store.clusters.serving import placement
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.indexes import IndexTable
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.errors import (
    InvalidRequest,
    NotFound,
    ProtectData,
    ShardMoving,
    StorageUnavailable,
)
from cellfeed.store.failpoints import (
    FailpointReached,
    clear_failpoints,
    passes,
    set_failpoint,
    unwatch_failpoint,
    watch_failpoint,
)
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.version import IndexVersion
from tests.support.kept_index import differences, index_worker, made_index
from tests.support.mariadb_cluster import BUSY_FENCE_MAX_S, DATASTORE, SHARDS, TestCluster
from tests.support.move_steps import (
    POINTS,
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


@pytest.fixture
def engine(clusters: dict[str, TestCluster]) -> Iterator[ClusteredEngine]:
    with closing(open_engine(clusters)) as opened:
        yield opened


def test_a_moved_shard_goes_on_with_its_ids_times_epochs_and_start_for_those_who_were_there_and_those_who_come(  # noqa: E501
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


def test_a_mover_that_dies_anywhere_under_writes_is_resumed_or_taken_back_and_nothing_is_lost(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    assert len(POINTS) == 11
    datastore = Datastore(engine)
    try:
        with tailing(clusters) as tailer, writing(datastore) as writer:
            for number, point in enumerate(POINTS):
                [source] = serving(clusters)
                target = "c2" if source == "c1" else "c1"
                set_failpoint(point, "raise")
                with pytest.raises(FailpointReached):
                    move(clusters, engine, target)
                assert passes(point) == 1
                clear_failpoints()
                assert len(serving(clusters)) <= 1
                [found] = [each for each in underway(admins(clusters)) if each.shard == SHARD]
                if found.stage in ("copying", "fenced") and number % 2:
                    assert mover.roll_back(admins(clusters), SHARD).source == source
                    assert serving(clusters) == [source]
                else:
                    move(clusters, engine, target)
                    assert serving(clusters) == [target]
                writer.goes_on()
            writer.stop()
            check(clusters, writer, tailer)
    finally:
        clear_failpoints()
        datastore.close()


INDEX = parse_definition("""
table: cells_by_n
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: n, type: int}]
""")


def test_readers_of_every_kind_go_on_over_moves_there_and_back(
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


def test_an_index_of_a_shard_that_moves_goes_with_it_whatever_is_written_meanwhile(
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


def test_an_index_that_is_made_or_dropped_behind_a_fence_is_so_in_the_shard_that_moves_too(
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


def test_a_process_with_a_map_from_before_two_moves_does_not_take_half_a_copy_for_the_shard(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "MOVE_WAIT_S", 0.1)
    written = cells(1, 30)
    engine.put(written)
    shown(engine, 30)
    keys = [(written[5].row_key, "BASE")]
    with closing(open_engine(clusters)) as asleep:
        move(clusters, engine, "c2")
        for point in ("move.after_begin", "move.after_rest", "move.before_switch"):
            set_failpoint(point, "raise")
            with pytest.raises(FailpointReached):
                move(clusters, engine, "c1")
            clear_failpoints()
            # It knows of neither move, and asks the cluster that had the shard before both of them.
            answers = (
                asleep.clusters["c1"].read(
                    lambda each: (each.get([written[5].triple]), each.latest(keys))
                )[0]
                if holds(asleep, written[5])
                else None
            )
            assert answers is None or None not in (*answers[0], *answers[1])
            mover.roll_back(admins(clusters), SHARD)
        move(clusters, engine, "c1")
        assert asleep.get([written[5].triple])[0] is not None


def holds(engine: ClusteredEngine, cell: NewCell) -> bool:
    """Whether the first cluster answers for the shard of the cell at all."""
    try:
        engine.clusters["c1"].read(lambda each: each.get([cell.triple]))
    except (ShardMoving, StorageUnavailable):
        return False
    return True


INDEX_TEXT_2 = """
table: cells_by_number
datastore: trips
column_defs:
  - column_name: BASE
    fields: [{field: n, type: int}]
"""


def test_a_promotion_in_the_middle_of_a_move_changes_nothing_on_its_source_or_its_target(
    clusters: dict[str, TestCluster],
) -> None:
    # Only c1 has a minion to promote: it is the source of the moves to c2, and the target of those
    # back.
    for to, point in (
        ("c2", "move.inside_copy"),
        ("c1", "move.before_switch"),
        ("c2", "move.after_fence"),
        ("c1", "move.after_switch"),
    ):
        with (
            closing(open_engine(clusters)) as engine,
            Datastore(open_engine(clusters)) as datastore,
            tailing(clusters) as tailer,
            writing(datastore) as writer,
        ):
            promoted: list[str] = []

            def once(promoted: list[str] = promoted) -> None:
                if not promoted:
                    promoted.append("under way")
                    done = promote(clusters["c1"].admin)
                    promoted[0] = done.master
                    wait_until(
                        lambda: follows_again(clusters["c1"], done.old_master),
                        "the old master is a minion",
                    )

            watch_failpoint(point, once)
            try:
                move(clusters, engine, to)
            finally:
                unwatch_failpoint(point)
            assert promoted[0] in ("a", "b")
            assert owners(admins(clusters))[SHARD] == to
            writer.goes_on()
            writer.stop()
            check(clusters, writer, tailer)


def test_a_mover_that_is_paused_is_alone_and_one_that_was_cut_off_can_do_nothing_more(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    engine.put(cells(1, 50))
    reached, go_on, ended = threading.Event(), threading.Event(), list[BaseException]()

    def pause() -> None:
        reached.set()
        go_on.wait(120)

    def run() -> None:
        try:
            mover.move_shard(admins(clusters), SHARD, "c2", engine.dictionaries.complete, again_s=0)
        except BaseException as error:
            ended.append(error)

    watch_failpoint("move.before_switch", pause)
    paused = threading.Thread(target=run)
    paused.start()
    try:
        assert reached.wait(60)
        with pytest.raises(StorageUnavailable, match="is being moved already"):
            mover.roll_back(admins(clusters), SHARD, again_s=0)
        with pytest.raises(ShardMoving):
            engine.clusters["c1"].put(cells(2, 1))
        for each in clusters.values():
            for thread, user in each.servers["a"].sql(
                "SELECT ID, USER FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID()"
            ):
                if user != "system user":
                    with suppress(Exception):
                        each.servers["a"].sql(f"KILL {thread}")
        wait_until(lambda: rolled_back(clusters), "the move is taken back")
    finally:
        go_on.set()
        paused.join(60)
        unwatch_failpoint("move.before_switch")
    assert ended
    assert serving(clusters) == ["c1"]
    wait_until(lambda: stored(engine, 2), "puts go on")
    assert engine.get([cells(1, 1)[0].triple])[0] is not None


def follows_again(cluster: TestCluster, node: str) -> bool:
    """Whether it could be written down that the node is a minion again, which on a busy machine
    takes more than one attempt. A commit under way when it was fenced is nobody's: the writer puts
    its cells again."""
    with suppress(StorageUnavailable):
        try:
            follow_again(cluster.admin, node)
        except ProtectData:
            clone(cluster.admin, node)
        return True
    return False


def rolled_back(clusters: dict[str, TestCluster]) -> bool:
    with suppress(StorageUnavailable):
        mover.roll_back(admins(clusters), SHARD, again_s=0)
        return True
    return False


def stored(engine: ClusteredEngine, first: int) -> bool:
    with suppress(StorageUnavailable):
        return all(result.acknowledged for result in engine.put(cells(first, 1)))
    return False


def test_what_was_buffered_for_a_cluster_goes_where_its_shard_is_now(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    with closing(open_engine(clusters, copies=1)) as buffering:
        written = cells(1, 20)
        engine.put(written[:10])
        buffering._puts._buffered._copy("c1", written)  # type: ignore[union-attr]
        away = [
            PutResult(Outcome.FAILED, SHARD, error=StorageUnavailable("c1 is away"))
            for _ in written
        ]
        buffering._puts._buffered._accept("c1", ["c2"], written, away)  # type: ignore[union-attr]
        assert {result.outcome for result in away} == {Outcome.BUFFERED}
        move(clusters, engine, "c2")
        with pytest.raises(Exception, match="only cells below 0"):
            buffering.trim(SHARD, 5)
        assert buffering.drain.drain_once(0) == 20
        assert buffering.drain.counts() == {"c1": [], "c2": []}
        shown(buffering, 20)
        assert [each[0] for each in log(buffering)] == list(range(20))
        assert {result.outcome for result in buffering.put(written)} == {Outcome.EXISTS}


def test_a_process_that_does_not_know_the_new_cluster_refuses_and_serves_the_other_shards(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    everything = {name: each.openers() for name, each in clusters.items()}
    with closing(
        ClusteredEngine(DATASTORE, SHARDS, {name: everything[name] for name in ("c1", "c2")})
    ) as ordinary:
        ordinary.put(cells(1, 5))
        ordinary.placement._clusters = {
            "c1": ordinary.clusters["c1"]
        }  # as one that was started before c2 was made
        move(clusters, engine, "c2")
        with pytest.raises(
            StorageUnavailable, match="moved to cluster 'c2', which the configuration"
        ):
            ordinary.put(cells(2, 1))
        with pytest.raises(StorageUnavailable, match="start the process again"):
            ordinary.scan(SHARD, 0, 10)
        assert ordinary.put(cells(3, 1, 0))[0].outcome is Outcome.STORED


def test_what_the_source_keeps_is_dropped_only_when_every_cluster_knows(
    clusters: dict[str, TestCluster], engine: ClusteredEngine
) -> None:
    engine.put(cells(1, 30))
    with pytest.raises(NotFound, match="keeps anything"):
        mover.clean(admins(clusters), SHARD, engine.dictionaries.complete)
    set_failpoint("move.between_maps", "raise")
    with pytest.raises(FailpointReached):
        move(clusters, engine, "c2")
    clear_failpoints()
    [found] = underway(admins(clusters))
    assert (found.stage, found.source, found.target) == ("switched", "c1", "c2")
    with pytest.raises(InvalidRequest, match="is on c2 already"):
        mover.roll_back(admins(clusters), SHARD)
    with pytest.raises(ProtectData, match="does not know yet"):
        mover.clean(admins(clusters), SHARD, engine.dictionaries.complete)
    assert move(clusters, engine, "c2").was_there
    assert [each.stage for each in underway(admins(clusters))] == ["kept"]
    set_failpoint("move.inside_clean", "raise")
    with pytest.raises(FailpointReached):
        mover.clean(admins(clusters), SHARD, engine.dictionaries.complete)
    clear_failpoints()
    assert mover.clean(admins(clusters), SHARD, engine.dictionaries.complete) == "c1"
    assert underway(admins(clusters)) == []
    for server in clusters["c1"].servers.values():
        wait_until(
            lambda server=server: not server.sql("SHOW DATABASES LIKE 'trips_0001'"),  # type: ignore[misc]  # mypy infers no lambda with a default
            "nothing is kept",
        )
    assert len(log(engine)) == 30
    states = [MySqlState(each.admin.server("a"), each.admin.meta) for each in clusters.values()]
    assert {told.by_shard()[SHARD] for state in states if (told := read_map(state))} == {"c2"}


def test_a_shard_that_cannot_be_switched_in_time_is_given_back_and_goes_on(
    clusters: dict[str, TestCluster], engine: ClusteredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Datastore(open_engine(clusters)) as datastore, writing(datastore) as writer:
        watch_failpoint("move.after_hide", lambda: time.sleep(0.55))
        monkeypatch.setattr(waiting, "FENCE_MAX_S", 0.5)
        try:
            with pytest.raises(InvalidRequest, match="could not be switched"):
                move(clusters, engine, "c2")
        finally:
            unwatch_failpoint("move.after_hide")
            monkeypatch.setattr(waiting, "FENCE_MAX_S", BUSY_FENCE_MAX_S)
        assert serving(clusters) == ["c1"]
        writer.goes_on()
        move(clusters, engine, "c2")
        writer.goes_on()


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
