"""A server that hangs, and transactions that wait for others."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from typing import Any

import pytest
from pymysql.connections import Connection

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.engines.mysql import connection, connections
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import OutcomeUnknown, StorageUnavailable
from tests.support.mysql_fault_steps import (
    SHARDS,
    TIMEOUT_S,
    _InThread,
    assert_log_is_whole,
    cells,
    open_engine,
    stored,
)
from tests.support.tcp_proxy import Action, TcpProxy

pytestmark = pytest.mark.integration


def test_a_silent_server_is_given_up_long_before_a_statements_time_out(
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


def test_a_commit_without_an_answer_in_time_is_unknown(
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


def test_a_put_behind_a_locked_counter_gets_an_error_and_writes_nothing(
    engine: MySqlEngine, proxy: TcpProxy, direct: Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        connections,
        "SESSION",
        connection.SESSION.replace("innodb_lock_wait_timeout = 10", "innodb_lock_wait_timeout = 1"),
    )
    with closing(open_engine(proxy.port)) as impatient:
        query(direct, "BEGIN")
        query(direct, "SELECT * FROM trips_meta.shard_counter FOR UPDATE")
        with pytest.raises(StorageUnavailable, match=r"1205.*left open"):
            impatient.put(cells(10))
        query(direct, "ROLLBACK")
        assert stored(direct) == 0
        assert [result.outcome for result in impatient.put(cells(10))] == [Outcome.STORED] * 10


def test_a_delayed_commit_delays_the_next_of_its_shard_and_of_no_other(
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


def test_a_tailer_skips_no_cell_while_commits_are_delayed_and_reordered(
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
