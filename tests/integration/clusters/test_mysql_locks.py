"""User locks on a real server: kept by a living holder, and taken over from one that has just
gone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.locks import free_locks, take_lock
from cellfeed.store.engines.mysql.statements import query
from tests.support.cluster_steps import eventually
from tests.support.local_mariadb import MariaDB

pytestmark = pytest.mark.integration

NAME = "cellfeed-it's a lock"


@pytest.fixture
def server(mariadb_server: MariaDB) -> Iterator[MySqlServer]:
    with closing(MySqlServer(mariadb_server.url)) as opened:
        yield opened


def test_a_lock_is_kept_by_a_live_connection(server: MySqlServer) -> None:
    with closing(server.open_connection()) as holder, closing(server.open_connection()) as other:
        assert take_lock(holder, NAME)
        assert not take_lock(other, NAME)
        assert take_lock(other, "cellfeed-another")


def test_a_named_lock_is_awaited_until_the_dying_connection_has_ended(server: MySqlServer) -> None:
    got: list[bool] = []
    with closing(server.open_connection()) as asking:
        holder = server.open_connection()
        assert take_lock(holder, NAME)
        waiter = threading.Thread(target=lambda: got.append(take_lock(asking, NAME)))
        waiter.start()
        with server.connection() as looking:
            waiting = "SELECT 1 FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'"
            eventually(lambda: bool(query(looking, waiting)) or bool(got), "somebody who waits")
        assert not got, "it gave up before the holder was gone"
        holder.close()
        waiter.join()
    assert got == [True]


def test_a_lock_that_was_freed_is_free_at_once(server: MySqlServer) -> None:
    with closing(server.open_connection()) as other:
        for _ in range(20):
            holder = server.open_connection()
            assert take_lock(holder, NAME)
            assert query(holder, f"SELECT IS_USED_LOCK({holder.escape(NAME)})")[0][0]
            free_locks(holder)
            [(free,)] = query(other, f"SELECT IS_FREE_LOCK({other.escape(NAME)})")
            assert int(free) == 1
    free_locks(holder)  # also one that is closed
