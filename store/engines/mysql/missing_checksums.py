"""Checksums for the cells from before there were checksums, on each node by itself.

Only the frame of such a body proves it, so its frame has to be whole.
"""

from __future__ import annotations

from typing import Final

from pymysql.constants import ER

from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.checksum import cell_checksum
from cellfeed.store.engines.mysql.cells import CELL, stored_cell
from cellfeed.store.engines.mysql.errors import error_code
from cellfeed.store.engines.mysql.scrub_session import ScrubSession
from cellfeed.store.errors import DataDamaged, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.scrub.after_checksums")

_SUMMED_ROWS: Final = 1_000
"""Cells that get their checksums in one transaction."""


def add_checksums(session: ScrubSession, database: str, table: str) -> tuple[int, list[int]]:
    """Gives a checksum to every cell that has none and whose body decodes: how many got one,
    and the ids of the damaged ones. A cell that is erased meanwhile gets one from the erasure,
    and keeps it."""
    after, added, damaged = -1, 0, list[int]()
    name = f"{database}.{table}"
    while True:
        try:
            found = session.rows(
                f"SELECT {CELL} FROM {name} WHERE added_id > {after} AND crc IS NULL ORDER BY"
                f" added_id LIMIT {_SUMMED_ROWS}"
            )
        except StorageUnavailable as error:
            cause = error.__cause__
            if cause is not None and error_code(cause) in (ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR):
                return added, damaged
            raise
        if not found:
            return added, damaged
        after, sums = int(found[-1][0]), []
        for row in found:
            try:
                cell = stored_cell(0, row)
                decode_body(cell.body)  # the only checksum that it has
                sums.append((cell.added_id, cell_checksum(*cell)))
            except DataDamaged:
                damaged.append(int(row[0]))
        if sums:
            cases, ids = (
                " ".join(f"WHEN {added_id} THEN {crc}" for added_id, crc in sums),
                ",".join(str(added_id) for added_id, _ in sums),
            )
            session.rows(
                f"UPDATE {name} SET crc = CASE added_id {cases} END WHERE added_id IN ({ids})"
                " AND crc IS NULL"
            )
            added += len(sums)
        failpoint("mysql.scrub.after_checksums")
