"""Record bytes of answers that their peers have not taken yet, of all connections together.

A peer that reads no answer keeps one in memory until its time-out. So a Fetch takes room for its
records before it reads them, and the connection gives it back when the answer is out. As the room
gets less, later answers get smaller: each takes at most a quarter of the rest, and the connections
of one address have at most half of it all. An answer always has one batch, also without room, so no
consumer stands still.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from cellfeed.bridge.gateway.limits import FETCH_BYTES_MAX, UNSENT_BYTES_MAX

_SHARE: Final = 4


class Unsent:
    """By connection. Used on the event loop."""

    def __init__(self, bytes_max: int = UNSENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._taken: dict[int, tuple[str, int]] = {}
        self._by_host: Counter[str] = Counter()
        self.bytes = 0
        """Taken by all connections."""

    def take(self, connection: int, host: str, wanted: int) -> int:
        """Takes room for an answer of at most ``wanted`` bytes, in place of the room that the
        connection has. Returns how many bytes the answer may have."""
        self.sent(connection)
        left = min(
            (self._bytes_max - self.bytes) // _SHARE,
            self._bytes_max // 2 - self._by_host[host],
        )
        allowed = max(min(wanted, FETCH_BYTES_MAX, left), 0)
        self.found(connection, host, allowed)
        return allowed

    def found(self, connection: int, host: str, size: int) -> None:
        """The answer has so many bytes."""
        self.sent(connection)
        if size:
            self._taken[connection] = host, size
            self._by_host[host] += size
            self.bytes += size

    def sent(self, connection: int) -> None:
        """The connection's answer is out, or the connection has ended."""
        host, size = self._taken.pop(connection, ("", 0))
        if size:
            self.bytes -= size
            self._by_host[host] -= size
            if not self._by_host[host]:
                del self._by_host[host]
