"""Erasing a row of the embedded engine (E20, E21): the statements of one step, inside a write
transaction.

The connection overwrites the space that it frees with zeros (``secure_delete``,
:mod:`cellfeed.store.engines.sqlite.connect`). Crash points: a step is there as a whole after its
commit, and before it not at all. A step that is run again takes the bodies that are left, and finds
the entry that marks the erasure.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from cellfeed.store.cells.body_codec import ERASED_BODY
from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.engines.contract.values import ErasedStep
from cellfeed.store.engines.sqlite.cells import INSERT_CELL, counter_of, erase_bodies, row_of
from cellfeed.store.engines.sqlite.files import SqliteFile
from cellfeed.store.engines.sqlite.left import remove_left
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.limits import ADDED_ID_MAX

declare("sqlite.erase.before_commit", "sqlite.erase.after_commit")


def erase(file: SqliteFile, row_key: bytes, shard: int, cells_max: int, now_us: int) -> ErasedStep:
    """One step, committed. ``now_us``: the storage's clock. Raises as the contract's."""
    with file.write() as connection:
        step = _erase_step(connection, row_key, shard, cells_max, now_us)
        failpoint("sqlite.erase.before_commit")
    failpoint("sqlite.erase.after_commit")
    if step.done:
        remove_left(file.path.parent)
    return step


def _erase_step(
    connection: sqlite3.Connection, row_key: bytes, shard: int, cells_max: int, now_us: int
) -> ErasedStep:
    """One step. ``now_us``: the storage's clock."""
    left = connection.execute(
        "SELECT position FROM cell WHERE row_key = ? AND body <> ? LIMIT ?",
        (row_key, ERASED_BODY, cells_max + 1),
    ).fetchall()
    taken = left[:cells_max]
    erase_bodies(connection, "position = ?", taken)
    entry = connection.execute(
        "SELECT position FROM cell WHERE row_key = ? AND column_name = ?", (row_key, ERASED_COLUMN)
    ).fetchone()
    if entry is None:
        added_id, last_us = counter_of(connection, shard, "next_added_id, last_created_at_us")
        created_at_us = max(now_us, last_us)
        connection.execute(
            INSERT_CELL,
            row_of(
                shard, StoredCell(added_id, row_key, ERASED_COLUMN, 0, created_at_us, ERASED_BODY)
            ),
        )
        moved = (
            "UPDATE shard_counter SET next_added_id = ?, last_created_at_us = ?, erasures ="
            " erasures + 1 WHERE shard = ?"
        )
        connection.execute(moved, (added_id + 1, created_at_us, shard))
        connection.execute("INSERT OR IGNORE INTO column_seen VALUES (?)", (ERASED_COLUMN,))
    else:
        added_id = entry[0] & ADDED_ID_MAX
        if taken:
            connection.execute(
                "UPDATE shard_counter SET erasures = erasures + 1 WHERE shard = ?", (shard,)
            )
    return ErasedStep(shard, added_id, len(taken), len(left) <= cells_max)


def erased_among(connection: sqlite3.Connection, row_keys: Collection[bytes]) -> set[bytes]:
    """Those of the row keys that were erased."""
    sql = "SELECT 1 FROM cell WHERE row_key = ? AND column_name = ?"
    return {
        row_key
        for row_key in row_keys
        if connection.execute(sql, (row_key, ERASED_COLUMN)).fetchone()
    }
