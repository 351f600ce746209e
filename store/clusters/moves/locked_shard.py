"""One shard on the master of one cluster, as a move sees it: the server's notes on it, and guarded
changes on the connection that holds the shard's lock there.

A change is one guarded transaction (:mod:`cellfeed.store.engines.mysql.guard`): a server that takes
no writes, or whose role is not the mover's, refuses it, nothing done. Changes of tables are guarded
statements of their own that may be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import pymysql
from pymysql.connections import Connection

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_notes import (
    HIDDEN,
    ShardNotes,
    shard_notes,
    tables,
)
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.errors import commit_failed, failed
from cellfeed.store.engines.mysql.guard import ATTEMPTS_MAX, Guard, guard_failed
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.statements import commit_script, query
from cellfeed.store.errors import StaleWriter, StorageUnavailable
from cellfeed.store.failpoints import marked

T = TypeVar("T")


class LockedShard:
    """See the module. For one thread."""

    def __init__(
        self,
        cluster: ClusterServers,
        role: Role,
        shard: int,
        server: MySqlServer,
        connection: Connection[Any],
    ) -> None:
        self.cluster, self.role, self.shard, self.server = cluster, role, shard, server
        self.layout = Layout(cluster.datastore, cluster.shards)
        self.database = self.layout.database(shard)
        self._meta = cluster.meta
        self._connection = connection
        self._guard = Guard(server, cluster.meta)

    @property
    def members(self) -> list[str]:
        """The nodes that may be promoted, the master among them."""
        return [self.role.master, *self.role.minions]

    @property
    def log_start_sql(self) -> str:
        """The statement that reads where the log starts, whether the shard is served here or
        leaves."""
        return " UNION ALL ".join(
            f"SELECT log_start FROM {self._meta}.{name} WHERE shard = {self.shard}"
            for name in ("shard_counter", "shard_leaving")
        )

    # --- looking ----------------------------------------------------------------------------------

    def notes(self) -> ShardNotes:
        """Raises StorageUnavailable."""
        return self._run(lambda connection: shard_notes(connection, self.layout, self.shard))

    def on_members(self) -> dict[str, ShardNotes]:
        """The notes of every node that may be promoted. Raises StorageUnavailable when one does not
        answer."""
        return {name: self._notes_on(name) for name in self.members}

    def on_answering(self) -> dict[str, ShardNotes | None]:
        """As :meth:`on_members`, with None for a minion that does not answer."""
        found: dict[str, ShardNotes | None] = {}
        for name in self.members:
            try:
                found[name] = self._notes_on(name)
            except StorageUnavailable:
                if name == self.role.master:
                    raise
                found[name] = None
        return found

    def _notes_on(self, name: str) -> ShardNotes:
        if name == self.role.master:
            # on the connection with the lock: a mover that waits is heard there meanwhile
            # (``lock_owner``)
            return self.notes()
        with self.cluster.server(name).connection() as connection:
            return shard_notes(connection, self.layout, self.shard)

    def replicated_to_all(self) -> int:
        """The first id of the log that a node may lack. Raises StorageUnavailable."""
        return min((each.serves[1] if each.serves else 0) for each in self.on_members().values())

    def leader_epochs(self) -> list[tuple[int, int]]:
        """``(leader epoch, first added_id)`` as readers got them."""
        sql = (
            f"SELECT leader_epoch, first_added_id FROM {self._meta}.leader_epoch WHERE shard ="
            f" {self.shard} ORDER BY leader_epoch"
        )
        return [
            (int(epoch), int(first))
            for epoch, first in self._run(lambda connection: query(connection, sql))
        ]

    def columns(self) -> list[bytes]:
        """The names of the cluster's columns."""
        return [
            name
            for (name,) in self._run(
                lambda connection: query(
                    connection, f"SELECT column_name FROM {self._meta}.column_seen"
                )
            )
        ]

    # --- changing ---------------------------------------------------------------------------------

    def _locked_counter(self, connection: Connection[Any]) -> None:
        if not query(
            connection,
            f"SELECT shard FROM {self._meta}.shard_counter WHERE shard = {self.shard} FOR UPDATE",
        ):
            raise StorageUnavailable(
                f"cluster {self.cluster.name} does not serve shard {self.shard} (any more)"
            )

    def _shown(self, connection: Connection[Any]) -> None:
        self._rename(
            connection, lambda name: name.removeprefix(HIDDEN) if name.startswith(HIDDEN) else None
        )

    def _rename(self, connection: Connection[Any], wanted: Callable[[str], str | None]) -> None:
        names = {
            name: new
            for name in tables(connection, self.database)
            if (new := wanted(name)) is not None
        }
        if names:
            self._alter(
                connection,
                "RENAME TABLE "
                + ", ".join(
                    f"{self.database}.{name} TO {self.database}.{new}"
                    for name, new in names.items()
                ),
            )

    @marked("cas.shard")
    def _commit(
        self,
        statements: Callable[[Connection[Any]], Sequence[str]],
        before: Callable[[Connection[Any]], object] = lambda _: None,
    ) -> None:
        """One transaction: first ``before``, then the statements behind the guard."""

        def commit(connection: Connection[Any]) -> None:
            for _ in range(ATTEMPTS_MAX):
                query(connection, "BEGIN")
                before(connection)
                script = [self._guard.statement(self.role.terms), *statements(connection)]
                try:
                    after_commit = self._guard.after_commit(self.role.terms)
                    commit_script(connection, script, after_commit)
                except (pymysql.err.MySQLError, OSError) as error:
                    if not guard_failed(error):
                        raise commit_failed(self.server, error) from error
                    query(connection, "ROLLBACK")
                    self._guard.explain(connection, self.role.terms)
                else:
                    return
            raise StorageUnavailable(
                f"{self.server}: nothing done: its role or its settings change all the time"
            )

        self._run(commit)

    def _alter(self, connection: Connection[Any], statement: str) -> None:
        self._guard.alter(connection, statement, self.role.terms)

    def _run(self, what: Callable[[Connection[Any]], T]) -> T:
        """On the connection with the lock. One that has failed is closed, and the lock is gone with
        it: nothing more can be done on this side then."""
        try:
            return what(self._connection)
        except BaseException as error:
            with suppress(Exception):
                self._connection.close()
            if isinstance(error, StaleWriter):
                # Its caller has no epoch of its own: it looks at the role again and resumes.
                raise StorageUnavailable(str(error)) from error
            if isinstance(error, (pymysql.err.MySQLError, OSError)):
                raise failed(self.server, error) from error
            raise
