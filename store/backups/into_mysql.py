"""The statements of a restore on a MySQL master. :mod:`cellfeed.store.backups.into_clusters`
chooses the servers, and decides when they open.

1. ``begin``      under the counters' locks: nothing was ever written here, or the mark says that
                  this very backup is being restored. The counters get another
                  leader epoch, so a writer that remembers the cluster as it was is refused; the
                  role goes, so nobody else opens it.
2. ``load``       cells and the counter of their shard in one transaction: the counter says how far
                  it is, also after a kill.
3. ``complete``   everything else, in transactions that may be run again.
4. ``open``       the role takes the place of the mark, in one transaction. The same transaction
                  removes bodies that a piece of the backup has from before their row was erased.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import pymysql
from pymysql.connections import Connection

from cellfeed.store.backups.manifest import BackedTurn
from cellfeed.store.backups.mysql_target import check_target
from cellfeed.store.backups.restore_plan import RestoredLog
from cellfeed.store.cells.body_codec import ERASED_BODY
from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.clusters.model.restore_mark import RESTORE_KEY, Mark
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.cells import (
    INSERT_COLUMNS,
    KEY,
    erase_bodies,
    parts,
    row_literal,
    sql_moment,
)
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.dictionaries import MySqlDictionaries
from cellfeed.store.engines.mysql.errors import commit_failed
from cellfeed.store.engines.mysql.guard import Guard, guard_failed
from cellfeed.store.engines.mysql.guard_sql import ROLE_KEY
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.statements import commit_script, query
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.restore.after_begin", "mysql.restore.after_load", "mysql.restore.before_open")

FENCING_EPOCH: Final = (1 << 31) - 1
"""Of the counters while a restore is under way: no role ever has it."""

_ROWS: Final = 1_000


class MySqlRestore:
    """See the module. ``layout`` names the shards that this server's cluster holds."""

    def __init__(self, server: MySqlServer, layout: Layout) -> None:
        self._server = server
        self._guard = Guard(server, layout.meta)
        self._layout = layout
        self._meta = layout.meta

    def check(self, mark: Mark) -> None:
        """Raises as :meth:`begin`, and changes nothing."""
        with self._server.connection() as connection:
            check_target(connection, self._server, self._layout, mark)
            query(connection, "ROLLBACK")

    def begin(self, mark: Mark, terms: WriteTerms | None = None) -> None:
        """``terms``: of a cluster that has a role and no cell yet; its role ends here. Raises
        ProtectData when there is, or was, a cell, or another backup is being restored here."""
        with self._server.connection() as connection:
            self._guard.settle(connection, terms)
            under_way = check_target(connection, self._server, self._layout, mark)
            statements = [
                f"UPDATE {self._meta}.shard_counter SET leader_epoch = {FENCING_EPOCH},"
                " epoch_base = 0"
            ]
            if under_way is None:
                statements.append(
                    f"DELETE FROM {self._meta}.state_entry"
                )  # the shard map, too: it is of the history that ends
            self._commit(
                connection,
                [
                    *statements,
                    *self._written(connection, [(RESTORE_KEY, msgspec.json.encode(mark))]),
                ],
                terms,
            )
        failpoint("mysql.restore.after_begin")

    def dictionaries(self, dictionaries: Sequence[Dictionary], turns: Sequence[BackedTurn]) -> None:
        """Before the first body that may need one."""
        table = MySqlDictionaries(self._server, self._meta)
        by_digest = {dictionary.sha256.hex(): dictionary for dictionary in dictionaries}
        for dictionary in dictionaries:
            table.add(dictionary)
        for turn in sorted(turns, key=lambda each: each.turn):
            table.use(by_digest[turn.sha256], turn.turn)

    def loaded(self) -> dict[int, int]:
        """By shard the id that is to be loaded next."""
        with self._server.connection() as connection:
            rows = query(connection, f"SELECT shard, next_added_id FROM {self._meta}.shard_counter")
        return {int(shard): int(next_id) for shard, next_id in rows}

    def load(self, shard: int, cells: Sequence[StoredCell]) -> None:
        statements = self._inserts(shard, cells)
        erasures = sum(cell.column_name == ERASED_COLUMN for cell in cells)
        moved = f"next_added_id = {cells[-1].added_id + 1}, erasures = erasures + {erasures}"
        statements.append(f"UPDATE {self._meta}.shard_counter SET {moved} WHERE shard = {shard}")
        with self._server.connection() as connection:
            query(connection, "BEGIN")
            self._commit(connection, statements)
        failpoint("mysql.restore.after_load")

    def complete(
        self,
        logs: Iterable[RestoredLog],
        columns: Sequence[str],
        state: Sequence[tuple[str, bytes]],
        state_revision: int,
    ) -> None:
        """The notes and the counters of a shard come in one transaction: a minion has both, or
        neither."""
        for log in logs:
            notes = self._inserts(log.shard, log.added) if log.added else []
            erasures = f"erasures = erasures + {len(log.erased)}"
            ends = (
                f"{erasures}, log_start = {log.log_start}, next_added_id = {log.next_added_id},"
                f" last_created_at = {sql_moment(log.last_created_at_us)}"
            )
            epochs = ",".join(f"({log.shard},{number},{first})" for number, first in log.epochs)
            with self._server.connection() as connection:
                query(connection, "BEGIN")
                self._commit(
                    connection,
                    [
                        # notes of a run that was killed
                        (
                            f"DELETE FROM {self._layout.database(log.shard)}.cell WHERE added_id >="
                            f" {log.end}"
                        ),
                        *notes,
                        f"UPDATE {self._meta}.shard_counter SET {ends} WHERE shard = {log.shard}",
                        f"DELETE FROM {self._meta}.leader_epoch WHERE shard = {log.shard}",
                        f"INSERT INTO {self._meta}.leader_epoch VALUES {epochs}",
                    ],
                )
        with self._server.connection() as connection:
            query(connection, "BEGIN")
            names = ",".join(f"(X'{name.encode().hex()}')" for name in columns)
            self._commit(
                connection,
                [
                    *(
                        [f"INSERT IGNORE INTO {self._meta}.column_seen VALUES {names}"]
                        if names
                        else []
                    ),
                    (
                        f"UPDATE {self._meta}.state_revision SET revision = GREATEST(revision,"
                        f" {state_revision})"
                    ),
                ],
            )
            for start in range(0, len(state), _ROWS):
                query(connection, "BEGIN")
                self._commit(connection, self._written(connection, state[start : start + _ROWS]))

    def open(self, mark: Mark) -> None:
        """The counters get the role's epoch, the mark says that it is done, and the role is
        there."""
        failpoint("mysql.restore.before_open")
        role = mark.role
        done = msgspec.structs.replace(mark, done=True)
        with self._server.connection() as connection:
            query(connection, "BEGIN")
            entries = [
                (RESTORE_KEY, msgspec.json.encode(done)),
                (ROLE_KEY, msgspec.json.encode(role)),
            ]
            epoch = f"UPDATE {self._meta}.shard_counter SET leader_epoch = {role.epoch}"
            shards = query(
                connection, f"SELECT shard FROM {self._meta}.shard_counter WHERE erasures > 0"
            )
            erased = [
                statement
                for (shard,) in shards
                for statement in self._erase(connection, int(shard))
            ]
            self._commit(connection, [*erased, epoch, *self._written(connection, entries)])

    def _erase(self, connection: Connection[Any], shard: int) -> list[str]:
        table = f"{self._layout.database(shard)}.cell"
        rows = f"SELECT row_key FROM {table} WHERE column_name = X'{ERASED_COLUMN.encode().hex()}'"
        keys = query(
            connection,
            f"SELECT {KEY} FROM {table} WHERE row_key IN ({rows}) AND body <>"
            f" X'{ERASED_BODY.hex()}'",
        )
        return erase_bodies(table, keys)

    def _inserts(self, shard: int, cells: Sequence[StoredCell]) -> list[str]:
        head = f"INSERT INTO {self._layout.database(shard)}.cell {INSERT_COLUMNS} VALUES "
        return [head + ",".join(part) for part in parts([row_literal(cell) for cell in cells])]

    def _written(
        self, connection: Connection[Any], entries: Sequence[tuple[str, bytes]]
    ) -> list[str]:
        """Statements that write state entries under the next revision."""
        [(revision,)] = query(
            connection, f"SELECT revision + 1 FROM {self._meta}.state_revision FOR UPDATE"
        )
        rows = [
            f"(X'{key.encode().hex()}',X'{value.hex()}',{int(revision)})" for key, value in entries
        ]
        return [
            f"UPDATE {self._meta}.state_revision SET revision = {int(revision)}",
            *(
                f"REPLACE INTO {self._meta}.state_entry VALUES {','.join(part)}"
                for part in parts(rows)
            ),
        ]

    def _commit(
        self,
        connection: Connection[Any],
        statements: Sequence[str],
        terms: WriteTerms | None = None,
    ) -> None:
        try:
            script = [self._guard.statement(terms), *statements]
            commit_script(connection, script, self._guard.after_commit(terms))
        except (pymysql.err.MySQLError, OSError) as error:
            if not guard_failed(error):
                raise commit_failed(self._server, error) from error
            query(connection, "ROLLBACK")
            self._guard.explain(connection, terms)
            raise StorageUnavailable(
                f"{self._server}: nothing restored: its settings were mended; restore again"
            ) from error
