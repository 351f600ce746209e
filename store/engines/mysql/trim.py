"""One step of a trim on a MySQL master: one transaction, fenced as a put is.

    1. BEGIN; lock the shard's counter row, as a put does: so no put is under way in the shard, and
       the leader epoch is the one that the trim came with.
    2. read where the log starts, and how large its first cells are.
    3. raise ``log_start``, delete the cells below it, COMMIT, all in one packet. The commit waits
       for a minion where a put's does.

Crash points: before the COMMIT nothing was done; after it the log starts where the counter says.
Minions run the same transaction, so on each of them the log is whole from its start on. After a
commit of unknown fate, the next step reads the counter and resumes from it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import uniform

import pymysql

from cellfeed.store.engines.contract.log_start import check_trim, step_end
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.errors import commit_failed, worth_another_try
from cellfeed.store.engines.mysql.locked_counters import ATTEMPTS_MAX, PAUSE_S, CounterLocks
from cellfeed.store.engines.mysql.statements import commit_script, query
from cellfeed.store.errors import InvalidLocation, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.trim.before_delete", "mysql.trim.before_commit", "mysql.trim.after_commit")


class TrimStatements:
    """Trims on one server. ``meta`` is the meta database; ``shard_database`` gives a shard's
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

    def run(self, shard: int, below: int, cells_max: int, terms: WriteTerms | None) -> int:
        """Where the log starts then. Raises StorageUnavailable (nothing done), OutcomeUnknown,
        InvalidLocation, StaleWriter (nothing done)."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                start = self._run_once(shard, below, cells_max, terms)
                break
            except StorageUnavailable as error:
                if attempt == ATTEMPTS_MAX or not worth_another_try(error):
                    raise
                time.sleep(uniform(0, PAUSE_S * attempt))
        failpoint("mysql.trim.after_commit")
        return start

    def _run_once(self, shard: int, below: int, cells_max: int, terms: WriteTerms | None) -> int:
        cell_table = f"{self._shard_database(shard)}.cell"
        with self._server.connection() as connection:
            counter = self._counters.lock(connection, [shard], terms)[shard]
            try:
                check_trim(shard, below, counter.next_added_id)
            except InvalidLocation:
                query(connection, "ROLLBACK")
                raise
            [(first,)] = query(
                connection,
                f"SELECT log_start FROM {self._meta}.shard_counter WHERE shard = {shard}",
            )
            first_cells = (
                f"added_id >= {int(first)} AND added_id < {below} ORDER BY added_id LIMIT"
                f" {cells_max}"
            )
            rows = query(
                connection, f"SELECT added_id, LENGTH(body) FROM {cell_table} WHERE {first_cells}"
            )
            start = step_end(
                int(first),
                below,
                cells_max,
                [(int(added_id), int(size)) for added_id, size in rows],
            )
            failpoint("mysql.trim.before_delete")
            raised = (
                f"UPDATE {self._meta}.shard_counter SET log_start = {start} WHERE shard = {shard}"
            )
            deleted = f"DELETE FROM {cell_table} WHERE added_id < {start}"
            try:
                failpoint("mysql.trim.before_commit")
                commit_script(
                    connection, [raised, deleted], self._counters.guard.after_commit(terms)
                )
            except (pymysql.err.MySQLError, OSError) as error:
                raise commit_failed(self._server, error) from error
        return start
