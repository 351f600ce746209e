"""Replication between MariaDB servers by GTID: the statements, one function each, on a server given
as a :class:`MySqlServer`.

MariaDB only: MySQL says the same in other words (``CHANGE REPLICATION SOURCE``), and is refused
where it comes to these. Source: MariaDB's documentation of GTIDs, ``CHANGE MASTER TO`` and
semi-synchronous replication.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER
from pymysql.cursors import DictCursor

from cellfeed.store.engines.mysql.address import MySqlAddress
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.errors import error_code, failed
from cellfeed.store.engines.mysql.locks import LOCK_FREED_S, free_locks, take_lock
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import ProtectData, StorageUnavailable
from cellfeed.store.failpoints import marked

HEARTBEAT_S: Final = 0.5
"""A master with nothing to send says so this often. A minion that hears nothing for
``NET_TIMEOUT_S`` connects again (and so notices a paused master)."""

NET_TIMEOUT_S: Final = 2
CONNECT_RETRY_S: Final = 1

_READ_ONLY_ATTEMPTS: Final = 20
_READ_ONLY_PAUSE_S: Final = 0.05
"""A commit that was cut off in its wait for a minion takes milliseconds to end."""

APPLY_TIMEOUT_S: Final = 30.0
"""Longest wait for a minion to apply the transactions that it has received."""

SEMI_SYNC_TIMEOUT_MS: Final = 315_360_000_000
"""How long a semi-synchronous commit waits for a minion before the server falls back to
asynchronous commits: ten years. After one fallback all later commits are asynchronous, so it must
outlast not the callers but the longest time without a minion."""

SEMI_SYNC_CONFIRMED_MS: Final = SEMI_SYNC_TIMEOUT_MS + 1
"""The same on a master of whose binary log a minion has all that was there before: it is set last,
and a restart forgets it. No configuration file should have it."""

SEMI_SYNC_SETTINGS: Final = {
    "rpl_semi_sync_master_wait_no_slave": 1,
    "rpl_semi_sync_master_wait_point": "'AFTER_SYNC'",
    "rpl_semi_sync_master_timeout": SEMI_SYNC_CONFIRMED_MS,
    "rpl_semi_sync_master_enabled": 1,
}
"""The settings that a write checks on a master whose commits wait for a minion. Without
``wait_no_slave`` the server falls back as soon as the last minion leaves."""

_SETTINGS_LOCK: Final = "cellfeed-semi-sync"


@dataclass(frozen=True, slots=True)
class Gtid:
    """A position in the one replication domain that is used: ``domain-server-sequence``. Sequences
    only rise along a history."""

    text: str

    @property
    def sequence(self) -> int:
        """0 for the empty position."""
        return max((int(part.split("-")[2]) for part in self.text.split(",") if part), default=0)


@dataclass(frozen=True, slots=True)
class MinionStatus:
    """The answer of a minion to SHOW SLAVE STATUS; ``io_running`` is Yes, Connecting or No."""

    master_host: str
    master_port: int
    io_running: str
    sql_running: bool
    error: str
    received: Gtid

    def follows(self, master: MySqlServer) -> bool:
        """Whether it is this server that it follows, well or badly."""
        return (self.master_host, self.master_port) == master.address.replication

    @property
    def is_stopped(self) -> bool:
        """Whether an error, or somebody, has ended its receiving or applying: it does not begin
        again by itself."""
        return self.io_running == "No" or not self.sql_running


def check_mariadb(server: MySqlServer) -> None:
    """Raises ProtectData for anything but MariaDB."""
    [(version,)] = _rows(server, "SELECT VERSION()")
    if "MariaDB" not in version:
        raise ProtectData(
            f"{server} is MySQL {version}: replication, promotion and copies are made with"
            " MariaDB's statements, so a cluster of several nodes needs MariaDB; nothing was"
            " changed. A cluster of one node may be a MySQL server"
        )


def position(server: MySqlServer) -> Gtid:
    """The server's position: written by itself or applied."""
    [(text,)] = _rows(server, "SELECT @@GLOBAL.gtid_current_pos")
    return Gtid(text)


def minion_status(server: MySqlServer) -> MinionStatus | None:
    """None when the server follows nobody."""
    with server.connection() as connection, connection.cursor(DictCursor) as cursor:
        cursor.execute("SHOW SLAVE STATUS")
        status = cursor.fetchone()
    if not status:
        return None
    error = status["Last_IO_Error"] or status["Last_SQL_Error"]
    received = Gtid(status["Gtid_IO_Pos"])
    return MinionStatus(
        status["Master_Host"],
        int(status["Master_Port"]),
        status["Slave_IO_Running"],
        status["Slave_SQL_Running"] == "Yes",
        error,
        received,
    )


def is_read_only(server: MySqlServer) -> bool:
    [(read_only,)] = _rows(server, "SELECT @@GLOBAL.read_only")
    return bool(int(read_only))


@marked("role.open")
def open_for_writes(server: MySqlServer) -> None:
    """Takes writes from now on."""
    _run(server, "SET GLOBAL read_only = 0")


@marked("fence.server")
def make_read_only(server: MySqlServer) -> None:
    """No client's commit is acknowledged after this: every other client is cut off, and the server
    is read-only. Raises StorageUnavailable.

    Cut off first: a commit that waits for a minion (semi-synchronous, and none is left) holds the
    lock that read-only needs; killed, it ends without an answer to its client. And once more at the
    end: read-only does not bind privileged users, and one may have come in between.

    Before all that the master counts as unconfirmed: a commit that is killed in its wait is there,
    and no minion has it, so no guard holds and nobody is answered `exists`.
    """
    with server.connection() as connection:
        query(connection, "SET SESSION lock_wait_timeout = 0")
        if _has(connection, SEMI_SYNC_SETTINGS):
            query(connection, f"SET GLOBAL rpl_semi_sync_master_timeout = {SEMI_SYNC_TIMEOUT_MS}")
        for attempt in range(1, _READ_ONLY_ATTEMPTS + 1):
            _cut_off_clients(connection, server)
            try:
                query(connection, "SET GLOBAL read_only = 1")
                break
            except pymysql.err.MySQLError as error:
                if error_code(error) != ER.LOCK_WAIT_TIMEOUT or attempt == _READ_ONLY_ATTEMPTS:
                    raise
                time.sleep(_READ_ONLY_PAUSE_S)
        _cut_off_clients(connection, server)
        query(connection, "SET SESSION lock_wait_timeout = DEFAULT")


_LOCKING: Final[set[tuple[MySqlAddress, int]]] = set()
"""This process's connections that hold locks: a promotion that fences a server, or points it to
another master, keeps its own lock there."""


def _cut_off_clients(connection: Connection[Any], server: MySqlServer) -> None:
    for thread, command, user in query(
        connection,
        "SELECT ID, COMMAND, USER FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID()",
    ):
        if (
            command not in ("Binlog Dump", "Daemon")
            and user != "system user"
            and (server.address, int(thread)) not in _LOCKING
        ):
            with suppress(pymysql.err.MySQLError):  # it may have ended by itself
                query(connection, f"KILL CONNECTION {int(thread)}")


def stop_receiving(server: MySqlServer) -> Gtid:
    """Ends the minion's receiving and waits until all that it has received is applied. Returns its
    position. Raises StorageUnavailable."""
    _run(server, "STOP SLAVE IO_THREAD")
    status = minion_status(server)
    if status is not None and status.received.text:
        [(result,)] = _rows(
            server, f"SELECT MASTER_GTID_WAIT('{status.received.text}', {APPLY_TIMEOUT_S})"
        )
        if int(result) != 0:
            raise StorageUnavailable(
                f"{server} has not applied all it received within {APPLY_TIMEOUT_S:.0f} s:"
                f" {status.error or 'it is still at it'}"
            )
    return position(server)


@marked("role.leave")
def stop_following(server: MySqlServer) -> None:
    _run(server, "STOP SLAVE")
    _run(server, "RESET SLAVE ALL")


@marked("role.follow")
def follow(server: MySqlServer, master: MySqlServer) -> None:
    """Makes the server a read-only minion of ``master``, from its own GTID position on. Starting
    over when it follows somebody already."""
    _run(server, "STOP SLAVE")
    make_read_only(server)
    (host, port), address = master.address.replication, master.address
    user, password = _literal(address.user), _literal(address.password)
    _run(server, f"SET GLOBAL slave_net_timeout = {NET_TIMEOUT_S}")
    # It resumes behind its own position: applied, or written when it was master itself.
    _run(server, "SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_current_pos")
    _run(
        server,
        f"CHANGE MASTER TO MASTER_HOST = {_literal(host)}, MASTER_PORT = {port}, MASTER_USER ="
        f" {user}, MASTER_PASSWORD = {password}, MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY"
        f" = {CONNECT_RETRY_S}, MASTER_HEARTBEAT_PERIOD = {HEARTBEAT_S}",
    )
    _run(server, "START SLAVE")


def start_receiving(server: MySqlServer) -> None:
    """Starts a minion that has stopped; the next error stops it again."""
    _run(server, "START SLAVE")


def set_semi_sync(server: MySqlServer, *, master: bool, wanted: bool) -> None:
    """Semi-synchronous replication as master, or as minion; for the connection of a minion it
    counts from the next START SLAVE on."""
    if wanted and master:
        with server.connection() as connection:
            wait_for_minions(connection)
    if wanted and not master:
        _run(server, "SET GLOBAL rpl_semi_sync_slave_enabled = 1")
    if not (wanted and master):
        _run(server, "SET GLOBAL rpl_semi_sync_master_enabled = 0")


def wait_for_minions(connection: Connection[Any]) -> None:
    """From now on this server acknowledges a commit, and shows it, only once a minion has received
    it; it never falls back to less. Raises StorageUnavailable while another connection sets this.
    """
    with _settings_lock(connection):
        _begin_to_wait(connection)


def confirm_by_minion(connection: Connection[Any], commit: str) -> None:
    """As :func:`wait_for_minions`, and returns when a minion has all of the server's binary log.

    After a crash a master may hold commits that no minion received: recovery ends them. An answer
    about them (``exists``, a compare-and-set) would acknowledge a commit that a promotion can lose.
    So ``commit``, a statement that writes, waits for a minion first, and no guard holds before
    that.

    Crash points: a connection that ends anywhere in here leaves the settings unconfirmed, and the
    next write begins again. Its lock ends with its COMMIT, so two of them never overlap.
    """
    with _settings_lock(connection):
        if _has(connection, SEMI_SYNC_SETTINGS):
            return
        _begin_to_wait(connection)
        query(connection, commit)
        query(connection, f"SET GLOBAL rpl_semi_sync_master_timeout = {SEMI_SYNC_CONFIRMED_MS}")


@contextmanager
def _settings_lock(connection: Connection[Any]) -> Iterator[None]:
    """One connection at a time: switching off lets commits go that wait for a minion."""
    [(got,)] = query(connection, f"SELECT GET_LOCK('{_SETTINGS_LOCK}', {LOCK_FREED_S})")
    if got is None or not int(got):
        raise StorageUnavailable(
            "nothing written: after a restart or a promotion the master still waits for a minion;"
            " try again when one follows it"
        )
    yield
    query(connection, f"SELECT RELEASE_LOCK('{_SETTINGS_LOCK}')")


def _begin_to_wait(connection: Connection[Any]) -> None:
    """A server that waits by other settings may have fallen back, or may do so during a commit that
    is under way: switching off and on again ends both. No guard has let such a commit through."""
    waiting = {**SEMI_SYNC_SETTINGS, "rpl_semi_sync_master_timeout": SEMI_SYNC_TIMEOUT_MS}
    if _has(connection, waiting) or _has(connection, SEMI_SYNC_SETTINGS):
        return
    query(connection, "SET GLOBAL rpl_semi_sync_master_enabled = 0")
    for name, value in waiting.items():
        query(connection, f"SET GLOBAL {name} = {value}")


def _has(connection: Connection[Any], settings: Mapping[str, object]) -> bool:
    [found] = query(
        connection,
        "SELECT " + ", ".join(f"@@GLOBAL.{name} = {value}" for name, value in settings.items()),
    )
    return all(int(each) for each in found)


@contextmanager
def copy_lock(master: MySqlServer, node: str) -> Iterator[None]:
    """A user lock on the master: one copy to a node at a time. Raises StorageUnavailable when it is
    taken; ends with its connection."""
    with ExitStack() as locks:
        _lock(
            locks,
            master,
            f"cellfeed-copy-{node}",
            f"{node} is being made a copy of {master} already",
        )
        yield


@contextmanager
def promotion_lock(servers: Sequence[MySqlServer], name: str) -> Iterator[None]:
    """A user lock on every server given: with a majority of a cluster's nodes, only one promotion
    can hold it. Raises StorageUnavailable when it is taken.

    It ends with its connections, so a promotion that is killed leaves none behind.
    """
    with ExitStack() as locks:
        for server in servers:
            _lock(
                locks,
                server,
                f"cellfeed-promotion-{name}",
                f"a promotion of {name}, or the return of one of its nodes, is under way elsewhere"
                f" ({server} is locked)",
            )
        yield


def _lock(locks: ExitStack, server: MySqlServer, name: str, taken: str) -> None:
    connection = server.open_connection()
    locks.callback(free_locks, connection)
    kept = (server.address, int(connection.thread_id()))  # type: ignore[no-untyped-call]
    _LOCKING.add(kept)
    locks.callback(_LOCKING.discard, kept)
    try:
        got = take_lock(connection, name)
    except (pymysql.err.MySQLError, OSError) as error:
        raise failed(server, error) from error
    if not got:
        raise StorageUnavailable(taken)


def _rows(server: MySqlServer, sql: str) -> Any:
    with server.connection() as connection:
        return query(connection, sql)


def _run(server: MySqlServer, sql: str) -> None:
    _rows(server, sql)


def _literal(text: str) -> str:
    return f"X'{text.encode().hex()}'" if "'" in text or "\\" in text else f"'{text}'"
