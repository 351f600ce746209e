"""Runs one SQL statement, as a process of its own: ``python -m cellfeed.console.query.sandbox``.

It reads a :class:`Asked` on its standard input and writes an :class:`Answer`, both JSON.

**Limits.** One statement runs, and DuckDB's parser says that it is a SELECT. The
engine has no access to files, the network, extensions or settings: its tables are Arrow data sets,
which this process opened before. It has a bounded memory and one thread. The process may write no
file, has bounded memory and time of its own, and none of the console's environment. The console
kills it when its time is over. So a fault of the engine ends one query, and nothing else.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY: Final = "256MB"
"""Of the engine for one query."""

PROCESS_BYTES_MAX: Final = 4 << 30
"""Address space of the process: libraries reserve more than they use."""

TIME_S: Final = 15.0
ROWS_MAX: Final = 1_000
VALUE_CHARACTERS_MAX: Final = 2_000
ANSWER_BYTES_MAX: Final = 1 << 20
COLUMNS_MAX: Final = 100

_DAY: Final = "created_day"
_FETCHED_ROWS: Final = 100


class Asked(msgspec.Struct, frozen=True):
    """``files``: of the view ``cells``."""

    sql: str
    files: list[str]


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """``rows``: values as text, None for NULL. ``more``: there are others. ``error``: of the SQL,
    in place of rows."""

    columns: list[str] = []
    types: list[str] = []
    rows: list[list[str | None]] = []
    more: bool = False
    seconds: float = 0.0
    error: str = ""


def limit_process() -> None:
    """Limits this process for good: memory, processor time, no file larger than nothing, no core
    dump; and its end when the console is gone."""
    resource.setrlimit(resource.RLIMIT_AS, (PROCESS_BYTES_MAX, PROCESS_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    seconds = int(TIME_S) + 15
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    signal.alarm(seconds)


def connect(files: Sequence[str]) -> DuckDBPyConnection:
    """A connection with the views ``cells`` and ``latest``, and access to nothing else."""
    # Large libraries: this process alone loads them.
    import duckdb
    import pyarrow as pa
    from pyarrow import dataset

    from cellfeed.consumers.duckdb_views import make_views
    from cellfeed.consumers.warehouse.parquet_rows import SCHEMA

    pa.set_cpu_count(1)
    connection = duckdb.connect(
        config={
            "memory_limit": MEMORY,
            "threads": "1",
            "temp_directory": "",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
        }
    )
    connection.register(
        "stored_cells",
        dataset.dataset(list(files), SCHEMA, format="parquet") if files else SCHEMA.empty_table(),
    )
    make_views(
        connection,
        f"SELECT *, CAST(created_at AS DATE) AS {_DAY} FROM stored_cells",  # noqa: S608
    )
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def answer(connection: DuckDBPyConnection, sql: str, time_s: float = TIME_S) -> Answer:
    """Runs the statement, for ``time_s`` seconds at most."""
    import duckdb  # a large library

    began_s = time.monotonic()
    timer = threading.Timer(time_s, connection.interrupt)
    timer.daemon = True
    try:
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            return Answer(error="one SELECT is asked for here, and nothing else")
        timer.start()
        found = connection.execute(statements[0])
        names = [str(each[0]) for each in found.description or ()]
        if len(names) > COLUMNS_MAX:
            return Answer(error=f"{len(names)} columns: at most {COLUMNS_MAX} are shown")
        types = [str(each[1]) for each in found.description or ()]
        rows, more = _rows(found)
    except duckdb.InterruptException:
        return Answer(error=f"it took more than {time_s:g} s: filter by created_day or shard")
    except (duckdb.Error, MemoryError) as error:
        text = str(error).strip() or "no memory is left"
        return Answer(error=text[:VALUE_CHARACTERS_MAX])
    finally:
        timer.cancel()
    return Answer(names, types, rows, more, time.monotonic() - began_s)


def _rows(found: DuckDBPyConnection) -> tuple[list[list[str | None]], bool]:
    rows: list[list[str | None]] = []
    left = ANSWER_BYTES_MAX // 2
    while fetched := found.fetchmany(_FETCHED_ROWS):
        for row in fetched:
            shown = [_text(value) for value in row]
            left -= sum(len(each.encode()) + 4 if each else 4 for each in shown)
            if left < 0 or len(rows) == ROWS_MAX:
                return rows, True
            rows.append(shown)
    return rows, False


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = str(value)
    if len(text) <= VALUE_CHARACTERS_MAX:
        return text.encode(errors="replace").decode()
    return text[:VALUE_CHARACTERS_MAX].encode(errors="replace").decode() + "…"


def main() -> None:
    """Answers the question on the standard input."""
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Asked)
    limit_process()
    with contextlib.closing(connect(asked.files)) as connection:
        found = answer(connection, asked.sql)
    sys.stdout.buffer.write(msgspec.json.encode(found))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
