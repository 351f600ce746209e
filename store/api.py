"""The calls of a datastore: the same in process (:class:`cellfeed.store.datastore.Datastore`) and
over HTTP (:class:`cellfeed.store.http.client.Client`).

One contract suite, ``tests/contract/cell_store/``, runs over both. Names follow Uber's
"Designing Schemaless" (2016): ``put_cell``, ``get_cell``, ``get_cell_latest``,
``get_cells_for_shard``.

Every call raises the errors of :mod:`cellfeed.store.errors`. The single put raises its error; the
batch returns a result per item, so that one bad or conflicting cell never hides the results of the
others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, Unpack
from uuid import UUID

from cellfeed.store.cells.cell import Cell, NewCell
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.engines.contract.values import Head, Replica
from cellfeed.store.followed import Follower
from cellfeed.store.waits.waiting import Passed, WaitOptions

RowKey = UUID | str
Location = int | datetime
"""Where to read a shard's log from: the next added_id to read, or an aware datetime (the first cell
at or after it)."""

ReadFrom = Replica | Literal["master", "minion"]
"""Where a read of cells by their keys goes first. ``master``: it sees every cell whose put was
acknowledged. ``minion``: it takes the load off the master, and cells come with ``stale`` set,
because a later one may not have arrived there; the store asks the master for cells that the minions
lack. While the master is away a minion answers either. On storage without minions both are the
same."""


class CellToPut(NamedTuple):
    """One item of a batch put; any 4-tuple in this order will do."""

    row_key: RowKey
    column_name: str
    ref_key: int
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ShardCells:
    """A piece of a shard's log and the location to continue from. ``cells`` is empty at the end of
    the log."""

    shard: int
    cells: list[Cell]
    next_location: int
    head: Head


@dataclass(frozen=True, slots=True)
class ErasedRow:
    """The result of an erasure. ``cells``: bodies that were taken away now; ``shard``,
    ``added_id``: where the log marks it. ``kept``: unread copies that may still have bodies of the
    row, each with the command that drops it."""

    shard: int
    added_id: int
    cells: int
    kept: list[str] = field(default_factory=list)


class CellStore(Protocol):
    """The interface that :class:`~cellfeed.store.datastore.Datastore` and
    :class:`~cellfeed.store.http.client.Client` share."""

    @property
    def name(self) -> str:
        """The datastore's name, for example ``trips``."""
        ...

    @property
    def shards(self) -> int: ...

    def put_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, body: Mapping[str, Any]
    ) -> PutResult:
        """Writes one cell; returns ``stored`` or ``exists``. Raises CellConflict, InvalidRequest,
        Unavailable (see ``definite``) …"""
        ...

    def put_cells(
        self, cells: Iterable[CellToPut | NewCell | tuple[RowKey, str, int, Mapping[str, Any]]]
    ) -> list[PutResult]:
        """Writes many; a result per item, in order. A NewCell was checked before. Never raises for
        one item; raises when the call as a whole is refused."""
        ...

    def wait_for(self, token: object, **outlet: Unpack[WaitOptions]) -> Passed:
        """Waits until an outlet has passed every place of a token, and returns the cells that it
        has parked or skipped. ``token``: a put's result or its ``token``, or several of them. One
        of ``trigger``, ``index``, ``group`` (a Kafka consumer group of the gateways) and ``export``
        names the outlet; ``timeout_s`` seconds (5) is how long. Raises WaitTimedOut, a
        TimeoutError, with the places that are missing; NotFound, with the names that there are;
        InvalidRequest for a token that is none, OtherHistory for one of another store."""
        ...

    def follow(
        self,
        *,
        column: str | Collection[str] | None = None,
        shards: Collection[int] | None = None,
        start: object = "latest",
        on_bookmark: Callable[[str], object] | None = None,
    ) -> Follower:
        """Cells as they come, for ever: ``for cell in store.follow(...)``. In each shard they come
        in order, each once; a cell comes once readers may see it. ``column``: a name, or several;
        ``shards``: their numbers; all, where left out. ``start``: ``latest`` (cells
        behind this call), ``earliest``, a ``cell.token`` or ``follower.token`` (or several), or an
        aware datetime. Connections that break, and workers that end, are replaced.

        ``on_bookmark`` is called with the follower's token, every few seconds in which it passes
        places without a cell to give. Raises Trimmed for cells below a log's start, which it names;
        OtherHistory, with both ids, for a token of another or of a restored store; DataDamaged at a
        damaged cell, behind the cells before it; Unavailable when no worker answers: the next call
        of ``next`` tries again."""
        ...

    def erase_row(self, row_key: RowKey) -> ErasedRow:
        """Takes the bodies of all cells of a row away, for good; their places in the log stay, and
        one more cell there marks the erasure. From then on no key finds the row, and puts to it are
        refused (RowErased). A second call does nothing, or completes an erasure that was broken
        off. OutcomeUnknown: the erasure is on record, and a worker completes it; repeat the call to
        know when it is done. Any other error: nothing was done."""
        ...

    def get_cell(
        self, row_key: RowKey, column_name: str, ref_key: int, *, read_from: ReadFrom = "master"
    ) -> Cell | None: ...

    def get_cell_latest(
        self, row_key: RowKey, column_name: str, *, read_from: ReadFrom = "master"
    ) -> Cell | None: ...

    def get_row(self, row_key: RowKey, *, read_from: ReadFrom = "master") -> dict[str, Cell]:
        """The latest cell of every column of the row; empty when there is none."""
        ...

    def get_cells(
        self, triples: Sequence[tuple[RowKey, str, int]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]: ...

    def get_cells_latest(
        self, keys: Sequence[tuple[RowKey, str]], *, read_from: ReadFrom = "master"
    ) -> list[Cell | None]: ...

    def get_rows(
        self, row_keys: Sequence[RowKey], *, read_from: ReadFrom = "master"
    ) -> list[dict[str, Cell]]: ...

    def get_cells_for_shard(
        self, shard_no: int, location: Location = 0, limit: int = 1000
    ) -> ShardCells:
        """At most ``limit`` cells from ``location`` on, in added_id order, below the watermark.
        Raises Trimmed from below the log start, which ``heads`` reports; a moment from before it is
        the log start."""
        ...

    def get_cells_for_shards(
        self, locations: Mapping[int, Location], limit: int = 1000
    ) -> dict[int, ShardCells]:
        """:meth:`get_cells_for_shard` for many shards; ``limit`` counts cells per shard."""
        ...

    def heads(self) -> dict[int, Head]:
        """Every shard's log start, watermark, next added_id and leader epoch."""
        ...

    def shard_of(self, row_key: RowKey) -> int: ...

    def close(self) -> None: ...
