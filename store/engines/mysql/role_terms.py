"""The part of a cluster's role that a guard compares, as the server keeps it; and whether a server
is the one that its connections were made for."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from pymysql.connections import Connection

from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.guard_sql import ROLE_KEY, GuardSql
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import DataDamaged, ForeignServer
from cellfeed.store.histories import is_same_history


class RoleTerms(msgspec.Struct, frozen=True):
    """The part of a role that a guard compares."""

    cluster: str
    epoch: int
    semi_sync: bool = False
    history_id: str = ""


def decoded(server: MySqlServer, value: bytes | None) -> RoleTerms | None:
    """Of the state entry's value. Raises DataDamaged."""
    try:
        return None if value is None else msgspec.json.decode(value, type=RoleTerms)
    except msgspec.MsgspecError as error:
        raise DataDamaged(f"{server}: the state entry {ROLE_KEY!r} is no role: {error}") from error


class ServerIdentity:
    """The cluster and the history that a server's connections must belong to: a name or an address
    may lead to another server at any time."""

    def __init__(self, server: MySqlServer, sql: GuardSql) -> None:
        self._server = server
        self._role = sql.role
        self._expected: tuple[str, str] | None = None

    def expect(self, cluster: str, history_id: str) -> None:
        """From now on only connections are used that have reached a server of this cluster and
        history."""
        if self._expected != (cluster, history_id):
            self._expected = cluster, history_id
            self._server.on_open = partial(self._check, cluster=cluster, history_id=history_id)
            self._server.drop_idle()

    def _check(self, connection: Connection[Any], cluster: str, history_id: str) -> None:
        """Raises ForeignServer unless the server that the connection reaches is a node of this
        cluster and history."""
        [(value,)] = query(connection, f"SELECT ({self._role})")
        role = decoded(self._server, value)
        if role is None:
            raise ForeignServer(
                f"{self._server} reports no role: a restore or a copy to it is under way, or it is"
                " another server than it was"
            )
        if role.cluster != cluster or not is_same_history(role.history_id, history_id):
            raise ForeignServer(
                f"{self._server} is a server of cluster {role.cluster!r} in history"
                f" {role.history_id}, and {cluster!r} is in history {history_id}: another server"
                " has the node's address; name the node's own in the configuration"
            )
