"""The leases of the sessions that this process began: how long each lasts without ``renew``, and
their ends. kazoo keeps a session of ZooKeeper alive by itself, so nothing else would end a member
whose own program stands still (C1)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from cellfeed.bridge.coordination.contract import Session
from cellfeed.bridge.coordination.zookeeper.client import ZooKeeperClient
from cellfeed.store.errors import CellfeedError


@dataclass
class Lease:
    """``until_s``: the moment at which this process has not asked for the session for a whole
    lease, by its own clock."""

    session: Session
    connection: ZooKeeperClient
    until_s: float


class OwnLeases:
    """Any thread may use it. ``clock``: seconds; ``path_of`` gives the znode of a session's
    member."""

    def __init__(self, clock: Callable[[], float], path_of: Callable[[Session], str]) -> None:
        self._clock = clock
        self._path_of = path_of
        self._lock = threading.Lock()
        self._leases: dict[tuple[str, int], Lease] = {}

    def add(self, lease: Lease) -> None:
        with self._lock:
            self._leases[_key(lease)] = lease

    def extended(self, session: Session, by_s: float) -> Lease | None:
        """The session's lease, which now lasts ``by_s`` seconds from this moment on. None: it has
        ended, or is another process's."""
        with self._lock:
            lease = self._leases.get((session.group, session.epoch))
            if lease is not None:
                lease.until_s = self._clock() + by_s
            return lease

    def forget(self, session: Session) -> None:
        with self._lock:
            self._leases.pop((session.group, session.epoch), None)

    def end_lapsed(self) -> None:
        """Ends the sessions that this process has not renewed in time. Raises CellfeedError where
        ZooKeeper is away; the next call ends the remaining ones."""
        now_s = self._clock()
        with self._lock:
            lapsed = [key for key, lease in self._leases.items() if lease.until_s <= now_s]
            ended = [self._leases.pop(key) for key in lapsed]
        for number, lease in enumerate(ended):
            try:
                lease.connection.discard([self._path_of(lease.session)])
            except CellfeedError:
                with self._lock:
                    self._leases.update({_key(each): each for each in ended[number:]})
                raise


def _key(lease: Lease) -> tuple[str, int]:
    return lease.session.group, lease.session.epoch
