"""A lake's table as an outlet. The table itself is read: its positions are a part of each commit.

So a table that was made again, rolled back or moved away answers for the cells that it has now. A
wake-up of the loader only says when to look.

The table names its source: a Kafka cluster, a topic, and the topic's id. It counts when that is one
of two logs.

- **The gateway's**, whose cluster id follows from the datastore's history. The table has each cell
  of the topic below its position, down to the start of the log.
- **A topic of an export of this store**. A cell that the export parked or skipped is in no record,
  so the export says which ones those are. Both must have passed the place.

Any other log has cells of its own at the same places, or nobody knows which cells it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.export.export_terms import terms_of_all
from cellfeed.bridge.gateway.cluster_id import cluster_id_of
from cellfeed.bridge.outlets.exports import ExportOutlet, refuse_trimmed
from cellfeed.store.cells.token import Places
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Unavailable
from cellfeed.store.waits.waiting import Outlet, Passed, missing_places

_WATCHED: Final = "lake "
"""Begins the names under which loaders are watched."""


class LakeLook(NamedTuple):
    """One state of a table: the id of its source, and by shard the next added_id that it lacks."""

    source: str
    next_ids: Mapping[int, int]


Look = Callable[[], LakeLook | None]
"""Reads a table; None when there is none. Any thread. Raises Unavailable."""


class LakeTable(NamedTuple):
    """A lake of the configuration. ``group``: of its loaders."""

    group: str
    look: Look


def watched_name(group: str) -> str:
    """Waiters watch the loaders of a group under this name: :mod:`cellfeed.store.waits.awaited`."""
    return _WATCHED + group


class LakeOutlet:
    """See the module."""

    def __init__(
        self, name: str, table: LakeTable, datastore: Datastore, coordinator: Coordinator
    ) -> None:
        self.title = f"lake {name!r}"
        self._table = table
        self._datastore = datastore
        self._coordinator = coordinator

    def group(self) -> str:
        return watched_name(self._table.group)

    def positions(self, shards: Collection[int]) -> Mapping[int, int]:
        found = self._looked()
        return found.positions(shards) if found is not None else {}

    def passed(self, places: Sequence[Places]) -> Passed | None:
        found = self._looked()
        return found.passed(places) if found is not None else None

    def _looked(self) -> Outlet | None:
        """One state of the table, as an outlet of its log."""
        found = self._table.look()
        if found is None:
            return None
        cluster_id, topic, topic_id = (*found.source.split("/"), "", "")[:3]
        if cluster_id == cluster_id_of(self._datastore):
            return _FromGateway(self.title, self.group(), found.next_ids, self._datastore)
        for name, terms in terms_of_all(self._datastore).items():
            if (terms.cluster_id, terms.topic, terms.topic_id) == (cluster_id, topic, topic_id):
                return _FromExport(
                    self.title, name, found.next_ids, self._datastore, self._coordinator
                )
        raise Unavailable(
            f"{self.title} has the log {found.source}: neither this store's nor one of its exports'"
        )


class _FromGateway:
    """A table that a gateway of this store feeds, in one state."""

    def __init__(
        self, title: str, group: str, next_ids: Mapping[int, int], datastore: Datastore
    ) -> None:
        self.title = title
        self._group = group
        self._next_ids = next_ids
        self._datastore = datastore

    def group(self) -> str:
        return self._group

    def positions(self, shards: Collection[int]) -> Mapping[int, int]:
        del shards
        return self._next_ids

    def passed(self, places: Sequence[Places]) -> Passed | None:
        refuse_trimmed(self.title, self._datastore, places)
        return None if missing_places(self.positions(()), places) else Passed(self.title)


class _FromExport(ExportOutlet):
    """A table that an export of this store feeds, in one state."""

    def __init__(
        self,
        title: str,
        export: str,
        next_ids: Mapping[int, int],
        datastore: Datastore,
        coordinator: Coordinator,
    ) -> None:
        super().__init__(export, datastore, coordinator)
        self.title = title
        self._next_ids = next_ids

    def positions(self, shards: Collection[int]) -> Mapping[int, int]:
        """The export parks a cell before it saves its position: the lower one of both counts."""
        exported = super().positions(shards)
        return {
            shard: min(next_id, exported.get(shard, 0)) for shard, next_id in self._next_ids.items()
        }
