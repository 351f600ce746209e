"""One step of an erasure on a MySQL master (E20, E21): one transaction, fenced as a put is.

    1. BEGIN; lock the shard's counter row, as a put does: so no put is under way in the shard, and
       the leader epoch is the one that the erasure came with. The row says as well whether a move
       copies the shard: then nothing is erased (ShardMoving), for the copy may have the bodies
       already. The engine over the clusters drops a copy whose mover is dead, and runs this step
       again.
    2. read which cells of the row have bodies, and whether the log has the entry of the erasure.
    3. overwrite those bodies with the mark of erased ones, add the entry, move the counter, COMMIT,
       all in one packet. The commit waits for a minion where a put's does.

Crash points: before the COMMIT nothing was done; after it the step is there, on minions as well,
where the bodies go with the entry. After a commit of unknown fate, the next step reads what is left
and takes it. Puts learn of erasures from the counter that they lock anyway. They look for the entry
only where the counter says that there are some.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import uniform

import pymysql

from cellfeed.store.cells.body_codec import ERASED_BODY
from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell, Triple
from cellfeed.store.engines.contract.values import ErasedStep, WriteTerms
from cellfeed.store.engines.mysql.cells import (
    INSERT_COLUMNS,
    KEY,
    erase_bodies,
    row_literal,
    sql_moment,
)
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.errors import commit_failed, worth_another_try
from cellfeed.store.engines.mysql.locked_counters import ATTEMPTS_MAX, PAUSE_S, CounterLocks
from cellfeed.store.engines.mysql.put_lookups import sql_triple
from cellfeed.store.engines.mysql.statements import commit_script, query
from cellfeed.store.errors import ShardMoving, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.erase.before_commit", "mysql.erase.after_commit")

_MARK = f"X'{ERASED_BODY.hex()}'"
_COLUMN = f"X'{ERASED_COLUMN.encode().hex()}'"


class EraseStatements:
    """Erasures on one server. ``meta`` is the meta database; ``shard_database`` gives a shard's
    database; both are checked names."""

    def __init__(
        self,
        server: MySqlServer,
        meta: str,
        shard_database: Callable[[int], str],
        counters: CounterLocks,
    ) -> None:
        self._server = server
        self._meta = meta
        self._shard_database = shard_database
        self._counters = counters

    def run(
        self, row_key: bytes, shard: int, cells_max: int, terms: WriteTerms | None
    ) -> ErasedStep:
        """Raises StorageUnavailable (nothing done; ShardMoving while the shard is moved),
        OutcomeUnknown, StaleWriter (nothing done)."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                step = self._run_once(row_key, shard, cells_max, terms)
                break
            except StorageUnavailable as error:
                if attempt == ATTEMPTS_MAX or not worth_another_try(error):
                    raise
                time.sleep(uniform(0, PAUSE_S * attempt))
        failpoint("mysql.erase.after_commit")
        return step

    def _run_once(
        self, row_key: bytes, shard: int, cells_max: int, terms: WriteTerms | None
    ) -> ErasedStep:
        table, counters = f"{self._shard_database(shard)}.cell", f"{self._meta}.shard_counter"
        triple = sql_triple(Triple(row_key, ERASED_COLUMN, 0))
        with self._server.connection() as connection:
            counter = self._counters.lock(connection, [shard], terms)[shard]
            [(copied_to,)] = query(
                connection, f"SELECT copied_to FROM {counters} WHERE shard = {shard} FOR UPDATE"
            )
            if copied_to:
                query(connection, "ROLLBACK")
                raise ShardMoving(
                    f"{self._server}: nothing erased: shard {shard} is being moved to cluster"
                    f" {copied_to.decode()}; try again when it has come there, or take the move"
                    f" back: cellfeed shard rollback --shard {shard}"
                )
            left = query(
                connection,
                f"SELECT {KEY} FROM {table} WHERE row_key = X'{row_key.hex()}' AND body <> {_MARK}"
                f" LIMIT {cells_max + 1}",
            )
            entry = query(
                connection,
                f"SELECT added_id FROM {table} WHERE (row_key, column_name, ref_key) IN ({triple})",
            )
            taken = left[:cells_max]
            added_id = int(entry[0][0]) if entry else counter.next_added_id
            statements = erase_bodies(table, taken)
            if not entry:
                created_at = sql_moment(counter.created_at_us)
                marker = StoredCell(
                    added_id, row_key, ERASED_COLUMN, 0, counter.created_at_us, ERASED_BODY
                )
                statements.append(
                    f"INSERT INTO {table} {INSERT_COLUMNS} VALUES {row_literal(marker)}"
                )
                statements.append(
                    f"UPDATE {counters} SET next_added_id = {added_id + 1}, last_created_at ="
                    f" {created_at} WHERE shard = {shard}"
                )
                statements.append(f"INSERT IGNORE INTO {self._meta}.column_seen VALUES ({_COLUMN})")
            if statements:
                statements.append(
                    f"UPDATE {counters} SET erasures = erasures + 1 WHERE shard = {shard}"
                )
                try:
                    failpoint("mysql.erase.before_commit")
                    commit_script(connection, statements, self._counters.guard.after_commit(terms))
                except (pymysql.err.MySQLError, OSError) as error:
                    raise commit_failed(self._server, error) from error
            else:
                query(connection, "ROLLBACK")
        return ErasedStep(shard, added_id, len(taken), len(left) <= cells_max)
