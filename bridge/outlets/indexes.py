"""An index as an outlet: the version that queries are answered from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.outlets.groups import GroupOutlet
from cellfeed.store.cells.token import Places
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.waits.waiting import Passed


class IndexOutlet:
    """See the module. Which version it is, each look reads again."""

    def __init__(self, name: str, datastore: Datastore, coordinator: Coordinator) -> None:
        self.title = f"index {name!r}"
        self._name = name
        self._datastore = datastore
        self._coordinator = coordinator

    def group(self) -> str:
        return self._current().group()

    def positions(self, shards: Collection[int]) -> Mapping[int, int]:
        return self._current().positions(shards)

    def passed(self, places: Sequence[Places]) -> Passed | None:
        version = self._current()
        passed = version.passed(places)
        # A version that was replaced meanwhile answers no query any more.
        return passed if version.group() == self._current().group() else None

    def _current(self) -> GroupOutlet:
        record = self._datastore.indexes.catalog.get(self._name).current
        if record is None:
            raise StorageUnavailable(f"{self.title} is being built")
        version = self._datastore.indexes.version(record)
        return GroupOutlet(self.title, version.group, self._datastore, self._coordinator)
