"""A server that refuses writes, and machines that die or have no room."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pymysql
import pytest
from pymysql.connections import Connection

from cellfeed.store.cells.cell import NewCell, new_cell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.engines.mysql import cells as mysql_cells
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.server_rules import PACKET_BYTES_MIN
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import CellfeedError, OutcomeUnknown, StorageUnavailable
from tests.support import local_mariadb
from tests.support.local_mariadb import MariaDB
from tests.support.mysql_fault_steps import (
    TIMEOUT_S,
    _InThread,
    assert_log_is_whole,
    cells,
    open_engine,
    stored,
)
from tests.support.small_disk import NoSmallDisk, fill, make_room, small_disk
from tests.support.tcp_proxy import Action, Direction, TcpProxy

pytestmark = pytest.mark.integration

SMALL_DISK_BYTES = 220 << 20


def test_a_read_only_server_writes_nothing_even_for_a_privileged_user(
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


def test_a_server_without_a_free_connection_is_unavailable_until_one_is_free(
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


@pytest.fixture
def own_server() -> Iterator[MariaDB]:
    """A server that a test may kill."""
    if reason := local_mariadb.why_not():
        pytest.skip(reason)
    with local_mariadb.running() as server:
        yield server


def test_cells_that_a_killed_server_committed_are_there_after_its_restart(
    own_server: MariaDB,
) -> None:
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
        # The refused cells are put again, as a client would: each is stored, or turns out to have
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
