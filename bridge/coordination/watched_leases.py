"""Whether a lease in the state table lives: judged by this process's own monotonic clock, which
never steps.

A lease's entry gets another version with every renewal. A process notes when it sees a version for
the first time; a version that stands for the lease's whole time-to-live is dead. So no lease is
immortal, even with a wrong wall clock.

The storage's clock is asked once for each version: how old was it when it was seen first? Without
that, a process that starts would wait for leases that ended long ago. Two rules keep a wrong clock
from doing harm there:

- A lease whose end is further away than twice its time-to-live was written by another clock, and
  counts as expired. One that is a little too far away is taken as new: masters differ by
  milliseconds, and it lasts for one time-to-live at most.
- A version that follows one seen before is no older than that look. So the clock ends no lease of a
  member that others have seen renewing.

One fault remains: after a step of the storage's clock, a process may take a live lease that it sees
for the first time for dead. That lasts until the next renewal, a quarter of a lease later. Claims
may change hands then; nothing is saved under a claim that is void.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import msgspec

from cellfeed.store.engines.contract.values import StateEntry

_TTL_BEFORE_IT_WAS_NOTED_US: Final = 10_000_000
"""Of a lease that an earlier version wrote: the length of a worker's lease as it comes."""


class Lease(msgspec.Struct, frozen=True):
    """``expires_at_us``: by the storage's clock as the writer saw it."""

    epoch: int
    expires_at_us: int
    ttl_us: int = _TTL_BEFORE_IT_WAS_NOTED_US


@dataclass(slots=True)
class _Seen:
    """One version of a lease. ``written_s``: when it was written at the latest, by this process's
    clock; ``looked_s``: when it was last seen."""

    version: int
    written_s: float
    looked_s: float


class WatchedLeases:
    """The lease versions that one process has seen. May be used by any number of threads."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()

    def is_alive(self, entry: StateEntry, lease: Lease, now_s: float, now_us: int) -> bool:
        """``now_s`` and ``now_us``: this process's clock and the storage's, both read before the
        entry was."""
        with self._lock:
            seen = self._seen.get(entry.key)
            if seen is None or seen.version != entry.version:
                written_s = now_s - _age_us(lease, now_us) / 1e6
                if seen is not None:
                    written_s = max(written_s, seen.looked_s)
                seen = self._seen[entry.key] = _Seen(entry.version, written_s, now_s)
            else:
                seen.looked_s = max(seen.looked_s, now_s)
            return now_s - seen.written_s < lease.ttl_us / 1e6

    def wrote(self, key: str, version: int, begun_s: float) -> None:
        """This process wrote that version; it began to at ``begun_s``."""
        with self._lock:
            self._seen[key] = _Seen(version, begun_s, begun_s)

    def forget_others(self, prefix: str, keys: Collection[str]) -> None:
        """Forgets leases below ``prefix`` that are not there any more."""
        with self._lock:
            for key in [key for key in self._seen if key.startswith(prefix) and key not in keys]:
                del self._seen[key]


def _age_us(lease: Lease, now_us: int) -> int:
    """By the storage's clock; the whole time-to-live where the writer's clock was another one."""
    age_us = now_us - (lease.expires_at_us - lease.ttl_us)
    return lease.ttl_us if age_us < -lease.ttl_us else min(max(age_us, 0), lease.ttl_us)
