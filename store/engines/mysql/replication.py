"""Replication between MariaDB servers by GTID: the statements, one function each, on a server given
as a :class:`MySqlServer`.

MariaDB only: MySQL says the same in other words (``CHANGE REPLICATION SOURCE``), and is refused
where it comes to these. Source: MariaDB's documentation of GTIDs, ``CHANGE MASTER TO`` and
semi-synchronous replication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pymysql.cursors import DictCursor

from cellfeed.store.engines.mysql.address import MySqlTls
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.read_only import make_read_only
from cellfeed.store.errors import ProtectData, StorageUnavailable
from cellfeed.store.failpoints import marked

HEARTBEAT_S: Final = 0.5
"""A master with nothing to send says so this often. A minion that hears nothing for
``NET_TIMEOUT_S`` connects again (and so notices a paused master)."""

NET_TIMEOUT_S: Final = 2
CONNECT_RETRY_S: Final = 1


APPLY_TIMEOUT_S: Final = 30.0
"""Longest wait for a minion to apply the transactions that it has received."""


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
    [(version,)] = server.rows("SELECT VERSION()")
    if "MariaDB" not in version:
        raise ProtectData(
            f"{server} is MySQL {version}: replication, promotion and copies are made with"
            " MariaDB's statements, so a cluster of several nodes needs MariaDB; nothing was"
            " changed. A cluster of one node may be a MySQL server"
        )


def position(server: MySqlServer) -> Gtid:
    """The server's position: written by itself or applied."""
    [(text,)] = server.rows("SELECT @@GLOBAL.gtid_current_pos")
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


def stop_receiving(server: MySqlServer) -> Gtid:
    """Ends the minion's receiving and waits until all that it has received is applied. Returns its
    position. Raises StorageUnavailable."""
    server.rows("STOP SLAVE IO_THREAD")
    status = minion_status(server)
    if status is not None and status.received.text:
        [(result,)] = server.rows(
            f"SELECT MASTER_GTID_WAIT('{status.received.text}', {APPLY_TIMEOUT_S})"
        )
        if int(result) != 0:
            raise StorageUnavailable(
                f"{server} has not applied all it received within {APPLY_TIMEOUT_S:.0f} s:"
                f" {status.error or 'it is still at it'}"
            )
    return position(server)


@marked("role.leave")
def stop_following(server: MySqlServer) -> None:
    server.rows("STOP SLAVE")
    server.rows("RESET SLAVE ALL")


@marked("role.follow")
def follow(server: MySqlServer, master: MySqlServer) -> None:
    """Makes the server a read-only minion of ``master``, from its own GTID position on. Starting
    over when it follows somebody already."""
    server.rows("STOP SLAVE")
    make_read_only(server)
    (host, port), address = master.address.replication, master.address
    user, password = _literal(address.user), _literal(address.password)
    server.rows(f"SET GLOBAL slave_net_timeout = {NET_TIMEOUT_S}")
    # It resumes behind its own position: applied, or written when it was master itself.
    server.rows("SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_current_pos")
    server.rows(
        f"CHANGE MASTER TO MASTER_HOST = {_literal(host)}, MASTER_PORT = {port}, MASTER_USER ="
        f" {user}, MASTER_PASSWORD = {password}, MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY"
        f" = {CONNECT_RETRY_S}, MASTER_HEARTBEAT_PERIOD = {HEARTBEAT_S}{_tls(address.tls)}",
    )
    server.rows("START SLAVE")


def start_receiving(server: MySqlServer) -> None:
    """Starts a minion that has stopped; the next error stops it again."""
    server.rows("START SLAVE")


def _tls(tls: MySqlTls | None) -> str:
    """The part of CHANGE MASTER by which a minion reaches its master with TLS; the files are the
    minion's."""
    if tls is None:
        return ""
    said = ", MASTER_SSL = 1"
    if ca := tls.replication_ca or tls.ca:
        said += f", MASTER_SSL_CA = {_literal(ca)}"
    return f"{said}, MASTER_SSL_VERIFY_SERVER_CERT = {int(tls.host_name)}"


def _literal(text: str) -> str:
    return f"X'{text.encode().hex()}'" if "'" in text or "\\" in text else f"'{text}'"
