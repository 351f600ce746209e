"""Which rows were erased since a backup was taken, as later backups in its folder tell. A restore erases them again: what had to go does not come back.

A backup's log tells of an erasure by a cell (column ``ERASED_COLUMN``), and its manifest names those cells. A restore ends the log with such cells for the rows
that only later backups know of; the storage takes their bodies away in the step that opens it, as it does for entries that the backup itself has. So at no
moment is the storage open with a body that one of the backups says is erased. An erasure that no backup knows of is not known here: erase that row again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from store.backups.check import read_segment
from store.backups.folder import Backup
from store.backups.manifest import BackedErasure
from store.cells import ERASED_COLUMN, StoredCell


def erasures_of(shard: int, cells: Sequence[StoredCell]) -> list[BackedErasure]:
    """Those that some cells of a shard tell of."""
    return [BackedErasure(shard, cell.added_id, cell.row_key.hex()) for cell in cells if cell.column_name == ERASED_COLUMN]


def erased_since(chain: Sequence[Backup], backups: Sequence[Backup]) -> dict[int, list[bytes]]:
    """By shard the row keys of rows that were erased after ``chain`` was taken, as later ones of the same datastore among ``backups`` tell; with
    :func:`~store.backups.check.dictionaries_known` for a chain of an older program. Raises DataDamaged."""
    told = chain[-1].manifest
    later = [
        each
        for each in backups
        if (each.manifest.datastore, each.manifest.shards) == (told.datastore, told.shards) and each.manifest.created_at_us > told.created_at_us
    ]
    since = {(each.shard, each.row_key) for backup in later for each in backup.manifest.erasures or ()}
    if not since:
        return {}
    starts = {log.shard: log.log_start for log in told.logs}
    # What lies below the start of a log is not restored, nor is the erasure that it tells of.
    known = {(each.shard, each.row_key) for backup in chain for each in _erasures(backup) if each.added_id >= starts[each.shard]}
    found: dict[int, list[bytes]] = {}
    for shard, row_key in sorted(since - known):
        found.setdefault(shard, []).append(bytes.fromhex(row_key))
    return found


def _erasures(backup: Backup) -> Iterator[BackedErasure]:
    if backup.manifest.erasures is not None:
        yield from backup.manifest.erasures
        return
    for segment in backup.manifest.segments:
        for cells in read_segment(backup, segment):
            yield from erasures_of(segment.shard, cells)
