"""A consumer group of the gateways as an outlet.

It has passed a place when its committed offset is above it, in every topic that it has an offset of
for the shard. A topic that leaves cells out has the same offsets: its consumer commits the
added_id behind the last record that it has read. Until there is a later record in such a topic, a
place whose cell is not in it is not passed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.gateway.groups.slot_owners import why_stopped
from cellfeed.store.cells.token import Places
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Unavailable
from cellfeed.store.waits.waiting import Passed, missing_places


class ConsumerGroup:
    """See the module."""

    def __init__(self, group: str, datastore: Datastore, coordinator: Coordinator) -> None:
        self.title = f"consumer group {group!r}"
        self._group = group
        self._datastore = datastore
        self._coordinator = coordinator

    def group(self) -> str:
        return self._group

    def positions(self, shards: Collection[int]) -> Mapping[int, int]:
        del shards  # which topics the group has, its whole listing says
        found: dict[int, int] = {}
        for (_, shard), each in self._coordinator.fetch_offsets(self._group).items():
            found[shard] = min(each.offset, found.get(shard, each.offset))
        return found

    def passed(self, places: Sequence[Places]) -> Passed | None:
        if (why := why_stopped(self._datastore.state, self._coordinator)) is not None:
            raise Unavailable(why)
        return None if missing_places(self.positions(()), places) else Passed(self.title)
