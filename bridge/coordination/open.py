"""Which coordination a configuration asks for: ``store``, or the URL of a ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from cellfeed.bridge.coordination.contract import Coordinator, Offsets
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.zookeeper.url import parse_zookeeper_url
from cellfeed.store.engines.contract.state_table import StateTable
from cellfeed.store.engines.contract.values import StateEntry
from cellfeed.store.errors import InvalidRequest, StorageUnavailable
from cellfeed.store.histories import NO_HISTORY, History

IN_STORE = "store"


def check_coordination(url: str) -> None:
    """Raises InvalidRequest for a URL that is neither ``store`` nor a ZooKeeper URL; never shows
    credentials."""
    if url == IN_STORE:
        return
    if not url.startswith("zookeeper:"):
        raise InvalidRequest("coordination: 'store' or zookeeper://host:port,host:port/chroot")
    parse_zookeeper_url(url)


def open_coordinator(
    url: str, state: StateTable, history: Callable[[], History] = lambda: NO_HISTORY
) -> Coordinator:
    """The datastore's coordinator; to be closed. Does not wait for a ZooKeeper: its calls do, each
    for its time-out. Raises InvalidRequest."""
    check_coordination(url)
    if url == IN_STORE:
        return StoreCoordinator(state)
    from cellfeed.bridge.coordination.zookeeper.coordinator import (
        ZooKeeperCoordinator,
    )  # loads kazoo only where it is used

    return ZooKeeperCoordinator(parse_zookeeper_url(url), state, history)


def open_offsets_elsewhere(url: str, heir: History) -> Offsets | None:
    """The offsets that are kept outside of the datastore, while ``heir`` is not restored yet; None
    where they are in it. Reads and writes offsets of the history that it found there; refuses
    another one. To be closed. Raises InvalidRequest, Unavailable; ProtectData in another
    datastore's chroot."""
    check_coordination(url)
    if url == IN_STORE:
        return None
    from cellfeed.bridge.coordination.zookeeper.offsets import ZooKeeperOffsets  # loads kazoo

    found = NO_HISTORY
    offsets = ZooKeeperOffsets(parse_zookeeper_url(url), _NoStorage(), lambda: found)
    with ExitStack() as opened:
        opened.callback(offsets.close)
        found = offsets.found_by(heir)
        opened.pop_all()
    return offsets


class _NoStorage:
    """Stands for the state table of a datastore that is not there: nothing is read from it, nothing
    is written."""

    def get(self, key: str) -> StateEntry | None:
        raise _not_there()

    def list(self, prefix: str) -> list[StateEntry]:
        raise _not_there()

    def commit(
        self, write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None
    ) -> int | None:
        raise _not_there()

    def now_us(self) -> int:
        raise _not_there()


def _not_there() -> StorageUnavailable:
    return StorageUnavailable("the datastore is not there yet")
