"""The index tables of an engine: a table per index version and shard, of entries that are merged,
never overwritten.

An entry stands under ``(shard value, row key)`` in the shard of the shard value. It is a set of
registers, one for each column of cells that the index takes fields from: the ref key of a cell, and
its fields. ``live`` belongs to the register of the first column: whether that cell names this shard
value. An entry that is not live is a tombstone: it says that the row was seen to have left, or
never was here, as of that ref key.

    X1  ``apply`` merges: of each register the one with the higher ref key stays. So it may be
        repeated, and come in any order, from any number of writers: the outcome is the same. All
        entries of a call that lie on one cluster are written in one transaction.
    X2  ``apply`` and ``remove`` come back when the entries are on disk, and under the leader epoch
        of their shards (as a put does). They raise StorageUnavailable when nothing was written,
        OutcomeUnknown when that is not known: then the call is repeated.
    X3  ``latest_before`` and ``cells_between`` read of a node that has the whole log below the
        location given, and from which all has gone that had gone when the fence had the number
        given; or they raise StorageUnavailable. So readers never take a cell that a node lacks for
        one that is gone, nor the other way round.
    X4  ``select`` gives live entries only, ``find`` and ``walk`` tombstones as well. They may come
        from a minion, and be behind.
    X5  ``outdated`` names every row whose newest cells on the asked node differ from
        those given.
    X6  A write under fences (of shards of the log, not of the entries') is there only if
        none of them was raised before the commit: StaleView is raised otherwise, and nothing was
        written. A raise waits for such writes that are under way. See
        :mod:`cellfeed.store.engines.contract.index_fences`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.engines.contract.index_values import (
    NOTHING,
    UNFENCED,
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
from cellfeed.store.engines.contract.log_ends import SelectBesideEnds
from cellfeed.store.engines.contract.values import Replica, WriteTerms


class IndexStore(Protocol):
    """See the module's promises."""

    def create(self, table: IndexTable) -> frozenset[int]:
        """Makes the tables where they are missing; the shards that have one then, which are all.
        Raises Unavailable when a shard that moves did not get its own in time: to be done again."""
        ...

    def complete(self, table: IndexTable) -> None:
        """Builds the secondary keys, once a build has all entries: they make queries by other
        fields than the first fast. Answers are the same without them. A second call changes
        nothing. Raises StorageUnavailable: then it is repeated."""
        ...

    def drop(self, table: IndexTable) -> frozenset[int]:
        """The shards that have none then. Raises as :meth:`create`."""
        ...

    def fences(self, shards: Sequence[int]) -> dict[int, int]:
        """The number of each shard's fence. X6."""
        ...

    def raise_fences(self, shards: Sequence[int]) -> dict[int, int]:
        """A new number for each shard, once cells of it are gone and before entries are removed.
        X6."""
        ...

    def apply(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
    ) -> None:
        """Merges entries, by shard. ``fences``: by shard of the log that they come of the number
        from before its cells were read. X1, X2, X6."""
        ...

    def remove(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
        instead: Mapping[int, Sequence[Entry]] = NOTHING,
    ) -> None:
        """Removes entries that are exactly as given; others stay as they are. ``instead``: entries
        that are merged in the same commit, by shards that ``entries`` has too: at no moment is
        their row missing. X2, X6."""
        ...

    def select(
        self, table: IndexTable, wanted: Sequence[EntrySelect], read_from: Replica = Replica.MASTER
    ) -> Selected: ...

    @property
    def beside_ends(self) -> SelectBesideEnds | None:
        """As :meth:`select`, with the ends of logs from just before. None where entries, logs and
        state are not on one server, or a look at cells is as cheap."""
        ...

    def find(
        self, table: IndexTable, places: Sequence[tuple[int, Encoded, bytes]]
    ) -> list[Entry | None]:
        """By shard, shard value and row key."""
        ...

    def walk(
        self, table: IndexTable, shard: int, after: tuple[Encoded, bytes] | None, limit: int
    ) -> list[Entry]:
        """The entries of a shard in the order of their places."""
        ...

    def latest_before(self, rows: Sequence[RowsBelow], columns: Sequence[str]) -> list[StoredCell]:
        """For each row and column, the cell with the highest ref key of those with an added_id
        below the row's location. Also, at any location, the cell that marks the row as erased. Each
        shard once. X3."""
        ...

    def cells_between(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell]:
        """The cells of these columns with an added_id from ``location`` on and below ``end`` that
        are still there, in the order of the log. X3."""
        ...

    def outdated(
        self, rows: Sequence[RowRefs], columns: Sequence[str], read_from: Replica = Replica.MASTER
    ) -> Outdated:
        """Of rows those whose cells with the highest ref keys in these columns are not the ones
        given. No body is read. X5."""
        ...

    def current(
        self,
        row_keys: Mapping[int, Sequence[bytes]],
        columns: Sequence[str] | None,
        read_from: Replica = Replica.MASTER,
    ) -> Current:
        """Of rows (given by shard) the latest cell of each of the columns, or of all of them."""
        ...


class NodeIndexStore(Protocol):
    """The same of one node of a cluster: writes come with terms, and reads of X3 say None when the
    node does not have the log, or the fence, that far."""

    def create(self, table: IndexTable, terms: WriteTerms | None = None) -> frozenset[int]:
        """The shards that have one then: those that the node serves, and none that is behind the
        fence of a move."""
        ...

    def complete(self, table: IndexTable) -> None: ...

    def drop(self, table: IndexTable, terms: WriteTerms | None = None) -> frozenset[int]:
        """The shards of those that have none then."""
        ...

    def fences(self, shards: Sequence[int]) -> dict[int, int]: ...

    def raise_fences(self, shards: Sequence[int]) -> dict[int, int]: ...

    def fence_numbers(self, shards: Sequence[int]) -> dict[int, int]: ...

    def set_fences(self, numbers: Mapping[int, int], terms: WriteTerms | None = None) -> None: ...

    def apply(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
        terms: WriteTerms | None = None,
    ) -> None: ...

    def remove(
        self,
        table: IndexTable,
        entries: Mapping[int, Sequence[Entry]],
        fences: Mapping[int, int] = UNFENCED,
        instead: Mapping[int, Sequence[Entry]] = NOTHING,
        terms: WriteTerms | None = None,
    ) -> None: ...

    def select(
        self, table: IndexTable, wanted: Sequence[EntrySelect], read_from: Replica = Replica.MASTER
    ) -> Selected: ...

    @property
    def beside_ends(self) -> SelectBesideEnds | None: ...

    def find(
        self, table: IndexTable, places: Sequence[tuple[int, Encoded, bytes]]
    ) -> list[Entry | None]: ...

    def walk(
        self, table: IndexTable, shard: int, after: tuple[Encoded, bytes] | None, limit: int
    ) -> list[Entry]: ...

    def latest_before_or_none(
        self, rows: Sequence[RowsBelow], columns: Sequence[str]
    ) -> list[StoredCell] | None: ...

    def latest_before(
        self, rows: Sequence[RowsBelow], columns: Sequence[str]
    ) -> list[StoredCell]: ...

    def cells_between_or_none(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell] | None: ...

    def cells_between(
        self, shard: int, columns: Sequence[str], location: int, end: int, fence: int
    ) -> list[StoredCell]: ...

    def outdated(
        self,
        rows: Sequence[RowRefs],
        columns: Sequence[str],
        read_from: Replica = Replica.MASTER,
        shards: Sequence[int] | None = None,
    ) -> Outdated:
        """``shards``: of the rows, by a caller that knows them."""
        ...

    def current(
        self,
        row_keys: Mapping[int, Sequence[bytes]],
        columns: Sequence[str] | None,
        read_from: Replica = Replica.MASTER,
    ) -> Current: ...
