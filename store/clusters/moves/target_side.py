"""The changes of a move on the cluster that receives a shard: a hidden copy is begun, filled,
switched to, or dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pymysql.connections import Connection

from cellfeed.store.clusters.model.shard_notes import (
    HIDDEN,
    Arriving,
    Leaving,
    tables,
)
from cellfeed.store.clusters.moves.locked_shard import LockedShard
from cellfeed.store.engines.mysql.cells import INSERT_COLUMNS, parts
from cellfeed.store.engines.mysql.schema_steps import ADD_CHECKSUMS, schema_statements
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import ProtectData, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("rollback.inside_abandon")


class TargetSide(LockedShard):
    """For one thread."""

    def begin(self, source: str, token: int, first: int) -> None:
        """Makes new tables of the shard, hidden, and the note that it arrives, from id ``first``
        on. Raises ProtectData where it is served."""
        there = self.notes()
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
        # Its kept tables of this shard, from an earlier move, are older than the new copy.
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
        notes = max(self.role.epoch, left.leader_epoch + 1)

        def statements(connection: Connection[Any]) -> list[str]:
            note = self._arriving(connection)
            if (note.token, note.next_added_id) != (left.token, left.next_added_id):
                raise StorageUnavailable(
                    f"shard {self.shard} is moved by somebody else, or its copy is not whole"
                )
            numbers = ",".join(
                f"({self.shard},{epoch},{first})"
                for epoch, first in [*epochs, (notes, left.next_added_id)]
            )
            seen = ",".join(f"(X'{name.hex()}')" for name in columns)
            base = notes - self.role.epoch
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
        return notes

    def abandon(self) -> None:
        """Drops the copy, or the rest of it after a kill in here: no switch to here can come any
        more. Raises ProtectData when it has come."""
        if self.notes().serves:
            raise ProtectData(
                f"cluster {self.cluster.name} serves shard {self.shard} already: to have it"
                " elsewhere, move it there"
            )
        self._commit(
            lambda _: [f"DELETE FROM {self._meta}.shard_arriving WHERE shard = {self.shard}"]
        )
        failpoint("rollback.inside_abandon")
        if not self.notes().leaving:
            self._run(
                lambda connection: self._alter(
                    connection, f"DROP DATABASE IF EXISTS {self.database}"
                )
            )

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

    def _copy(self, table: str) -> str:
        """A table of a copy that is not whole yet: a reader with a map from before earlier moves
        must not take it for the shard."""
        return f"{self.database}.{HIDDEN}{table}"
