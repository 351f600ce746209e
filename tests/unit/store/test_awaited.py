"""Watches and wake-ups between a waiter and an outlet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.waits import awaited
from cellfeed.store.waits.awaited import Awaited, Watch
from cellfeed.store.wakeups.datagrams import Listener, poke_about, poke_once
from tests.support.waiting import wait_until


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=1) as opened:
        yield opened


@pytest.fixture
def listener(datastore: Datastore) -> Iterator[Listener]:
    """Of a process with outlets, which takes datagrams when the test says so."""
    with closing(Listener(datastore.state, "w", datastore.awaited)) as opened:
        yield opened


@pytest.fixture
def watch(datastore: Datastore) -> Iterator[Watch]:
    with closing(Watch(datastore.state)) as opened:
        yield opened


def is_woken(watch: Watch) -> bool:
    watch.is_answered = False
    watch.wait(0)
    return watch.is_answered


def test_a_watch_is_answered_and_every_save_behind_it_wakes(
    datastore: Datastore, listener: Listener, watch: Watch
) -> None:
    watch.send_where_due("billing")
    assert not is_woken(watch)
    assert listener.wait(20)
    assert datastore.awaited.is_awaited("billing")
    assert not datastore.awaited.is_awaited("other")

    assert is_woken(watch)  # a save before the watch arrived is found by the look behind this
    datastore.awaited.wake("other")
    assert not is_woken(watch)
    for _ in range(3):
        datastore.awaited.wake("billing")
        assert is_woken(watch)


def test_a_watch_without_a_waiter_runs_out(
    datastore: Datastore, listener: Listener, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaited, "WATCH_S", 0.2)
    watch.send_where_due("billing")
    assert listener.wait(20)
    wait_until(lambda: not datastore.awaited.is_awaited("billing"), "the watch has run out")
    datastore.awaited.wake("billing")
    assert not datastore.awaited._until_s
    assert is_woken(watch)  # the answer
    assert not is_woken(watch)


def test_watches_are_limited_and_those_known_are_renewed(
    datastore: Datastore, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awaited, "WATCHES_MAX", 2)
    with (
        closing(Watch(datastore.state)) as first,
        closing(Watch(datastore.state)) as second,
        closing(Watch(datastore.state)) as third,
    ):
        for each in (first, second, third):
            each.send_where_due("billing")
            assert listener.wait(20)
        assert [is_woken(each) for each in (first, second, third)] == [True, True, False]
        first._again_at_s = 0.0
        first.send_where_due("billing")
        assert listener.wait(20)
        assert is_woken(first)


def test_a_nudge_ends_a_wait_and_is_no_wake_up(watch: Watch) -> None:
    watch.nudge()
    watch.wait(60)
    assert not watch.is_answered


def test_pokes_of_other_kinds_still_arrive(datastore: Datastore, listener: Listener) -> None:
    poke_once(datastore.state, poke_about("somebody"))
    assert listener.wait(20)
    assert listener.pokes == {poke_about("somebody")}
    assert not datastore.awaited.take(b"w", ("127.0.0.1", 9))


def test_no_poke_is_sent_once_the_outlets_process_has_ended() -> None:
    ended = Awaited()
    assert ended.take(awaited._watch_of("billing"), ("127.0.0.1", 9))
    ended.close()
    ended.wake("billing")
    assert not ended.is_awaited("billing")
