"""Resetting a trigger: workers are fenced first, it happens as a whole or not at all, and the
history reports it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import closing

import msgspec
import pytest

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.control import Control, Pause
from cellfeed.bridge.groups.history import Operator, history
from cellfeed.bridge.groups.membership import Membership
from cellfeed.bridge.triggers.offsets.kept_offsets import KeptOffsets
from cellfeed.bridge.triggers.operate.locations import wanted_locations
from cellfeed.bridge.triggers.operate.reset import Reset
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.shard.take_over import TakeOver
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import InvalidLocation, NotFound, Refused, StaleWriter
from cellfeed.store.failpoints import (
    FailpointReached,
    set_failpoint,
    unwatch_failpoint,
    watch_failpoint,
)
from cellfeed.testing.zookeeper_tree import ZooKeeperTree
from tests.support.trigger_workers import (
    COORDINATIONS,
    GROUP,
    LEASE_S,
    Recorder,
    all_cells,
    ends,
    offsets,
    open_coordination,
    put,
    working,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("quick_looks")

BY = Operator("somebody@here", "a bug in the fares")


def reset(datastore: Datastore, coordinator: Coordinator, to: str, **options: float) -> None:
    locations = wanted_locations(to, GROUP, datastore, coordinator)
    Reset(datastore, coordinator, GROUP, BY, to=to).run(locations, lease_s=LEASE_S, **options)


def caught_up(datastore: Datastore, coordinator: Coordinator) -> bool:
    return offsets(coordinator) == ends(datastore)


def test_a_reset_while_a_worker_runs_moves_it_elsewhere(
    datastore: Datastore, coordinator: Coordinator, other_host: Coordinator
) -> None:
    recorder = Recorder()
    put(datastore, range(100))
    with working(datastore, other_host, recorder):
        wait_until(lambda: caught_up(datastore, coordinator), "all cells are run")
        reset(datastore, coordinator, "earliest")
        wait_until(lambda: len(recorder.cells) == 200, "all are run again")
        wait_until(lambda: caught_up(datastore, coordinator), "it comes to the ends again")
        before = ends(datastore)
        put(datastore, range(100, 120))
        wait_until(lambda: caught_up(datastore, coordinator), "and continues")
    assert Counter(recorder.cells) == Counter(all_cells(datastore)) + Counter(
        [cell for cell in all_cells(datastore) if cell[1] < before[cell[0]]]
    )
    [deed] = history(datastore.state, GROUP)
    assert (deed.action, deed.to, deed.by, deed.because) == (
        "reset",
        "earliest",
        BY.name,
        BY.because,
    )
    assert (deed.before, deed.after) == (before, dict.fromkeys(range(4), 0))


def test_a_worker_that_slept_through_a_reset_cannot_undo_it_by_a_late_save(
    datastore: Datastore, coordinator: Coordinator, other_host: Coordinator
) -> None:
    recorder = Recorder()
    put(datastore, range(60))
    # As a process that is paused: nobody renews its lease, and its run is in the middle of a cell.
    membership = Membership(other_host, GROUP, "zombie", LEASE_S / 2)
    runs = TakeOver(
        recorder.trigger, datastore, other_host, ParkedCells(datastore.state), membership
    ).take(membership.session, range(4))
    assert len(runs) == 4
    asleep, awake = threading.Event(), threading.Event()

    def fall_asleep(_: object) -> None:
        asleep.set()
        assert awake.wait(30)

    recorder.before = fall_asleep
    raised: list[BaseException] = []

    def work() -> None:
        try:
            runs[0].run_chunk()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert asleep.wait(30)
        reset(datastore, coordinator, "latest")
    finally:
        awake.set()
        thread.join(30)
    assert [type(error) for error in raised] == [StaleWriter], "it saved, or did not notice"
    assert recorder.cells[1:] == [], "it ran more than the cell that was under way"
    for run in list(runs.values())[1:]:
        with pytest.raises(StaleWriter):
            run.run_chunk()
    assert caught_up(datastore, coordinator)
    with working(datastore, coordinator, recorder, "next"):
        put(datastore, range(60, 70))
        wait_until(lambda: len(recorder.cells) == 11, "another one continues where it was reset to")
        wait_until(lambda: caught_up(datastore, coordinator), "it saves")


def test_a_reset_gives_up_and_changes_nothing_while_a_cell_does_not_end(
    datastore: Datastore, coordinator: Coordinator, other_host: Coordinator
) -> None:
    recorder, go_on = Recorder(), threading.Event()
    begun: list[Cell] = []

    def hold(cell: Cell) -> None:
        begun.append(cell)
        go_on.wait(60)

    recorder.before = hold
    put(datastore, range(40))
    try:
        with working(datastore, other_host, recorder):
            wait_until(lambda: len(begun) == 4, "a cell of each shard is being run")
            with pytest.raises(
                Refused,
                match=r"was not reset: after 0 s 4 shards were not given back: shard 0 \(w\)",
            ):
                reset(datastore, coordinator, "latest", wait_s=0.3)
            go_on.set()
            wait_until(lambda: caught_up(datastore, coordinator), "it continues where it was")
            assert Control(datastore.state, GROUP).current_pause(coordinator) is None
    finally:
        go_on.set()
    assert sorted(recorder.cells) == sorted(all_cells(datastore))
    assert history(datastore.state, GROUP) == []


def test_two_resets_at_once_are_one_after_the_other_or_one_is_refused(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    put(datastore, range(40))
    refused: list[Refused] = []
    done: list[str] = []

    def one(to: str) -> None:
        try:
            reset(datastore, coordinator, to)
            done.append(to)
        except Refused as error:
            refused.append(error)

    threads = [threading.Thread(target=one, args=(to,)) for to in ("earliest", "latest")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) + len(refused) == 2
    assert done
    deeds = history(datastore.state, GROUP)
    # A thread may note its end after the other one has done all of its own.
    assert sorted(deed.to for deed in deeds) == sorted(done)
    assert offsets(coordinator) == deeds[-1].after


def test_a_reset_beside_another_is_refused_before_it_asks_workers_to_wait(
    datastore: Datastore, coordinator: Coordinator, other_host: Coordinator
) -> None:
    put(datastore, range(20))
    refused: list[str] = []

    def second() -> None:
        unwatch_failpoint("reset.after_pause")
        before = datastore.state.get(Control(datastore.state, GROUP).reset_key)
        with pytest.raises(Refused) as error:
            reset(datastore, other_host, "latest")
        refused.append(str(error.value))
        assert datastore.state.get(Control(datastore.state, GROUP).reset_key) == before

    watch_failpoint("reset.after_pause", second)
    reset(datastore, coordinator, "earliest")
    [why] = refused
    assert BY.name in why
    assert BY.because in why
    assert [deed.to for deed in history(datastore.state, GROUP)] == ["earliest"]


def test_of_two_resets_that_ask_at_once_one_is_refused(
    datastore: Datastore, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have seen that nobody resets the group."""
    key = Control(datastore.state, GROUP).reset_key
    state, commit = datastore.state, datastore.state.commit
    another = msgspec.json.encode(Pause("bob@there", "their bug", 1, "operator bob"))

    def another_first(
        write: Mapping[str, bytes | None], expect: Mapping[str, int | None] | None = None
    ) -> int | None:
        if key in write:
            monkeypatch.setattr(state, "commit", commit)
            commit({key: another})
        return commit(write, expect or {})

    put(datastore, range(4))
    monkeypatch.setattr(state, "commit", another_first)
    with pytest.raises(Refused, match="by somebody else just now"):
        reset(datastore, coordinator, "earliest")
    entry = state.get(key)
    assert entry is not None
    assert entry.value == another
    assert history(state, GROUP) == []


def test_the_workers_wait_ends_with_the_decision(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    """And not only when every shard of it was reported to ZooKeeper, or the lease has run out."""
    put(datastore, range(4))
    paused: list[Pause | None] = []
    control = Control(datastore.state, GROUP)
    watch_failpoint("reset.after_claims", lambda: paused.append(control.current_pause(coordinator)))
    watch_failpoint(
        "reset.after_decision", lambda: paused.append(control.current_pause(coordinator))
    )
    reset(datastore, coordinator, "earliest")
    [before, after] = paused
    assert before is not None
    assert after is None


def test_a_reset_that_was_overtaken_leaves_the_other_resets_wait(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    put(datastore, range(4))
    state, key = datastore.state, Control(datastore.state, GROUP).reset_key
    another = msgspec.json.encode(Pause("bob@there", "their bug", 1, "operator bob"))

    def overtake() -> None:
        state.commit({key: another})
        raise StaleWriter("its session had ended")

    watch_failpoint("reset.after_claims", overtake)
    with pytest.raises(StaleWriter):
        reset(datastore, coordinator, "earliest")
    entry = state.get(key)
    assert entry is not None
    assert entry.value == another


@pytest.mark.parametrize(
    ("kind", "failpoint"),
    [
        (kind, f"reset.after_{step}")
        for kind in COORDINATIONS
        for step in ("pause", "claims", "decision", "offsets")
        if (kind, step) != ("store", "offsets")
    ],
    indirect=["kind"],
)
def test_a_reset_that_is_killed_has_happened_as_a_whole_or_not_at_all(
    kind: str,
    datastore: Datastore,
    tree: ZooKeeperTree,
    other_host: Coordinator,
    failpoint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder()
    put(datastore, range(60))
    with working(datastore, other_host, recorder):
        wait_until(lambda: caught_up(datastore, other_host), "all cells are run")
        monkeypatch.setattr(Reset, "_end", lambda *_: None)  # a killed process tidies nothing up
        set_failpoint(failpoint, "raise")
        killed = open_coordination(kind, datastore, tree)
        with closing(killed):
            with pytest.raises(FailpointReached):
                reset(datastore, killed, "earliest")
            decided = failpoint in ("reset.after_decision", "reset.after_offsets")
            assert len(history(datastore.state, GROUP)) == decided
            put(datastore, range(60, 80))
            wait_until(
                lambda: len(recorder.cells) == (140 if decided else 80),
                "the workers continue once its session has run out",
            )
            wait_until(lambda: caught_up(datastore, other_host), "and save")
    assert len(recorder.cells) == (140 if decided else 80)


def test_a_reset_that_slept_past_its_own_lease_changes_nothing(
    datastore: Datastore,
    coordinator: Coordinator,
    other_host: Coordinator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder = Recorder()
    put(datastore, range(60))
    with working(datastore, other_host, recorder):
        wait_until(lambda: caught_up(datastore, coordinator), "all cells are run")
        monkeypatch.setattr("cellfeed.bridge.triggers.operate.reset.LeaseKeeper", Asleep)

        def sleep() -> None:
            assert set(coordinator.owners(GROUP, "trips").values()) != {"w"}
            wait_until(
                lambda: coordinator.owners(GROUP, "trips") == dict.fromkeys(range(4), "w"),
                "its worker takes the shards back",
            )
            put(datastore, range(60, 80))
            wait_until(lambda: caught_up(datastore, coordinator), "and continues")

        watch_failpoint("reset.after_claims", sleep)
        with pytest.raises((StaleWriter, Refused)):
            reset(datastore, coordinator, "earliest")
        assert caught_up(datastore, coordinator)
        put(datastore, range(80, 90))
        wait_until(lambda: caught_up(datastore, coordinator), "it continues")
    assert Counter(recorder.cells) == Counter(all_cells(datastore))
    assert history(datastore.state, GROUP) == []


class Asleep:
    """Renews nothing."""

    def __init__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


def test_parked_cells_behind_the_new_location_are_no_longer_parked(
    datastore: Datastore, coordinator: Coordinator, other_host: Coordinator
) -> None:
    recorder = Recorder()

    def fail(_: object) -> None:
        raise ValueError("no")

    recorder.before = fail
    put(datastore, range(10))
    parked = ParkedCells(datastore.state)
    with working(datastore, other_host, recorder):
        wait_until(lambda: parked.count(GROUP) == 10, "all are parked")
        wait_until(lambda: caught_up(datastore, coordinator), "all are parked and passed")
    recorder.before = lambda _: None
    shard = next(shard for shard, end in ends(datastore).items() if end > 1)
    reset(datastore, coordinator, f"{shard}:1")
    left = [(cell.partition, cell.added_id) for cell in parked.all(GROUP)]
    assert sorted(left) == [
        cell for cell in all_cells(datastore) if cell[0] != shard or cell[1] < 1
    ]
    assert history(datastore.state, GROUP)[-1].unparked == 10 - len(left)
    with working(datastore, other_host, recorder):
        wait_until(lambda: caught_up(datastore, coordinator), "they are run")
    assert sorted({*recorder.cells}) == [cell for cell in all_cells(datastore) if cell not in left]


def test_offsets_kept_while_zookeeper_was_away_stay_for_shards_that_are_not_reset(
    datastore: Datastore, tree: ZooKeeperTree
) -> None:
    recorder = Recorder()
    put(datastore, range(60))
    with (
        closing(open_coordination("zookeeper", datastore, tree)) as theirs,
        closing(open_coordination("zookeeper", datastore, tree)) as mine,
    ):
        with working(datastore, theirs, recorder):
            wait_until(lambda: caught_up(datastore, mine), "the first cells are run")
            tree.go_away()
            put(datastore, range(60, 120))
            wait_until(lambda: len(recorder.cells) == 120, "work continues")
            wait_until(
                lambda: KeptOffsets(datastore.state, GROUP, "trips").kept() == ends(datastore),
                "it is kept",
            )
        tree.come_back()
        wait_until(lambda: mine.members(GROUP) == [], "its session ends")
        assert offsets(mine) != ends(datastore)
        reset(datastore, mine, "1:0")
        assert history(datastore.state, GROUP)[-1].before == {1: ends(datastore)[1]}
        with working(datastore, theirs, recorder):
            wait_until(lambda: caught_up(datastore, mine), "it continues")
    assert Counter(recorder.cells) == Counter(all_cells(datastore)) + Counter(
        [cell for cell in all_cells(datastore) if cell[0] == 1]
    )


def test_lost_offsets_are_set_as_a_whole(datastore: Datastore, tree: ZooKeeperTree) -> None:
    recorder = Recorder()
    put(datastore, range(60))
    with (
        closing(open_coordination("zookeeper", datastore, tree)) as theirs,
        closing(open_coordination("zookeeper", datastore, tree)) as mine,
        working(datastore, theirs, recorder),
    ):
        wait_until(lambda: caught_up(datastore, mine), "the cells are run")
        tree.wipe()
        wait_until(
            lambda: KeptOffsets(datastore.state, GROUP, "trips").kept() == ends(datastore),
            "it stands still and has kept where it was",
        )
        put(datastore, range(60, 70))
        reset(datastore, mine, "kept")
        wait_until(lambda: caught_up(datastore, mine), "it continues where it was")
    assert Counter(recorder.cells) == Counter(all_cells(datastore))


def test_a_location_has_one_of_five_forms(datastore: Datastore, coordinator: Coordinator) -> None:
    put(datastore, range(30))
    middle = datastore.get_cells_for_shard(2, 0, 100).cells
    assert len(middle) > 2

    def means(to: str) -> dict[int, int]:
        return wanted_locations(to, GROUP, datastore, coordinator)

    assert means("earliest") == dict.fromkeys(range(4), 0)
    assert means("latest") == ends(datastore)
    assert means("2:1,3:0") == {2: 1, 3: 0}
    first = middle[0].created_at.isoformat()
    assert means(first)[2] == 0
    assert means("2999-01-01T00:00:00Z") == ends(datastore)
    with pytest.raises(NotFound, match="there is no shard 4"):
        means("4:0")
    with pytest.raises(InvalidLocation, match=r"location 99 is not in shard 2, which has 0 to"):
        means("2:99")
    with pytest.raises(InvalidLocation, match="has no time zone"):
        means("2026-01-01T00:00:00")
    with pytest.raises(InvalidLocation, match="is none of earliest, latest, kept"):
        means("yesterday")
    with pytest.raises(NotFound, match="nothing is kept of shards"):
        means("kept")
