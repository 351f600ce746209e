"""Calls that are done together: calls that come while one lot is under way are the next one, and
each hears of its own error."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.triggers.offsets.gathered_saves import GatheredSaves
from cellfeed.store.commit.gathered import Gathered
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import OutcomeUnknown, StaleWriter, StorageUnavailable
from tests.support.waiting import wait_until


class Lots:
    """Holds the first lot until it is asked to continue, so that the others gather; keeps the
    calls. ``fail``: raises for some lots."""

    def __init__(self, fail: Callable[[Sequence[int]], None] = lambda _: None) -> None:
        self.done: list[list[int]] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._fail = fail
        self.gathered = Gathered(self.together)

    def together(self, items: Sequence[int]) -> None:
        if not self.begun.is_set():
            self.begun.set()
            assert self.go_on.wait(60)
        self._fail(items)
        self.done.append(sorted(items))

    def run(self, items: Sequence[int]) -> dict[int, BaseException]:
        """Item 0 first, and the others while it is under way; their errors."""
        raised: dict[int, BaseException] = {}

        def call(item: int) -> None:
            try:
                self.gathered.call(item)
            except BaseException as error:
                raised[item] = error

        threads = [threading.Thread(target=call, args=(item,)) for item in (0, *items)]
        threads[0].start()
        assert self.begun.wait(60)
        for thread in threads[1:]:
            thread.start()
        wait_until(
            lambda: len(getattr(self.gathered._next, "items", ())) == len(items), "the others wait"
        )
        self.go_on.set()
        for thread in threads:
            thread.join(60)
        return raised


def test_requests_during_one_lot_are_done_together_in_the_next() -> None:
    lots = Lots()
    assert lots.run([1, 2, 3]) == {}
    assert lots.done == [[0], [1, 2, 3]]


def test_requests_of_a_failed_lot_are_repeated_one_by_one_with_errors_of_their_own() -> None:
    def fail(items: Sequence[int]) -> None:
        if 2 in items:
            raise StorageUnavailable("2 cannot be written")

    lots = Lots(fail)
    raised = lots.run([1, 2, 3])
    assert list(raised) == [2]
    assert sorted(lots.done) == [[0], [1], [3]]


def test_an_unknown_outcome_is_reported_to_all_of_its_lot() -> None:
    def fail(items: Sequence[int]) -> None:
        if len(items) > 1:
            raise OutcomeUnknown("no answer")

    lots = Lots(fail)
    assert sorted(lots.run([1, 2])) == [1, 2]
    assert lots.done == [[0]]


def test_a_thread_that_dies_in_a_lot_leaves_nobody_waiting() -> None:
    def fail(items: Sequence[int]) -> None:
        if len(items) > 1:
            raise SystemExit

    lots = Lots(fail)
    [(died, error)] = lots.run([1, 2]).items()
    assert isinstance(error, SystemExit)
    assert lots.done == [[0], [3 - died]]


def test_a_void_claim_keeps_no_other_shard_from_being_saved(datastore: Datastore) -> None:
    coordinator = StoreCoordinator(datastore.state)
    claims = coordinator.claim(coordinator.join("group", "worker", 30.0), "trips", [0, 1])
    coordinator.release([claims[1]])
    lot = [({("trips", shard): CommittedOffset(7)}, [claims[shard]]) for shard in (0, 1)]
    with pytest.raises(StaleWriter):
        coordinator.commit_offsets(
            "group", {**lot[0][0], **lot[1][0]}, claims=[*lot[0][1], *lot[1][1]]
        )
    begun, go_on = threading.Event(), threading.Event()
    refused: list[int] = []

    class Slow(StoreCoordinator):
        def commit_offsets(self, group: str, offsets: Any, **how: Any) -> None:
            begun.set()
            assert go_on.wait(60)
            super().commit_offsets(group, offsets, **how)

    def save(shard: int) -> None:
        try:
            saves.commit_offsets("group", lot[shard][0], claims=lot[shard][1])
        except StaleWriter:
            refused.append(shard)

    saves = GatheredSaves(Slow(datastore.state), "group")
    threads = [threading.Thread(target=save, args=(shard,)) for shard in (0, 0, 1)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(getattr(saves._saves._next, "items", ())) == 2, "the others wait")
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert refused == [1]
    assert {
        shard: each.offset for (_, shard), each in coordinator.fetch_offsets("group").items()
    } == {0: 7}
