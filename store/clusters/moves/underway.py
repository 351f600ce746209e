"""Moves that are not over, and the owner of each shard, as the clusters' masters say. Read only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cellfeed.store.clusters.model.shard_map import read_map
from cellfeed.store.clusters.model.shard_notes import (
    Clusters,
    Leaving,
    MasterNotes,
    notes_of_master,
)
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
    notes = {name: notes_of_master(cluster, roles[name]) for name, cluster in clusters.items()}
    maps = [
        read_map(MySqlState(cluster.server(roles[name].master), cluster.meta))
        for name, cluster in clusters.items()
    ]
    found: dict[int, Underway] = {}
    for name, (_, arriving, leaving, _) in notes.items():
        for shard, left in leaving.items():
            copy = notes[left.target][1].get(shard) if left.target in notes else None
            # Another move of the shard may be under way by now: the kept copy of the one before is
            # reported by itself.
            owner = next((each for each, (served, *_) in notes.items() if shard in served), None)
            if owner is None and (fence := fence_of(notes, shard)) is not None and fence[0] != name:
                continue
            known = all(each is not None and each.by_shard()[shard] == owner for each in maps)
            stage = "fenced" if owner is None else "kept" if known else "switched"
            copied = copy.next_added_id if copy and stage == "fenced" else left.next_added_id
            if stage == "fenced" or shard not in found:
                found[shard] = Underway(shard, name, left.target, stage, copied, left.next_added_id)
        for shard, copy in arriving.items():
            if copy.source in notes and shard in notes[copy.source].served:
                found[shard] = Underway(
                    shard,
                    copy.source,
                    name,
                    "copying",
                    copy.next_added_id,
                    notes[copy.source].served[shard],
                )
    for name, each in notes.items():
        for shard, to in each.copied.items():
            if (
                to not in notes or shard not in notes[to].arriving
            ):  # the target has gone from the configuration, or lost the copy
                found[shard] = Underway(shard, name, to, "copying", 0, each.served[shard])
    return [found[shard] for shard in sorted(found)]


def fence_of(notes: Mapping[str, MasterNotes], shard: int) -> tuple[str, Leaving] | None:
    """The cluster whose fence it is that nobody serves a shard, and the fence. Of several that keep
    the shard, from moves before, it is the one whose target has the note of this copy; where no
    note is left, one from whose target it has not gone on."""
    kept = {name: each.leaving[shard] for name, each in notes.items() if shard in each.leaving}
    copies = {
        name: notes[left.target].arriving.get(shard)
        for name, left in kept.items()
        if left.target in notes
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
        for shard in notes_of_master(cluster, cluster_role(cluster)[0])[0]
    }


def underway_of(clusters: Clusters, shard: int) -> Underway:
    """The move of one shard. Raises NotFound when there is none."""
    for each in underway(clusters):
        if each.shard == shard:
            return each
    raise NotFound(f"no move of shard {shard} is under way")
