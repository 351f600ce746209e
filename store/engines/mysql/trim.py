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

from cellfeed.store.engines.contract.log_start import check_trim, step_end
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.fenced import FencedStatements
from cellfeed.store.engines.mysql.statements import commit_script, query
from cellfeed.store.errors import InvalidLocation
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.trim.before_delete", "mysql.trim.before_commit", "mysql.trim.after_commit")


class TrimStatements(FencedStatements):
    """Trims on one server."""

    def run(self, shard: int, below: int, cells_max: int, terms: WriteTerms | None) -> int:
        """Where the log starts then. Raises StorageUnavailable (nothing done), OutcomeUnknown,
        InvalidLocation, StaleWriter (nothing done)."""
        start = self._tried_again(lambda: self._run_once(shard, below, cells_max, terms))
        failpoint("mysql.trim.after_commit")
        return start

    def _run_once(self, shard: int, below: int, cells_max: int, terms: WriteTerms | None) -> int:
        cell_table = self._cell_table(shard)
        with self._server.connection() as connection:
            counter = self._counters.lock(connection, [shard], terms)[shard]
            try:
                check_trim(shard, below, counter.next_added_id)
            except InvalidLocation:
                query(connection, "ROLLBACK")
                raise
            [(first,)] = query(
                connection,
                f"SELECT log_start FROM {self._counter_table} WHERE shard = {shard}",
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
            raised = f"UPDATE {self._counter_table} SET log_start = {start} WHERE shard = {shard}"
            deleted = f"DELETE FROM {cell_table} WHERE added_id < {start}"
            with self._committing():
                failpoint("mysql.trim.before_commit")
                commit_script(
                    connection, [raised, deleted], self._counters.guard.after_commit(terms)
                )
        return start
