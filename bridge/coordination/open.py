"""Which coordination a configuration asks for: ``store``, or the URL of a ZooKeeper."""

from __future__ import annotations

from bridge.coordination.contract import Coordinator
from bridge.coordination.in_store import StoreCoordinator
from store.engines.contract import StateTable
from store.errors import InvalidRequest

IN_STORE = "store"


def check_coordination(url: str) -> None:
    """Raises InvalidRequest for what is neither ``store`` nor a ZooKeeper URL; never shows credentials."""
    if url == IN_STORE:
        return
    if not url.startswith("zookeeper:"):
        raise InvalidRequest("coordination: 'store' or zookeeper://host:port,host:port/chroot")
    from bridge.coordination.zookeeper_url import parse_zookeeper_url

    parse_zookeeper_url(url)


def open_coordinator(url: str, state: StateTable) -> Coordinator:
    """The coordinator; to be closed. Does not wait for a ZooKeeper: its calls do, each for its time-out. Raises InvalidRequest."""
    check_coordination(url)
    if url == IN_STORE:
        return StoreCoordinator(state)
    from bridge.coordination.zookeeper import ZooKeeperCoordinator  # kazoo is loaded by those who use it
    from bridge.coordination.zookeeper_url import parse_zookeeper_url

    return ZooKeeperCoordinator(parse_zookeeper_url(url), state)
