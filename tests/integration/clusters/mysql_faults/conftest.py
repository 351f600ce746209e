"""A server behind a proxy, and an engine on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from pymysql.connections import Connection

from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from tests.support.local_mariadb import MariaDB
from tests.support.local_mysql import EMPTY
from tests.support.mysql_fault_steps import open_engine
from tests.support.tcp_proxy import TcpProxy


@pytest.fixture(params=sorted(EMPTY.values()))
def empty_mariadb(request: pytest.FixtureRequest) -> MariaDB:
    """A MariaDB server, then a MySQL server, without any database."""
    found: MariaDB = request.getfixturevalue(request.param)
    return found


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
    """A connection of root that does not pass the proxy."""
    with (
        closing(MySqlServer(f"mysql://root@127.0.0.1:{empty_mariadb.port}")) as server,
        closing(server.open_connection()) as opened,
    ):
        yield opened
