"""Trigger workers as processes: shares, take-over, order, parking, the threshold, a drain without a
second run; I14 and I16 after every kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid5

import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.shard.run import CHUNK_CELLS
from cellfeed.consumers.billing.card_provider import SandboxCardProvider, declines_first
from cellfeed.consumers.billing.charge_keys import GROUP, ChargeKeys
from cellfeed.store.datastore import Datastore
from cellfeed.store.failpoints import FAILPOINTS
from tests.faults.invariants import check_once_per_cell, check_run_or_parked
from tests.faults.workload import trip_body
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[3]
NAMESPACE = UUID("11b1f6c2-55cf-5a57-8e5b-6f2f0d8a6f10")
SHARDS = 4
pytestmark = pytest.mark.integration

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Datastore]:
    with Datastore.open_embedded(tmp_path / "store", shards=SHARDS) as opened:
        yield opened


@pytest.fixture
def start(tmp_path: Path, store: Datastore) -> Iterator[Start]:
    """Starts workers; those of them that are left end with the test."""
    processes: list[subprocess.Popen[str]] = []

    def start_one(
        name: str,
        source: str = "tests.support.trigger_programs:recording",
        *,
        failpoints: str = "",
        lease_s: float = 1.0,
        **settings: object,
    ) -> subprocess.Popen[str]:
        settings = {
            "path": str(tmp_path / "runs"),
            "billing_dir": str(tmp_path / "billing"),
            **settings,
        }
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.trigger_process",
                str(tmp_path / "store"),
                name,
                str(lease_s),
                source,
                json.dumps(settings),
            ],
            cwd=ROOT,
            env={**os.environ, "CELLFEED_FAILPOINTS": failpoints},
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    yield start_one
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate(timeout=10)


def runs(tmp_path: Path) -> list[tuple[int, int, int]]:
    path = tmp_path / "runs"
    return (
        [
            (int(number), int(shard), int(added_id))
            for number, shard, added_id in map(str.split, path.read_text().splitlines())
        ]
        if path.exists()
        else []
    )


def put(store: Datastore, numbers: range, **extra: object) -> None:
    store.put_cells(
        [
            (uuid5(NAMESPACE, str(n)), "BASE" if n % 3 else "NOTES", 1, {"n": n, **extra})
            for n in numbers
        ]
    )


def base_cells(store: Datastore) -> list[tuple[int, int]]:
    cells = [
        cell
        for shard in range(SHARDS)
        for cell in store.get_cells_for_shard(shard, 0, 10_000).cells
    ]
    return [(cell.shard, cell.added_id) for cell in cells if cell.column_name == "BASE"]


def behind(store: Datastore, group: str) -> int:
    offsets = StoreCoordinator(store.state).fetch_offsets(group)
    return sum(
        head.watermark - (offsets[("trips", shard)].offset if ("trips", shard) in offsets else 0)
        for shard, head in store.heads().items()
    )


def names(cells: list[tuple[int, int]]) -> list[str]:
    return [f"{shard}/{added_id}" for shard, added_id in cells]


def assert_run_or_parked(store: Datastore, tmp_path: Path) -> None:
    done = names([(shard, added_id) for shard, added_id, _ in runs(tmp_path)])
    parked = [cell.cell_id for cell in ParkedCells(store.state).all()]
    assert check_run_or_parked(names(base_cells(store)), done, parked) == {"I14": []}


def test_workers_divide_the_shards_and_run_each_cell_once_in_order(
    store: Datastore, start: Start, tmp_path: Path
) -> None:
    for name in "abc":
        start(name)
    wait_until(
        lambda: (
            set(StoreCoordinator(store.state).owners("recorder", "trips").values()) == set("abc")
        ),
        "all have shards",
    )
    for chunk in range(10):
        put(store, range(chunk * 60, chunk * 60 + 60))
    wait_until(lambda: behind(store, "recorder") == 0, "all cells run")
    done = runs(tmp_path)
    assert Counter((shard, added_id) for shard, added_id, _ in done) == Counter(base_cells(store))
    for shard in range(SHARDS):
        order = [added_id for s, added_id, _ in done if s == shard]
        assert order == sorted(order)
    assert len({pid for _, _, pid in done}) == 3


def test_kill_9_of_a_worker_moves_its_shards_and_skips_nothing(
    store: Datastore, start: Start, tmp_path: Path
) -> None:
    workers = {name: start(name, run_s=0.002) for name in "ab"}
    wait_until(
        lambda: (
            set(StoreCoordinator(store.state).owners("recorder", "trips").values()) == {"a", "b"}
        ),
        "both have shards",
    )
    put(store, range(900))
    wait_until(lambda: workers["a"].pid in {pid for _, _, pid in runs(tmp_path)}, "the first works")
    workers["a"].kill()
    workers["a"].wait()
    put(store, range(900, 1200))
    wait_until(lambda: behind(store, "recorder") == 0, "the other one takes over")
    assert workers["a"].returncode == -signal.SIGKILL
    assert workers["a"].pid in {pid for _, _, pid in runs(tmp_path)}, (
        "the killed worker had run nothing"
    )
    assert_run_or_parked(store, tmp_path)


def test_a_paused_worker_cannot_move_the_offsets_when_it_wakes_up(
    store: Datastore, start: Start, tmp_path: Path
) -> None:
    zombie = start("zombie", run_s=0.02)
    wait_until(
        lambda: len(StoreCoordinator(store.state).owners("recorder", "trips")) == SHARDS,
        "the first worker owns all",
    )
    put(store, range(300))
    wait_until(lambda: len(runs(tmp_path)) > 5, "work under way")
    zombie.send_signal(signal.SIGSTOP)
    before = len(runs(tmp_path))
    start("heir")
    wait_until(lambda: behind(store, "recorder") == 0, "the heir has done it all")
    assert len(runs(tmp_path)) > before
    offsets = StoreCoordinator(store.state).fetch_offsets("recorder")
    zombie.send_signal(signal.SIGCONT)
    time.sleep(1.0)
    assert {
        k: v.offset for k, v in StoreCoordinator(store.state).fetch_offsets("recorder").items()
    } == {k: v.offset for k, v in offsets.items()}
    put(store, range(300, 360))
    wait_until(lambda: behind(store, "recorder") == 0, "both continue")
    assert_run_or_parked(store, tmp_path)


def test_a_worker_that_slept_past_its_lease_runs_no_cell_of_its_lost_shards(
    store: Datastore, start: Start, tmp_path: Path
) -> None:
    zombie = start("zombie", run_s=0.02)
    put(store, range(400))
    wait_until(lambda: len(runs(tmp_path)) > 5, "work under way")
    zombie.send_signal(signal.SIGSTOP)
    start("heir")
    wait_until(lambda: behind(store, "recorder") == 0, "the heir has done it all")
    before = len(runs(tmp_path))
    zombie.send_signal(signal.SIGCONT)
    wait_until(
        lambda: len(StoreCoordinator(store.state).members("recorder")) == 2, "the zombie is back"
    )
    time.sleep(0.5)
    # Cells that were under way in its threads when it was stopped may end; no further one is begun.
    assert len(runs(tmp_path)) - before <= SHARDS


def test_a_worker_whose_name_another_process_takes_ends_with_the_reason(
    store: Datastore, start: Start, tmp_path: Path
) -> None:
    first = start("same")
    put(store, range(30))
    wait_until(lambda: behind(store, "recorder") == 0, "the first works")
    start("same")
    assert first.wait(20) == 1
    put(store, range(30, 60))
    wait_until(lambda: behind(store, "recorder") == 0, "the second continues")
    assert_run_or_parked(store, tmp_path)


def test_a_function_that_never_returns_stops_neither_its_lease_nor_the_end_of_its_worker(
    store: Datastore, start: Start, tmp_path: Path
) -> None:
    hung = start("hung", run_s=3600, drain_s=0.5)
    put(store, range(3))
    wait_until(
        lambda: (
            behind(store, "recorder") > 0
            and StoreCoordinator(store.state).members("recorder") == ["hung"]
        ),
        "it hangs",
    )
    time.sleep(2.5)  # more than two leases
    assert StoreCoordinator(store.state).members("recorder") == ["hung"]
    hung.terminate()
    assert hung.wait(20) == 0
    start("next")
    wait_until(lambda: behind(store, "recorder") == 0, "its cells run elsewhere")
    assert_run_or_parked(store, tmp_path)


def test_a_rolling_restart_runs_no_cell_twice(
    store: Datastore, start: Start, tmp_path: Path
) -> None:
    # With leases that no busy machine lets run out: the test is about the hand-over, not about a
    # take-over.
    first = start("a", run_s=0.002, lease_s=20)
    put(store, range(600))
    wait_until(lambda: len(runs(tmp_path)) > 20, "work under way")
    second = start("b", run_s=0.002, lease_s=20)
    time.sleep(0.5)
    first.terminate()
    assert first.wait(20) == 0
    wait_until(lambda: behind(store, "recorder") == 0, "all cells run")
    second.terminate()
    assert second.wait(20) == 0
    assert Counter((shard, added_id) for shard, added_id, _ in runs(tmp_path)) == Counter(
        base_cells(store)
    )


def test_a_poison_cell_is_parked_the_others_continue_and_a_retry_unparks_it(
    store: Datastore, start: Start, tmp_path: Path
) -> None:
    put(store, range(60))
    put(store, range(60, 66), poison=True)
    put(store, range(66, 120))
    start("a")
    wait_until(lambda: behind(store, "recorder") == 0, "all cells run or parked")
    parked = ParkedCells(store.state)
    assert len(parked.all("recorder")) == 4
    assert_run_or_parked(store, tmp_path)
    one = parked.all("recorder")[0]
    assert "poison in" in one.error
    assert one.attempts == 2
    parked.skip("recorder", one.cell_id, "the rider was refunded")
    (tmp_path / "antidote").touch()
    assert parked.ask_retry("recorder") == 3
    wait_until(lambda: parked.count("recorder") == 0, "the parked cells run")
    assert [cell.skipped_because for cell in parked.skipped()] == ["the rider was refunded"]
    done = Counter((shard, added_id) for shard, added_id, _ in runs(tmp_path))
    assert set(done.values()) == {1}
    assert set(base_cells(store)) - set(done) == {(one.partition, one.added_id)}


def test_parked_cells_are_retried_without_an_operator(
    store: Datastore, start: Start, tmp_path: Path
) -> None:
    put(store, range(1, 3), poison=True)
    start("a", parked_retry_s=0.3)
    parked = ParkedCells(store.state)
    wait_until(lambda: parked.count("recorder") == 2, "parked")
    (tmp_path / "antidote").touch()
    wait_until(lambda: parked.count("recorder") == 0, "tried again")
    assert_run_or_parked(store, tmp_path)


def test_a_store_that_is_away_parks_nothing(store: Datastore, start: Start, tmp_path: Path) -> None:
    put(store, range(6), away=7)  # a cell has two tries
    start("a")
    wait_until(lambda: behind(store, "recorder") == 0, "all cells run")
    assert ParkedCells(store.state).all() == []
    assert Counter((shard, added_id) for shard, added_id, _ in runs(tmp_path)) == Counter(
        base_cells(store)
    )


def test_too_many_parked_cells_stop_the_trigger_until_it_is_resumed(
    store: Datastore, start: Start, tmp_path: Path
) -> None:
    start("a", parked_max=3)
    put(store, range(1, 2))
    wait_until(lambda: len(runs(tmp_path)) == 1, "running")
    put(store, range(3, 60), poison=True)
    parked = ParkedCells(store.state)
    wait_until(lambda: parked.stopped_because("recorder") is not None, "stopped")
    time.sleep(0.5)
    assert 3 <= parked.count("recorder") <= 3 + SHARDS, "it went on parking"
    assert "the limit is 3" in str(parked.stopped_because("recorder"))
    (tmp_path / "antidote").touch()
    parked.ask_retry("recorder")
    parked.resume("recorder")
    wait_until(lambda: behind(store, "recorder") == 0 and parked.count("recorder") == 0, "resumed")
    assert_run_or_parked(store, tmp_path)


def test_a_chunk_is_small_enough_to_give_a_shard_back_soon() -> None:
    assert CHUNK_CELLS <= 1000


TRIGGER_FAILPOINTS = sorted(
    name for name in FAILPOINTS if name.startswith(("trigger.", "billing."))
)


@pytest.mark.faults
@pytest.mark.parametrize("failpoint", TRIGGER_FAILPOINTS)
def test_billing_charges_each_trip_once_when_killed_at_any_failpoint(
    store: Datastore, start: Start, tmp_path: Path, failpoint: str
) -> None:
    trips = 60
    store.put_cells([(uuid5(NAMESPACE, str(n)), "BASE", 1, trip_body(n)) for n in range(trips)])
    # Something that billing must park, so that parking is a crash point too.
    store.put_cells(
        [(uuid5(NAMESPACE, "odd"), "BASE", 1, {**trip_body(1), "payment": "seashells"})]
    )
    victim = start(
        "victim",
        "cellfeed.consumers.billing.app:program",
        failpoints=f"{failpoint}=kill@{1 if 'park' in failpoint else 7}",
        lease_s=0.5,
    )
    assert victim.wait(30) == -signal.SIGKILL, "the fault did not happen"
    start("heir", "cellfeed.consumers.billing.app:program", lease_s=0.5)
    wait_until(lambda: behind(store, GROUP) == 0, "all trips are settled")
    cells = [
        cell
        for shard in range(SHARDS)
        for cell in store.get_cells_for_shard(shard, 0, 10_000).cells
    ]
    cards = [
        cell
        for cell in cells
        if cell.column_name == "BASE" and cell.body["payment"] == "credit card"
    ]
    charges = SandboxCardProvider(tmp_path / "billing" / "charges.sqlite3").charges()
    keys = ChargeKeys()
    assert check_once_per_cell(
        [keys.of(cell, store) for cell in cards],
        [charge.idempotency_key for charge in charges],
        "charge",
    ) == {"I16": []}
    assert sum(charge.amount_cents for charge in charges) == sum(
        cell.body["total_cents"] for cell in cards
    )
    statuses = [cell for cell in cells if cell.column_name == "STATUS"]
    assert sorted(cell.row_key for cell in statuses) == sorted(
        uuid5(NAMESPACE, str(n)) for n in range(trips)
    )
    assert {cell.body["charge_id"] for cell in statuses if cell.body["status"] == "charged"} == {
        charge.charge_id for charge in charges
    }
    assert [parked.column_name for parked in ParkedCells(store.state).all(GROUP)] == ["BASE"]


def test_the_sandbox_declines_a_known_share_first_and_never_charges_a_key_twice(
    tmp_path: Path,
) -> None:
    declined = [n for n in range(2000) if declines_first(f"card-{n}")]
    assert 60 <= len(declined) <= 140
    provider = SandboxCardProvider(tmp_path / "charges.sqlite3")
    from cellfeed.consumers.billing.card_provider import CardDeclined, KeyReused

    card = f"card-{declined[0]}"
    with pytest.raises(CardDeclined):
        provider.charge("key", card, 100)
    assert provider.charge("key", card, 100) == provider.charge("key", card, 100)
    with pytest.raises(KeyReused):
        provider.charge("key", card, 101)
    assert provider.totals() == (1, 100, 1)
