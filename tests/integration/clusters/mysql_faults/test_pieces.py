"""Puts that are sent in several pieces: one piece fails, or the connection is lost between two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import pytest
from pymysql.connections import Connection

from cellfeed.store.cells.cell import new_cell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.engines.mysql import new_cells, statements
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import OutcomeUnknown, StorageUnavailable
from tests.support.local_mariadb import MariaDB
from tests.support.local_mysql import MySql
from tests.support.mysql_fault_steps import SHARDS, _InThread, assert_log_is_whole, cells, stored
from tests.support.tcp_proxy import Action, TcpProxy

pytestmark = pytest.mark.integration


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shard's cells are a piece of their own."""
    monkeypatch.setattr(new_cells, "PIECE_CELLS", 1)


@pytest.fixture(params=["MariaDB", "MySQL", "in pieces"])
def answered(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, empty_mariadb: MariaDB
) -> Iterator[None]:
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
    one_each = request.param == "MySQL" or isinstance(empty_mariadb, MySql)
    sent = request.param if request.param == "in pieces" else "MySQL" if one_each else "MariaDB"
    answers = {"MariaDB": (2,), "MySQL": (SHARDS + 2, SHARDS + 3), "in pieces": (1,)}
    assert asked[-1] in answers[sent]


@pytest.mark.usefixtures("answered")
def test_each_cell_of_a_partly_repeated_put_gets_its_own_outcome(
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
def test_when_one_statement_fails_the_earlier_ones_are_rolled_back(
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
