"""The writes of a restore: each log as it is to be, with the cells and the state entries that the
restore adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.check import (
    chain_dictionaries,
    check_whole,
)
from cellfeed.store.backups.epochs import epoch_of_next_history
from cellfeed.store.backups.manifest import BackedLog, BackedTurn, Reader
from cellfeed.store.cells import canonical_json
from cellfeed.store.cells.body_codec import ERASED_BODY
from cellfeed.store.cells.body_encoding import encode_body
from cellfeed.store.cells.cell import ERASED_COLUMN, RESTORED_COLUMN, StoredCell, moment
from cellfeed.store.cells.dictionary import Dictionary
from cellfeed.store.cells.sharding import shards_of
from cellfeed.store.engines.contract.state_limits import revision_of_next_history
from cellfeed.store.erasures import done_entry
from cellfeed.store.histories import NO_HISTORY, History

_KEYS_AT_A_TIME: Final = 4_096


class RestoredLog(NamedTuple):
    """A log as it is to be. ``epochs``: with the new one. ``note``: the cell behind the ids that
    are left out; None where none are. ``erased``: the cells that mark erasures which only later
    backups know, behind all others."""

    shard: int
    log_start: int
    end: int
    last_created_at_us: int
    epochs: list[tuple[int, int]]
    note: StoredCell | None
    erased: Sequence[StoredCell] = ()

    @property
    def added(self) -> list[StoredCell]:
        """The cells that the restore itself writes, by added_id."""
        return [*([] if self.note is None else [self.note]), *self.erased]

    @property
    def next_added_id(self) -> int:
        return self.added[-1].added_id + 1 if self.added else self.end


@dataclass(frozen=True)
class Plan:
    """The sources of a restore, and its result. ``chain``: the backups that have the cells;
    ``backup``: the one that it restores, the last of them but for a point in time. ``state``: the
    entries that come back, keys and values. ``parent``: the history that was backed up, empty where
    the backup does not say."""

    backup: Backup
    chain: Sequence[Backup]
    epoch: int
    logs: Mapping[int, RestoredLog]
    state: Sequence[tuple[str, bytes]]
    state_revision: int
    dictionaries: Sequence[Dictionary]
    turns: Sequence[BackedTurn]
    columns: Sequence[str]
    parent: History = NO_HISTORY

    @property
    def erased(self) -> list[bytes]:
        """Row keys of the rows that the restore erases."""
        return [cell.row_key for log in self.logs.values() for cell in log.erased]

    @property
    def lost(self) -> dict[int, tuple[int, int]]:
        """By shard the first and the last of the ids that are left out."""
        return {
            shard: (log.end, log.note.added_id - 1)
            for shard, log in self.logs.items()
            if log.note is not None
        }


def plan(
    chain: Sequence[Backup],
    state: Sequence[tuple[str, bytes]],
    readers: Sequence[Reader],
    new_ids: Mapping[int, int],
    now_us: int,
    why: str,
    erased: Mapping[int, Sequence[bytes]] | None = None,
    begun_epoch: int | None = None,
    point: Backup | None = None,
) -> Plan:
    """``new_ids``: by shard an id that is higher than all that anybody was shown, where the log
    must not continue at its end. ``why``: the reason that the log's note gives. ``erased``: by
    shard the rows that were erased since (:mod:`cellfeed.store.backups.erasures`). ``begun_epoch``:
    that of an unfinished restore, as the target reports it. ``point``: a point in time as a backup
    (:mod:`cellfeed.store.backups.point`). Raises ProtectData where no leader epoch of Kafka is
    left."""
    backup = chain[-1] if point is None else point
    manifest = backup.manifest
    check_whole(chain, manifest.logs)
    known = [epoch for log in manifest.logs for epoch, _ in log.epochs] + [
        reader.leader_epoch for reader in readers
    ]
    epoch = epoch_of_next_history(max(known, default=0)) if begun_epoch is None else begun_epoch
    wanted = [log.shard for log in manifest.logs if new_ids.get(log.shard, 0) > log.watermark]
    keys = _row_keys(manifest.datastore, epoch, manifest.shards, wanted)
    logs = {}
    for log in manifest.logs:
        note = (
            _note(log, keys[log.shard], epoch, new_ids[log.shard], now_us, backup.name, why)
            if log.shard in keys
            else None
        )
        first = log.watermark if note is None else note.added_id + 1
        at_us = max(now_us, log.last_created_at_us)
        entries = [
            StoredCell(first + n, row_key, ERASED_COLUMN, 0, at_us, ERASED_BODY)
            for n, row_key in enumerate((erased or {}).get(log.shard, ()))
        ]
        logs[log.shard] = RestoredLog(
            log.shard,
            log.log_start,
            log.watermark,
            at_us if note is not None or entries else log.last_created_at_us,
            [*log.epochs, (epoch, log.watermark)],
            note,
            entries,
        )
    added = [*([RESTORED_COLUMN] if keys else []), *([ERASED_COLUMN] if erased else [])]
    columns = [*manifest.columns, *(name for name in added if name not in manifest.columns)]
    revision = revision_of_next_history(manifest.state_revision)
    done = dict(
        done_entry(UUID(bytes=cell.row_key), cell.added_id, cell.created_at_us)
        for log in logs.values()
        for cell in log.erased
    )
    kept = [*((key, value) for key, value in state if key not in done), *done.items()]
    return Plan(
        backup,
        chain,
        epoch,
        logs,
        kept,
        revision,
        chain_dictionaries(chain),
        manifest.turns,
        columns,
        manifest.history,
    )


def _note(
    log: BackedLog, row_key: bytes, epoch: int, added_id: int, now_us: int, backup: str, why: str
) -> StoredCell:
    body = {
        "backup": backup,
        "leader_epoch": epoch,
        "lost_from": log.watermark,
        "lost_to": added_id - 1,
        "reason": why,
        "restored_at": moment(now_us).isoformat(),
        "shard": log.shard,
    }
    at_us = max(now_us, log.last_created_at_us)
    return StoredCell(
        added_id,
        row_key,
        RESTORED_COLUMN,
        epoch,
        at_us,
        encode_body(canonical_json.canonical(body)),
    )


def _row_keys(datastore: str, epoch: int, shards: int, wanted: Sequence[int]) -> dict[int, bytes]:
    """A row key of each of these shards, that nobody else makes."""
    found: dict[int, bytes] = {}
    left, number = set(wanted), 0
    while left:
        keys = [
            uuid5(NAMESPACE_URL, f"cellfeed restore {datastore} {epoch} {number + each}").bytes
            for each in range(_KEYS_AT_A_TIME)
        ]
        number += _KEYS_AT_A_TIME
        for key, shard in zip(keys, shards_of(keys, shards), strict=True):
            if shard in left:
                left.discard(shard)
                found[shard] = key
    return found
