"""The test kit: the meaning of a run, the effect of each fault on it, and that a fault which never
happened is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid5

import pytest

from cellfeed.bridge.triggers.program import RetryPolicy, trigger
from cellfeed.store.cells.cell import Cell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import OutcomeUnknown, StorageUnavailable
from cellfeed.store.failpoints import FAILPOINTS, ProcessEnds
from cellfeed.testing import FaultNeverHappened, Kit, NotIdle, RunOutcome, TriggerStopped

NAMESPACE = UUID("0b6dbf6c-6f0f-5d5b-a26f-2e3b0f3f6f4a")
KEYS = [uuid5(NAMESPACE, str(number)) for number in range(24)]


@trigger(column="BASE", retry=RetryPolicy(attempts=3))
def follow(row_key: UUID) -> None:
    """Does nothing; the kit sees that it was called."""
    del row_key


@trigger(column="BASE")
def answer(row_key: UUID, *, cell: Cell, store: Datastore) -> None:
    """Puts a cell for each cell."""
    store.put_cell(row_key, "ANSWER", cell.ref_key, {"to": cell.body["n"]})


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[Kit]:
    with Kit(tmp_path) as opened:
        yield opened


def put(kit: Kit, keys: list[UUID] = KEYS) -> None:
    for result in kit.store.put_cells(
        [(key, "BASE", 1, {"n": number}) for number, key in enumerate(keys)]
    ):
        result.or_raise()


def heads(kit: Kit) -> dict[int, int]:
    return {shard: head.watermark for shard, head in kit.store.heads().items() if head.watermark}


def test_a_run_is_over_when_every_cell_of_the_column_has_run_once_in_order(kit: Kit) -> None:
    put(kit)
    kit.store.put_cell(KEYS[0], "NOTES", 1, {})
    kit.run_until_idle(follow)
    assert [kit.runs(key) for key in KEYS] == [1] * len(KEYS)
    for shard in range(kit.store.shards):
        order = [run.cells[0].added_id for run in kit.history() if run.shard == shard]
        assert order == sorted(order)
    assert {shard: offset for shard, offset in kit.offsets().items() if offset} == heads(kit)
    assert kit.parked() == []


def test_a_second_run_resumes_where_the_first_ended(kit: Kit) -> None:
    put(kit, KEYS[:10])
    kit.run_until_idle(follow)
    put(kit)
    kit.run_until_idle(follow)
    assert [kit.runs(key) for key in KEYS] == [1] * len(KEYS)


def test_cells_that_a_trigger_puts_are_part_of_the_run(kit: Kit) -> None:
    @trigger(column="ANSWER")
    def hear(row_key: UUID) -> None:
        del row_key

    put(kit)
    kit.run_until_idle(answer, hear)
    with pytest.raises(ValueError, match="name the trigger"):
        kit.offsets()
    assert kit.offsets(hear) == kit.offsets(answer)
    assert [kit.runs(key, hear) for key in KEYS] == [1] * len(KEYS)
    assert all(kit.store.get_cell(key, "ANSWER", 1) for key in KEYS)


def test_a_list_of_triggers_may_be_given_and_batches_are_seen_cell_by_cell(kit: Kit) -> None:
    @trigger(column="BASE", batch=10)
    def collect(cells: list[Cell]) -> None:
        assert cells

    put(kit)
    kit.run_until_idle([follow, collect])
    assert [kit.runs(key, collect) for key in KEYS] == [1] * len(KEYS)
    assert sum(run.group == "collect" for run in kit.history()) < len(KEYS)


def test_several_workers_have_divided_the_shards_before_they_see_a_cell(kit: Kit) -> None:
    put(kit)
    kit.run_until_idle(follow, workers=2)
    assert [kit.runs(key) for key in KEYS] == [1] * len(KEYS)
    workers = {run.shard: run.worker for run in kit.history()}
    assert sorted(workers.values()) == ["worker-1", "worker-1", "worker-2", "worker-2"]


def test_a_run_that_does_not_become_idle_names_the_remaining_work(kit: Kit) -> None:
    put(kit, KEYS[:1])
    kit.poison(KEYS[0], error=StorageUnavailable("the till is shut"))
    with pytest.raises(
        NotIdle,
        match=(
            r"follow is at 0 of 1 in shard \d .*cell \d/0 on worker-1, failed:"
            r" StorageUnavailable\('the till is shut'\)"
        ),
    ):
        kit.run_until_idle(follow, deadline_s=0.3)


def test_a_function_that_is_no_trigger_is_refused(kit: Kit) -> None:
    with pytest.raises(TypeError, match="mark the function"):
        kit.run_until_idle(len)
    with pytest.raises(ValueError, match="one trigger"):
        kit.run_until_idle()


def test_a_defect_that_ends_a_worker_is_raised(kit: Kit) -> None:
    class Defect(ProcessEnds):
        """Nothing that a trigger function may raise."""

    put(kit, KEYS[:1])
    kit.poison(KEYS[0], error=Defect())
    with pytest.raises(Defect):
        kit.run_until_idle(follow)


# --- poison ---------------------------------------------------------------------------------------


def test_a_poisoned_cell_is_tried_as_often_as_the_policy_allows_then_parked_with_its_error(
    kit: Kit,
) -> None:
    put(kit)
    kit.poison(KEYS[3], error=ValueError("no such card"))
    kit.run_until_idle(follow)
    [parked] = kit.parked(follow)
    assert (parked.row_key, parked.attempts) == (str(KEYS[3]), 3)
    assert "no such card" in parked.error
    assert [kit.runs(key) for key in KEYS] == [3 if key == KEYS[3] else 1 for key in KEYS]


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), asyncio.CancelledError(), SystemExit(1)],
    ids=lambda error: type(error).__name__,
)
def test_every_exception_of_a_function_is_its_cells_failure(kit: Kit, error: BaseException) -> None:
    put(kit)
    kit.poison(KEYS[3], error=error)
    kit.run_until_idle(follow)
    [parked] = kit.parked(follow)
    assert (parked.row_key, parked.attempts) == (str(KEYS[3]), 3)
    assert type(error).__name__ in parked.error


def test_a_cell_that_fails_fewer_times_than_it_is_tried_runs(kit: Kit) -> None:
    put(kit)
    poison = kit.poison(lambda cell: cell.body["n"] % 5 == 0, times=2)
    kit.run_until_idle(follow)
    assert kit.parked() == []
    assert set(poison.raised.values()) == {2}
    assert [kit.runs(key) for key in KEYS] == [
        3 if number % 5 == 0 else 1 for number in range(len(KEYS))
    ]


def test_parked_cells_are_tried_again_when_asked(kit: Kit) -> None:
    put(kit)
    kit.poison(str(KEYS[3]), times=3)
    kit.run_until_idle(follow)
    assert len(kit.parked(follow)) == 1
    kit.retry_parked(follow)
    assert kit.parked() == []
    assert kit.runs(KEYS[3]) == 4


def test_a_trigger_that_stops_because_too_many_cells_are_parked_raises_its_own_error(
    kit: Kit,
) -> None:
    @trigger(column="BASE", retry=RetryPolicy(1), parked_max=2)
    def fail(row_key: UUID) -> None:
        raise ValueError(row_key)

    put(kit)
    with pytest.raises(TriggerStopped, match=r"\d cells are parked, the limit is 2"):
        kit.run_until_idle(fail)


def test_a_function_that_ends_its_process_is_tried_like_one_that_raises(kit: Kit) -> None:
    put(kit)
    kit.poison(KEYS[3], error=SystemExit(3))
    kit.run_until_idle(follow)
    assert [parked.row_key for parked in kit.parked()] == [str(KEYS[3])]
    assert all(kit.runs(key) >= 1 for key in KEYS)


# --- stall ----------------------------------------------------------------------------------------


def test_a_function_that_hangs_delays_no_other_shard(kit: Kit) -> None:
    put(kit)
    kit.stall(KEYS[0])
    kit.run_until_idle(follow)
    assert [kit.runs(key) for key in KEYS] == [1] * len(KEYS)
    hung = next(run for run in kit.history() if run.cells[0].row_key == KEYS[0])
    later = [run for run in kit.history() if run.shard != hung.shard]
    assert later
    assert all(run.outcome is RunOutcome.DONE for run in later)


def test_a_function_that_runs_into_its_time_out_ends_its_worker_and_the_cell_is_parked(
    kit: Kit,
) -> None:
    @trigger(column="BASE", retry=RetryPolicy(1), timeout_s=0.1)
    def slow(row_key: UUID, *, cell: Cell) -> None:
        del row_key, cell

    put(kit)
    kit.stall(KEYS[0])
    kit.run_until_idle(slow)
    assert [run.outcome for run in kit.history() if run.cells[0].row_key == KEYS[0]] == [
        RunOutcome.KILLED
    ]
    [parked] = kit.parked()
    assert parked.row_key == str(KEYS[0])
    assert "ran longer than 0.1 s" in parked.error
    assert all(kit.runs(key) >= 1 for key in KEYS)


@pytest.mark.parametrize("coordination", ["store", "zookeeper"])
def test_a_worker_paused_past_its_lease_is_fenced_when_it_wakes_up(
    tmp_path: Path, coordination: str
) -> None:
    with Kit(tmp_path, coordination=coordination) as kit:
        put(kit)
        paused = kit.stall(KEYS[0], past_lease=True)
        kit.run_until_idle(follow, workers=2)
        runs = [run for run in kit.history() if run.cells[0].row_key == KEYS[0]]
        assert {run.worker for run in runs} == {"worker-1", "worker-2"}
        assert [run.outcome for run in runs] == [RunOutcome.DONE] * 2
        assert {shard: offset for shard, offset in kit.offsets(follow).items() if offset} == heads(
            kit
        )
        assert paused.happened


def test_a_worker_cannot_be_paused_past_its_lease_where_there_is_no_other(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    put(kit, KEYS[:1])
    kit.stall(KEYS[0], past_lease=True)
    with pytest.raises(ValueError, match="workers=2"):
        kit.run_until_idle(follow)
    with pytest.raises(FaultNeverHappened):
        kit.close()


# --- failover -------------------------------------------------------------------------------------


def test_cells_lost_with_the_master_are_unknown_shown_to_nobody_and_give_up_their_ids(
    tmp_path: Path,
) -> None:
    with Kit(tmp_path, shards=1) as kit:
        put(kit, KEYS[:5])
        failover = kit.failover(lose=3)
        for key in KEYS[5:7]:
            with pytest.raises(OutcomeUnknown):
                kit.store.put_cell(key, "BASE", 1, {"lost": True})
            assert kit.store.get_cell(key, "BASE", 1) is None
        before = kit.store.heads()[0]
        assert (before.watermark, before.next_added_id, before.leader_epoch) == (5, 7, 0)
        kit.run_until_idle(follow)
        assert [kit.runs(key) for key in KEYS[:7]] == [1] * 5 + [0] * 2
        assert (
            kit.store.put_cells([(KEYS[7], "BASE", 1, {"lost": True})])[0].outcome
            is Outcome.UNKNOWN
        )
        assert [(cell.row_key, cell.added_id) for cell in failover.lost] == [
            (KEYS[5], 5),
            (KEYS[6], 6),
            (KEYS[7], 7),
        ]
        put(kit, KEYS[8:12])
        after = kit.store.heads()[0]
        assert (after.watermark, after.next_added_id, after.leader_epoch) == (9, 9, 1)
        assert kit.store.engine.leader_epochs(0) == [(0, 0), (1, 5)]
        kit.run_until_idle(follow)
        assert [kit.runs(key) for key in KEYS[:12]] == [1] * 5 + [0] * 3 + [1] * 4
        assert kit.offsets(follow) == {0: 9}


def test_of_a_larger_put_the_last_new_cells_are_lost_and_the_others_acknowledged(kit: Kit) -> None:
    put(kit, KEYS[:2])
    failover = kit.failover(lose=3)
    results = kit.store.put_cells(
        [(key, "BASE", 1, {"n": number}) for number, key in enumerate(KEYS[:12])]
    )
    assert [result.outcome for result in results] == [Outcome.EXISTS] * 2 + [Outcome.STORED] * 7 + [
        Outcome.UNKNOWN
    ] * 3
    assert [cell.row_key for cell in failover.lost] == KEYS[9:12]
    kit.run_until_idle(follow)
    assert [kit.runs(key) for key in KEYS[:12]] == [1] * 9 + [0] * 3


def test_a_caller_who_puts_a_lost_cell_again_finds_the_new_master(kit: Kit) -> None:
    put(kit)
    failover = kit.failover(lose=5)
    kit.run_until_idle(answer)
    assert len(failover.lost) == 5
    assert all(kit.store.get_cell(key, "ANSWER", 1) for key in KEYS)
    assert sum(kit.runs(key) for key in KEYS) == len(KEYS) + 5
    assert kit.parked() == []


def test_work_waits_while_there_is_no_master_and_continues_afterwards(kit: Kit) -> None:
    put(kit)
    kit.failover(lose=1, away_s=0.3)
    with pytest.raises(OutcomeUnknown):
        kit.store.put_cell(KEYS[0], "OTHER", 1, {})
    with pytest.raises(StorageUnavailable):
        kit.store.put_cell(KEYS[0], "OTHER", 1, {})
    kit.run_until_idle(follow)
    assert [kit.runs(key) for key in KEYS] == [1] * len(KEYS)


# --- ZooKeeper ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_work_continues_while_zookeeper_is_away_and_offsets_are_saved_afterwards(
    kit: Kit, workers: int
) -> None:
    put(kit)
    kit.poison(KEYS[3])
    with kit.zookeeper_away() as away:
        kit.run_until_idle(follow, workers=workers)
        assert [kit.runs(key) for key in KEYS] == [3 if key == KEYS[3] else 1 for key in KEYS]
        assert [parked.row_key for parked in kit.parked()] == [str(KEYS[3])]
        assert not any(kit.offsets(follow).values())
    assert away.happened
    kit.run_until_idle(follow, workers=workers)
    assert {shard: offset for shard, offset in kit.offsets(follow).items() if offset} == heads(kit)
    assert [kit.runs(key) for key in KEYS] == [3 if key == KEYS[3] else 1 for key in KEYS]


def test_zookeeper_cannot_be_away_from_a_kit_that_has_run_without_it(kit: Kit) -> None:
    kit.run_until_idle(follow)
    with pytest.raises(RuntimeError, match="coordination='zookeeper'"), kit.zookeeper_away():
        pass


# --- death ----------------------------------------------------------------------------------------


# The points that a run of cells that are run or parked passes for certain; the others belong to
# starts, tries on record, time-outs and control.
PASSED = [
    "trigger.before_run",
    "trigger.after_run",
    "trigger.before_save",
    "trigger.after_save",
    "trigger.before_park",
    "trigger.after_park",
]


@pytest.mark.parametrize("coordination", ["store", "zookeeper"])
@pytest.mark.parametrize("failpoint", PASSED)
def test_a_worker_killed_anywhere_is_started_again_and_every_cell_is_run_or_parked(
    tmp_path: Path, failpoint: str, coordination: str
) -> None:
    assert failpoint in FAILPOINTS
    with Kit(tmp_path, coordination=coordination) as kit:
        put(kit)
        kit.poison(KEYS[3])
        kit.kill_at(failpoint)
        kit.run_until_idle(follow)
        assert [parked.row_key for parked in kit.parked()] == [str(KEYS[3])]
        done = {run.cells[0].row_key for run in kit.history() if run.outcome is RunOutcome.DONE}
        assert done == set(KEYS) - {KEYS[3]}
        assert {shard: offset for shard, offset in kit.offsets(follow).items() if offset} == heads(
            kit
        )


def test_a_worker_can_die_in_the_store_that_its_function_puts_into(kit: Kit) -> None:
    put(kit)
    kit.kill_at("sqlite.put.before_commit", at_pass=2)
    kit.kill_at("sqlite.put.after_commit", at_pass=3)
    kit.kill_at("sqlite.put.after_commit", at_pass=7)
    kit.run_until_idle(answer)
    assert all(kit.store.get_cell(key, "ANSWER", 1) for key in KEYS)
    assert sum(run.outcome is RunOutcome.KILLED for run in kit.history()) >= 3


def test_a_failpoint_that_does_not_exist_is_refused(kit: Kit) -> None:
    with pytest.raises(ValueError, match=r"there is no failpoint 'trigger\.no_such'"):
        kit.kill_at("trigger.no_such")


# --- proof ----------------------------------------------------------------------------------------


def test_a_fault_that_never_happened_is_reported_when_the_kit_is_closed(tmp_path: Path) -> None:
    kit = Kit(tmp_path)
    put(kit, KEYS[:2])
    kit.poison(KEYS[9])
    kit.poison(KEYS[0], times=4)
    kit.stall(KEYS[9])
    kit.failover(lose=2)
    kit.kill_at("trigger.after_save", at_pass=100)
    with kit.zookeeper_away():
        pass
    kit.run_until_idle(follow)
    with pytest.raises(FaultNeverHappened) as told:
        kit.close()
    for part in (
        f"poison({KEYS[9]}, times=None): no trigger was called",
        "no cell raised 4 times, the most was 3",
        f"stall({KEYS[9]}): no trigger was called",
        "failover(lose=2): 0 cells were lost",
        "kill_at('trigger.after_save', at_pass=100): workers passed it",
        "zookeeper_away(): no worker asked",
    ):
        assert part in str(told.value)


def test_a_test_that_has_failed_already_keeps_its_own_reason(tmp_path: Path) -> None:
    def fail() -> None:
        with Kit(tmp_path) as kit:
            kit.poison(KEYS[0])
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail()
