"""Whether a server's memory is enough for the indexes of its cells.

A cell's key is random, so each cell that is written changes about one page of the unique index.
With the page in InnoDB's buffer pool that costs memory alone. Without it the server reads a page
and writes another one for each cell: at 5 million cells 45 µs of its CPU instead of 10 to 18, and
26 kB written. Nothing is wrong with such a server, so it is advised about and never refused.
"""

from __future__ import annotations

from typing import Any, Final

from pymysql.connections import Connection

from cellfeed.store.engines.mysql.statements import query

POOL_BYTES_MIN: Final = 256 << 20
"""Below this a buffer pool is the server's default (128 MiB) or less: it holds the key index of
some 2 million cells."""

MISSED_MAX: Final = 0.01
"""Of the pages that a server looked for, those that it read from disk. A cell looks for about ten
pages: from here on every tenth cell waits for the disk."""

FULL: Final = 0.95
"""Of the pool's pages in use, from which on it counts as full. Before that, a page that is read
from disk is read for the first time."""

_SETTING: Final = "SELECT @@GLOBAL.innodb_buffer_pool_size"
_COUNTERS: Final = "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool%'"


def memory_advice(connection: Connection[Any]) -> str | None:
    """One sentence for the server's operator; None when its buffer pool does."""
    [(pool_bytes,)] = query(connection, _SETTING)
    counters = {str(name).lower(): str(value) for name, value in query(connection, _COUNTERS)}
    return advice(
        int(pool_bytes),
        1 - _count(counters, "pages_free") / max(1, _count(counters, "pages_total")),
        _count(counters, "reads") / max(1, _count(counters, "read_requests")),
    )


def advice(pool_bytes: int, used: float, missed: float) -> str | None:
    """See :func:`memory_advice`. ``used``: the part of the pool's pages in use; ``missed``: of the
    pages looked for, the part that was read from disk (both 0 to 1)."""
    size = f"innodb_buffer_pool_size is {pool_bytes >> 20} MiB"
    wanted = "give it half of the host's memory or more"
    if pool_bytes < POOL_BYTES_MIN:
        return f"{size}: a store that grows beyond it waits for the disk; {wanted}"
    if used >= FULL and missed > MISSED_MAX:
        return f"{size}, full, and {missed:.1%} of the pages were read from disk; {wanted}"
    return None


def _count(counters: dict[str, str], name: str) -> int:
    return int(counters[f"innodb_buffer_pool_{name}"])
