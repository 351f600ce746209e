"""Shards that the map gives to another cluster: it has their heads before anybody is sent there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from cellfeed.store.clusters.model.shard_map import ShardMap, even_map
from cellfeed.store.clusters.serving.cluster import Cluster
from cellfeed.store.clusters.serving.placement import Placement
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import ProtectData

SHOWN = Head(0, 7, 7, 3, 1_000, 0)


class Serving:
    """A cluster that has the map, and notes which shards it is given."""

    def __init__(self, name: str, shard_map: ShardMap) -> None:
        self.name, self.map = name, shard_map
        self.nodes: dict[str, object] = {}
        self.shards: Sequence[int] = ()
        self.when_assigned: Callable[[], object] = lambda: None
        self.assigned: list[tuple[list[int], Mapping[int, Head] | None, object]] = []

    def role(self) -> object:
        return SimpleNamespace(master="a")

    def read(self, *_: object, **__: object) -> tuple[ShardMap, bool]:
        return self.map, False

    def belong_to(self, history_id: str) -> None:
        pass

    def last_head(self, shard: int) -> Head:
        return SHOWN

    def assign(self, shards: Sequence[int], arrived: Mapping[int, Head] | None = None) -> None:
        self.shards = shards
        self.assigned.append((list(shards), arrived, self.when_assigned()))


def test_a_moved_shard_brings_its_shown_head_before_any_caller_is_sent_there() -> None:
    before = even_map("trips", 4, ["c1", "c2"])
    clusters = {name: Serving(name, before) for name in ("c1", "c2")}
    placement = Placement("trips", 4, cast("Mapping[str, Cluster]", clusters))
    own, other = before.shards_of("c1"), before.shards_of("c2")
    after = before.moved(own[0], "c2", before.version + 1)
    for each in clusters.values():
        each.map = after
        each.assigned.clear()
        each.when_assigned = lambda: placement.name_of(own[0])
    placement.refresh()
    assert clusters["c2"].assigned == [
        (sorted([*other, own[0]]), {own[0]: SHOWN}, "c1"),
        (sorted([*other, own[0]]), None, "c2"),
    ]
    assert clusters["c1"].assigned == [(list(own[1:]), None, "c2")]


def test_a_map_that_names_a_cluster_which_nobody_configured_is_refused_at_the_start() -> None:
    both = Serving("c1", even_map("trips", 4, ["c1", "c2"]))
    with pytest.raises(ProtectData, match="names a cluster 'c2'"):
        Placement("trips", 4, cast("Mapping[str, Cluster]", {"c1": both}))


def test_a_map_of_another_datastore_is_refused_at_the_start_and_left_out_afterwards() -> None:
    rides = Serving("c1", even_map("rides", 4, ["c1"]))
    with pytest.raises(ProtectData, match="hold datastore 'rides'"):
        Placement("trips", 4, cast("Mapping[str, Cluster]", {"c1": rides}))
    before = even_map("trips", 4, ["c1", "c2"])
    clusters = {name: Serving(name, before) for name in ("c1", "c2")}
    placement = Placement("trips", 4, cast("Mapping[str, Cluster]", clusters))
    owners = [placement.name_of(shard) for shard in range(4)]
    clusters["c2"].map = msgspec.structs.replace(
        before.moved(0, "c2", before.version + 1), datastore="rides"
    )
    placement.refresh()
    assert [placement.name_of(shard) for shard in range(4)] == owners
