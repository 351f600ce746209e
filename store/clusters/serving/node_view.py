"""The last report of a storage node: its role and its counters."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.engines.contract.values import Head


@dataclass(frozen=True, slots=True)
class NodeView:
    """The report of a node on itself: the role it has heard of, and its own counters."""

    role: Role | None
    heads: Mapping[int, Head]
    confirmed: bool = True
    """Whether a minion has all that the node holds, where it is a semi-synchronous master."""

    changes: tuple[Mapping[int, Head], Collection[int]] | None = None
    """The counters of the report before, and the shards that differ from them; None when the node
    did not say."""

    def changed_since(self, before: NodeView) -> Collection[int]:
        """The shards whose counters are others than in ``before``, gone or come ones with them."""
        if self.heads is before.heads:
            return ()
        if self.changes is not None and self.changes[0] is before.heads:
            return self.changes[1]
        was = before.heads.get
        changed = {
            shard
            for shard, head in self.heads.items()
            if (old := was(shard)) is not head and old != head
        }
        changed.update(before.heads.keys() - self.heads.keys())
        return changed
