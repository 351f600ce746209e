"""A storage node's breaker: slow calls to a node that answers its looks keep nobody else out; a
node that does not answer is left alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NoReturn

import pytest

from cellfeed.store.clusters.serving.node import StorageNode
from cellfeed.store.engines.contract.values import Look
from cellfeed.store.errors import StorageUnavailable
from tests.support.waiting import wait_until

SLOW_S = 0.7
"""Longer than the time between two looks of the watcher."""


class Engine:
    """Of a node that answers looks while it is ``up``."""

    def __init__(self, up: threading.Event) -> None:
        self._up = up

    def look(self, state_key: str, seen: object | None) -> Look:
        if not self._up.is_set():
            raise StorageUnavailable("timed out")
        return Look(None, 1, {})

    def close(self) -> None:
        pass


@pytest.fixture
def up() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@pytest.fixture
def node(up: threading.Event) -> Iterator[StorageNode]:
    made = StorageNode("a", lambda _: Engine(up))  # type: ignore[arg-type, return-value]
    wait_until(lambda: made.why_not is None, "it answers")
    yield made
    made.close()


def slow_read(_engine: object) -> NoReturn:
    time.sleep(SLOW_S)
    raise StorageUnavailable("timed out")


def read(node: StorageNode) -> None:
    with suppress(StorageUnavailable):
        node.call(slow_read)


def test_slow_reads_of_a_node_that_is_well_refuse_no_write(node: StorageNode) -> None:
    readers = [threading.Thread(target=read, args=(node,)) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
        assert node.call(lambda _: "written") == "written"
    assert node.why_not is None


def test_a_node_that_answers_nothing_is_left_alone_until_it_answers_again(
    node: StorageNode, up: threading.Event
) -> None:
    up.clear()
    wait_until(lambda: node.breaker.is_open, "two looks have failed")
    wait_until(lambda: _is_left_alone(node), "calls are refused at once")
    up.set()
    wait_until(lambda: not node.breaker.is_open, "a look was answered")
    assert node.call(lambda _: "written") == "written"


def _is_left_alone(node: StorageNode) -> bool:
    read: Callable[[object], None] = slow_read
    try:
        node.call(read)
        return False
    except StorageUnavailable as error:
        return "left alone for a moment: timed out" in str(error)


def test_calls_that_fail_at_once_count_for_any_earlier_look(node: StorageNode) -> None:
    def refused(_engine: object) -> NoReturn:
        raise StorageUnavailable("connection refused")

    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="connection refused"):
            node.call(refused)
    assert node.breaker.is_open
