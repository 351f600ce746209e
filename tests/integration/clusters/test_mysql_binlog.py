"""The events that a put leaves in the binary log of a MariaDB server: its rows, which minions take,
and not the text of its statements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import UUID

import pytest
from pymysql.connections import Connection

from cellfeed.store.cells.cell import new_cell
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.statements import is_mariadb, query
from tests.support.local_mariadb import MariaDB

pytestmark = pytest.mark.integration


@pytest.fixture
def direct(empty_mariadb: MariaDB) -> Iterator[Connection[Any]]:
    with (
        closing(MySqlServer(empty_mariadb.url)) as server,
        closing(server.open_connection()) as opened,
    ):
        assert is_mariadb(opened)
        yield opened


@pytest.fixture
def engine(empty_mariadb: MariaDB) -> Iterator[MySqlEngine]:
    with closing(MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 4, create=True)) as opened:
        yield opened


def put_and_look(engine: MySqlEngine, direct: Connection[Any], first: int) -> set[str]:
    """The kinds of events that a put of ten cells has added to the log."""
    file, position, *_ = query(direct, "SHOW MASTER STATUS")[0]
    for result in engine.put(
        [new_cell(UUID(int=n), "BASE", 1, {"n": n}) for n in range(first, first + 10)]
    ):
        result.or_raise()
    return {
        kind
        for _, _, kind, *_ in query(direct, f"SHOW BINLOG EVENTS IN '{file}' FROM {int(position)}")
    }


def test_the_binary_log_has_the_rows_of_a_put_and_not_its_statements(
    engine: MySqlEngine, direct: Connection[Any]
) -> None:
    kinds = put_and_look(engine, direct, 0)
    assert "Write_rows_v1" in kinds
    assert "Annotate_rows" not in kinds


def test_an_account_without_the_right_to_omit_statements_from_the_binlog_still_puts(
    empty_mariadb: MariaDB, engine: MySqlEngine, direct: Connection[Any]
) -> None:
    put_and_look(engine, direct, 0)
    query(direct, "CREATE USER app@'127.0.0.1'")
    query(direct, "GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO app@'127.0.0.1'")
    try:
        with closing(
            MySqlEngine(MySqlServer(f"mysql://app@127.0.0.1:{empty_mariadb.port}"), "trips", 4)
        ) as app:
            kinds = put_and_look(app, direct, 10)
    finally:
        query(direct, "DROP USER app@'127.0.0.1'")
    assert {"Write_rows_v1", "Annotate_rows"} <= kinds
