"""The heads of a cluster's shards as they were last worked out, and which of them changed since.

To work out a head takes the reports of all nodes. A head depends on two things: on the fields that
all shards have in common (:class:`Reports`, without the counters), and on this shard's counters in
each report. So the invariant: **each kept head is the one that a cluster which keeps nothing would
work out from the last reports.**

    a counter of a node changed           the shard is in ``changed_since``, and is worked out
    a shard came to a node, or left it    the same: a report without it is another counter
    role, master, minions, nodes heard    all shards are worked out
    a shard came to the cluster           ``assign`` forgets the reports: all are worked out
    two threads with reports of two ages  each compares with the reports that were used last, and
                                          works out all differences; watermark and log start only
                                          rise
    an error half way                     the reports used are forgotten: all are worked out

Every kept number comes from a report, so no cell is shown that a report does not show. Readers get
changes by number: a change gets its number together with its head, under the cluster's lock. A
reader that names the last number it saw misses none (E28).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving.node_view import NodeView
from cellfeed.store.engines.contract.values import Head


@dataclass(frozen=True, slots=True)
class Reports:
    """The reports that heads are worked out from. ``following``: of the nodes that follow the
    role's master, by name. ``showing``: those whose ends are the watermark. ``is_by_master``:
    whether the master's own end counts as the next id."""

    role: Role
    following: Mapping[str, NodeView]
    master: NodeView | None
    showing: Mapping[str, NodeView]
    is_by_master: bool

    def changed_since(self, before: Reports) -> Collection[int] | None:
        """The shards whose counters differ in one of the reports; None when more than counters
        differs, so each head may."""
        if self._common() != before._common():
            return None
        shards: set[int] = set()
        for name, view in self.following.items():
            shards.update(view.changed_since(before.following[name]))
        return shards

    def _common(self) -> tuple[object, ...]:
        return (
            self.role,
            self.following.keys(),
            self.master is None,
            self.showing.keys(),
            self.is_by_master,
        )


class KeptHeads:
    """Heads by shard, and the order in which they last changed. The caller locks."""

    def __init__(self) -> None:
        self._heads: dict[int, Head] = {}
        self._changed: dict[int, int] = {}
        """The number of each shard's last change, in ascending order."""
        self.changes = 0
        """The number of the last change."""

    def __contains__(self, shard: int) -> bool:
        return shard in self._heads

    def get(self, shard: int) -> Head | None:
        return self._heads.get(shard)

    def keep(self, shard: int, head: Head) -> None:
        """A change, unless it is the head that is kept already."""
        if self._heads.get(shard) == head:
            return
        self.changes += 1
        self._heads[shard] = head
        self._changed.pop(shard, None)
        self._changed[shard] = self.changes

    def keep_only(self, shards: Iterable[int]) -> None:
        """Forgets all others: they have left the cluster."""
        for shard in self._heads.keys() - set(shards):
            del self._heads[shard], self._changed[shard]
            self.changes += 1

    def since(self, change: int) -> dict[int, Head]:
        """The heads of the shards that changed behind the change of this number; all behind 0."""
        if not change:
            return dict(self._heads)
        found: dict[int, Head] = {}
        for shard, number in reversed(self._changed.items()):
            if number <= change:
                break
            found[shard] = self._heads[shard]
        return found
