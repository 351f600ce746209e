"""Answers queries of an index, and remembers for a moment which version is current.

**Fresh** (the default): every entry is checked against the ref keys of the row's current cells, and
made again where these differ. A row that no longer meets the filters is left out. A row that the
index does not hold *yet* is not found (``wait_for`` is for that). Rows come in the order of the
index's entries. **Fast**: entries as they are. While a master is away, both are answered from a
minion.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, Final, Literal
from uuid import UUID

from cellfeed.store.api import ReadFrom
from cellfeed.store.arguments import check_read_from
from cellfeed.store.cells.body_codec import cell_from_stored, is_erased
from cellfeed.store.cells.cell import Cell
from cellfeed.store.cells.sharding import shards_of
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.indexes import Condition, Encoded, Entry, EntrySelect
from cellfeed.store.engines.contract.read_bounds import Page
from cellfeed.store.engines.contract.values import LocatedCell
from cellfeed.store.errors import InvalidRequest, StorageUnavailable
from cellfeed.store.indexes.catalog import Catalog, IndexRecord, VersionRecord
from cellfeed.store.indexes.request import (
    WAIT_S,
    Filter,
    IndexPage,
    IndexRequest,
    IndexRow,
    check_wait_for,
    check_wait_s,
    checked_request,
    cursor_text,
)
from cellfeed.store.indexes.values import decoder
from cellfeed.store.indexes.version import IndexVersion, RowView

REMEMBERED_S: Final = 1.0
"""How long it is remembered which version of an index is current. A version that was replaced is
kept on for longer than that."""

_ROWS_STEP: Final = 32
"""Rows whose cells are read at once at first: a page with large bodies is full before many are
read."""

_POLL_S: Final = 0.002
_POLL_MAX_S: Final = 0.05

Positions = Callable[[str], Mapping[int, int]]
"""Of a trigger group by shard: the location that it has come to."""


class Indexes:
    """The indexes of a datastore. Any number of threads. ``positions`` is needed for ``wait_for``
    alone."""

    def __init__(self, engine: Engine, positions: Positions | None = None) -> None:
        self._engine = engine
        self.positions = positions
        self.catalog = Catalog(engine.state, engine.datastore)
        self._remembered: dict[str, tuple[float, IndexVersion]] = {}

    def version(self, record: VersionRecord) -> IndexVersion:
        """The reader and writer of a version's entries."""
        return IndexVersion(record.definition, record.number, self._engine.shards)

    def kept_versions(self) -> list[IndexVersion]:
        """The versions that are written now."""
        now_us = self.catalog.now_us()
        return [
            self.version(version)
            for record in self.catalog.all()
            for version in record.versions
            if version.is_kept(now_us)
        ]

    def current(self, name: str) -> IndexVersion:
        """The version that queries are answered from. Raises NotFound; StorageUnavailable while the
        first one is being built."""
        remembered = self._remembered.get(name)
        if remembered is not None and time.monotonic() < remembered[0]:
            return remembered[1]
        record = self.catalog.get(name)
        version = self.version(_current(record))
        if remembered is not None and remembered[1].number == version.number:
            version = remembered[1]
        self._remembered[name] = time.monotonic() + REMEMBERED_S, version
        return version

    def query(
        self,
        name: str,
        shard_value: Any,
        where: Sequence[Filter] = (),
        *,
        order_by: str | None = None,
        descending: bool = False,
        limit: int = 100,
        cursor: str | None = None,
        fields: Sequence[str] | None = None,
        columns: Sequence[str] | Literal["*"] | None = None,
        mode: Literal["fresh", "fast"] = "fresh",
        read_from: ReadFrom = "master",
        wait_for: object = None,
        wait_s: float = WAIT_S,
    ) -> IndexPage:
        """See :meth:`cellfeed.store.api.CellStore.query_index`."""
        version = self.current(name)
        request = checked_request(
            version.definition,
            version.number,
            shard_value=shard_value,
            where=where,
            order_by=order_by,
            descending=descending,
            limit=limit,
            cursor=cursor,
            fields=fields,
            columns=columns,
            mode=mode,
            read_from=check_read_from(read_from),
        )
        self._wait_for(name, check_wait_for(wait_for, self._engine.shards), check_wait_s(wait_s))
        return _Query(self._engine, version, request).page()

    def behind(self, name: str, locations: Mapping[int, int]) -> str | None:
        """The locations (by shard) that the index has not passed, as text; None when there are
        none."""
        if self.positions is None:
            raise InvalidRequest(
                "wait_for: this datastore was opened without the coordination that knows how far"
                " its indexes are"
            )
        reached = self.positions(self.current(name).group)
        for shard, added_id in locations.items():
            if reached.get(shard, 0) <= added_id:
                return (
                    f"index {name!r} has come to {reached.get(shard, 0)} in shard {shard}, not past"
                    f" {added_id}"
                )
        return None

    def pauses(self, wait_s: float) -> Iterator[float]:
        """Pauses between two looks at :meth:`behind`, in seconds, for so long."""
        deadline_s, pause_s = time.monotonic() + wait_s, _POLL_S
        while time.monotonic() < deadline_s:
            yield pause_s
            pause_s = min(_POLL_MAX_S, pause_s * 1.5)

    def _wait_for(self, name: str, locations: Mapping[int, int], wait_s: float) -> None:
        if not locations or not (lag := self.behind(name, locations)):
            return
        for pause_s in self.pauses(wait_s):
            time.sleep(pause_s)
            if not (lag := self.behind(name, locations)):
                return
        raise StorageUnavailable(f"{lag} within {wait_s} s")


class _Query:
    """One call."""

    def __init__(self, engine: Engine, version: IndexVersion, request: IndexRequest) -> None:
        self._engine = engine
        self._store = engine.indexes
        self._version = version
        self._request = request
        fields = version.definition.fields
        shard_value = cache(decoder(fields[0].type))  # the same in many rows
        self._shown = [
            (
                position,
                fields[position].name,
                decoder(fields[position].type) if position else shard_value,
            )
            for position in request.fields
        ]
        self._stale = False
        self._read = Page()

    def page(self) -> IndexPage:
        request = self._request
        rows: list[IndexRow] = []
        after, more = request.after, True
        while more and len(rows) < request.limit:
            wanted = request.limit - len(rows)
            entries = self._entries(after, wanted + 1)
            more = len(entries) > wanted
            entries = entries[:wanted]
            start, step = 0, _ROWS_STEP
            while start < len(entries):
                some = entries[start : start + step]
                for number, (entry, row) in enumerate(self._rows(some), start + 1):
                    after = self._place(entry)
                    rows += [row] if row is not None else []
                    if self._read.is_full:
                        more |= number < len(entries)
                        return self._answer(rows, after if more else None)
                start, step = start + step, step * 2
        return self._answer(rows, after if more else None)

    def _answer(
        self, rows: list[IndexRow], after: tuple[Encoded | None, bytes] | None
    ) -> IndexPage:
        request = self._request
        cursor = cursor_text(request, self._version.number, after) if after is not None else None
        return IndexPage(rows, cursor, self._version.number, self._stale)

    def _entries(self, after: tuple[Encoded | None, bytes] | None, limit: int) -> list[Entry]:
        request, version = self._request, self._version
        selects = [
            EntrySelect(
                version.shard_of_value(value),
                value,
                request.conditions,
                request.order,
                request.descending,
                after,
                limit,
            )
            for value in request.shard_values
            if after is None or request.order != 0 or self._is_behind(value, after)
        ]
        if request.order == 0 and after is not None:
            # Of the shard value where the last page ended, only entries behind its row key; of the
            # others all.
            selects = [each if each.value == after[0] else replace_after(each) for each in selects]
        found, stale = self._store.select(version.table, selects, request.read_from)
        self._stale |= stale
        if len(found) == 1:
            return found[0]
        return list(
            islice(heapq.merge(*found, key=self._sort_key, reverse=request.descending), limit)
        )

    def _is_behind(self, value: Encoded, after: tuple[Encoded | None, bytes]) -> bool:
        last: Any = after[0]
        here: Any = value
        return bool(here <= last if self._request.descending else here >= last)

    def _place(self, entry: Entry) -> tuple[Encoded | None, bytes]:
        order = self._request.order
        return (None if order is None else entry.values[order]), entry.row_key

    def _sort_key(self, entry: Entry) -> Any:
        value, row_key = self._place(entry)
        return (False, 0, row_key) if value is None else (True, value, row_key)

    def _rows(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, IndexRow | None]]:
        """Each entry with its row; None where it does not meet the filters any more."""
        request = self._request
        read = self._to_be_read(entries)
        current = self._current(read) if read else {}
        for entry in entries:
            cells = current.get(entry.row_key, ())
            shown = entry
            if request.fresh and entry.row_key in read:
                seen = self._as_it_is(cells, entry)
                if (
                    seen is None
                    or seen.values[0] != entry.values[0]
                    or not all(meets(seen, each) for each in request.conditions)
                ):
                    yield entry, None
                    continue
                shown = seen
            yield entry, self._row(shown, cells)

    def _to_be_read(self, entries: Sequence[Entry]) -> Collection[bytes]:
        """Rows whose cells are needed: all of them where columns are asked for; else those that
        have other cells by now than their entries were made of."""
        request = self._request
        if not entries:
            return ()
        if request.columns != ():
            return {entry.row_key: None for entry in entries}
        if not request.fresh:
            return ()
        outdated = self._store.outdated(
            [(entry.row_key, entry.refs) for entry in entries],
            self._version.definition.columns,
            request.read_from,
        )
        self._stale |= outdated.stale
        return outdated.row_keys

    def _current(self, row_keys: Collection[bytes]) -> dict[bytes, list[LocatedCell]]:
        request = self._request
        columns = None
        if request.columns is not None:
            columns = list(
                dict.fromkeys(
                    [*(self._version.definition.columns if request.fresh else ()), *request.columns]
                )
            )
        by_shard: dict[int, list[bytes]] = {}
        for row_key, shard in zip(
            row_keys, shards_of(list(row_keys), self._engine.shards), strict=True
        ):
            by_shard.setdefault(shard, []).append(row_key)
        found = self._store.current(by_shard, columns, request.read_from)
        self._stale |= found.stale
        return {
            row_key: [each for each in cells if not is_erased(each.cell.body)]
            for row_key, cells in found.cells.items()
        }

    def _as_it_is(self, cells: Sequence[LocatedCell], entry: Entry) -> Entry | None:
        """The entry as it follows from the current cells; the same where these are the cells that
        it was made of, for cells never change."""
        refs: list[int | None] = [None] * len(entry.refs)
        for each in cells:
            if (number := self._version.column_number(each.cell.column_name)) is not None:
                refs[number] = each.cell.ref_key
        if tuple(refs) == entry.refs:
            return entry
        view = self._version.views([each.cell for each in cells])
        return self._version.entry_of(next(iter(view.values()), RowView([], {})))

    def _row(self, entry: Entry, cells: Sequence[LocatedCell]) -> IndexRow:
        asked = self._request.columns
        fields = {
            name: None if (value := entry.values[position]) is None else shown(value)
            for position, name, shown in self._shown
        }
        if not cells or asked == ():
            return IndexRow(UUID(bytes=entry.row_key), fields)
        found: dict[str, Cell] = {
            each.cell.column_name: cell_from_stored(each.shard, each.cell, stale=each.stale)
            for each in sorted(cells, key=lambda each: each.cell.column_name)
            if asked is None or each.cell.column_name in asked
        }
        self._read.take(each.cell.body for each in cells if each.cell.column_name in found)
        return IndexRow(UUID(bytes=entry.row_key), fields, found)


def replace_after(select: EntrySelect) -> EntrySelect:
    """The same from its first entry on."""
    return select._replace(after=None)


def meets(entry: Entry, condition: Condition) -> bool:
    """Whether an entry meets a condition, as the SQL statement would say. A missing field meets
    none."""
    value: Any = entry.values[condition.field]
    if value is None:
        return False
    if condition.operator == "in":
        return value in condition.values
    other: Any = condition.values[0]
    return bool(_COMPARISONS[condition.operator](value, other))


_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": lambda value, other: value == other,
    "!=": lambda value, other: value != other,
    "<": lambda value, other: value < other,
    "<=": lambda value, other: value <= other,
    ">": lambda value, other: value > other,
    ">=": lambda value, other: value >= other,
}


def _current(record: IndexRecord) -> VersionRecord:
    if record.current is None:
        raise StorageUnavailable(
            f"index {record.name!r} is still being built (see cellfeed index status)"
        )
    return record.current
