"""How far a trigger group has handled each shard's log, with nothing left out below. Queries of an
index rely on it (:mod:`cellfeed.store.indexes.settled_logs`).

A location counts where the group's offset is past every cell below it, and

- none of the shard's cells is parked, nor was one given up: its work may not be done
- nobody moved the group in that shard, or began it behind the log's start: cells were left out
- the offsets are those of this history, and no cell's parking is still to be written

History, offsets and parked cells are read one after the other, as by
:class:`cellfeed.bridge.outlets.groups.GroupOutlet`: offsets before parked cells, since one commit
parks a cell and passes it; and the history before and after, since a reset may take parked cells
off their queue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.history import history
from cellfeed.bridge.groups.start import recorded_start
from cellfeed.bridge.outlets.groups import GroupOutlet
from cellfeed.bridge.triggers.offsets.lineage import lost_offsets
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore


def handled_to(
    datastore: Datastore, coordinator: Coordinator
) -> Callable[[str], Mapping[int, int]]:
    """Of a group the locations by shard; shards where that is not known are left out. The call
    raises Unavailable."""
    state, topic, shards = datastore.state, datastore.name, range(datastore.shards)
    parked = ParkedCells(state)

    def of_group(group: str) -> Mapping[int, int]:
        deeds = history(state, group)
        if lost_offsets(state, coordinator, group, topic) is not None:
            return {}
        reached = GroupOutlet(group, group, datastore, coordinator).positions(shards)
        if coordinator.has_unwritten_entries(group):
            return {}
        starts = recorded_start(state, group, topic)
        unsure = {
            cell.partition
            for queue in ("parked", "skipped")
            for cell in parked.all(group, queue)
            if cell.topic == topic
        }
        unsure.update(shard for deed in deeds for shard in deed.after)
        if starts is None or history(state, group) != deeds:
            return {}
        heads = datastore.heads()
        return {
            shard: location
            for shard, location in reached.items()
            if shard not in unsure and starts[shard] <= heads[shard].log_start
        }

    return of_group
