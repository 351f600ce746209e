"""A place that holds a datastore's cells, as `cellfeed verify` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cellfeed.store.cells.cell import ERASED_JSON
from cellfeed.store.cells.digest import ShardDigest


class Erased:
    """The cells that have no body any more, as far as the places that were read show."""

    def __init__(self) -> None:
        self._ids: dict[int, set[int]] = {}

    def body(self, shard: int, added_id: int, body_json: bytes) -> bytes:
        """The body that a digest takes for a cell that has this body in a place."""
        if body_json == ERASED_JSON:
            self._ids.setdefault(shard, set()).add(added_id)
        return ERASED_JSON if added_id in self._ids.get(shard, ()) else body_json


class Place(Protocol):
    """Somewhere that a datastore's cells are."""

    @property
    def name(self) -> str: ...

    def first_ids(self) -> dict[int, int]:
        """Per shard the added_id that the log of this place starts with, as it was trimmed; 0 for a
        shard left out."""
        ...

    def next_ids(self) -> dict[int, int]:
        """Per shard the added_id behind the last one held. A shard left out holds nothing."""
        ...

    def digests(self, ids: Mapping[int, range], erased: Erased) -> dict[int, ShardDigest]:
        """The digest of every shard of ``ids``, of the cells with the added_ids given there. Adds
        to ``erased`` the cells that have no body here; those that it has already go into the digest
        as such, also where this place still has their bodies."""
        ...
