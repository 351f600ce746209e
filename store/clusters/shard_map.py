"""Which cluster holds which shards: a versioned document, kept as a state entry on every cluster; the highest version counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from store.engines.contract import StateTable
from store.errors import DataDamaged, InvalidRequest

MAP_KEY: Final = "cluster/shard-map"


class ShardMap(msgspec.Struct, frozen=True):
    """``owners``: cluster name to ``[first, last]`` ranges of shards, together all of 0 … ``shards`` - 1 and none twice."""

    datastore: str
    shards: int
    version: int
    owners: dict[str, list[tuple[int, int]]]

    def shards_of(self, cluster: str) -> list[int]:
        """The shards of a cluster, ascending."""
        return sorted(shard for first, last in self.owners.get(cluster, []) for shard in range(first, last + 1))

    def by_shard(self) -> list[str]:
        """The cluster of each shard. Raises InvalidRequest when a shard has none, or two."""
        found: list[str | None] = [None] * self.shards
        for cluster, ranges in self.owners.items():
            for first, last in ranges:
                if not 0 <= first <= last < self.shards:
                    raise InvalidRequest(f"cluster {cluster!r}: shards {first}-{last} are not within 0-{self.shards - 1}")
                for shard in range(first, last + 1):
                    if found[shard] is not None:
                        raise InvalidRequest(f"shard {shard} is given to {found[shard]!r} and to {cluster!r}")
                    found[shard] = cluster
        missing = [shard for shard, cluster in enumerate(found) if cluster is None]
        if missing:
            raise InvalidRequest(f"shard {missing[0]} and {len(missing) - 1} others belong to no cluster")
        return [cluster for cluster in found if cluster is not None]


def even_map(datastore: str, shards: int, clusters: Sequence[str]) -> ShardMap:
    """Version 1: contiguous ranges of (nearly) the same size, in the order of ``clusters``."""
    if not clusters or len(clusters) > shards:
        raise InvalidRequest(f"{shards} shards cannot be divided over {len(clusters)} clusters")
    bounds = [shards * number // len(clusters) for number in range(len(clusters) + 1)]
    return ShardMap(datastore, shards, 1, {name: [(bounds[i], bounds[i + 1] - 1)] for i, name in enumerate(clusters)})


def read_map(state: StateTable) -> ShardMap | None:
    """The map that a cluster knows; None before ``cluster init``."""
    entry = state.get(MAP_KEY)
    if entry is None:
        return None
    try:
        return msgspec.json.decode(entry.value, type=ShardMap)
    except msgspec.MsgspecError as error:
        raise DataDamaged(f"the state entry {MAP_KEY!r} is no shard map: {error}") from error


def write_map(states: Mapping[str, StateTable], shard_map: ShardMap) -> None:
    """Writes to every cluster given. A kill in between leaves clusters of the older version: the highest version counts, and writing again completes it."""
    for state in states.values():
        state.commit({MAP_KEY: msgspec.json.encode(shard_map)})
