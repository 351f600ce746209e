"""Wake-ups: a process that commits pokes the followers of the logs. A wake-up is a hint; the
counters are the truth.

A poke is one datagram on the loopback interface to every address that stands in the state table
under ``wakeups/``. A lost one costs its receiver one polling interval, never a cell; a false one
costs a look at the counters.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from contextlib import suppress
from hashlib import blake2b
from typing import Annotated, Final, Protocol

import msgspec

from cellfeed.store import forks
from cellfeed.store.background import SupervisedThread
from cellfeed.store.descriptors import is_readable
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.errors import CellfeedError, Unavailable

NEW_CELLS: Final = b"!"
"""The poke of a commit."""

DATAGRAM_BYTES_MAX: Final = 16

_PREFIX: Final = "wakeups/"
_LIFETIME_S: Final = 30.0
"""How long an address stays valid without being renewed: bounds the datagrams sent to dead
followers."""

_REFRESH_S: Final = 0.5
"""How often a poker reads the addresses again: a new follower polls for at most this long before
its first wake-up."""


class _Address(msgspec.Struct, frozen=True):
    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    expires_at_us: int


class Watched(Protocol):
    """Takes the watches among the datagrams that come (:class:`cellfeed.store.awaited.Awaited`)."""

    def take(self, what: bytes, sender: tuple[str, int]) -> bool: ...


class Listener:
    """A follower's end. ``name`` is unique among followers; a restarted follower of the same name
    takes the old one's place. ``awaited``: of a follower whose outlets somebody may wait for."""

    def __init__(self, state: StateTable, name: str, awaited: Watched | None = None) -> None:
        self._state = state
        self._awaited = awaited
        self._key = f"{_PREFIX}{name}"
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setblocking(False)
        self.sock.bind(("127.0.0.1", 0))
        self._renew_at_s = 0.0
        self.pokes: set[bytes] = set()
        """Pokes that have come about something other than commits (:func:`poke_about`); the
        follower takes them back."""
        self.renew()

    def renew(self) -> None:
        """Keeps the address valid; :meth:`wait` does it by itself, an event loop that watches
        ``sock`` calls it every few seconds."""
        now_s = time.monotonic()
        if now_s < self._renew_at_s:
            return
        self._renew_at_s = now_s + _LIFETIME_S / 3
        host, port = self.sock.getsockname()
        expires_at_us = self._state.now_us() + int(_LIFETIME_S * 1e6)
        self._state.commit({self._key: msgspec.json.encode(_Address(host, port, expires_at_us))})

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
        (``_LIFETIME_S``), and an orderly end does not fail for it."""
        try:
            with suppress(Unavailable):
                self._state.commit({self._key: None})
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
        self._refresh_at_s = 0.0
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
                addresses = follower_addresses(self._state)
                with self._lock:
                    if not self._closed:
                        self._addresses = addresses


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


def follower_addresses(state: StateTable) -> list[tuple[str, int]]:
    """The addresses of the present followers. An entry that is none, or another version's, is
    passed over: its writer polls. Raises Unavailable."""
    now_us = state.now_us()
    found = []
    for entry in state.list(_PREFIX):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):  # ValidationError is a DecodeError
            address = msgspec.json.decode(entry.value, type=_Address)
            if address.expires_at_us > now_us and _is_loopback(address.host):
                found.append((address.host, address.port))
    return found


def _is_loopback(host: str) -> bool:
    """Only such an address is sent to: a name would be looked up between a commit and its
    acknowledgement."""
    try:
        return ipaddress.IPv4Address(host).is_loopback
    except ValueError:
        return False
