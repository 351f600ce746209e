"""A lake's table as a place."""

from __future__ import annotations

from collections.abc import Mapping

from cellfeed.consumers.lake.open_table import Place
from cellfeed.consumers.lake.views import LakeView
from cellfeed.store.cells.digest import ShardDigest
from cellfeed.verify.place import Erased


class LakePlace:
    """A lake's table of cells."""

    name = "lake"

    def __init__(self, place: Place) -> None:
        self._view = LakeView(place)

    def first_ids(self) -> dict[int, int]:
        """Nothing: a table keeps cells that were trimmed from the log."""
        return {}

    def next_ids(self) -> dict[int, int]:
        return self._view.next_ids()

    def digests(self, ids: Mapping[int, range], erased: Erased) -> dict[int, ShardDigest]:
        return self._view.digests(ids, erased.body)
