"""Cells that are left out of typed topics because their body fits no version of the column's
schema: listed, with the reason, until a new version takes them.

    unfit/<column>/<shard>/<bucket>    {added_id: {row_key, ref_key, reason, at_us}} of 1,000
                                       added_ids

A cell is noted when a gateway first encodes it, before the block that leaves it out is shown;
encoding it again, here or elsewhere, adds no note. Many at once are one entry for each thousand of
the log: a schema that fits nothing makes a thousandth of the entries that the log has cells.

Whether a cell is left out follows from its body and the registered versions, not from this list. So
when a version comes that it fits, it is shown, at its own offset, and :func:`try_again` takes it
off the list. The result of ``try_again`` names it for readers that are already past it: its offset
does not come again by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote, unquote
from uuid import UUID

import msgspec

from cellfeed.bridge.typed.typed_column import TypedColumns
from cellfeed.bridge.typed.typed_format import Rejected
from cellfeed.store.cells.body_codec import decode_body, is_erased
from cellfeed.store.cells.cell import StoredCell
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.erasures import DONE, PREFIX
from cellfeed.store.errors import Unavailable

_PREFIX: Final = "unfit/"
BUCKET_CELLS: Final = 1_000
"""Added_ids of one entry: at most 300 KB of it."""

COUNTED_ENTRIES: Final = 100
"""Entries that are read to count left-out cells: 30 MB at most, and 100,000 cells."""

REASON_CHARACTERS_MAX: Final = 200
_TRIES_MAX: Final = 50
"""Compare-and-set tries: as many gateways as there are may note the same cells at once."""


class _Noted(msgspec.Struct, frozen=True):
    row_key: str
    ref_key: int
    reason: str
    at_us: int


class RejectedCell(NamedTuple):
    """A cell that is left out. ``at_us``: when it was found, microseconds since 1970."""

    column: str
    shard: int
    added_id: int
    row_key: str
    ref_key: int
    reason: str
    at_us: int


class LeftOutOfTopic(NamedTuple):
    """Cells that the typed topics of a column leave out: ``cells`` of them, and more where
    ``or_more``; ``first``: one of them, with its reason. ``gateways``: only declared topics of
    these leave them out, because the column said ``unfit: park`` when they started; empty where it
    says so now."""

    column: str
    cells: int
    or_more: bool
    first: RejectedCell
    gateways: tuple[str, ...] = ()


class TriedAgain(NamedTuple):
    """``fits``: those that are shown now, and off the list; ``trimmed``: those that are gone from
    the log."""

    fits: list[RejectedCell]
    trimmed: list[RejectedCell]
    still_rejected: list[RejectedCell]


_decode: Final = msgspec.json.Decoder(dict[str, _Noted]).decode


def note_rejected(state: StateTable, column: str, shard: int, rejected: Sequence[Rejected]) -> None:
    """Lists cells of one shard; those that are listed already stay as they are. Raises
    Unavailable."""
    buckets: dict[int, list[Rejected]] = {}
    for each in rejected:
        buckets.setdefault(each[0].added_id // BUCKET_CELLS, []).append(each)
    for bucket, cells in buckets.items():
        _change(
            state,
            f"{_PREFIX}{quote(column, safe='')}/{shard:05d}/{bucket:015d}",
            partial(_with, cells, state.now_us()),
        )
    erased = {
        key.rpartition("/")[2]
        for prefix in (PREFIX, DONE)
        for key in (entry.key for entry in state.list(prefix))
    }
    for row_key in erased & {row_key_text(cell.row_key).decode() for cell, _ in rejected}:
        # it was erased after the gateway had read the body; the erasure looked before this list had
        # it
        forget_row(state, UUID(row_key))


def rejected_cells(state: StateTable, column: str | None = None) -> Iterator[RejectedCell]:
    """Those that are listed, of one column or all, by column, shard and added_id."""
    for entry in state.list(_PREFIX if column is None else f"{_PREFIX}{quote(column, safe='')}/"):
        yield from _cells_of(entry)


def left_out(state: StateTable, column: str, shards: int) -> LeftOutOfTopic | None:
    """The listed cells of a column in a datastore of so many shards; None when there is none. It
    reads ``COUNTED_ENTRIES`` entries and a shard more at most, however many there are."""
    entries, cells = 0, 0
    first: RejectedCell | None = None
    for shard in range(shards):
        found = state.list(f"{_PREFIX}{quote(column, safe='')}/{shard:05d}/")
        for entry in found:
            noted = _cells_of(entry)
            cells += len(noted)
            first = first or noted[0]
        entries += len(found)
        if entries >= COUNTED_ENTRIES:
            break
    if first is None:
        return None
    return LeftOutOfTopic(column, cells, shard < shards - 1, first)


def try_again(engine: Engine, columns: TypedColumns, column: str | None = None) -> TriedAgain:
    """Takes those off the list that fit a version now, or were trimmed. Run again after a kill, it
    does the rest. Raises Unavailable."""
    tried = TriedAgain([], [], [])
    starts = {shard: head.log_start for shard, head in engine.heads().items()}
    for entry in engine.state.list(
        _PREFIX if column is None else f"{_PREFIX}{quote(column, safe='')}/"
    ):
        done: set[str] = set()
        for cell in _cells_of(entry):
            if cell.added_id >= starts[cell.shard] and not _fits(engine, columns, cell):
                tried.still_rejected.append(cell)
                continue
            (tried.fits if cell.added_id >= starts[cell.shard] else tried.trimmed).append(cell)
            done.add(str(cell.added_id))
        if done:
            _change(engine.state, entry.key, partial(_without, done))
    return tried


def forget_row(state: StateTable, row_key: UUID) -> None:
    """Takes the cells of a row off the list: the reasons quote erased values. Raises
    Unavailable."""
    for entry in state.list(_PREFIX):
        gone = {str(cell.added_id) for cell in _cells_of(entry) if cell.row_key == str(row_key)}
        if gone:
            _change(state, entry.key, partial(_without, gone))


def _fits(engine: Engine, columns: TypedColumns, cell: RejectedCell) -> bool:
    typed = columns.named(cell.column)
    found: list[StoredCell] = engine.scan(cell.shard, cell.added_id, 1)
    # A cell that is missing or erased blocks nothing: nothing is left out for it.
    is_gone = not found or found[0].added_id != cell.added_id or is_erased(found[0].body)
    return is_gone or (
        typed is not None and not typed.encode([decode_body(found[0].body)])[0].mismatch
    )


def _with(cells: Sequence[Rejected], now_us: int, noted: Mapping[str, _Noted]) -> dict[str, _Noted]:
    new = {
        str(cell.added_id): _Noted(
            row_key_text(cell.row_key).decode(),
            cell.ref_key,
            reason[:REASON_CHARACTERS_MAX],
            now_us,
        )
        for cell, reason in cells
        if str(cell.added_id) not in noted
    }
    return {**noted, **new}


def _without(done: Collection[str], noted: Mapping[str, _Noted]) -> dict[str, _Noted]:
    return {key: value for key, value in noted.items() if key not in done}


def _change(
    state: StateTable, key: str, change: Callable[[Mapping[str, _Noted]], dict[str, _Noted]]
) -> None:
    for _ in range(_TRIES_MAX):
        entry = state.get(key)
        before = _decode(entry.value) if entry is not None else {}
        after = change(before)
        if (
            after == before
            or state.commit(
                {key: msgspec.json.encode(after) if after else None},
                expect={key: entry.version if entry else None},
            )
            is not None
        ):
            return
    raise Unavailable("the list of rejected cells could not be written: others are faster")


def _cells_of(entry: StateEntry) -> list[RejectedCell]:
    _, column, shard, _ = entry.key.split("/")
    found = sorted(
        ((int(added_id), noted) for added_id, noted in _decode(entry.value).items()),
        key=lambda each: each[0],
    )
    return [
        RejectedCell(
            unquote(column),
            int(shard),
            added_id,
            each.row_key,
            each.ref_key,
            each.reason,
            each.at_us,
        )
        for added_id, each in found
    ]
