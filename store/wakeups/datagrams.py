"""Wake-ups: a process that commits pokes the followers of the logs. A wake-up is a hint; the
counters are the truth.

A poke is one datagram on the loopback interface to every address of this machine that stands in the
state table under ``wakeups/``. A lost one costs its receiver one polling interval, never a cell; a
false one costs a look at the counters.

Followers on other machines are woken over connections to the workers
(:mod:`cellfeed.store.http.wakeup_links`). The process hands a hint from there to its listeners
(:func:`hand_over`), as a datagram to each.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Final, Protocol
from weakref import WeakValueDictionary

from cellfeed.store import forks
from cellfeed.store.background import SupervisedThread
from cellfeed.store.descriptors import is_readable
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import CellfeedError, Unavailable
from cellfeed.store.wakeups.addresses import (
    LIFETIME_S,
    Entry,
    FollowerAddress,
    Sweep,
    follower_addresses,
    here,
)
from cellfeed.store.wakeups.hints import Hint

NEW_CELLS: Final = b"!"
"""The poke of a commit."""

DATAGRAM_BYTES_MAX: Final = 16

_REFRESH_S: Final = 0.5
"""How often a poker reads the addresses again: a new follower polls for at most this long before
its first wake-up."""

_SWEEP_S: Final = 10.0
"""How often a poker looks for entries that have expired, in seconds."""


class Watched(Protocol):
    """Takes the watches among the datagrams: :class:`cellfeed.store.waits.awaited.Awaited`."""

    def take(self, what: bytes, sender: tuple[str, int]) -> bool: ...


class Listener:
    """A follower's end. ``name`` is unique among followers; a restarted follower of the same name
    takes the old one's place. ``awaited``: of a follower whose outlets somebody may wait for.
    ``relays``: it passes datagrams on to other machines."""

    def __init__(
        self,
        state: StateTable,
        name: str,
        awaited: Watched | None = None,
        *,
        relays: bool = False,
    ) -> None:
        self._state = state
        self._awaited = awaited
        self._relays = relays
        self._entry = Entry(state, name)
        self.shows: Callable[[int], int] | None = None
        """By shard, the watermark that the follower has read; set by one that keeps them. Called
        in any thread."""
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        self.sock.bind(("127.0.0.1", 0))
        self._address: tuple[str, int] = self.sock.getsockname()
        self._renew_at_s = 0.0
        self.pokes: set[bytes] = set()
        """Pokes that have come about something other than commits (:func:`poke_about`); the
        follower takes them back."""
        self.renew()
        if not relays:
            _listeners[id(self)] = self

    def renew(self) -> None:
        """Keeps the address valid; :meth:`wait` does it by itself, an event loop that watches
        ``sock`` calls it every few seconds."""
        now_s = time.monotonic()
        if now_s < self._renew_at_s:
            return
        self._renew_at_s = now_s + LIFETIME_S / 3
        expires_at_us = self._state.now_us() + int(LIFETIME_S * 1e6)
        self._entry.write(FollowerAddress(*self._address, expires_at_us, here(), self._relays))

    def is_of(self, state: StateTable) -> bool:
        """Whether it follows the logs of the store with this state."""
        return self._state is state

    def hand_over(self, sock: socket.socket, hint: Hint) -> bool:
        """Sends itself the wake-up from ``sock``, in any thread; False where the follower has read
        so far already."""
        for subject in hint.subjects:
            send_hint(sock, subject, self._address)
        if hint.looks or not self._has_shown(hint.heads):
            send_hint(sock, NEW_CELLS, self._address)
            return True
        return bool(hint.subjects)

    def _has_shown(self, heads: Mapping[int, int]) -> bool:
        shows = self.shows
        return not heads or (
            shows is not None and all(shows(shard) >= end for shard, end in heads.items())
        )

    def wait(self, timeout_s: float) -> bool:
        """Waits for a poke; True when there was one. Several pokes at once count as one."""
        self.renew()
        ready = is_readable(self.sock.fileno(), timeout_s)
        if ready:
            self.drain()
        return ready

    def drain(self) -> None:
        """Takes every datagram that has come."""
        while True:
            try:
                what, sender = self.sock.recvfrom(DATAGRAM_BYTES_MAX)
                if what == NEW_CELLS or (self._awaited and self._awaited.take(what, sender)):
                    continue
                self.pokes.add(what)
            except BlockingIOError:
                return

    def close(self) -> None:
        """Takes the address back; where the state is away the entry expires by itself
        (``LIFETIME_S``), and an orderly end does not fail for it. The entry of a follower that has
        taken this one's place stays."""
        _listeners.pop(id(self), None)
        try:
            with suppress(Unavailable):
                self._entry.remove()
        finally:
            self.sock.close()


class Poker:
    """A writer's end. :meth:`poke` never waits for the state and never raises: followers that it
    does not reach find the cells by polling."""

    def __init__(self, state: StateTable) -> None:
        self._state = state
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._addresses: list[tuple[str, int]] = []
        self.wakes_relays = True
        """Whether workers of this machine pass its pokes on to others; not those of a worker that
        reports its commits to other machines by itself."""
        self._refresh_at_s = 0.0
        self._sweep, self._sweep_at_s = Sweep(), 0.0
        self._lock = threading.Lock()
        self._due = threading.Event()
        self._closed = False
        self._generation = forks.generation
        # On a thread of its own: the state may be on a node that hangs, and a poke stands between a
        # commit and its acknowledgement.
        self._refreshing = SupervisedThread("wakeup-addresses", self._refresh)
        self._refreshing.start()
        self._refresh_soon()

    def poke(self) -> None:
        """Sends one datagram to every follower."""
        with self._lock:
            if time.monotonic() >= self._refresh_at_s:
                self._refresh_soon()
            for address in self._addresses:
                send_hint(self._socket, NEW_CELLS, address)

    def close(self) -> None:
        if self._generation != forks.generation:
            return
        with self._lock:
            self._addresses = []
            self._closed = True
            self._socket.close()
        self._due.set()
        self._refreshing.join()

    def _refresh_soon(self) -> None:
        self._refresh_at_s = time.monotonic() + _REFRESH_S
        self._due.set()

    def _refresh(self) -> None:
        while self._due.wait() and not self._closed:
            self._due.clear()
            # When the state cannot be read just now, those known before are poked and the rest
            # poll.
            with suppress(CellfeedError):
                addresses = follower_addresses(self._state, relays=self.wakes_relays)
                with self._lock:
                    if not self._closed:
                        self._addresses = addresses
                if time.monotonic() >= self._sweep_at_s:
                    self._sweep_at_s = time.monotonic() + _SWEEP_S
                    self._sweep.look(self._state)


def poke_about(subject: str) -> bytes:
    """The datagram that pokes followers of a subject other than the logs, by its name."""
    return b"?" + blake2b(subject.encode(), digest_size=DATAGRAM_BYTES_MAX - 1).digest()


def poke_once(state: StateTable, what: bytes = NEW_CELLS) -> None:
    """Pokes every follower whose address is known now. Raises nothing: a follower that is not
    reached finds out by looking."""
    with suppress(CellfeedError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        for address in follower_addresses(state):
            send_hint(sock, what, address)


def send_hint(sock: socket.socket, what: bytes, address: tuple[str, int]) -> None:
    """Sends a datagram, or does not: raises nothing."""
    # A follower that just ended, or a full socket buffer: the follower's own polling finds the
    # cells.
    with suppress(OSError):
        sock.sendto(what, address)


def hand_over(state: StateTable, sock: socket.socket, hint: Hint) -> bool:
    """Hands a wake-up of another machine to the listeners of this process that follow the store
    with this state. Whether any of them had not read so far."""
    # A copy, made in one step: listeners come and go in other threads. No lock, for a child of a
    # fork() would find it as another thread of the parent held it.
    found = [reference() for reference in _listeners.valuerefs()]
    mine = [each for each in found if each is not None and each.is_of(state)]
    return sum(each.hand_over(sock, hint) for each in mine) > 0


_listeners: WeakValueDictionary[int, Listener] = WeakValueDictionary()
"""Those of this process, by their ``id``."""
