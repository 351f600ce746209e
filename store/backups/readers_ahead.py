"""Readers that have read further than a backup goes: a restore is refused because of them, unless
new ids begin above all that they have read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cellfeed.store.backups.backup import Backup
from cellfeed.store.backups.manifest import Reader
from cellfeed.store.errors import ProtectData
from cellfeed.store.limits import ADDED_ID_MAX

IDS_LEFT_OUT: Final = 100_000
"""Ids that are left out above the highest location that any reader has saved. A reader is ahead of
its saved location by the records that it handles until it saves again: with Kafka's clients 5 s, at
20,000 records a second of one partition. More would cost readers: a gateway sends empty batches for
unused ids, 15 ms of work for so many."""


_NAMED_MAX: Final = 10


def readers_ahead(chain: Sequence[Backup], readers: Sequence[Reader]) -> list[Reader]:
    """The readers that have read cells that the backup lacks, the furthest ahead first."""
    ends = {log.shard: log.watermark for log in chain[-1].manifest.logs}
    ahead = [reader for reader in readers if reader.location > ends.get(reader.shard, ADDED_ID_MAX)]
    return sorted(ahead, key=lambda reader: (ends[reader.shard] - reader.location, reader.name))


def backup_readers(later: Sequence[Backup]) -> list[Reader]:
    """Later backups of the same datastore as readers: each id that one of them has was shown."""
    return [
        Reader(
            each.name,
            each.manifest.datastore,
            log.shard,
            log.watermark,
            max((epoch for epoch, _ in log.epochs), default=-1),
            "backup",
        )
        for each in later
        for log in each.manifest.logs
    ]


def refuse_readers_ahead(chain: Sequence[Backup], ahead: Sequence[Reader]) -> None:
    """Raises ProtectData when there are any."""
    if not ahead:
        return
    named = "; ".join(map(str, ahead[:_NAMED_MAX])) + (
        f"; and {len(ahead) - _NAMED_MAX} more" if len(ahead) > _NAMED_MAX else ""
    )
    ends = ", ".join(
        f"{log.shard}:{log.watermark}"
        for log in chain[-1].manifest.logs
        if log.shard in {reader.shard for reader in ahead[:_NAMED_MAX]}
    )
    raise ProtectData(
        f"nothing restored: backup {chain[-1].name} ends at {ends}, and readers have come further:"
        f" {named}. Restore a newer backup; or, if the cells between are lost for good, let the ids"
        " continue above those that they have read: --readers-ahead raise-epoch"
    )
