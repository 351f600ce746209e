"""The watcher of a storage node: after every end of a look the next one follows, and nobody waits
for ever."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.serving.node import StorageNode
from cellfeed.store.clusters.serving.node_engine import NodeEngine
from cellfeed.store.engines.contract.values import Head, Look
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.errors import DataDamaged, ProtectData, StorageUnavailable

ROLE = msgspec.json.encode(Role("c1", epoch=1, master="n1", minions=["n2"]))
HEADS = {0: Head(0, 5, 5, 1, 0, 0)}


class Scripted:
    """A node's engine: a look raises the error of the test."""

    def __init__(self) -> None:
        self.fails: Exception | None = None
        self.looks = 0

    def look(self, *_: object) -> Look:
        self.looks += 1
        if self.fails is not None:
            raise self.fails
        return Look(ROLE, self.looks, HEADS)

    def close(self) -> None: ...


@pytest.fixture
def engine() -> Scripted:
    return Scripted()


@pytest.fixture
def node(engine: Scripted) -> Iterator[StorageNode]:
    opened = StorageNode("n1", lambda _: cast("NodeEngine", engine))
    yield opened
    opened.close()


def wait_for(reached: Any) -> None:
    deadline_s = time.monotonic() + 20
    while not reached():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.parametrize(
    "error", [IndexError("index out of range"), ValueError("not a packet"), MemoryError()], ids=repr
)
def test_a_look_that_a_defect_ends_counts_as_a_node_that_is_away_and_the_next_one_is_made(
    node: StorageNode, engine: Scripted, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    engine.fails = error
    node.wait(node.ask())
    wait_for(lambda: type(error).__name__ in str(node.why_not))
    assert type(error).__name__ in caplog.text
    engine.fails = None
    wait_for(lambda: node.why_not is None)
    assert node.view is not None
    assert node.view.heads == HEADS


def test_a_defect_in_a_listener_for_roles_ends_no_watching(
    node: StorageNode, engine: Scripted, caplog: pytest.LogCaptureFixture
) -> None:
    before = engine.looks

    def fail(_: object) -> None:
        raise KeyError("a defect")

    node.on_role = fail
    wait_for(lambda: engine.looks > before + 2)
    assert "KeyError" in caplog.text


def test_in_a_forked_child_no_read_waits_for_the_parents_watcher(node: StorageNode) -> None:
    node.wait(node.ask())
    pid = os.fork()
    if pid == 0:
        node.wait(node.ask())
        os._exit(0)
    deadline_s = time.monotonic() + 20
    while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline_s:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            pytest.fail("the child waits for a watcher that it does not have")
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(found[1]) == 0


@pytest.mark.parametrize(
    "greeting",
    [
        b"",
        b"\x01",
        b"\x05\x00\x00\x00\x0a5.5",
        b"\x01\x00\x00\x00\x0a",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00" * 64,
    ],
)
def test_a_greeting_that_no_server_gives_is_a_server_that_is_away(greeting: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with listener.accept()[0] as peer:
                peer.sendall(greeting)

        thread = threading.Thread(target=greet)
        thread.start()
        server = MySqlServer(f"mysql://root:x@127.0.0.1:{listener.getsockname()[1]}", timeout_s=2)
        with pytest.raises(StorageUnavailable), server.connection():
            pass
        thread.join()
        server.close()


class Gated(Scripted):
    """Each look waits until the test lets it through."""

    def __init__(self) -> None:
        super().__init__()
        self.entered_s: list[float] = []
        self.passes = threading.Semaphore(0)

    def look(self, *given: object) -> Look:
        self.entered_s.append(time.monotonic())
        assert self.passes.acquire(timeout=20)
        return super().look(*given)


@pytest.fixture
def gated() -> Iterator[tuple[StorageNode, Gated]]:
    engine = Gated()
    opened = StorageNode("n1", lambda _: cast("NodeEngine", engine))
    yield opened, engine
    engine.passes.release(1_000)
    opened.close()


def test_a_look_under_way_does_not_answer_a_later_request_for_a_look(
    gated: tuple[StorageNode, Gated],
) -> None:
    """It may have read before the moment that the caller asks about."""
    node, engine = gated
    wait_for(lambda: len(engine.entered_s) == 1)
    ticket = node.ask()
    waiter = threading.Thread(target=node.wait, args=(ticket, 60.0))
    waiter.start()
    engine.passes.release()
    wait_for(lambda: len(engine.entered_s) == 2)
    assert waiter.is_alive()
    engine.passes.release()
    waiter.join(20)
    assert not waiter.is_alive()
    assert engine.looks >= 2


def test_a_node_was_heard_when_its_look_began(gated: tuple[StorageNode, Gated]) -> None:
    """The answer is of some moment since then, perhaps of the first."""
    node, engine = gated
    wait_for(lambda: len(engine.entered_s) == 1)
    time.sleep(0.05)  # the answer takes a while
    engine.passes.release()
    wait_for(lambda: node.view is not None)
    assert node.heard_at_s <= engine.entered_s[-1]


def test_damage_is_forgotten_when_the_node_is_away(node: StorageNode, engine: Scripted) -> None:
    """As while it is made a copy of another one."""

    def damaged(_: object) -> None:
        raise DataDamaged("page 7 is damaged")

    node.wait(node.ask())
    with pytest.raises(DataDamaged):
        node.call(damaged)
    assert node.is_damaged
    engine.fails = StorageUnavailable("away")
    wait_for(lambda: node.why_not == "away")
    wait_for(lambda: not node.is_damaged)
    assert node.damaged is None


def test_a_node_of_another_cluster_takes_no_part_until_its_role_is_the_clusters(
    node: StorageNode, engine: Scripted
) -> None:
    node.on_role = lambda _: "it is of cluster 'c9'"
    for _ in range(3):
        node.wait(node.ask())
        wait_for(lambda: node.is_foreign)
        assert (node.view, node.why_not) == (None, "it is of cluster 'c9'")
        assert isinstance(node.refused, ProtectData)
    node.on_role = lambda _: None
    wait_for(lambda: node.view is not None)
    assert (node.is_foreign, node.why_not, node.refused) == (False, None, None)


def test_a_node_whose_storage_is_refused_takes_no_part_with_its_last_report(
    node: StorageNode, engine: Scripted
) -> None:
    """It may be another datastore's by now: its counters are no watermark."""
    node.wait(node.ask())
    wait_for(lambda: node.view is not None)
    engine.fails = ProtectData("it holds datastore 'other'")
    wait_for(lambda: node.refused is not None)
    assert node.view is None
    engine.fails = None
    wait_for(lambda: node.view is not None)
    assert node.refused is None
