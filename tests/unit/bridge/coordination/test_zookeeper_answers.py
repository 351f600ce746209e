"""Answers of ZooKeeper that do not come: a change may have happened, a read has not."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss
from kazoo.handlers.threading import KazooTimeoutError

from cellfeed.bridge.coordination.zookeeper.client import Set
from cellfeed.bridge.coordination.zookeeper.connection import Connection
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress
from cellfeed.store.errors import OutcomeUnknown, Unavailable


class Pending:
    """A call whose answer never comes."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get(self, **_: object) -> None:
        raise self._error


def connection(error: Exception) -> Connection:
    """One that is there, and whose calls all end so."""
    made = object.__new__(Connection)
    transaction = SimpleNamespace(set_data=lambda *_: None, commit_async=lambda: Pending(error))
    client: Any = SimpleNamespace(
        transaction=lambda: transaction,
        get_async=lambda _: Pending(error),
        _connection=SimpleNamespace(_socket=None),
    )
    made._address, made._client, made._connections_made = ZooKeeperAddress("zk"), client, 1
    made._connected = threading.Event()
    made._connected.set()
    return made


@pytest.mark.parametrize("error", [KazooTimeoutError(), ConnectionLoss()], ids=repr)
def test_a_change_without_an_answer_may_have_happened(error: Exception) -> None:
    with pytest.raises(OutcomeUnknown, match="may or may not have happened"):
        connection(error).commit([Set("/a", b"1")])
    with pytest.raises(Unavailable) as refused:
        connection(error).get("/a")
    assert not isinstance(refused.value, OutcomeUnknown)
