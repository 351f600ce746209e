"""Another server takes the address of a managed endpoint, while connections to the first one stay
open: it is never read again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cellfeed.store.engines.mysql.address import parse_mysql_url
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import StorageUnavailable
from tests.support.local_mysql import MySql
from tests.support.managed_endpoint import DATASTORE, SHARDS, USER, ManagedEndpoint
from tests.support.mariadb_cluster import cells_of_shard
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mysql-managed")]

BEFORE, AFTER = cells_of_shard(1, 0, 3), cells_of_shard(1, 1, 1)


@pytest.fixture
def other(endpoint: ManagedEndpoint) -> Iterator[MySql]:
    with endpoint.open() as datastore:
        assert all(each.acknowledged for each in datastore.put_new_cells(BEFORE))
    second = endpoint.copy_of_server()
    yield second
    second.kill()


def connections_to(server: MySql) -> int:
    [(count,)] = server.sql(
        f"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = '{USER}'"
    )
    return int(count)


def fail_over(endpoint: ManagedEndpoint, other: MySql) -> None:
    """The first server takes no writes any more, and keeps its connections; new ones reach the
    other."""
    endpoint.server.sql("SET GLOBAL super_read_only = 1")
    endpoint.proxy.target_port = other.port
    assert connections_to(endpoint.server) > 0, "nothing is left to be read by mistake"


def test_no_read_of_a_datastore_is_answered_by_the_demoted_server(
    endpoint: ManagedEndpoint, other: MySql
) -> None:
    with endpoint.open() as writer, endpoint.open() as reader:
        [first] = [cell for cell in reader.engine.get([BEFORE[0].triple]) if cell is not None]
        reader.engine.heads()
        fail_over(endpoint, other)

        def written() -> bool:
            [result] = writer.put_new_cells(AFTER)
            return result.acknowledged

        wait_until(written, "a put on the server that has the address now")
        [found] = reader.engine.get([AFTER[0].triple])
        assert found is not None
        assert reader.engine.get([BEFORE[0].triple]) == [first]
        assert reader.engine.heads()[1].watermark == len(BEFORE) + len(AFTER)
        log = reader.engine.scan(1, 0, 100)
        assert [cell.added_id for cell in log] == list(range(len(BEFORE) + len(AFTER)))
    [(left,)] = endpoint.server.sql(f"SELECT COUNT(*) FROM {DATASTORE}_0001.cell")
    assert left == len(BEFORE), "the first server took a write after it was demoted"


def test_each_read_of_an_engine_closes_every_kept_connection_to_the_demoted_server(
    endpoint: ManagedEndpoint, other: MySql
) -> None:
    server = MySqlServer(parse_mysql_url(endpoint.url, managed=True))
    engine = MySqlEngine(server, DATASTORE, SHARDS)
    try:
        with server.connection(), server.connection(), server.connection():
            assert connections_to(endpoint.server) == 3
        fail_over(endpoint, other)
        assert engine.get([BEFORE[0].triple]) != [None]
        wait_until(lambda: connections_to(endpoint.server) == 0, "no connection is kept")
        assert connections_to(other) == 1
    finally:
        engine.close()


def test_a_write_that_finds_the_server_read_only_closes_every_kept_connection(
    endpoint: ManagedEndpoint, other: MySql
) -> None:
    server = MySqlServer(parse_mysql_url(endpoint.url, managed=True))
    try:
        with server.connection(), server.connection():
            pass

        def write_to_the_demoted() -> None:
            with server.connection() as opened:
                fail_over(endpoint, other)
                query(opened, f"DELETE FROM {DATASTORE}_0001.cell")

        with pytest.raises(StorageUnavailable, match="read-only"):
            write_to_the_demoted()
        wait_until(lambda: connections_to(endpoint.server) == 0, "no connection is kept")
    finally:
        server.close()


def test_an_endpoint_that_leads_to_a_reader_is_neither_read_nor_written(
    endpoint: ManagedEndpoint,
) -> None:
    endpoint.server.sql("SET GLOBAL read_only = 1")
    server = MySqlServer(parse_mysql_url(endpoint.url, managed=True))
    try:
        with pytest.raises(StorageUnavailable, match="the address is that of a reader"):
            server.rows("SELECT 1")
        endpoint.server.sql("SET GLOBAL read_only = 0")
        assert server.rows("SELECT 1") == (("1",),)
    finally:
        server.close()
