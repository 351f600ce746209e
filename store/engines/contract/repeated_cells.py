"""Cells of a put that are not to be written: stored already, or twice in it (E3), or of a row that
was erased (E21). The same for every engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import NewCell, Triple
from cellfeed.store.cells.put_result import Outcome, PutResult, conflict_error, refused_as_erased
from cellfeed.store.errors import DataDamaged, ProtectData


class StoredTriple(NamedTuple):
    """Where a triple is stored, and its encoded body."""

    shard: int
    added_id: int
    body: bytes


def outcomes_before(
    cells: Sequence[NewCell], stored: Mapping[Triple, StoredTriple]
) -> list[PutResult | int | None]:
    """Per cell: its outcome when the triple is stored; the index of an earlier cell of this call
    with the same triple; None when it is new."""
    first: dict[Triple, int] = {}
    known: list[PutResult | int | None] = []
    for index, cell in enumerate(cells):
        found = stored.get(cell.triple)
        if found is not None:
            known.append(_compared(cell, found))
        else:
            earlier = first.setdefault(cell.triple, index)
            known.append(None if earlier == index else earlier)
    return known


def _compared(cell: NewCell, found: StoredTriple) -> PutResult:
    """The result of putting a triple that is stored. A stored body that does not decode fails this
    put alone (E24)."""
    try:
        stored = decode_body(found.body)
    except (DataDamaged, ProtectData) as error:
        return not_compared(cell.triple, found.shard, error, f" at {found.shard}/{found.added_id}")
    return seen_before(cell, found.shard, found.added_id, same=stored == cell.body_json)


def not_compared(
    triple: Triple, shard: int, error: DataDamaged | ProtectData, where: str = ""
) -> PutResult:
    """The outcome of a put whose triple is stored, in a way that nobody can compare (E24)."""
    cell = (
        f"cell ({UUID(bytes=triple.row_key)}, {triple.column_name!a}, {triple.ref_key}) is"
        f" stored{where}"
    )
    return PutResult(
        Outcome.FAILED,
        shard,
        error=type(error)(f"{cell}, and cannot be compared with the new cell: {error}"),
    )


def without_erased(
    cells: Sequence[NewCell],
    shards: Sequence[int],
    known: Sequence[PutResult | int | None],
    erased: Collection[bytes],
) -> list[PutResult | int | None]:
    """``known``, with every cell of an erased row refused: erasure takes precedence over any other
    result."""
    return [
        refused_as_erased(cell, shard) if cell.row_key in erased else before
        for cell, shard, before in zip(cells, shards, known, strict=True)
    ]


def repeated(earlier: NewCell, outcome: PutResult, cell: NewCell) -> PutResult:
    """The outcome of a cell whose triple came earlier in the same call, to ``outcome``."""
    return seen_before(
        cell, outcome.shard, outcome.added_id, same=earlier.body_json == cell.body_json
    )


def seen_before(cell: NewCell, shard: int | None, added_id: int | None, *, same: bool) -> PutResult:
    """``exists`` or ``conflict``."""
    if same:
        return PutResult(Outcome.EXISTS, shard, added_id)
    return PutResult(Outcome.CONFLICT, shard, error=conflict_error(cell, added_id))
