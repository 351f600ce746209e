"""Waiters are woken when an outlet saves its position. A wake-up is a hint; the positions are the
truth.

A process with waiters asks the processes of this machine to be woken: it sends a **watch**, one
datagram about the outlet's group, to every follower of the logs
(:mod:`cellfeed.store.wakeups.datagrams`). The process that has the outlet answers at once and
remembers the sender for ``WATCH_S``. It sends a datagram after each save of the group's offsets.
While somebody waits it saves each step, where it would otherwise let several come together.

**No answer is early.** A datagram says nothing but "look". The waiter reads the positions, and
their words alone decide.

**No wake-up is missed between two steps.** The waiter sends its watch, then looks; the outlet
saves, then wakes. A save behind the arrival of the watch is followed by a wake-up. For a save
before it, the answer to the watch is one: it leads to a look that begins after that save. Datagrams
wait in the socket while a look is under way, so each is followed by a look of its own.

**Nothing depends on it.** A datagram may be lost, the outlet may be on another machine, or have
started behind the watch. Then the waiter finds the position by polling. Its next watch, a second
later, reaches the process that has the outlet then.

**A waiter that has gone costs nothing.** A watch is never taken back: it runs out. Without watches
a save costs one look at an empty table.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import CellfeedError
from cellfeed.store.wakeups.addresses import follower_addresses
from cellfeed.store.wakeups.datagrams import DATAGRAM_BYTES_MAX, send_hint

WATCH_S: Final = 3.0
"""How long a watch lasts at the outlet's end, in seconds."""

WATCH_AGAIN_S: Final = 1.0
"""How often a waiter sends its watch: an outlet that has started since, on another process, is
polled for so long."""

WATCHES_MAX: Final = 256
"""Watches in one process, some 300 bytes each. Those beyond poll."""

_WOKEN: Final = b"w"
_NUDGED: Final = b"n"

Address = tuple[str, int]


class Awaited:
    """The outlet's end: the watches of groups of this process. Any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until_s: dict[bytes, dict[Address, float]] = {}
        """By group's watch the waiters, and when each one's watch runs out."""
        self._socket: socket.socket | None = None
        self._closed = False

    def take(self, what: bytes, sender: Address) -> bool:
        """Takes a watch, and answers it. False for any other datagram."""
        if len(what) != DATAGRAM_BYTES_MAX or not what.startswith(_WOKEN):
            return False
        with self._lock:
            self._forget_lapsed()
            known = sender in self._until_s.get(what, {})
            if known or sum(map(len, self._until_s.values())) < WATCHES_MAX:
                self._until_s.setdefault(what, {})[sender] = time.monotonic() + WATCH_S
                self._send([sender])
        return True

    def is_awaited(self, group: str) -> bool:
        """Whether a watch of the group has not run out."""
        if not self._until_s:
            return False
        found = self._until_s.get(_watch_of(group))
        now_s = time.monotonic()
        return found is not None and any(each > now_s for each in tuple(found.values()))

    def wake(self, group: str) -> None:
        """Wakes the waiters of the group, to be called behind each save of its offsets. Raises
        nothing, and waits for nothing."""
        if not self._until_s:
            return
        with self._lock:
            self._forget_lapsed()
            self._send(self._until_s.get(_watch_of(group), ()))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._until_s = {}
            if self._socket is not None:
                self._socket.close()

    def _forget_lapsed(self) -> None:
        now_s = time.monotonic()
        left = {
            what: {address: until_s for address, until_s in found.items() if until_s > now_s}
            for what, found in self._until_s.items()
        }
        self._until_s = {what: found for what, found in left.items() if found}

    def _send(self, addresses: list[Address] | dict[Address, float] | tuple[()]) -> None:
        if not addresses or self._closed:
            return
        with suppress(OSError):  # without a descriptor nobody is woken: they poll
            if self._socket is None:
                self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            for address in addresses:
                send_hint(self._socket, _WOKEN, address)


class Watch:
    """The waiter's end, for one outlet: used by one thread, but for :meth:`nudge`. Raises OSError
    where there is no socket to be had."""

    def __init__(self, state: StateTable) -> None:
        self._state = state
        self._again_at_s = 0.0
        self.is_answered = False
        """Whether an outlet has answered the latest watch: it will wake this one."""
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind(("127.0.0.1", 0))
        except OSError:
            self._socket.close()
            raise
        self._address: Address = self._socket.getsockname()

    def send_where_due(self, group: str) -> None:
        """Sends the watch to all followers, ``WATCH_AGAIN_S`` after the last time. Raises nothing:
        where the state cannot be read, one polls."""
        if time.monotonic() < self._again_at_s:
            return
        self._again_at_s = time.monotonic() + WATCH_AGAIN_S
        self.is_answered = False
        with suppress(CellfeedError):
            for address in follower_addresses(self._state):
                send_hint(self._socket, _watch_of(group), address)

    def wait(self, timeout_s: float) -> None:
        """Waits for a datagram, and takes all that have come."""
        deadline_s = time.monotonic() + timeout_s
        with suppress(TimeoutError, BlockingIOError):
            while True:
                self._socket.settimeout(max(0.0, deadline_s - time.monotonic()))
                if self._socket.recv(DATAGRAM_BYTES_MAX) == _WOKEN:
                    self.is_answered = True
                deadline_s = 0.0  # only those that are there already

    def nudge(self) -> None:
        """Ends a :meth:`wait` that is under way, or the next one."""
        send_hint(self._socket, _NUDGED, self._address)

    def close(self) -> None:
        self._socket.close()


@lru_cache(maxsize=1_024)
def _watch_of(group: str) -> bytes:
    return _WOKEN + blake2b(group.encode(), digest_size=DATAGRAM_BYTES_MAX - 1).digest()
