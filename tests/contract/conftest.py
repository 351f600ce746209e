"""Stores in process, and each client at a worker of such a store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cellfeed.store.api import CellStore
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.http.client import Client
from tests.support import local_mariadb
from tests.support.client_in_loop import ClientInLoop
from tests.support.local_mariadb import MariaDB
from tests.support.local_mysql import EMPTY
from tests.support.worker_thread import worker_thread


@pytest.fixture(scope="module", params=["sqlite", "mysql"])
def datastore(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Datastore]:
    if request.param == "mysql":
        server = request.getfixturevalue("mariadb_server")
        local_mariadb.drop_all_databases(server)
        opened = Datastore(MySqlEngine(MySqlServer(server.url), "trips", 16, create=True))
    else:
        opened = Datastore.open_embedded(tmp_path_factory.mktemp("store"), "trips", 16)
    with opened:
        yield opened


@pytest.fixture(scope="module")
def client(datastore: Datastore) -> Iterator[Client]:
    with worker_thread(datastore) as url, Client(url, "trips") as opened:
        yield opened


@pytest.fixture(scope="module")
def client_in_loop(datastore: Datastore) -> Iterator[ClientInLoop]:
    with worker_thread(datastore) as url, ClientInLoop(url, "trips") as opened:
        yield opened


@pytest.fixture(params=sorted(EMPTY.values()))
def either_server(request: pytest.FixtureRequest) -> MariaDB:
    """A MariaDB server, then a MySQL server, without any database."""
    found: MariaDB = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["datastore", "client", "client_in_loop"])
def store(request: pytest.FixtureRequest, datastore: Datastore) -> CellStore:
    found: CellStore = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["client", "client_in_loop"])
def remote(request: pytest.FixtureRequest, datastore: Datastore) -> CellStore:
    found: CellStore = request.getfixturevalue(request.param)
    return found
