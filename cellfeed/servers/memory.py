"""How much memory a local MariaDB server may keep pages in.

A server's own default is 128 MiB. The key index of some 2 million cells fills that, and each cell
beyond waits for the disk (:mod:`cellfeed.store.engines.mysql.memory`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil

PART_OF_MEMORY: Final = 0.5
"""Of the machine's memory, for the buffer pools of all MariaDB servers of an instance together: the
rest is for their readers, and for the file system."""

POOL_BYTES_MIN: Final = 128 << 20
"""The server's own default."""

POOL_BYTES_MAX: Final = 8 << 30
"""A local server that needs more deserves a settings file of its own."""

_CGROUP_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")


def pool_bytes(servers: int, memory_bytes: int) -> int:
    """The buffer pool of each of so many servers on a machine with so much memory, in bytes: a
    whole number of MiB."""
    share = int(memory_bytes * PART_OF_MEMORY) // max(1, servers)
    return min(POOL_BYTES_MAX, max(POOL_BYTES_MIN, share)) >> 20 << 20


def memory_bytes(limit: Path = _CGROUP_LIMIT) -> int:
    """The memory of this machine, or the limit of the process' control group where that is less.
    ``limit``: the file of control groups (version 2) with the limit."""
    total = int(psutil.virtual_memory().total)
    try:
        return min(total, int(limit.read_text()))
    except (OSError, ValueError):
        return total  # no control group, or one without a limit ("max")
