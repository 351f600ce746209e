"""Which shards should move, so that clusters hold as many each: a plan from the present owners,
made the same way every time.

Row keys are spread over shards by a hash, so shards of one datastore hold about as many cells each,
and counting shards is enough.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from cellfeed.store.errors import InvalidRequest, NotFound


class PlannedMove(NamedTuple):
    """A shard, from one cluster to another."""

    shard: int
    source: str
    target: str


def plan_moves(
    owners: Mapping[int, str], clusters: Sequence[str], drained: Collection[str] = ()
) -> list[PlannedMove]:
    """The fewest moves after which no cluster holds more than one shard more than another, and
    those that are ``drained`` hold none. ``owners``: by shard the cluster that has it. Raises
    NotFound, InvalidRequest when no cluster is left."""
    for name in drained:
        if name not in clusters:
            raise NotFound(
                f"the configuration has no cluster {name!r}; it has {', '.join(clusters)}"
            )
    kept = [name for name in clusters if name not in drained]
    if not kept:
        raise InvalidRequest("every cluster would be drained: one must be left to take the shards")
    owned = {
        name: sorted(shard for shard, owner in owners.items() if owner == name) for name in clusters
    }
    # The remainder goes to the clusters that have most already.
    least, more = divmod(len(owners), len(kept))
    ranked = sorted(kept, key=lambda name: (-len(owned[name]), clusters.index(name)))
    share = {name: least + (rank < more) for rank, name in enumerate(ranked)}
    surplus = [(shard, name) for name in clusters for shard in owned[name][share.get(name, 0) :]]
    wanting = [name for name in kept for _ in range(share[name] - len(owned[name]))]
    return [
        PlannedMove(shard, source, target)
        for (shard, source), target in zip(sorted(surplus), wanting, strict=True)
    ]
