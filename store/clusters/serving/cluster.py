"""A cluster: one master and its minions, as one place to write and to read.

Writes go to the master, under the leader epoch of the role that this process believes. Every node's
counters are looked at for the watermark:

    replicated   an id is below it when a minion that follows the present master holds its cell: a
                 promotion of the most advanced minion keeps it
    committed    an id is below it when the master has committed its cell: a promotion may take it
                 back

A cluster without minions has only ``committed``. The watermark never falls in a process (I9): a
cell that was shown stays shown, even if nodes go away afterwards.

The role is a live value: within an epoch minions are only added, and every process learns of them
with its next look at a node that has the new role. A node counts as a minion once its own copy of
the role names it. That argues the step from ``committed`` to ``replicated``, when a cluster gets
its first minion:

    The role with the minion is one commit on the master. It lies behind every cell that anybody was
    shown by the master's word alone, for role and counters come in one snapshot. So a look that
    shows more shows the minion as well, and the master's word has ended.

    A minion that has this commit has all those cells. Before it has the commit, no watermark counts
    it and no promotion takes it for a minion.

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

The outcome of a put that was under way during a promotion:

    refused by the master (read-only, another epoch, no connection)   nothing written: tried once
                                                                      more on the new master, then
                                                                      reported as unavailable.
    committed there, the promotion seen only afterwards               reported as unknown: the cell
                                                                      may be on no other node;
                                                                      putting it again shows which.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeVar

from cellfeed.store.cells.cell import NewCell, PutResult
from cellfeed.store.clusters.model.roles import TAKEOVER_S, Role, newest, of_other_histories
from cellfeed.store.clusters.serving.node import (
    READ_TIMEOUT_S,
    SLOW_S,
    WATCH_TIMEOUT_S,
    WRITE_TIMEOUT_S,
    NodeEngine,
    NodeView,
    StorageNode,
)
from cellfeed.store.clusters.serving.succession import (
    Asked,
    ask_silent,
    has_successor,
    is_majority_heard,
)
from cellfeed.store.engines.contract.values import ErasedStep, Head, Replica
from cellfeed.store.errors import (
    DataDamaged,
    OutcomeUnknown,
    ShardMoving,
    StaleWriter,
    StorageUnavailable,
    Unavailable,
)
from cellfeed.store.histories import is_same_history, refuse_other_history
from cellfeed.store.limits import ADDED_ID_MAX

ROLE_FRESH_S: Final = 1.0
"""A commit that took longer than this is acknowledged only after the cluster's nodes were asked
again who is master, in seconds."""

CONFIRM_S: Final = 3.0
"""How long what a node said of the cluster's role counts, in seconds: several looks, so that a busy
machine does not make a master doubtful."""

MINION_WAIT_S: Final = 10.0
"""How long a trim or an erasure waits until a minion has it, in seconds: a minion applies a commit
in milliseconds, on a busy machine in seconds."""

_PAUSE_S: Final = 0.002

_ASK_AGAIN_S: Final = 0.02
"""Between two questions who is master, in seconds, while too few nodes answer."""

_CURE: Final = "Name clusters of one datastore in the configuration"

_UNKNOWN_HEAD: Final = Head(0, 0, 0, 0, 0)

_CHANGES: Final = itertools.count(1)

T = TypeVar("T")


class Watermark(StrEnum):
    """What a cell must have come to before it is shown; see the module."""

    REPLICATED = "replicated"
    COMMITTED = "committed"


class Cluster:
    """See the module. ``shards``: those that it holds."""

    def __init__(
        self,
        name: str,
        nodes: Sequence[StorageNode],
        shards: Sequence[int],
        watermark: Watermark = Watermark.REPLICATED,
    ) -> None:
        self.name = name
        self.nodes = {node.name: node for node in nodes}
        self.shards = list(shards)
        self.watermark = watermark
        self._lock = threading.Lock()
        self._role: Role | None = None
        self._history_id: str | None = None
        """Of the cluster, once this process has decided it: a node of another one takes no part."""
        self._turns = itertools.count()
        self._shown: dict[int, int] = dict.fromkeys(self.shards, 0)
        self._starts: dict[int, int] = {}
        self._erasures: dict[int, tuple[dict[str, int], int]] = {}
        self._told: dict[int, Head] = {}
        self._lacks = False
        for node in nodes:
            node.on_role = self._heard

    def hold(self, shards: Sequence[int], arrived: Mapping[int, Head] | None = None) -> None:
        """The shard map gives it these shards from now on. ``arrived``: the last heads of shards
        that this process knows from when they were on another cluster; cells that were shown stay
        shown (I9), and no leader epoch falls (I10)."""
        with self._lock:
            for shard in shards:
                self._shown.setdefault(shard, 0)
            for shard, head in (arrived or {}).items():
                self._shown[shard] = max(self._shown.get(shard, 0), head.watermark)
                self._starts[shard] = max(self._starts.get(shard, 0), head.log_start)
                self._told[shard] = _later(self._told.get(shard), head)
            self.shards = list(shards)

    def shown(self, shard: int) -> int:
        """The watermark as it was last worked out."""
        return self._shown.get(shard, 0)

    def told(self, shard: int) -> Head:
        """The ends of a shard's log as they were last worked out."""
        return self._told.get(shard, _UNKNOWN_HEAD)._replace(watermark=self.shown(shard))

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

    def lacks(self) -> bool:
        """Whether the master said, when the heads were last looked at, that it does not hold one of
        the shards: the shard map has changed, or is about to."""
        return self._lacks

    # --- role -------------------------------------------------------------------------------------

    def look(self, slow_s: float = SLOW_S) -> None:
        """Asks all nodes at once how far they are and who is master; waits for those that answer in
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
        most of them tell. The others take no part from now on."""
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
        """Who is master, as far as this process has heard. Raises StorageUnavailable when no node
        has ever told, ProtectData when as many nodes are of one history as of another."""
        if self._history_id is None or self._role is None:
            # Nothing can be done without it, so the first look may take its time: connecting is
            # part of it.
            self.look(3 * WATCH_TIMEOUT_S)
            self._decide_history()
        role = self._role
        if role is None:
            reasons = "; ".join(
                f"{node.name}: {node.why_not or 'knows of no master (cellfeed cluster init)'}"
                for node in self.nodes.values()
            )
            raise StorageUnavailable(
                f"cluster {self.name}: nothing written or read: no node tells who is master:"
                f" {reasons}"
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
        """What the nodes last said, and the newest role among it: counters that came with a role
        are judged under it, or a newer one."""
        role = self.role()
        views = {name: view for name, node in self.nodes.items() if (view := node.view) is not None}
        return newest([role, *(view.role for view in views.values())]) or role, views

    # --- writing ----------------------------------------------------------------------------------

    def write(self, what: Callable[[NodeEngine, Role], T], timeout_s: float = WRITE_TIMEOUT_S) -> T:
        """Calls ``what(master's engine, the role it is under)``; see the module for a promotion
        meanwhile. Raises as the engine's ``put``, but for StaleWriter: the caller has no epoch of
        its own, so a promotion in its way is a storage that is away for a moment."""
        role = self.role()
        try:
            try:
                return self._write_under(role, what, timeout_s)
            except (StorageUnavailable, StaleWriter):
                # Nothing was written. If another node is master by now it is asked, once.
                self.look()
                now = self.role()
                if now == role:
                    raise
                return self._write_under(now, what, timeout_s)
        except StaleWriter as error:
            raise StorageUnavailable(
                f"cluster {self.name}: a promotion is under way: {error}"
            ) from error

    def ask_master(self, what: Callable[[NodeEngine], T], timeout_s: float = READ_TIMEOUT_S) -> T:
        """What the master answers about what is written there, as leases and offsets are. An old
        master that nobody could fence answers, too: where another node reports a new one by now,
        the new one is asked. Where few nodes answer, the master's word is all there is: a commit
        compares versions. Raises as :meth:`write`."""
        since_s, nodes = time.monotonic() - TAKEOVER_S, self.nodes.values()
        asked = ask_silent(nodes, self.role().master, since_s)
        value, role = self.write(lambda engine, role: (what(engine), role), timeout_s)
        is_majority_heard(nodes, role.master, since_s, asked)
        if self.role().epoch > role.epoch:
            return self.ask_master(what, timeout_s)
        return value

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        return self.write(lambda engine, role: engine.put(cells, role.terms))

    def _write_under(
        self, role: Role, what: Callable[[NodeEngine, Role], T], timeout_s: float
    ) -> T:
        began_s = time.monotonic()
        result = self.node(role.master).call(lambda engine: what(engine, role), timeout_s)
        if time.monotonic() - began_s > ROLE_FRESH_S:
            self.look()
            now = self.role()
            if now.epoch != role.epoch:
                raise OutcomeUnknown(
                    f"cluster {self.name}: {role.master} committed, but {now.master} has become"
                    " master meanwhile; put the same cells again to learn their fate"
                )
        return result

    # --- reading ----------------------------------------------------------------------------------

    def read(
        self,
        what: Callable[[NodeEngine], T],
        first: Replica = Replica.MASTER,
        enough: Callable[[T], bool] | None = None,
        *,
        shown: bool = False,
        lasting: Callable[[T], bool] | None = None,
    ) -> tuple[T, bool]:
        """``what`` of the first node in order that answers, and whether it is stale: not the word
        of a master that is sure to be one. ``enough`` sends a stale read on to the next node when
        it says no, as damage in a node's tables does; the last answer counts where none is enough.
        ``shown``: what is read was shown by some node, so that not even the master's word is the
        last one: it shows a commit a moment later than the minion that it waits for. ``lasting``:
        whether an answer is right whatever was put meanwhile, as a cell that was found is. Without
        it none is: every answer says what is not there, too. Such an answer is sure only when no
        other node may have become master (:mod:`cellfeed.store.clusters.serving.succession`).
        Raises DataDamaged when no node has a good copy, StorageUnavailable when none answers."""
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

    def _is_sure(self, role: Role) -> bool:
        """Whether the role's master is still the cluster's, as far as anybody could tell this
        process."""
        if not self._heard_enough(role):
            self.look(WATCH_TIMEOUT_S)
        return (
            self._heard_enough(role)
            and self._role is not None
            and self._role.epoch == role.epoch
            and self._is_confirmed(role)
        )

    def _speaks(self, role: Role, since_s: float, asked: Asked) -> bool:
        """Whether no other node was master when a read began that may go by what was heard since
        then. Waits up to ``CONFIRM_S`` for nodes that are late."""
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

    def _heard_enough(self, role: Role, since_s: float | None = None) -> bool:
        """Whether the nodes that were not heard from since then (not lately, without it) are too
        few to have promoted another master."""
        if since_s is None:
            since_s = time.monotonic() - CONFIRM_S
        silent = sum(
            node.told_at_s < since_s for name, node in self.nodes.items() if name != role.master
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

    def heads(self, *, fresh: bool = True) -> dict[int, Head]:
        """The ends of the logs of this cluster's shards. Raises StorageUnavailable when no node has
        ever told them."""
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
        told_by_master = (
            master is not None
            and self.nodes[role.master].why_not is None
            and self._heard_enough(role)
        )
        minions = _counted(role, views)
        by_minions = self.watermark is Watermark.REPLICATED and bool(role.minions)
        found = {}
        with self._lock:
            self._lacks = master is not None and any(
                shard not in master.heads for shard in self.shards
            )
            for shard in self.shards:
                # While a shard is on its way to another cluster no node reports it: the last
                # report counts.
                newest_head = self._told.get(shard, _UNKNOWN_HEAD)
                for view in following.values():
                    newest_head = _later(newest_head, view.heads.get(shard, newest_head))
                self._told[shard] = newest_head
                held = [
                    view.heads[shard].next_added_id
                    for view in (minions if by_minions else [master] if master else minions)
                    if shard in view.heads
                ]
                self._shown[shard] = watermark = (
                    max(self._shown[shard], *held) if held else self._shown[shard]
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
                        if told_by_master and master and shard in master.heads
                        else ADDED_ID_MAX
                    ),
                )
        return found

    def acknowledged_ends(self) -> dict[int, tuple[int, int]]:
        """As the engine's. What a node said before the call does not count: cells may have been
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
            or self.nodes[role.master].told_at_s < began_s
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
        told = (
            _counted(role, views)
            if role.minions
            else [master]
            if master and master.role and master.role.epoch == role.epoch
            else []
        )
        return {
            shard: max(
                (view.heads[shard].next_added_id for view in told if shard in view.heads), default=0
            )
            for shard in self.shards
        }

    def trim_limits(self) -> dict[int, int]:
        """Per shard the id below which every node has all cells, and which was shown. Raises
        StorageUnavailable when one of the nodes has not told: a minion that lags or sleeps may be
        promoted, and must not come to a log that it lacks the front of."""
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
                    f"cluster {self.name}: nothing trimmed: node {name} has not told what it has"
                    f" ({why_not or 'it does not follow the master'}); trim when it is back, or has"
                    " been given up"
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

    def trim(self, shard: int, below: int, cells_max: int) -> int:
        """A step of a trim on the master, under the role's epoch; see the engine's. Returns when a
        minion has it. Raises OutcomeUnknown when none has it in time; the step can be repeated."""
        role, start = self.write(
            lambda engine, role: (role, engine.trim(shard, below, cells_max, role.terms))
        )
        self._wait_for_minion(
            role,
            shard,
            lambda minion, master: minion.log_start >= master.log_start,
            f"trimmed shard {shard}",
        )
        return start

    def erase(self, row_key: bytes, cells_max: int) -> ErasedStep:
        """A step of an erasure on the master, under the role's epoch; see the engine's. Returns
        when a minion has all steps so far, in either mode of replication: a step that finds nothing
        left to do may follow one that no promotion would keep. Raises OutcomeUnknown when none has
        them in time; the step can be repeated."""
        role, step = self.write(
            lambda engine, role: (role, engine.erase(row_key, cells_max, role.terms))
        )
        self._wait_for_minion(
            role,
            step.shard,
            lambda minion, master: minion.erasures >= master.erasures,
            f"erased in shard {step.shard}",
        )
        return step

    def _wait_for_minion(
        self, role: Role, shard: int, has_it: Callable[[Head, Head], bool], what: str
    ) -> None:
        """Until a minion has of a shard what the master has now: ``has_it`` compares their
        counters. At once in a cluster without minions."""
        began_s = time.monotonic()
        wanted: Head | None = None
        while True:
            self.look()
            now, views = self._seen()
            if now.epoch != role.epoch:
                raise OutcomeUnknown(
                    f"cluster {self.name}: {role.master} {what}, but {now.master} has become master"
                    " meanwhile; repeat it"
                )
            master = self.node(role.master)
            if wanted is None and master.told_at_s >= began_s and (view := master.view) is not None:
                wanted = view.heads.get(shard, _UNKNOWN_HEAD)
            if wanted is _UNKNOWN_HEAD:
                raise OutcomeUnknown(
                    f"cluster {self.name}: {role.master} {what}, which moves to another cluster;"
                    " repeat it"
                )
            if wanted and (
                not now.minions
                or any(
                    has_it(view.heads[shard], wanted)
                    for view in _counted(now, views)
                    if shard in view.heads
                )
            ):
                return
            if time.monotonic() - began_s > MINION_WAIT_S:
                raise OutcomeUnknown(
                    f"cluster {self.name}: {role.master} {what}, but no minion has it after"
                    f" {MINION_WAIT_S:.0f} s, so a promotion may undo it; repeat it"
                )
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()


def _counted(role: Role, views: Mapping[str, NodeView]) -> list[NodeView]:
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
