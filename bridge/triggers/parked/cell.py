"""One parked cell: its state entry, and the order in which those of a row key are tried.

``parked/<group>/<topic>/<partition>/<added_id>`` is its key; one that was skipped moves to
``skipped/…``.

**In order** (``order_by_row_key``): a cell whose row key has a parked cell is parked too, without
being run: it waits behind that one. The worker of the partition takes the parked cells of a row key
off from the front: the first one runs (or is skipped by hand), then the next. A row key has no
parked cell left before a later cell of it is run from the log. All of that follows from the
entries, so a restart changes nothing of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from urllib.parse import quote

import msgspec

from cellfeed.store.engines.contract.values import StateEntry


class ParkedCell(msgspec.Struct, frozen=True, kw_only=True):
    """A parked cell. Times are microseconds since 1970 UTC; ``retry_asked`` is set by hand to have
    it tried at once.

    ``ended``: how many of its ``attempts`` ended the process, by a time-out or otherwise.
    ``in_order``: it was parked by a trigger that keeps the order by row key; ``is_behind``: it has
    not been run, because an earlier cell of its row key was parked.
    """

    group: str
    topic: str
    partition: int
    added_id: int
    row_key: str
    column_name: str
    ref_key: int
    error: str
    attempts: int
    parked_at_us: int
    last_tried_at_us: int
    retry_asked: bool = False
    skipped_because: str = ""
    ended: int = 0
    in_order: bool = False
    is_behind: bool = msgspec.field(default=False, name="held")

    @property
    def cell_id(self) -> str:
        """How people name it: ``<partition>/<added_id>``."""
        return f"{self.partition}/{self.added_id}"


def is_of_rows(key: str, value: bytes, row_keys: Collection[str]) -> bool:
    """Whether an entry of the state table is a parked or skipped cell of one of these rows: its
    error may quote the body."""
    return (
        key.startswith(("parked/", "skipped/"))
        and decode(StateEntry(key, value, 0)).row_key in row_keys
    )


def fronts(cells: Iterable[ParkedCell]) -> list[ParkedCell]:
    """Those that may be tried: each one that is not kept in order, and of each row key that is the
    first. ``cells`` by group, partition and added_id."""
    seen: set[tuple[str, str, str]] = set()
    found = []
    for cell in cells:
        row = cell.group, cell.topic, cell.row_key
        if not cell.in_order or row not in seen:
            found.append(cell)
        seen.add(row)
    return found


def due(cells: Iterable[ParkedCell], all_due: bool) -> dict[int, bool]:
    """Partitions with parked cells to be tried again: all of them (True), or only those asked for
    by hand and those that wait behind nothing any more."""
    return {
        cell.partition: all_due
        for cell in fronts(cells)
        if all_due or cell.retry_asked or cell.is_behind
    }


def decode(entry: StateEntry) -> ParkedCell:
    return msgspec.json.decode(entry.value, type=ParkedCell)


def key_of(queue: str, cell: ParkedCell) -> str:
    group, topic = quote(cell.group, safe=""), quote(cell.topic, safe="")
    return f"{queue}/{group}/{topic}/{cell.partition}/{cell.added_id:020d}"
