"""Index tables on a MySQL server: one in each shard's database. Promises X1–X6.

A write is one packet with the guard of :mod:`cellfeed.store.engines.mysql.guard`. The guard also
checks that the server holds the entries' shards, under the leader epoch that the caller believes.
Only the entries are locked, so puts continue meanwhile.

The rows of fences are read LOCK IN SHARE MODE before the guard, which is the transaction's first
consistent read. So the guard sees the values that they keep until the COMMIT, and a raise waits for
that.

Crash points: before the COMMIT nothing of it is there; after it everything. Repeating it changes
nothing (X1).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.cells.cell import ERASED_COLUMN, StoredCell
from cellfeed.store.cells.sharding import shards_of
from cellfeed.store.engines.contract.index_fences import Fences
from cellfeed.store.engines.contract.indexes import (
    UNFENCED,
    Encoded,
    Entry,
    EntrySelect,
    IndexTable,
    Outdated,
    RowRefs,
    RowsBelow,
    Selected,
)
from cellfeed.store.engines.contract.values import LocatedCell, Replica, WriteTerms
from cellfeed.store.engines.index_sql import (
    columns_of,
    entries_of,
    exact_condition,
    literal,
    select_sql,
    selected_entries,
    values_of,
    walk_condition,
)
from cellfeed.store.engines.mysql.cells import CELL, parts, stored_cell
from cellfeed.store.engines.mysql.connections import MySqlServer, query, query_all
from cellfeed.store.engines.mysql.guard import Guard
from cellfeed.store.errors import ShardMoving, StaleView, StaleWriter, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.index.before_commit", "mysql.index.after_commit", "mysql.index.listed")

"""The server's number of "Subquery returns more than 1 row"."""

_FINDS_MAX: Final = 500
"""Places, or row keys, in one statement: keeps the optimiser on the key."""

_SELECTS_MAX: Final = 50
"""Shards looked at in one statement."""

_DIGITS_MAX: Final = 100
"""Rows compared in one statement: with all columns some hundred subqueries, which the server plans
one by one."""


class MySqlIndexes:
    """:class:`cellfeed.store.engines.contract.indexes.NodeIndexStore`. ``meta`` and ``database``
    give checked names; ``shards``: of the datastore."""

    def __init__(
        self, server: MySqlServer, meta: str, database: Callable[[int], str], shards: int
    ) -> None:
        self._server = server
        self._guard = Guard(server, meta)
        self._shards = shards
        self._meta = meta
        self._database = database
        self._fence_table = f"{meta}.index_fence"
        self._fences = Fences([self])

    # --- tables -----------------------------------------------------------------------------------

    def create(self, table: IndexTable, terms: WriteTerms | None = None) -> frozenset[int]:
        types = [
            "BINARY(16) NOT NULL",
            "TINYINT NOT NULL",
            "BIGINT NOT NULL",
            *["BIGINT NULL"] * (len(table.columns) - 1),
        ]
        fields = [
            "BIGINT NULL" if width is None else f"VARBINARY({width}) NULL" for width in table.widths
        ]
        fields[0] = fields[0].replace(" NULL", " NOT NULL")
        columns = [
            f"{name} {kind}" for name, kind in zip(columns_of(table), types + fields, strict=True)
        ]
        # InnoDB puts the primary key behind every other one: (f0, f1) is (f0, f1, row_key).
        keys = [
            "PRIMARY KEY (f0, row_key)",
            *(f"KEY by_f{number} (f0, f{number})" for number in range(1, len(table.widths))),
        ]
        with self._server.connection() as connection:
            sql = (
                "SELECT TABLE_SCHEMA FROM information_schema.TABLES WHERE TABLE_NAME ="
                f" '{table.name}'"
            )
            databases = {str(database) for (database,) in query(connection, sql)}
            there = frozenset(
                shard for shard in self._served(connection) if self._database(shard) in databases
            )
        made = f"{table.name} ({', '.join(columns + keys)}) ENGINE=InnoDB"
        return there | self._on_each_shard(
            lambda database: f"CREATE TABLE IF NOT EXISTS {database}.{made}", terms, without=there
        )

    def drop(self, table: IndexTable, terms: WriteTerms | None = None) -> frozenset[int]:
        return self._on_each_shard(
            lambda database: f"DROP TABLE IF EXISTS {database}.{table.name}", terms
        )

    def _on_each_shard(
        self,
        statement: Callable[[str], str],
        terms: WriteTerms | None,
        without: Collection[int] = (),
    ) -> frozenset[int]:
        """Runs it for the shards that are served here, and gives those. Each shard's counter is
        locked meanwhile, by a connection of its own: a statement about tables ends its transaction.
        So no move gives the shard's tables other names in between: one would be made beside
        another, or be found missing."""
        done = set()
        with self._server.connection() as locking, self._server.connection() as connection:
            self._guard.settle(
                connection, terms
            )  # also where nothing is left to do: the answer says that it is done
            shards = self._served(connection)
            failpoint("mysql.index.listed")
            for shard in shards:
                if shard in without:
                    continue
                query(locking, "BEGIN")
                if query(
                    locking,
                    f"SELECT shard FROM {self._meta}.shard_counter WHERE shard = {shard} FOR"
                    " UPDATE",
                ):
                    self._guard.alter(connection, statement(self._database(shard)), terms)
                    done.add(shard)
                query(locking, "ROLLBACK")
        return frozenset(done)

    def _served(self, connection: Connection[Any]) -> list[int]:
        return [
            int(shard)
            for (shard,) in query(
                connection, f"SELECT shard FROM {self._meta}.shard_counter ORDER BY shard"
            )
        ]

    # --- fences -----------------------------------------------------------------------------------

    def fences(self, shards: Sequence[int]) -> dict[int, int]:
        return self._fences.read(shards)

    def raise_fences(self, shards: Sequence[int]) -> dict[int, int]:
        return self._fences.raise_(shards)

    def fence_numbers(self, shards: Sequence[int]) -> dict[int, int]:
        with self._server.connection() as connection:
            return self._fence_numbers(connection, shards) if self._has_fences(connection) else {}

    def set_fences(self, numbers: Mapping[int, int], terms: WriteTerms | None = None) -> None:
        with self._server.connection() as connection:
            if not self._has_fences(connection):
                columns = "shard INT UNSIGNED NOT NULL PRIMARY KEY, number BIGINT UNSIGNED NOT NULL"
                self._guard.alter(
                    connection,
                    f"CREATE TABLE IF NOT EXISTS {self._fence_table} ({columns}) ENGINE=InnoDB",
                    terms,
                )
        rows = [f"({int(shard)},{int(number)})" for shard, number in sorted(numbers.items())]
        behind = "ON DUPLICATE KEY UPDATE number = GREATEST(number, VALUES(number))"
        self._write(
            [],
            [
                f"INSERT INTO {self._fence_table} (shard, number) VALUES {','.join(part)} {behind}"
                for part in parts(rows)
            ],
            terms,
        )

    def _has_fences(self, connection: Connection[Any]) -> bool:
        return bool(query(connection, f"SHOW TABLES FROM {self._meta} LIKE 'index_fence'"))

    def _fence_numbers(self, connection: Connection[Any], shards: Sequence[int]) -> dict[int, int]:
        where = f" WHERE shard IN ({_numbers(shards)})" if len(shards) <= _FINDS_MAX else ""
        wanted = set(shards)
        found = query(connection, f"SELECT shard, number FROM {self._fence_table}{where}")
        return {int(shard): int(number) for shard, number in found if int(shard) in wanted}

    # --- writing ----------------------------------------------------------------------------------

    def apply(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
        terms: WriteTerms | None = None,
    ) -> None:
        statements = []
        behind = _merge_sql(table)
        names = ",".join(columns_of(table))
        for shard, each in sorted(entries.items()):
            # In one order, so that two writers of the same entries do not wait for each other.
            rows = [
                f"({','.join(map(literal, values_of(entry)))})"
                for entry in sorted(each, key=_place)
            ]
            statements += [
                f"INSERT INTO {self._database(shard)}.{table.name} ({names}) VALUES"
                f" {','.join(part)} ON DUPLICATE KEY UPDATE {behind}"
                for part in parts(rows)
            ]
        self._write(sorted(entries), statements, terms, fences)

    def remove(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
        terms: WriteTerms | None = None,
    ) -> None:
        statements = [
            f"DELETE FROM {self._database(shard)}.{table.name} WHERE"
            f" {exact_condition(table, entry, '<=>')}"
            for shard, each in sorted(entries.items())
            for entry in sorted(each, key=_place)
        ]
        self._write(sorted(entries), statements, terms, fences)

    def _write(
        self,
        shards: Sequence[int],
        statements: Sequence[str],
        terms: WriteTerms | None,
        fences: Mapping[int, int] = UNFENCED,
    ) -> None:
        """``shards``: whose entries they are; none for what is not of a shard."""
        locks = (
            [
                f"SELECT number FROM {self._fence_table} WHERE shard IN"
                f" ({_numbers(sorted(fences))}) LOCK IN SHARE MODE"
            ]
            if fences
            else []
        )
        failpoint("mysql.index.before_commit")
        self._guard.commit(
            statements,
            terms,
            locks=locks,
            more=self._conditions(shards, terms, fences),
            explain_more=lambda connection: self._explain(connection, shards, terms, fences),
        )
        failpoint("mysql.index.after_commit")

    def _conditions(
        self, shards: Sequence[int], terms: WriteTerms | None, fences: Mapping[int, int]
    ) -> list[str]:
        counters = f"{self._meta}.shard_counter"
        found = []
        if shards:
            under = f" AND leader_epoch = {terms.leader_epoch}" if terms is not None else ""
            found.append(
                f"(SELECT COUNT(*) FROM {counters} WHERE shard IN ({_numbers(shards)}){under}) ="
                f" {len(shards)}"
            )
        if fences:
            same = " OR ".join(
                f"shard = {shard} AND number = {number}" for shard, number in sorted(fences.items())
            )
            found.append(f"(SELECT COUNT(*) FROM {self._fence_table} WHERE {same}) = {len(fences)}")
        return found

    def _explain(
        self,
        connection: Connection[Any],
        shards: Sequence[int],
        terms: WriteTerms | None,
        fences: Mapping[int, int],
    ) -> None:
        """Raises what these conditions found; returns where that has passed."""
        some = f" WHERE shard IN ({_numbers(shards)})" if shards else ""
        found = {
            int(shard): int(epoch)
            for shard, epoch in query(
                connection, f"SELECT shard, leader_epoch FROM {self._meta}.shard_counter{some}"
            )
        }
        if missing := set(shards) - set(found):
            raise ShardMoving(
                f"{self._server}: nothing written: it does not hold shard {min(missing)}"
            )
        for shard in shards:
            if terms is not None and found[shard] != terms.leader_epoch:
                raise StaleWriter(
                    f"{self._server}: nothing written: shard {shard} is in leader epoch"
                    f" {found[shard]}, the entries came with {terms.leader_epoch}"
                )
        if fences:
            numbers = self._fence_numbers(connection, list(fences))
            for shard, number in fences.items():
                if numbers.get(shard) != number:
                    raise StaleView(
                        f"{self._server}: nothing written: cells of shard {shard} were trimmed or"
                        " erased since the ones were read for the entries"
                    )

    # --- reading ----------------------------------------------------------------------------------

    def select(
        self, table: IndexTable, wanted: Sequence[EntrySelect], read_from: Replica = Replica.MASTER
    ) -> Selected:
        if not wanted:
            return Selected([])
        statements = [
            select_sql(table, f"{self._database(each.shard)}.{table.name} WHERE", each, literal)
            for each in wanted
        ]
        with self._server.connection() as connection:
            answers = query_all(connection, statements)
        integers = [
            1 + number
            for number, width in enumerate([None] * len(table.columns) + list(table.widths[1:]))
            if width is None
        ]
        return Selected(
            [
                selected_entries(table, each, _with_integers(rows, integers))
                for each, rows in zip(wanted, answers, strict=True)
            ]
        )

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
                for some in _pieces(wanted):
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
        """None when this node does not have a shard's log, or its fence, that far."""
        named = (*columns, ERASED_COLUMN)
        selects = [
            self._latest(
                shard,
                some,
                named,
                f" AND (added_id < {location} OR column_name = {literal(ERASED_COLUMN.encode())})",
            )
            for shard, row_keys, location, _ in rows
            for some in _pieces(row_keys)
        ]
        return (
            self._cells_once_there(
                rows, [" UNION ALL ".join(some) for some in _pieces(selects, _SELECTS_MAX)]
            )
            if selects
            else []
        )

    def cells_between_or_none(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell] | None:
        """The same."""
        named = ",".join(literal(column.encode()) for column in columns)
        where = (
            f"added_id >= {location} AND added_id < {end} AND column_name IN ({named}) ORDER BY"
            " added_id"
        )
        statement = f"SELECT {shard}, {CELL} FROM {self._database(shard)}.cell WHERE {where}"
        return self._cells_once_there([RowsBelow(shard, (), end, fence)], [statement])

    def _cells_once_there(
        self, rows: Sequence[RowsBelow], statements: Sequence[str]
    ) -> list[StoredCell] | None:
        """The cells that the statements give, where all shards' logs and fences have come as far as
        ``rows`` say."""
        # One number for all of it, before the cells: what is counted there is there, or gone, when
        # these are read.
        there = [f"(shard = {each.shard} AND next_added_id >= {each.location})" for each in rows]
        fenced = [
            f"(shard = {each.shard} AND number >= {each.fence})" for each in rows if each.fence
        ]
        counts = [f"(SELECT COUNT(*) FROM {self._meta}.shard_counter WHERE {' OR '.join(there)})"]
        counts += (
            [f"(SELECT COUNT(*) FROM {self._fence_table} WHERE {' OR '.join(fenced)})"]
            if fenced
            else []
        )
        with self._server.connection() as connection:
            [(counted,)], first = query_all(
                connection, [f"SELECT {' + '.join(counts)}", statements[0]]
            )
            if int(counted) < len(there) + len(fenced):
                return None
            return [
                stored_cell(int(row[0]), row[1:])
                for answer in (
                    first,
                    *(query(connection, statement) for statement in statements[1:]),
                )
                for row in answer
            ]

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
                f"{self._server}: logs (or fences) do not come to these locations there, by shard:"
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
        names = [literal(column.encode()) for column in columns]
        # A digit for each row. MAX of one row and column is a look at the end of a range of the
        # unique key, done before the statement runs.
        digits = [
            " AND ".join(
                f"{literal(ref)} <=> (SELECT MAX(ref_key) FROM {self._database(shard)}.cell WHERE"
                f" row_key = {literal(row_key)} AND column_name = {name})"
                for name, ref in zip(names, refs, strict=True)
            )
            for (row_key, refs), shard in zip(
                rows,
                shards or shards_of([row_key for row_key, _ in rows], self._shards),
                strict=True,
            )
        ]
        statements = [f"SELECT CONCAT({','.join(some)})" for some in _pieces(digits, _DIGITS_MAX)]
        with self._server.connection() as connection:
            told = (
                "".join(row[0] for answer in query_all(connection, statements) for row in answer)
                if statements
                else ""
            )
        return Outdated(
            {row_key for (row_key, _), same in zip(rows, told, strict=True) if same == "0"}
        )

    def current(
        self,
        row_keys: Mapping[int, Sequence[bytes]],
        columns: Sequence[str] | None,
        read_from: Replica = Replica.MASTER,
    ) -> dict[bytes, list[LocatedCell]]:
        found: dict[bytes, list[LocatedCell]] = {}
        selects = [
            self._latest(shard, some, columns, "")
            for shard, keys in row_keys.items()
            for some in _pieces(keys)
        ]
        with self._server.connection() as connection:
            for row in query(connection, " UNION ALL ".join(selects)) if selects else ():
                cell = stored_cell(int(row[0]), row[1:])
                found.setdefault(cell.row_key, []).append(LocatedCell(int(row[0]), cell))
        return found

    def _latest(
        self, shard: int, row_keys: Sequence[bytes], columns: Sequence[str] | None, condition: str
    ) -> str:
        """Of each row and column the cell with the highest ref key."""
        cell_table = f"{self._database(shard)}.cell"
        highest = (
            f"SELECT row_key, column_name, MAX(ref_key) AS ref_key FROM {cell_table} WHERE"
            f" {_keys_of(row_keys, columns)}{condition} GROUP BY row_key, column_name"
        )
        return (
            f"SELECT {shard}, {CELL} FROM ({highest}) AS highest JOIN {cell_table} USING (row_key,"
            " column_name, ref_key)"
        )


def _numbers(shards: Sequence[int]) -> str:
    return ",".join(map(str, shards))


def _merge_sql(table: IndexTable) -> str:
    """MySQL makes the assignments one after the other, each seeing those before: a register's ref
    key comes last of it."""
    sets = []
    for number, fields in enumerate(table.columns):
        ref = f"r{number}"
        newer = f"VALUES({ref}) IS NOT NULL AND ({ref} IS NULL OR VALUES({ref}) > {ref})"
        registers = [
            *(["live"] if number == 0 else []),
            *(f"f{field}" for field in fields if field),
            ref,
        ]
        sets += [f"{name} = IF({newer}, VALUES({name}), {name})" for name in registers]
    return ", ".join(sets)


def _keys_of(row_keys: Sequence[bytes], columns: Sequence[str] | None) -> str:
    named = (
        ""
        if columns is None
        else f" AND column_name IN ({','.join(literal(column.encode()) for column in columns)})"
    )
    return f"row_key IN ({','.join(map(literal, row_keys))}){named}"


def _place(entry: Entry) -> Any:
    return entry.place


def _pieces(items: Sequence[Any], size: int = _FINDS_MAX) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


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
