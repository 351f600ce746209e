"""``warehouse query`` and ``lake query``: the rows that SQL gives, for people or machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cellfeed.cli.output import print_json, print_rows
from cellfeed.store.errors import InvalidRequest


def print_query(query: Callable[[str], list[dict[str, Any]]], sql: str, *, as_json: bool) -> None:
    """Asks a table, and prints its rows. Raises InvalidRequest for SQL that is wrong."""
    import duckdb  # a large library: loaded for SQL only

    try:
        rows = query(sql)
    except duckdb.Error as error:
        raise InvalidRequest(
            f"SQL {sql[:200]!r}: {str(error).partition(chr(10))[0]}. Ask the views `cells` and"
            " `latest` in DuckDB's SQL"
        ) from None
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_rows(rows)
