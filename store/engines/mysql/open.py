"""Opens the storage of one MySQL or MariaDB server: refuses a server, a schema or tables that would
lose or mix up cells."""

from __future__ import annotations

from cellfeed.store.engines.mysql.checks import check_server, refuse
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.migrations import check_schema, migrate
from cellfeed.store.engines.mysql.table_checks import check_tables


def open_storage(server: MySqlServer, layout: Layout, *, create: bool) -> None:
    """``create``: makes the databases where they are missing. Raises ProtectData,
    WrongServerSettings, StorageUnavailable."""
    with server.connection() as connection:
        refuse(server, check_server(connection, managed=server.address.managed))
    if create:
        migrate(server, layout, create=True)
    check_schema(server, layout)
    with server.connection() as connection:
        refuse(server, check_tables(connection, layout))
