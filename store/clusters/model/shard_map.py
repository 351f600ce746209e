"""Which cluster holds which shards: a versioned document, kept as a state entry on every cluster.

The map only says where to look. The counters decide which cluster takes a shard's puts: one cluster
at a time has the shard's counter (:mod:`cellfeed.store.clusters.moves`). So a process with an old
map is refused, and looks again. Two maps are merged shard by shard: the owner since the higher
leader epoch counts, for any place and order of the writes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import DataDamaged, InvalidRequest, StorageUnavailable
from cellfeed.store.histories import History, new_history, refuse_other_history

MAP_KEY: Final = "cluster/shard-map"

_TWO_DATASTORES: Final = "Name only clusters of one datastore in the configuration"

_ATTEMPTS_MAX: Final = 20
"""Others write the same entry only when they move shards, too."""


class ShardMap(msgspec.Struct, frozen=True):
    """``owners``: cluster name to ``[first, last]`` ranges of shards, together all of 0 …
    ``shards`` - 1 and none twice. ``since``: for shards that have been moved, the leader epoch in
    which their cluster got them. ``history_id``, ``parent``, ``origin_id``: of the datastore
    (:mod:`cellfeed.store.histories`); a history without an origin is its own."""

    datastore: str
    shards: int
    version: int
    owners: dict[str, list[tuple[int, int]]]
    since: dict[int, int] = {}
    history_id: str = ""
    parent: str = ""
    origin_id: str = ""

    @property
    def history(self) -> History:
        return History(self.history_id, self.parent, self.origin_id or self.history_id)

    def of_history(self, history: History) -> ShardMap:
        """The same map, of another history."""
        return msgspec.structs.replace(
            self, history_id=history.history_id, parent=history.parent, origin_id=history.origin_id
        )

    def shards_of(self, cluster: str) -> list[int]:
        """The shards of a cluster, ascending."""
        return sorted(
            shard
            for first, last in self.owners.get(cluster, [])
            for shard in range(first, last + 1)
        )

    def by_shard(self) -> list[str]:
        """The cluster of each shard. Raises InvalidRequest when a shard has none, or two."""
        found: list[str | None] = [None] * self.shards
        for cluster, ranges in self.owners.items():
            for first, last in ranges:
                if not 0 <= first <= last < self.shards:
                    raise InvalidRequest(
                        f"cluster {cluster!r}: shards {first}-{last} are not within"
                        f" 0-{self.shards - 1}"
                    )
                for shard in range(first, last + 1):
                    if found[shard] is not None:
                        raise InvalidRequest(
                            f"shard {shard} is given to {found[shard]!r} and to {cluster!r}"
                        )
                    found[shard] = cluster
        missing = [shard for shard, cluster in enumerate(found) if cluster is None]
        if missing:
            raise InvalidRequest(
                f"shard {missing[0]} and {len(missing) - 1} others belong to no cluster"
            )
        return [cluster for cluster in found if cluster is not None]

    def moved(self, shard: int, cluster: str, leader_epoch: int) -> ShardMap:
        """The map in which a cluster has the shard since that leader epoch."""
        by_shard = self.by_shard()
        by_shard[shard] = cluster
        return msgspec.structs.replace(
            self,
            version=self.version + 1,
            owners=_ranges(by_shard),
            since={**self.since, shard: leader_epoch},
        )


def merged(maps: Sequence[ShardMap]) -> ShardMap:
    """Of each shard the owner since the highest leader epoch; the first map's, where none was
    moved. Raises ProtectData for maps of different histories."""
    first, *others = maps
    by_shard, since, history = first.by_shard(), dict(first.since), first.history
    for other in others:
        refuse_other_history(
            "one shard map", history.history_id, "another", other.history_id, _TWO_DATASTORES
        )
        history = history if history.history_id else other.history
        owners = other.by_shard()
        for shard, epoch in other.since.items():
            if epoch > since.get(shard, -1):
                by_shard[shard], since[shard] = owners[shard], epoch
    return ShardMap(
        first.datastore, first.shards, max(each.version for each in maps), _ranges(by_shard), since
    ).of_history(history)


def even_map(datastore: str, shards: int, clusters: Sequence[str]) -> ShardMap:
    """Version 1, of a history that begins: contiguous ranges of (nearly) the same size, in the
    order of ``clusters``."""
    if not clusters or len(clusters) > shards:
        raise InvalidRequest(f"{shards} shards cannot be divided over {len(clusters)} clusters")
    bounds = [shards * number // len(clusters) for number in range(len(clusters) + 1)]
    return first_map(
        datastore,
        shards,
        {name: [(bounds[i], bounds[i + 1] - 1)] for i, name in enumerate(clusters)},
    )


def first_map(datastore: str, shards: int, owners: dict[str, list[tuple[int, int]]]) -> ShardMap:
    """Version 1, of a history that begins."""
    return ShardMap(datastore, shards, 1, owners).of_history(new_history())


def ranges_text(shards: Iterable[int]) -> str:
    """Shards as people write them: ``0-3,7``."""
    return ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in _runs(sorted(shards))
    )


def read_map(state: StateTable) -> ShardMap | None:
    """The map that a cluster knows; None before ``cluster init``."""
    entry = state.get(MAP_KEY)
    return None if entry is None else _decoded(entry.value)


def write_map(states: Mapping[str, StateTable], shard_map: ShardMap) -> None:
    """Writes to every cluster given the owners that are newer in this map. A kill in between leaves
    clusters that know less: writing again completes it."""
    for state in states.values():
        _write(state, shard_map)


def _write(state: StateTable, shard_map: ShardMap) -> None:
    for _ in range(_ATTEMPTS_MAX):
        entry = state.get(MAP_KEY)
        there = None if entry is None else _decoded(entry.value)
        wanted = shard_map if there is None else merged([there, shard_map])
        if (
            wanted == there
            or state.commit(
                {MAP_KEY: msgspec.json.encode(wanted)}, {MAP_KEY: entry.version if entry else None}
            )
            is not None
        ):
            return
    raise StorageUnavailable("the shard map was not written: others write it at the same time")


def _decoded(value: bytes) -> ShardMap:
    try:
        return msgspec.json.decode(value, type=ShardMap)
    except msgspec.MsgspecError as error:
        raise DataDamaged(f"the state entry {MAP_KEY!r} is no shard map: {error}") from error


def _ranges(by_shard: Sequence[str]) -> dict[str, list[tuple[int, int]]]:
    names = dict.fromkeys(by_shard)
    return {
        name: _runs([shard for shard, owner in enumerate(by_shard) if owner == name])
        for name in names
    }


def _runs(shards: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ``(first, last)`` of each run without a hole."""
    found = []
    for _, run in itertools.groupby(enumerate(shards), lambda each: each[1] - each[0]):
        numbers = [shard for _, shard in run]
        found.append((numbers[0], numbers[-1]))
    return found
