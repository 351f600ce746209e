"""Every write to a master is guarded (``store/engines/mysql/guard.py``): state, buffer copies,
dictionaries, indexes and migrations as cells are. On real servers: restarted, fenced, promoted, and
with settings of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from pymysql.connections import Connection

from cellfeed.store.cells.cell import new_cell
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.clusters.model.roles import Role, read_role
from cellfeed.store.clusters.operating.migrate import migrate_cluster
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.engines.contract.index_values import IndexTable
from cellfeed.store.engines.contract.state_limits import REVISIONS_SKIPPED
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.guard_sql import DURABLE_SETTINGS
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.migrations import migrate
from cellfeed.store.engines.mysql.read_only import make_read_only, open_for_writes
from cellfeed.store.engines.mysql.schema_steps import SCHEMA_VERSION, STEPS, Step
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.errors import (
    CellfeedError,
    OutcomeUnknown,
    ProtectData,
    StaleWriter,
    StorageUnavailable,
    Unavailable,
)
from tests.support.cluster_steps import NAMESPACE, eventually, open_engine, without_replication
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, cells_of_shard

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

CELL = new_cell(NAMESPACE, "BASE", 1, {"n": 1})
TABLE = IndexTable("ix_guarded", ((0,),), (None,))
PATIENCE_S = 1.5

Write = Callable[[MySqlEngine, WriteTerms], object]

WRITES: dict[str, Write] = {
    "a state commit": lambda engine, terms: engine.state.commit({"offset/0": b"500"}, None, terms),
    "a buffer copy": lambda engine, terms: engine.buffer.add("c2", [CELL], terms),
    "an accepted buffer copy": lambda engine, terms: engine.buffer.accept("c2", [CELL], terms),
    "the removal of a buffer copy": lambda engine, terms: engine.buffer.remove([1], terms),
    "the removal of unaccepted copies": lambda engine, terms: engine.buffer.remove_copies(
        "c2", [CELL], terms
    ),
    "the removal of a buffered row": lambda engine, terms: engine.buffer.remove_row(
        "c2", CELL.row_key, terms
    ),
    "a buffer conflict": lambda engine, terms: engine.buffer.mark_conflict(1, "other body", terms),
    "a dictionary": lambda engine, terms: engine.dictionaries.add(
        Dictionary("BASE", b"content" * 40, 1, 1), terms
    ),
    "a dictionary's use": lambda engine, terms: engine.dictionaries.use(
        Dictionary("BASE", b"content" * 40, 1, 1), 0, terms
    ),
    "the end of a dictionary's use": lambda engine, terms: engine.dictionaries.stop_using(7, terms),
    "the end of a dictionary": lambda engine, terms: engine.dictionaries.take_away(7, {}, terms),
    "another encoding of a body": lambda engine, terms: engine.replace_bodies(0, [], terms),
    "an index table": lambda engine, terms: engine.indexes.create(TABLE, terms),
    "the drop of an index table": lambda engine, terms: engine.indexes.drop(TABLE, terms),
    "the fences of an index": lambda engine, terms: engine.indexes.set_fences({0: 7}, terms),
    "a put": lambda engine, terms: engine.put(cells_of_shard(0, 1, 1), terms),
    "a trim": lambda engine, terms: engine.trim(0, 0, 10, terms),
    "an erasure": lambda engine, terms: engine.erase(CELL.row_key, 10, terms),
}


@contextmanager
def opened(server: MariaDB, timeout_s: float = PATIENCE_S) -> Iterator[MySqlEngine]:
    engine = MySqlEngine(MySqlServer(server.url, timeout_s), DATASTORE, SHARDS)
    try:
        yield engine
    finally:
        engine.close()


def terms_of(cluster: TestCluster) -> WriteTerms:
    return cluster_role(cluster.admin)[0].terms


def prepare(server: MariaDB, terms: WriteTerms) -> None:
    """Things that some writes need there: otherwise they would write nothing, guarded or not."""
    with opened(server) as engine:
        engine.buffer.add("c2", [CELL], terms)
        engine.dictionaries.add(Dictionary("BASE", b"content" * 40, 1, 1), terms)
        engine.indexes.create(TABLE, terms)


def refusal(engine: MySqlEngine, write: Write, terms: WriteTerms | None) -> CellfeedError:
    try:
        written = write(engine, terms)  # type: ignore[arg-type]
    except CellfeedError as error:
        return error
    pytest.fail(f"it was taken: {written}")


def refusals(server: MariaDB, terms: WriteTerms | None) -> dict[str, CellfeedError]:
    """How each kind of write was refused; none may be taken, nor leave anything in the binary
    log."""
    found = {}
    position = server.sql("SELECT @@GLOBAL.gtid_binlog_pos")
    with opened(server) as engine:
        for name, write in WRITES.items():
            found[name] = refused = refusal(engine, write, terms)
            assert refused.definite, name
            assert server.sql("SELECT @@GLOBAL.gtid_binlog_pos") == position, name
    return found


def test_a_fenced_master_takes_no_write_of_any_kind(cluster: TestCluster) -> None:
    server, terms = cluster.servers["a"], terms_of(cluster)
    prepare(server, terms)
    make_read_only(cluster.admin.server("a"))
    try:
        for name, refused in refusals(server, terms).items():
            assert isinstance(refused, StorageUnavailable), name
            assert "nothing written: it is read-only" in str(refused), name
    finally:
        open_for_writes(cluster.admin.server("a"))


def test_a_master_that_is_read_only_and_unfenced_acknowledges_no_put(cluster: TestCluster) -> None:
    """A fence changes the settings of semi-synchronous replication, too; an operator that sets
    ``read_only``, or a restart with it, does not."""
    server, terms = cluster.servers["a"], terms_of(cluster)
    prepare(server, terms)
    server.sql("SET GLOBAL read_only = 1")
    try:
        for name, refused in refusals(server, terms).items():
            assert "nothing written: it is read-only" in str(refused), name
    finally:
        server.sql("SET GLOBAL read_only = 0")


@pytest.mark.parametrize("name", DURABLE_SETTINGS)
def test_a_master_that_does_not_sync_its_commits_takes_no_write_of_any_kind(
    cluster: TestCluster, name: str
) -> None:
    server, terms = cluster.servers["a"], terms_of(cluster)
    prepare(server, terms)
    with opened(server) as engine:
        server.sql(f"SET GLOBAL {name} = 0")
        position = server.sql("SELECT @@GLOBAL.gtid_binlog_pos")
        try:
            for kind, write in WRITES.items():
                refused = refusal(engine, write, terms)
                assert isinstance(refused, StorageUnavailable), kind
                assert refused.definite, kind
                assert f"nothing written: {name} is 0" in str(refused), kind
            assert server.sql("SELECT @@GLOBAL.gtid_binlog_pos") == position
        finally:
            server.sql(f"SET GLOBAL {name} = 1")


def test_a_write_under_another_epoch_replication_mode_or_history_is_refused(
    cluster: TestCluster,
) -> None:
    server, terms = cluster.servers["a"], terms_of(cluster)
    prepare(server, terms)
    for stale in (
        terms._replace(leader_epoch=terms.leader_epoch + 1),
        terms._replace(semi_sync=False),
    ):
        for name, refused in refusals(server, stale).items():
            assert isinstance(refused, StaleWriter), name
    for name, refused in refusals(server, terms._replace(history_id="f" * 32)).items():
        assert isinstance(refused, ProtectData), name
        assert (
            f"nothing written: it belongs to history {terms.history_id}, the write to {'f' * 32}"
            in str(refused)
        ), name
    for name, refused in refusals(server, None).items():
        assert isinstance(refused, ProtectData), name
        assert "write through the cluster" in str(refused), name


def test_after_a_restart_of_the_master_no_put_is_acknowledged_without_a_minion(
    cluster: TestCluster,
) -> None:
    server, terms = cluster.servers["a"], terms_of(cluster)
    prepare(server, terms)
    server.kill()
    server.start()
    assert server.sql("SELECT @@GLOBAL.rpl_semi_sync_master_enabled") == [(0,)]
    without_replication(cluster, "b", "c")
    for name, write in WRITES.items():
        with opened(server) as engine:
            assert isinstance(refusal(engine, write, terms), Unavailable), name
    assert server.sql("SELECT @@GLOBAL.rpl_semi_sync_master_enabled") == [(1,)]


@pytest.mark.parametrize(
    "name",
    [
        "rpl_semi_sync_master_timeout = 10000",
        "rpl_semi_sync_master_wait_point = 'AFTER_COMMIT'",
        "rpl_semi_sync_master_wait_no_slave = 0",
    ],
)
def test_a_server_whose_own_settings_would_fall_back_is_set_right_before_a_write(
    cluster: TestCluster, name: str
) -> None:
    """Semi-synchronous replication is on, by other settings than ours, and has fallen back
    already."""
    server, terms = cluster.servers["a"], terms_of(cluster)
    server.sql("SET GLOBAL rpl_semi_sync_master_enabled = 1", f"SET GLOBAL {name}")
    without_replication(cluster, "b", "c")
    if "timeout" in name:
        server.sql(
            "SET GLOBAL rpl_semi_sync_master_timeout = 1",
            "CREATE DATABASE somebody_elses",
            f"SET GLOBAL {name}",
            "DROP DATABASE somebody_elses",
        )
        assert server.sql("SHOW STATUS LIKE 'Rpl_semi_sync_master_status'") == [
            ("Rpl_semi_sync_master_status", "OFF")
        ]
    with opened(server) as engine:
        with pytest.raises(StorageUnavailable, match="minion"):
            engine.put(cells_of_shard(0, 1, 1), terms)
        with pytest.raises(StorageUnavailable, match="minion"):
            engine.state.commit({"offset/0": b"500"}, None, terms)


def test_an_offset_that_was_acknowledged_is_there_after_the_master_restarted_and_died(
    cluster: TestCluster,
) -> None:
    """The attack that lost one: the restarted master, cut off, acknowledged 500; the promotion
    brought 10 back."""
    store = open_engine(cluster)
    assert store.state.commit({"offset/0": b"10"}) is not None
    server = cluster.servers["a"]
    server.kill()
    server.start()
    without_replication(cluster, "b", "c")
    acknowledged = b"10"
    with opened(server) as engine:
        try:
            engine.state.commit({"offset/0": b"500"}, None, terms_of(cluster))
            acknowledged = b"500"
        except Unavailable:
            pass
    server.kill()
    promote(cluster.admin)
    entry = store.state.get("offset/0")
    assert entry is not None
    assert entry.value == acknowledged
    store.close()
    server.start()


def test_a_cell_that_recovery_found_again_is_not_acknowledged_before_a_minion_has_it(
    cluster: TestCluster,
) -> None:
    """Its put was answered ``unknown``; to ask again at the restarted master finds it there, on no
    other node."""
    server, terms = cluster.servers["a"], terms_of(cluster)
    wanted = cells_of_shard(0, 1, 1)
    with opened(server) as engine:
        engine.put(cells_of_shard(0, 2, 1), terms)
        without_replication(cluster, "b", "c")
        with pytest.raises(OutcomeUnknown):
            engine.put(wanted, terms)
    server.kill()
    server.start()
    assert server.sql("SELECT COUNT(*) FROM trips_0000.cell") == [(2,)]
    with opened(server) as engine:
        for _ in range(2):
            # the first one breaks off in its wait, and must leave nothing that the second one
            # believes
            with pytest.raises(StorageUnavailable):
                engine.put(wanted, terms)
        cluster.servers["b"].sql("START SLAVE IO_THREAD")
        eventually(lambda: engine.put(wanted, terms)[0].acknowledged, "the minion is back")
    cluster.servers["c"].sql("START SLAVE IO_THREAD")


def test_a_read_by_key_at_a_restarted_master_is_sure_only_once_a_minion_has_the_cell(
    cluster: TestCluster,
) -> None:
    wanted = cells_of_shard(0, 1, 1)
    store = open_engine(cluster)
    store.put(cells_of_shard(0, 2, 1))
    without_replication(cluster, "b", "c")
    server = cluster.servers["a"]
    with opened(server) as engine, pytest.raises(OutcomeUnknown):
        engine.put(wanted, terms_of(cluster))
    server.kill()
    server.start()
    eventually(lambda: store.get([wanted[0].triple])[0] is not None, "recovery has found it again")
    [found] = store.get([wanted[0].triple])
    assert found is not None
    assert found.stale
    for name in "bc":
        cluster.servers[name].sql("START SLAVE IO_THREAD")
    eventually(
        lambda: (found := store.get([wanted[0].triple])[0]) is not None and not found.stale,
        "a minion has it",
    )
    store.close()


def test_versions_of_a_lost_history_are_never_given_again(cluster: TestCluster) -> None:
    """A lease that a lost commit took has a version which no later commit gets, so its holder's
    compare-and-set fails."""
    without_replication(cluster, "b", "c")
    server = cluster.servers["a"]
    server.sql("SET GLOBAL rpl_semi_sync_master_enabled = 0")
    # As another program's write would be: not acknowledged by us, and at a version that the next
    # commit would have got.
    lost = [
        (int(version),)
        for version in server.sql("SELECT revision + 1 FROM trips_meta.state_revision")[0]
    ]
    server.sql("UPDATE trips_meta.state_revision SET revision = revision + 1")
    server.kill()
    promote(cluster.admin)
    store = open_engine(cluster)
    version = store.state.commit({"lease/0": b"taken"})
    assert version is not None
    assert version > lost[0][0] + REVISIONS_SKIPPED - 1
    assert store.state.commit({"lease/0": b"mine"}, {"lease/0": lost[0][0]}) is None
    store.close()
    server.start()


def test_two_promotions_from_one_place_leave_different_gaps(cluster: TestCluster) -> None:
    gaps = []
    for _ in range(2):
        role, _ = cluster_role(cluster.admin)
        [(first,)] = cluster.servers[role.master].sql(
            "SELECT revision FROM trips_meta.state_revision"
        )
        done = promote(cluster.admin)
        eventually(
            lambda done=done: _follows_all(cluster, done.epoch, [done.master, *done.minions]),  # type: ignore[misc]
            "all have heard of it",
        )
        [(second,)] = cluster.servers[done.master].sql(
            "SELECT revision FROM trips_meta.state_revision"
        )
        gaps.append(int(str(second)) - int(str(first)))
    assert gaps[0] != gaps[1]
    assert all(gap >= REVISIONS_SKIPPED for gap in gaps)


def _follows_all(cluster: TestCluster, epoch: int, nodes: list[str]) -> bool:
    def told(node: str) -> Role | None:
        return read_role(MySqlState(cluster.admin.server(node), cluster.admin.meta))

    return all((role := told(node)) is not None and role.epoch == epoch for node in nodes)


def test_a_migration_is_guarded(cluster: TestCluster) -> None:
    def note(_connection: object, layout: Layout, run: Callable[[str], None]) -> None:
        run(
            f"CREATE TABLE IF NOT EXISTS {layout.meta}.note (one TINYINT NOT NULL PRIMARY KEY)"
            " ENGINE=InnoDB"
        )

    steps = (*STEPS, Step(SCHEMA_VERSION + 1, "a note", note))
    server, terms = cluster.admin.server("a"), terms_of(cluster)
    for stale in (None, terms._replace(leader_epoch=9)):
        with pytest.raises((StaleWriter, ProtectData), match="nothing written"):
            migrate(server, Layout(DATASTORE, SHARDS), steps=steps, terms=stale)
    assert not cluster.servers["a"].sql("SHOW TABLES IN trips_meta LIKE 'note'")
    assert migrate_cluster(cluster.admin).steps == []
    migrate(server, Layout(DATASTORE, SHARDS), steps=steps, terms=terms)
    assert cluster.servers["a"].sql("SHOW TABLES IN trips_meta LIKE 'note'")


def test_two_writers_that_mend_the_settings_at_once_let_no_commit_go_without_a_minion(
    cluster: TestCluster,
) -> None:
    """Switching semi-synchronous replication off lets waiting commits go: the second one must find
    it mended."""
    server, terms = cluster.servers["a"], terms_of(cluster)
    for attempt in range(5):
        server.sql(
            "SET GLOBAL rpl_semi_sync_master_enabled = 1",
            "SET GLOBAL rpl_semi_sync_master_timeout = 10000",
        )
        without_replication(cluster, "b", "c")
        stored: list[str] = []

        def write(key: str, stored: list[str] = stored) -> None:
            with opened(server, 1.0) as engine:
                try:
                    engine.state.commit({key: b"1"}, None, terms)
                    stored.append(key)
                except Unavailable:
                    pass

        threads = [
            threading.Thread(target=write, args=(f"key/{attempt}/{number}",)) for number in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert stored == []
        for name in "bc":
            cluster.servers[name].sql("START SLAVE IO_THREAD")


@pytest.mark.parametrize(
    "name", ["a state commit", "a buffer copy", "a dictionary", "a put", "a trim", "an erasure"]
)
def test_a_commit_that_an_operator_lets_go_without_a_minion_is_not_acknowledged(
    cluster: TestCluster, name: str
) -> None:
    """It waits for a minion when somebody switches semi-synchronous replication off by hand: the
    server answers it well, and a promotion may lose it."""
    server, terms = cluster.servers["a"], terms_of(cluster)
    with opened(server, 20.0) as engine, ThreadPoolExecutor(1) as beside:
        engine.put([CELL, *cells_of_shard(0, 2, 3)], terms)
        without_replication(cluster, "b", "c")
        trim: Write = lambda engine, terms: engine.trim(0, 2, 10, terms)  # noqa: E731
        answer = beside.submit(trim if name == "a trim" else WRITES[name], engine, terms)
        eventually(lambda: waits_for_a_minion(server), f"{name} waits for a minion")
        server.sql("SET GLOBAL rpl_semi_sync_master_enabled = 0")
        assert isinstance(answer.exception(), OutcomeUnknown)


def waits_for_a_minion(server: MariaDB) -> bool:
    """Whether a commit of this server does."""
    [(_, sessions)] = server.sql("SHOW STATUS LIKE 'Rpl_semi_sync_master_wait_sessions'")
    return bool(int(sessions) > 0)


@pytest.mark.parametrize("name", ["a state commit", "a put", "a buffer copy"])
def test_a_guarded_write_is_at_most_two_round_trips(
    cluster: TestCluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, terms = cluster.servers["a"], terms_of(cluster)
    sent: list[str] = []
    execute: Any = vars(Connection)["_execute_command"]

    def counted(self: Any, command: int, sql: str | bytes) -> None:
        sent.append(sql if isinstance(sql, str) else sql.decode())
        execute(self, command, sql)

    with opened(server) as engine:
        # The first write of a process finds the settings unconfirmed, and the column unknown.
        engine.put(cells_of_shard(0, 5, 1), terms)
        engine.state.commit({"offset/0": b"499"}, None, terms)
        monkeypatch.setattr(Connection, "_execute_command", counted)
        WRITES[name](engine, terms)
    writes = [sql for sql in sent if "COMMIT" in sql]
    assert len(writes) == 1, sent
    assert len(sent) <= 2, sent


def test_a_compare_and_set_takes_two_round_trips_whether_it_succeeds_or_not(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, terms = cluster.servers["a"], terms_of(cluster)
    with opened(server) as engine:
        version = engine.state.commit({"offset/0": b"499"}, None, terms)
        sent: list[object] = []
        execute: Any = vars(Connection)["_execute_command"]

        def counted(self: Any, command: int, sql: str | bytes) -> None:
            sent.append(sql)
            execute(self, command, sql)

        monkeypatch.setattr(
            Connection,
            "_execute_command",
            counted,
        )
        assert engine.state.commit({"offset/0": b"500"}, {"offset/0": version}, terms) is not None
        assert len(sent) == 2, sent
        sent.clear()
        assert engine.state.commit({"offset/0": b"501"}, {"offset/0": version}, terms) is None
        assert len(sent) == 2, sent
