"""The trims of a datastore that were begun, in its state table: the operator, the reason and the
cells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from cellfeed.store.backups.point import Trim
from cellfeed.store.cells.cell import moment
from cellfeed.store.engines.contract.state_table import StateTable

HISTORY: Final = "trim-history/"


class TrimDeed(msgspec.Struct, frozen=True):
    """An entry of the history. ``shards``: of each the log start as it was, and as it was to be.
    ``although``: groups that needed trimmed cells."""

    by: str
    because: str
    at_us: int
    shards: dict[int, tuple[int, int]]
    although: list[str] = []


def trim_history(state: StateTable) -> list[TrimDeed]:
    """Every trim that was begun, the earliest first."""
    return [msgspec.msgpack.decode(each.value, type=TrimDeed) for each in state.list(HISTORY)]


def trims_in(entries: Iterable[tuple[str, bytes]]) -> list[Trim]:
    """Every trim in the entries of a backup, shard by shard."""
    deeds = [
        msgspec.msgpack.decode(value, type=TrimDeed)
        for key, value in entries
        if key.startswith(HISTORY)
    ]
    return [
        Trim(shard, below, deed.at_us)
        for deed in deeds
        for shard, (_, below) in deed.shards.items()
    ]


def deed_line(deed: TrimDeed) -> str:
    """An entry of the history as people read it."""
    places = ", ".join(
        f"{shard}:{before}→{after}" for shard, (before, after) in list(deed.shards.items())[:20]
    )
    more = " …" if len(deed.shards) > 20 else ""
    missed = f", although {', '.join(deed.although)} needed them" if deed.although else ""
    return (
        f"{moment(deed.at_us):%Y-%m-%d %H:%M:%S} UTC {deed.by}: {places}{more} because"
        f" {deed.because}{missed}"
    )
