"""Ends moves that a dead mover has left: nobody serves the shard, or nobody can find it. Every
worker and every failover process does so unasked.

A mover is alive while its connections with the shard's locks are, and say something. A healer takes
the same locks, so it is never beside a mover. Where a mover holds them and all its connections with
locks have been silent for ``SILENT_MAX_S``, the healer ends these connections first: the mover is
stopped, or its machine has gone without a word. A mover that wakes up then finds them closed. It
can do nothing without them: its uncommitted changes are undone, and a commit that it had sent is
done or undone before its lock is free. It opens new ones as any other mover does, and resumes from
the state that the servers report.

The rule:

    fenced, not switched      the source gets the shard back. It has all of it, so there is nothing
                              to wait for. The copy is kept, and `cellfeed shard resume` continues
                              the move with it.
    switched                  the target has it: the shard map is written, when the switch is safe
                              from a promotion.
    copying                   the source serves, and nothing is done: the operator resumes the move,
                              or takes it back. But while a copy is there nothing is erased. So an
                              erasure that has waited in vain takes the copy back
                              (:func:`take_back_left_copy`), as an operator does, and then erases.
                              Erasing in the copy as well would keep it. But then a kill between the
                              two servers must not leave a body on one of them alone, and the copy
                              costs only time.

Both masters are needed for the first: only the target's knows whether the switch has come. It has
come when the note of the copy is gone there. Then the source gets nothing back, even where the note
is missing for another reason.

After a kill of the healer the servers are in one of these states:

    the mover's connections are ended     the fence, and no mover: the next look heals it.
    the copy's note has another token     no switch of the mover can come any more; the next look
                                          heals it.
    the copy is hidden again              as before.
    the tables have their names back      the counter is not there, so nobody puts; readers get the
                                          source's log; the next look resumes.
    the counter is back                   the source serves: healed.
    between two maps                      the next look writes the rest.

A copy is taken back under the locks of both sides, too. A kill leaves in any case the mark, so the
repeated erasure comes here again (``take_back.py``). A mover that was paused meanwhile has lost its
connections and cannot continue with them. It looks at the servers, finds no copy, and begins a new
one: in its log the erasure is done, or refused by the new mark.

Any number of healers may run: the locks let one of them at a shard, the others find nothing left to
do.
"""

from __future__ import annotations

import logging
from collections.abc import Set
from contextlib import ExitStack
from typing import Final

from cellfeed.store.clusters.model.shard_notes import Clusters, notes_of_master
from cellfeed.store.clusters.moves.mover_lock import cut_off, lock_owner
from cellfeed.store.clusters.moves.steps import Move, opened_side
from cellfeed.store.clusters.moves.take_back import bar_switch, give_back, take_back
from cellfeed.store.clusters.moves.underway import Underway, owners
from cellfeed.store.clusters.moves.waiting import TooSlow
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.errors import StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("heal.after_cut_off", "heal.after_bar", "heal.after_give_back")

_log = logging.getLogger("cellfeed.moves")


SILENT_MAX_S: Final = 10.0
"""A mover whose connections have said nothing for so long is cut off, in seconds. Behind a fence it
says something every few milliseconds, except while it compares index entries: a million of them are
about a second."""

COPY_SILENT_MAX_S: Final = 60.0
"""The same of a mover that copies, in seconds. It says nothing on these connections while it reads
a step of the copy, whose statements have a quarter of this each (``mysql_connections.TIMEOUT_S``).
"""

PATIENCE_S: Final = 5.0
"""How long one attempt waits for nodes, in seconds."""


def heal(clusters: Clusters, found: Underway) -> str | None:
    """Heals a shard that is fenced or switched. Returns a line for the log; None when nothing is
    left to do. ``clusters``: those that answer.

    Raises StorageUnavailable when its mover is alive, or a master that is needed does not answer.
    """
    serves = owners(clusters).get(found.shard)
    _end_silent(clusters, found.shard, {found.source, serves or found.target}, SILENT_MAX_S)
    if serves is not None:
        if found.stage != "switched":
            return None
        try:
            Move(clusters, found.shard, patience_s=PATIENCE_S).to(serves)
        except TooSlow as error:
            raise StorageUnavailable(str(error)) from error
        return f"shard {found.shard} is on {serves}, and the shard map says so"
    if found.target not in clusters:
        raise StorageUnavailable(
            f"cluster {found.target} does not answer, which alone knows whether shard {found.shard}"
            " was switched to it"
        )
    with ExitStack() as opened:
        source = opened.enter_context(opened_side(clusters[found.source], found.shard))
        target = opened.enter_context(opened_side(clusters[found.target], found.shard))
        left, note = source.notes().leaving, target.notes().arriving
        if source.notes().serves or left is None or left.target != found.target:
            return None
        if note is None or note.source != found.source:
            raise StorageUnavailable(
                f"cluster {found.target} has no note of a copy of shard {found.shard}: it was"
                " switched, or the cluster lost its cells"
            )
        bar_switch(source, target)
        failpoint("heal.after_bar")
        give_back(source, found.target)
        failpoint("heal.after_give_back")
    return (
        f"shard {found.shard} is on {found.source} again: `cellfeed shard resume` continues its"
        f" move to {found.target}, `shard rollback` drops the copy"
    )


def take_back_left_copy(clusters: Clusters, source: str, shard: int) -> str | None:
    """Drops the copy of a shard that ``source`` serves, when its mover is dead: erasures that the
    copy held up can be done then. Returns the name of the cluster that it was on; None, and nothing
    done, when there is no such copy, or it is on a cluster that is not among these.

    Raises StorageUnavailable when its mover is alive, a master of both sides does not answer, or
    the copy's minions do not follow theirs.
    """
    if source not in clusters:
        return None
    role, _ = cluster_role(clusters[source])
    copied_to = notes_of_master(clusters[source], role).copied.get(shard)
    if copied_to is None or copied_to not in clusters:
        return None
    _end_silent(clusters, shard, {source, copied_to}, COPY_SILENT_MAX_S)
    with ExitStack() as opened:
        here = opened.enter_context(opened_side(clusters[source], shard))
        there = opened.enter_context(opened_side(clusters[copied_to], shard))
        if here.notes().copied_to != copied_to:
            return None  # somebody has resumed it, or has taken it back
        try:
            take_back(here, there, copied_to)
        except TooSlow as error:
            raise StorageUnavailable(str(error)) from error
    return copied_to


def _end_silent(clusters: Clusters, shard: int, names: Set[str], silent_max_s: float) -> None:
    """Cuts a mover off that holds locks and has said nothing for so long on any of its
    connections."""
    locks = []
    for name in names & clusters.keys():
        role, _ = cluster_role(clusters[name])
        if (owner := lock_owner(clusters[name], role, shard)) is not None:
            locks.append((name, role, owner))
    if locks and all(owner.silent_s >= silent_max_s for *_, owner in locks):
        for name, role, owner in locks:
            _log.warning(
                "the mover of shard %d has said nothing to %s for %.0f s and is cut off",
                shard,
                name,
                owner.silent_s,
            )
            cut_off(clusters[name], role, owner)
        failpoint("heal.after_cut_off")
