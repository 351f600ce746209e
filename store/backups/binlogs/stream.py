"""Reads a master's binlog as its minions do, from a GTID position on, through the library
mysql-replication.

Row events come whole (`binlog_row_image=FULL`), so a cell is read as it was written, and its own
checksum is compared. Only tables of the datastore are decoded. A shard that is copied by a move has
its tables under other names until it is served: such a copy has no ids of its own.

The library decodes texts by the metadata of a table, which servers leave out by default. Every text
of these tables is binary, so it is read as bytes, with any metadata.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.converters import encoders
from pymysql.cursors import Cursor
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import HeartbeatLogEvent, MariadbGtidEvent, QueryEvent, XidEvent
from pymysqlreplication.row_event import UpdateRowsEvent, WriteRowsEvent

from cellfeed.store.backups.binlogs.position import Position, position_of, text_of
from cellfeed.store.backups.binlogs.transaction_rows import TransactionRows
from cellfeed.store.backups.binlogs.transactions import Transaction
from cellfeed.store.engines.mysql.cells import MICROSECONDS
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import DataDamaged, ProtectData, StorageUnavailable

HEARTBEAT_S: Final = 0.5
"""How often an idle master says that there is nothing new, in seconds: so often the reader can look
at its clock, and be stopped."""

_NOT_HERE: Final = 1236
"""ER_MASTER_FATAL_ERROR_READING_BINLOG: the server cannot send the events behind that position."""

_PURGED: Final = "purged"

_SETTINGS: Final = {
    "log_bin": ("1", "ON"),
    "binlog_format": ("ROW",),
    "binlog_row_image": ("FULL",),
    "log_bin_compress": ("0", "OFF"),
}
"""The settings of a server that an archive needs, with the values that fit."""

logging.getLogger("pymysqlreplication").setLevel(logging.ERROR)


class Purged(Exception):
    """The server no longer has the events behind a position."""


class Diverged(Exception):
    """The server never had a transaction that the position names."""


class Passed:
    """``transaction``: None for a sign of life. ``position``: behind it."""

    __slots__ = ("position", "transaction")

    def __init__(self, transaction: Transaction | None, position: Position) -> None:
        self.transaction = transaction
        self.position = position


def check_settings(server: MySqlServer) -> None:
    """Raises ProtectData for a server whose binlog does not hold whole rows."""
    with server.connection() as connection:
        [found] = query(connection, f"SELECT {', '.join(f'@@GLOBAL.{name}' for name in _SETTINGS)}")
    for (name, wanted), value in zip(_SETTINGS.items(), found, strict=True):
        if str(value) not in wanted:
            raise ProtectData(
                f"{server}: its binlog cannot be archived: {name} is {value}, and must be"
                f" {wanted[-1]}. Set it in the server's configuration and restart the server"
            )


def clock_and_position(server: MySqlServer) -> tuple[int, Position]:
    """The server's clock in microseconds, and a position that was reached then or later: all
    that was acknowledged before is below it."""
    with server.connection() as connection:
        [(at_us,)] = query(connection, f"SELECT {MICROSECONDS.format('SYSDATE(6)')}")
        [(position,)] = query(connection, "SELECT @@GLOBAL.gtid_binlog_pos")
    return int(at_us), position_of(position)


class BinlogStream:
    """See the module. To be closed by its user."""

    def __init__(self, server: MySqlServer, layout: Layout, position: Position) -> None:
        """Connects with the first transaction that is asked for."""
        self._kinds = (MariadbGtidEvent, XidEvent, QueryEvent, WriteRowsEvent, UpdateRowsEvent)
        self._server = server
        self._shards = {layout.database(shard): shard for shard in range(layout.shards)}
        self._meta = layout.meta
        self._position = dict(position)
        self._streams = 0
        self._reader = BinLogStreamReader(
            {},
            server_id=(1 << 31) | secrets.randbits(31),
            only_events=[*self._kinds, HeartbeatLogEvent],
            only_schemas=frozenset([*self._shards, self._meta]),
            only_tables=frozenset(["cell", "shard_counter", "leader_epoch", "dictionary"]),
            blocking=True,
            auto_position=text_of(position),
            is_mariadb=True,
            slave_heartbeat=HEARTBEAT_S,
            verify_checksum=True,
            enable_logging=False,
            use_column_name_cache=True,
            pymysql_wrapper=self._connect,
        )

    def passed(self) -> Iterator[Passed]:
        """Whole transactions in the order of the binlog, and signs of life between them. Raises
        Purged, Diverged, StorageUnavailable, DataDamaged."""
        gtid_event, xid_event, query_event, write_event, _ = self._kinds
        rows, gtid = TransactionRows(self._shards, self._meta), ""
        while True:
            event = self._next()
            if event._is_event_valid is False:  # noqa: SLF001 - the library logs it, and goes on
                raise DataDamaged(
                    f"{self._server}: an event of its binlog behind {text_of(self._position)} does"
                    " not have its checksum: its disk may be failing. Promote a minion"
                )
            if isinstance(event, gtid_event):
                gtid = event.gtid
            elif isinstance(event, (xid_event, query_event)):
                if gtid and (isinstance(event, xid_event) or event.query != "BEGIN"):
                    self._position[gtid.partition("-")[0]] = gtid
                    yield Passed(rows.taken(), dict(self._position))
                    gtid = ""
            elif hasattr(event, "table_id"):
                if any(column.name is None for column in event.columns):
                    raise StorageUnavailable(
                        f"{self._server}: it does not give the names of the columns of"
                        f" {event.schema}.{event.table}, perhaps because its connection has ended"
                    )
                for column in event.columns:
                    column.character_set_name = "binary"
                rows.add(event, is_new=isinstance(event, write_event))
            elif not gtid:
                yield Passed(None, dict(self._position))

    def close(self) -> None:
        with suppress(Exception):
            self._reader.close()

    def _next(self) -> Any:
        try:
            event = self._reader.fetchone()
        except pymysql.err.MySQLError as error:
            if error.args and error.args[0] == _NOT_HERE:
                kind = Purged if _PURGED in str(error) else Diverged
                raise kind(f"{self._server}: {error.args[1]}") from error
            raise StorageUnavailable(f"{self._server}: its binlog: {error}") from error
        except OSError as error:
            raise StorageUnavailable(f"{self._server}: its binlog: {error}") from error
        if event is None:
            raise StorageUnavailable(f"{self._server}: it has stopped sending its binlog")
        return event

    def _connect(self, **settings: Any) -> Connection[Any]:
        """A connection for the library. It would begin a lost stream again at the first position:
        the second one is refused."""
        if "cursorclass" not in settings:
            self._streams += 1
            if self._streams > 1:
                raise OSError("the connection was lost")
        connection = self._server.open_connection()
        connection.encoders = encoders
        connection.cursorclass = settings.get("cursorclass", Cursor)
        return connection
