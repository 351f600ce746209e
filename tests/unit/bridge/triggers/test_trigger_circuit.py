"""An outage pauses a trigger, which probes by itself and resumes: nothing is lost, nothing runs out
of order, and few cells are parked."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.triggers import circuit
from cellfeed.bridge.triggers.circuit import PARKED_MAX, PROBE_FIRST_S, PROBE_LONGEST_S, Circuit
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.triggers.operate.metrics import TriggerMetrics
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.program import PAUSE_ROWS
from cellfeed.bridge.triggers.retry import RetryPolicy
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore
from tests.support.trigger_workers import GROUP, Recorder, put, working
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("quick_looks")

SHARDS = 8
STEPS = st.one_of(
    st.tuples(st.just("failed"), st.integers(0, 6), st.sampled_from([ValueError, OSError])),
    st.tuples(st.just("ran")),
    st.tuples(st.just("later"), st.floats(0, 60)),
    st.tuples(st.just("may try")),
    st.tuples(st.just("may park")),
)


@given(st.lists(STEPS, max_size=60), st.integers(1, 4))
def test_the_circuit_pauses_for_like_failures_of_many_rows_and_lets_probes_through_on_time(
    steps: list[Any], pause_rows: int
) -> None:
    now_s, next_probe_s, wait_s, parks_left = 0.0, 0.0, PROBE_FIRST_S, 0
    failed: dict[type, set[int]] = defaultdict(set)
    paused = False
    tested = Circuit(GROUP, pause_rows, lambda: now_s)
    for what, *details in steps:
        if what == "failed":
            row, kind = details
            tested.failed(bytes([row]), kind("no"))
            failed[kind].add(row)
            if not paused and len(failed[kind]) >= pause_rows:
                paused, parks_left = True, PARKED_MAX
                next_probe_s, wait_s = now_s + PROBE_FIRST_S, PROBE_FIRST_S
        elif what == "ran":
            tested.succeeded()
            paused = False
            failed.clear()
        elif what == "later":
            now_s += details[0]
        elif what == "may try":
            may = not paused or now_s >= next_probe_s
            assert tested.may_try() == may
            if paused and may:
                next_probe_s, wait_s = now_s + wait_s, min(2 * wait_s, PROBE_LONGEST_S)
        else:
            assert tested.may_park() == (not paused or parks_left > 0)
            parks_left -= paused
        assert (tested.paused_because is not None) == paused


def test_a_circuit_without_a_limit_never_pauses() -> None:
    tested = Circuit(GROUP, None)
    for row in range(100):
        tested.failed(bytes([row]), ValueError("no"))
    assert tested.may_try()
    assert tested.paused_because is None


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as opened:
        yield opened


@pytest.fixture(autouse=True)
def quick_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit, "PROBE_FIRST_S", 0.01)
    monkeypatch.setattr(circuit, "PROBE_LONGEST_S", 0.04)


class Provider:
    """Is away, or is there; counts the calls that it refused."""

    def __init__(self) -> None:
        self.away = threading.Event()
        self.refused = 0

    def call(self, _: Cell) -> None:
        if self.away.is_set():
            self.refused += 1
            raise ConnectionError("the provider is away")


def put_rows(datastore: Datastore, rows: int, cells: int) -> None:
    """So many cells of every row, a call for each number."""
    for number in range(cells):
        datastore.put_cells([(UUID(int=row), "BASE", number, {"n": number}) for row in range(rows)])


def reasons(datastore: Datastore) -> str:
    return LagReader(datastore, StoreCoordinator(datastore.state)).read(GROUP).waits_because


def stands_still(datastore: Datastore) -> float:
    metrics = TriggerMetrics(datastore, StoreCoordinator(datastore.state), look_every_s=0)
    [gauge] = [each for each in metrics.collect() if each.name == "cellfeed_trigger_stands_still"]
    return next(each.value for each in gauge.samples if each.labels["group"] == GROUP)


def run_outage(datastore: Datastore, retry: RetryPolicy, refusals: int) -> Recorder:
    """A provider that is away for so many calls, then there again; returns when all has run."""
    provider, recorder = Provider(), Recorder(retry, PAUSE_ROWS)
    recorder.before = provider.call
    provider.away.set()
    put_rows(datastore, rows=60, cells=3)
    coordinator = StoreCoordinator(datastore.state)
    with working(datastore, coordinator, recorder):
        wait_until(
            lambda: "pauses: cells of 5 rows" in reasons(datastore), "it says that it pauses"
        )
        assert "ConnectionError" in reasons(datastore)
        assert stands_still(datastore) == 1
        wait_until(lambda: provider.refused >= refusals, "it probes by itself")
        provider.away.clear()
        wait_until(lambda: len(recorder.cells) >= 180 - PARKED_MAX - PAUSE_ROWS, "it resumes")
        ParkedCells(datastore.state).ask_retry(GROUP)
        wait_until(lambda: len(set(recorder.cells)) == 180, "every cell has run")
        wait_until(lambda: reasons(datastore) == "", "and nothing stands still")
        assert stands_still(datastore) == 0
    return recorder


def test_an_outage_parks_nothing_loses_nothing_and_keeps_the_order(
    datastore: Datastore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "cellfeed.triggers"):
        recorder = run_outage(datastore, RetryPolicy(1_000, 0.01, 0.05), refusals=40)
    for shard in range(SHARDS):
        in_shard = [added_id for where, added_id in recorder.cells if where == shard]
        assert in_shard == sorted(set(in_shard)), "each once, in the order of the log"
    assert ParkedCells(datastore.state).all(GROUP) == []
    lines = [each.getMessage() for each in caplog.records if each.name == "cellfeed.triggers"]
    assert sum("pauses: cells of 5 rows failed alike" in line for line in lines) == 1
    assert sum("resumes: a cell ran" in line for line in lines) == 1
    tracebacks = [line for line in lines if "Traceback" in line]
    assert tracebacks
    assert all("the provider is away" in line for line in tracebacks)
    assert len(tracebacks) < 10, "limited in number"


def test_an_outage_that_uses_up_all_tries_parks_a_handful_of_cells(datastore: Datastore) -> None:
    parked_most = 0
    count = ParkedCells.count_failed

    def counted(self: ParkedCells, group: str) -> int:
        nonlocal parked_most
        parked_most = max(parked_most, found := count(self, group))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ParkedCells, "count_failed", counted)
        run_outage(datastore, RetryPolicy(1), refusals=40)
    assert 1 <= parked_most <= PAUSE_ROWS + PARKED_MAX


def test_bad_cells_in_front_of_good_ones_are_parked_and_the_good_ones_run(
    datastore: Datastore,
) -> None:
    recorder = Recorder(RetryPolicy(2, 0.01, 0.01), PAUSE_ROWS)

    def before(cell: Cell) -> None:
        if cell.body["n"] < 8:
            raise KeyError("fare")

    recorder.before = before
    put(datastore, range(200))
    with working(datastore, StoreCoordinator(datastore.state), recorder):
        wait_until(lambda: len(recorder.cells) == 192, "every good cell has run")
    assert ParkedCells(datastore.state).count(GROUP) == 8


def test_a_pause_ends_when_no_cell_waits_in_this_worker(datastore: Datastore) -> None:
    provider, recorder = Provider(), Recorder(RetryPolicy(1), PAUSE_ROWS)
    recorder.before = provider.call
    provider.away.set()
    put(datastore, range(PAUSE_ROWS))
    with working(datastore, StoreCoordinator(datastore.state), recorder):
        wait_until(
            lambda: ParkedCells(datastore.state).count(GROUP) == PAUSE_ROWS, "all are parked"
        )
        wait_until(lambda: reasons(datastore) == "", "nothing is left to probe with")


def test_one_bad_shard_does_not_keep_a_pause_alive(datastore: Datastore) -> None:
    """Its cell has more tries than there is time: the probes of the other shards end the pause."""
    provider, recorder = Provider(), Recorder(RetryPolicy(100_000, 0.05, 0.05), PAUSE_ROWS)
    bad = next(UUID(int=n) for n in range(100, 1_000) if datastore.shard_of(UUID(int=n)) == 0)

    def before(cell: Cell) -> None:
        if cell.row_key == bad:
            raise ConnectionError("no way to this one, ever")
        provider.call(cell)

    recorder.before = before
    provider.away.set()
    datastore.put_cells([(bad, "BASE", 1, {"n": 0})])
    put_rows(datastore, rows=40, cells=1)
    others = sum(head.watermark for shard, head in datastore.heads().items() if shard)
    with working(datastore, StoreCoordinator(datastore.state), recorder):
        wait_until(lambda: "pauses: " in reasons(datastore), "it pauses")
        provider.away.clear()
        wait_until(lambda: len(recorder.cells) == others, "every other shard has run")
        wait_until(lambda: reasons(datastore) == "", "the pause has ended")
