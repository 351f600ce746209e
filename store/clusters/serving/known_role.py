"""The master of a cluster, as far as this process has heard from the cluster's nodes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from typing import Final

from cellfeed.store.clusters.model.roles import Role, newest, of_other_histories
from cellfeed.store.clusters.serving.node import SLOW_S, StorageNode
from cellfeed.store.clusters.serving.node_view import NodeView
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.errors import (
    StorageUnavailable,
)
from cellfeed.store.histories import is_same_history, refuse_other_history

CONFIRM_S: Final = 3.0
"""How long a node's report of the cluster's role counts, in seconds: several looks, so that a busy
machine does not make a master doubtful."""

_CURE: Final = "Name clusters of one datastore in the configuration"


FIRST_LOOK_S: Final = 10.0
"""How long a process that begins waits for each node's first look. A node that is away or hangs
ends its look within ``WATCH_TIMEOUT_S`` or two. So this is for a machine so busy that the watchers
themselves are slow."""


class KnownRole:
    """The nodes of a cluster, and the newest role among those that they report."""

    def __init__(self, name: str, nodes: Sequence[StorageNode]) -> None:
        self.name = name
        self.nodes = {node.name: node for node in nodes}
        self._lock = threading.Lock()
        self._role: Role | None = None
        self._history_id: str | None = None
        """Of the cluster, once this process has decided it: a node of another one takes no part."""
        self._turns = itertools.count()
        for node in nodes:
            node.on_role = self._heard

    def belong_to(self, history_id: str) -> None:
        """The datastore is of this history: nodes of another one take no part, also where they are
        all that the cluster has. Raises ProtectData when it was decided otherwise before."""
        if not history_id:
            return
        with self._lock:
            if self._history_id is None:
                self._role = None  # of whichever server answered first
            refuse_other_history(
                f"cluster {self.name}", self._history_id or "", "the datastore", history_id, _CURE
            )
            self._set_history(history_id)

    def _set_history(self, history_id: str) -> None:
        self._history_id = history_id
        for node in self.nodes.values():
            node.belongs_to = self.name, history_id

    def look(self, slow_s: float = SLOW_S) -> None:
        """Asks all nodes at once for their counters and the master; waits for those that answer in
        time."""
        tickets = [(node, node.ask()) for node in self.nodes.values()]
        for node, ticket in tickets:
            node.wait(ticket, slow_s)

    def _heard(self, role: Role) -> str | None:
        """Called by the nodes' watchers; returns why the node takes no part, where it is another
        cluster's. Calls that wait for an old master, which may hang, are cut off: their fate is not
        known, and they say so."""
        with self._lock:
            if self._history_id is not None:
                if role.cluster != self.name or not is_same_history(
                    role.history_id, self._history_id
                ):
                    return (
                        f"it is of cluster {role.cluster!r} in history {role.history_id}, not of"
                        f" {self.name!r} in history {self._history_id}"
                    )
                self._set_history(self._history_id or role.history_id)
            before = self._role
            self._role = newest([before, role])
            if self._role is before:
                return None
        if (
            before is not None
            and before.master != role.master
            and (old := self.nodes.get(before.master)) is not None
        ):
            old.abort()
        return None

    def _decide_history(self) -> None:
        """Which of the nodes that have answered are the cluster's own: those of the history that
        most of them report. The others take no part from now on."""
        roles = {
            name: view.role
            for name, node in self.nodes.items()
            if (view := node.view) is not None and view.role is not None
        }
        foreign = of_other_histories(self.name, roles)
        own = [role for name, role in roles.items() if name not in foreign]
        with self._lock:
            if not own or self._history_id is not None:
                return
            self._set_history(next((role.history_id for role in own if role.history_id), ""))
            self._role = newest(own)
        for name, reason in foreign.items():
            self.nodes[name].refuse(reason)

    def role(self) -> Role:
        """The newest role that this process has heard of. Raises StorageUnavailable when no node
        has ever reported one, ProtectData when as many nodes are of one history as of another."""
        if self._history_id is None or self._role is None:
            # Nothing can be done without it.
            self.look(FIRST_LOOK_S)
            self._decide_history()
        role = self._role
        if role is None:
            reasons = "; ".join(
                f"{node.name}: {node.why_not or 'knows of no master (cellfeed cluster init)'}"
                for node in self.nodes.values()
            )
            raise StorageUnavailable(
                f"cluster {self.name}: nothing written or read: no node reports a master: {reasons}"
            )
        return role

    def node(self, name: str) -> StorageNode:
        """Raises StorageUnavailable for a master that the configuration does not name."""
        if (node := self.nodes.get(name)) is None:
            raise StorageUnavailable(
                f"cluster {self.name}: its master is {name!r}, which the configuration does not"
                f" name; it names {', '.join(self.nodes)}"
            )
        return node

    def _seen(self) -> tuple[Role, dict[str, NodeView]]:
        """The nodes' last reports, and the newest role in them: counters that came with a role are
        judged under it, or a newer one."""
        role = self.role()
        views = {name: view for name, node in self.nodes.items() if (view := node.view) is not None}
        return newest([role, *(view.role for view in views.values())]) or role, views

    def _heard_enough(self, role: Role, since_s: float | None = None) -> bool:
        """Whether the nodes that were not heard from since then (not lately, without it) are too
        few to have promoted another master."""
        if since_s is None:
            since_s = time.monotonic() - CONFIRM_S
        silent = sum(
            node.heard_at_s < since_s for name, node in self.nodes.items() if name != role.master
        )
        return 2 * silent <= len(self.nodes)

    def follows(self, node: StorageNode) -> bool:
        """Whether the node has heard of the present master: one that has not may hold cells that
        were never acknowledged, or taken back."""
        view, role = node.view, self._role
        return (
            view is not None
            and role is not None
            and view.role is not None
            and view.role.epoch == role.epoch
        )

    def _order(self, master: str | None, first: Replica) -> list[StorageNode]:
        """The master at the end that was asked for; the minions take turns at being asked first, so
        that they share the load. A minion that has answered with damage is asked last, for
        ``DAMAGE_S``."""
        minions = [node for node in self.nodes.values() if node.name != master]
        turn = next(self._turns) % max(1, len(minions))
        minions = minions[turn:] + minions[:turn]
        masters = [node for node in self.nodes.values() if node.name == master]
        damaged = [node for node in minions if node.is_damaged]
        minions = [node for node in minions if node not in damaged]
        return (masters + minions if first is Replica.MASTER else minions + masters) + damaged
