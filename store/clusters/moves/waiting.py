"""Waiting in a move, with bounds: for minions to have a change of their master, or for a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cellfeed.store.clusters.model.shard_notes import ShardNotes
from cellfeed.store.clusters.moves.shard_side import ShardSide

FENCE_MAX_S: Final = 1.0
"""Longest time for which a move keeps a shard from taking puts, in seconds. When the switch has not
begun within it, the shard is given back, and fenced again later."""

DROP_WAIT_S: Final = 5.0
"""Longest wait for minions to drop the tables that their master has dropped, in seconds, before
that is tried again."""

PAUSE_S: Final = 0.005


class TooSlow(Exception):
    """Something behind a fence was not there in time."""


def wait_for_minions(
    side: ShardSide, has_it: Callable[[ShardNotes], bool], patience_s: float, otherwise: str
) -> None:
    """Waits until the minions have the change of the side's master, too, so that no promotion
    undoes it. A node that is away is not waited for longer than a fence may last, when another one
    beside the master has it: that one, or one with more, is promoted. Raises TooSlow, and
    StorageUnavailable."""
    began_s = time.monotonic()
    while True:
        there = [
            each is not None and has_it(each)
            for name, each in side.on_answering().items()
            if name != side.role.master
        ]
        late_s = time.monotonic() - began_s
        if all(there) or (any(there) and late_s > FENCE_MAX_S):
            return
        if late_s > patience_s:
            raise TooSlow(otherwise)
        time.sleep(PAUSE_S)


def wait_for(done: Callable[[], bool], deadline_s: float, otherwise: str) -> None:
    while not done():
        if time.monotonic() > deadline_s:
            raise TooSlow(otherwise)
        time.sleep(PAUSE_S)
