"""Entries of wake-ups: whose machine they are of, and which are removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.wakeups.addresses import (
    LIFETIME_S,
    PREFIX,
    Entry,
    FollowerAddress,
    Sweep,
    WorkerAddress,
    follower_addresses,
    here,
    worker_addresses,
)
from cellfeed.store.wakeups.datagrams import Listener
from cellfeed.store.wakeups.hints import HEADS_MAX, SUBJECTS_MAX, Hint

LONG_US = 1 << 62


class Clock:
    """Seconds that the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path) as opened:
        yield opened


def keys(datastore: Datastore) -> list[str]:
    return [entry.key.removeprefix(PREFIX) for entry in datastore.state.list(PREFIX)]


def expired(datastore: Datastore, name: str) -> None:
    Entry(datastore.state, name).write(FollowerAddress("127.0.0.1", 9, 0, here()))


def test_followers_of_another_machine_get_no_datagram_of_this_one(datastore: Datastore) -> None:
    state = datastore.state
    Entry(state, "mine").write(FollowerAddress("127.0.0.1", 9, LONG_US, here()))
    Entry(state, "elsewhere").write(FollowerAddress("127.0.0.1", 10, LONG_US, "other"))
    Entry(state, "of-an-earlier-release").write(FollowerAddress("127.0.0.1", 11, LONG_US))
    Entry(state, "relay").write(FollowerAddress("127.0.0.1", 12, LONG_US, here(), relays=True))
    assert {port for _, port in follower_addresses(state)} == {9, 11, 12}
    assert {port for _, port in follower_addresses(state, relays=False)} == {9, 11}


def test_workers_of_this_machine_and_expired_ones_are_not_connected_to(
    datastore: Datastore,
) -> None:
    state = datastore.state
    for name, place, expires_at_us in (
        ("w1", "other", LONG_US),
        ("w2", here(), LONG_US),
        ("w3", "other", 1),
    ):
        Entry(state, name).write(WorkerAddress("https://h:1", name, place, expires_at_us))
    Entry(state, "follower").write(FollowerAddress("127.0.0.1", 9, LONG_US, "other"))
    state.commit({f"{PREFIX}broken": b"\xff"})
    assert [each.worker for each in worker_addresses(state)] == ["w1"]


def test_expired_entries_are_removed_after_another_lifetime_without_a_write(
    datastore: Datastore,
) -> None:
    clock = Clock()
    sweep = Sweep(clock)
    for number in range(200):
        expired(datastore, f"dead-{number}")
    datastore.state.commit({f"{PREFIX}unreadable": b"\xff"})
    Entry(datastore.state, "live").write(FollowerAddress("127.0.0.1", 9, LONG_US))
    assert sweep.look(datastore.state) == 0
    clock.advance(LIFETIME_S / 2)
    assert sweep.look(datastore.state) == 0
    clock.advance(LIFETIME_S)
    assert sweep.look(datastore.state) == 201
    assert keys(datastore) == ["live"]


def test_a_paused_follower_whose_entry_was_watched_keeps_the_one_that_it_renews(
    datastore: Datastore,
) -> None:
    """Its clock is wrong, or the storage's was: the entry is expired after each renewal."""
    clock = Clock()
    sweep = Sweep(clock)
    expired(datastore, "slow")
    for _ in range(10):
        assert sweep.look(datastore.state) == 0
        clock.advance(LIFETIME_S - 1)
        expired(datastore, "slow")
    assert keys(datastore) == ["slow"]


def test_a_renewal_between_the_look_and_the_removal_keeps_the_entry(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    sweep = Sweep(clock)
    expired(datastore, "slow")
    sweep.look(datastore.state)
    clock.advance(LIFETIME_S)
    entries = datastore.state.list(PREFIX)
    expired(datastore, "slow")
    with monkeypatch.context() as patch:
        patch.setattr(datastore.state, "list", lambda _: entries)
        assert sweep.look(datastore.state) == 0
    assert keys(datastore) == ["slow"]


def test_a_removed_entry_comes_back_with_the_next_renewal(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellfeed.store.wakeups.datagrams.LIFETIME_S", 0.0)
    listener = Listener(datastore.state, "paused")
    datastore.state.commit({f"{PREFIX}paused": None})
    listener.renew()
    assert keys(datastore) == ["paused"]
    listener.close()
    assert keys(datastore) == []


def test_a_follower_that_ends_leaves_the_entry_of_its_successor(datastore: Datastore) -> None:
    old = Listener(datastore.state, "gateway-1")
    new = Listener(datastore.state, "gateway-1")
    old.close()
    [entry] = datastore.state.list(PREFIX)
    found = msgspec.json.decode(entry.value, type=FollowerAddress)
    assert found.port == new.sock.getsockname()[1]
    new.close()
    assert keys(datastore) == []


def test_a_waiting_hint_is_bounded() -> None:
    hint = Hint()
    for shard in range(HEADS_MAX):
        hint.add({shard: 1}, subjects=[f"?{shard:015}".encode()])
    assert (len(hint.heads), hint.looks, len(hint.subjects)) == (HEADS_MAX, False, SUBJECTS_MAX)
    hint.add({}, subjects=[b"w" * 16])
    assert b"w" * 16 not in hint.subjects
    hint.add({0: 7})
    hint.add({0: 5})
    assert hint.heads[0] == 7
    hint.add({HEADS_MAX: 1})
    assert (hint.heads, hint.looks) == ({}, True)
    hint.add({1: 1})
    assert (hint.heads, hint.looks) == ({}, True)
