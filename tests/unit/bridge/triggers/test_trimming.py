"""Trims as operators do them: planned by id or by age, refused while a group needs cells that would
go, remembered; and the fate of groups that are overtaken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.groups.history import Operator
from cellfeed.bridge.groups.start import StartOfGroup
from cellfeed.bridge.indexes.groups import index_positions
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.triggers.operate.locations import wanted_locations
from cellfeed.bridge.triggers.operate.reset import Reset
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.trimming.needed import needs
from cellfeed.bridge.trimming.trim import ShardPlan, Trimming
from cellfeed.bridge.trimming.trim_history import deed_line, trim_history
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.errors import (
    InvalidLocation,
    InvalidRequest,
    NotFound,
    ProtectData,
    UnknownShard,
)
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from cellfeed.store.indexes.check import IndexCheck
from cellfeed.store.indexes.definition_file import parse_definition
from tests.support.kept_index import caught_up, index_worker, made_index
from tests.support.trigger_workers import COORDINATIONS, GROUP, Recorder, open_coordination, working
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("quick_looks")

SHARDS = 4
BY = Operator("ann@host", "the disk")
SECOND_US = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now_us = 1_700_000_000 * SECOND_US

    def __call__(self) -> int:
        return self.now_us


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    """Ten cells in each shard, a second apart within it; the newest was written just now."""
    clock = Clock()
    with Datastore(SqliteEngine(tmp_path, "trips", SHARDS, clock_us=clock)) as opened:
        clock.now_us = opened.state.now_us() - 10 * SECOND_US
        rows = iter(range(10_000))
        left = dict.fromkeys(range(SHARDS), 10)
        by_shard: dict[int, list[UUID]] = {shard: [] for shard in left}
        while any(left.values()):
            row = UUID(int=next(rows))
            if left[shard := opened.shard_of(row)]:
                left[shard] -= 1
                by_shard[shard].append(row)
        for number in range(10):
            clock.now_us += SECOND_US
            opened.put_cells(
                [
                    (by_shard[shard][number], "BASE", 1, {"driver": "ann", "n": number})
                    for shard in by_shard
                ]
            )
        yield opened


@pytest.fixture
def coordinator(store: Datastore) -> Iterator[Coordinator]:
    with closing(StoreCoordinator(store.state)) as opened:
        yield opened


def starts(store: Datastore) -> list[int]:
    return [head.log_start for _, head in sorted(store.heads().items())]


def commit(
    coordinator: Coordinator, group: str, topic: str, offset: int, shards: range = range(SHARDS)
) -> None:
    coordinator.commit_offsets(group, {(topic, shard): CommittedOffset(offset) for shard in shards})


def test_a_trim_below_an_id_is_recorded_with_operator_and_reason(
    store: Datastore, coordinator: Coordinator
) -> None:
    trimming = Trimming(store, coordinator)
    plans = trimming.plan([1, 3], below=4)
    assert plans == [ShardPlan(1, 0, 4), ShardPlan(3, 0, 4)]
    assert starts(store) == [0, 0, 0, 0]
    moved: list[int] = []
    assert trimming.run(plans, BY, on_progress=moved.append) == 8 == sum(moved)
    assert starts(store) == [0, 4, 0, 4]
    [deed] = trim_history(store.state)
    assert (deed.by, deed.because, deed.shards, deed.although) == (
        "ann@host",
        "the disk",
        {1: (0, 4), 3: (0, 4)},
        [],
    )
    assert "1:0→4, 3:0→4 because the disk" in deed_line(deed)
    assert trimming.run(trimming.plan([1], below=2), BY) == 0
    assert len(trim_history(store.state)) == 1, "nothing was done, so there is nothing to remember"


def test_shards_are_trimmed_by_age(store: Datastore, coordinator: Coordinator) -> None:
    trimming = Trimming(store, coordinator)
    old = store.engine.scan(2, 6, 1)[0].created_at_us
    # Between two cells, with any pace of the test: the clock of the plan continues meanwhile, by
    # less than half a minute.
    assert [plan.below for plan in trimming.plan(range(SHARDS), older_than_s=3_600)] == [0] * SHARDS
    age_s = (store.state.now_us() - old) / SECOND_US
    [plan] = trimming.plan([2], older_than_s=age_s)
    assert plan.below >= 6
    assert store.engine.locate(2, old) == 6
    assert [each.below for each in trimming.plan(range(SHARDS), older_than_s=0)] == [10] * SHARDS


def test_a_trim_by_age_stops_at_cells_that_a_minion_or_a_buffer_needs(
    store: Datastore, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minion lags, or another cluster buffers cells: these stay, however old they are."""
    monkeypatch.setattr(store.engine, "trim_limits", lambda shards: dict.fromkeys(shards, 3))
    plans = Trimming(store, coordinator).plan(range(SHARDS), older_than_s=0)
    assert [plan.below for plan in plans] == [3] * SHARDS


def test_a_group_begun_after_the_plan_is_not_overtaken(
    store: Datastore, coordinator: Coordinator
) -> None:
    trimming = Trimming(store, coordinator)
    plans = trimming.plan(range(SHARDS), below=7)
    commit(coordinator, "reports", "trips", 6)
    with pytest.raises(ProtectData, match="group reports has come, in topic trips, to 0:6"):
        trimming.run(plans, BY)
    assert starts(store) == [0] * SHARDS


def test_a_trim_that_is_killed_behind_its_last_cell_is_settled_when_it_is_run_again(
    tmp_path: Path,
) -> None:
    """The cells are gone, so the second plan has none; the entries of the first are still there."""
    with (
        Datastore.open_embedded(tmp_path, shards=1) as store,
        index_worker(store) as coordinator,
    ):
        version = made_index(
            store,
            parse_definition(
                "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields:"
                " [{field: driver, type: string}]}]}"
            ),
        )
        store.put_cells([(UUID(int=n), "BASE", 1, {"driver": "ann"}) for n in range(4)])
        caught_up(store, version)
        trimming = Trimming(store, coordinator)
        set_failpoint("index.trim.trimmed", "raise")
        with pytest.raises(FailpointReached):
            trimming.run(trimming.plan([0], below=4), BY)
        clear_failpoints()
        assert starts(store)[0] == 4
        assert len(store.query_index("by_driver", "ann", mode="fast").rows) == 4
        assert trimming.run(trimming.plan([0], below=4), BY) == 0
        assert store.query_index("by_driver", "ann", mode="fast").rows == []


def test_a_trim_without_or_with_too_many_limits_is_refused(
    store: Datastore, coordinator: Coordinator
) -> None:
    trimming = Trimming(store, coordinator)
    for wrong, error in (
        (lambda: trimming.plan([0]), InvalidRequest),
        (lambda: trimming.plan([0], below=1, older_than_s=1), InvalidRequest),
        (lambda: trimming.plan([0], below=-1), InvalidRequest),
        (lambda: trimming.plan([0], below=11), InvalidLocation),
        (lambda: trimming.plan([SHARDS], below=1), UnknownShard),
        (lambda: trimming.run(trimming.plan([0], below=5), BY, although=["nobody"]), NotFound),
    ):
        with pytest.raises(error):
            wrong()
    assert starts(store) == [0] * SHARDS


@pytest.mark.parametrize("topic", ["trips", "trips.BASE", "trips@latest", "fares"])
def test_cells_that_a_consumer_group_has_not_read_are_trimmed_only_when_it_is_named(
    store: Datastore, coordinator: Coordinator, topic: str
) -> None:
    commit(coordinator, "reports", "trips", 9)
    commit(coordinator, "reports", topic, 6)
    trimming = Trimming(store, coordinator)
    assert trimming.run(trimming.plan(range(SHARDS), below=6), BY) == 24
    plans = trimming.plan(range(SHARDS), below=7)
    assert [[(need.group, need.location) for need in plan.needed] for plan in plans] == [
        [("reports", 6)]
    ] * SHARDS
    with pytest.raises(
        ProtectData,
        match=rf"group reports has come, in topic {topic}, to 0:6; .* --although reports",
    ):
        trimming.run(plans, BY)
    assert starts(store) == [6] * SHARDS
    trimming.run(plans, BY, although=["reports"])
    assert starts(store) == [7] * SHARDS
    assert trim_history(store.state)[-1].although == ["reports"]


def test_a_parked_cell_blocks_a_trim_and_a_trimmed_one_stays_parked_with_the_reason(
    store: Datastore, coordinator: Coordinator
) -> None:
    recorder = Recorder()

    def fails(cell: object) -> None:
        raise ValueError("no")

    recorder.before = fails
    parked = ParkedCells(store.state)
    with working(store, coordinator, recorder):
        wait_until(lambda: parked.count(GROUP) == 10 * SHARDS, "all cells are parked")
        # The trigger has come to the end of every log, and needs each cell still.
        [need] = needs(store, coordinator).below(0, 3)[:1]
        assert (need.group, need.location, need.because) == (GROUP, 0, "has a parked cell at")
        trimming = Trimming(store, coordinator)
        plans = trimming.plan([0], below=3)
        with pytest.raises(ProtectData, match="parked cell at 0:0"):
            trimming.run(plans, BY)
        trimming.run(plans, BY, although=[GROUP])
        recorder.before = lambda _: None
        parked.ask_retry(GROUP)
        wait_until(lambda: parked.count(GROUP) == 3, "what is still there has run")
        wait_until(
            lambda: all("not in the log any more" in cell.error for cell in parked.all(GROUP)),
            "the rest says why it has not",
        )
    assert sorted(recorder.cells) == [
        (shard, added_id)
        for shard in range(SHARDS)
        for added_id in range(3 if shard == 0 else 0, 10)
    ]


@pytest.mark.parametrize("kind", COORDINATIONS)
def test_a_trigger_overtaken_by_a_trim_stands_still_until_an_operator_sets_the_location(
    store: Datastore, kind: str
) -> None:
    recorder = Recorder()
    with closing(open_coordination(kind, store)) as coordinator:
        with working(store, coordinator, recorder):
            wait_until(lambda: len(recorder.cells) == 10 * SHARDS, "all cells have run")
        wait_until(lambda: needs(store, coordinator).below(2, 11) != [], "its offsets are known")
        assert needs(store, coordinator).below(2, 10) == []
        store.put_cells([(UUID(int=n << 40), "BASE", 1, {}) for n in range(200)])
        end = store.heads()[2].watermark
        assert end > 20
        trimming = Trimming(store, coordinator)
        plans = trimming.plan([2], below=15)
        with pytest.raises(ProtectData, match=f"group {GROUP} has come, in topic trips, to 2:10"):
            trimming.run(plans, BY)
        trimming.run(plans, BY, although=[GROUP])
        with working(store, coordinator, recorder):
            reader = LagReader(store, coordinator)
            wait_until(
                lambda: (
                    "location 10 of shard 2 was trimmed: its log begins at 15"
                    in reader.read(GROUP).shards[2].because
                ),
                "it says why",
            )
            ran = {
                shard: end
                for shard, end in ((shard, head.watermark) for shard, head in store.heads().items())
                if shard != 2
            }
            wait_until(
                lambda: all(
                    sum(at == shard for at, _ in recorder.cells) == end
                    for shard, end in ran.items()
                ),
                "the other shards continue",
            )
            assert not any(shard == 2 and added_id >= 10 for shard, added_id in recorder.cells)
            Reset(store, coordinator, GROUP, BY, to="2:15").run(
                wanted_locations("2:15", GROUP, store, coordinator)
            )
            wait_until(
                lambda: sum(shard == 2 for shard, _ in recorder.cells) == 10 + end - 15,
                "it continues at the chosen location",
            )
    assert sorted(added_id for shard, added_id in recorder.cells if shard == 2) == [
        *range(10),
        *range(15, end),
    ]


def test_an_index_that_is_behind_needs_the_cells(
    store: Datastore, coordinator: Coordinator
) -> None:
    definition = (
        "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields: [{field:"
        " driver, type: string}]}]}"
    )
    version = store.indexes.version(store.indexes.catalog.create(parse_definition(definition)))
    trimming = Trimming(store, coordinator)
    with pytest.raises(
        ProtectData, match=rf"group {version.group} has come, in topic trips, to 0:0"
    ):
        trimming.run(trimming.plan([0], below=1), BY)
    commit(coordinator, version.group, "trips", 1, range(1))
    store.engine.indexes.create(version.table)
    assert trimming.run(trimming.plan([0], below=1), BY) == 1


def test_an_index_equals_the_cells_after_trims_beside_writes_and_its_worker(
    tmp_path: Path,
) -> None:
    """Rows move between drivers, and are trimmed as soon as the index has come past them. A busy
    machine can keep the worker from renewing its lease, so it may be overtaken by itself in the
    middle of a batch."""
    columns = (
        "[{column_name: BASE, fields: [{field: driver, type: string}]}, {column_name: STATUS,"
        " fields: [{field: n, type: int}]}]"
    )
    definition = parse_definition(f"{{table: by_driver, datastore: trips, column_defs: {columns}}}")
    with (
        Datastore.open_embedded(tmp_path, shards=SHARDS) as store,
        index_worker(store) as coordinator,
    ):
        version = made_index(store, definition)
        written = threading.Event()

        def write() -> None:
            try:
                for n in range(60):
                    rows = [UUID(int=(7 * n + k) % 100 << 32) for k in range(20)]
                    store.put_cells(
                        [
                            (row, "BASE", n, {"driver": f"driver {(n + k) % 5}"})
                            for k, row in enumerate(rows)
                        ]
                    )
                    store.put_cells([(row, "STATUS", n, {"n": n}) for row in rows])
            finally:
                written.set()

        writer = threading.Thread(target=write)
        writer.start()
        trimming, trimmed, done = Trimming(store, coordinator), 0, False
        while not done:
            if done := written.is_set():
                caught_up(store, version)  # a writer may be quicker: the last look trims
            at = index_positions(coordinator, "trips")(version.group)
            for shard in range(SHARDS):
                trimmed += trimming.run(
                    trimming.plan([shard], below=max(0, at.get(shard, 0) - 40)), BY
                )
        writer.join()
        assert trimmed > 0
        caught_up(store, version)
        check = IndexCheck(store.engine, version, index_positions(coordinator, "trips"))
        assert list(check.run()) == []
        heads = store.heads()
        assert (
            check.report.cells
            == sum(head.watermark - head.log_start for head in heads.values())
            < 2_400
        )
        shown = {
            row.row_key: row.fields["driver"]
            for driver in range(5)
            for row in store.query_index("by_driver", f"driver {driver}", mode="fast").rows
        }
        there = {
            UUID(bytes=cell.row_key)
            for shard, head in heads.items()
            for cell in store.engine.scan(shard, head.log_start, 5_000)
            if cell.column_name == "BASE"
        }
        assert shown.keys() == there


def test_a_group_that_is_begun_at_the_earliest_begins_at_the_start_of_the_log(
    store: Datastore, coordinator: Coordinator
) -> None:
    Trimming(store, coordinator).run([ShardPlan(1, 0, 4)], BY)
    assert wanted_locations("earliest", "new", store, coordinator) == {0: 0, 1: 4, 2: 0, 3: 0}
    assert (
        wanted_locations(datetime(2000, 1, 1, tzinfo=UTC).isoformat(), "new", store, coordinator)[1]
        == 4
    )
    with pytest.raises(InvalidLocation, match="which has 4 to 10"):
        wanted_locations("1:3", "new", store, coordinator)
    with pytest.raises(InvalidLocation, match="shard 1 was trimmed below 4"):
        StartOfGroup(store, coordinator, "given", {1: 3}).locations()
    assert StartOfGroup(store, coordinator, "given", {2: 5}).locations() == [0, 4, 5, 0]
    recorder = Recorder()
    with working(store, coordinator, recorder):
        wait_until(
            lambda: len(recorder.cells) == 10 * SHARDS - 4, "everything that is there has run"
        )
    assert min(added_id for shard, added_id in recorder.cells if shard == 1) == 4
