"""Moves that are not over, and who serves which shard, as the clusters' masters say. Read only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cellfeed.store.clusters.model.shard_map import read_map
from cellfeed.store.clusters.model.shard_notes import Clusters, Leaving, Told, told_by
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.engines.mysql.state import MySqlState
from cellfeed.store.errors import NotFound


@dataclass(frozen=True, slots=True)
class Underway:
    """A move that is not over. ``stage``: ``copying`` (the source serves), ``fenced`` (nobody
    does), ``switched`` (the target serves, and a cluster's map does not say so), ``kept`` (the
    target serves; the source keeps rows)."""

    shard: int
    source: str
    target: str
    stage: str
    copied: int
    cells: int


def underway(clusters: Clusters) -> list[Underway]:
    """Every move that is not over, by shard. Raises StorageUnavailable when a cluster does not
    answer."""
    roles = {name: cluster_role(cluster)[0] for name, cluster in clusters.items()}
    told = {name: told_by(cluster, roles[name]) for name, cluster in clusters.items()}
    maps = [
        read_map(MySqlState(cluster.server(roles[name].master), cluster.meta))
        for name, cluster in clusters.items()
    ]
    found: dict[int, Underway] = {}
    for name, (_, arriving, leaving, _) in told.items():
        for shard, left in leaving.items():
            copy = told[left.target][1].get(shard) if left.target in told else None
            # Another move of the shard may be under way by now: what is kept here of the one before
            # is told by itself.
            owner = next((each for each, (served, *_) in told.items() if shard in served), None)
            if owner is None and (fence := fence_of(told, shard)) is not None and fence[0] != name:
                continue
            known = all(each is not None and each.by_shard()[shard] == owner for each in maps)
            stage = "fenced" if owner is None else "kept" if known else "switched"
            copied = copy.next_added_id if copy and stage == "fenced" else left.next_added_id
            if stage == "fenced" or shard not in found:
                found[shard] = Underway(shard, name, left.target, stage, copied, left.next_added_id)
        for shard, copy in arriving.items():
            if copy.source in told and shard in told[copy.source].served:
                found[shard] = Underway(
                    shard,
                    copy.source,
                    name,
                    "copying",
                    copy.next_added_id,
                    told[copy.source].served[shard],
                )
    for name, each in told.items():
        for shard, to in each.copied.items():
            if (
                to not in told or shard not in told[to].arriving
            ):  # the target has gone from the configuration, or lost what it had
                found[shard] = Underway(shard, name, to, "copying", 0, each.served[shard])
    return [found[shard] for shard in sorted(found)]


def fence_of(told: Mapping[str, Told], shard: int) -> tuple[str, Leaving] | None:
    """The cluster whose fence it is that nobody serves a shard, and the fence. Of several that keep
    the shard, from moves before, it is the one whose target has the note of this copy; where no
    note is left, one from whose target it has not gone on."""
    kept = {name: each.leaving[shard] for name, each in told.items() if shard in each.leaving}
    copies = {
        name: told[left.target].arriving.get(shard)
        for name, left in kept.items()
        if left.target in told
    }
    noted = [name for name, copy in copies.items() if copy is not None and copy.source == name]
    last = noted or [name for name, left in kept.items() if left.target not in kept]
    return (last[0], kept[last[0]]) if last else None


def owners(clusters: Clusters) -> dict[int, str]:
    """By shard the cluster that serves it, as the clusters themselves say. Raises
    StorageUnavailable."""
    return {
        shard: name
        for name, cluster in clusters.items()
        for shard in told_by(cluster, cluster_role(cluster)[0])[0]
    }


def underway_of(clusters: Clusters, shard: int) -> Underway:
    """The move of one shard. Raises NotFound when there is none."""
    for each in underway(clusters):
        if each.shard == shard:
            return each
    raise NotFound(f"no move of shard {shard} is under way")
