"""A MariaDB server of the benchmarks' own, durable as the product demands it, with its files in a
temporary folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support import local_mariadb
from tests.support.local_mariadb import MariaDB

_OPTIONS = (
    "--innodb-log-file-size=256M",
    "--max-connections=600",
)
_TABLES_OPEN = 10_000
_POOL_MIB = 256


@contextmanager
def mariadb(*, tables_open: int = _TABLES_OPEN, pool_mib: int = _POOL_MIB) -> Iterator[MariaDB]:
    """A server that runs, empty. ``tables_open``: how many tables it keeps open. ``pool_mib``: its
    buffer pool. Raises RuntimeError, with the reason, where none can be had."""
    if reason := local_mariadb.why_not():
        raise RuntimeError(reason)
    caches = (
        f"--table-open-cache={tables_open}",
        f"--table-definition-cache={tables_open}",
        f"--innodb-open-files={tables_open}",
    )
    pool = f"--innodb-buffer-pool-size={pool_mib}M"
    options = (*_OPTIONS, pool, *caches, f"--open-files-limit={3 * tables_open}")
    with local_mariadb.running(options) as server:
        yield server
