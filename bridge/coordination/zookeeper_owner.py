"""Whose a chroot in ZooKeeper is: ``/cellfeed/history``, the history of the datastore that works in
it.

A name does not distinguish stores: staging's configuration may name production's chroot, and one
backup may be restored twice. A trigger group that took the offsets it finds there would skip cells
that it never ran. So a datastore works only in a chroot

    that names no history        it becomes the datastore's; so does one from before there were
                                    histories, once
    of its own history
    of its parent, or of its        it was restored, once or several times in a row: the chroot is
    origin                          its own from now on, and the one before is refused

Two restores of one backup have one parent: the first that comes has the chroot, the other is
refused. So is a restore whose chroot is of an ancestor between origin and parent: a history does
not know those, and such an ancestor looks like another restore.

Every read and write of offsets is fenced: a process compares once for each connection. Then a read
looks whether the entry is still the one that was compared, and a commit is refused by ZooKeeper
where it is not. So the datastore that was backed up also stops at a living connection.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec
from kazoo.protocol.states import ZnodeStat

from cellfeed.bridge.coordination.zookeeper.client import (
    Check,
    Create,
    Operation,
    Set,
    TransactionRefused,
    ZooKeeperClient,
)
from cellfeed.bridge.coordination.zookeeper.paths import Paths
from cellfeed.store.errors import ProtectData, Unavailable
from cellfeed.store.histories import NO_HISTORY, History, refuse_other_history

_TRIES_MAX: Final = 50
"""Connections that may end while the entry is compared: far more than a network that works ends."""

_decode = msgspec.json.Decoder(History).decode


def _is_before(stored: History, own: History) -> bool:
    """Whether ``own`` was restored from ``stored``, or has its origin in it."""
    return stored.history_id in {own.parent, own.origin_id} - {"", own.history_id}


@dataclass(frozen=True, slots=True)
class Compared:
    """That the chroot is this datastore's: found on ``connection``, for ``history_id``, in an entry
    with that ``stat``."""

    connection: int
    history_id: str
    path: str
    stat: ZnodeStat

    @property
    def fence(self) -> Check:
        """Refused in a transaction once the chroot is another's."""
        return Check(self.path, self.stat.version)


class ChrootOwner:
    """``history``: asked for at each check, for a cluster's may be known later. May be used by any
    number of threads."""

    def __init__(self, base: ZooKeeperClient, paths: Paths, history: Callable[[], History]) -> None:
        self._base = base
        self._path = paths.history
        self._parent_path = paths.own
        self._history = history
        self._compared: Compared | None = None

    def compared(self) -> Compared | None:
        """Compares, if not yet on this connection; None where the datastore has no history. Raises
        as :meth:`check`."""
        own = self._history().history_id
        if not own:
            return None
        for _ in range(_TRIES_MAX):
            found = self._compared
            if (
                found is not None
                and found.connection == self._base.connections_made
                and found.history_id == own
            ):
                return found
            self.check()
        raise Unavailable(f"ZooKeeper's {self._path} changes, or is connected again, all the time")

    def doubt(self) -> None:
        """The next call compares: the entry was not as this process left it."""
        self._compared = None

    def found_by(self, heir: History) -> History:
        """The history that the chroot names, before ``heir`` is restored to work in it; NO_HISTORY
        where it names none. Writes nothing. Raises ProtectData where the restored datastore would
        be refused; Unavailable."""
        found = self._base.get(self._path, newest=True)
        stored = self._stored(found[0]) if found is not None else NO_HISTORY
        if not _is_before(stored, heir):
            self._refuse_other(stored, "the backup", heir.parent, heir.history_id)
        return stored

    def check(self) -> None:
        """Raises ProtectData, with both ids and the cure, in another datastore's chroot;
        Unavailable."""
        own = self._history()
        if not own.history_id:
            return
        self._compared, connection = None, self._base.connections_made
        found = self._base.get(self._path, newest=True)
        if found is None:
            self._base.ensure(self._parent_path)
            self._take(Create(self._path, msgspec.json.encode(own)))
            found = self._base.get(self._path, newest=True)
        stored = self._stored(found[0]) if found is not None else own
        if found is not None and _is_before(stored, own):
            self._take(Set(self._path, msgspec.json.encode(own), found[1].version))
            found = self._base.get(self._path, newest=True)
            stored = self._stored(found[0]) if found is not None else own
        self._refuse_other(stored, "the datastore", own.history_id)
        if found is not None:
            self._compared = Compared(connection, own.history_id, self._path, found[1])

    def _refuse_other(self, stored: History, whose: str, *own_ids: str) -> None:
        """Raises ProtectData unless the chroot names one of ``own_ids``."""
        if stored.history_id in own_ids:
            return
        cure = (
            "Give this datastore a chroot of its own (coordination: zookeeper://HOSTS/CHROOT)."
            f" Where it does succeed that one, stop every process of both, and delete {self._path}"
            " with ZooKeeper's own client"
        )
        refuse_other_history(
            f"ZooKeeper at {self._base.hosts}, {self._path},",
            stored.history_id,
            whose,
            own_ids[0],
            cure,
        )

    def _take(self, operation: Operation) -> None:
        with suppress(TransactionRefused):  # another process was faster: its entry is read next
            self._base.commit([operation])

    def _stored(self, value: bytes) -> History:
        try:
            return _decode(value)
        except msgspec.MsgspecError as error:
            raise ProtectData(
                f"ZooKeeper's {self._path} names no history: {error}. Bring it back, or name"
                " another chroot"
            ) from None
