"""Ends a move that was not switched: the source serves the shard again, and the copy is dropped."""

from __future__ import annotations

import secrets

from cellfeed.store.clusters.model.shard_notes import ShardNotes
from cellfeed.store.clusters.moves import waiting
from cellfeed.store.clusters.moves.shard_side import ShardSide
from cellfeed.store.clusters.moves.waiting import wait_for_minions
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("rollback.before_unmark")


def new_token() -> int:
    """Names one attempt to switch: a switch of another one is refused."""
    return secrets.randbits(62) + 1


def bar_switch(source: ShardSide, target: ShardSide) -> None:
    """No switch of the present fence has come, and none can come any more: asked under both locks,
    on both masters. Raises StorageUnavailable when it has."""
    there = target.notes()
    if there.serves or there.leaving:  # and moved on since
        raise StorageUnavailable(
            f"shard {source.shard} was switched to {target.cluster.name} meanwhile"
        )
    if there.arriving:
        target.prepare_switch(new_token())
        target.hide()  # cells that the source gets from now on are not in the copy


def give_back(source: ShardSide, copied_to: str) -> None:
    """Ends the fence, if there is one. ``copied_to``: the cluster that the copy is still made
    for."""
    if (left := source.notes().leaving) is not None and source.notes().serves is None:
        source.give_back(left.token, copied_to)


def take_back(source: ShardSide, target: ShardSide | None, copied_to: str) -> None:
    """Ends a move that was not switched: the source serves the shard, and the copy is dropped.
    Under the locks of both sides; ``target`` is None where nobody can reach the cluster
    ``copied_to`` any more. Raises StorageUnavailable when it was switched.

    The order, and the state after a kill: a fence goes before the copy's note, for without one
    nobody knows whether its switch has come. The mark goes last, when nothing of the copy is there,
    and no promotion can bring it back: while it is there, nothing is erased on the source that the
    copy may have. So a kill leaves the mark, with the copy, with the rest of it or alone. The next
    process that takes the move back, or that the mark keeps from erasing, comes here again. The
    same holds for minions of ``target`` that do not follow in time (TooSlow).
    """
    if target is not None and source.notes().serves is None:
        bar_switch(source, target)
    # A fence without a note: tables on the target are no copy that a note names.
    noted = target is not None and bool(target.notes().arriving or source.notes().copied_to)
    failpoint("move.inside_give_back")
    give_back(source, copied_to if noted else "")
    if target is not None and noted:
        target.abandon()
        wait_for_minions(
            target,
            _has_no_copy,
            waiting.DROP_WAIT_S,
            f"no node of {target.cluster.name} but its master has dropped the copy of shard"
            f" {source.shard}",
        )
    failpoint("rollback.before_unmark")
    if source.notes().copied_to:
        source.mark_copied("")


def _has_no_copy(notes: ShardNotes) -> bool:
    """Kept tables of an earlier move from there are no copy: it was the shard."""
    return notes.arriving is None and (not notes.has_tables or notes.leaving is not None)
