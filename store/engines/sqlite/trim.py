"""One step of a trim of the embedded engine (E15): its statements, inside a write transaction.

Crash points: before the commit the log is as it was. After it the log starts where the counter
says, and a trim that is run again resumes there.
"""

from __future__ import annotations

import sqlite3

from cellfeed.store.engines.contract.log_start import check_trim, step_end
from cellfeed.store.engines.sqlite.cells import counter_of, position_of
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.limits import ADDED_ID_MAX

declare("sqlite.trim.before_delete", "sqlite.trim.before_commit", "sqlite.trim.after_commit")


def trim(file: SqliteFile, shard: int, below: int, cells_max: int) -> int:
    """One step, committed; where the log starts then. Raises as the contract's."""
    with file.write() as connection:
        start = _trim_step(connection, shard, below, cells_max)
        failpoint("sqlite.trim.before_commit")
    failpoint("sqlite.trim.after_commit")
    return start


def _trim_step(connection: sqlite3.Connection, shard: int, below: int, cells_max: int) -> int:
    """Where the log starts then. Raises InvalidLocation."""
    start, end = counter_of(connection, shard, "log_start, next_added_id")
    check_trim(shard, below, end)
    sql = (
        "SELECT position, length(body) FROM cell WHERE position >= ? AND position < ? ORDER BY"
        " position LIMIT ?"
    )
    bounds = (position_of(shard, start), position_of(shard, below), cells_max)
    sizes = [(position & ADDED_ID_MAX, size) for position, size in connection.execute(sql, bounds)]
    start = step_end(start, below, cells_max, sizes)
    connection.execute("UPDATE shard_counter SET log_start = ? WHERE shard = ?", (start, shard))
    failpoint("sqlite.trim.before_delete")
    connection.execute(
        "DELETE FROM cell WHERE position >= ? AND position < ?",
        (position_of(shard, 0), position_of(shard, start)),
    )
    return start
