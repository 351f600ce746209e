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

Each concern has a module: the present master (:mod:`cellfeed.store.clusters.serving.known_role`),
the watermark (:mod:`cellfeed.store.clusters.serving.shown_heads`), calls of the master during a
promotion (:mod:`cellfeed.store.clusters.serving.master_calls`), and reads of a process that is cut
off (:mod:`cellfeed.store.clusters.serving.sure_reads`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving.safe_ends import SafeEnds
from cellfeed.store.clusters.serving.shown_heads import UNKNOWN_HEAD, following_minions
from cellfeed.store.clusters.serving.sure_reads import SureReads
from cellfeed.store.engines.contract.values import ErasedStep, Head
from cellfeed.store.errors import (
    OutcomeUnknown,
)

MINION_WAIT_S: Final = 10.0
"""How long a trim or an erasure waits until a minion has it, in seconds: a minion applies a commit
in milliseconds, on a busy machine in seconds."""

_PAUSE_S: Final = 0.002


class Cluster(SureReads, SafeEnds):
    """See the module. ``shards``: those that it holds."""

    def put(self, cells: Sequence[NewCell]) -> list[PutResult]:
        return self.write(lambda engine, role: engine.put(cells, role.terms))

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
        """Waits until a minion has all of a shard that the master has at the beginning: ``has_it``
        compares their counters. At once in a cluster without minions."""
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
            if (
                wanted is None
                and master.heard_at_s >= began_s
                and (view := master.view) is not None
            ):
                wanted = view.heads.get(shard, UNKNOWN_HEAD)
            if wanted is UNKNOWN_HEAD:
                raise OutcomeUnknown(
                    f"cluster {self.name}: {role.master} {what}, which moves to another cluster;"
                    " repeat it"
                )
            if wanted and (
                not now.minions
                or any(
                    has_it(view.heads[shard], wanted)
                    for view in following_minions(now, views).values()
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
