"""The open connections of a server, counted by address.

A connection counts from its first packet on: before TLS, before any authentication. A **stranger**
is one whose peer has not come through both yet. Strangers take at most their own places. When these
are full, the stranger that has been there longest makes room: an honest peer needs milliseconds for
its handshake, and a silent one waits for its time-out. So nobody who is not let in keeps others
out.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from cellfeed.store.limits import (
    CONNECTIONS_PER_ADDRESS_MAX,
    STRANGERS_MAX,
    STRANGERS_PER_ADDRESS_MAX,
)

Task = asyncio.Task[None]
"""Serves one connection."""


class OpenConnections:
    """See the module. At most ``connections_max``, and ``per_address_max`` from one address;
    strangers take half of all at most. Used on the event loop."""

    def __init__(
        self, connections_max: int, per_address_max: int = CONNECTIONS_PER_ADDRESS_MAX
    ) -> None:
        self._connections_max = connections_max
        self._per_address_max = per_address_max
        self._addresses: dict[Task, str] = {}
        self._by_address: Counter[str] = Counter()
        self._strangers: dict[Task, str] = {}
        """With their addresses; the longest there first."""
        self._strangers_by_address: dict[str, dict[Task, None]] = {}

    def __len__(self) -> int:
        return len(self._addresses)

    def tasks(self) -> list[Task]:
        return list(self._addresses)

    def of_address(self, host: str) -> int:
        """How many are open from there."""
        return self._by_address[host]

    def in_the_way(self, host: str) -> tuple[Task, str] | None:
        """The stranger that has to make room for one of this address, with its own address."""
        theirs = self._strangers_by_address.get(host, {})
        if len(theirs) >= STRANGERS_PER_ADDRESS_MAX:
            return next(iter(theirs)), host
        if len(self._strangers) >= min(STRANGERS_MAX, self._connections_max // 2):
            return next(iter(self._strangers.items()))
        return None

    def has_room(self, host: str) -> bool:
        """Whether the limits of connections allow one more of the address."""
        return len(self) < self._connections_max and self._by_address[host] < self._per_address_max

    def begun(self, task: Task, host: str) -> None:
        """A connection of a stranger."""
        self._addresses[task] = self._strangers[task] = host
        self._by_address[host] += 1
        self._strangers_by_address.setdefault(host, {})[task] = None

    def known(self, task: Task) -> None:
        """The connection is none of a stranger any more."""
        host = self._strangers.pop(task, None)
        if host is not None:
            theirs = self._strangers_by_address[host]
            del theirs[task]
            if not theirs:
                del self._strangers_by_address[host]

    def ended(self, task: Task) -> None:
        """The connection is gone."""
        self.known(task)
        host = self._addresses.pop(task)
        self._by_address[host] -= 1
        if not self._by_address[host]:
            del self._by_address[host]
