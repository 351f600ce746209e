"""The ends of a cluster's logs: the watermark of each shard, its log start, its next id.

The watermark and the log start never fall in a process (I9)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving.kept_heads import KeptHeads, Reports
from cellfeed.store.clusters.serving.known_role import KnownRole
from cellfeed.store.clusters.serving.node import StorageNode
from cellfeed.store.clusters.serving.node_view import NodeView
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
        self._kept = KeptHeads()
        self._used: Reports | None = None
        """The reports that the kept heads follow from; None: all have to be worked out."""
        self._lacking: set[int] = set()
        """Shards that the master does not report, although the shard map gives them to it."""

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
            self._used = None
            self._kept.keep_only(shards)
            self._lacking.intersection_update(shards)

    def shown(self, shard: int) -> int:
        """The watermark as it was last worked out."""
        return self._shown.get(shard, 0)

    def last_head(self, shard: int) -> Head:
        """The ends of a shard's log as they were last worked out."""
        return self._last.get(shard, UNKNOWN_HEAD)._replace(watermark=self.shown(shard))

    def lacks(self) -> bool:
        """Whether the master said, when the heads were last looked at, that it does not hold one of
        the shards: the shard map has changed, or is about to."""
        return bool(self._lacking)

    def update(self, *, fresh: bool = True) -> None:
        """Brings the kept heads up to the nodes' reports; ``fresh`` asks the nodes first. Raises
        StorageUnavailable when no node that follows the master has reported them."""
        if fresh:
            self.look()
        reports = self._reports()
        with self._lock:
            changed = None if self._used is None else reports.changed_since(self._used)
            self._used = None  # until all of it is worked out
            if changed is None:
                for shard in self.shards:
                    self._work_out(shard, reports)
            else:
                for shard in changed:
                    if shard in self._kept:
                        self._work_out(shard, reports)
            self._used = reports

    def heads(self, *, fresh: bool = True) -> dict[int, Head]:
        """The ends of the logs of this cluster's shards. As :meth:`update`."""
        return self.heads_since(0, fresh=fresh)[0]

    def heads_since(self, change: int, *, fresh: bool = True) -> tuple[dict[int, Head], int]:
        """The heads that changed behind the change of this number (0: all heads), and the number of
        the last change. As :meth:`update`."""
        self.update(fresh=fresh)
        with self._lock:
            return self._kept.since(change), self._kept.changes

    @property
    def changes(self) -> int:
        """The number of the last change of a head."""
        return self._kept.changes

    def head(self, shard: int) -> Head | None:
        """The shard's head as of the last :meth:`update`; None for another cluster's shard."""
        return self._kept.get(shard)

    def _reports(self) -> Reports:
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
        showing = minions if by_minions or master is None else {role.master: master}
        return Reports(role, following, master, showing, is_by_master)

    def _work_out(self, shard: int, reports: Reports) -> None:
        """Keeps the shard's head. The caller has the lock."""
        following, master = reports.following, reports.master
        is_served = master is None or shard in master.heads
        (self._lacking.discard if is_served else self._lacking.add)(shard)
        # While a shard is on its way to another cluster no node reports it: the last report counts.
        newest_head = self._last.get(shard, UNKNOWN_HEAD)
        for view in following.values():
            newest_head = _later(newest_head, view.heads.get(shard, newest_head))
        self._last[shard] = newest_head
        ends = [
            view.heads[shard].next_added_id
            for view in reports.showing.values()
            if shard in view.heads
        ]
        self._shown[shard] = watermark = (
            max(self._shown[shard], *ends) if ends else self._shown[shard]
        )
        # A read may go to any of them: where one has trimmed, cells may be missing. As the
        # watermark it never falls in a process.
        starts = [view.heads[shard].log_start for view in following.values() if shard in view.heads]
        self._starts[shard] = log_start = max(self._starts.get(shard, 0), *starts, 0)
        has_erasures = newest_head.erasures or shard in self._erasures
        next_added_id = (
            max(newest_head.next_added_id, watermark)
            if reports.is_by_master and master and is_served
            else ADDED_ID_MAX
        )
        self._kept.keep(
            shard,
            newest_head._replace(
                erasures=self._erasures_seen(shard, following) if has_erasures else 0,
                log_start=min(log_start, watermark),
                watermark=watermark,
                next_added_id=next_added_id,
            ),
        )

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


def following_minions(role: Role, views: Mapping[str, NodeView]) -> dict[str, NodeView]:
    """Of the minions of the role's epoch those whose own copy of the role names them; see the
    module."""
    return {
        name: view
        for name, view in views.items()
        if view.role is not None and view.role.epoch == role.epoch and name in view.role.minions
    }


def _later(one: Head | None, other: Head) -> Head:
    """The head of the higher epoch, and of those the one with the higher next id."""
    return (
        other
        if one is None
        or (other.leader_epoch, other.next_added_id) > (one.leader_epoch, one.next_added_id)
        else one
    )
