"""The waits of a process, at an outlet that the test moves."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from cellfeed.store import background
from cellfeed.store.cells.put_result import PutResult
from cellfeed.store.cells.token import Places, Token
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import (
    NotFound,
    Overloaded,
    StorageUnavailable,
    Trimmed,
    WaitTimedOut,
)
from cellfeed.store.waits import outlet_watch, watched_outlet
from cellfeed.store.waits.waiting import Kind, Passed, Place, PlaceRange, missing_places, part_of
from tests.support.waiting import wait_until


class Moved:
    """``reads``: how often its positions were read."""

    title = "trigger 'moved'"

    def __init__(self) -> None:
        self.at: dict[int, int] = {}
        self.reads = 0
        self.parked: list[Place] = []
        self.trimmed_below = 0
        self.gone = False

    def group(self) -> str:
        return "moved"

    def positions(self, shards: Collection[int]) -> Mapping[int, int]:
        self.reads += 1
        return {shard: self.at[shard] for shard in shards if shard in self.at}

    def passed(self, places: Sequence[Places]) -> Passed | None:
        if any(each.first < self.trimmed_below for each in places):
            raise Trimmed(f"below {self.trimmed_below}")
        if missing_places(self.at, places):
            return None
        return Passed(self.title, list(self.parked), [])


@pytest.fixture
def moved() -> Moved:
    return Moved()


@pytest.fixture
def datastore(tmp_path: Path, moved: Moved) -> Iterator[Datastore]:
    def find(kind: Kind, name: str) -> Moved:
        if moved.gone:
            raise NotFound(f"there is no {kind} {name!r} here")
        return moved

    with Datastore.open_embedded(tmp_path / "store", shards=2) as opened:
        opened.waits.find = find
        yield opened


def put(datastore: Datastore, count: int) -> list[PutResult]:
    return datastore.put_cells([(uuid4(), "BASE", number, {}) for number in range(count)])


def test_hundreds_of_waiters_share_each_look(datastore: Datastore, moved: Moved) -> None:
    results = put(datastore, 200)
    with ThreadPoolExecutor(200) as callers:
        answers = [
            callers.submit(datastore.wait_for, each, trigger="moved", timeout_s=60)
            for each in results
        ]
        wait_until(lambda: datastore.waits.waiters == 200, "all wait", 20)
        before = moved.reads
        bad = results[3]
        assert bad.shard is not None
        assert bad.added_id is not None
        moved.parked = [Place(bad.shard, bad.added_id)]
        moved.at = {0: 200, 1: 200}
        found = [each.result() for each in answers]
    assert moved.reads - before < 100
    assert [each.parked for each in found] == [
        moved.parked if result is bad else [] for result in results
    ]


def test_an_answer_for_many_waiters_gives_each_the_outcome_of_its_own_places() -> None:
    passed = Passed(
        "it", [Place(0, 3), Place(0, 7), Place(1, 5)], [PlaceRange(0, 2, 8), PlaceRange(2, 0, 9)]
    )
    assert part_of(passed, [Places(0, 6, 9), Places(3, 0, 4)]) == Passed(
        "it", [Place(0, 7)], [PlaceRange(0, 6, 8)]
    )
    assert part_of(passed, [Places(1, 6, 6)]).handled


def test_an_error_for_the_places_of_one_waiter_reaches_no_other(
    datastore: Datastore, moved: Moved
) -> None:
    [first, *_] = [each for each in put(datastore, 9) if each.shard == 0]
    later = [each for each in put(datastore, 9) if each.shard == 0][-1]
    with ThreadPoolExecutor(2) as callers:
        answers = [
            callers.submit(datastore.wait_for, each, trigger="moved", timeout_s=60)
            for each in (first, later)
        ]
        wait_until(lambda: datastore.waits.waiters == 2, "both wait")
        moved.trimmed_below = 1
        moved.at = {0: 100, 1: 100}
        with pytest.raises(Trimmed):
            answers[0].result()
        assert answers[1].result().handled


def test_an_outlet_that_is_deleted_meanwhile_ends_its_waits(
    datastore: Datastore, moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (outlet_watch, watched_outlet):
        monkeypatch.setattr(module, "FOUND_S", 0.01)
    with ThreadPoolExecutor(1) as callers:
        answer = callers.submit(
            datastore.wait_for, put(datastore, 1), trigger="moved", timeout_s=60
        )
        wait_until(lambda: moved.reads > 0, "it waits")
        moved.gone = True
        with pytest.raises(NotFound, match="'moved'"):
            answer.result()


def test_a_wait_on_a_lingering_outlet_is_refused_once_the_outlet_is_gone(
    datastore: Datastore, moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (outlet_watch, watched_outlet):
        monkeypatch.setattr(module, "FOUND_S", 0.0)
    moved.at = {0: 100, 1: 100}
    results = put(datastore, 1)
    assert datastore.wait_for(results, trigger="moved").handled
    moved.gone = True
    with pytest.raises(NotFound):
        datastore.wait_for(results, trigger="moved")


def test_closing_the_datastore_ends_its_waits(tmp_path: Path, moved: Moved) -> None:
    opened = Datastore.open_embedded(tmp_path / "other", shards=2)
    opened.waits.find = lambda _kind, _name: moved
    with ThreadPoolExecutor(1) as callers:
        answer = callers.submit(opened.wait_for, put(opened, 1), trigger="moved", timeout_s=60)
        wait_until(lambda: moved.reads > 0, "it waits")
        opened.close()
        with pytest.raises(StorageUnavailable):
            answer.result()


def test_a_token_of_more_places_than_allowed_has_a_wait_of_its_own(
    datastore: Datastore, moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet_watch, "PLACES_MAX", 1)
    token = Token.of(put(datastore, 30))
    target = datastore.waits.target(token, "trigger", "moved")
    with datastore.waits.at(target, token, lambda: None):  # noqa: SIM117 (the inner one is refused)
        with (
            pytest.raises(Overloaded, match="ranges of places"),
            datastore.waits.at(target, token, lambda: None),
        ):
            pass


def test_a_wait_that_ends_leaves_nothing_behind(
    datastore: Datastore, moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_outlet, "LINGER_S", 0.0)
    results = put(datastore, 1)
    for _ in range(5):
        with pytest.raises(WaitTimedOut):
            datastore.wait_for(results, trigger="moved", timeout_s=0.01)
    wait_until(lambda: not datastore.waits.watched, "the watches have ended")
    wait_until(
        lambda: not [each for each in threading.enumerate() if each.name.startswith("wait-")],
        "their threads have ended",
    )


def test_few_outlets_linger_without_waiters(
    datastore: Datastore, moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet_watch, "LINGERING_MAX", 2)
    monkeypatch.setattr(watched_outlet, "LINGER_S", 60.0)
    moved.at = {0: 100, 1: 100}
    results = put(datastore, 1)
    for number in range(10):
        assert datastore.wait_for(results, group=f"g{number}").handled
    for watched in list(datastore.waits.watched.values()):
        watched._watch.nudge()
    wait_until(lambda: len(datastore.waits.watched) <= 2, "the others have ended")


def test_a_defect_of_a_look_is_its_callers_and_the_next_wait_is_answered(
    datastore: Datastore, moved: Moved, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = put(datastore, 1)
    moved.at = {0: 100, 1: 100}
    with monkeypatch.context() as broken:
        broken.setattr(moved, "passed", lambda _: 1 // 0)
        for _ in range(5):
            with pytest.raises(ZeroDivisionError):
                datastore.wait_for(results, trigger="moved", timeout_s=20)
    assert datastore.wait_for(results, trigger="moved", timeout_s=20).handled
    assert background.troubles() == []


def test_a_forked_child_is_refused_at_once_and_the_parent_still_waits(
    datastore: Datastore, moved: Moved
) -> None:
    moved.at = {0: 100, 1: 100}
    results = put(datastore, 1)
    assert datastore.wait_for(results, trigger="moved").handled
    pid = os.fork()
    if pid == 0:
        try:
            datastore.wait_for(results, trigger="moved", timeout_s=20)
        except StorageUnavailable as error:
            os._exit(0 if "forked" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert datastore.wait_for(results, trigger="moved").handled
