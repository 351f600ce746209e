"""The result of a put."""

from __future__ import annotations

import enum
from uuid import UUID

import msgspec

from cellfeed.store.cells.cell import NewCell, shown
from cellfeed.store.cells.token import token_text
from cellfeed.store.errors import CellConflict, CellfeedError, RowErased


class Outcome(enum.StrEnum):
    """The result of a put. ``buffered`` is given only by clusters of MySQL servers."""

    STORED = "stored"
    EXISTS = "exists"
    BUFFERED = "buffered"
    CONFLICT = "conflict"
    FAILED = "failed"
    UNKNOWN = "unknown"


class PutResult(msgspec.Struct, frozen=True):
    """The outcome of one put.

    ``shard`` is None only when the row key was not one; ``added_id`` is set for ``stored`` and
    ``exists``; ``error`` for ``conflict``, ``failed`` (definitely not written) and ``unknown`` (it
    may have been; putting the same cell again shows which). ``token``: the place as text, to wait
    for it (:mod:`cellfeed.store.cells.token`). It is set with ``added_id``, so a ``buffered`` cell
    has none: it gets its place later. Put the cell again to learn it.
    """

    outcome: Outcome
    shard: int | None
    added_id: int | None = None
    error: CellfeedError | None = None
    token: str | None = None

    @classmethod
    def of_error(cls, error: CellfeedError, shard: int | None) -> PutResult:
        """The outcome of a put that ended with ``error``: ``failed`` when the error is definite,
        otherwise ``unknown``."""
        return cls(Outcome.FAILED if error.definite else Outcome.UNKNOWN, shard, error=error)

    @property
    def acknowledged(self) -> bool:
        """Whether the store answers for this cell from now on."""
        return self.outcome in (Outcome.STORED, Outcome.EXISTS, Outcome.BUFFERED)

    def with_token(self, history: str) -> PutResult:
        """Itself with the token of its place in this history, if it has a place."""
        if self.added_id is None or self.shard is None:
            return self
        token = token_text(history, self.shard, self.added_id)
        return PutResult(self.outcome, self.shard, self.added_id, self.error, token)

    def or_raise(self) -> PutResult:
        """Itself when acknowledged; raises its error otherwise."""
        if self.error is not None:
            raise self.error
        return self


def conflict_error(cell: NewCell, added_id: int | None) -> CellConflict:
    """The answer to a put of an existing triple with another body."""
    return CellConflict(
        f"cell ({UUID(bytes=cell.row_key)}, {shown(cell.column_name)}, {cell.ref_key}) is stored"
        f" already with another body (added_id {added_id}); cells are written once: put the new"
        " body under a higher ref key"
    )


def refused_as_erased(cell: NewCell, shard: int) -> PutResult:
    """The outcome of a put to a row that was erased: definitely not written (E21)."""
    error = RowErased(
        f"row {UUID(bytes=cell.row_key)} was erased: no cell of it is written again; put under"
        " another row key"
    )
    return PutResult(Outcome.FAILED, shard, error=error)
