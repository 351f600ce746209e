"""Whether a store is the one that a backup was taken of, so that an increment on that backup holds
the cells behind it.

A manifest names its history (:mod:`cellfeed.store.histories`), and so does the store: two different
ones are refused. Older manifests name none, and files of a store may be put back from a copy. So
the cells must agree as well.

Names prove nothing: a store that was made again has the same, and two restores of one backup have
the same leader epochs. The proof is a cell. Two histories of a shard differ in every cell behind
their common beginning: ids are given in order, and a cell that was put again has another moment. So
a manifest has a **witness** for each log, a hash of its last cell without the body, which an
erasure may take. The store must have that very cell at that id. Of an encrypted backup the hash is
over the id and the moment alone: with a row key in it, a guess at that key could be confirmed.

Where the cell was trimmed since, the log's end may still say it: an end that has not moved must
have the same time. Where it has moved, the shard proves nothing, and others must. A store none of
whose shards proves anything is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import dictionaries_known, read_segment
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.manifest import BackedLog
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import ProtectData, Trimmed
from cellfeed.store.histories import is_same_history, refuse_other_history

_CELL: Final = struct.Struct(">Q16sqQ")
_PLACE: Final = struct.Struct(">QQ")


def witness_of(cell: StoredCell, *, encrypted: bool = False) -> str:
    """A hash of all of a cell but its body; for an encrypted backup, of its id and moment."""
    if encrypted:
        return sha256(_PLACE.pack(cell.added_id, cell.created_at_us)).hexdigest()
    return sha256(
        _CELL.pack(cell.added_id, cell.row_key, cell.ref_key, cell.created_at_us)
        + cell.column_name.encode()
    ).hexdigest()


def check_name(engine: Engine, base: Backup) -> None:
    """Raises ProtectData for a backup of another datastore."""
    manifest = base.manifest
    if (manifest.datastore, manifest.shards) != (engine.datastore, engine.shards):
        raise ProtectData(
            f"backup {base.name} is of datastore {manifest.datastore!r} with {manifest.shards}"
            f" shards, this one is {engine.datastore!r} with {engine.shards}: take a full backup"
            " into a folder of its own"
        )


def check_history(engine: Engine, base: Backup) -> None:
    """Raises ProtectData for a backup of another history."""
    cure = "An increment holds only the cells behind its base. Take a full backup, without --onto"
    refuse_other_history(
        f"nothing backed up: backup {base.name}",
        base.manifest.history.history_id,
        "the store",
        engine.history.history_id,
        cure,
    )


def check_lineage(folder: BackupFolder, found: Sequence[Backup], engine: Engine) -> None:
    """Raises ProtectData where all of a folder's backups of that datastore are of another lineage:
    the folder is another store's."""
    named = [each for each in found if each.manifest.datastore == engine.datastore]
    own = engine.history.origin_id
    if named and not any(is_same_history(lineage_of(each), own) for each in named):
        raise ProtectData(
            f"no backup taken: {folder.place} has backups of another store of that name, the newest"
            f" is {named[-1].name}: its lineage begins with history {lineage_of(named[-1])}, this"
            f" store's with {own}. Give this store a folder of its own"
        )


def lineage_of(backup: Backup) -> str:
    """The first history of its store's lineage; empty where the backup does not say."""
    return backup.manifest.history.origin_id


def check_same_store(
    engine: Engine,
    chain: Sequence[Backup],
    epochs: Mapping[int, Sequence[tuple[int, int]]],
    heads: Mapping[int, Head],
) -> None:
    """Raises ProtectData unless the store's logs are those that the last backup of ``chain`` was
    taken of."""
    base = chain[-1]
    witnesses = (
        {log.shard: log.witness for log in base.manifest.logs}
        if base.manifest.format_version > 1
        else _read_witnesses(chain)
    )
    proofs = 0
    for log in base.manifest.logs:
        since = [epoch for epoch in epochs[log.shard] if epoch not in log.epochs]
        missing = [
            epoch
            for epoch in log.epochs
            if epoch not in epochs[log.shard] and epoch[1] <= log.watermark
        ]
        head = heads[log.shard]
        if (
            head.watermark < log.watermark
            or missing
            or any(first < log.watermark for _, first in since)
        ):
            raise _other(base, log)
        proven = _proven(
            engine, log, witnesses.get(log.shard, ""), head, encrypted=base.manifest.is_encrypted
        )
        if proven is False:
            raise _other(base, log)
        proofs += proven is True
    if not proofs and any(log.watermark for log in base.manifest.logs):
        raise ProtectData(
            f"no cell that ends backup {base.name} is left in the store: every log was trimmed"
            " beyond it, so nothing shows whether the store is the one that it was taken of."
            " Take a full backup, without --onto"
        )


def _proven(
    engine: Engine, log: BackedLog, witness: str, head: Head, *, encrypted: bool
) -> bool | None:
    """Whether the log is the one of the backup; None when there is no proof."""
    if log.watermark == 0:
        return None
    if witness and head.log_start < log.watermark:
        try:
            found = engine.scan(log.shard, log.watermark - 1, 1)
        except Trimmed:
            return None
        return (
            bool(found)
            and found[0].added_id == log.watermark - 1
            and witness_of(found[0], encrypted=encrypted) == witness
        )
    if head.watermark == log.watermark:
        return head.last_created_at_us == log.last_created_at_us
    return None if head.last_created_at_us >= log.last_created_at_us else False


def _read_witnesses(chain: Sequence[Backup]) -> dict[int, str]:
    """Of a backup of format 1: its cells are read."""
    found: dict[int, str] = {}
    with dictionaries_known(chain):
        for backup in chain:
            for segment in backup.manifest.segments:
                for cells in read_segment(backup, segment):
                    found[segment.shard] = witness_of(cells[-1])
    return found


def _other(base: Backup, log: BackedLog) -> ProtectData:
    return ProtectData(
        f"shard {log.shard} is not the log that backup {base.name} was taken of up to"
        f" {log.watermark}: the store was restored or made again since, or is another one. Take a"
        " full backup, without --onto"
    )
