"""The statements over index tables that SQLite and MariaDB have in common. Values are numbers and
X'..' literals made here, or parameters where the engine keeps prepared statements; names are
checked before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from cellfeed.store.engines.contract.index_values import (
    Condition,
    Encoded,
    Entry,
    EntrySelect,
    IndexTable,
)

InSql = Callable[[Encoded], str]
"""How a value stands in a statement: :func:`literal`, or :meth:`Parameters.add`."""


class Parameters:
    """Values that a statement names by their numbers: its text is the same for other values, so the
    engine has it prepared."""

    def __init__(self, *given: Encoded) -> None:
        self.values: list[Encoded] = list(given)

    def add(self, value: Encoded) -> str:
        """The numbered parameter that stands for the value in the SQL."""
        self.values.append(value)
        return f"?{len(self.values)}"


def literal(value: Encoded | None) -> str:
    """The SQL literal of a value."""
    if value is None:
        return "NULL"
    return f"X'{value.hex()}'" if isinstance(value, bytes) else str(value)


def columns_of(table: IndexTable) -> list[str]:
    """The columns of an entry, in the order of :func:`values_of`."""
    return [
        "row_key",
        "live",
        *(f"r{number}" for number in range(len(table.columns))),
        *(f"f{number}" for number in range(len(table.widths))),
    ]


def values_of(entry: Entry) -> Iterator[Encoded | None]:
    """The values of the columns that :func:`columns_of` names."""
    yield entry.row_key
    yield int(entry.live)
    yield from entry.refs
    yield from entry.values


def selected_entries(
    table: IndexTable, wanted: EntrySelect, rows: Sequence[tuple[Any, ...]]
) -> list[Entry]:
    """The entries of a select's rows, integers being integers."""
    behind_refs, value = 1 + len(table.columns), wanted.value
    return [Entry(row[0], True, row[1:behind_refs], (value, *row[behind_refs:])) for row in rows]


def entries_of(table: IndexTable, rows: Sequence[tuple[Any, ...]]) -> list[Entry]:
    """The entries of rows of :func:`columns_of`, integers being integers."""
    behind_refs = 2 + len(table.columns)
    return [Entry(row[0], row[1] == 1, row[2:behind_refs], row[behind_refs:]) for row in rows]


def _selected(table: IndexTable) -> list[str]:
    """All but the shard value, which is known, and ``live``."""
    return [
        "row_key",
        *(f"r{number}" for number in range(len(table.columns))),
        *(f"f{number}" for number in range(1, len(table.widths))),
    ]


def select_sql(table: IndexTable, source: str, wanted: EntrySelect, in_sql: InSql) -> str:
    """One :class:`EntrySelect`. ``source``: the table, and the condition that keeps it to the
    shard."""
    conditions = [
        f"f0 = {in_sql(wanted.value)}",
        "live = 1",
        *(_condition(each, in_sql) for each in wanted.conditions),
    ]
    if wanted.after is not None:
        conditions.append(_after(wanted.order, wanted.descending, *wanted.after, in_sql))
    direction = " DESC" if wanted.descending else ""
    # The shard field is the same in all of them.
    order = (
        f"f{wanted.order}{direction}, row_key{direction}" if wanted.order else f"row_key{direction}"
    )
    return (
        f"SELECT {', '.join(_selected(table))} FROM {source} {' AND '.join(conditions)} ORDER BY"
        f" {order} LIMIT {in_sql(wanted.limit)}"
    )


def _condition(condition: Condition, in_sql: InSql) -> str:
    column = f"f{condition.field}"
    if condition.operator == "in":
        return f"{column} IN ({', '.join(map(in_sql, condition.values))})"
    operator = "<>" if condition.operator == "!=" else condition.operator
    return f"{column} {operator} {in_sql(condition.values[0])}"


def _after(
    order: int | None, descending: bool, value: Encoded | None, row_key: bytes, in_sql: InSql
) -> str:
    """A missing field stands before all values, as both engines order it."""
    beyond = "<" if descending else ">"
    key = f"row_key {beyond} {in_sql(row_key)}"
    if not order:
        return key
    column = f"f{order}"
    if value is None:
        return (
            f"({column} IS NULL AND {key})"
            if descending
            else f"(({column} IS NULL AND {key}) OR {column} IS NOT NULL)"
        )
    here = in_sql(value)
    behind = f"{column} {beyond} {here} OR ({column} = {here} AND {key})"
    return (
        f"({behind} OR {column} IS NULL)" if descending else f"({column} >= {here} AND ({behind}))"
    )


def walk_condition(after: tuple[Encoded, bytes] | None) -> str:
    """The condition for entries behind a place, in the order of places."""
    if after is None:
        return "1 = 1"
    value, row_key = map(literal, after)
    return f"(f0 > {value} OR (f0 = {value} AND row_key > {row_key}))"


def exact_condition(table: IndexTable, entry: Entry, same: str) -> str:
    """That a row is this entry. ``same`` is the operator that takes two NULLs for equal: the
    engines have different words for it."""
    return " AND ".join(
        f"{column} {same} {literal(value)}"
        for column, value in zip(columns_of(table), values_of(entry), strict=True)
    )
