"""The contract of a buffer table: cells that wait on one cluster until another one, their own, has
them on its minions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.engines.contract.values import WriteTerms


@dataclass(frozen=True, slots=True)
class BufferedCell:
    """A buffered cell. ``buffer_id`` is its place in the table. ``accepted``: its put was answered
    ``buffered``, so the buffer answers for it; otherwise it is only a copy of a put that went to
    the own cluster as well. ``conflict``: why it cannot be written there, once that is known."""

    buffer_id: int
    owner: str
    cell: NewCell
    buffered_at_us: int
    accepted: bool
    conflict: str | None = None


@dataclass(frozen=True, slots=True)
class BufferCount:
    """The cells of a buffer table for one owner, a line of the ledger."""

    owner: str
    cells: int
    accepted: int
    conflicts: int
    oldest_at_us: int


class BufferTable(Protocol):
    """One cluster's table. Every call is one transaction on its master."""

    def add(self, owner: str, cells: Sequence[NewCell]) -> None:
        """Keeps copies, durable when it returns. A triple that waits already keeps its first body
        and its id."""
        ...

    def accept(self, owner: str, cells: Sequence[NewCell]) -> list[bool]:
        """Makes the buffer answer for cells that were added. Per cell whether the body that waits
        is this one: not when another one waits, nor when nothing does, which the drain may have
        put."""
        ...

    def waiting(
        self, owner: str, after_id: int, limit: int, older_than_s: float
    ) -> list[BufferedCell]:
        """Cells without a known conflict, by id; fewer than ``limit`` when their bodies are more
        than ``BATCH_BYTES_MAX``, but at least one that waits."""
        ...

    def remove(self, buffer_ids: Sequence[int]) -> None: ...

    def remove_copies(self, owner: str, cells: Sequence[NewCell]) -> None:
        """Removes copies that no put was answered ``buffered`` for, and only with the same body."""
        ...

    def remove_row(self, owner: str, row_key: bytes) -> None:
        """Removes every waiting cell of a row that was erased, accepted or not."""
        ...

    def mark_conflict(self, buffer_id: int, reason: str) -> None: ...

    def counts(self) -> list[BufferCount]: ...


class NodeBufferTable(Protocol):
    """The same of one node of a cluster, where writes come with terms: under others than the node's
    own they are refused (StaleWriter, nothing written)."""

    def add(
        self, owner: str, cells: Sequence[NewCell], terms: WriteTerms | None = None
    ) -> None: ...

    def accept(
        self, owner: str, cells: Sequence[NewCell], terms: WriteTerms | None = None
    ) -> list[bool]: ...

    def waiting(
        self, owner: str, after_id: int, limit: int, older_than_s: float
    ) -> list[BufferedCell]: ...

    def remove(self, buffer_ids: Sequence[int], terms: WriteTerms | None = None) -> None: ...

    def remove_copies(
        self, owner: str, cells: Sequence[NewCell], terms: WriteTerms | None = None
    ) -> None: ...

    def remove_row(self, owner: str, row_key: bytes, terms: WriteTerms | None = None) -> None: ...

    def mark_conflict(
        self, buffer_id: int, reason: str, terms: WriteTerms | None = None
    ) -> None: ...

    def counts(self) -> list[BufferCount]: ...
