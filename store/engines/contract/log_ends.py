"""The ends of logs as a query of an index compares them: one text for all shards of a server, so
that two looks are compared at once, and taken apart only where they differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cellfeed.store.engines.contract.index_values import Entry, EntrySelect, IndexTable


class LogEnd(NamedTuple):
    """Of a shard's log. The first two are the same for as long as cells are only added: a restore
    changes the epoch, a trim the start."""

    leader_epoch: int
    log_start: int
    next_added_id: int


class LogEnds(NamedTuple):
    """``text``: for each shard ``shard,leader_epoch,log_start,next_added_id``, joined by ``;``."""

    text: str

    def by_shard(self) -> dict[int, LogEnd]:
        """Taken apart."""
        found = {}
        for each in self.text.split(";") if self.text else ():
            shard, leader_epoch, log_start, next_added_id = map(int, each.split(","))
            found[shard] = LogEnd(leader_epoch, log_start, next_added_id)
        return found


class SelectedBesideEnds(NamedTuple):
    """The entries of each selection, and the ends of logs, read before them. ``ends`` is None where
    the shards are too many for one look at all of them."""

    entries: list[list[Entry]]
    ends: LogEnds | None


SelectBesideEnds = Callable[[IndexTable, Sequence[EntrySelect]], SelectedBesideEnds]
