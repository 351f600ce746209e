"""The last part of a move: the source is fenced, the rest is copied, and the target serves the
shard in one transaction."""

from __future__ import annotations

import time

from cellfeed.store.clusters.model.shard_notes import (
    Leaving,
    ShardNotes,
)
from cellfeed.store.clusters.moves import waiting
from cellfeed.store.clusters.moves.copying import AGAIN_S, ShardCopy, copied_below
from cellfeed.store.clusters.moves.index_copy import copy_entries
from cellfeed.store.clusters.moves.shard_side import ShardSide
from cellfeed.store.clusters.moves.take_back import give_back, new_token
from cellfeed.store.clusters.moves.waiting import (
    TooSlow,
    wait_for,
)
from cellfeed.store.errors import StorageUnavailable, Unavailable
from cellfeed.store.failpoints import declare, failpoint

declare(
    "move.before_fence",
    "move.after_fence",
    "move.after_hide",
    "move.after_rest",
    "move.before_switch",
    "move.after_switch",
    "move.inside_give_back",
)


def fence_and_switch(
    copy: ShardCopy, source: ShardSide, target: ShardSide, deadline_s: float
) -> int:
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
        left = _finish(copy, source, target, deadline_s)
        if (late_s := time.monotonic() - deadline_s) > 0:
            raise TooSlow(f"it took {waiting.FENCE_MAX_S + late_s:.2f} s")
    except (Exception, KeyboardInterrupt) as error:
        failpoint("move.inside_give_back")
        give_back(source, target.cluster.name)
        if isinstance(error, Unavailable):
            raise TooSlow(str(error)) from error
        raise
    return _switch(source, target, left)


def resume_behind_fence(copy: ShardCopy, source: ShardSide, target: ShardSide) -> int:
    """Behind the fence of a run that was killed. A switch that it may have sent is waited for:
    the note is locked, and gone when it came."""
    left = source.notes().leaving
    if left is None:
        raise StorageUnavailable(f"the fence of shard {source.shard} is gone")
    target.prepare_switch(left.token)
    source.hide()
    target.hide()
    return _switch(source, target, _finish(copy, source, target, time.monotonic() + AGAIN_S))


def _finish(copy: ShardCopy, source: ShardSide, target: ShardSide, deadline_s: float) -> Leaving:
    """Every node of the source has the fence, every node of the target all that is behind it.
    Raises TooSlow."""
    wait_for(
        lambda: all(_is_fenced(each) for each in source.on_members().values()),
        deadline_s,
        f"a node of {source.cluster.name} lacks the fence",
    )
    left = source.notes().leaving
    if left is None:
        raise StorageUnavailable(f"the fence of shard {source.shard} is gone")
    copy.rest(left.next_added_id, hidden=True)
    wait_for(
        lambda: copy_entries(source.server, target, source.database) == 0,
        deadline_s,
        "the index entries differ",
    )
    failpoint("move.after_rest")
    end = left.next_added_id
    wait_for(
        lambda: all(copied_below(each) >= end for each in target.on_members().values()),
        deadline_s,
        f"a node of {target.cluster.name} lacks cells",
    )
    return left


def _switch(source: ShardSide, target: ShardSide, left: Leaving) -> int:
    epochs, columns = source.leader_epochs(), source.columns()
    target.show()
    failpoint("move.before_switch")
    epoch = target.switch(left, epochs, columns)
    failpoint("move.after_switch")
    return epoch


def _is_fenced(notes: ShardNotes) -> bool:
    return notes.serves is None and notes.leaving is not None and notes.hidden
