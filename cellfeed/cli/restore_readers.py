"""Readers of the log that a restore must respect, and where new ids begin because of them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from cellfeed.config.model import Config
from cellfeed.consumers.warehouse.table import WarehouseTable
from cellfeed.run_dir import RunDir
from cellfeed.store.backups.manifest import Manifest, Reader
from cellfeed.store.backups.readers_ahead import (
    IDS_LEFT_OUT,
)
from cellfeed.store.cells.sharding import check_shard
from cellfeed.store.errors import InvalidRequest, NotFound
from cellfeed.store.limits import ADDED_ID_MAX


class ReadersAhead(StrEnum):
    """How a restore treats readers that are ahead of the backup."""

    REFUSE = "refuse"
    RAISE_EPOCH = "raise-epoch"


def readers_of_config(config: Config, run_dir: RunDir) -> list[Reader]:
    found: list[Reader] = []
    for export in config.exports:
        from cellfeed.bridge.backups.export_readers import export_readers  # an extra of its own

        found += export_readers(export, config.datastore.name, config.datastore.shards)
    for warehouse in config.warehouses:
        try:
            table = WarehouseTable(run_dir.inside(warehouse.directory))
        except NotFound:
            continue
        found += [
            Reader(warehouse.name, table.topic, shard, location, source="warehouse")
            for shard, location in table.next_ids().items()
        ]
    for lake in config.lakes:
        from cellfeed.assembly.lakes import lake_place, lake_topic  # an extra of its own
        from cellfeed.consumers.lake.open_table import find_lake_table  # an extra of its own

        lake_table = find_lake_table(lake_place(lake, run_dir))
        if lake_table is not None:
            found += [
                Reader(lake.name, lake_topic(lake, config), shard, each.next_id, source="lake")
                for shard, each in lake_table.look().positions.items()
            ]
    return found


def ids_read(given: Sequence[str], manifest: Manifest) -> dict[int, int]:
    """By shard, below which id somebody has read."""
    found: dict[int, int] = {}
    for text in given:
        shard, _, added_id = text.rpartition(":")
        if (
            not added_id.isdecimal()
            or (shard and not shard.isdecimal())
            or int(added_id) > ADDED_ID_MAX - IDS_LEFT_OUT - 1
        ):
            raise InvalidRequest(
                f"--above {ascii(text)[:40]} is not of the form 120000 or 3:120000"
            )
        for each in [check_shard(int(shard), manifest.shards)] if shard else range(manifest.shards):
            found[each] = max(found.get(each, 0), int(added_id))
    return found


def first_new_ids(
    manifest: Manifest, readers: Sequence[Reader], named: dict[int, int], *, raised: bool
) -> dict[int, int]:
    """By shard, the id from which its log continues, where that is not its end."""
    found = dict(named)
    if raised:
        for log in manifest.logs:
            read = max(
                (reader.location for reader in readers if reader.shard == log.shard), default=0
            )
            found[log.shard] = max(log.watermark, read, named.get(log.shard, 0)) + IDS_LEFT_OUT
    return found
