"""How an index stands, and how a version of it goes away."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.control import group_prefix
from cellfeed.bridge.groups.start import forget_start
from cellfeed.bridge.indexes.rejected_values import forget_rejected_values, rejected_values
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.indexes.catalog import Catalog
from cellfeed.store.indexes.records import VersionRecord
from cellfeed.store.indexes.version import IndexVersion

declare("index.drop.marked", "index.drop.tables_gone", "index.drop.before_forgotten")

_WAIT_S: Final = 30.0
"""How long a drop waits for the workers to leave the version, in seconds: longer than a killed
one's lease."""


class VersionStatus(msgspec.Struct, frozen=True):
    """``positions``: by shard the location that the version has come to. ``cells_behind`` and
    ``seconds_behind`` as of a trigger, see ``triggers lag``; ``unfit``: values that were not of
    their field's type, ``unfit_last`` the last of them."""

    index: str
    version: int
    state: str
    fields: list[str]
    cells_behind: int
    seconds_behind: float
    cells_total: int
    parked: int
    unfit: int
    unfit_last: str
    workers: list[str]
    waits_because: str
    positions: dict[int, int]


def version_status(
    datastore: Datastore, coordinator: Coordinator, record: VersionRecord
) -> VersionStatus:
    """Raises Unavailable."""
    version = IndexVersion(record.definition, record.number, datastore.shards)
    lag = LagReader(datastore, coordinator).read(version.group)
    unfit = rejected_values(datastore.state, version.group)
    return VersionStatus(
        index=record.definition.table,
        version=record.number,
        state=record.state,
        fields=[f"{field.name} {field.type}" for field in record.definition.fields],
        cells_behind=lag.cells,
        seconds_behind=lag.seconds,
        cells_total=sum(each.watermark for each in lag.shards),
        parked=lag.parked,
        unfit=unfit.count,
        unfit_last=unfit.last,
        workers=lag.workers,
        waits_because=lag.waits_because or lag.takes_nothing,
        positions={each.shard: each.offset or 0 for each in lag.shards},
    )


def drop_versions(
    datastore: Datastore, coordinator: Coordinator, name: str, number: int | None = None
) -> list[int]:
    """Drops a version of an index, or all of it: tables, positions and reports about it. Killed in
    between, it is run again. Raises NotFound, Unavailable."""
    catalog = Catalog(datastore.state, datastore.name)
    catalog.get(name)
    dropped = []
    for record in catalog.begin_drop(name, number):
        version = IndexVersion(record.definition, record.number, datastore.shards)
        deadline_s = time.monotonic() + _WAIT_S
        while members := coordinator.members(version.group):
            if time.monotonic() > deadline_s:
                raise StorageUnavailable(
                    f"index {name!r} version {record.number} is still kept by {', '.join(members)};"
                    " drop it again when they have ended"
                )
            time.sleep(0.05)
        failpoint("index.drop.marked")
        datastore.engine.indexes.drop(version.table)
        failpoint("index.drop.tables_gone")
        coordinator.delete_offsets(version.group)
        entries = datastore.state.list(group_prefix(version.group))
        parked = ParkedCells(datastore.state)
        gone: dict[str, bytes | None] = {entry.key: None for entry in entries}
        for cell in parked.all(version.group):
            gone.update(dict.fromkeys(parked.entry(cell)))
        datastore.state.commit(gone)
        forget_start(datastore.state, version.group, datastore.name)
        forget_rejected_values(datastore.state, version.group)
        failpoint("index.drop.before_forgotten")
        catalog.end_drop(name, record.number)
        dropped.append(record.number)
    return dropped
