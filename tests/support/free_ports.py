"""Ports that nobody has just now, and that no connection is given by chance.

A port that the system gives out by itself (``bind`` to 0) may be given to somebody's client
connection a moment later; before the server that it was chosen for binds it. So they are chosen
below the range that the system gives out (from 32,768 on Linux), by chance, and none twice: anybody
who was given one may bind it much later. Test processes that run beside each other choose from
different ports.
"""

from __future__ import annotations

import os
import random
import socket
from typing import Final

_FIRST: Final = 12_000
_LAST: Final = 30_000
_CHANCE: Final = random.SystemRandom()
"""Of its own: tests set the seed of the common one."""

_WORKERS: Final = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_given: Final[set[int]] = set()


def free_ports(count: int) -> list[int]:
    """So many different free ports on loopback."""
    found: list[int] = []
    while len(found) < count:
        port = _CHANCE.randrange(_FIRST + _WORKER, _LAST, _WORKERS)
        if port not in _given and _is_free(port):
            _given.add(port)
            found.append(port)
    return found


def free_port() -> int:
    """One free port on loopback."""
    [port] = free_ports(1)
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
