"""The ends of a cluster's logs that something may be done by: cells below them are acknowledged,
replicated, or on every node."""

from __future__ import annotations

import time

from cellfeed.store.clusters.serving.node_engine import WATCH_TIMEOUT_S
from cellfeed.store.clusters.serving.shown_heads import ShownHeads, following_minions
from cellfeed.store.errors import StorageUnavailable


class SafeEnds(ShownHeads):
    """See the module."""

    def acknowledged_ends(self) -> dict[int, tuple[int, int]]:
        """As the engine's. Reports of a node from before the call do not count: cells may have been
        acknowledged since, and a promotion needs a majority that has not been asked."""
        began_s = time.monotonic()
        self.role()
        self.look(WATCH_TIMEOUT_S)
        role, views = self._seen()
        master = views.get(role.master)
        if (
            master is None
            or master.role is None
            or master.role.epoch != role.epoch
            or self.nodes[role.master].heard_at_s < began_s
            or not self._heard_enough(role, began_s)
        ):
            return {}
        return {
            shard: (head.leader_epoch, head.next_added_id)
            for shard, head in master.heads.items()
            if shard in self.shards
        }

    def replicated(self) -> dict[int, int]:
        """Per shard the first added_id that no minion following the master is known to hold; the
        master's own where it has no minions."""
        role, views = self._seen()
        master = views.get(role.master)
        counted = (
            list(following_minions(role, views).values())
            if role.minions
            else [master]
            if master and master.role and master.role.epoch == role.epoch
            else []
        )
        return {
            shard: max(
                (view.heads[shard].next_added_id for view in counted if shard in view.heads),
                default=0,
            )
            for shard in self.shards
        }

    def trim_limits(self) -> dict[int, int]:
        """Per shard the id below which every node has all cells, and which was shown. Raises
        StorageUnavailable when one of the nodes has not reported: a minion that lags or sleeps may
        be promoted, and must have every cell from the log's start on."""
        heads = self.heads()
        role, views = self._seen()
        for name in {role.master, *role.minions}:
            view = views.get(name)
            if view is None or view.role is None or view.role.epoch != role.epoch:
                why_not = (
                    self.nodes[name].why_not
                    if name in self.nodes
                    else "the configuration does not name it"
                )
                raise StorageUnavailable(
                    f"cluster {self.name}: nothing trimmed: node {name} has not reported its"
                    " counters"
                    f" ({why_not or 'it does not follow the master'}); trim when it is back, or"
                    " has been given up"
                )
        members = [views[name] for name in {role.master, *role.minions}]
        return {
            shard: min(
                heads[shard].watermark,
                *(
                    view.heads[shard].next_added_id if shard in view.heads else 0
                    for view in members
                ),
            )
            for shard in self.shards
        }
