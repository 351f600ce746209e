"""Cells of a put that are stored already, or stand in it twice: their outcomes (E3), the same for every engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from store.body_codec import decode_body
from store.cells import NewCell, Outcome, PutResult, Triple, conflict_error


class StoredTriple(NamedTuple):
    """Where a triple is stored, and its encoded body."""

    shard: int
    added_id: int
    body: bytes


def outcomes_before(cells: Sequence[NewCell], stored: Mapping[Triple, StoredTriple]) -> list[PutResult | int | None]:
    """Per cell: its outcome when the triple is stored; the index of an earlier cell of this call with the same triple; None when it is new."""
    first: dict[Triple, int] = {}
    known: list[PutResult | int | None] = []
    for index, cell in enumerate(cells):
        found = stored.get(cell.triple)
        if found is not None:
            known.append(seen_before(cell, found.shard, found.added_id, same=decode_body(found.body) == cell.body_json))
        else:
            earlier = first.setdefault(cell.triple, index)
            known.append(None if earlier == index else earlier)
    return known


def repeated(earlier: NewCell, outcome: PutResult, cell: NewCell) -> PutResult:
    """The outcome of a cell whose triple came earlier in the same call, to ``outcome``."""
    return seen_before(cell, outcome.shard, outcome.added_id, same=earlier.body_json == cell.body_json)


def seen_before(cell: NewCell, shard: int | None, added_id: int | None, *, same: bool) -> PutResult:
    """``exists`` or ``conflict``."""
    if same:
        return PutResult(Outcome.EXISTS, shard, added_id)
    return PutResult(Outcome.CONFLICT, shard, error=conflict_error(cell, added_id))
