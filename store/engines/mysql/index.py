"""Index tables on a MySQL server: promises X1–X6. Their writes are in ``index_writes.py``, the
reads of cells in ``index_cells.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.index_values import (
    Current,
    Encoded,
    Entry,
    EntrySelect,
    IndexTable,
    Outdated,
    RowRefs,
    RowsBelow,
    Selected,
)
from cellfeed.store.engines.contract.log_ends import LogEnds, SelectedBesideEnds
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.engines.index_sql import (
    columns_of,
    entries_of,
    literal,
    select_sql,
    selected_entries,
    walk_condition,
)
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.index_cells import MySqlIndexCells, pieces
from cellfeed.store.engines.mysql.index_writes import (
    MySqlIndexWrites,
)
from cellfeed.store.engines.mysql.statements import query, query_all
from cellfeed.store.errors import StorageUnavailable

ENDS_SHARDS_MAX: Final = 64
"""Shards whose ends are read with every query, in some 20 µs."""


class MySqlIndexes(MySqlIndexWrites):
    """:class:`cellfeed.store.engines.contract.indexes.NodeIndexStore`. ``meta`` and ``database``
    give checked names; ``shards``: of the datastore."""

    def __init__(
        self, server: MySqlServer, meta: str, database: Callable[[int], str], shards: int
    ) -> None:
        super().__init__(server, meta, database, shards)
        self._cells = MySqlIndexCells(server, meta, database, shards)
        self._ends = (
            "SELECT GROUP_CONCAT(shard, ',', leader_epoch + epoch_base, ',', log_start, ',',"
            f" next_added_id SEPARATOR ';') FROM {meta}.shard_counter"
        )

    def select(
        self, table: IndexTable, wanted: Sequence[EntrySelect], read_from: Replica = Replica.MASTER
    ) -> Selected:
        if not wanted:
            return Selected([])
        answers = self._answers(self._selects(table, wanted))
        return Selected(self._entries_of(table, wanted, answers))

    def _selects(self, table: IndexTable, wanted: Sequence[EntrySelect]) -> list[str]:
        return [
            select_sql(table, f"{self._database(each.shard)}.{table.name} WHERE", each, literal)
            for each in wanted
        ]

    def _answers(self, statements: Sequence[str]) -> list[Sequence[tuple[Any, ...]]]:
        with self._server.connection() as connection:
            return query_all(connection, statements)

    def _entries_of(
        self,
        table: IndexTable,
        wanted: Sequence[EntrySelect],
        answers: Sequence[Sequence[tuple[Any, ...]]],
    ) -> list[list[Entry]]:
        integers = [
            1 + number
            for number, width in enumerate([None] * len(table.columns) + list(table.widths[1:]))
            if width is None
        ]
        return [
            selected_entries(table, each, _with_integers(rows, integers))
            for each, rows in zip(wanted, answers, strict=True)
        ]

    def beside_ends(self, table: IndexTable, wanted: Sequence[EntrySelect]) -> SelectedBesideEnds:
        if self._shards > ENDS_SHARDS_MAX:
            return SelectedBesideEnds(self.select(table, wanted).entries, None)
        [(text,)], *answers = self._answers([self._ends, *self._selects(table, wanted)])
        return SelectedBesideEnds(self._entries_of(table, wanted, answers), LogEnds(text or ""))

    def find(
        self, table: IndexTable, places: Sequence[tuple[int, Encoded, bytes]]
    ) -> list[Entry | None]:
        found: dict[tuple[int, Encoded, bytes], Entry] = {}
        names = ", ".join(columns_of(table))
        by_shard: dict[int, list[tuple[Encoded, bytes]]] = {}
        for shard, value, row_key in places:
            by_shard.setdefault(shard, []).append((value, row_key))
        with self._server.connection() as connection:
            for shard, wanted in by_shard.items():
                for some in pieces(wanted):
                    listed = ",".join(
                        f"({literal(value)},{literal(row_key)})" for value, row_key in some
                    )
                    for row in query(
                        connection,
                        f"SELECT {names} FROM {self._database(shard)}.{table.name} WHERE (f0,"
                        f" row_key) IN ({listed})",
                    ):
                        [entry] = _entries(table, [row])
                        found[(shard, *entry.place)] = entry
        return [found.get(place) for place in places]

    def walk(
        self, table: IndexTable, shard: int, after: tuple[Encoded, bytes] | None, limit: int
    ) -> list[Entry]:
        source = (
            f"{self._database(shard)}.{table.name} WHERE {walk_condition(after)} ORDER BY f0,"
            f" row_key LIMIT {limit}"
        )
        with self._server.connection() as connection:
            return _entries(
                table, query(connection, f"SELECT {', '.join(columns_of(table))} FROM {source}")
            )

    def latest_before_or_none(
        self, rows: Sequence[RowsBelow], columns: Sequence[str]
    ) -> list[StoredCell] | None:
        return self._cells.latest_before(rows, columns)

    def cells_between_or_none(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell] | None:
        return self._cells.between(shard, columns, location, end, fence)

    def latest_before(self, rows: Sequence[RowsBelow], columns: Sequence[str]) -> list[StoredCell]:
        return self._found(
            {each.shard: each.location for each in rows}, self.latest_before_or_none(rows, columns)
        )

    def cells_between(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell]:
        return self._found(
            {shard: end}, self.cells_between_or_none(shard, columns, location, end, fence)
        )

    def _found(
        self, locations: Mapping[int, int], cells: list[StoredCell] | None
    ) -> list[StoredCell]:
        if cells is None:
            raise StorageUnavailable(
                f"{self._server}: logs (or fences) do not reach these locations there, by shard:"
                f" {dict(locations)}"
            )
        return cells

    def outdated(
        self,
        rows: Sequence[RowRefs],
        columns: Sequence[str],
        read_from: Replica = Replica.MASTER,
        shards: Sequence[int] | None = None,
    ) -> Outdated:
        return self._cells.outdated(rows, columns, shards)

    def current(
        self,
        row_keys: Mapping[int, Sequence[bytes]],
        columns: Sequence[str] | None,
        read_from: Replica = Replica.MASTER,
    ) -> Current:
        return self._cells.current(row_keys, columns)


def _entries(table: IndexTable, rows: Sequence[tuple[Any, ...]]) -> list[Entry]:
    integers = [
        1 + number
        for number, width in enumerate([None] * (1 + len(table.columns)) + list(table.widths))
        if width is None
    ]
    return entries_of(table, _with_integers(rows, integers))


def _with_integers(
    rows: Sequence[tuple[Any, ...]], positions: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Rows as the server sent them, in text, with integers at these positions."""
    found = []
    for row in rows:
        values = list(row)
        for position in positions:
            if (value := values[position]) is not None:
                values[position] = int(value)
        found.append(tuple(values))
    return found
