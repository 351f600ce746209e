"""Where each shard is, as far as this process has heard: the shard map, and the clusters that it
names.

A shard may move while the process runs (:mod:`cellfeed.store.clusters.moves`). The cluster that it
leaves refuses puts and reads of it (:class:`ShardMoving`) from before the other one takes any. So
an old map leads to a refusal, never to an old answer. :meth:`Placement.settled` makes a call again,
with the map read again, until the move is through or ``MOVE_WAIT_S`` is over.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from cellfeed.store.clusters.model.shard_map import MAP_KEY, ShardMap, merged, read_map
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.dictionaries import refuse_lost_on_master
from cellfeed.store.errors import CellfeedError, ProtectData, ShardMoving, StorageUnavailable

MOVE_WAIT_S: Final = 5.0
"""How long a call waits for a shard that moves, in seconds. The fence of a move is a fraction of a
second, and at most one."""

_PAUSE_S: Final = 0.02
"""Between two looks for a new map."""

T = TypeVar("T")


class Placement:
    """See the module. Any number of threads."""

    def __init__(self, datastore: str, shards: int, clusters: Mapping[str, Cluster]) -> None:
        """Raises StorageUnavailable when no cluster has the map, ProtectData when it is another
        datastore's or names a cluster that is not given."""
        self._clusters = clusters
        self._lock = threading.Lock()
        self._read_at_s = 0.0
        shard_map = self._first_map()
        if (shard_map.datastore, shard_map.shards) != (datastore, shards):
            raise ProtectData(
                f"the clusters hold datastore {shard_map.datastore!r} with {shard_map.shards}"
                f" shards; opened as {datastore!r} with {shards} shards"
            )
        self._by_shard = shard_map.by_shard()
        self._serving: tuple[Sequence[str], list[Cluster]] = (), []
        for name in self._by_shard:
            if name not in clusters:
                raise ProtectData(
                    f"the shard map names a cluster {name!r}, which the configuration does not; it"
                    f" names {', '.join(clusters)}"
                )
        self.map = shard_map
        for name, cluster in clusters.items():
            cluster.belong_to(shard_map.history_id)
            cluster.assign(shard_map.shards_of(name))

    def cluster_of(self, shard: int) -> Cluster:
        """Raises StorageUnavailable for a shard that went to a cluster which this process does not
        know."""
        name = self._by_shard[shard]
        if (cluster := self._clusters.get(name)) is None:
            raise StorageUnavailable(
                f"shard {shard} has moved to cluster {name!r}, which the configuration that this"
                " process was started with does not name: start the process again with the"
                " present one"
            )
        return cluster

    def name_of(self, shard: int) -> str:
        """The name of the shard's cluster."""
        return self._by_shard[shard]

    def by_shard(self) -> Sequence[str]:
        """The name of each shard's cluster. Another object once a shard has moved, for good."""
        return self._by_shard

    def serving(self) -> list[Cluster]:
        """The clusters that have a shard. Raises StorageUnavailable as :meth:`cluster_of`."""
        if self._serving[0] is not (by_shard := self._by_shard):
            first_of_each = {name: shard for shard, name in enumerate(by_shard)}
            self._serving = by_shard, [self.cluster_of(s) for s in first_of_each.values()]
        return self._serving[1]

    def retry_while_moving(self, call: Callable[[], T]) -> T:
        """The result of the call, made again while a shard that it is about moves. Its errors pass
        through; ShardMoving when the wait was in vain."""
        deadline_s = time.monotonic() + MOVE_WAIT_S
        while True:
            version = self.map.version
            try:
                return call()
            except ShardMoving:
                self.refresh()
                if self.map.version == version and time.monotonic() > deadline_s:
                    raise
            time.sleep(_PAUSE_S)

    def refresh(self) -> None:
        """Reads the map again, unless that was done a moment ago. A cluster that is away is left
        out."""
        with self._lock:
            if time.monotonic() - self._read_at_s < _PAUSE_S:
                return
            maps = [self.map]
            for cluster in self._clusters.values():
                try:
                    found, _ = _map_of(cluster)
                except CellfeedError:
                    continue
                if found is not None and (found.datastore, found.shards) == (
                    self.map.datastore,
                    self.map.shards,
                ):
                    maps.append(found)
            self._take(merged(maps))
            self._read_at_s = time.monotonic()

    def _take(self, shard_map: ShardMap) -> None:
        by_shard = shard_map.by_shard()
        went = [shard for shard, name in enumerate(by_shard) if name != self._by_shard[shard]]
        if went:
            # First the cluster that has it now, with the head that was shown; then everybody is
            # sent there; then the other one lets go.
            for name, cluster in self._clusters.items():
                arrived = {
                    s: old.last_head(s)
                    for s in went
                    if by_shard[s] == name
                    and (old := self._clusters.get(self._by_shard[s])) is not None
                }
                if arrived:
                    cluster.assign(sorted({*cluster.shards, *arrived}), arrived)
            self._by_shard = by_shard
            for name, cluster in self._clusters.items():
                cluster.assign(shard_map.shards_of(name))
        self.map = shard_map

    def _first_map(self) -> ShardMap:
        found, reasons = [], []
        for cluster in self._clusters.values():
            try:
                refuse_lost_on_master(cluster)
                shard_map, _ = _map_of(cluster)
            except StorageUnavailable as error:
                reasons.append(str(error))
                continue
            if shard_map is not None:
                found.append(shard_map)
        if not found:
            raise StorageUnavailable(
                f"no cluster reports the shard map (entry {MAP_KEY!r}; made by cellfeed cluster"
                f" init): {'; '.join(reasons)}"
            )
        return merged(sorted(found, key=lambda each: each.version, reverse=True))


def _map_of(cluster: Cluster) -> tuple[ShardMap | None, bool]:
    """The map as the cluster's master has it: an old one leads to a refusal."""
    return cluster.read(lambda engine: read_map(engine.state), lasting=lambda _: True)
