"""One run of a move: copy, fence, finish, switch, map, from where the servers say that it is. What
each leaves is argued in :mod:`cellfeed.store.clusters.moves`."""

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
    HIDDEN,
    Clusters,
    Leaving,
    ShardNotes,
    notes_of_master,
)
from cellfeed.store.clusters.moves import waiting
from cellfeed.store.clusters.moves.index_copy import copy_entries
from cellfeed.store.clusters.moves.log_copy import copy_log
from cellfeed.store.clusters.moves.shard_copies import copy_on
from cellfeed.store.clusters.moves.shard_diff import refuse_loss
from cellfeed.store.clusters.moves.shard_side import ShardSide, open_side
from cellfeed.store.clusters.moves.take_back import give_back, new_token
from cellfeed.store.clusters.moves.underway import fence_of
from cellfeed.store.clusters.moves.waiting import (
    TooSlow,
    wait_for,
    wait_for_minions,
)
from cellfeed.store.clusters.operating.present_role import cluster_role, master_state
from cellfeed.store.errors import InvalidRequest, StorageUnavailable, Trimmed, Unavailable
from cellfeed.store.failpoints import declare, failpoint

declare(
    "move.after_begin",
    "move.after_mark",
    "move.inside_copy",
    "move.before_fence",
    "move.after_fence",
    "move.after_hide",
    "move.after_rest",
    "move.before_switch",
    "move.after_switch",
    "move.between_maps",
    "move.after_map",
    "move.inside_give_back",
)

_log = logging.getLogger("cellfeed.moves")


FENCES_MAX: Final = 5
"""So many fences of one move: a shard that repeatedly cannot be switched in time is reported, with
the reason."""

NEAR_CELLS: Final = 2_000
"""The shard is fenced when so many cells, or fewer, are left to copy: some twenty milliseconds."""

NEAR_BUCKETS: Final = 32
"""And when so few parts of its index tables have changed during the last round."""

AGAIN_S: Final = 60.0
"""How long a move looks for a master that does not answer before it gives up and is left to be
resumed, in seconds."""


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
        self._copied = 0
        self._copy_s = 0.0

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
                f"no cluster tells that it has shard {self._shard}: the one that has it does not"
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
        if source.notes().leaving:
            epoch = self._resume(source, target)
        else:
            slow = ""
            for _ in range(FENCES_MAX):
                self._copy(source, target)
                self._complete_dictionaries()
                began_s = time.monotonic()
                try:
                    epoch = self._fence_and_switch(source, target, began_s + waiting.FENCE_MAX_S)
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
            self._copied,
            self._copy_s,
            fence_s,
            epoch,
        )

    # 1. copy

    def _copy(self, source: ShardSide, target: ShardSide) -> None:
        """Until little is left to do behind a fence. Raises StorageUnavailable when a node of
        either side does not get on."""
        there = target.notes().arriving
        if there is None or there.source != source.cluster.name:
            self._keep_good_copy(source, target)
            target.begin(source.cluster.name, new_token(), _serves(source.notes())[0])
            failpoint("move.after_begin")
        target.hide()
        self._end_erasures(source, target)
        best, deadline_s = -1, 0.0
        while True:
            copied = self._copy_rest(source, target, source.held_by_all(), hidden=False)
            differ = copy_entries(source.server, target, source.database)
            _, end = _serves(source.notes())
            arrived = min(_arrived(each) for each in target.on_members().values())
            if (
                end - copied <= NEAR_CELLS
                and copied - arrived <= NEAR_CELLS
                and differ <= NEAR_BUCKETS
            ):
                return
            if arrived + copied > best:
                best, deadline_s = arrived + copied, time.monotonic() + AGAIN_S
            elif time.monotonic() > deadline_s and (
                end - copied > NEAR_CELLS or copied - arrived > NEAR_CELLS
            ):
                progress = (
                    f"{copied} of {end} cells are on all nodes of the source and copied, {arrived}"
                    " have arrived on all nodes of the target"
                )
                raise StorageUnavailable(
                    f"the copy of shard {self._shard} does not get on: {progress}"
                )
            time.sleep(waiting.PAUSE_S)

    def _keep_good_copy(self, source: ShardSide, target: ShardSide) -> None:
        """What the target keeps of the shard, from when it left, is dropped where the copy begins:
        not while it alone has a cell in good order. Raises ProtectData."""
        role, there = target.role, target.notes()
        kept = (
            copy_on(target.cluster, role.master, self._shard, there, is_master=True)
            if there.leaving and not there.arriving
            else None
        )
        served = copy_on(
            source.cluster, source.role.master, self._shard, source.notes(), is_master=True
        )
        if kept is not None and kept.kind == "kept" and served is not None:

            def alive(_: int) -> None:
                source.notes()
                target.notes()

            refuse_loss(self._shard, [served], kept, alive)

    def _end_erasures(self, source: ShardSide, target: ShardSide) -> None:
        """Every node of the source has the mark before the first cell is copied, so no promotion
        undoes it: a row is erased before it is copied, or once the mark is gone. A copy that was
        begun without the mark, or whose mark was removed since, begins again."""
        name = target.cluster.name
        if source.notes().copied_to != name:
            first = _serves(source.notes())[0]
            target.restart(first)
            # A promotion there must not bring rows back that were erased since they were copied.
            wait_for_minions(
                target,
                lambda each: _arrived(each) == first,
                AGAIN_S,
                f"no node of {name} but its master has begun the copy again",
            )
            source.mark_copied(name)
        deadline_s = time.monotonic() + AGAIN_S
        wait_for(
            lambda: all(each.copied_to == name for each in source.on_members().values()),
            deadline_s,
            f"a node of {source.cluster.name} lacks the mark",
        )
        failpoint("move.after_mark")

    def _copy_rest(self, source: ShardSide, target: ShardSide, end: int, *, hidden: bool) -> int:
        """Copies up to ``end``; where the copy ends then."""
        began_s = time.monotonic()
        table = f"{source.database}.{HIDDEN if hidden else ''}cell"

        def counted(cells: int) -> None:
            self._copied += cells
            self._on_cells(cells)
            failpoint("move.inside_copy")

        note = target.notes().arriving
        if note is None:
            raise StorageUnavailable(
                f"shard {self._shard} does not arrive at {target.cluster.name} any more"
            )
        first = note.next_added_id
        try:
            copy_log(source, table, target, first, end, counted)
        except Trimmed:
            # What was copied of it is behind the log's start by now.
            shard_notes = source.notes()
            first = (
                shard_notes.leaving.log_start if shard_notes.leaving else _serves(shard_notes)[0]
            )
            target.restart(first)
            copy_log(source, table, target, first, end, counted)
        finally:
            self._copy_s += time.monotonic() - began_s
        return max(first, end)

    # 2. fence, 3. finish, 4. switch

    def _fence_and_switch(self, source: ShardSide, target: ShardSide, deadline_s: float) -> int:
        """Raises TooSlow when the shard was given back. Until the switch has been sent nobody but
        this run could send one of its token, and it holds the lock of the source: so it may give
        the shard back without asking the target."""
        token = new_token()
        target.prepare_switch(token)
        failpoint("move.before_fence")
        try:
            source.fence(target.cluster.name, token)
            failpoint("move.after_fence")
            source.hide()
            failpoint("move.after_hide")
            left = self._finish(source, target, deadline_s)
            if (late_s := time.monotonic() - deadline_s) > 0:
                raise TooSlow(f"it took {waiting.FENCE_MAX_S + late_s:.2f} s")
        except (Exception, KeyboardInterrupt) as error:
            failpoint("move.inside_give_back")
            give_back(source, target.cluster.name)
            if isinstance(error, Unavailable):
                raise TooSlow(str(error)) from error
            raise
        return self._switch(source, target, left)

    def _resume(self, source: ShardSide, target: ShardSide) -> int:
        """Behind the fence of a run that was killed. A switch that it may have sent is waited for:
        the note is locked, and gone when it came."""
        left = source.notes().leaving
        if left is None:
            raise StorageUnavailable(f"the fence of shard {self._shard} is gone")
        target.prepare_switch(left.token)
        source.hide()
        target.hide()
        return self._switch(
            source, target, self._finish(source, target, time.monotonic() + AGAIN_S)
        )

    def _finish(self, source: ShardSide, target: ShardSide, deadline_s: float) -> Leaving:
        """Every node of the source has the fence, every node of the target all that is behind it.
        Raises TooSlow."""
        wait_for(
            lambda: all(_is_fenced(each) for each in source.on_members().values()),
            deadline_s,
            f"a node of {source.cluster.name} lacks the fence",
        )
        left = source.notes().leaving
        if left is None:
            raise StorageUnavailable(f"the fence of shard {self._shard} is gone")
        self._copy_rest(source, target, left.next_added_id, hidden=True)
        wait_for(
            lambda: copy_entries(source.server, target, source.database) == 0,
            deadline_s,
            "the index entries differ",
        )
        failpoint("move.after_rest")
        end = left.next_added_id
        wait_for(
            lambda: all(_arrived(each) >= end for each in target.on_members().values()),
            deadline_s,
            f"a node of {target.cluster.name} lacks cells",
        )
        return left

    def _switch(self, source: ShardSide, target: ShardSide, left: Leaving) -> int:
        epochs, columns = source.leader_epochs(), source.columns()
        target.show()
        failpoint("move.before_switch")
        epoch = target.switch(left, epochs, columns)
        failpoint("move.after_switch")
        return epoch

    # 5. map

    def _wait_for_switch(self, target: ShardSide) -> None:
        """Before anybody is sent there: a promotion must not undo the switch, and who reads on a
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


# --- parts ----------------------------------------------------------------------------------------


def opened_side(cluster: ClusterServers, shard: int) -> AbstractContextManager[ShardSide]:
    """The shard on the cluster's present master, locked. Raises as :func:`open_side`."""
    return open_side(cluster, cluster_role(cluster)[0], shard)


def _serves(notes: ShardNotes) -> tuple[int, int]:
    if notes.serves is None:
        raise StorageUnavailable("the source does not serve the shard any more")
    return notes.serves


def _arrived(notes: ShardNotes) -> int:
    """How far a node of the target has the copy."""
    return notes.arriving.next_added_id if notes.arriving else 0


def _is_fenced(notes: ShardNotes) -> bool:
    return notes.serves is None and notes.leaving is not None and notes.hidden
