"""A trigger's group as an outlet.

Its offset moves behind the work, and parking a cell is one commit with the offset past it. So a
place below the offset was run, or is parked, or was never to be run: the group began behind it, or
an operator moved the group past it. The start and the group's history say which places that are.

**One moment.** Offsets and parked cells are read one after the other. A reset in between could take
a parked cell off its queue, and the place would look handled. Every reset writes its entry in the
history in the commit that decides it. So the history is read before and after; where it has changed
there is no answer, and the next look reads all of it again. A cell that is given up between two
reads counts as parked, as it was at the first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.history import history
from cellfeed.bridge.groups.start import recorded_start
from cellfeed.bridge.outlets.skipped import reached_again, skipped_places
from cellfeed.bridge.triggers.offsets.kept_offsets import KeptOffsets, needs_kept_offsets
from cellfeed.bridge.triggers.offsets.lineage import lost_offsets
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.cells.token import Places
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Unavailable
from cellfeed.store.waits.waiting import Passed, Place, PlaceRange, missing_places


class GroupOutlet:
    """:class:`cellfeed.store.waits.waiting.Outlet` of a group that works as triggers do."""

    def __init__(
        self, title: str, group: str, datastore: Datastore, coordinator: Coordinator
    ) -> None:
        self.title = title
        self._group = group
        self._datastore = datastore
        self._coordinator = coordinator
        self._parked = ParkedCells(datastore.state)

    def group(self) -> str:
        return self._group

    def positions(self, shards: Collection[int]) -> Mapping[int, int]:
        topic = self._datastore.name
        wanted = [(topic, shard) for shard in shards]
        found = self._coordinator.fetch_offsets(self._group, wanted)
        saved = {shard: each.offset for (_, shard), each in found.items()}
        if not needs_kept_offsets(self._coordinator):
            return saved
        kept = KeptOffsets(self._datastore.state, self._group, topic)
        return kept.continues_at(saved, wanted=shards)

    def passed(self, places: Sequence[Places]) -> Passed | None:
        state, topic = self._datastore.state, self._datastore.name
        deeds = history(state, self._group)
        if (lost := self._lost()) is not None:
            raise Unavailable(f"{self.title} stands still: {lost}")
        if missing_places(self.positions([each.shard for each in places]), places):
            return None
        if self._coordinator.has_unwritten_entries(self._group):
            return None  # the offset is past a cell whose parking the state table has not yet
        starts = self._starts()
        parked = self._parked.within(self._group, topic, places)
        given_up = self._parked.within(self._group, topic, places, queue="skipped")
        if history(state, self._group) != deeds:
            return None
        waiting = [Place(cell.partition, cell.added_id) for cell in parked]
        skipped = {
            PlaceRange(cell.partition, cell.added_id, cell.added_id)
            for cell in given_up
            if not reached_again(cell, deeds)
            # given up between the two reads: the answer is of the moment of the first
            and Place(cell.partition, cell.added_id) not in waiting
        } | set(skipped_places(places, starts, deeds))
        return Passed(
            self.title,
            waiting,
            sorted(skipped, key=lambda each: (each.shard, each.first)),
        )

    def _lost(self) -> str | None:
        return lost_offsets(
            self._datastore.state, self._coordinator, self._group, self._datastore.name
        )

    def _starts(self) -> Sequence[int]:
        """By shard where the group began; empty where nobody knows, as before starts were kept."""
        return recorded_start(self._datastore.state, self._group, self._datastore.name) or ()
