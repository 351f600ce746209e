"""A datastore in process: the calls of :mod:`cellfeed.store.api` over a storage engine, with group
commit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar, Unpack
from uuid import UUID

from cellfeed.store import forks
from cellfeed.store.api import CellToPut, ErasedRow, Location, ReadFrom, RowKey, ShardCells
from cellfeed.store.arguments import (
    check_datastore_name,
    check_key_count,
    check_location,
    check_read_from,
    check_scan_limit,
    checked_item,
)
from cellfeed.store.cells.body_codec import DEFAULT_CODEC, cell_from_stored, is_erased
from cellfeed.store.cells.cell import (
    Cell,
    NewCell,
    PutResult,
    Triple,
    check_column_name,
    check_ref_key,
    check_row_key,
    microseconds,
    new_cell,
)
from cellfeed.store.cells.rows_page import RowsPage, with_page
from cellfeed.store.cells.sharding import check_shard, shard_of
from cellfeed.store.commit.per_cluster import Writers
from cellfeed.store.commit.put_answers import PutAnswer, Then
from cellfeed.store.commit.put_batches import put_in_batches
from cellfeed.store.dictionaries.trainer import DictionaryTrainer
from cellfeed.store.engines.contract.engine import Engine, StateTable
from cellfeed.store.engines.contract.read_bounds import Page, within_scan
from cellfeed.store.engines.contract.values import Head, LocatedCell, Replica
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.erasures import ErasureNotes
from cellfeed.store.errors import (
    AnswerTooLarge,
    CellfeedError,
    OutcomeUnknown,
    StaleWriter,
    Trimmed,
    Unavailable,
)
from cellfeed.store.failpoints import declare, failpoint
from cellfeed.store.histories import History
from cellfeed.store.indexes.erased import take_out
from cellfeed.store.indexes.query import Indexes
from cellfeed.store.indexes.request import Filter, IndexPage, QueryOptions
from cellfeed.store.indexes.trimmed import IndexedTrim
from cellfeed.store.limits import PUT_TIMEOUT_S, SCAN_DECODED_BYTES_MAX
from cellfeed.store.wakeups import Poker

declare(
    "datastore.erase.noted",
    "datastore.erase.told",
    "datastore.erase.taken_out",
    "datastore.erase.before_end",
)


T = TypeVar("T")


class Datastore:
    """:class:`cellfeed.store.api.CellStore` in process. Any number of threads may call it, and any
    number of processes may open the same storage."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._generation = forks.generation
        self._poker = Poker(engine.state)
        self._trainer: DictionaryTrainer | None = None
        self._writers = Writers(engine, self._poker.poke, self._offer)
        self._indexes = Indexes(engine)
        self.unended_erasures = ErasureNotes(engine.state)
        self._when_erased: list[Callable[[UUID], object]] = []

    @classmethod
    def open_embedded(
        cls, directory: Path, name: str = "trips", shards: int = 16, *, codec: int = DEFAULT_CODEC
    ) -> Datastore:
        """Opens, or makes, an embedded datastore under ``directory/name``. Raises ProtectData when
        it was made with another shard count."""
        check_datastore_name(name)
        return cls(SqliteEngine(Path(directory) / name, name, shards, codec=codec))

    @property
    def name(self) -> str:
        return self.engine.datastore

    @property
    def shards(self) -> int:
        return self.engine.shards

    def history(self) -> History:
        """Whose cells these are, and of which history they are restored
        (:mod:`cellfeed.store.histories`)."""
        return self.engine.history

    @property
    def history_id(self) -> str:
        """The identity of this history (:mod:`cellfeed.store.histories`): another one after every
        restore. Empty where the storage has none."""
        return self.engine.history.history_id

    @property
    def origin_id(self) -> str:
        """The first history of the lineage. Restores keep it, so systems outside of the datastore
        name the datastore by it. Empty where the storage has none."""
        return self.engine.history.origin_id

    @property
    def state(self) -> StateTable:
        return self.engine.state

    # --- writing ----------------------------------------------------------------------------------

    def put_cell(
        self, row_key: RowKey, column_key: str, ref_key: int, body: Mapping[str, Any]
    ) -> PutResult:
        cell = new_cell(row_key, column_key, ref_key, body)
        [result] = self._await(self.put_soon([cell]))
        return result.or_raise()

    def put_cells(
        self, cells: Iterable[CellToPut | NewCell | tuple[RowKey, str, int, Mapping[str, Any]]]
    ) -> list[PutResult]:
        checked: list[NewCell | PutResult] = [
            checked_item(item, lambda: self.shards) for item in cells
        ]
        accepted = [cell for cell in checked if isinstance(cell, NewCell)]
        written = iter(self.put_new_cells(accepted))
        return [next(written) if isinstance(cell, NewCell) else cell for cell in checked]

    def put_new_cells(self, cells: Sequence[NewCell]) -> list[PutResult]:
        """As :meth:`put_cells`, for cells that were checked before."""
        return put_in_batches(
            cells,
            lambda batch: self._await(self.put_soon(batch)),
            lambda cell: shard_of(cell.row_key, self.shards),
        )

    def put_soon(self, cells: Sequence[NewCell], then: Then | None = None) -> PutAnswer:
        """Queues checked cells for the next group commit without waiting; see
        :meth:`cellfeed.store.commit.per_cluster.Writers.queue_by_group`."""
        return self._writers.queue_by_group(cells, then)

    def train_dictionaries(self) -> None:
        """From now on columns without a dictionary get one, trained from the cells that this
        process writes, in a thread of its own. Those that are there are used whether or not this
        was called. Calling it again does nothing."""
        if self._trainer is None:
            self._trainer = DictionaryTrainer(self.engine.dictionaries)
            self._trainer.start()

    def _offer(self, cells: Sequence[NewCell], results: Sequence[PutResult]) -> None:
        if self._trainer is not None:
            self._trainer.offer(cells, results)

    def _await(self, answer: PutAnswer) -> list[PutResult]:
        try:
            return answer.result(PUT_TIMEOUT_S)
        except TimeoutError:
            raise answer.out_of_time(PUT_TIMEOUT_S) from None

    def trim(self, shard: int, below: int) -> int:
        """One step of a trim (E15), reported to readers at once; repeated until it returns
        ``below``. Where there are indexes, groups or exports, use
        :class:`cellfeed.bridge.trimming.trim.Trimming` instead: it asks first who still needs the
        cells, and takes them out of the indexes."""
        start = self.engine.trim(check_shard(shard, self.shards), below)
        self._poker.poke()
        return start

    def erase_row(self, row_key: RowKey) -> ErasedRow:
        key = UUID(bytes=check_row_key(row_key))
        version = self.unended_erasures.begin(key)
        failpoint("datastore.erase.noted")
        try:
            return self.end_erasure(key, version)
        except (Unavailable, StaleWriter) as error:
            # It is on record, so nobody can say that nothing will come of it.
            raise OutcomeUnknown(
                f"row {key} is not erased, or in part; a worker finishes it by itself, or erase"
                f" it again: {error}"
            ) from error

    def end_erasure(self, row_key: UUID, version: int) -> ErasedRow:
        """An erasure that is on record, with that version of its note
        (:mod:`cellfeed.store.erasures`)."""
        try:
            erased = self._erase(row_key)
        except CellfeedError as error:
            with suppress(CellfeedError):
                self.unended_erasures.failed(row_key, version, error)
            raise
        failpoint("datastore.erase.before_end")
        self.unended_erasures.end(row_key, version, erased.added_id)
        return erased

    def _erase(self, row_key: UUID) -> ErasedRow:
        key = row_key.bytes
        # First the log gets its entry, then the indexes lose theirs, then the bodies go: only
        # the bodies say where the entries are.
        self.engine.erase(key, 0)
        self._poker.poke()
        failpoint("datastore.erase.told")
        take_out(self.engine, self.indexes, key)
        # A trim that died has left entries of cells that are gone, and notes of their values.
        IndexedTrim(self.engine, self.indexes, self.trim).settle(shard_of(key, self.shards))
        failpoint("datastore.erase.taken_out")
        cells, done = 0, False
        while not done:
            step = self.engine.erase(key)
            cells, done = cells + step.cells, step.done
            self._poker.poke()
        for forget in self._when_erased:
            forget(row_key)
        return ErasedRow(step.shard, step.added_id, cells, list(step.kept))

    def when_erased(self, forget: Callable[[UUID], object]) -> None:
        """Has every erasure end with ``forget(row_key)``: for what is kept beside the log and
        speaks of a row. It is called again when the row is erased again."""
        self._when_erased.append(forget)

    # --- reading ----------------------------------------------------------------------------------

    def get_cell(
        self, row_key: RowKey, column_key: str, ref_key: int, *, read_from: ReadFrom = "master"
    ) -> Cell | None:
        return self.get_cells([(row_key, column_key, ref_key)], read_from=read_from)[0]

    def get_cell_latest(
        self, row_key: RowKey, column_key: str, *, read_from: ReadFrom = "master"
    ) -> Cell | None:
        return self.get_cells_latest([(row_key, column_key)], read_from=read_from)[0]

    def get_row(self, row_key: RowKey, *, read_from: ReadFrom = "master") -> dict[str, Cell]:
        return self.get_rows([row_key], read_from=read_from)[0]

    def get_cells(
        self, triples: Sequence[tuple[RowKey, str, int]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        check_key_count(triples)
        wanted = [
            Triple(check_row_key(row_key), check_column_name(column), check_ref_key(ref_key))
            for row_key, column, ref_key in triples
        ]
        return self._cells(wanted, self.engine.get, read_from)

    def get_cells_latest(
        self, keys: Sequence[tuple[RowKey, str]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        check_key_count(keys)
        wanted = [(check_row_key(row_key), check_column_name(column)) for row_key, column in keys]
        return self._cells(wanted, self.engine.latest, read_from)

    def get_rows(
        self, row_keys: Sequence[RowKey], *, read_from: ReadFrom = "master"
    ) -> list[dict[str, Cell]]:
        page = self.get_rows_page(row_keys, read_from=read_from)
        rows = page.rows
        while page.next_row is not None:
            first = page.next_row
            page = self.get_rows_page(
                row_keys[first:], read_from=read_from, after_column=page.after_column
            ).moved(first)
            rows = with_page(rows, page.rows, first)
        return rows

    def get_cells_page(
        self, triples: Sequence[tuple[RowKey, str, int]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        """:meth:`get_cells` of the first of these keys: with the cell that brings the answer to
        ``READ_BYTES_MAX`` it ends. At least one."""
        check_key_count(triples)
        wanted = [
            Triple(check_row_key(row_key), check_column_name(column), check_ref_key(ref_key))
            for row_key, column, ref_key in triples
        ]
        return [_cell(found) for found in self.engine.get(wanted, check_read_from(read_from))]

    def get_cells_latest_page(
        self, keys: Sequence[tuple[RowKey, str]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]:
        """:meth:`get_cells_latest` of the first of these keys, likewise."""
        check_key_count(keys)
        wanted = [(check_row_key(row_key), check_column_name(column)) for row_key, column in keys]
        return [_cell(found) for found in self.engine.latest(wanted, check_read_from(read_from))]

    def get_rows_page(
        self, row_keys: Sequence[RowKey], *, read_from: ReadFrom = "master", after_column: str = ""
    ) -> RowsPage:
        """:meth:`get_rows` of the first of these rows, likewise, of the first one the columns
        behind ``after_column``. The last row may continue in the next page."""
        check_key_count(row_keys)
        after = check_column_name(after_column) if after_column else ""
        found = self.engine.row(
            [check_row_key(row_key) for row_key in row_keys], check_read_from(read_from), after
        )
        rows = [
            {
                each.cell.column_name: cell_from_stored(each.shard, each.cell, stale=each.stale)
                for each in row
                if not is_erased(each.cell.body)
            }
            for row in found
        ]
        page = Page()
        page.take([each.cell.body for row in found for each in row])
        if page.is_full and found[-1]:
            return RowsPage(rows, len(rows) - 1, found[-1][-1].cell.column_name)
        return RowsPage(rows, len(rows) if len(rows) < len(row_keys) else None)

    def _cells(
        self,
        wanted: list[T],
        read: Callable[[Sequence[T], Replica], list[LocatedCell | None]],
        read_from: ReadFrom,
    ) -> list[Cell | None]:
        """All of them: page by page, so that no more than a page is held twice."""
        replica = check_read_from(read_from)
        cells: list[Cell | None] = []
        while len(cells) < len(wanted):
            cells += map(_cell, read(wanted[len(cells) :], replica))
        return cells

    def get_cells_for_shard(
        self, shard_no: int, location: Location = 0, limit: int = 1000
    ) -> ShardCells:
        check_scan_limit(limit)
        return self._piece(shard_no, location, limit, SCAN_DECODED_BYTES_MAX)

    def _piece(self, shard_no: int, location: Location, limit: int, bytes_max: int) -> ShardCells:
        check_shard(shard_no, self.shards)
        start = self._next_added_id(shard_no, location)
        try:
            stored = self.engine.scan(shard_no, start, limit)
        except Trimmed:
            if isinstance(location, int):
                raise
            # the moment's place was trimmed since it was looked for: the log begins behind it now
            start = self._next_added_id(shard_no, location)
            stored = self.engine.scan(shard_no, start, limit)
        stored = within_scan(stored, bytes_max)
        # The head is read after the cells, so it is never behind those that come with it.
        head = self.engine.heads([shard_no])[shard_no]
        next_location = stored[-1].added_id + 1 if stored else start
        return ShardCells(
            shard_no, [cell_from_stored(shard_no, cell) for cell in stored], next_location, head
        )

    def get_cells_for_shards(
        self, locations: Mapping[int, Location], limit: int = 1000, *, bytes_max: int = sys.maxsize
    ) -> dict[int, ShardCells]:
        """As the protocol's. Raises AnswerTooLarge when a cell of each shard is more than
        ``bytes_max``, decoded."""
        check_scan_limit(limit)
        pieces: dict[int, ShardCells] = {}
        decoded_bytes = 0
        for shard, location in locations.items():
            # Each gives a cell: its reader continues, and does not take it for the end of the log.
            left = max(SCAN_DECODED_BYTES_MAX - decoded_bytes, 0)
            pieces[shard] = piece = self._piece(shard, location, limit if left else 1, left)
            decoded_bytes += sum(len(cell.body_json) for cell in piece.cells)
            if decoded_bytes > bytes_max:
                raise AnswerTooLarge(
                    f"a cell of each of {len(locations)} shards is more than {bytes_max} bytes: ask"
                    " for fewer shards at once"
                )
        return pieces

    def heads(self) -> dict[int, Head]:
        return self.engine.heads()

    def shard_of(self, row_key: RowKey) -> int:
        return shard_of(check_row_key(row_key), self.shards)

    def _next_added_id(self, shard: int, location: Location) -> int:
        checked = check_location(location)
        return (
            checked
            if isinstance(checked, int)
            else self.engine.locate(shard, microseconds(checked))
        )

    # --- indexes ----------------------------------------------------------------------------------

    @property
    def indexes(self) -> Indexes:
        """The secondary indexes of this datastore."""
        return self._indexes

    def query_index(
        self, name: str, shard_value: Any, where: Sequence[Filter] = (), **how: Unpack[QueryOptions]
    ) -> IndexPage:
        """Rows whose fields meet all filters, of the shard value given (or of each of a list of
        them).

        ``where``: ``(field, operator, value)`` with ``= != < <= > >= in``; a missing field meets
        none. ``order_by``: a field, then the row key; ``cursor``: what the page before said,
        everything else unchanged. ``fields``: those wanted (all); ``columns``: column names, or
        ``"*"``, whose latest cells come with the rows. ``mode``: ``fresh`` (checked against the
        current cells) or ``fast``. ``wait_for``: ``(shard, added_id)`` of a put, or a list of them,
        that the index must have come past, within ``wait_s`` seconds. Raises InvalidRequest,
        NotFound, StorageUnavailable.
        """
        return self.indexes.query(name, shard_value, where, **how)

    # --- life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Writes what was submitted, then closes the storage. In a forked child nothing is closed:
        all of it is the parent's."""
        if self._generation != forks.generation:
            return
        self._writers.close()
        if self._trainer is not None:
            self._trainer.close()
        self._poker.close()
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _cell(found: LocatedCell | None) -> Cell | None:
    """What a read by key gives: an erased cell is not there. The log alone shows its place."""
    return (
        cell_from_stored(found.shard, found.cell, stale=found.stale)
        if found and not is_erased(found.cell.body)
        else None
    )
