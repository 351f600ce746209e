"""Sweeps: shards that keep up with their logs are brought on together, and one by one as soon as
anything goes wrong."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from cellfeed.bridge.coordination.contract import Claim, CommittedOffset, TopicPartition
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.program import Trigger, trigger
from cellfeed.bridge.triggers.retry import RetryPolicy
from cellfeed.bridge.triggers.shard import position, sweep
from cellfeed.bridge.triggers.shard.batches import LIVE_CELLS_MAX
from cellfeed.bridge.triggers.shard.sweep import Sweep
from cellfeed.bridge.triggers.worker import run_trigger_worker
from cellfeed.store.cells.cell import Cell, StoredCell
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import LogRange
from cellfeed.store.errors import StaleWriter, StorageUnavailable
from cellfeed.store.limits import SCAN_BYTES_MAX
from tests.support.trigger_steps import GROUP, Worker, row
from tests.support.waiting import wait_until

ROWS = 40
"""They lie in all sorts of shards."""

By = dict[int, list[int]]
"""Added_ids by shard, in the order in which they were run."""


class Recorder:
    """Notes the cells run by shard, and those run together. ``before`` is called with the cells by
    shard, and may raise."""

    def __init__(self) -> None:
        self.ran: By = {}
        self.together: list[dict[int, int]] = []
        self.before: Callable[[Mapping[int, Sequence[int]]], object] = lambda _: None

        @trigger(column="BASE", group=GROUP, batch=100, retry=RetryPolicy(2, 0, 0))
        def work(cells: Sequence[Cell]) -> None:
            self._run({cells[0].shard: [cell.added_id for cell in cells]})

        self.function = cast("Any", work)
        self.trigger: Trigger = replace(
            self.function.__cellfeed_trigger__, together=self._run_together, saves_lazily=True
        )
        self.function.__cellfeed_trigger__ = self.trigger

    def _run_together(self, cells: Mapping[int, Sequence[StoredCell]]) -> None:
        self.together.append({shard: len(some) for shard, some in cells.items()})
        self._run({shard: [cell.added_id for cell in some] for shard, some in cells.items()})

    def _run(self, cells: Mapping[int, Sequence[int]]) -> None:
        self.before(cells)
        for shard, some in cells.items():
            self.ran.setdefault(shard, []).extend(some)


def put(datastore: Datastore, numbers: range, rows: int = ROWS, **extra: Any) -> Counter[int]:
    """Cells of every row, two columns each; how many of column BASE came to each shard."""
    datastore.put_cells(
        [
            (row(each), column, number, {"n": number, **extra})
            for number in numbers
            for each in range(rows)
            for column in ("NOTES", "BASE")
        ]
    )
    return Counter(datastore.shard_of(row(each)) for _ in numbers for each in range(rows))


class _Sweeping:
    """A worker whose shards have come to the ends of their logs, each by itself."""

    def __init__(self, datastore: Datastore, recorder: Recorder, name: str = "a") -> None:
        self.datastore = datastore
        self.worker = Worker(datastore, recorder.function, name)
        self.runs = self.worker.runs
        self.sweep = Sweep(recorder.trigger, datastore.engine, self.worker.coordinator)
        self.look()
        assert not any(run.is_live for run in self.runs.values())
        self.worker.work()
        self.look()
        assert all(run.is_live for run in self.runs.values())

    def look(self) -> None:
        for shard, head in self.datastore.heads().items():
            self.runs[shard].has_work(head.watermark)

    def go(self) -> None:
        self.look()
        self.sweep.run([run for run in self.runs.values() if run.is_live])

    def locations(self) -> dict[int, int]:
        return {shard: run.progress.location for shard, run in self.runs.items()}

    def ends(self) -> dict[int, int]:
        return {shard: head.watermark for shard, head in self.datastore.heads().items()}


def saves_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many offsets each commit has, from now on."""
    saves, commit = list[int](), StoreCoordinator.commit_offsets

    def counted(
        coordinator: StoreCoordinator,
        group: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        **more: Any,
    ) -> None:
        saves.append(len(offsets))
        commit(coordinator, group, offsets, **more)

    monkeypatch.setattr(StoreCoordinator, "commit_offsets", counted)
    return saves


@pytest.fixture
def saving_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "SAVE_EVERY_S", -1.0)


@pytest.mark.usefixtures("saving_at_once")
def test_the_new_cells_of_all_live_shards_are_one_call_and_one_save(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    put(datastore, range(1))
    sweeping = _Sweeping(datastore, recorder)
    counts, saves = put(datastore, range(1, 3)), saves_of(monkeypatch)
    sweeping.go()
    assert recorder.together == [dict(counts)]
    assert len(counts) > 3
    assert sweeping.locations() == sweeping.worker.offsets() == sweeping.ends()
    assert saves == [len(counts)]
    assert sum(run.progress.run for run in sweeping.runs.values()) == 3 * ROWS
    assert all(added_ids == sorted(set(added_ids)) for added_ids in recorder.ran.values())


def test_after_a_failed_sweep_no_offset_moves_and_each_shard_runs_alone_until_it_succeeds(
    datastore: Datastore,
) -> None:
    recorder = Recorder()
    put(datastore, range(1))
    sweeping = _Sweeping(datastore, recorder)
    counts = put(datastore, range(1, 2))
    begun, poisoned = sweeping.locations(), max(counts)
    bad = begun[poisoned] + 1

    def refuse(cells: Mapping[int, Sequence[int]]) -> None:
        if bad in cells.get(poisoned, ()):
            raise ValueError("not this one")

    recorder.before = refuse
    sweeping.go()
    assert sweeping.locations() == begun
    assert not any(run.is_live for run in sweeping.runs.values())
    sweeping.worker.work()
    sweeping.look()
    assert [cell.added_id for cell in sweeping.worker.parked.all(GROUP)] == [bad]
    assert sweeping.locations() == sweeping.ends()
    assert all(run.is_live for run in sweeping.runs.values())
    put(datastore, range(2, 3))
    sweeping.go()
    assert len(recorder.together) == 2
    assert sweeping.locations() == sweeping.ends()
    assert sum(map(len, recorder.ran.values())) == 3 * ROWS - 1


@pytest.mark.usefixtures("saving_at_once")
def test_places_are_saved_in_commits_of_a_bounded_size(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    put(datastore, range(1))
    sweeping = _Sweeping(datastore, recorder)
    put(datastore, range(1, 2))
    monkeypatch.setattr(sweep, "OFFSETS_IN_A_COMMIT_MAX", 3)
    saves = saves_of(monkeypatch)
    sweeping.go()
    assert max(saves) == 3
    assert len(saves) > 1
    assert sweeping.worker.offsets() == sweeping.ends()


@pytest.mark.usefixtures("saving_at_once")
def test_a_shard_that_was_taken_over_keeps_the_others_from_being_saved_only_once(
    datastore: Datastore,
) -> None:
    recorder = Recorder()
    put(datastore, range(1))
    sweeping = _Sweeping(datastore, recorder)
    before = sweeping.worker.offsets()
    counts = put(datastore, range(1, 2))
    taken = max(counts)
    sweeping.worker.coordinator.release([sweeping.runs[taken].claim])
    other = StoreCoordinator(datastore.state)
    other.claim(other.join(GROUP, "b", 600), datastore.name, [taken])
    sweeping.go()
    assert sweeping.worker.offsets() == before
    for shard, run in sweeping.runs.items():
        assert not run.is_live
        if shard == taken:
            with pytest.raises(StaleWriter):
                run.run_chunk()
        else:
            run.run_chunk()
    assert sweeping.worker.offsets() == {**sweeping.ends(), taken: before[taken]}


@pytest.mark.usefixtures("saving_at_once")
def test_unsaved_offsets_are_saved_by_each_shard_before_it_continues(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    put(datastore, range(1))
    sweeping = _Sweeping(datastore, recorder)
    put(datastore, range(1, 2))

    def away(*_: object, claims: Sequence[Claim] = (), **__: object) -> None:
        assert claims
        raise StorageUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(StoreCoordinator, "commit_offsets", away)
        sweeping.go()
    assert sweeping.locations() == sweeping.ends()
    assert sweeping.worker.offsets() != sweeping.ends()
    put(datastore, range(2, 3))

    def nothing_runs_yet(*_: object, **__: object) -> None:
        raise StorageUnavailable("still away")

    ran = sum(map(len, recorder.ran.values()))
    with monkeypatch.context() as patched:
        patched.setattr(StoreCoordinator, "commit_offsets", nothing_runs_yet)
        for shard, run in sweeping.runs.items():
            if sweeping.worker.offsets().get(shard) != run.progress.location:
                with pytest.raises(StorageUnavailable, match="still away"):
                    run.run_chunk()
    assert sum(map(len, recorder.ran.values())) == ran
    sweeping.look()
    for run in sweeping.runs.values():
        run.run_chunk()
    assert sweeping.worker.offsets() == sweeping.ends()
    assert sum(map(len, recorder.ran.values())) == 3 * ROWS


def test_a_sweep_takes_a_bounded_number_of_cells_and_continues_with_later_shards(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, read = Recorder(), list[int]()
    put(datastore, range(1))
    sweeping = _Sweeping(datastore, recorder)
    monkeypatch.setattr(sweep, "SWEEP_CELLS_MAX", 10)
    sweeping.sweep._cells_max = 10
    scan_many = type(datastore.engine).scan_many

    def counted(engine: Any, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        found = scan_many(engine, ranges)
        read.append(sum(map(len, found)))
        return found

    monkeypatch.setattr(type(datastore.engine), "scan_many", counted)
    put(datastore, range(1, 2))
    for _ in range(2 * ROWS // 10):
        sweeping.go()
    assert read == [10] * (2 * ROWS // 10)
    assert sweeping.locations() == sweeping.ends()


def test_a_shard_moves_to_the_last_cell_that_was_read_and_no_further(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan ends earlier where its bodies are large."""
    recorder = Recorder()
    put(datastore, range(1))
    sweeping = _Sweeping(datastore, recorder)
    begun, counts = sweeping.locations(), put(datastore, range(1, 3))
    scan_many = type(datastore.engine).scan_many
    monkeypatch.setattr(
        type(datastore.engine),
        "scan_many",
        lambda engine, ranges: [found[:2] for found in scan_many(engine, ranges)],
    )
    sweeping.go()
    assert sweeping.locations() == {
        shard: start + (2 if shard in counts else 0) for shard, start in begun.items()
    }
    while sweeping.locations() != sweeping.ends():
        sweeping.go()
    assert sum(map(len, recorder.ran.values())) == 3 * ROWS


def test_a_busy_shard_keeps_no_other_from_its_turn(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has as many new cells at each sweep as one sweep takes."""
    recorder = Recorder()
    put(datastore, range(1))
    sweeping = _Sweeping(datastore, recorder)
    monkeypatch.setattr(sweep, "SWEEP_CELLS_MAX", 4)
    sweeping.sweep._cells_max = 4
    counts = put(datastore, range(1, 2))
    first, last = min(counts), max(counts)
    busy = next(row(each) for each in range(ROWS) if datastore.shard_of(row(each)) == first)
    target = sweeping.ends()[last]
    for number in range(100, 100 + 2 * ROWS):
        datastore.put_cells([(busy, f"C{each}", number, {}) for each in range(4)])
        sweeping.go()
    assert sweeping.locations()[last] >= target


def test_no_cell_runs_in_a_sweep_under_a_void_claim(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was paused, and another worker has the shard."""
    recorder = Recorder()
    put(datastore, range(1))
    sweeping = _Sweeping(datastore, recorder)
    counts = put(datastore, range(1, 2))
    taken = max(counts)
    sweeping.worker.coordinator.release([sweeping.runs[taken].claim])
    other = StoreCoordinator(datastore.state)
    other.claim(other.join(GROUP, "b", 600), datastore.name, [taken])
    monkeypatch.setattr(sweeping.worker.membership, "is_sure", lambda _: False)
    ran = sum(map(len, recorder.ran.values()))
    sweeping.go()
    assert sum(map(len, recorder.ran.values())) == ran
    assert recorder.together == []


def test_large_cells_make_the_next_sweep_smaller(datastore: Datastore) -> None:
    recorder = Recorder()
    put(datastore, range(1))
    sweeping = _Sweeping(datastore, recorder)
    text = random.Random(1).randbytes(400_000).hex()
    put(datastore, range(1, 2), rows=SCAN_BYTES_MAX // 800_000 + 2, text=text)
    sweeping.go()
    assert sweeping.sweep._cells_max == sweep.SWEEP_CELLS_MAX // 2
    put(datastore, range(2, 3))
    sweeping.go()
    assert sweeping.sweep._cells_max == sweep.SWEEP_CELLS_MAX


def test_a_shard_whose_log_gives_less_than_its_head_says_waits_alone(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    put(datastore, range(1))
    sweeping = _Sweeping(datastore, recorder)
    begun, counts = sweeping.locations(), put(datastore, range(1, 2))
    missing = max(counts)
    scan_many = type(datastore.engine).scan_many

    def without(engine: Any, ranges: Sequence[LogRange]) -> list[list[StoredCell]]:
        return [
            [] if each.shard == missing else found
            for each, found in zip(ranges, scan_many(engine, ranges), strict=True)
        ]

    monkeypatch.setattr(type(datastore.engine), "scan_many", without)
    sweeping.go()
    assert sweeping.locations() == {**sweeping.ends(), missing: begun[missing]}
    assert [shard for shard, run in sweeping.runs.items() if not run.is_live] == [missing]


def test_a_shard_that_is_behind_is_in_no_sweep(datastore: Datastore) -> None:
    recorder = Recorder()
    put(datastore, range(1), rows=1)
    sweeping = _Sweeping(datastore, recorder)
    shard = datastore.shard_of(row(0))
    datastore.put_cells([(row(0), "BASE", number, {}) for number in range(1, LIVE_CELLS_MAX + 2)])
    sweeping.look()
    assert [number for number, run in sweeping.runs.items() if not run.is_live] == [shard]
    sweeping.go()
    assert recorder.together == []


def test_a_worker_runs_every_cell_in_order_while_sweeps_fail_now_and_then(
    datastore: Datastore,
) -> None:
    recorder, chance, stop = Recorder(), random.Random(2), threading.Event()
    coordinator, errors = StoreCoordinator(datastore.state), list[BaseException]()

    def fail_now_and_then(cells: Mapping[int, Sequence[int]]) -> None:
        if len(cells) > 1 and chance.random() < 0.2:
            raise ValueError("this time")

    recorder.before = fail_now_and_then

    def run() -> None:
        try:
            run_trigger_worker([recorder.trigger], datastore, coordinator, "w", stop, lease_s=5.0)
        except BaseException as error:
            errors.append(error)

    def reached() -> bool:
        found = {
            shard: each.offset for (_, shard), each in coordinator.fetch_offsets(GROUP).items()
        }
        return all(found.get(shard) == head.watermark for shard, head in datastore.heads().items())

    worker = threading.Thread(target=run)
    worker.start()
    try:
        counts: Counter[int] = Counter()
        for number in range(30):
            counts += put(datastore, range(number, number + 1))
        wait_until(reached, "all is saved", 60)
    finally:
        stop.set()
        worker.join(30)
    assert not worker.is_alive()
    assert not errors, errors
    assert any(len(each) > 1 for each in recorder.together)
    assert ParkedCells(datastore.state).count(GROUP) == 0
    assert {shard: len(added_ids) for shard, added_ids in recorder.ran.items()} == dict(counts)
    assert all(added_ids == sorted(set(added_ids)) for added_ids in recorder.ran.values())
