"""One run of a move: copy, fence, finish, switch, map, from where the servers say that it is.
:mod:`cellfeed.store.clusters.moves` argues the state after each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Final

from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.model.shard_map import merged, read_map, write_map
from cellfeed.store.clusters.model.shard_notes import (
    Clusters,
    notes_of_master,
)
from cellfeed.store.clusters.moves import waiting
from cellfeed.store.clusters.moves.copying import AGAIN_S, ShardCopy
from cellfeed.store.clusters.moves.shard_side import ShardSide, open_side
from cellfeed.store.clusters.moves.switching import fence_and_switch, resume_behind_fence
from cellfeed.store.clusters.moves.underway import fence_of
from cellfeed.store.clusters.moves.waiting import (
    TooSlow,
    wait_for_minions,
)
from cellfeed.store.clusters.operating.present_role import cluster_role, master_state
from cellfeed.store.errors import InvalidRequest, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("move.between_maps", "move.after_map")

_log = logging.getLogger("cellfeed.moves")


FENCES_MAX: Final = 5
"""So many fences of one move: a shard that repeatedly cannot be switched in time is reported, with
the reason."""


@dataclass(frozen=True, slots=True)
class Moved:
    """The result of a move. ``fence_s``: from the fence until processes could learn of the target,
    None where that was not measured in one run; ``cells`` and ``copy_s``: how many cells this run
    copied, and how long that took; ``was_there``: the target had it already."""

    shard: int
    source: str
    target: str
    cells: int
    copy_s: float
    fence_s: float | None
    leader_epoch: int | None
    was_there: bool = False


class Move:
    """One run of a move, from the present state to its end, or to an error after which another run
    resumes it."""

    def __init__(
        self,
        clusters: Clusters,
        shard: int,
        complete_dictionaries: Callable[[], None] = lambda: None,
        on_cells: Callable[[int], None] = lambda _: None,
        patience_s: float = AGAIN_S,
    ) -> None:
        self._clusters, self._shard, self._patience_s = clusters, shard, patience_s
        self._complete_dictionaries = complete_dictionaries
        self._on_cells = on_cells

    def to(self, to: str) -> Moved:
        notes = {
            name: notes_of_master(cluster, cluster_role(cluster)[0])
            for name, cluster in self._clusters.items()
        }
        serves = [name for name, (served, *_) in notes.items() if self._shard in served]
        fence = fence_of(notes, self._shard) if not serves else None
        if serves == [to]:
            kept = next((name for name, each in notes.items() if self._shard in each.leaving), to)
            with opened_side(self._clusters[to], self._shard) as target:
                self._write_map(target, kept)
            return Moved(self._shard, kept, to, 0, 0.0, None, None, was_there=True)
        if fence and fence[1].target != to:
            raise InvalidRequest(
                f"shard {self._shard} is on its way from {fence[0]} to {fence[1].target}: cellfeed"
                " shard resume, or rollback, first"
            )
        if not serves and not fence:
            raise StorageUnavailable(
                f"no cluster reports that it has shard {self._shard}: the one that has it does not"
                " answer, or the configuration lacks it"
            )
        source_name = fence[0] if fence else serves[0]
        if elsewhere := [
            name for name, each in notes.items() if self._shard in each.arriving and name != to
        ]:
            raise InvalidRequest(
                f"shard {self._shard} is on its way to {elsewhere[0]}: cellfeed shard resume, or"
                " rollback, first"
            )
        self._complete_dictionaries()
        with ExitStack() as opened:
            source = opened.enter_context(opened_side(self._clusters[source_name], self._shard))
            target = opened.enter_context(opened_side(self._clusters[to], self._shard))
            return self._run(source, target)

    def _run(self, source: ShardSide, target: ShardSide) -> Moved:
        began_s: float | None = None
        copy = ShardCopy(self._shard, source, target, self._on_cells)
        if source.notes().leaving:
            epoch = resume_behind_fence(copy, source, target)
        else:
            slow = ""
            for _ in range(FENCES_MAX):
                copy.until_near()
                self._complete_dictionaries()
                began_s = time.monotonic()
                try:
                    epoch = fence_and_switch(copy, source, target, began_s + waiting.FENCE_MAX_S)
                    break
                except TooSlow as reason:
                    slow = str(reason)
                    _log.warning(
                        "shard %d was given back, to be fenced again: %s", self._shard, slow
                    )
            else:
                raise InvalidRequest(
                    f"shard {self._shard} could not be switched within {waiting.FENCE_MAX_S} s,"
                    f" {FENCES_MAX} times: {slow}; it is where it was"
                )
        # The source first: a process that finds the shard gone there reads the map there.
        self._write_map(target, source.cluster.name)
        fence_s = time.monotonic() - began_s if began_s is not None else None
        failpoint("move.after_map")
        return Moved(
            self._shard,
            source.cluster.name,
            target.cluster.name,
            copy.cells,
            copy.copy_s,
            fence_s,
            epoch,
        )

    def _wait_for_switch(self, target: ShardSide) -> None:
        """Before anybody is sent there: a promotion must not undo the switch, and readers on a
        minion should find the shard. Raises TooSlow."""
        wait_for_minions(
            target,
            lambda each: each.serves is not None,
            self._patience_s,
            f"no node of {target.cluster.name} but its master has the switch",
        )

    def _write_map(self, target: ShardSide, first: str) -> None:
        name = target.cluster.name
        states = {each: master_state(cluster) for each, cluster in self._clusters.items()}
        known = merged(
            [found for state in states.values() if (found := read_map(state)) is not None]
        )
        if known.by_shard()[self._shard] != name:
            known = known.moved(self._shard, name, target.leader_epochs()[-1][0])
        self._wait_for_switch(target)
        for each in sorted(states, key=lambda each: each != first):
            write_map({each: states[each]}, known)
            failpoint("move.between_maps")


def opened_side(cluster: ClusterServers, shard: int) -> AbstractContextManager[ShardSide]:
    """The shard on the cluster's present master, locked. Raises as :func:`open_side`."""
    return open_side(cluster, cluster_role(cluster)[0], shard)
