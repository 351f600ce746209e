"""The known readers of a datastore's logs, and their positions: a restore must not give out the ids
below them a second time.

    groups     triggers, consumer groups of gateways and exports, by the offsets that are kept
               outside of the datastore (ZooKeeper). Offsets that are kept in
               the datastore come back with the backup, and are never ahead of it
    exports    the last record of each partition in the Kafka cluster (``export_readers.py``)
    warehouse  the tables of the configuration (by the caller: they are above this layer)
    backup     later backups of the datastore in the same folder
               (:func:`cellfeed.store.backups.readers_ahead.backup_readers`)

Offsets of every topic count: those of columns and views are those of the full log, and the owner of
a view is not known here. A reader that is in no group and nowhere in the configuration is not
known.
"""

from __future__ import annotations

from collections.abc import Sequence

from cellfeed.bridge.coordination.contract import CommittedOffset, Offsets
from cellfeed.store.backups.manifest import Reader


def group_readers(offsets: Offsets | None, shards: int) -> list[Reader]:
    """Every offset that is kept elsewhere; ``offsets`` is None where none are. Raises
    Unavailable."""
    if offsets is None or offsets.keeps_in_store:
        return []
    return [
        Reader(group, topic, shard, committed.offset, committed.leader_epoch, "group")
        for group in offsets.groups()
        for (topic, shard), committed in offsets.fetch_offsets(group).items()
        if shard < shards
    ]


def set_back(offsets: Offsets, workers: Sequence[str], at_backup: Sequence[Reader]) -> list[Reader]:
    """Sets offsets that are kept elsewhere back to their values at the backup, for groups whose
    work is known by offsets **and** parked cells. Cells that were parked since are not in the
    backup, so the cells from there on are run again. Returns the offsets that were set. Raises
    Unavailable."""
    done = list[Reader]()
    for group in workers:
        now = offsets.fetch_offsets(group)
        back = [
            reader
            for reader in at_backup
            if reader.name == group
            and (offset := now.get((reader.topic, reader.shard))) is not None
            and offset.offset > reader.location
        ]
        if back:
            offsets.commit_offsets(
                group,
                {
                    (reader.topic, reader.shard): CommittedOffset(
                        reader.location, reader.leader_epoch
                    )
                    for reader in back
                },
            )
        done += back
    return done
