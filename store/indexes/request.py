"""A query of an index, checked against its definition, and its answer."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypedDict
from uuid import UUID

import msgspec

from cellfeed.store.api import ReadFrom
from cellfeed.store.cells.cell import Cell, check_column_name
from cellfeed.store.engines.contract.indexes import OPERATORS, Condition, Encoded
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.errors import InvalidLocation, InvalidRequest
from cellfeed.store.indexes.definition import IndexDefinition
from cellfeed.store.indexes.values import JsonValue, encode_given

SHARD_VALUES_MAX: Final = 200
"""Shard values of one query: each is a statement of its own."""

FILTERS_MAX: Final = 32
IN_VALUES_MAX: Final = 500
ROWS_MAX: Final = 1_000
"""Rows of one answer."""

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


class _Cursor(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """``version`` of the index, a digest of the query, and the place of the last entry."""

    version: int
    asked: int
    value: int | bytes | None
    row_key: bytes


_cursor_decoder: Final = msgspec.msgpack.Decoder(_Cursor)
_cursor_encode: Final = msgspec.msgpack.Encoder().encode


def checked_request(
    definition: IndexDefinition,
    version: int,
    *,
    shard_value: Any,
    where: Sequence[Filter],
    order_by: str | None,
    descending: bool,
    limit: int,
    cursor: str | None,
    fields: Sequence[str] | None,
    columns: Sequence[str] | str | None,
    mode: str,
    read_from: Replica,
) -> IndexRequest:
    """Raises InvalidRequest with the fault."""
    shard_field = definition.shard_field
    given = list(shard_value) if isinstance(shard_value, list | tuple | set) else [shard_value]
    if not 1 <= len(given) <= SHARD_VALUES_MAX:
        raise InvalidRequest(
            f"{len(given)} values of the shard field {shard_field.name}; 1 to {SHARD_VALUES_MAX}"
            " are allowed"
        )
    shard_values = tuple(
        {encode_given(shard_field.name, shard_field.type, value): None for value in given}
    )
    if len(where) > FILTERS_MAX:
        raise InvalidRequest(f"{len(where)} filters; at most {FILTERS_MAX} are allowed")
    if type(limit) is not int or not 1 <= limit <= ROWS_MAX:
        raise InvalidRequest(f"limit {limit!r} must be 1 to {ROWS_MAX} rows")
    if mode not in ("fresh", "fast"):
        raise InvalidRequest(f"mode {ascii(mode)[:80]} must be 'fresh' or 'fast'")
    conditions = tuple(_condition(definition, each) for each in where)
    order = None if order_by is None else definition.position(order_by)
    request = IndexRequest(
        shard_values=shard_values,
        conditions=conditions,
        order=order,
        descending=descending,
        limit=limit,
        after=None,
        fields=(
            tuple(range(len(definition.fields)))
            if fields is None
            else tuple(definition.position(name) for name in fields)
        ),
        columns=_columns(columns),
        fresh=mode == "fresh",
        read_from=read_from,
    )
    return request if cursor is None else _behind(request, cursor, version)


def cursor_text(request: IndexRequest, version: int, place: tuple[Encoded | None, bytes]) -> str:
    """The cursor behind an entry."""
    return (
        base64.urlsafe_b64encode(_cursor_encode(_Cursor(version, _asked(request), *place)))
        .decode()
        .rstrip("=")
    )


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


def _condition(definition: IndexDefinition, given: object) -> Condition:
    if not isinstance(given, list | tuple) or len(given) != 3 or not isinstance(given[0], str):
        raise InvalidRequest(f"a filter is (field, operator, value), not {ascii(given)[:80]}")
    name, operator, value = given
    position = definition.position(name)
    if operator not in OPERATORS:
        raise InvalidRequest(
            f"field {name}: operator {ascii(operator)[:40]} is not known; known are"
            f" {' '.join(OPERATORS)}"
        )
    kind = definition.fields[position].type
    if operator != "in":
        return Condition(position, operator, (encode_given(name, kind, value),))
    if not isinstance(value, list | tuple | set) or not 1 <= len(value) <= IN_VALUES_MAX:
        raise InvalidRequest(f"field {name}: `in` takes a list of 1 to {IN_VALUES_MAX} values")
    return Condition(
        position, operator, tuple({encode_given(name, kind, each): None for each in value})
    )


def _columns(columns: Sequence[str] | str | None) -> tuple[str, ...] | None:
    if columns == "*":
        return None
    if isinstance(columns, str):
        raise InvalidRequest(
            f"columns {columns[:80]!r} must be a list of column names, or '*' for all"
        )
    return tuple(check_column_name(column) for column in columns or ())


def _behind(request: IndexRequest, cursor: str, version: int) -> IndexRequest:
    try:
        found = _cursor_decoder.decode(
            base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        )
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise InvalidRequest("the cursor is not one of this service's") from None
    if found.asked != _asked(request) or len(found.row_key) != 16:
        raise InvalidRequest(
            "the cursor is of another query: shard values, filters and order must stay the same"
        )
    if found.version != version:
        raise InvalidRequest(
            f"the cursor is of version {found.version} of the index, which is at version {version}"
            " by now: begin again without it"
        )
    return replace(request, after=(found.value, found.row_key))


def _asked(request: IndexRequest) -> int:
    """A digest of the query that a cursor belongs to, of 32 bits."""
    return binascii.crc32(
        _cursor_encode(
            [
                sorted(request.shard_values, key=repr),
                request.conditions,
                request.order,
                request.descending,
            ]
        )
    )
