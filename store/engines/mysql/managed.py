"""A managed endpoint: one address, behind which a service puts another server when the first one
fails (RDS Multi-AZ, Aurora, Cloud SQL). Nothing here knows of its replication.

The operator asserts that a failover loses no commit, and that the server before it is read-only or
gone when the next one takes writes. Upon that:

    a demoted server is never read   a connection stays with the server that it has reached, also
                                     when the address leads to another one. So each is asked for
                                     ``read_only`` before every use, and a read-only one is closed
                                     with all that are kept. A read that began before the server
                                     became read-only is as good as one that ended then: nobody
                                     else took writes yet
    a write                          is guarded as on every master
                                     (:mod:`cellfeed.store.engines.mysql.guard`); an answer that
                                     the server is read-only closes all connections as well

A new connection that finds a read-only server raises StorageUnavailable: the address leads to a
reader, or the failover is under way.
"""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection

from cellfeed.store.engines.mysql.errors import READ_ONLY, error_code
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import StorageUnavailable


def is_demoted(connection: Connection[Any]) -> bool:
    """Whether the server takes no writes: it is no master (any more). Raises the driver's
    errors."""
    [(found,)] = query(connection, "SELECT @@GLOBAL.read_only + @@GLOBAL.innodb_read_only")
    return bool(int(found))


def refuse_demoted(server: object, connection: Connection[Any]) -> None:
    """Raises StorageUnavailable for a server that takes no writes."""
    if is_demoted(connection):
        raise StorageUnavailable(
            f"{server}: nothing read or written: the server behind this managed endpoint is"
            " read-only: a failover is under way, or the address is that of a reader"
        )


def says_read_only(error: BaseException) -> bool:
    """Whether the server refused a statement because it is read-only."""
    return error_code(error) in READ_ONLY
