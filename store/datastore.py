"""A datastore in process: the calls of :mod:`cellfeed.store.api` over a storage engine, with group
commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import Any, Self, Unpack
from uuid import UUID

from cellfeed.store import forks
from cellfeed.store.api import CellToPut, ErasedRow, RowKey
from cellfeed.store.arguments import check_datastore_name, checked_item
from cellfeed.store.cells.body_codec import DEFAULT_CODEC
from cellfeed.store.cells.cell import NewCell, check_row_key, new_cell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.cells.sharding import check_shard, shard_of
from cellfeed.store.cells.token import Token
from cellfeed.store.commit.per_cluster import Writers
from cellfeed.store.commit.put_answers import PutAnswer, Then
from cellfeed.store.commit.put_batches import put_in_batches
from cellfeed.store.commit.writer_tally import WriterTally
from cellfeed.store.dictionaries.trainer import DictionaryTrainer
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.erasures import ErasureNotes
from cellfeed.store.followed import Follower, checked_wanted
from cellfeed.store.following.in_process import StoreFollower
from cellfeed.store.histories import History
from cellfeed.store.indexes.query import Indexes
from cellfeed.store.indexes.request import Filter, IndexPage, QueryOptions
from cellfeed.store.limits import PUT_TIMEOUT_S
from cellfeed.store.reads import Reads
from cellfeed.store.row_erasure import RowErasure
from cellfeed.store.waits.awaited import Awaited
from cellfeed.store.waits.outlet_wait import blocking_answer
from cellfeed.store.waits.outlet_watch import Waits
from cellfeed.store.waits.waiting import TIMEOUT_S, Passed, WaitOptions, check_timeout_s, one_outlet
from cellfeed.store.wakeups.datagrams import Poker
from cellfeed.store.wakeups.hints import Beyond, ends_of


class Datastore(Reads):
    """:class:`cellfeed.store.api.CellStore` in process. Any number of threads may call it, and any
    number of processes may open the same storage."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._generation = forks.generation
        self._poker = Poker(engine.state)
        self._beyond: Beyond | None = None
        self._trainer: DictionaryTrainer | None = None
        self._writers = Writers(engine, self._poker.poke, self._offer)
        self._indexes = Indexes(engine)
        self.waits = Waits(engine.state, lambda: self.history_id, lambda: self.shards)
        self.awaited = Awaited()
        self.unended_erasures = ErasureNotes(engine.state)
        self._erasure = RowErasure(
            engine, self._indexes, self.unended_erasures, self.trim, self._poke
        )

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

    def history(self) -> History:
        """Whose cells these are, and the history from which they were restored
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
        self, row_key: RowKey, column_name: str, ref_key: int, body: Mapping[str, Any]
    ) -> PutResult:
        cell = new_cell(row_key, column_name, ref_key, body)
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
        if self._beyond is not None and (ends := ends_of(results)):
            self._beyond(ends)
        if self._trainer is not None:
            self._trainer.offer(cells, results)

    def wake_beyond(self, report: Beyond) -> None:
        """Has ``report`` called with the new ends of logs, behind the answers of a commit, and with
        none after a trim or an erasure. It must wait for nothing."""
        self._beyond, self._poker.wakes_relays = report, False

    def _poke(self) -> None:
        self._poker.poke()
        if self._beyond is not None:
            self._beyond({})

    def _await(self, answer: PutAnswer) -> list[PutResult]:
        try:
            return answer.result(PUT_TIMEOUT_S)
        except TimeoutError:
            raise answer.out_of_time(PUT_TIMEOUT_S) from None

    def trim(self, shard: int, below: int) -> int:
        """One step of a trim (E15), reported to readers at once; repeated until it returns
        ``below``. Where there are indexes, groups or exports, use
        :class:`cellfeed.bridge.trimming.trim.Trimming` instead: it asks first
        for readers that still need the cells, and takes them out of the indexes."""
        start = self.engine.trim(check_shard(shard, self.shards), below)
        self._poke()
        return start

    def erase_row(self, row_key: RowKey) -> ErasedRow:
        return self._erasure.erase(UUID(bytes=check_row_key(row_key)))

    def end_erasure(self, row_key: UUID, version: int) -> ErasedRow:
        """An erasure that is on record, with that version of its note
        (:mod:`cellfeed.store.erasures`)."""
        return self._erasure.end(row_key, version)

    def when_erased(self, forget: Callable[[UUID], object]) -> None:
        """Has every erasure end with ``forget(row_key)``: for copies beside the log that have data
        of a row. It is called again when the row is erased again."""
        self._erasure.afterwards.append(forget)

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
        none. ``order_by``: a field, then the row key; ``cursor``: that of the page before,
        everything else unchanged. ``fields``: those wanted (all); ``columns``: column names, or
        ``"*"``, whose latest cells come with the rows. ``mode``: ``fresh`` (checked against the
        current cells) or ``fast``. ``wait_for``: ``(shard, added_id)`` of a put, or a list of them,
        that the index must have come past, within ``wait_s`` seconds. Raises InvalidRequest,
        NotFound, StorageUnavailable.
        """
        return self.indexes.query(name, shard_value, where, **how)

    # --- waiting ----------------------------------------------------------------------------------

    def wait_for(self, token: object, **outlet: Unpack[WaitOptions]) -> Passed:
        kind, name = one_outlet(outlet)
        timeout_s = check_timeout_s(outlet.get("timeout_s", TIMEOUT_S))
        given = Token.of(token)
        target, looked = self.waits.target(given, kind, name), Event()
        with self.waits.at(target, given, looked.set) as wait:
            return blocking_answer(wait, target, looked, timeout_s)

    # --- following --------------------------------------------------------------------------------

    def follow(
        self,
        *,
        column: str | Collection[str] | None = None,
        shards: Collection[int] | None = None,
        start: object = "latest",
        on_bookmark: Callable[[str], object] | None = None,
    ) -> Follower:
        return StoreFollower(self.engine, checked_wanted(column, shards, start), on_bookmark)

    # --- life -------------------------------------------------------------------------------------

    def writer_tallies(self) -> dict[str, WriterTally]:
        """Sizes, waits and commits of this process' group commit, by cluster."""
        return self._writers.tallies()

    def close(self) -> None:
        """Writes the submitted cells, then closes the storage. In a forked child nothing is closed:
        all of it is the parent's."""
        if self._generation != forks.generation:
            return
        self.waits.close()
        self.awaited.close()
        self._writers.close()
        if self._trainer is not None:
            self._trainer.close()
        self._poker.close()
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
