"""An old master that nobody could fence, and a process that reaches all nodes: it reports nothing
as absent that the new master has acknowledged (I1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any
from uuid import UUID, uuid4

import pytest

from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.clusters.model.roles import TAKEOVER_S
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating import new_master
from cellfeed.store.clusters.operating import promote as promote_module
from cellfeed.store.clusters.operating.new_master import raise_epoch
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.serving import known_role, sure_reads
from cellfeed.store.clusters.serving import node as node_module
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.engines.contract.index_values import Entry, EntrySelect, IndexTable, Selected
from cellfeed.store.engines.mysql import operation_locks
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.read_only import open_for_writes
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import StorageUnavailable
from tests.support.local_mariadb import MariaDB
from tests.support.mariadb_cluster import (
    DATASTORE,
    SHARDS,
    TestCluster,
    make_cluster,
    node_opener,
)
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

_READS = 20


@pytest.fixture(params=[True, False], ids=["semi-synchronous", "asynchronous"])
def cluster(servers: list[MariaDB], request: pytest.FixtureRequest) -> Iterator[TestCluster]:
    made = make_cluster("c1", servers, semi_sync=request.param)
    yield made
    made.admin.close()
    made.bare()


class Promoted:
    """A cluster whose node b is made master where the old one cannot be reached, as behind a switch
    that failed. ``put`` writes there at once, and no process in between learns of it."""

    def __init__(self, cluster: TestCluster) -> None:
        self.cluster = cluster
        self._nowhere = MySqlServer("mysql://root@127.0.0.1:1")
        self._role = cluster_role(cluster.admin)[0]
        self._master = MySqlEngine(MySqlServer(cluster.servers["b"].url), DATASTORE, SHARDS)

    def promote(self) -> None:
        side = ClusterServers(
            self.cluster.name,
            DATASTORE,
            SHARDS,
            {**self.cluster.admin.servers, "a": self._nowhere},
            semi_sync=self.cluster.admin.semi_sync,
        )
        promoted = promote(side, to="b")
        self._terms = self._role.promoted("b", ["c"], "", promoted.epoch).terms

    def put(self, cell: NewCell) -> None:
        assert self._master.put([cell], self._terms)[0].outcome is Outcome.STORED

    def index(self, table: IndexTable, entry: Entry) -> None:
        self._master.indexes.apply(table, {0: [entry]}, terms=self._terms)

    def save(self, key: str, value: bytes) -> None:
        assert self._master.state.commit({key: value}, None, self._terms) is not None

    def close(self) -> None:
        self._master.close()
        self._nowhere.close()


@pytest.fixture
def promoted(cluster: TestCluster) -> Iterator[Promoted]:
    made = Promoted(cluster)
    yield made
    made.close()


@pytest.fixture
def _idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Watchers look only when they are asked to, and their news counts for long: the most that a
    process that has read nothing lately may be wrong by."""
    monkeypatch.setattr(node_module, "_IDLE_LOOK_S", 60.0)
    for part in (known_role, sure_reads):
        monkeypatch.setattr(part, "CONFIRM_S", 60.0)


def is_there(engine: ClusteredEngine, row_key: UUID, ask: Callable[..., object]) -> bool | None:
    """None where the engine cannot tell."""
    try:
        return bool(ask(engine, row_key))
    except StorageUnavailable:
        return None


def by_triple(engine: ClusteredEngine, row_key: UUID) -> object:
    return engine.get([new_cell(row_key, "BASE", 2, {}).triple])[0]


def latest(engine: ClusteredEngine, row_key: UUID) -> object:
    """Whether the newest cell of the column is the one that was acknowledged last."""
    [found] = engine.latest([(row_key.bytes, "BASE")])
    return found is not None and (found.stale or found.cell.ref_key == 2)


def row(engine: ClusteredEngine, row_key: UUID) -> object:
    [found] = engine.row([row_key.bytes])
    return any(each.stale or each.cell.ref_key == 2 for each in found)


@pytest.mark.usefixtures("_idle")
@pytest.mark.parametrize("ask", [by_triple, latest, row])
def test_a_cell_that_the_new_master_acknowledged_is_never_reported_absent(
    cluster: TestCluster, promoted: Promoted, ask: Callable[..., object]
) -> None:
    reader = ClusteredEngine(DATASTORE, SHARDS, {"c1": cluster.openers()})
    try:
        row_key = uuid4()
        assert reader.put([new_cell(row_key, "BASE", 1, {"n": 1})])[0].outcome is Outcome.STORED
        assert is_there(reader, row_key, by_triple) is False
        promoted.promote()
        promoted.put(new_cell(row_key, "BASE", 2, {"n": 2}))
        told = [is_there(reader, row_key, ask) for _ in range(_READS)]
        assert False not in told, told
        wait_until(lambda: is_there(reader, row_key, ask) is True, "the new master is read")
    finally:
        reader.close()


@pytest.mark.usefixtures("_idle")
def test_an_index_query_is_not_the_old_masters_word(
    cluster: TestCluster, promoted: Promoted
) -> None:
    table = IndexTable("t1", ((0,),), (64,))
    entry = Entry(uuid4().bytes, True, (1,), (b"value",))
    wanted = EntrySelect(0, b"value", (), None, False, None, 10)
    reader = ClusteredEngine(DATASTORE, SHARDS, {"c1": cluster.openers()})
    try:
        reader.indexes.create(table)
        assert reader.indexes.select(table, [wanted]) == Selected([[]], False)
        wait_until(
            lambda: all(has_table(cluster.servers[name], table) for name in ("b", "c")),
            "the minions have the table",
        )
        promoted.promote()
        promoted.index(table, entry)
        answers: list[Selected] = []

        def answered() -> bool:
            # The fence cuts connections: until the next look a read may be refused.
            with suppress(StorageUnavailable):
                answers.append(reader.indexes.select(table, [wanted]))
            return bool(answers)

        wait_until(answered, "a node is read")
        entries, stale = answers[0]
        assert entries == [[entry]] or stale
        wait_until(
            lambda: reader.indexes.select(table, [wanted]) == Selected([[entry]], False),
            "the new master is read",
        )
    finally:
        reader.close()


@pytest.mark.usefixtures("_idle")
def test_an_offset_is_read_where_it_was_saved_last(
    cluster: TestCluster, promoted: Promoted
) -> None:
    reader = ClusteredEngine(DATASTORE, SHARDS, {"c1": cluster.openers()})
    try:
        assert reader.state.commit({"offset": b"10"}) is not None
        wait_until(
            lambda: all(entries(cluster.servers[name]) for name in ("b", "c")),
            "the minions have the entry",
        )
        promoted.promote()
        promoted.save("offset", b"500")
        told = [reader.state.get("offset"), *reader.state.list("off")]
        assert [each and each.value for each in told] == [b"500", b"500"]
    finally:
        reader.close()


def entries(server: MariaDB) -> int:
    [(count,)] = server.sql(
        f"SELECT COUNT(*) FROM {DATASTORE}_meta.state_entry WHERE entry_key = 'offset'"
    )
    return int(str(count))


def has_table(server: MariaDB, table: IndexTable) -> bool:
    [(count,)] = server.sql(
        f"SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_NAME LIKE '%{table.name}%'"
    )
    return int(str(count)) >= SHARDS


@pytest.mark.usefixtures("_idle")
def test_a_reader_that_cannot_reach_the_new_master_does_not_report_absence(
    cluster: TestCluster, promoted: Promoted
) -> None:
    with ExitStack() as stack:
        way = stack.enter_context(TcpProxy(cluster.servers["b"].port))
        openers = cluster.openers() | {"b": node_opener(f"mysql://root@127.0.0.1:{way.port}")}
        reader = ClusteredEngine(DATASTORE, SHARDS, {"c1": openers})
        stack.callback(reader.close)
        row_key = uuid4()
        assert is_there(reader, row_key, by_triple) is False
        assert way.down() > 0
        assert is_there(reader, row_key, by_triple) is False, "a majority tells that a is master"
        server = MySqlServer(cluster.servers["c"].url)
        behind = stack.enter_context(server.connection())
        spared = (server.address, int(behind.thread_id()))  # type: ignore[no-untyped-call]
        operation_locks.LOCKING.add(spared)
        stack.callback(operation_locks.LOCKING.discard, spared)
        query(behind, "BEGIN")
        query(behind, f"SELECT * FROM {DATASTORE}_meta.state_entry FOR UPDATE")
        promoted.promote()
        # The minion receives it, and can apply nothing: it still names the old master.
        promoted.put(new_cell(row_key, "BASE", 2, {"n": 2}))
        told = [is_there(reader, row_key, by_triple) for _ in range(_READS)]
        assert told == [None] * _READS
        query(behind, "ROLLBACK")
        way.clear()
        wait_until(lambda: is_there(reader, row_key, by_triple) is True, "the new master is read")


def test_a_new_master_takes_writes_only_after_its_role_could_be_read_for_a_while(
    promoted: Promoted, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_s: dict[str, float] = {}

    def raised(*given: Any) -> None:
        raise_epoch(*given)
        at_s["raised"] = time.monotonic()

    def opened(server: MySqlServer) -> None:
        at_s["opened"] = time.monotonic()
        open_for_writes(server)

    longer_s = 4.0  # than a busy machine takes to point a minion to its new master
    monkeypatch.setattr(new_master, "TAKEOVER_S", longer_s)
    monkeypatch.setattr(promote_module, "raise_epoch", raised)
    monkeypatch.setattr(new_master, "open_for_writes", opened)
    promoted.promote()
    assert at_s["opened"] - at_s["raised"] >= longer_s


def test_reads_that_find_a_cell_ask_no_other_node_and_one_look_serves_all_that_find_none(
    cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "_IDLE_LOOK_S", 60.0)
    reader = ClusteredEngine(DATASTORE, SHARDS, {"c1": cluster.openers()})
    try:
        cell = new_cell(uuid4(), "BASE", 1, {"n": 1})
        reader.put([cell])
        reader.get([cell.triple])
        time.sleep(2 * TAKEOVER_S)
        before = looks(reader)
        for _ in range(100):
            assert reader.get([cell.triple])[0]
        assert looks(reader) == before
        began_s = time.monotonic()
        for _ in range(100):
            assert reader.get([new_cell(uuid4(), "BASE", 1, {}).triple]) == [None]
        asked = looks(reader) - before
        assert 2 <= asked <= 2 * (1 + (time.monotonic() - began_s) / TAKEOVER_S), "both minions"
    finally:
        reader.close()


def looks(reader: ClusteredEngine) -> int:
    """How many looks at nodes a process has begun."""
    return sum(node._begun for node in reader.clusters["c1"].nodes.values())
