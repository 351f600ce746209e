"""A worker visits the shards that have something to do and no others, and misses none of them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.backoff import Backoff
from cellfeed.bridge.groups.followed_heads import FollowedHeads
from cellfeed.bridge.triggers.shard.run import ShardRun
from cellfeed.bridge.triggers.trigger_group import TriggerGroup
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import StorageUnavailable
from tests.support.shard_rows import row_of_shard
from tests.support.trigger_workers import Recorder, all_cells, ends, offsets

SHARDS = 3


class Later:
    """Work that is done when the test says so."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Callable[[], None], Future[None]]] = []

    def submit(self, task: Callable[[], None]) -> Future[None]:
        self.tasks.append((task, Future()))
        return self.tasks[-1][1]

    def go(self, inside: Callable[[], object] = lambda: None) -> None:
        """Does the oldest of it; ``inside`` is called when it is done, before anybody can know."""
        if self.tasks:
            task, done = self.tasks.pop(0)
            try:
                task()
            except Exception as error:
                done.set_exception(error)
            else:
                inside()
                done.set_result(None)


class Worker:
    """One group's share, whose main loop and threads are steps of the test."""

    def __init__(self, datastore: Datastore, recorder: Recorder, name: str = "a") -> None:
        self.coordinator = StoreCoordinator(datastore.state)
        self.group = TriggerGroup(recorder.trigger, datastore, self.coordinator, name, 600)
        self.followed = FollowedHeads(datastore.engine)
        self.pool, self.sweeper = Later(), Later()
        self.look()

    def look(self) -> bool:
        self.group.hear_heads(self.followed.look())
        self.group.keep_place()
        return self.group.start_work(self.pool, self.sweeper, self.followed.heads)  # type: ignore[arg-type]

    def come_to_rest(self) -> None:
        while self.look():
            self.pool.go()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "put",
                "look",
                "work",
                "put as work ends",
                "put and look as work ends",
                "work in vain",
                "look in vain",
                "give up",
            ]
        ),
        st.integers(0, SHARDS - 1),
    ),
    max_size=16,
)


@given(STEPS)
@example([("put", 0), ("look", 0), ("put and look as work ends", 0)])
def test_every_cell_is_run_under_any_events_between_the_looks(steps: list[tuple[str, int]]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        Datastore.open_embedded(Path(folder), shards=SHARDS) as datastore,
        patch.object(Backoff, "has_to_wait", return_value=False),
    ):
        recorder = Recorder()
        worker, names = Worker(datastore, recorder), iter("bcdefghijklmnopqrstuvwxyz")
        numbers = iter(range(1_000))

        def put_in(shard: int) -> None:
            datastore.put_cell(row_of_shard(shard, SHARDS), "BASE", next(numbers), {})

        def put_and_look(worker: Worker, shard: int) -> None:
            put_in(shard)
            worker.look()

        for step, shard in steps:
            if step == "put":
                put_in(shard)
            elif step == "look":
                worker.look()
            elif step == "work":
                worker.pool.go()
            elif step == "put as work ends":
                worker.pool.go(partial(put_in, shard))
            elif step == "put and look as work ends":
                worker.pool.go(partial(put_and_look, worker, shard))
            elif step == "work in vain":
                with patch.object(ShardRun, "run_chunk", side_effect=StorageUnavailable("away")):
                    worker.pool.go()
            elif step == "look in vain":
                with (
                    patch.object(
                        datastore.engine, "heads_since", side_effect=StorageUnavailable("away")
                    ),
                    suppress(StorageUnavailable),
                ):
                    worker.look()
            else:
                while not worker.group.drain():
                    worker.pool.go()
                worker = Worker(datastore, recorder, next(names))
        worker.come_to_rest()
        assert sorted(set(recorder.cells)) == sorted(all_cells(datastore))
        assert {shard: end for shard, end in offsets(worker.coordinator).items() if end} == {
            shard: end for shard, end in ends(datastore).items() if end
        }


def test_a_look_visits_the_shards_that_changed(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    worker = Worker(datastore, recorder)
    worker.come_to_rest()
    visited: list[int] = []
    has_work = ShardRun.has_work

    def noted(run: ShardRun, watermark: int) -> bool:
        visited.append(run.claim.partition)
        return has_work(run, watermark)

    monkeypatch.setattr(ShardRun, "has_work", noted)
    worker.look()
    assert visited == []
    datastore.put_cell(row_of_shard(7, datastore.shards), "BASE", 1, {})
    worker.come_to_rest()
    assert set(visited) == {7}
    visited.clear()
    worker.look()
    assert visited == []


def test_a_shard_with_an_unsaved_offset_is_visited_until_it_is_saved(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "has_to_wait", lambda *_: False)
    recorder = Recorder()
    worker = Worker(datastore, recorder)
    worker.come_to_rest()
    datastore.put_cell(row_of_shard(7, datastore.shards), "BASE", 1, {})
    worker.look()
    with patch.object(
        StoreCoordinator, "commit_offsets", side_effect=StorageUnavailable("cannot be written")
    ):
        worker.pool.go()
    assert recorder.cells == [(7, 0)]
    assert offsets(worker.coordinator)[7] == 0
    worker.come_to_rest()
    assert offsets(worker.coordinator) == ends(datastore)
    assert recorder.cells == [(7, 0)]
