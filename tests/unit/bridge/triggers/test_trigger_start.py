"""Where a new group begins: settled once for all shards, in one commit, for every process that
asks, whenever its shards are begun."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.start import StartOfGroup
from cellfeed.bridge.triggers.program import trigger
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidLocation, UnknownShard
from cellfeed.store.failpoints import (
    FailpointReached,
    clear_failpoints,
    set_failpoint,
    unwatch_failpoint,
    watch_failpoint,
)
from cellfeed.store.limits import ADDED_ID_MAX
from tests.support.trigger_steps import GROUP, Worker, row


def put(datastore: Datastore, numbers: range) -> None:
    datastore.put_cells([(row(number), "BASE", 1, {"n": number}) for number in numbers])


def started(datastore: Datastore, ran: list[UUID], start: Any, name: str = "a") -> Worker:
    @trigger(column="BASE", group=GROUP, start=start)
    def work(row_key: UUID) -> None:
        ran.append(row_key)

    return Worker(datastore, work, name)


def ends(datastore: Datastore) -> dict[int, int]:
    return {shard: head.watermark for shard, head in datastore.heads().items()}


def test_a_group_begins_at_the_earliest_cell_by_default(datastore: Datastore) -> None:
    put(datastore, range(20))
    ran: list[UUID] = []
    started(datastore, ran, "earliest").work()
    assert sorted(ran) == sorted(map(row, range(20)))


def test_latest_is_the_end_of_the_log_when_the_group_first_began_for_every_worker(
    datastore: Datastore,
) -> None:
    put(datastore, range(20))
    before = ends(datastore)
    settled = StartOfGroup(
        datastore, StoreCoordinator(datastore.state), GROUP, "latest"
    ).locations()
    assert dict(enumerate(settled)) == before
    # The worker died there, before it had claimed a shard; cells come; another one begins.
    put(datastore, range(20, 60))
    ran: list[UUID] = []
    worker = started(datastore, ran, "latest")
    assert worker.offsets() == before  # saved before anything is run
    worker.work()
    assert sorted(ran) == sorted(map(row, range(20, 60)))
    assert worker.offsets() == ends(datastore)


def test_an_offset_that_is_there_is_not_moved(datastore: Datastore) -> None:
    put(datastore, range(20))
    ran: list[UUID] = []
    first = started(datastore, ran, "earliest", "a")
    first.work()
    first.give_back()
    put(datastore, range(20, 40))
    started(datastore, ran, "latest", "b").work()
    assert sorted(ran) == sorted(map(row, range(40)))


def test_a_group_that_has_offsets_of_an_earlier_version_begins_its_other_shards_at_their_beginning(
    datastore: Datastore,
) -> None:
    put(datastore, range(40))
    StoreCoordinator(datastore.state).commit_offsets(
        GROUP, {(datastore.name, 0): CommittedOffset(1)}
    )
    ran: list[UUID] = []
    worker = started(datastore, ran, "latest")
    worker.work()
    assert len(ran) == 39
    assert worker.offsets() == ends(datastore)


def test_a_start_at_a_moment_is_the_first_cell_at_or_after_it(datastore: Datastore) -> None:
    put(datastore, range(20))
    moment = max(
        cell.created_at
        for shard in range(datastore.shards)
        for cell in datastore.get_cells_for_shard(shard).cells
    ) + timedelta(microseconds=1)
    while datetime.now(UTC) <= moment:
        pass
    put(datastore, range(20, 40))
    ran: list[UUID] = []
    started(datastore, ran, moment).work()
    assert sorted(ran) == sorted(map(row, range(20, 40)))


def test_locations_are_given_by_shard_and_the_others_begin_at_their_beginning(
    datastore: Datastore,
) -> None:
    put(datastore, range(40))
    first = datastore.shard_of(row(0))
    ran: list[UUID] = []
    worker = started(datastore, ran, {first: 2})
    assert worker.offsets() == {
        shard: 2 if shard == first else 0 for shard in range(datastore.shards)
    }
    worker.work()
    assert len(ran) == 38


def test_locations_beyond_the_end_or_of_no_shard_are_refused(datastore: Datastore) -> None:
    with pytest.raises(InvalidLocation, match="ends at 0"):
        started(datastore, [], {0: 1})
    with pytest.raises(UnknownShard):
        started(datastore, [], {99: 0})


def test_a_location_that_was_trimmed_is_refused(datastore: Datastore) -> None:
    shard = datastore.shard_of(row(0))
    datastore.put_cells([(row(0), "BASE", number, {}) for number in range(5)])
    datastore.trim(shard, 3)
    with pytest.raises(InvalidLocation, match="trimmed below 3"):
        started(datastore, [], {shard: 2})
    assert started(datastore, [], {shard: 3}).offsets()[shard] == 3


def test_latest_is_the_end_of_the_cells_that_are_shown(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next id is not known while a cluster's master is away."""
    put(datastore, range(20))
    shown = ends(datastore)
    heads = {
        shard: head._replace(next_added_id=ADDED_ID_MAX)
        for shard, head in datastore.heads().items()
    }
    monkeypatch.setattr(datastore, "heads", lambda: heads)
    start = StartOfGroup(datastore, StoreCoordinator(datastore.state), GROUP, "latest")
    assert dict(enumerate(start.locations())) == shown


@pytest.mark.parametrize(
    "failpoint",
    [
        "start.before_settled",
        "start.after_settled",
        "start.before_first_offsets",
        "start.after_first_offsets",
    ],
)
def test_latest_does_not_slide_when_the_first_worker_dies_at_any_step(
    datastore: Datastore, failpoint: str
) -> None:
    put(datastore, range(20))
    set_failpoint(failpoint, "raise")
    with pytest.raises(FailpointReached):
        started(datastore, [], "latest")
    clear_failpoints()
    put(datastore, range(20, 40))
    ran: list[UUID] = []
    started(datastore, ran, "latest").work()
    # Before the commit the group had not begun; from then on no cell that is put is left out.
    assert sorted(ran) == (
        [] if failpoint == "start.before_settled" else sorted(map(row, range(20, 40)))
    )


def test_of_two_workers_that_begin_at_once_one_chooses_the_start(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = StartOfGroup(datastore, StoreCoordinator(datastore.state), GROUP, "latest")
    second = StartOfGroup(datastore, StoreCoordinator(datastore.state), GROUP, "latest")
    heads = datastore.heads
    by_second: list[list[int]] = []

    def heads_while_another_settles() -> Any:
        found = heads()
        monkeypatch.setattr(datastore, "heads", heads)
        by_second.append(second.locations())
        put(datastore, range(20))
        return found

    put(datastore, range(10))
    before = ends(datastore)
    monkeypatch.setattr(datastore, "heads", heads_while_another_settles)
    assert first.locations() == second.locations() == by_second[0] == list(before.values())


def test_a_worker_that_settles_second_begins_where_the_first_one_settled(
    datastore: Datastore,
) -> None:
    """Both have looked at the ends, the second one later."""
    put(datastore, range(10))
    before = ends(datastore)
    first = StartOfGroup(datastore, StoreCoordinator(datastore.state), GROUP, "latest")
    second = StartOfGroup(datastore, StoreCoordinator(datastore.state), GROUP, "earliest")
    settled: list[list[int]] = []

    def first_settles() -> None:
        unwatch_failpoint("start.before_settled")
        settled.append(first.locations())

    watch_failpoint("start.before_settled", first_settles)
    assert second.locations() == settled[0] == list(before.values())
    assert StartOfGroup(
        datastore, StoreCoordinator(datastore.state), GROUP, "earliest"
    ).locations() == list(before.values())
