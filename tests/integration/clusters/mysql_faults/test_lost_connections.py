"""A connection to the server is lost at each step of a put."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest
from pymysql.connections import Connection

from cellfeed.store.cells.cell import new_cell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.engines.mysql import statements
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import OutcomeUnknown, StorageUnavailable
from tests.support.mysql_fault_steps import SHARDS, assert_log_is_whole, cells, stored
from tests.support.tcp_proxy import Action, Direction, TcpProxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


def test_a_put_is_unknown_when_its_connection_is_lost_after_the_commit_and_a_retry_settles_it(
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


def test_a_state_commit_is_unknown_when_its_connection_is_lost_after_the_commit(
    engine: MySqlEngine, proxy: TcpProxy
) -> None:
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
