"""Readers of a fault run that go by key: ``get_cells``, ``get_rows``, ``get_cells_latest``, the
log, and an index, on the master and on minions.

The cells that they are shown go into the one ledger (:mod:`tests.faults.shown`). I1: a cell that
was acknowledged before the question is never told to be absent: a reader may be refused, and a
stale answer may be refused, but "not there" is a violation. An exception that no reader may see is
one, too.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, Unpack
from uuid import UUID

from cellfeed.store.api import ReadFrom, ShardCells
from cellfeed.store.cells.cell import Cell
from cellfeed.store.errors import Unavailable, WrongServerSettings
from cellfeed.store.indexes.request import Filter, IndexPage, QueryOptions
from tests.faults.invariants import Violations
from tests.faults.ledger import Ledger, Put
from tests.faults.shown import Shown
from tests.faults.workload import seen_cell

ALLOWED_ERRORS: Final = (Unavailable, WrongServerSettings)
"""The errors that a reader may get while a fault lasts: nothing is shown then. A server with
dangerous settings is refused, also for reading."""

PATHS: Final = (
    "get_cells",
    "get_cells from a minion",
    "get_rows",
    "get_rows from a minion",
    "get_cells_latest",
    "get_cells_for_shard",
)
INDEX_PATH: Final = "query_index"

_LOOK_EVERY_S: Final = 0.05
_NEW: Final = 20
"""Puts that count as new: half of the keys asked for are among them."""

_KEYS: Final = 4
_TOLD_MAX: Final = 50
_INDEX_WAIT_S: Final = 2.0


class Readable(Protocol):
    """The calls of both :class:`cellfeed.store.datastore.Datastore` and
    :class:`cellfeed.store.http.client.Client`."""

    def get_cells(
        self, triples: Sequence[tuple[UUID | str, str, int]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]: ...
    def get_rows(
        self, row_keys: Sequence[UUID | str], *, read_from: ReadFrom = "master"
    ) -> list[dict[str, Cell]]: ...
    def get_cells_latest(
        self, keys: Sequence[tuple[UUID | str, str]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]: ...
    def get_cells_for_shard(
        self, shard_no: int, location: int = 0, limit: int = 1000
    ) -> ShardCells: ...
    def query_index(
        self, name: str, shard_value: Any, where: Sequence[Filter] = (), **how: Unpack[QueryOptions]
    ) -> IndexPage: ...


class IndexQuestion(NamedTuple):
    """How a put's row is looked for in an index that has ``fields``: by a shard value and
    filters."""

    name: str
    shard_value: Any
    where: list[Filter]
    fields: tuple[str, ...]


class KeyReader:
    """One process' reads by key. ``question``: how the row of a put is asked for in an index.
    ``places_count``: False where an added_id beyond the watermark may change (asynchronous
    replication); then an acknowledged cell may be absent for a while, too."""

    def __init__(
        self,
        name: str,
        store: Readable,
        ledger: Ledger,
        shown: Shown,
        chance: random.Random,
        *,
        question: Callable[[Put], IndexQuestion] | None = None,
        places_count: bool = True,
    ) -> None:
        self.name, self._store, self._ledger, self._shown, self._chance = (
            name,
            store,
            ledger,
            shown,
            chance,
        )
        self._question, self._places_count = question, places_count
        self.answered = self.refused = 0
        self.absent: list[str] = []
        self.false_rows: list[str] = []
        self.errors: list[str] = []

    def look(self) -> None:
        """Asks once on every path for some cells that were put."""
        self.look_for(self._chosen())

    def look_for(self, puts: Sequence[Put]) -> None:
        """Asks on every path for the cells of these puts."""
        if not puts:
            return
        looks: list[Callable[[Sequence[Put]], None]] = [
            self._by_triple,
            self._of_minion,
            self._rows,
            self._rows_of_minion,
            self._latest,
            self._log,
        ]
        if self._question is not None:
            looks.append(self._index)
        for look in looks:
            try:
                look(puts)
                self.answered += 1
            except ALLOWED_ERRORS:
                self.refused += 1
            except Exception as error:
                _note(self.errors, f"{self.name}: {look.__name__.strip('_')} raised {error!r}")

    def violations(self) -> Violations:
        return {"I1": list(self.absent), "I18": list(self.false_rows), "errors": list(self.errors)}

    def _chosen(self) -> list[Put]:
        puts, count = self._ledger.puts, len(self._ledger.puts)
        if not count:
            return []
        numbers = {self._chance.randrange(max(0, count - _NEW), count) for _ in range(_KEYS)} | {
            self._chance.randrange(count) for _ in range(_KEYS)
        }
        return [puts[number] for number in sorted(numbers)]

    # --- paths ------------------------------------------------------------------------------------

    def _by_triple(self, puts: Sequence[Put]) -> None:
        self._cells("get_cells", puts, lambda: self._store.get_cells([put.triple for put in puts]))

    def _of_minion(self, puts: Sequence[Put]) -> None:
        self._cells(
            "get_cells from a minion",
            puts,
            lambda: self._store.get_cells([put.triple for put in puts], read_from="minion"),
        )

    def _latest(self, puts: Sequence[Put]) -> None:
        self._cells(
            "get_cells_latest",
            puts,
            lambda: self._store.get_cells_latest([(put.row_key, put.column_name) for put in puts]),
        )

    def _rows(self, puts: Sequence[Put]) -> None:
        self._rows_from(
            "get_rows", puts, lambda: self._store.get_rows([put.row_key for put in puts])
        )

    def _rows_of_minion(self, puts: Sequence[Put]) -> None:
        self._rows_from(
            "get_rows from a minion",
            puts,
            lambda: self._store.get_rows([put.row_key for put in puts], read_from="minion"),
        )

    def _log(self, puts: Sequence[Put]) -> None:
        placed = [put for put in puts if put.shard is not None and put.added_id is not None]
        for put in placed[-1:]:
            assert put.shard is not None
            assert put.added_id is not None
            for cell in self._store.get_cells_for_shard(put.shard, put.added_id, 3).cells:
                self._shown.see(
                    "get_cells_for_shard", cell.shard, seen_cell(cell), place_counts=True
                )

    def _index(self, puts: Sequence[Put]) -> None:
        assert self._question is not None
        put = puts[-1]
        question = self._question(put)
        how: dict[str, Any] = {"columns": [put.column_name]}
        wanted = _is_there(put) and self._places_count
        if wanted:
            how |= {"wait_for": (put.shard, put.added_id), "wait_s": _INDEX_WAIT_S}
        page = self._store.query_index(question.name, question.shard_value, question.where, **how)
        for row in page.rows:
            of_row = self._ledger.by_row.get(row.row_key)
            body = json.loads(of_row.body_json) if of_row is not None else {}
            if {field: row.fields.get(field) for field in question.fields} != {
                field: body.get(field) for field in question.fields
            }:
                _note(
                    self.false_rows,
                    f"{self.name}: {question.name} showed {row.row_key} as {row.fields}, put was"
                    f" {body}",
                )
            for cell in row.cells.values():
                self._see(INDEX_PATH, cell)
        if (
            wanted
            and page.cursor is None
            and not page.stale
            and put.row_key not in {row.row_key for row in page.rows}
        ):
            _note(
                self.false_rows,
                f"{self.name}: {question.name} has come past {put.shard}/{put.added_id} and lacks"
                f" its row {put.row_key}",
            )

    # --- what is shown ----------------------------------------------------------------------------

    def _cells(self, path: str, puts: Sequence[Put], ask: Callable[[], list[Cell | None]]) -> None:
        there = [_is_there(put) for put in puts]
        for put, was_there, cell in zip(puts, there, ask(), strict=True):
            if cell is not None:
                self._see(path, cell)
                if (cell.row_key, cell.column_name, cell.ref_key) != put.triple:
                    _note(
                        self.errors,
                        f"{self.name}: {path} was asked for {put.triple} and showed {cell.row_key}"
                        f" {cell.column_name} {cell.ref_key}",
                    )
            elif was_there:
                self._absent(path, put)

    def _rows_from(
        self, path: str, puts: Sequence[Put], ask: Callable[[], list[dict[str, Cell]]]
    ) -> None:
        there = [_is_there(put) for put in puts]
        for put, was_there, row in zip(puts, there, ask(), strict=True):
            for column, cell in row.items():
                self._see(path, cell)
                if (cell.row_key, cell.column_name) != (put.row_key, column):
                    _note(
                        self.errors,
                        f"{self.name}: {path} was asked for {put.row_key} and showed {cell.row_key}"
                        f" {cell.column_name} as {column}",
                    )
            if was_there and put.column_name not in row:
                self._absent(path, put)

    def _see(self, path: str, cell: Cell) -> None:
        self._shown.see(path, cell.shard, seen_cell(cell), place_counts=self._places_count)

    def _absent(self, path: str, put: Put) -> None:
        if self._places_count:
            _note(
                self.absent,
                f"{self.name}: {put.triple} was acknowledged ({put.outcome} at"
                f" {put.shard}/{put.added_id}), and {path} told that it is not there",
            )


@contextmanager
def reading(*readers: KeyReader) -> Iterator[None]:
    """The readers look again and again, each in a thread of its own, until the context ends."""
    stop = threading.Event()

    def run(reader: KeyReader) -> None:
        while not stop.wait(_LOOK_EVERY_S):
            reader.look()

    threads = [threading.Thread(target=run, args=(reader,), name=reader.name) for reader in readers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def look_at_all(reader: KeyReader, piece: int = 500) -> None:
    """Asks for every put once, after the fault."""
    puts = list(reader._ledger.puts)
    for start in range(0, len(puts), piece):
        reader.look_for(puts[start : start + piece])


def _is_there(put: Put) -> bool:
    """Whether it can be read: a put that was answered ``buffered`` cannot yet."""
    return put.outcome in ("stored", "exists")


def _note(into: list[str], told: str) -> None:
    if len(into) < _TOLD_MAX:
        into.append(told)
