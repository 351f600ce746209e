"""The datastore's additions to its engine: waiting for the commit, names, wake-ups. The calls
themselves are tested in tests/contract."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from uuid import uuid4

import pytest

from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidRequest, OutcomeUnknown, StorageUnavailable
from cellfeed.store.failpoints import passes, set_failpoint
from cellfeed.store.wakeups.datagrams import Listener, Poker, poke_once


@pytest.mark.parametrize(
    "name",
    ["", "Trips", "1trips", "tr-ips", "tr.ips", "../x", "a" * 49, None, "tr ips", "trips\u00e9"],
)
def test_a_datastores_name_must_fit_topics_folders_and_databases(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="datastore name"):
        Datastore.open_embedded(tmp_path, name)
    assert not list(tmp_path.iterdir())


def test_a_commit_that_takes_too_long_is_unknown_and_a_retry_settles_it(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellfeed.store.datastore.PUT_TIMEOUT_S", 0.05)
    set_failpoint("sqlite.put.before_commit", "sleep:0.4")
    row = uuid4()
    with pytest.raises(OutcomeUnknown) as caught:
        datastore.put_cell(row, "BASE", 1, {"a": 1})
    assert not caught.value.definite
    assert passes("sqlite.put.before_commit") == 1
    monkeypatch.setattr("cellfeed.store.datastore.PUT_TIMEOUT_S", 10)
    assert datastore.put_cell(row, "BASE", 1, {"a": 1}).outcome is Outcome.EXISTS


def test_a_put_that_never_had_its_turn_is_definitely_not_written(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_failpoint("sqlite.put.before_commit", "sleep:0.5")
    slow = threading.Thread(target=datastore.put_cell, args=(uuid4(), "BASE", 1, {}))
    slow.start()
    while not passes("sqlite.put.before_commit"):
        time.sleep(0.001)
    monkeypatch.setattr("cellfeed.store.datastore.PUT_TIMEOUT_S", 0.05)
    row = uuid4()
    with pytest.raises(StorageUnavailable, match="nothing written") as caught:
        datastore.put_cell(row, "BASE", 1, {})
    assert caught.value.definite
    slow.join()
    monkeypatch.setattr("cellfeed.store.datastore.PUT_TIMEOUT_S", 10)
    assert datastore.put_cell(uuid4(), "BASE", 1, {}).outcome is Outcome.STORED
    assert datastore.get_cell(row, "BASE", 1) is None


def test_a_closed_datastore_refuses_every_call(tmp_path: Path) -> None:
    store = Datastore.open_embedded(tmp_path)
    store.close()
    for call in (
        lambda: store.put_cell(uuid4(), "BASE", 1, {}),
        store.heads,
        lambda: store.get_row(uuid4()),
    ):
        with pytest.raises(StorageUnavailable, match="closed"):
            call()


def test_a_commit_wakes_its_listeners(datastore: Datastore) -> None:
    listener = Listener(datastore.state, "reader-1")
    try:
        assert not listener.wait(0)
        # The addresses are read beside the commits: the first commits after a listener has come may
        # not know of it yet.
        for _ in range(100):
            datastore.put_cell(uuid4(), "BASE", 1, {})
            if listener.wait(0.1):
                break
        else:
            pytest.fail("no commit woke the listener")
        assert not listener.wait(0)
    finally:
        listener.close()
    assert datastore.state.list("wakeups/") == []


def test_a_poke_to_ended_followers_is_harmless(datastore: Datastore) -> None:
    gone = Listener(datastore.state, "gone")
    gone.sock.close()
    poker = Poker(datastore.state)
    for _ in range(3):
        poker.poke()
    poker.close()
    poker.poke()


def test_an_invalid_address_costs_no_other_listener_a_wake_up(datastore: Datastore) -> None:
    listener = Listener(datastore.state, "reader-1")
    datastore.state.commit({"wakeups/a": b"{}", "wakeups/b": b"\xff", "wakeups/z": b'{"host": 7}'})
    try:
        poke_once(datastore.state)
        assert listener.wait(30)
    finally:
        listener.close()


@pytest.fixture
def quick_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poker reads the addresses again soon. Tests ask for this before they ask for a store."""
    monkeypatch.setattr("cellfeed.store.wakeups.datagrams._REFRESH_S", 0.02)


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("127.0.0.1", 70_000),
        ("127.0.0.1", 0),
        ("127.0.0.1", -1),
        ("no\0host", 9),
        ("a" * 300, 9),
        ("\udc80", 9),
        ("localhost", 9),
        ("8.8.8.8", 9),
        ("::1", 9),
    ],
    ids=ascii,
)
def test_an_address_that_cannot_be_sent_to_costs_no_put_and_no_other_wake_up(
    quick_addresses: None, datastore: Datastore, host: str, port: int
) -> None:
    address = {"host": host, "port": port, "expires_at_us": 1 << 62}
    datastore.state.commit({"wakeups/a": json.dumps(address).encode()})
    listener = Listener(datastore.state, "reader-1")
    try:
        deadline_s = time.monotonic() + 30
        while not listener.wait(0.01):
            assert datastore.put_cell(uuid4(), "BASE", 1, {}).outcome is Outcome.STORED
            assert time.monotonic() < deadline_s
        poke_once(datastore.state)
        assert listener.wait(30)
    finally:
        listener.close()


def test_a_poke_starts_no_thread(datastore: Datastore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellfeed.store.wakeups.datagrams._REFRESH_S", 0.0)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert datastore.put_cell(uuid4(), "BASE", 1, {}).outcome is Outcome.STORED
    assert datastore.put_cell(uuid4(), "BASE", 1, {}).outcome is Outcome.STORED


def test_addresses_are_read_again_after_a_defect(
    quick_addresses: None, datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = threading.Event()

    def fail(*_: object, **__: object) -> None:
        failing.set()
        raise ValueError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr("cellfeed.store.wakeups.datagrams.follower_addresses", fail)
        poker = Poker(datastore.state)
        assert failing.wait(10)
    listener = Listener(datastore.state, "reader-1")
    deadline_s = time.monotonic() + 30
    while not listener.wait(0.01):
        poker.poke()
        assert time.monotonic() < deadline_s
    listener.close()
    poker.close()


def test_an_address_that_is_not_renewed_is_forgotten(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellfeed.store.wakeups.datagrams.LIFETIME_S", -1.0)
    listener = Listener(datastore.state, "stale")
    poker = Poker(datastore.state)
    poker.poke()
    assert not listener.wait(0.05)
    listener.close()
    poker.close()


def test_a_follower_that_ends_while_the_state_is_away_ends_well(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = Listener(datastore.state, "ending")
    asked: list[object] = []

    def away(write: object, expect: object = None) -> None:
        asked.append(write)
        raise StorageUnavailable("the master is away")

    monkeypatch.setattr(
        type(datastore.state), "commit", lambda self, write, expect=None: away(write, expect)
    )
    listener.close()
    assert len(asked) == 1
    assert listener.sock.fileno() == -1
    monkeypatch.undo()
