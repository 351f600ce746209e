"""Which rows a restore erases again: rows that the register, or a manifest of the folder, records
as erased later than the backup knows.

Four places know of an erasure. The state table has an entry for each that was done, for ever, and a
note for each that is not done yet (:mod:`cellfeed.store.erasures`). A log marks each with a cell
(column ``ERASED_COLUMN``) until that cell is trimmed. A manifest names those cells. The register
(:mod:`cellfeed.store.backups.register`) has all of them.

A row that the backup already knows as erased is not erased again: its log still has the cell, or
its state has the entry. In the second case the cell was trimmed, and the row may have been put
since; only an erasure that the register has behind that entry is a later one. Cells that were
erased below the start of the backup's log are gone from it.

A restore ends the logs with such cells for all other rows. The storage takes their bodies away in
the step that opens it, so at no moment is it open with a body that was erased. The restored state
table has an entry for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import read_segment, read_state
from cellfeed.store.backups.manifest import BackedErasure, BackedLog
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.register_entries import NOT_DONE, Erasure
from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.erasures import DONE, PREFIX, DoneErasure, done_of, unended_of


def erasures_of(shard: int, cells: Sequence[StoredCell]) -> list[BackedErasure]:
    """The erasures that cells of a shard mark."""
    return [
        BackedErasure(shard, cell.added_id, cell.row_key.hex(), cell.created_at_us)
        for cell in cells
        if cell.column_name == ERASED_COLUMN
    ]


def known_to_state(
    datastore: str, shards: int, entries: Iterable[tuple[str, bytes]]
) -> list[Erasure]:
    """The erasures that the entries of a state table name, done or not."""
    found = []
    for key, value in entries:
        if key.startswith(DONE):
            row_key, done = done_of(key, value)
            found.append(
                _erasure(datastore, shards, row_key.bytes, done.added_id, done.erased_at_us)
            )
        elif key.startswith(PREFIX):
            note = unended_of(value)
            found.append(
                _erasure(datastore, shards, UUID(note.row_key).bytes, NOT_DONE, note.asked_at_us)
            )
    return found


def known_to_logs(
    datastore: str, shards: int, erasures: Iterable[BackedErasure], at_us: int
) -> list[Erasure]:
    """The erasures that cells of a backup mark, by its manifest. ``at_us``: of the backup, for
    manifests of an older program."""
    return [
        _erasure(
            datastore,
            shards,
            bytes.fromhex(each.row_key),
            each.added_id,
            each.created_at_us or at_us,
        )
        for each in erasures
    ]


def recorded_in(register: Register, backup: Backup, later: Sequence[Backup]) -> list[Erasure]:
    """The erasures that a restore of ``backup`` considers: those of the register, and those that
    only manifests of an older program have. The register must be the one that this backup and the
    later ones have recorded. Raises DataDamaged."""
    found = register.entries((each.name, each.manifest.register) for each in (backup, *later))
    known = {each.key for each in found}
    return [
        *found,
        *(
            each
            for each in known_to_manifests(later, backup.manifest.datastore, backup.manifest.shards)
            if each.key not in known
        ),
    ]


def known_to_manifests(backups: Iterable[Backup], datastore: str, shards: int) -> list[Erasure]:
    """The erasures that the manifests of this datastore's backups name."""
    of_it = [
        each.manifest
        for each in backups
        if (each.manifest.datastore, each.manifest.shards) == (datastore, shards)
    ]
    return [
        each
        for recorded in of_it
        for each in known_to_logs(
            datastore, shards, recorded.erasures or (), recorded.created_at_us
        )
    ]


def to_erase(
    chain: Sequence[Backup],
    state: Iterable[tuple[str, bytes]],
    recorded: Iterable[Erasure],
    logs: Sequence[BackedLog] | None = None,
) -> dict[int, list[bytes]]:
    """By shard the row keys of rows that are to be erased in a restore of ``chain``, with ``state``
    as its state. ``recorded``: the register, and the erasures that only manifests have. ``logs``:
    as they are restored; those of the last backup when left out. Needs
    :func:`~cellfeed.store.backups.check.dictionaries_known` for a chain of format 1. Raises
    DataDamaged."""
    newest = chain[-1].manifest
    ids = {log.shard: range(log.log_start, log.watermark) for log in logs or newest.logs}
    in_logs = {
        bytes.fromhex(each.row_key)
        for backup in chain
        for each in _erasures(backup)
        if each.added_id in ids[each.shard]
    }
    in_state = {
        row_key.bytes: done
        for row_key, done in (done_of(key, value) for key, value in state if key.startswith(DONE))
    }
    by_row: dict[bytes, list[Erasure]] = {}
    for each in recorded:
        if (each.datastore, each.shards) == (newest.datastore, newest.shards):
            by_row.setdefault(bytes.fromhex(each.row_key), []).append(each)
    found: dict[int, list[bytes]] = {}
    for row_key, erasures in sorted(by_row.items()):
        shard = shard_of(row_key, newest.shards)
        if row_key not in in_logs and any(
            _is_there(each, ids[shard].start) for each in _since(erasures, in_state.get(row_key))
        ):
            found.setdefault(shard, []).append(row_key)
    return found


def erased_in_folder(
    chain: Sequence[Backup], later: Sequence[Backup], recorded: Iterable[Erasure]
) -> set[bytes]:
    """Row keys of all rows that the folder knows to be erased, even those put again since.
    ``recorded``: as :func:`recorded_in` gives it. Needs
    :func:`~cellfeed.store.backups.check.dictionaries_known` for a chain of format 1. Raises
    DataDamaged."""
    newest = chain[-1].manifest
    of = newest.datastore, newest.shards
    known = [
        *(each for each in recorded if (each.datastore, each.shards) == of),
        *known_to_manifests(later, *of),
        *known_to_state(*of, read_state(chain[-1])),
    ]
    in_logs = {each.row_key for backup in chain for each in _erasures(backup)}
    return {bytes.fromhex(row_key) for row_key in in_logs.union(each.row_key for each in known)}


def _since(erasures: Sequence[Erasure], done: DoneErasure | None) -> Sequence[Erasure]:
    """Those of a row that came after the one that the state of the backup has."""
    if done is None:
        return erasures
    last = max((n for n, each in enumerate(erasures) if each.added_id == done.added_id), default=-1)
    return [
        each
        for each in erasures[last + 1 :]
        if each.added_id != NOT_DONE or each.at_us > done.erased_at_us
    ]


def _is_there(erasure: Erasure, log_start: int) -> bool:
    """Whether cells that it took may be in a log that begins there."""
    return erasure.added_id == NOT_DONE or erasure.added_id >= log_start


def _erasure(datastore: str, shards: int, row_key: bytes, added_id: int, at_us: int) -> Erasure:
    return Erasure(datastore, shards, shard_of(row_key, shards), row_key.hex(), added_id, at_us)


def _erasures(backup: Backup) -> Iterator[BackedErasure]:
    if backup.manifest.erasures is not None:
        yield from backup.manifest.erasures
        return
    for segment in backup.manifest.segments:
        for cells in read_segment(backup, segment):
            yield from erasures_of(segment.shard, cells)
