"""Refusals of a restore on one MySQL server, and the revision of its state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from cellfeed.store.backups.into_mysql import MySqlRestore
from cellfeed.store.clusters.model.restore_mark import Mark
from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.engine import MySqlEngine
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.errors import ProtectData
from tests.support.local_mariadb import MariaDB

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mariadb")]

MARK = Mark("2026-01-01", "00", Role("c1", "a", 1))


@pytest.fixture
def restore(empty_mariadb: MariaDB) -> Iterator[MySqlRestore]:
    with closing(MySqlServer(empty_mariadb.url)) as server:
        MySqlEngine(MySqlServer(empty_mariadb.url), "trips", 1, create=True).close()
        yield MySqlRestore(server, Layout("trips", 1))


def revision(server: MariaDB) -> int:
    [(found,)] = server.sql("SELECT revision FROM trips_meta.state_revision")
    return int(found)


def test_a_server_that_buffers_cells_of_another_cluster_takes_no_backup(
    restore: MySqlRestore, empty_mariadb: MariaDB
) -> None:
    restore.check(MARK)
    empty_mariadb.sql(
        "INSERT INTO trips_meta.buffered_cell (owner, row_key, column_name, ref_key, body,"
        " buffered_at) VALUES ('c2', REPEAT('k', 16), 'BASE', 1, '', NOW(6))"
    )
    with pytest.raises(ProtectData, match="it buffers 1 cells"):
        restore.check(MARK)
    with pytest.raises(ProtectData, match="it buffers 1 cells"):
        restore.begin(MARK)


def test_the_revision_of_the_state_is_never_lower_than_the_backups_or_the_servers(
    restore: MySqlRestore, empty_mariadb: MariaDB
) -> None:
    """Writers compare revisions: one that came again would let a write of an old view pass."""
    before = revision(empty_mariadb)
    restore.complete([], [], [], before + 500)
    assert revision(empty_mariadb) == before + 500
    restore.complete([], [], [("a", b"1")], before + 3)
    assert revision(empty_mariadb) == before + 501
    [(version,)] = empty_mariadb.sql(
        "SELECT version FROM trips_meta.state_entry WHERE entry_key = 'a'"
    )
    assert version == before + 501
