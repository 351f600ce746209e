"""Whose a chroot in ZooKeeper is: ``/cellfeed/history``, the history of the datastore that works in
it.

A name does not tell one store from another: staging's configuration may name production's chroot,
and one backup may be restored twice. A trigger group that took the offsets it finds there would
skip cells that it never ran. So a datastore works only in a chroot

    that names no history        it becomes the datastore's; so does one from before there were
                                    histories, once
    of its own history
    of its parent                   it was restored: the chroot is its own from now on, and its
                                    parent is refused

Two restores of one backup have one parent: the first that comes has the chroot, the other is
refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec

from cellfeed.bridge.coordination.zookeeper.client import (
    Create,
    Operation,
    Set,
    TransactionRefused,
    ZooKeeperClient,
)
from cellfeed.bridge.coordination.zookeeper.paths import Paths
from cellfeed.store.errors import ProtectData
from cellfeed.store.histories import History, refuse_other_history

_decode = msgspec.json.Decoder(History).decode


class ChrootOwner:
    """``history``: asked for at each check, for a cluster's may be known later. May be used by any
    number of threads."""

    def __init__(self, base: ZooKeeperClient, paths: Paths, history: Callable[[], History]) -> None:
        self._base = base
        self._path = paths.history
        self._parent_path = paths.own
        self._history = history

    def check(self) -> None:
        """Raises ProtectData, with both ids and the cure, in another datastore's chroot;
        Unavailable."""
        own = self._history()
        if not own.history_id:
            return
        found = self._base.get(self._path, newest=True)
        if found is None:
            self._base.ensure(self._parent_path)
            self._take(Create(self._path, msgspec.json.encode(own)))
            found = self._base.get(self._path, newest=True)
        told = self._told(found[0]) if found is not None else own
        if found is not None and own.parent and told.history_id == own.parent:
            self._take(Set(self._path, msgspec.json.encode(own), found[1].version))
            after = self._base.get(self._path, newest=True)
            told = self._told(after[0]) if after is not None else own
        cure = (
            "Give this datastore a chroot of its own (coordination: zookeeper://HOSTS/CHROOT)."
            f" Where it does succeed that one, stop every process of both, and delete {self._path}"
            " with ZooKeeper's own client"
        )
        refuse_other_history(
            f"ZooKeeper at {self._base.hosts}, {self._path},",
            told.history_id,
            "the datastore",
            own.history_id,
            cure,
        )

    def _take(self, operation: Operation) -> None:
        with suppress(TransactionRefused):  # another process was faster: what it wrote is read next
            self._base.commit([operation])

    def _told(self, value: bytes) -> History:
        try:
            return _decode(value)
        except msgspec.MsgspecError as error:
            raise ProtectData(
                f"ZooKeeper's {self._path} names no history: {error}. Bring it back, or name"
                " another chroot"
            ) from None
