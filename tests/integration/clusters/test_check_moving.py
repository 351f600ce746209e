"""A check of a server beside moves: a shard that leaves while the server is looked at is no
finding, and damage in one that stays is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from pymysql.connections import Connection

from cellfeed.store.engines.contract.findings import Findings
from cellfeed.store.engines.mysql import integrity, statements
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.layout import Layout
from tests.support.local_mariadb import MariaDB
from tests.support.rides import rides

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mariadb")]

LAYOUT = Layout("trips", 2)
TABLE = "trips_0001.cell"
HIDE = "RENAME TABLE trips_0001.cell TO trips_0001.moved_cell"
SHOW = "RENAME TABLE trips_0001.moved_cell TO trips_0001.cell"
LEAVE = "DELETE FROM trips_meta.shard_counter WHERE shard = 1"


@pytest.fixture
def server(empty_mariadb: MariaDB) -> Iterator[MySqlServer]:
    server = MySqlServer(empty_mariadb.url)
    with closing(MySqlEngine(server, "trips", 2, create=True)) as engine:
        engine.put(rides(0, 100))
        yield server


@pytest.fixture
def around_check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Has something done before and after the server's own check of the shard's table; gives the
    list of these checks."""

    def install(
        before: Callable[[], object], after: Callable[[], object] = lambda: None, times: int = 1
    ) -> list[str]:
        asked = statements.query
        checks = list[str]()

        def query(connection: Connection[Any], sql: str) -> Sequence[tuple[Any, ...]]:
            if sql != f"CHECK TABLE {TABLE}":
                return asked(connection, sql)
            checks.append(sql)
            if len(checks) > times:
                return asked(connection, sql)
            before()
            try:
                return asked(connection, sql)
            finally:
                after()

        monkeypatch.setattr(integrity, "query", query)
        return checks

    return install


def findings(server: MySqlServer) -> list[tuple[str, int | None]]:
    found = Findings()
    integrity.check_node("c1/a", server, LAYOUT, found)
    return [(each.kind, each.shard) for each in found.found]


def test_a_shard_that_leaves_while_its_server_is_checked_is_no_finding(
    server: MySqlServer, empty_mariadb: MariaDB, around_check: Callable[..., list[str]]
) -> None:
    checks = around_check(lambda: empty_mariadb.sql(LEAVE, HIDE))
    assert findings(server) == []
    assert checks, "it left before the server looked at its table"


def test_a_shard_that_was_fenced_and_given_back_meanwhile_is_no_finding(
    server: MySqlServer, empty_mariadb: MariaDB, around_check: Callable[..., list[str]]
) -> None:
    checks = around_check(lambda: empty_mariadb.sql(HIDE), lambda: empty_mariadb.sql(SHOW))
    assert findings(server) == []
    assert len(checks) == 2, "a finding is looked at once more"


def test_a_served_shard_without_its_table_is_a_finding(
    server: MySqlServer, empty_mariadb: MariaDB
) -> None:
    empty_mariadb.sql(HIDE)
    assert ("integrity", None) in findings(server)
