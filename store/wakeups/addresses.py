"""The addresses of wake-ups in the state table, under ``wakeups/``: those of followers, for the
datagrams of their own machine, and those of workers, for the connections of other machines.

An entry counts until it expires, by the storage's clock. :class:`Sweep` removes entries for good:
those that have expired, and that nobody wrote while the sweeper watched for another lifetime of its
own clock. It removes the version that it watched. So no wrong clock, and no pause, costs a live
process its entry for longer than until its next renewal.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Final
from uuid import getnode

import msgspec

from cellfeed.store.engines.contract.state_table import StateTable

PREFIX: Final = "wakeups/"

LIFETIME_S: Final = 30.0
"""How long an address stays valid without being renewed, in seconds."""

SWEPT_AT_ONCE_MAX: Final = 256
"""Entries that one commit removes."""


class FollowerAddress(msgspec.Struct, frozen=True):
    """Where a follower takes datagrams. ``place``: whose loopback interface that is; empty from a
    release that did not write it. ``relays``: it is a worker's, for followers elsewhere."""

    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    expires_at_us: int
    place: str = ""
    relays: bool = False


class WorkerAddress(msgspec.Struct, frozen=True):
    """Where a worker takes connections of followers. ``worker``: an identity, drawn at each start;
    ``place``: where it runs."""

    url: str
    worker: str
    place: str
    expires_at_us: int


@lru_cache(maxsize=1)
def here() -> str:
    """The identity of this machine's loopback interface: another one after a reboot, and in each
    network namespace, such as a container's."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        names = f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:  # not Linux
        names = f"{platform.node()} {getnode()}"
    return blake2b(names.encode(), digest_size=8).hexdigest()


def follower_addresses(state: StateTable, *, relays: bool = True) -> list[tuple[str, int]]:
    """The addresses of the present followers of this machine; without those that relay, if
    ``relays`` is false. An entry that is none, or another version's, is passed over: its writer
    polls. Raises Unavailable."""
    now_us = state.now_us()
    found = []
    for entry in state.list(PREFIX):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):  # ValidationError is a DecodeError
            address = msgspec.json.decode(entry.value, type=FollowerAddress)
            if (
                address.expires_at_us > now_us
                and address.place in ("", here())
                and (relays or not address.relays)
                and _is_loopback(address.host)
            ):
                found.append((address.host, address.port))
    return found


def worker_addresses(state: StateTable) -> list[WorkerAddress]:
    """The present workers of other machines. Raises Unavailable."""
    now_us = state.now_us()
    found = []
    for entry in state.list(PREFIX):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            address = msgspec.json.decode(entry.value, type=WorkerAddress)
            if address.expires_at_us > now_us and address.place != here():
                found.append(address)
    return found


class Entry:
    """One process's entry. Used by one thread at a time."""

    def __init__(self, state: StateTable, name: str) -> None:
        self._state = state
        self._key = f"{PREFIX}{name}"
        self._version: int | None = None

    def write(self, address: FollowerAddress | WorkerAddress) -> None:
        """Raises Unavailable."""
        self._version = self._state.commit({self._key: msgspec.json.encode(address)})

    def remove(self) -> None:
        """Removes the entry that this process wrote last, and nobody else's. Raises Unavailable."""
        if self._version is not None:
            self._state.commit({self._key: None}, {self._key: self._version})


class Sweep:
    """See the module. Used by one thread at a time."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._watched: dict[str, tuple[int, float]] = {}
        """By key: the version of an expired entry, and since when it was watched."""

    def look(self, state: StateTable) -> int:
        """Removes the entries that are due, and returns their number. Raises Unavailable."""
        now_us, now_s = state.now_us(), self._clock_s()
        watched: dict[str, tuple[int, float]] = {}
        removed = 0
        for entry in state.list(PREFIX):
            if _expires_at_us(entry.value) > now_us:
                continue
            version, since_s = self._watched.get(entry.key, (entry.version, now_s))
            if version != entry.version:
                version, since_s = entry.version, now_s
            if now_s - since_s < LIFETIME_S or removed >= SWEPT_AT_ONCE_MAX:
                watched[entry.key] = version, since_s
            elif state.commit({entry.key: None}, {entry.key: version}) is not None:
                removed += 1
        self._watched = watched
        return removed


class _Expiring(msgspec.Struct):
    expires_at_us: int = 0


def _expires_at_us(value: bytes) -> int:
    """0 for an entry that says nothing that is understood here."""
    try:
        return msgspec.json.decode(value, type=_Expiring).expires_at_us
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0


def _is_loopback(host: str) -> bool:
    """Only such an address is sent to: a name would be looked up between a commit and its
    acknowledgement."""
    try:
        return IPv4Address(host).is_loopback
    except ValueError:
        return False
