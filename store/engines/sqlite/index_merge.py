"""Merges entries into an index table of an embedded store (X1)."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

from cellfeed.store.engines.contract.index_values import Entry, IndexTable
from cellfeed.store.engines.index_sql import columns_of, values_of

_ROWS_TOGETHER: Final = 500
"""Entries that one statement merges, or rows that one compares: each gives up the interpreter's
lock and takes it back, where it holds the file's write lock as well. An entry has at most 27
values."""


def _place(entry: Entry) -> Any:
    return entry.place


def merge(
    connection: sqlite3.Connection, table: IndexTable, entries: Mapping[int, Sequence[Entry]]
) -> None:
    """In the order of the table, so that neighbours are written together."""
    rows = [
        (shard, *values_of(entry))
        for shard, each in sorted(entries.items())
        for entry in sorted(each, key=_place)
    ]
    whole = len(rows) - len(rows) % _ROWS_TOGETHER
    for start in range(0, whole, _ROWS_TOGETHER):
        connection.execute(
            _merge_sql(table, _ROWS_TOGETHER),
            list(chain.from_iterable(rows[start : start + _ROWS_TOGETHER])),
        )
    connection.executemany(_merge_sql(table, 1), rows[whole:])


def _merge_sql(table: IndexTable, rows: int) -> str:
    """All right-hand sides see the row as it was."""
    sets = []
    for number, fields in enumerate(table.columns):
        ref = f"r{number}"
        newer = f"excluded.{ref} IS NOT NULL AND ({ref} IS NULL OR excluded.{ref} > {ref})"
        registers = [
            ref,
            *(["live"] if number == 0 else []),
            *(f"f{field}" for field in fields if field),
        ]
        sets += [
            f"{name} = CASE WHEN {newer} THEN excluded.{name} ELSE {name} END" for name in registers
        ]
    names = ["shard", *columns_of(table)]
    values = ", ".join([f"({', '.join('?' * len(names))})"] * rows)
    return (
        f"INSERT INTO {table.name} ({', '.join(names)}) VALUES {values} ON CONFLICT (shard, f0,"
        f" row_key) DO UPDATE SET {', '.join(sets)}"
    )
