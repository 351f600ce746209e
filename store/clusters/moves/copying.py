"""The first part of a move: the shard's cells and index entries are copied while it is served,
until little is left to copy behind a fence."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cellfeed.store.clusters.model.shard_notes import (
    HIDDEN,
    ShardNotes,
)
from cellfeed.store.clusters.moves import waiting
from cellfeed.store.clusters.moves.index_copy import copy_entries
from cellfeed.store.clusters.moves.log_copy import copy_log
from cellfeed.store.clusters.moves.shard_copies import copy_on
from cellfeed.store.clusters.moves.shard_diff import refuse_loss
from cellfeed.store.clusters.moves.shard_side import ShardSide
from cellfeed.store.clusters.moves.take_back import new_token
from cellfeed.store.clusters.moves.waiting import (
    wait_for,
    wait_for_minions,
)
from cellfeed.store.errors import StorageUnavailable, Trimmed
from cellfeed.store.failpoints import declare, failpoint

declare("move.after_begin", "move.after_mark", "move.inside_copy")

NEAR_CELLS: Final = 2_000
"""The shard is fenced when so many cells, or fewer, are left to copy: some twenty milliseconds."""

NEAR_BUCKETS: Final = 32
"""And when so few parts of its index tables have changed during the last round."""

AGAIN_S: Final = 60.0
"""How long a move looks for a master that does not answer before it gives up and is left to be
resumed, in seconds."""


class ShardCopy:
    """The copy that one run makes of a shard. ``on_cells`` is called with the number of cells that
    each statement copied. ``cells`` and ``copy_s``: how many cells the run copied, and how long
    that took, in seconds."""

    def __init__(
        self, shard: int, source: ShardSide, target: ShardSide, on_cells: Callable[[int], None]
    ) -> None:
        self._shard, self._source, self._target = shard, source, target
        self._on_cells = on_cells
        self.cells = 0
        self.copy_s = 0.0

    def until_near(self) -> None:
        """Until little is left to do behind a fence. Raises StorageUnavailable when a node of
        either side does not get on."""
        source, target = self._source, self._target
        there = target.notes().arriving
        if there is None or there.source != source.cluster.name:
            self._keep_good_copy()
            target.begin(source.cluster.name, new_token(), served_ids(source.notes())[0])
            failpoint("move.after_begin")
        target.hide()
        self._end_erasures()
        best, deadline_s = -1, 0.0
        while True:
            copied = self.rest(source.replicated_to_all(), hidden=False)
            differ = copy_entries(source.server, target, source.database)
            _, end = served_ids(source.notes())
            arrived = min(copied_below(each) for each in target.on_members().values())
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

    def _keep_good_copy(self) -> None:
        """The target's kept copy of the shard, from when it left, is dropped where the new copy
        begins: not while it alone has a cell in good order. Raises ProtectData."""
        source, target = self._source, self._target
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

    def _end_erasures(self) -> None:
        """Every node of the source has the mark before the first cell is copied, so no promotion
        undoes it: a row is erased before it is copied, or once the mark is gone. A copy that was
        begun without the mark, or whose mark was removed since, begins again."""
        source, target = self._source, self._target
        name = target.cluster.name
        if source.notes().copied_to != name:
            first = served_ids(source.notes())[0]
            target.restart(first)
            # A promotion there must not bring rows back that were erased since they were copied.
            wait_for_minions(
                target,
                lambda each: copied_below(each) == first,
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

    def rest(self, end: int, *, hidden: bool) -> int:
        """Copies up to ``end``; where the copy ends then."""
        source, target = self._source, self._target
        began_s = time.monotonic()
        table = f"{source.database}.{HIDDEN if hidden else ''}cell"

        def counted(cells: int) -> None:
            self.cells += cells
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
            # Its copied cells are behind the log's start by now.
            shard_notes = source.notes()
            first = (
                shard_notes.leaving.log_start if shard_notes.leaving else served_ids(shard_notes)[0]
            )
            target.restart(first)
            copy_log(source, table, target, first, end, counted)
        finally:
            self.copy_s += time.monotonic() - began_s
        return max(first, end)


def served_ids(notes: ShardNotes) -> tuple[int, int]:
    """The first id and the next one of a shard that the node serves. Raises StorageUnavailable."""
    if notes.serves is None:
        raise StorageUnavailable("the source does not serve the shard any more")
    return notes.serves


def copied_below(notes: ShardNotes) -> int:
    """How far a node of the target has the copy."""
    return notes.arriving.next_added_id if notes.arriving else 0
