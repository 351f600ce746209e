"""The changes of a move on the cluster that a shard leaves: erasures end, puts end, the tables get
other names, and in the end go."""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection

from cellfeed.store.clusters.model.shard_notes import (
    HIDDEN,
)
from cellfeed.store.clusters.moves.locked_shard import LockedShard
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import StorageUnavailable


class SourceSide(LockedShard):
    """For one thread."""

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
        notes = (
            "leader_epoch + epoch_base, epoch_base, erasures, last_created_at, NOW(6) FROM"
            f" {self._meta}.shard_counter WHERE shard = {self.shard}"
        )
        self._commit(
            lambda _: [
                f"DELETE FROM {self._meta}.shard_leaving WHERE shard = {self.shard}",
                (
                    f"INSERT INTO {self._meta}.shard_leaving SELECT shard,"
                    f" X'{target.encode().hex()}', {token}, log_start, next_added_id, {notes}"
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
