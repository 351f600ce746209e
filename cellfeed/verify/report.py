"""One digest per shard from each place that holds a datastore's cells, and whether they agree
(I17).

Places keep growing while they are read. So the places are first asked how far each shard is; the
digests are then taken of the cells below the smallest of these ids, which every place has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cellfeed.verify.place import Erased, Place
from cellfeed.verify.store_place import StorePlace


@dataclass(frozen=True, slots=True)
class ShardVerdict:
    """One shard in all places: the digest of its cells from ``from_id`` on, below ``below_id``, and
    their number, by place; and how far each place was in all. ``from_id``: where the log starts;
    trimmed cells are not compared. Of the store: ``missing``, ids that its log lacks and no restore
    left out; ``damaged``, ids whose cells are damaged; ``unread_from``, where it was read no
    further, for so much before it is damaged."""

    shard: int
    from_id: int
    below_id: int
    digests: dict[str, str]
    cells: dict[str, int]
    next_ids: dict[str, int]
    missing: list[range] = field(default_factory=list)
    damaged: list[range] = field(default_factory=list)
    unread_from: int | None = None

    @property
    def whole(self) -> bool:
        """Whether the store has every cell, as it was written."""
        return not self.missing and not self.damaged and self.unread_from is None

    @property
    def equal(self) -> bool:
        return len(set(self.digests.values())) == 1 and len(set(self.cells.values())) == 1

    @property
    def level(self) -> bool:
        """Whether no place was behind another."""
        return len(set(self.next_ids.values())) == 1


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of a comparison. ``equal`` says that nothing differs; ``level`` that moreover no
    place lacked the newest cells; ``whole`` that the store's logs have no gaps."""

    places: list[str]
    shards: list[ShardVerdict] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return all(verdict.equal for verdict in self.shards)

    @property
    def level(self) -> bool:
        return all(verdict.level for verdict in self.shards)

    @property
    def whole(self) -> bool:
        return all(verdict.whole for verdict in self.shards)

    def cells(self, place: str) -> int:
        """Cells compared in one place."""
        return sum(verdict.cells[place] for verdict in self.shards)

    def as_json(self) -> dict[str, Any]:
        """The report for ``--json``."""
        shards = [
            {
                "shard": verdict.shard,
                "from_id": verdict.from_id,
                "below_id": verdict.below_id,
                "digests": verdict.digests,
                "cells": verdict.cells,
                "next_ids": verdict.next_ids,
                "equal": verdict.equal,
                "missing": [{"from": each.start, "to": each.stop - 1} for each in verdict.missing],
                "damaged": [{"from": each.start, "to": each.stop - 1} for each in verdict.damaged],
                "unread_from": verdict.unread_from,
            }
            for verdict in self.shards
        ]
        return {
            "equal": self.equal,
            "level": self.level,
            "whole": self.whole,
            "places": self.places,
            "cells": {name: self.cells(name) for name in self.places},
            "shards": shards,
        }


def verify(places: Sequence[Place], shards: Iterable[int] | None = None) -> VerifyReport:
    """Compares all places, shard by shard. Raises the error of a place that cannot be read;
    DataDamaged when one holds a record that is no cell.

    Places that forget erased bodies at once, a store or a gateway, come first: bodies that a topic
    of a Kafka cluster or a table still has do not count. With one place the report is that place's
    digests. ``shards``: those to look at; all that any place has, when left out.
    """
    names = [place.name for place in places]
    if len(set(names)) != len(names):
        raise ValueError(f"places must have different names, not {names}")
    reached = {place.name: place.next_ids() for place in places}
    wanted = sorted(set().union(*reached.values()) if shards is None else shards)
    until = {shard: min(ids.get(shard, 0) for ids in reached.values()) for shard in wanted}
    starts = [place.first_ids() for place in places]
    begin = {shard: max(first.get(shard, 0) for first in starts) for shard in wanted}
    erased = Erased()
    store = next((place for place in places if isinstance(place, StorePlace)), None)
    digests = {
        place.name: place.digests(
            {shard: range(begin[shard], until[shard]) for shard in wanted}, erased
        )
        for place in places
    }
    return VerifyReport(
        names,
        [
            ShardVerdict(
                shard=shard,
                from_id=begin[shard],
                below_id=until[shard],
                digests={name: digests[name][shard].hexdigest() for name in names},
                cells={name: digests[name][shard].cells for name in names},
                next_ids={name: reached[name].get(shard, 0) for name in names},
                missing=store.gaps.get(shard, []) if store is not None else [],
                damaged=store.damaged.get(shard, []) if store is not None else [],
                unread_from=store.unread_from.get(shard) if store is not None else None,
            )
            for shard in wanted
        ],
    )
