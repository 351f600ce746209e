"""Faults of a MySQL server and of the way to it, made on a real one: nothing acknowledged is lost,
nothing is reported wrongly, the log stays gapless.

Each test proves that its fault happened: by the proxy's rule, by what the server itself says, or by
what is in its tables.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pymysql
import pytest
from pymysql.connections import Connection

from cellfeed.store.cells.cell import NewCell, Outcome, new_cell
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.mysql import cells as mysql_cells
from cellfeed.store.engines.mysql import connections, statements
from cellfeed.store.engines.mysql import put as mysql_put
from cellfeed.store.engines.mysql.checks import PACKET_BYTES_MIN
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import CellfeedError, OutcomeUnknown, StorageUnavailable
from tests.support import local_mariadb
from tests.support.local_mariadb import MariaDB
from tests.support.small_disk import NoSmallDisk, fill, make_room, small_disk
from tests.support.tcp_proxy import Action, Direction, TcpProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

SHARDS = 4
SMALL_DISK_BYTES = 220 << 20
TIMEOUT_S = 1.0
"""Of the connections in tests that wait for it to pass."""


@pytest.fixture
def proxy(empty_mariadb: MariaDB) -> Iterator[TcpProxy]:
    with TcpProxy(empty_mariadb.port, mysql=True) as opened:
        yield opened


@pytest.fixture
def engine(proxy: TcpProxy) -> Iterator[MySqlEngine]:
    with closing(open_engine(proxy.port, create=True)) as opened:
        yield opened


@pytest.fixture
def direct(empty_mariadb: MariaDB) -> Iterator[Connection[Any]]:
    """A connection that does not pass the proxy."""
    with (
        closing(MySqlServer(empty_mariadb.url)) as server,
        closing(server.open_connection()) as opened,
    ):
        yield opened


class _InThread(threading.Thread):
    """Runs ``call`` in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self._error: CellfeedError | None = None
        self.start()

    def run(self) -> None:
        try:
            self._call()
        except CellfeedError as error:
            self._error = error

    def error(self) -> CellfeedError | None:
        """The error that the call raised, once it has ended."""
        self.join(30)
        assert not self.is_alive()
        return self._error


def open_engine(
    port: int, *, create: bool = False, timeout_s: float = connections.TIMEOUT_S, user: str = "root"
) -> MySqlEngine:
    return MySqlEngine(
        MySqlServer(f"mysql://{user}@127.0.0.1:{port}", timeout_s), "trips", SHARDS, create=create
    )


def cells(count: int, first: int = 0) -> list[NewCell]:
    return [new_cell(UUID(int=n), "BASE", 1, {"n": n}) for n in range(first, first + count)]


def stored(connection: Connection[Any]) -> int:
    return sum(
        int(count)
        for shard in range(SHARDS)
        for (count,) in query(connection, f"SELECT COUNT(*) FROM trips_{shard:04d}.cell")
    )


def assert_log_is_whole(engine: MySqlEngine, count: int) -> None:
    """Gapless from 0 on every shard, ``count`` cells in all, and the counters agree."""
    heads = engine.heads()
    logs = {shard: engine.scan(shard, 0, 10_000) for shard in range(SHARDS)}
    for shard, log in logs.items():
        assert [cell.added_id for cell in log] == list(range(heads[shard].next_added_id))
    assert sum(map(len, logs.values())) == count


# --- the connection is lost -----------------------------------------------------------------------


def test_a_connection_lost_between_the_commit_and_its_answer_is_unknown_and_the_retry_tells(
    engine: MySqlEngine, proxy: TcpProxy, direct: Connection[Any]
) -> None:
    rule = proxy.on_query("COMMIT", Action.CUT_AFTER)
    with pytest.raises(OutcomeUnknown):
        engine.put(cells(10))
    assert rule.happened.is_set()
    assert stored(direct) == 10
    assert [result.outcome for result in engine.put(cells(10))] == [Outcome.EXISTS] * 10
    assert_log_is_whole(engine, 10)


def test_a_connection_lost_before_the_commit_reaches_the_server_writes_nothing(
    engine: MySqlEngine, proxy: TcpProxy, direct: Connection[Any]
) -> None:
    rule = proxy.on_query("COMMIT", Action.CUT_BEFORE)
    with pytest.raises(OutcomeUnknown):
        engine.put(cells(10))
    assert rule.happened.is_set()
    assert stored(direct) == 0
    assert [result.outcome for result in engine.put(cells(10))] == [Outcome.STORED] * 10
    assert_log_is_whole(engine, 10)


def test_a_connection_lost_between_the_inserts_and_the_commit_rolls_them_back(
    engine: MySqlEngine, proxy: TcpProxy, direct: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "PACKET_BYTES_MAX", 100)  # a packet per statement
    inserts, commit = (
        proxy.on_query("INSERT INTO trips_0001", Action.HOLD_ANSWER),
        proxy.on_query("COMMIT", Action.CUT_BEFORE),
    )
    inserts.release()
    with pytest.raises(OutcomeUnknown):
        engine.put(cells(10))
    assert inserts.happened.is_set()
    assert commit.happened.is_set()
    assert stored(direct) == 0
    assert [result.outcome for result in engine.put(cells(10))] == [Outcome.STORED] * 10
    assert_log_is_whole(engine, 10)


@pytest.mark.parametrize("statement", ["BEGIN", "FOR UPDATE", "INSERT INTO trips_0001"])
def test_a_connection_lost_before_the_commit_is_sent_costs_the_caller_nothing(
    engine: MySqlEngine, proxy: TcpProxy, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "PACKET_BYTES_MAX", 100)
    rule = proxy.on_query(statement, Action.CUT_AFTER)
    assert [result.outcome for result in engine.put(cells(10))] == [Outcome.STORED] * 10
    assert rule.happened.is_set()
    assert proxy.cuts == 1
    assert_log_is_whole(engine, 10)


def test_a_put_that_is_cut_off_in_the_middle_of_its_bytes_never_runs(
    engine: MySqlEngine, proxy: TcpProxy, direct: Connection[Any]
) -> None:
    large = [
        new_cell(UUID(int=n), "BASE", 1, {"n": random.Random(n).randbytes(400_000).hex()})
        for n in range(20)
    ]
    proxy.drop_after(3_000_000, Direction.TO_SERVER)
    with pytest.raises((StorageUnavailable, OutcomeUnknown)):
        engine.put(large)
    assert proxy.cuts == 1
    assert proxy.dropped[Direction.TO_SERVER] > 0
    assert stored(direct) == 0
    assert [result.outcome for result in engine.put(large)] == [Outcome.STORED] * 20


def test_the_same_holds_for_the_state_table(engine: MySqlEngine, proxy: TcpProxy) -> None:
    rule = proxy.on_query("COMMIT", Action.CUT_AFTER)
    with pytest.raises(OutcomeUnknown):
        engine.state.commit({"a": b"1"}, expect={"a": None})
    assert rule.happened.is_set()
    entry = engine.state.get("a")
    assert entry is not None
    assert engine.state.commit({"a": b"1"}, expect={"a": None}) is None


def test_connections_that_the_server_closed_while_they_were_idle_are_not_used(
    engine: MySqlEngine, proxy: TcpProxy, direct: Connection[Any]
) -> None:
    engine.put(cells(10))
    ours = [
        int(thread)
        for (thread,) in query(
            direct,
            "SELECT ID FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID() AND COMMAND"
            " = 'Sleep'",
        )
    ]
    assert ours
    for thread in ours:
        query(direct, f"KILL {thread}")
    wait_until(lambda: not proxy.open_now, "the connections have ended")
    before = proxy.connections
    assert sum(map(len, (engine.scan(shard, 0, 100) for shard in range(SHARDS)))) == 10
    assert proxy.connections > before


# --- few cells have one answer where the server is MariaDB; of many, statements are sent before
# those ahead are answered ----------


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard's cells are a piece of their own."""
    monkeypatch.setattr(mysql_put, "_PIECE_CELLS", 1)


@pytest.fixture(params=["MariaDB", "MySQL", "in pieces"])
def answered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """How a put to all shards is sent: as the engine does it to the server that it believes it
    talks to, or many cells in pieces. Its end was sent for so many answers, the COMMIT's among
    them."""
    asked: list[int] = []
    run_script = statements.run_script

    def counted(
        connection: Connection[Any], statements: Sequence[str], *, after_commit: Sequence[str] = ()
    ) -> None:
        asked.append(len(statements))
        run_script(connection, statements, after_commit=after_commit)

    monkeypatch.setattr(statements, "run_script", counted)
    if request.param == "in pieces":
        request.getfixturevalue("in_pieces")
    if request.param == "MySQL":
        monkeypatch.setattr(Connection, "get_server_info", lambda _: "8.0.36")
    yield
    # An INSERT for each shard and the counters' UPDATE; of a new column there is one more. Behind
    # pieces there is only the COMMIT.
    assert (
        asked[-1]
        in {"MariaDB": (2,), "MySQL": (SHARDS + 2, SHARDS + 3), "in pieces": (1,)}[request.param]
    )


@pytest.mark.usefixtures("answered")
def test_cells_of_which_some_were_stored_before_are_each_told_what_they_came_to(
    engine: MySqlEngine,
) -> None:
    engine.put(cells(10, first=100))
    mixed = [
        *cells(40),
        *cells(10, first=100),
        new_cell(UUID(int=100), "BASE", 1, {"n": "another"}),
        *cells(3),
    ]
    outcomes = [result.outcome for result in engine.put(mixed)]
    assert (
        outcomes
        == [Outcome.STORED] * 40 + [Outcome.EXISTS] * 10 + [Outcome.CONFLICT] + [Outcome.EXISTS] * 3
    )
    assert_log_is_whole(engine, 50)


@pytest.mark.usefixtures("answered")
@pytest.mark.parametrize("failing", range(SHARDS))
def test_when_one_of_the_statements_fails_those_before_it_are_rolled_back(
    engine: MySqlEngine, direct: Connection[Any], failing: int
) -> None:
    query(direct, f"RENAME TABLE trips_{failing:04d}.cell TO trips_{failing:04d}.away")
    with pytest.raises(StorageUnavailable, match="nothing written"):
        engine.put(cells(40))
    query(direct, f"RENAME TABLE trips_{failing:04d}.away TO trips_{failing:04d}.cell")
    assert stored(direct) == 0
    assert [result.outcome for result in engine.put(cells(40))] == [Outcome.STORED] * 40
    assert_log_is_whole(engine, 40)


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("action", [Action.CUT_BEFORE, Action.CUT_AFTER, Action.CUT_BLIND])
def test_a_connection_lost_between_two_pieces_costs_the_caller_nothing(
    engine: MySqlEngine, proxy: TcpProxy, action: Action
) -> None:
    rule = proxy.on_query("INSERT INTO trips_0002", action)
    assert [result.outcome for result in engine.put(cells(40))] == [Outcome.STORED] * 40
    assert rule.happened.is_set()
    assert proxy.cuts == 1
    assert_log_is_whole(engine, 40)


@pytest.mark.usefixtures("in_pieces")
def test_the_commit_of_many_cells_is_sent_when_every_piece_is_answered(
    engine: MySqlEngine, proxy: TcpProxy, direct: Connection[Any]
) -> None:
    insert, commit = (
        proxy.on_query("INSERT INTO trips_0001", Action.HOLD_ANSWER),
        proxy.on_query("COMMIT", Action.CUT_BEFORE),
    )
    putting = _InThread(lambda: engine.put(cells(40)))
    assert insert.happened.wait(60)
    assert not commit.happened.wait(0.2)
    insert.release()
    assert isinstance(putting.error(), OutcomeUnknown)
    assert commit.happened.is_set()
    assert stored(direct) == 0
    assert [result.outcome for result in engine.put(cells(40))] == [Outcome.STORED] * 40


# --- the server hangs -----------------------------------------------------------------------------


def test_a_connection_to_a_server_that_says_nothing_is_given_up_long_before_a_statement_would_be(
    proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.stall()
    with (
        monkeypatch.context() as patched,
        closing(MySqlServer(f"mysql://root@127.0.0.1:{proxy.port}", 600)) as server,
    ):
        patched.setattr(connections, "GREETING_TIMEOUT_S", 0.2)
        with pytest.raises(StorageUnavailable, match="nothing written"):
            server.open_connection()
    assert proxy.connections == 1, "it was taken, and then nothing was said"


def test_the_limit_for_the_greeting_is_none_for_statements(
    proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "GREETING_TIMEOUT_S", 2.0)
    with (
        closing(MySqlServer(f"mysql://root@127.0.0.1:{proxy.port}")) as server,
        server.connection() as connection,
    ):
        assert query(connection, "SELECT SLEEP(2.2)")[0][0] == "0"


def test_an_answer_to_a_commit_that_does_not_come_in_time_is_unknown(
    engine: MySqlEngine, proxy: TcpProxy, direct: Connection[Any]
) -> None:
    rule = proxy.on_query("COMMIT", Action.HOLD_ANSWER)
    with closing(open_engine(proxy.port, timeout_s=TIMEOUT_S)) as impatient:
        with pytest.raises(OutcomeUnknown):
            impatient.put(cells(10))
        assert rule.happened.is_set()
        assert stored(direct) == 10
        rule.release()
        assert [result.outcome for result in impatient.put(cells(10))] == [Outcome.EXISTS] * 10


def test_a_server_that_does_not_answer_at_all_is_unavailable_after_one_time_out(
    engine: MySqlEngine, proxy: TcpProxy
) -> None:
    with closing(open_engine(proxy.port, timeout_s=TIMEOUT_S)) as impatient:
        proxy.stall()
        began_s = time.monotonic()
        with pytest.raises(StorageUnavailable, match="nothing written"):
            impatient.put(cells(10))
        assert time.monotonic() - began_s >= TIMEOUT_S
        # One connection was used, and none was opened to try again.
        assert proxy.connections == 2
        proxy.resume()
        assert [result.outcome for result in impatient.put(cells(10))] == [Outcome.STORED] * 10


# --- other transactions ---------------------------------------------------------------------------


def test_a_put_that_gives_way_in_a_deadlock_is_run_again(
    engine: MySqlEngine, direct: Connection[Any]
) -> None:
    by_shard = {shard_of(cell.row_key, SHARDS): cell for cell in cells(50)}
    # The server lets the transaction give way that has changed less: this one has changed much.
    query(direct, "CREATE TABLE trips_meta.weight (n INT PRIMARY KEY)")
    query(direct, "BEGIN")
    query(direct, f"INSERT INTO trips_meta.weight VALUES {','.join(f'({n})' for n in range(500))}")
    query(direct, "SELECT * FROM trips_meta.shard_counter WHERE shard = 3 FOR UPDATE")
    put = _InThread(lambda: engine.put([by_shard[0], by_shard[3]]))
    _wait_for_lock_waits(direct, 1)
    query(
        direct, "SELECT * FROM trips_meta.shard_counter WHERE shard = 0 FOR UPDATE"
    )  # now each waits for the other
    query(direct, "COMMIT")
    assert put.error() is None
    assert b"WE ROLL BACK TRANSACTION" in _innodb_status(direct)
    assert_log_is_whole(engine, 2)


def test_a_counter_that_stays_locked_is_told_and_writes_nothing(
    engine: MySqlEngine, proxy: TcpProxy, direct: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        connections,
        "_SESSION",
        connections._SESSION.replace(
            "innodb_lock_wait_timeout = 10", "innodb_lock_wait_timeout = 1"
        ),
    )
    with closing(open_engine(proxy.port)) as impatient:
        query(direct, "BEGIN")
        query(direct, "SELECT * FROM trips_meta.shard_counter FOR UPDATE")
        with pytest.raises(StorageUnavailable, match=r"1205.*left open"):
            impatient.put(cells(10))
        query(direct, "ROLLBACK")
        assert stored(direct) == 0
        assert [result.outcome for result in impatient.put(cells(10))] == [Outcome.STORED] * 10


def test_a_commit_held_back_holds_the_next_of_its_shard_and_no_other(
    engine: MySqlEngine, proxy: TcpProxy
) -> None:
    mine = [cell for cell in cells(100) if shard_of(cell.row_key, SHARDS) == 2]
    others = [cell for cell in cells(100) if shard_of(cell.row_key, SHARDS) == 1]
    rule = proxy.on_query("COMMIT", Action.HOLD_QUERY)
    order: list[str] = []

    def put(name: str, cell: NewCell) -> None:
        engine.put([cell])
        order.append(name)

    threads = [threading.Thread(target=put, args=("first", mine[0]))]
    threads[0].start()
    assert rule.happened.wait(60)
    threads += [
        threading.Thread(target=put, args=("same shard", mine[1])),
        threading.Thread(target=put, args=("another shard", others[0])),
    ]
    threads[1].start()
    threads[2].start()
    threads[2].join()
    assert order == ["another shard"]
    assert engine.scan(2, 0, 10) == []
    rule.release()
    for thread in threads:
        thread.join()
    assert [(cell.added_id, cell.row_key) for cell in engine.scan(2, 0, 10)] == [
        (0, mine[0].row_key),
        (1, mine[1].row_key),
    ]


def test_a_tailer_skips_nothing_while_commits_are_held_back_and_reordered(
    engine: MySqlEngine, proxy: TcpProxy
) -> None:
    held = [proxy.on_query("COMMIT", Action.HOLD_QUERY) for _ in range(3)]
    groups = [
        [cell for cell in cells(400) if shard_of(cell.row_key, SHARDS) == shard][:20]
        for shard in range(3)
    ]
    done = threading.Event()
    seen: dict[int, list[int]] = {shard: [] for shard in range(SHARDS)}

    def tail() -> None:
        while True:
            ends = done.is_set()
            for shard, ids in seen.items():
                ids += [
                    cell.added_id for cell in engine.scan(shard, ids[-1] + 1 if ids else 0, 100)
                ]
            if ends:
                return

    def write(group: list[NewCell]) -> None:
        for cell in group:
            engine.put([cell])

    tailer = threading.Thread(target=tail)
    writers = [threading.Thread(target=write, args=(group,)) for group in groups]
    for thread in (tailer, *writers):
        thread.start()
    for rule in reversed(held):
        assert rule.happened.wait(60)
        rule.release()
    for thread in writers:
        thread.join()
    done.set()
    tailer.join()
    assert [seen[shard] for shard in range(3)] == [list(range(20))] * 3
    assert_log_is_whole(engine, 60)


# --- the server refuses ---------------------------------------------------------------------------


def test_a_read_only_server_writes_nothing_whatever_the_user_may(
    engine: MySqlEngine, direct: Connection[Any]
) -> None:
    query(direct, "SET GLOBAL read_only = 1")
    try:
        with pytest.raises(StorageUnavailable, match="read-only"):
            engine.put(cells(10))
        assert engine.heads()[0].next_added_id == 0
    finally:
        query(direct, "SET GLOBAL read_only = 0")
    assert stored(direct) == 0
    assert [result.outcome for result in engine.put(cells(10))] == [Outcome.STORED] * 10


def test_a_server_that_becomes_read_only_under_a_put_writes_nothing(
    engine: MySqlEngine, proxy: TcpProxy, direct: Connection[Any]
) -> None:
    for statement in (
        "CREATE USER app@'127.0.0.1'",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO app@'127.0.0.1'",
    ):
        query(direct, statement)
    try:
        with closing(open_engine(proxy.port, user="app")) as app:
            rule = proxy.on_query("COMMIT", Action.HOLD_QUERY)
            put = _InThread(lambda: app.put(cells(10)))
            assert rule.happened.wait(60)
            query(direct, "SET GLOBAL read_only = 1")
            rule.release()
            error = put.error()
    finally:
        query(direct, "SET GLOBAL read_only = 0")
        query(direct, "DROP USER app@'127.0.0.1'")
    assert isinstance(error, StorageUnavailable)
    assert "1290" in str(error)
    assert stored(direct) == 0


def _take_connections(port: int, taken: ExitStack) -> None:
    while True:
        taken.enter_context(closing(pymysql.connect(host="127.0.0.1", port=port, user="root")))


def test_a_server_without_a_connection_left_is_unavailable_until_there_is_one(
    engine: MySqlEngine, empty_mariadb: MariaDB, direct: Connection[Any]
) -> None:
    before = int(query(direct, "SELECT @@GLOBAL.max_connections")[0][0])
    query(direct, "SET GLOBAL max_connections = 10")
    with ExitStack() as taken:
        taken.callback(query, direct, f"SET GLOBAL max_connections = {before}")
        with pytest.raises(pymysql.err.OperationalError, match="1040"):
            _take_connections(empty_mariadb.port, taken)
        with pytest.raises(StorageUnavailable, match=r"1040.*max_connections"):
            open_engine(empty_mariadb.port)
    with closing(open_engine(empty_mariadb.port)) as opened:
        assert [result.outcome for result in opened.put(cells(10))] == [Outcome.STORED] * 10


def test_a_group_larger_than_any_packet_is_written_whole(
    engine: MySqlEngine, proxy: TcpProxy, direct: Connection[Any]
) -> None:
    before = int(query(direct, "SELECT @@GLOBAL.max_allowed_packet")[0][0])
    query(direct, f"SET GLOBAL max_allowed_packet = {PACKET_BYTES_MIN}")
    try:
        large = [
            new_cell(UUID(int=n), "BASE", 1, {"n": random.Random(n).randbytes(450_000).hex()})
            for n in range(45)
        ]
        with closing(open_engine(proxy.port)) as opened:
            assert [result.outcome for result in opened.put(large)] == [Outcome.STORED] * 45
        assert proxy.passed[Direction.TO_SERVER] > PACKET_BYTES_MIN
        assert_log_is_whole(engine, 45)
    finally:
        query(direct, f"SET GLOBAL max_allowed_packet = {before}")


def test_rows_of_one_shard_are_cut_into_statements_of_a_packet_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mysql_cells, "PACKET_BYTES_MAX", 10)
    assert list(mysql_cells.parts(["12345", "1234", "123", "1" * 50, "1"])) == [
        ["12345", "1234"],
        ["123"],
        ["1" * 50],
        ["1"],
    ]


# --- the machine ----------------------------------------------------------------------------------


@pytest.fixture
def own_server() -> Iterator[MariaDB]:
    """A server that a test may kill."""
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    with local_mariadb.running() as server:
        yield server


def test_what_a_killed_server_had_committed_is_there_when_it_is_back(own_server: MariaDB) -> None:
    with (
        TcpProxy(own_server.port, mysql=True) as proxy,
        closing(open_engine(proxy.port, create=True)) as engine,
    ):
        acknowledged = engine.put(cells(50))
        rule = proxy.on_query("COMMIT", Action.HOLD_ANSWER)
        put = _InThread(lambda: engine.put(cells(50, first=50)))
        assert rule.happened.wait(60)
        assert own_server.process is not None
        killed = own_server.process.pid
        own_server.kill()
        proxy.cut()
        assert isinstance(put.error(), OutcomeUnknown)
        with pytest.raises(StorageUnavailable):
            engine.heads()
        own_server.start()
        assert own_server.process.pid != killed
        again = engine.put(cells(100))
        assert [result.outcome for result in again] == [Outcome.EXISTS] * 100
        assert [result.added_id for result in again[:50]] == [
            result.added_id for result in acknowledged
        ]
        assert_log_is_whole(engine, 100)


def test_ids_of_a_put_that_a_killed_server_never_committed_go_to_the_next(
    own_server: MariaDB,
) -> None:
    with (
        TcpProxy(own_server.port, mysql=True) as proxy,
        closing(open_engine(proxy.port, create=True)) as engine,
    ):
        engine.put(cells(50))
        rule = proxy.on_query("COMMIT", Action.HOLD_QUERY)
        put = _InThread(lambda: engine.put(cells(50, first=50)))
        assert rule.happened.wait(60)
        own_server.kill()
        proxy.cut()
        assert isinstance(put.error(), OutcomeUnknown)
        own_server.start()
        other = [new_cell(uuid4(), "BASE", 1, {}) for _ in range(30)]
        assert [result.outcome for result in engine.put(other)] == [Outcome.STORED] * 30
        assert_log_is_whole(engine, 80)


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a small disk of its own. Skips where it cannot be mounted."""
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    try:
        with small_disk(SMALL_DISK_BYTES) as directory:
            yield directory
    except NoSmallDisk as reason:
        pytest.skip(str(reason))


def test_a_full_disk_loses_nothing_and_is_over_when_there_is_room(disk: Path) -> None:
    options = ("--innodb-log-file-size=8M", "--innodb-undo-tablespaces=0")
    server = local_mariadb.new_server(disk / "node", options=options, sparse=False)
    server.start()
    with ExitStack() as stack:
        stack.callback(server.stop)
        engine = stack.enter_context(closing(open_engine(server.port, create=True)))
        impatient = stack.enter_context(closing(open_engine(server.port, timeout_s=TIMEOUT_S)))
        acknowledged = [cell for group in _groups(3) for cell in group if engine.put(group)]
        fill(disk)
        answers = [(group, _error_of(impatient, group)) for group in _groups(30, first=3)]
        failed = [group for group, error in answers if isinstance(error, StorageUnavailable)]
        unknown = [group for group, error in answers if isinstance(error, OutcomeUnknown)]
        assert len(failed) + len(unknown) == sum(error is not None for _, error in answers)
        # A commit that the server has and cannot write may be written once there is room: its fate
        # is unknown. Those behind it never come as far.
        assert failed
        assert len(unknown) < len(failed)
        assert shutil.disk_usage(disk).free < 1 << 20
        make_room(disk)
        # The server goes through the commits that waited for room; "not written" stays true.
        extra = [new_cell(UUID(int=1 << 40), "BASE", 1, {})]
        _until_stored(engine, [extra], server)
        assert engine.get([cell.triple for group in failed for cell in group]) == [None] * sum(
            map(len, failed)
        )
        # What was refused is put again, as a client would: each is stored, or turns out to have
        # been.
        groups = _groups(33)
        _until_stored(engine, groups, server)
        for cell in acknowledged:
            [found] = engine.get([cell.triple])
            assert found is not None
        assert_log_is_whole(engine, sum(map(len, groups)) + len(extra))


def _groups(count: int, first: int = 0) -> list[list[NewCell]]:
    """Groups of ten cells, a megabyte each."""
    return [
        [
            new_cell(
                UUID(int=10 * n + i),
                "BASE",
                1,
                {"n": random.Random(10 * n + i).randbytes(50_000).hex()},
            )
            for i in range(10)
        ]
        for n in range(first, first + count)
    ]


def _error_of(engine: MySqlEngine, group: list[NewCell]) -> CellfeedError | None:
    try:
        engine.put(group)
    except CellfeedError as error:
        return error
    return None


def _until_stored(engine: MySqlEngine, groups: list[list[NewCell]], server: MariaDB) -> None:
    # A server that waits for room on its disk looks again only once a minute.
    deadline_s = time.monotonic() + 90
    for group in groups:
        while (error := _error_of(engine, group)) is not None:
            assert time.monotonic() < deadline_s, error
            # InnoDB ends the server when it cannot write its own log, some time after the disk was
            # full; one that continues is well, too.
            if server.process is not None and server.process.poll() is not None:
                server.start()
            time.sleep(0.5)


# --- looking --------------------------------------------------------------------------------------


def _wait_for_lock_waits(connection: Connection[Any], count: int) -> None:
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        if (
            len(
                query(
                    connection,
                    "SELECT 1 FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'",
                )
            )
            >= count
        ):
            return
        time.sleep(0.15)  # the server looks again only when this was not read for 0.1 s
    raise AssertionError("nobody waits for a lock")


def _innodb_status(connection: Connection[Any]) -> bytes:
    [(_, _, status)] = query(connection, "SHOW ENGINE INNODB STATUS")
    return status if isinstance(status, bytes) else str(status).encode()
