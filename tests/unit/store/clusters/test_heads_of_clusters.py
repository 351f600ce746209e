"""The heads of several clusters as one answer, also while a shard moves between them (E28).
Nodes are values here."""

from __future__ import annotations

from typing import Any, cast

from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.log_reads import ClusteredLogReads
from cellfeed.store.engines.contract.values import Replica
from tests.unit.store.clusters.test_kept_heads import SHARDS, made, step_on


class MapInMemory:
    """The placement of each shard, as a list of cluster names."""

    def __init__(self, clusters: dict[str, Cluster], names: list[str]) -> None:
        self._clusters, self._names = clusters, names

    def by_shard(self) -> list[str]:
        return self._names

    def name_of(self, shard: int) -> str:
        return self._names[shard]

    def cluster_of(self, shard: int) -> Cluster:
        return self._clusters[self._names[shard]]

    def serving(self) -> list[Cluster]:
        return [self._clusters[name] for name in dict.fromkeys(self._names)]

    def move(self, shard: int, name: str) -> None:
        old = self._clusters[self._names[shard]]
        new = self._clusters[name]
        new.assign([*new.shards, shard], {shard: old.last_head(shard)})
        self._names = [name if s == shard else each for s, each in enumerate(self._names)]
        old.assign([each for each in old.shards if each != shard])


def test_e28_over_clusters_a_reader_gets_each_change_also_of_a_shard_that_moves() -> None:
    (one, nodes), (two, others) = made(), made()
    two.name = "c2"
    one.assign([0, 1])
    two.assign([2, 3])
    shard_map = MapInMemory({"c1": one, "c2": two}, ["c1", "c1", "c2", "c2"])
    logs = ClusteredLogReads(
        {"c1": one, "c2": two}, cast("Any", shard_map), len(SHARDS), Replica.MASTER
    )
    heads, mark = logs.heads_since(None)
    assert heads.keys() == set(SHARDS)
    assert logs.heads() == heads
    token = logs.change_token()
    assert logs.heads_since(mark).heads == {}
    assert logs.change_token() == token

    step_on(two, others, "put", "b", 3)
    found, mark = logs.heads_since(mark)
    assert {shard: each.watermark for shard, each in found.items()} == {3: 4}
    assert logs.heads([3, 0]) == {3: found[3], 0: heads[0]}
    assert logs.change_token() != token

    shard_map.move(1, "c2")
    step_on(two, others, "put", "b", 1)
    found, mark = logs.heads_since(mark)
    assert found.keys() == set(SHARDS), "who has which shard has changed: all are given"
    assert found[1].watermark == 4
    assert logs.heads_since(mark).heads == {}

    nodes["a"].on_look = lambda: shard_map.move(0, "c2") if 0 in one.shards else None
    step_on(two, others, "put", "b", 0)
    assert logs.heads_since(mark).heads[0].watermark == 4, "it moved between the two looks"
