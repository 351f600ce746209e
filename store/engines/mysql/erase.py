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
where the bodies go with the entry. After a commit of unknown fate, the next step reads the bodies
that are left and takes them. Puts learn of erasures from the counter that they lock anyway. They
look for the entry only where the counter says that there are some.
"""

from __future__ import annotations

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
from cellfeed.store.engines.mysql.fenced import FencedStatements
from cellfeed.store.engines.mysql.put_lookups import sql_triple
from cellfeed.store.engines.mysql.statements import commit_script, query
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.erase.before_commit", "mysql.erase.after_commit")

_MARK = f"X'{ERASED_BODY.hex()}'"
_COLUMN = f"X'{ERASED_COLUMN.encode().hex()}'"


class EraseStatements(FencedStatements):
    """Erasures on one server."""

    def run(
        self, row_key: bytes, shard: int, cells_max: int, terms: WriteTerms | None
    ) -> ErasedStep:
        """Raises StorageUnavailable (nothing done; ShardMoving while the shard is moved),
        OutcomeUnknown, StaleWriter (nothing done)."""
        step = self._tried_again(lambda: self._run_once(row_key, shard, cells_max, terms))
        failpoint("mysql.erase.after_commit")
        return step

    def _run_once(
        self, row_key: bytes, shard: int, cells_max: int, terms: WriteTerms | None
    ) -> ErasedStep:
        table, counters = self._cell_table(shard), self._counter_table
        triple = sql_triple(Triple(row_key, ERASED_COLUMN, 0))
        with self._server.connection() as connection:
            counter = self._counters.lock(connection, [shard], terms)[shard]
            self._refuse_while_moving(connection, shard, "nothing erased")
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
                with self._committing():
                    failpoint("mysql.erase.before_commit")
                    commit_script(connection, statements, self._counters.guard.after_commit(terms))
            else:
                query(connection, "ROLLBACK")
        return ErasedStep(shard, added_id, len(taken), len(left) <= cells_max)
