"""One shard on the master of one cluster, as a move sees and changes it: every change on the
connection that holds the shard's lock there.

A change is one guarded transaction (:mod:`cellfeed.store.engines.mysql.guard`): a server that takes
no writes, or whose role is not the mover's, refuses it, nothing done. Changes of tables are guarded
statements of their own that may be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import pymysql
from pymysql.connections import Connection
from pymysql.constants import ER

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_notes import (
    HIDDEN,
    Arriving,
    Leaving,
    Standing,
    standing,
    tables,
)
from cellfeed.store.engines.mysql.cells import INSERT_COLUMNS, parts
from cellfeed.store.engines.mysql.connections import MySqlServer, commit_script, query
from cellfeed.store.engines.mysql.errors import commit_failed, error_code, failed
from cellfeed.store.engines.mysql.guard import ATTEMPTS_MAX, Guard, guard_failed
from cellfeed.store.engines.mysql.locks import free_locks, take_lock
from cellfeed.store.engines.mysql.migrations import ADD_CHECKSUMS, Layout, schema_statements
from cellfeed.store.errors import ProtectData, StaleWriter, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint, marked

declare("rollback.inside_abandon")

T = TypeVar("T")


class ShardSide:
    """See the module. Made by :func:`open_side`; for one thread."""

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

    def standing(self) -> Standing:
        """Raises StorageUnavailable."""
        return self._run(lambda connection: standing(connection, self.layout, self.shard))

    def on_members(self) -> dict[str, Standing]:
        """What every node says that may be promoted. Raises StorageUnavailable when one does not
        answer."""
        return {name: self._told_by(name) for name in self.members}

    def on_answering(self) -> dict[str, Standing | None]:
        """As :meth:`on_members`, with None for a minion that does not answer."""
        found: dict[str, Standing | None] = {}
        for name in self.members:
            try:
                found[name] = self._told_by(name)
            except StorageUnavailable:
                if name == self.role.master:
                    raise
                found[name] = None
        return found

    def _told_by(self, name: str) -> Standing:
        if name == self.role.master:
            # on the connection with the lock: a mover that waits is heard there meanwhile
            # (``lock_holder``)
            return self.standing()
        with self.cluster.server(name).connection() as connection:
            return standing(connection, self.layout, self.shard)

    def held_by_all(self) -> int:
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

    # --- the target -------------------------------------------------------------------------------

    def begin(self, source: str, token: int, first: int) -> None:
        """Makes new tables of the shard, hidden, and the note that it arrives, from id ``first``
        on. Raises ProtectData where it is served."""
        there = self.standing()
        if there.serves:
            raise ProtectData(f"cluster {self.cluster.name} serves shard {self.shard} already")

        def make(connection: Connection[Any]) -> None:
            self._alter(connection, f"DROP DATABASE IF EXISTS {self.database}")
            for statement in schema_statements()[1]:
                self._alter(
                    connection,
                    statement.format(shard=self.database).replace(
                        f"{self.database}.cell", self._copy("cell"), 1
                    ),
                )
            self._alter(connection, ADD_CHECKSUMS.format(table=self._copy("cell")))

        self._run(make)
        values = f"({self.shard}, X'{source.encode().hex()}', {token}, {first}, NOW(6))"
        # What it has kept of this shard from an earlier move is older than what comes now.
        self._commit(
            lambda _: [
                f"DELETE FROM {self._meta}.shard_leaving WHERE shard = {self.shard}",
                f"REPLACE INTO {self._meta}.shard_arriving VALUES {values}",
            ]
        )

    def append(self, first: int, after: int, rows: Sequence[str]) -> None:
        """The rows of the cells from ``first`` up to ``after``, as SQL literals of
        ``INSERT_COLUMNS``, if the copy ends at ``first``."""
        self._commit(
            lambda _: [
                f"UPDATE {self._meta}.shard_arriving SET next_added_id = {after} WHERE shard ="
                f" {self.shard}"
            ],
            before=lambda connection: self._insert(connection, first, rows),
        )

    def _insert(self, connection: Connection[Any], first: int, rows: Sequence[str]) -> None:
        if self._arriving(connection).next_added_id != first:
            raise StorageUnavailable(
                f"the copy of shard {self.shard} does not end at {first} any more"
            )
        for part in parts(rows):
            query(
                connection,
                f"INSERT INTO {self._copy('cell')} {INSERT_COLUMNS} VALUES {','.join(part)}",
            )

    def restart(self, first: int) -> None:
        """The copy begins again, at ``first``: cells before it were trimmed, or rows were erased
        that the copy may still have with their bodies."""
        self._commit(
            lambda _: [
                f"DELETE FROM {self._copy('cell')}",
                (
                    f"UPDATE {self._meta}.shard_arriving SET next_added_id = {first} WHERE shard ="
                    f" {self.shard}"
                ),
            ]
        )

    def exchange(
        self, table: str, bucket_condition: str, rows: Sequence[str], columns: str
    ) -> None:
        """Puts other entries in the place of some of an index table's, while the shard arrives."""
        self._commit(
            lambda _: [
                f"DELETE FROM {self._copy(table)} WHERE {bucket_condition}",
                *(f"INSERT INTO {self._copy(table)} ({columns}) VALUES {part}" for part in rows),
            ],
            before=self._arriving,
        )

    def shape(self, wanted: Mapping[str, str]) -> None:
        """Has the index tables of these names, made by these statements, and no others."""

        def change(connection: Connection[Any]) -> None:
            there = {name.removeprefix(HIDDEN) for name in tables(connection, self.database)} - {
                "cell"
            }
            for name in sorted(there - set(wanted)):
                self._alter(connection, f"DROP TABLE {self._copy(name)}")
            for name in sorted(set(wanted) - there):
                self._alter(connection, wanted[name])

        self._commit(lambda _: [], before=self._arriving)
        self._run(change)

    def show(self) -> None:
        """Gives a copy that is whole its tables' own names, before the switch, so that no node ever
        serves the shard without them. Doing it again changes nothing."""
        self._run(self._shown)

    def prepare_switch(self, token: int) -> None:
        """From here on only the fence of this token may be followed by a switch. Waits for a switch
        that is still under way, and raises StorageUnavailable when that has happened."""
        self._commit(
            lambda _: [
                f"UPDATE {self._meta}.shard_arriving SET token = {token} WHERE shard = {self.shard}"
            ],
            before=self._arriving,
        )

    def switch(
        self, left: Leaving, epochs: Sequence[tuple[int, int]], columns: Sequence[bytes]
    ) -> int:
        """The counter, from now on here. Returns the leader epoch that readers get."""
        told = max(self.role.epoch, left.leader_epoch + 1)

        def statements(connection: Connection[Any]) -> list[str]:
            note = self._arriving(connection)
            if (note.token, note.next_added_id) != (left.token, left.next_added_id):
                raise StorageUnavailable(
                    f"shard {self.shard} is moved by somebody else, or its copy is not whole"
                )
            numbers = ",".join(
                f"({self.shard},{epoch},{first})"
                for epoch, first in [*epochs, (told, left.next_added_id)]
            )
            seen = ",".join(f"(X'{name.hex()}')" for name in columns)
            base = told - self.role.epoch
            counter = (
                f"({self.shard}, {left.log_start}, {left.next_added_id}, {self.role.epoch},"
                f" '{left.created_at}', {base}, {left.erasures})"
            )
            names = (
                "shard, log_start, next_added_id, leader_epoch, last_created_at, epoch_base,"
                " erasures"
            )
            return [
                f"DELETE FROM {self._meta}.shard_arriving WHERE shard = {self.shard}",
                f"DELETE FROM {self.database}.cell WHERE added_id < {left.log_start}",
                f"DELETE FROM {self._meta}.leader_epoch WHERE shard = {self.shard}",
                (
                    f"INSERT INTO {self._meta}.leader_epoch (shard, leader_epoch, first_added_id)"
                    f" VALUES {numbers}"
                ),
                *(
                    [f"INSERT IGNORE INTO {self._meta}.column_seen VALUES {seen}"]
                    if columns
                    else []
                ),
                f"INSERT INTO {self._meta}.shard_counter ({names}) VALUES {counter}",
            ]

        self._commit(statements)
        return told

    def abandon(self) -> None:
        """Drops the copy, or what a kill in here has left of it: no switch to here can come any
        more. Raises ProtectData when it has come."""
        if self.standing().serves:
            raise ProtectData(
                f"cluster {self.cluster.name} serves shard {self.shard} already: to have it"
                " elsewhere, move it there"
            )
        self._commit(
            lambda _: [f"DELETE FROM {self._meta}.shard_arriving WHERE shard = {self.shard}"]
        )
        failpoint("rollback.inside_abandon")
        if not self.standing().leaving:
            self._run(
                lambda connection: self._alter(
                    connection, f"DROP DATABASE IF EXISTS {self.database}"
                )
            )

    # --- the source -------------------------------------------------------------------------------

    def mark_copied(self, to: str) -> None:
        """From its commit on nothing is erased here, while a copy is made for that cluster; with an
        empty name erasures resume. An erasure locks the counter as this does: it is done before,
        and then part of the copied log, or it finds the mark."""
        self._commit(
            lambda _: [
                f"UPDATE {self._meta}.shard_counter SET copied_to = X'{to.encode().hex()}' WHERE"
                f" shard = {self.shard}"
            ],
            before=self._locked_counter,
        )

    def fence(self, target: str, token: int) -> None:
        """No put is taken here from now on, and nothing is read by the old names."""
        told = (
            "leader_epoch + epoch_base, epoch_base, erasures, last_created_at, NOW(6) FROM"
            f" {self._meta}.shard_counter WHERE shard = {self.shard}"
        )
        self._commit(
            lambda _: [
                f"DELETE FROM {self._meta}.shard_leaving WHERE shard = {self.shard}",
                (
                    f"INSERT INTO {self._meta}.shard_leaving SELECT shard,"
                    f" X'{target.encode().hex()}', {token}, log_start, next_added_id, {told}"
                ),
                f"DELETE FROM {self._meta}.shard_counter WHERE shard = {self.shard}",
            ],
            # Locked first, as a put does: it waits for those under way, and none can come between.
            before=self._locked_counter,
        )

    def hide(self) -> None:
        """Gives the shard's tables their other names. Doing it again changes nothing."""
        self._run(
            lambda connection: self._rename(
                connection, lambda name: None if name.startswith(HIDDEN) else HIDDEN + name
            )
        )

    def give_back(self, token: int, copied_to: str) -> None:
        """Ends the fence of that token: puts and reads resume here. Erasures do as well, unless
        ``copied_to`` names a cluster that the copy is still made for."""
        self._run(self._shown)

        def statements(connection: Connection[Any]) -> list[str]:
            rows = query(
                connection,
                f"SELECT token FROM {self._meta}.shard_leaving WHERE shard = {self.shard} FOR"
                " UPDATE",
            )
            if not rows or int(rows[0][0]) != token:
                raise StorageUnavailable(
                    f"the fence of shard {self.shard} on cluster {self.cluster.name} is another one"
                    " by now"
                )
            epoch = self.role.epoch
            left = f"FROM {self._meta}.shard_leaving WHERE shard = {self.shard}"
            return [
                (
                    f"INSERT INTO {self._meta}.shard_counter (shard, log_start, next_added_id,"
                    " leader_epoch, last_created_at, epoch_base, erasures, copied_to) SELECT"
                    f" shard, log_start, next_added_id, {epoch}, last_created_at, epoch_base,"
                    f" erasures, X'{copied_to.encode().hex()}' {left}"
                ),
                # A promotion while it was fenced did not write down where its epoch begins.
                (
                    f"INSERT IGNORE INTO {self._meta}.leader_epoch (shard, leader_epoch,"
                    f" first_added_id) SELECT shard, {epoch} + epoch_base, next_added_id {left}"
                ),
                f"DELETE FROM {self._meta}.shard_leaving WHERE shard = {self.shard}",
            ]

        self._commit(statements)

    def drop_kept(self) -> None:
        """Drops the tables of a shard that has left. The note that they are kept stays, until
        :meth:`forget_kept`."""
        self._run(
            lambda connection: self._alter(connection, f"DROP DATABASE IF EXISTS {self.database}")
        )

    def forget_kept(self) -> None:
        """The leader epochs stay: an old master that returns is judged by them."""
        self._commit(
            lambda _: [f"DELETE FROM {self._meta}.shard_leaving WHERE shard = {self.shard}"]
        )

    # --- inside -----------------------------------------------------------------------------------

    def _arriving(self, connection: Connection[Any]) -> Arriving:
        """The note, locked."""
        rows = query(
            connection,
            f"SELECT source, token, next_added_id FROM {self._meta}.shard_arriving WHERE shard ="
            f" {self.shard} FOR UPDATE",
        )
        if not rows:
            raise StorageUnavailable(
                f"shard {self.shard} does not arrive at cluster {self.cluster.name} (any more)"
            )
        return Arriving(rows[0][0].decode(), int(rows[0][1]), int(rows[0][2]))

    def _locked_counter(self, connection: Connection[Any]) -> None:
        if not query(
            connection,
            f"SELECT shard FROM {self._meta}.shard_counter WHERE shard = {self.shard} FOR UPDATE",
        ):
            raise StorageUnavailable(
                f"cluster {self.cluster.name} does not serve shard {self.shard} (any more)"
            )

    def _copy(self, table: str) -> str:
        """A table of a copy that is not whole yet: a reader with a map from before earlier moves
        must not take it for the shard."""
        return f"{self.database}.{HIDDEN}{table}"

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
        """One transaction: what ``before`` does, then the statements behind the guard."""

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


@contextmanager
def open_side(cluster: ClusterServers, role: Role, shard: int) -> Iterator[ShardSide]:
    """A shard on the master of that role, locked. Raises StorageUnavailable when another mover is
    at it, or the master does not answer."""
    server = cluster.server(role.master)
    connection = server.open_connection()
    try:
        try:
            got = take_lock(connection, _lock_name(cluster, shard))
        except (pymysql.err.MySQLError, OSError) as error:
            raise failed(server, error) from error
        if not got:
            raise StorageUnavailable(
                f"shard {shard} is being moved already: cluster {cluster.name} is locked by another"
                " mover, which is alive"
            )
        yield ShardSide(cluster, role, shard, server, connection)
    finally:
        free_locks(connection)


class LockHolder(NamedTuple):
    """The connection that holds a shard's lock on a master, by the server's number for it.
    ``silent_s``: for how long it has said nothing; 0 while a statement of it runs."""

    connection: int
    silent_s: float


def lock_holder(cluster: ClusterServers, role: Role, shard: int) -> LockHolder | None:
    """Who has the shard's lock on the master of that role; None when nobody does. Raises
    StorageUnavailable."""
    sql = (
        "SELECT ID, IF(COMMAND = 'Sleep', TIME_MS / 1000, 0) FROM information_schema.PROCESSLIST"
        f" WHERE ID = IS_USED_LOCK('{_lock_name(cluster, shard)}')"
    )
    with cluster.server(role.master).connection() as connection:
        rows = query(connection, sql)
    return LockHolder(int(rows[0][0]), float(rows[0][1])) if rows else None


def cut_off(cluster: ClusterServers, role: Role, holder: LockHolder) -> None:
    """Ends the connection that holds a lock, and whatever it has not committed: who was behind it
    can do nothing more there. Raises StorageUnavailable."""
    with cluster.server(role.master).connection() as connection:
        try:
            query(connection, f"KILL CONNECTION {holder.connection}")
        except pymysql.err.MySQLError as error:
            if error_code(error) != ER.NO_SUCH_THREAD:  # it has ended by itself
                raise


def _lock_name(cluster: ClusterServers, shard: int) -> str:
    return f"cellfeed-move-{cluster.datastore}-{shard}"
