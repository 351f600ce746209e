"""How long writes stand still when the master is killed (kill -9) and the supervisor promotes a
minion: from the kill to the next acknowledged put."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from uuid import uuid4

from benchmarks import Figure, at_most
from benchmarks._mariadb_instance import mariadb_instance
from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.client import Client

RUNS = 5
WITHIN = at_most(5.0)
_GIVE_UP_S = 60.0


def figures(runs: int = RUNS) -> Iterator[Figure]:
    """Measures; see the module."""
    seconds = [_run() for _ in range(runs)]
    yield Figure("promotion p50", statistics.median(seconds), "s", limit=WITHIN)
    yield Figure("promotion worst", max(seconds), "s", limit=WITHIN)


def _run() -> float:
    with (
        mariadb_instance(failover="automatic") as instance,
        Client(instance.url, "trips", timeout_s=1.0) as client,
    ):
        for _ in range(50):
            client.put_cell(uuid4(), "BASE", 1, {})
        time.sleep(2.0)  # the supervisor has looked
        began = time.monotonic()
        instance.servers[0].kill()
        while time.monotonic() - began < _GIVE_UP_S:
            try:
                client.put_cell(uuid4(), "BASE", 1, {})
            except CellfeedError:
                time.sleep(0.02)
            else:
                return time.monotonic() - began
    raise RuntimeError(f"no writes within {_GIVE_UP_S} s of the master's death")
