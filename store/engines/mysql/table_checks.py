"""The tables of cells on a MySQL or MariaDB server, checked whenever an engine opens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.engines.mysql.server_rules import Problem
from cellfeed.store.engines.mysql.statements import query

_NAMED_MAX: Final = 5
"""Tables named in one message: a server that was set up wrongly has the same fault in thousands."""

_CELL_COLUMNS: Final = {
    "added_id": "bigint unsigned",
    "row_key": "binary(16)",
    "column_name": "varbinary(128)",
    "ref_key": "bigint",
    "body": "mediumblob",
    "created_at": "datetime(6)",
    "crc": "int unsigned",
}
"""Without display widths, which MariaDB shows and MySQL does not."""


def check_tables(connection: Connection[Any], layout: Layout) -> list[Problem]:
    """The faults in the cell tables: one that is missing, a type, collation or key under which
    cells that differ would be one, an engine that loses them.

    It takes a few catalogue queries, for any number of shards.
    """
    shards = {
        layout.database(int(shard))
        for (shard,) in query(connection, f"SELECT shard FROM {layout.meta}.shard_counter")
    }
    ours = f"TABLE_NAME = 'cell' AND TABLE_SCHEMA REGEXP '^{layout.datastore}_[0-9]+$'"
    engines = query(
        connection, f"SELECT TABLE_SCHEMA, ENGINE FROM information_schema.TABLES WHERE {ours}"
    )
    if missing := sorted(shards - {str(database) for database, _ in engines}):
        return [_missing_tables(missing)]
    return (
        [
            problem
            for database, engine in engines
            if (problem := _engine_problem(str(database), str(engine)))
        ][:_NAMED_MAX]
        + _column_problems(connection, ours)
        + _key_problems(connection, ours, len(engines))
    )


def _missing_tables(databases: Sequence[str]) -> Problem:
    found_as = (
        f"missing, and so are {len(databases) - 1} others" if len(databases) > 1 else "missing"
    )
    return Problem(
        f"{databases[0]}.cell",
        found_as,
        "a table",
        "the shard's cells are in it",
        "restore it from a backup, or make this node a copy of another one",
    )


def _engine_problem(database: str, engine: str) -> Problem | None:
    if engine == "InnoDB":
        return None
    fix = f"`ALTER TABLE {database}.cell ENGINE = InnoDB`"
    return Problem(
        f"{database}.cell ENGINE",
        engine,
        "InnoDB",
        "only its commits are all or nothing, and durable",
        fix,
    )


def _column_problems(connection: Connection[Any], ours: str) -> list[Problem]:
    rows = query(
        connection,
        "SELECT COLUMN_NAME, COLUMN_TYPE, COLLATION_NAME, MIN(TABLE_SCHEMA), COUNT(*) FROM"
        f" information_schema.COLUMNS WHERE {ours} GROUP BY COLUMN_NAME, COLUMN_TYPE,"
        " COLLATION_NAME",
    )
    problems = []
    for name, kind, collation, database, count in rows:
        wanted = _CELL_COLUMNS.get(str(name))
        if wanted is None or _without_width(str(kind)) == wanted:
            continue
        found_as = (f"{kind} COLLATE {collation}" if collation else str(kind)) + (
            f" (in {count} shards)" if int(count) > 1 else ""
        )
        why = "cells that differ could be taken for one, or come back changed"
        fix = (
            f"`ALTER TABLE {database}.cell MODIFY {name}"
            f" {wanted.upper()}{'' if name == 'crc' else ' NOT NULL'}`"
        )
        problems.append(Problem(f"{database}.cell.{name}", found_as, wanted, why, fix))
    return problems


def _key_problems(connection: Connection[Any], ours: str, tables: int) -> list[Problem]:
    rows = query(
        connection,
        f"SELECT TABLE_SCHEMA FROM information_schema.STATISTICS WHERE {ours} AND NON_UNIQUE = 0"
        " AND INDEX_NAME = 'triple' AND CONCAT(SEQ_IN_INDEX, COLUMN_NAME) IN ('1row_key',"
        " '2column_name', '3ref_key') AND SUB_PART IS NULL GROUP BY TABLE_SCHEMA HAVING"
        " COUNT(*) = 3",
    )
    if len(rows) == tables:
        return []
    keyed = {str(database) for (database,) in rows}
    all_of_them = [
        str(database)
        for (database,) in query(
            connection, f"SELECT TABLE_SCHEMA FROM information_schema.TABLES WHERE {ours}"
        )
    ]
    why = "nothing else keeps a cell from being stored twice"
    return [
        Problem(
            f"{database}.cell KEY triple",
            "missing",
            "UNIQUE (row_key, column_name, ref_key)",
            why,
            f"`ALTER TABLE {database}.cell ADD UNIQUE KEY triple (row_key, column_name, ref_key)`",
        )
        for database in sorted(set(all_of_them) - keyed)[:_NAMED_MAX]
    ]


def _without_width(kind: str) -> str:
    name, _, rest = kind.partition("(")
    return f"{name}{rest.partition(')')[2]}" if name in ("bigint", "int") else kind
