"""Checks a query of an index against its definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cellfeed.store.cells.cell import check_column_name
from cellfeed.store.engines.contract.index_values import OPERATORS, Condition
from cellfeed.store.engines.contract.values import Replica
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.indexes.cursor import behind
from cellfeed.store.indexes.definition import IndexDefinition
from cellfeed.store.indexes.request import Filter, IndexRequest
from cellfeed.store.indexes.values import encode_given

SHARD_VALUES_MAX: Final = 200
"""Shard values of one query: each is a statement of its own."""

FILTERS_MAX: Final = 32

IN_VALUES_MAX: Final = 500

ROWS_MAX: Final = 1_000
"""Rows of one answer."""


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
    return request if cursor is None else behind(request, cursor, version)


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
