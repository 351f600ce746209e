"""A query of an index, checked against its definition, and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypedDict
from uuid import UUID

import msgspec

from cellfeed.store.api import ReadFrom
from cellfeed.store.cells.cell import Cell
from cellfeed.store.engines.contract.index_values import Condition, Encoded
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.errors import InvalidLocation, InvalidRequest
from cellfeed.store.indexes.values import JsonValue

WAIT_S: Final = 5.0
"""How long a query waits for the index to come past a location, when the caller does not say, in
seconds."""

WAIT_MAX_S: Final = 8.0
"""Below the time-out of a read over HTTP."""

Filter = tuple[str, str, Any]
"""Field, operator, value; the value of ``in`` is a list."""


class QueryOptions(TypedDict, total=False):
    """How an index is queried, beside shard value and filters; see
    :meth:`cellfeed.store.datastore.Datastore.query_index`."""

    order_by: str | None
    descending: bool
    limit: int
    cursor: str | None
    fields: Sequence[str] | None
    columns: Sequence[str] | Literal["*"] | None
    mode: Literal["fresh", "fast"]
    read_from: ReadFrom
    wait_for: Any
    wait_s: float


class IndexRow(msgspec.Struct, frozen=True):
    """A row found. ``fields``: those asked for, None where missing, see
    :mod:`cellfeed.store.indexes.values`. ``cells``: the latest of the columns asked for."""

    row_key: UUID
    fields: dict[str, JsonValue | None]
    cells: dict[str, Cell] = {}


class IndexPage(msgspec.Struct, frozen=True):
    """An answer. ``cursor`` continues behind it; None at the end. ``stale``: entries or cells came
    from a minion, a later one may be missing. ``version``: of the index."""

    rows: list[IndexRow]
    cursor: str | None
    version: int
    stale: bool = False


@dataclass(frozen=True, slots=True)
class IndexRequest:
    """A checked query; all values encoded."""

    shard_values: tuple[Encoded, ...]
    conditions: tuple[Condition, ...]
    order: int | None
    descending: bool
    limit: int
    after: tuple[Encoded | None, bytes] | None
    fields: tuple[int, ...]
    columns: tuple[str, ...] | None
    """None for all of them."""

    fresh: bool
    read_from: Replica


def check_wait_for(wait_for: object, shards: int) -> dict[int, int]:
    """Locations to wait for, by shard: of ``(shard, added_id)``, of several, or of a mapping.
    Raises InvalidLocation."""
    if wait_for is None:
        return {}
    pairs: Any = (
        wait_for.items()
        if isinstance(wait_for, Mapping)
        else [wait_for]
        if _is_location(wait_for)
        else wait_for
    )
    found: dict[int, int] = {}
    for pair in pairs if isinstance(pairs, Sequence) or isinstance(wait_for, Mapping) else [pairs]:
        if not _is_location(pair) or not 0 <= pair[0] < shards or pair[1] < 0:
            raise InvalidLocation(
                f"wait_for {ascii(pair)[:80]} is no pair of a shard (0 to {shards - 1}) and an"
                " added_id, as a put is answered"
            )
        found[pair[0]] = max(found.get(pair[0], 0), pair[1])
    return found


def check_wait_s(wait_s: object) -> float:
    """Raises InvalidRequest unless it is 0 to ``WAIT_MAX_S`` seconds."""
    if type(wait_s) not in (int, float) or not 0 <= wait_s <= WAIT_MAX_S:  # type: ignore[operator]
        raise InvalidRequest(f"wait_s {wait_s!r} must be 0 to {WAIT_MAX_S:.0f} seconds")
    return float(wait_s)  # type: ignore[arg-type]


def _is_location(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(type(part) is int for part in value)
    )
