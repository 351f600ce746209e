"""The ends of a cluster's logs: the watermark of each shard, its log start, its next id.

The watermark and the log start never fall in a process (I9)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving.known_role import KnownRole
from cellfeed.store.clusters.serving.node import (
    WATCH_TIMEOUT_S,
    NodeView,
    StorageNode,
)
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import (
    StorageUnavailable,
)
from cellfeed.store.limits import ADDED_ID_MAX

UNKNOWN_HEAD: Final = Head(0, 0, 0, 0, 0)

_CHANGES: Final = itertools.count(1)


class Watermark(StrEnum):
    """How far a cell must be replicated before it is shown; see the module."""

    REPLICATED = "replicated"
    COMMITTED = "committed"


class ShownHeads(KnownRole):
    """The heads of the ``shards`` that the cluster holds, by its nodes' last reports."""

    def __init__(
        self,
        name: str,
        nodes: Sequence[StorageNode],
        shards: Sequence[int],
        watermark: Watermark = Watermark.REPLICATED,
    ) -> None:
        super().__init__(name, nodes)
        self.shards = list(shards)
        self.watermark = watermark
        self._shown: dict[int, int] = dict.fromkeys(self.shards, 0)
        self._starts: dict[int, int] = {}
        self._erasures: dict[int, tuple[dict[str, int], int]] = {}
        self._last: dict[int, Head] = {}
        self._lacks = False

    def assign(self, shards: Sequence[int], arrived: Mapping[int, Head] | None = None) -> None:
        """The shard map gives it these shards from now on. ``arrived``: the last heads of shards
        that this process knows from when they were on another cluster; cells that were shown stay
        shown (I9), and no leader epoch falls (I10)."""
        with self._lock:
            for shard in shards:
                self._shown.setdefault(shard, 0)
            for shard, head in (arrived or {}).items():
                self._shown[shard] = max(self._shown.get(shard, 0), head.watermark)
                self._starts[shard] = max(self._starts.get(shard, 0), head.log_start)
                self._last[shard] = _later(self._last.get(shard), head)
            self.shards = list(shards)

    def shown(self, shard: int) -> int:
        """The watermark as it was last worked out."""
        return self._shown.get(shard, 0)

    def last_head(self, shard: int) -> Head:
        """The ends of a shard's log as they were last worked out."""
        return self._last.get(shard, UNKNOWN_HEAD)._replace(watermark=self.shown(shard))

    def lacks(self) -> bool:
        """Whether the master said, when the heads were last looked at, that it does not hold one of
        the shards: the shard map has changed, or is about to."""
        return self._lacks

    def heads(self, *, fresh: bool = True) -> dict[int, Head]:
        """The ends of the logs of this cluster's shards. Raises StorageUnavailable when no node has
        ever reported them."""
        if fresh:
            self.look()
        role, views = self._seen()
        following = {
            name: view
            for name, view in views.items()
            if view.role is not None and view.role.epoch == role.epoch
        }
        if not following:
            raise StorageUnavailable(
                f"cluster {self.name}: no node that follows {role.master} answers"
            )
        master = following.get(role.master)
        is_by_master = (
            master is not None
            and self.nodes[role.master].why_not is None
            and self._heard_enough(role)
        )
        minions = following_minions(role, views)
        by_minions = self.watermark is Watermark.REPLICATED and bool(role.minions)
        found = {}
        with self._lock:
            self._lacks = master is not None and any(
                shard not in master.heads for shard in self.shards
            )
            for shard in self.shards:
                # While a shard is on its way to another cluster no node reports it: the last
                # report counts.
                newest_head = self._last.get(shard, UNKNOWN_HEAD)
                for view in following.values():
                    newest_head = _later(newest_head, view.heads.get(shard, newest_head))
                self._last[shard] = newest_head
                ends = [
                    view.heads[shard].next_added_id
                    for view in (minions if by_minions else [master] if master else minions)
                    if shard in view.heads
                ]
                self._shown[shard] = watermark = (
                    max(self._shown[shard], *ends) if ends else self._shown[shard]
                )
                # A read may go to any of them: where one has trimmed, cells may be missing. As the
                # watermark it never falls in a process.
                starts = [
                    view.heads[shard].log_start
                    for view in following.values()
                    if shard in view.heads
                ]
                self._starts[shard] = log_start = max(self._starts.get(shard, 0), *starts, 0)
                found[shard] = newest_head._replace(
                    erasures=(
                        self._erasures_seen(shard, following)
                        if newest_head.erasures or shard in self._erasures
                        else 0
                    ),
                    log_start=min(log_start, watermark),
                    watermark=watermark,
                    next_added_id=(
                        max(newest_head.next_added_id, watermark)
                        if is_by_master and master and shard in master.heads
                        else ADDED_ID_MAX
                    ),
                )
        return found

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

    def _erasures_seen(self, shard: int, following: Mapping[str, NodeView]) -> int:
        """Another number whenever a node's count of erasures has changed: a read may go to any
        node, and one that lacks an erasure still gives bodies that the erasure takes. No number
        comes twice in a process, whichever cluster gives it: a shard may move to another one and
        back."""
        counts = {
            name: erasures
            for name, view in following.items()
            if (head := view.heads.get(shard)) is not None and (erasures := head.erasures)
        }
        before, changes = self._erasures.get(shard, ({}, 0))
        if counts != before:
            changes = next(_CHANGES)
            self._erasures[shard] = counts, changes
        return changes

    def replicated(self) -> dict[int, int]:
        """Per shard the first added_id that no minion following the master is known to hold; the
        master's own where it has no minions."""
        role, views = self._seen()
        master = views.get(role.master)
        counted = (
            following_minions(role, views)
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


def following_minions(role: Role, views: Mapping[str, NodeView]) -> list[NodeView]:
    """Of the minions of the role's epoch those whose own copy of the role names them; see the
    module."""
    return [
        view
        for name, view in views.items()
        if view.role is not None and view.role.epoch == role.epoch and name in view.role.minions
    ]


def _later(one: Head | None, other: Head) -> Head:
    """The head of the higher epoch, and of those the one with the higher next id."""
    return (
        other
        if one is None
        or (other.leader_epoch, other.next_added_id) > (one.leader_epoch, one.next_added_id)
        else one
    )
