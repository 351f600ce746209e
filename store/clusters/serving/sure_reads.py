"""Reads of a cluster's nodes in order, and whether an answer is sure or stale.

A process may be cut off from every node but an old master, which does not know yet that it is one.
Its reads there (``tests/integration/clusters/test_cut_off.py``):

    logs          nothing past the watermark, which needs a minion: so nothing that a promotion can
                  take back. They stand still.
    cells by key  reported as ``stale``, and absence is not reported, where the nodes not heard from
                  are too few to promote anybody (a promotion needs a majority). A cell that was
                  found is true; it is not ``stale`` while that majority was heard within
                  ``CONFIRM_S``. Everything else is sure only by a look that is at most
                  ``TAKEOVER_S`` older (:mod:`cellfeed.store.clusters.serving.succession`).
    next ids      not reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from cellfeed.store.clusters.model.roles import TAKEOVER_S, Role
from cellfeed.store.clusters.serving.known_role import CONFIRM_S
from cellfeed.store.clusters.serving.master_calls import MasterCalls
from cellfeed.store.clusters.serving.node_engine import READ_TIMEOUT_S, WATCH_TIMEOUT_S, NodeEngine
from cellfeed.store.clusters.serving.succession import (
    Asked,
    ask_silent,
    has_successor,
    is_majority_heard,
)
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.errors import (
    DataDamaged,
    ShardMoving,
    StorageUnavailable,
    Unavailable,
)

_ASK_AGAIN_S: Final = 0.02
"""Between two questions who is master, in seconds, while too few nodes answer."""

T = TypeVar("T")


class SureReads(MasterCalls):
    """See the module."""

    def read(
        self,
        what: Callable[[NodeEngine], T],
        first: Replica = Replica.MASTER,
        enough: Callable[[T], bool] | None = None,
        *,
        shown: bool = False,
        lasting: Callable[[T], bool] | None = None,
    ) -> tuple[T, bool]:
        """The answer of the first node in order that gives one, and whether it is stale: not the
        word of a master that is sure to be one. ``enough`` sends a stale read on to the next node
        when it says no, as damage in a node's tables does; the last answer counts where none is
        enough. ``shown``: some node has shown the cells asked for, so not even the master's word is
        the last one: it shows a commit a moment later than the minion that it waits for.
        ``lasting``: whether an answer stays right after any put meanwhile, as a cell that was found
        does. Without it none does: every answer also says which cells are not there. Such an answer
        is sure only when no other node may have become master
        (:mod:`cellfeed.store.clusters.serving.succession`). Raises DataDamaged when no node has a
        good copy, StorageUnavailable when none answers."""
        role = self._role
        since_s = time.monotonic() - TAKEOVER_S
        asked: Asked = []
        if role is not None and lasting is None and not shown and first is Replica.MASTER:
            # They answer while the master reads.
            asked = ask_silent(self.nodes.values(), role.master, since_s)
        master = role.master if role is not None else None
        reasons, poor, moving = [], None, False
        damaged: DataDamaged | None = None
        for node in self._order(master, first):
            if node.is_foreign or (node.name != master and not self.follows(node)):
                reasons.append(f"{node.name}: {node.why_not or 'does not follow the master'}")
                continue
            try:
                value = node.call(what, READ_TIMEOUT_S)
            except Unavailable as error:
                reasons.append(f"{node.name}: {error}")
                moving = moving or isinstance(error, ShardMoving)
                continue
            except DataDamaged as error:
                damaged = DataDamaged(f"cluster {self.name}, node {node.name}: {error}")
                reasons.append(f"{node.name}: {error}")
                continue
            sure = False
            if role is not None and node.name == master:
                lasts = shown or (lasting is not None and lasting(value))
                sure = self._is_sure(role) and (lasts or self._speaks(role, since_s, asked))
                if (
                    not sure
                    and not lasts
                    and self._role is not None
                    and self._role.epoch > role.epoch
                ):
                    # The new master is asked. Epochs only rise, so this ends.
                    return self.read(what, first, enough, shown=shown, lasting=lasting)
            if (sure and not shown) or enough is None or enough(value):
                return value, not sure
            poor = (value, True)
        if poor is not None:
            return poor
        if damaged is not None:
            raise damaged
        raise (ShardMoving if moving else StorageUnavailable)(
            f"cluster {self.name}: no node can be read: {'; '.join(reasons)}"
        )

    def _is_sure(self, role: Role) -> bool:
        """Whether the role's master is still the cluster's, as far as this process can know."""
        if not self._heard_enough(role):
            self.look(WATCH_TIMEOUT_S)
        return (
            self._heard_enough(role)
            and self._role is not None
            and self._role.epoch == role.epoch
            and self._is_confirmed(role)
        )

    def _speaks(self, role: Role, since_s: float, asked: Asked) -> bool:
        """Whether no other node was master when the read began, by reports since ``since_s``. Waits
        up to ``CONFIRM_S`` for nodes that are late."""
        nodes, began_s = self.nodes.values(), time.monotonic()
        asked = asked or ask_silent(nodes, role.master, since_s)
        while not is_majority_heard(nodes, role.master, since_s, asked):
            if not self._heard_enough(role) or time.monotonic() - began_s > CONFIRM_S:
                return False
            time.sleep(_ASK_AGAIN_S)
            asked = ask_silent(nodes, role.master, since_s)
        return not has_successor(nodes, role, since_s) and (
            self._role is not None and self._role.epoch == role.epoch
        )

    def _is_confirmed(self, role: Role) -> bool:
        """Whether a minion has all that a semi-synchronous master holds. After a crash a master may
        hold commits that no minion received, and a promotion takes them back. The first process
        that needs to know asks for a minion's word, as a write does
        (:mod:`cellfeed.store.engines.mysql.guard`). Where there is no minion, no other node can be
        promoted."""
        master = self.node(role.master)
        if not role.semi_sync or not role.minions or master.is_confirmed():
            return True
        self.look(WATCH_TIMEOUT_S)
        if master.is_confirmed():
            return True
        try:
            self.write(lambda engine, now: engine.settle(now.terms), READ_TIMEOUT_S)
        except Unavailable:
            return False
        return True
