"""One page of an answer: the entries, their rows as the cells say, in the order asked for."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import Any, Final
from uuid import UUID

from cellfeed.store.cells.body_codec import is_erased
from cellfeed.store.cells.cell import Cell
from cellfeed.store.cells.from_stored import cell_from_stored
from cellfeed.store.cells.sharding import shards_of
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.index_values import Encoded, Entry, EntrySelect
from cellfeed.store.engines.contract.read_bounds import Page
from cellfeed.store.engines.contract.values import LocatedCell
from cellfeed.store.indexes.conditions import meets
from cellfeed.store.indexes.cursor import cursor_text
from cellfeed.store.indexes.request import IndexPage, IndexRequest, IndexRow
from cellfeed.store.indexes.settled_logs import SettledLogs, SettledRows
from cellfeed.store.indexes.values import decoder
from cellfeed.store.indexes.version import IndexVersion, RowView

_ROWS_STEP: Final = 32
"""Rows whose cells are read at once at first: a page with large bodies is full before many are
read."""


class Query:
    """One call."""

    def __init__(
        self, engine: Engine, version: IndexVersion, request: IndexRequest, settled: SettledLogs
    ) -> None:
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
        self._settled = settled
        self._settled_rows: SettledRows | None = None
        """Of the entries that were read last; None where every row is looked at."""
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
        found = self._selected(selects)
        if len(found) == 1:
            return found[0]
        return list(
            islice(heapq.merge(*found, key=self._sort_key, reverse=request.descending), limit)
        )

    def _selected(self, selects: Sequence[EntrySelect]) -> list[list[Entry]]:
        """The entries; which of them are settled is known afterwards."""
        request, table = self._request, self._version.table
        self._settled_rows = None
        select = self._store.beside_ends
        known = None
        if select is not None and request.fresh and request.columns == ():
            # Before the entries are read (cellfeed.store.indexes.settled_logs).
            known = self._settled.known(self._version.group)
        if known is not None and select is not None:
            beside = select(table, selects)
            self._settled_rows = SettledRows(self._engine, known, beside.ends)
            return beside.entries
        found, stale = self._store.select(table, selects, request.read_from)
        self._stale |= stale
        return found

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
        if self._settled_rows is not None:
            entries = self._settled_rows.others(entries)
            if not entries:
                return ()
        self._settled.read_soon(self._version.group)
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
