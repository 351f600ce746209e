"""The statements of one put on a MySQL master: two round trips, one transaction over all shards
that it touches.

    1. BEGIN; lock the shards' counter rows, in ascending order (no two writers can wait for each
       other), and read them: the first read of the transaction, so everything after it sees what
       earlier holders of the locks committed.
    2. one INSERT per shard, one UPDATE of the counters, COMMIT, all in one packet; on MariaDB with
       one answer for all but the COMMIT. Of many cells the INSERTs are sent piece by piece without
       waiting, so that the server runs one piece while the bodies of the next are encoded; the
       COMMIT is sent when all of them have been answered well.

The unique key on the triple finds duplicates; only when it complains is the transaction rolled back
and run again with a look-up of each cell. Values are X'..' literals made here from bytes and
numbers (five times faster than escaping); no text from outside is ever part of a statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from random import uniform
from typing import Any, Final, NamedTuple

import pymysql
from crc32c import crc32c
from pymysql.connections import Connection
from pymysql.constants import ER

from cellfeed.store.cells.cell import ERASED_COLUMN, NewCell, Outcome, PutResult, Triple
from cellfeed.store.cells.checksum import pack_key
from cellfeed.store.engines.contract.repeated_cells import (
    StoredTriple,
    not_compared,
    outcomes_before,
    repeated,
    without_erased,
)
from cellfeed.store.engines.contract.values import WriteTerms
from cellfeed.store.engines.mysql.cells import CELL, INSERT_COLUMNS, parts, sql_moment, stored_cell
from cellfeed.store.engines.mysql.connections import (
    MySqlServer,
    Pipeline,
    commit_script,
    query,
    query_all,
)
from cellfeed.store.engines.mysql.errors import commit_failed, error_code, worth_another_try
from cellfeed.store.engines.mysql.guard import Guard
from cellfeed.store.errors import DataDamaged, ShardMoving, StaleWriter, StorageUnavailable
from cellfeed.store.failpoints import declare, failpoint

declare("mysql.put.before_insert", "mysql.put.before_commit", "mysql.put.after_commit")

ATTEMPTS_MAX: Final = 3
PAUSE_S: Final = 0.01
"""A transaction that gave way to another one is run again, after a random pause of at most so many
seconds a time: longer than the other takes to commit."""

_PIECE_CELLS: Final = 1_000
"""New cells from which on what is ready is sent: some ten milliseconds of the server's time,
against a fraction of one for another packet."""

_LOOK_UP_MAX: Final = 500
"""Triples per look-up statement: keeps the optimiser on the unique key."""


Encode = Callable[[Sequence[NewCell]], Sequence[bytes]]
"""Makes the stored bodies of cells."""


class Encoding(NamedTuple):
    """How a put's bodies are encoded, and with which dictionaries, by their ids: these must be in
    use still when the put holds its locks."""

    encode: Encode
    dictionary_ids: frozenset[int]


class DictionaryRetired(Exception):
    """One of the put's dictionaries is not in use any more. Nothing was written."""


class _New(NamedTuple):
    """A cell to be written, and its id."""

    cell: NewCell
    added_id: int


@dataclass
class Counter:
    """A locked counter: its next added_id as it was, and as this transaction moves it."""

    first: int
    next_added_id: int
    created_at_us: int
    erasures: int


class PutStatements:
    """Puts to one server. ``meta`` is the meta database; ``shard_database`` gives a shard's
    database; both are checked names."""

    def __init__(
        self,
        server: MySqlServer,
        meta: str,
        shard_database: Callable[[int], str],
        clock_us: Callable[[], int] | None,
    ) -> None:
        # The master's own clock, unless a test gives another.
        self._clock_us = clock_us
        self._server = server
        self.guard = Guard(server, meta)
        self._meta = meta
        self._shard_database = shard_database
        self._columns_seen: set[str] = set()
        self._columns_epoch = -1

    def run(
        self,
        cells: Sequence[NewCell],
        shards: Sequence[int],
        encoding: Callable[[bool], Encoding],
        terms: WriteTerms | None = None,
    ) -> list[PutResult]:
        """Outcomes in the order of ``cells``. ``encoding`` is called before each transaction, and
        may ask the server; with True where a dictionary that it chose was retired since. Raises
        StorageUnavailable (nothing written), OutcomeUnknown, or StaleWriter (nothing written) when
        the shards have another leader epoch than that of the terms given."""
        if terms is not None and terms.leader_epoch != self._columns_epoch:
            # Between two turns as master the server may have been cloned: what it was told before
            # may be gone.
            self._columns_seen.clear()
            self._columns_epoch = terms.leader_epoch
        new_columns = sorted({cell.column_name for cell in cells} - self._columns_seen)
        retired = False
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                results = self._run_once(cells, shards, encoding(retired), terms, new_columns)
                break
            except DictionaryRetired as error:
                retired = True
                if attempt == ATTEMPTS_MAX:
                    raise StorageUnavailable(
                        f"{self._server}: nothing written: its dictionaries are retired one after"
                        " the other; try again"
                    ) from error
            except StorageUnavailable as error:
                if attempt == ATTEMPTS_MAX or not worth_another_try(error):
                    raise
                time.sleep(uniform(0, PAUSE_S * attempt))
        self._columns_seen.update(new_columns)
        failpoint("mysql.put.after_commit")
        return results

    def _run_once(
        self,
        cells: Sequence[NewCell],
        shards: Sequence[int],
        encoding: Encoding,
        terms: WriteTerms | None,
        new_columns: Sequence[str],
    ) -> list[PutResult]:
        with self._server.connection() as connection:
            results = self._transaction(
                connection, cells, shards, encoding, terms, new_columns, look_up=False
            )
            if results is None:
                results = self._transaction(
                    connection, cells, shards, encoding, terms, new_columns, look_up=True
                )
        if results is None:
            raise StorageUnavailable(
                f"{self._server}: nothing written: a triple is stored in another shard than its row"
                " key's"
            )
        return results

    def _transaction(
        self,
        connection: Connection[Any],
        cells: Sequence[NewCell],
        shards: Sequence[int],
        encoding: Encoding,
        terms: WriteTerms | None,
        new_columns: Sequence[str],
        *,
        look_up: bool,
    ) -> list[PutResult] | None:
        """None when the unique key complained and everything was rolled back."""
        counters = self.lock_counters(
            connection, sorted(set(shards)), terms, encoding.dictionary_ids
        )
        known: Sequence[PutResult | int | None] = (
            self._known(connection, cells, shards) if look_up else [None] * len(cells)
        )
        if any(counter.erasures for counter in counters.values()):
            known = without_erased(
                cells, shards, known, self._erased(connection, cells, shards, counters)
            )
        failpoint("mysql.put.before_insert")
        results, new = _give_ids(cells, shards, counters, known)
        if not new:
            query(connection, "ROLLBACK")
            return results
        last = [self._update(counters)]
        if new_columns:
            names = ",".join(f"(X'{name.encode().hex()}')" for name in new_columns)
            last.append(
                f"INSERT INTO {self._meta}.column_seen VALUES {names} ON DUPLICATE KEY UPDATE"
                " column_name = column_seen.column_name"
            )
        after = self.guard.after_commit(terms)
        written = self._write(connection, new, counters, encoding.encode, last, after)
        return results if written else None

    def _write(
        self,
        connection: Connection[Any],
        new: Mapping[int, Sequence[_New]],
        counters: Mapping[int, Counter],
        encode: Encode,
        last: Sequence[str],
        after_commit: Sequence[str],
    ) -> bool:
        """Inserts the cells, runs the last statements and commits. False when the unique key
        complained and everything was rolled back."""
        pieces = _pieces(new)
        try:
            if len(pieces) == 1:
                statements = [*self._inserts(new, counters, encode), *last]
                failpoint("mysql.put.before_commit")
                commit_script(connection, statements, after_commit, silent=True)
            else:
                pipeline = Pipeline(connection)
                for piece in pieces:
                    pipeline.send(self._inserts(piece, counters, encode))
                pipeline.send(last)
                pipeline.finish()
                failpoint("mysql.put.before_commit")
                commit_script(connection, [], after_commit)
        except (pymysql.err.MySQLError, OSError) as error:
            if error_code(error) != ER.DUP_ENTRY:
                raise commit_failed(self._server, error) from error
            query(connection, "ROLLBACK")
            return False
        return True

    def _now_us(self) -> str:
        return (
            str(self._clock_us())
            if self._clock_us
            else "CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)"
        )

    def lock_counters(
        self,
        connection: Connection[Any],
        shards: Sequence[int],
        terms: WriteTerms | None,
        dictionary_ids: Collection[int] = (),
    ) -> dict[int, Counter]:
        """Begins the transaction, and locks and reads the counters of shards (ascending), behind
        the guard. ``dictionary_ids``: of dictionaries that must be in use. Raises
        StorageUnavailable, StaleWriter (nothing written, the transaction has ended) where the
        server does not hold them, or the guard refuses the write; DictionaryRetired, likewise."""
        for _ in range(ATTEMPTS_MAX):
            counters = self._locked(connection, shards, terms, dictionary_ids)
            if counters is not None:
                return counters
            query(connection, "ROLLBACK")
            self.guard.explain(connection, terms)
        raise StorageUnavailable(
            f"{self._server}: nothing written: its role or its settings change all the time; try"
            " again"
        )

    def _locked(
        self,
        connection: Connection[Any],
        shards: Sequence[int],
        terms: WriteTerms | None,
        dictionary_ids: Collection[int],
    ) -> dict[int, Counter] | None:
        """None where the guard does not hold."""
        numbers = ",".join(map(str, shards))
        moment_us = (
            "GREATEST(CAST(UNIX_TIMESTAMP(last_created_at) * 1000000 AS UNSIGNED),"
            f" {self._now_us()})"
        )
        # The guard is part of each row, for beside an aggregate MariaDB 10.11 gives a variable as
        # 0.
        counter = (
            f"shard, next_added_id, leader_epoch, IF({self.guard.condition(terms)}, 1, 0),"
            f" {moment_us}, erasures"
        )
        locked = (
            f"SELECT * FROM {self._meta}.shard_counter WHERE shard IN ({numbers}) ORDER BY shard"
            f" LIMIT {len(shards)} FOR UPDATE"
        )
        # One value for all counters: the driver takes many times as long over a row as this over
        # its part of a text.
        statements = [
            "BEGIN",
            (
                f"SELECT GROUP_CONCAT(CONCAT_WS(',', {counter}) SEPARATOR ';') FROM ({locked})"
                " AS locked"
            ),
        ]
        if dictionary_ids:
            # Behind the locks, so it sees each turn that was gone when the last writer let go.
            ids = ",".join(map(str, sorted(dictionary_ids)))
            statements.append(
                f"SELECT COUNT(DISTINCT dictionary_id) FROM {self._meta}.dictionary_turn WHERE"
                f" dictionary_id IN ({ids})"
            )
        _, [(joined,)], *in_use = query_all(connection, statements)
        if in_use and int(in_use[0][0][0]) < len(dictionary_ids):
            query(connection, "ROLLBACK")
            raise DictionaryRetired
        counters = {}
        for row in joined.split(";") if joined else ():
            shard, first, epoch, guarded, created_at_us, erasures = row.split(",")
            if not int(guarded):
                return None
            if terms is not None and int(epoch) != terms.leader_epoch:
                query(connection, "ROLLBACK")
                told = (
                    f"shard {int(shard)} is in leader epoch {int(epoch)}, the write came with"
                    f" {terms.leader_epoch}"
                )
                raise StaleWriter(f"{self._server}: nothing written: {told}")
            counters[int(shard)] = Counter(
                int(first), int(first), int(created_at_us), int(erasures)
            )
        if missing := set(shards) - set(counters):
            query(connection, "ROLLBACK")
            raise ShardMoving(
                f"{self._server}: nothing written: it does not hold shard {min(missing)}"
            )
        return counters

    def _inserts(
        self, new: Mapping[int, Sequence[_New]], counters: Mapping[int, Counter], encode: Encode
    ) -> list[str]:
        bodies = iter(encode([each.cell for cells in new.values() for each in cells]))
        moments = _moments(counters)
        statements = []
        for shard, cells in new.items():
            at_us = counters[shard].created_at_us
            created_at = moments[at_us]
            values = []
            for (row_key, column, ref_key, _), added_id in cells:
                name, body = column.encode(), next(bodies)
                crc = crc32c(
                    pack_key(added_id, ref_key, at_us, row_key) + name + body
                )  # cell_checksum, written out
                values.append(
                    f"({added_id},X'{row_key.hex()}',X'{name.hex()}',{ref_key},X'{body.hex()}',{created_at},{crc})"
                )
            statements += [
                f"INSERT INTO {self._shard_database(shard)}.cell {INSERT_COLUMNS} VALUES"
                f" {','.join(part)}"
                for part in parts(values)
            ]
        return statements

    def _update(self, counters: Mapping[int, Counter]) -> str:
        moved = {
            shard: counter
            for shard, counter in counters.items()
            if counter.next_added_id > counter.first
        }
        ids = "".join(
            f" WHEN {shard} THEN {counter.next_added_id}" for shard, counter in moved.items()
        )
        moment_of = _moments(moved)
        times = "".join(
            f" WHEN {shard} THEN {moment_of[counter.created_at_us]}"
            for shard, counter in moved.items()
        )
        return (
            f"UPDATE {self._meta}.shard_counter SET next_added_id = CASE shard{ids} END,"
            f" last_created_at = CASE shard{times} END WHERE shard IN ({','.join(map(str, moved))})"
        )

    def _erased(
        self,
        connection: Connection[Any],
        cells: Sequence[NewCell],
        shards: Sequence[int],
        counters: Mapping[int, Counter],
    ) -> set[bytes]:
        """The rows among the cells' that were erased: asked only of shards that have seen an
        erasure, which their locked counters tell."""
        rows: dict[int, set[bytes]] = {}
        for cell, shard in zip(cells, shards, strict=True):
            if counters[shard].erasures:
                rows.setdefault(shard, set()).add(cell.row_key)
        selects = []
        for shard, keys in rows.items():
            named = ",".join(
                sql_triple(Triple(row_key, ERASED_COLUMN, 0)) for row_key in sorted(keys)
            )
            selects.append(
                f"SELECT row_key FROM {self._shard_database(shard)}.cell WHERE (row_key,"
                f" column_name, ref_key) IN ({named})"
            )
        found: set[bytes] = set()
        for start in range(0, len(selects), _LOOK_UP_MAX):
            found.update(
                row_key
                for (row_key,) in query(
                    connection, " UNION ALL ".join(selects[start : start + _LOOK_UP_MAX])
                )
            )
        return found

    def _known(
        self, connection: Connection[Any], cells: Sequence[NewCell], shards: Sequence[int]
    ) -> list[PutResult | int | None]:
        stored: dict[Triple, StoredTriple] = {}
        damaged: dict[Triple, PutResult] = {}
        by_shard: dict[int, list[Triple]] = {}
        for cell, shard in zip(cells, shards, strict=True):
            by_shard.setdefault(shard, []).append(cell.triple)
        for shard, triples in by_shard.items():
            for start in range(0, len(triples), _LOOK_UP_MAX):
                wanted = ",".join(
                    sql_triple(triple) for triple in triples[start : start + _LOOK_UP_MAX]
                )
                sql = (
                    f"SELECT {CELL} FROM {self._shard_database(shard)}.cell WHERE (row_key,"
                    f" column_name, ref_key) IN ({wanted})"
                )
                for row in query(connection, sql):
                    triple = Triple(row[1], row[2].decode(), int(row[3]))
                    try:
                        stored[triple] = StoredTriple(
                            shard, int(row[0]), stored_cell(shard, row).body
                        )
                    except DataDamaged as error:
                        # it fails the puts of this cell, not those of the others in the group
                        damaged[triple] = not_compared(triple, shard, error)
        return [
            damaged.get(cell.triple, before)
            for cell, before in zip(cells, outcomes_before(cells, stored), strict=True)
        ]


def _give_ids(
    cells: Sequence[NewCell],
    shards: Sequence[int],
    counters: Mapping[int, Counter],
    known: Sequence[PutResult | int | None],
) -> tuple[list[PutResult], dict[int, list[_New]]]:
    """What each cell comes to, and by shard those that are to be written, in the order of their
    ids. Moves the counters."""
    results: list[PutResult] = []
    new: dict[int, list[_New]] = {}
    for cell, shard, before in zip(cells, shards, known, strict=True):
        if isinstance(before, PutResult):
            results.append(before)
        elif before is not None:
            results.append(repeated(cells[before], results[before], cell))
        else:
            counter = counters[shard]
            results.append(PutResult(Outcome.STORED, shard, counter.next_added_id))
            new.setdefault(shard, []).append(_New(cell, counter.next_added_id))
            counter.next_added_id += 1
    return results, new


def _pieces(new: Mapping[int, Sequence[_New]]) -> list[dict[int, Sequence[_New]]]:
    """The shards' cells in pieces of ``_PIECE_CELLS``, or up to a shard's more."""
    pieces: list[dict[int, Sequence[_New]]] = [{}]
    count = 0
    for shard, cells in new.items():
        if count >= _PIECE_CELLS:
            pieces.append({})
            count = 0
        pieces[-1][shard] = cells
        count += len(cells)
    return pieces


def _moments(counters: Mapping[int, Counter]) -> dict[int, str]:
    """The literal of each moment: mostly one for all shards."""
    return {
        at_us: sql_moment(at_us)
        for at_us in {counter.created_at_us for counter in counters.values()}
    }


def sql_triple(triple: Triple) -> str:
    """The SQL literal of a triple."""
    return f"(X'{triple.row_key.hex()}',X'{triple.column_name.encode().hex()}',{triple.ref_key})"
