"""Lake loaders as processes against a real gateway: killed at every step, paused and overtaken, two
at once on one table, stopped by a signal (I16, I17)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.consumers.lake import delta_table, iceberg_table, loader
from cellfeed.consumers.lake.open_table import find_lake_table
from cellfeed.consumers.lake.views import LakeView
from cellfeed.consumers.warehouse.kafka_records import end_offsets
from cellfeed.store.datastore import Datastore
from cellfeed.store.failpoints import FAILPOINTS
from cellfeed.verify.lake_place import LakePlace
from cellfeed.verify.report import verify
from cellfeed.verify.store_place import StorePlace
from tests.support.lake_tables import FORMATS, place_of
from tests.support.running_gateway import REPOSITORY, GatewayProcess
from tests.support.trips_log import fill
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.integration]

MODULES = (delta_table, iceberg_table, loader)
"""They declare the failpoints."""

PROCESS_TIMEOUT_S = 60.0


def failpoints_of(kind: str) -> list[str]:
    other = {"iceberg": "lake.delta.", "delta": "lake.iceberg."}[kind]
    never = "lake.append.unknown"  # a catalog's answer, not a step
    return sorted(
        name
        for name in FAILPOINTS
        if name.startswith("lake.") and not name.startswith(other) and name != never
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trips")
    fill(directory)
    return directory


@pytest.fixture(scope="module")
def gateway(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with GatewayProcess(store, tmp_path_factory.mktemp("gateway") / "log") as process:
        yield process.bootstrap


def start_loader(
    gateway: str,
    group: str,
    kind: str,
    folder: Path,
    ends: dict[int, int] | None,
    failpoints: str = "",
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.faults.lake_process",
            gateway,
            "trips",
            group,
            kind,
            str(folder),
            json.dumps(ends),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "CELLFEED_FAILPOINTS": failpoints},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, int]:
    try:
        out, err = process.communicate(timeout=PROCESS_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0, err
    done: dict[str, int] = json.loads(out.splitlines()[-1])
    return done


def positions(folder: Path, kind: str) -> dict[int, int]:
    table = find_lake_table(place_of(folder, kind))
    found = table.look().positions if table is not None else {}
    return {shard: each.next_id for shard, each in found.items()}


def assert_prefix_of_the_store(store: Path, folder: Path, kind: str, *, level: bool) -> None:
    """The table has each cell of every shard's log once, up to its own position."""
    with Datastore.open_embedded(store) as datastore:
        report = verify([StorePlace(datastore), LakePlace(place_of(folder, kind))])
    assert report.equal
    assert report.level == level
    [row] = LakeView(place_of(folder, kind)).query("SELECT count(*) AS n FROM cells")
    assert row["n"] == sum(positions(folder, kind).values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", FORMATS)
def test_a_loader_killed_at_every_step_in_turn_leaves_a_prefix_and_in_the_end_each_cell_once(
    kind: str, store: Path, gateway: str, tmp_path: Path
) -> None:
    ends, before = end_offsets(gateway, "trips"), dict[int, int]()
    names = failpoints_of(kind)
    assert len(names) == 8
    for life, name in enumerate(names):
        # Each life commits once before it dies.
        process = start_loader(gateway, f"{kind}-{life}", kind, tmp_path, ends, f"{name}=kill@2")
        _, err = process.communicate(timeout=PROCESS_TIMEOUT_S)
        assert process.returncode == -signal.SIGKILL, f"{name} did not kill the loader: {err}"
        now = positions(tmp_path, kind)
        assert all(now[shard] >= position for shard, position in before.items())
        assert sum(now.values()) > sum(before.values())
        assert_prefix_of_the_store(store, tmp_path, kind, level=False)
        before = now
    finish(start_loader(gateway, f"{kind}-last", kind, tmp_path, ends))
    assert_prefix_of_the_store(store, tmp_path, kind, level=True)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("point", ["lake.append.looked", "before"])
def test_a_loader_paused_at_its_commit_and_overtaken_adds_nothing(
    point: str, kind: str, store: Path, gateway: str, tmp_path: Path
) -> None:
    if point == "before":
        point = {"iceberg": "lake.iceberg.before_catalog", "delta": "lake.delta.before_log"}[kind]
    ends = end_offsets(gateway, "trips")
    slow = start_loader(
        gateway, f"slow-{kind}-{point}", kind, tmp_path, ends, f"{point}=sleep:600@2"
    )
    try:
        wait_until(lambda: bool(positions(tmp_path, kind)), "the slow loader has committed", 30)
        folder = tmp_path if kind == "delta" else tmp_path / "cellfeed"
        files = sum(1 for _ in folder.rglob("*.parquet"))
        wait_until(
            lambda: sum(1 for _ in folder.rglob("*.parquet")) > files or files > 1,
            "the slow loader has files that no commit names",
            30,
        )
        slow.send_signal(signal.SIGSTOP)
        fast = finish(start_loader(gateway, f"fast-{kind}-{point}", kind, tmp_path, ends))
        assert fast["rows"] > 0
        assert_prefix_of_the_store(store, tmp_path, kind, level=True)
    finally:
        slow.kill()
        slow.communicate()


@pytest.mark.parametrize("kind", FORMATS)
def test_two_loaders_that_both_own_every_shard_load_each_cell_once(
    kind: str, store: Path, gateway: str, tmp_path: Path
) -> None:
    ends = end_offsets(gateway, "trips")
    # Each in a group of its own, so both are given all partitions; the pause widens the moment
    # between looking and committing.
    pause = "lake.append.looked=sleep:1@2"
    pair = [
        start_loader(gateway, f"{kind}-{name}", kind, tmp_path, ends, pause)
        for name in ("one", "two")
    ]
    done = [finish(each) for each in pair]
    assert sum(each["overtaken"] for each in done) > 0, "they never met"
    assert sum(each["rows"] for each in done) == sum(ends.values())
    assert_prefix_of_the_store(store, tmp_path, kind, level=True)


def test_two_members_of_a_group_share_one_table(store: Path, gateway: str, tmp_path: Path) -> None:
    ends = end_offsets(gateway, "trips")
    slowly = ";".join(f"lake.loader.after_offsets=sleep:0.5@{n}" for n in (1,))
    pair = [start_loader(gateway, "shared", "iceberg", tmp_path, ends, slowly) for _ in range(2)]
    done = [finish(each) for each in pair]
    assert sum(each["rows"] for each in done) == sum(ends.values())
    assert_prefix_of_the_store(store, tmp_path, "iceberg", level=True)


def test_sigterm_commits_the_rows_that_were_read_and_ends_well(
    store: Path, gateway: str, tmp_path: Path
) -> None:
    process = start_loader(
        gateway, "drained", "iceberg", tmp_path, None, "lake.loader.after_offsets=sleep:0.2@2"
    )
    try:
        wait_until(lambda: bool(positions(tmp_path, "iceberg")), "a commit is there", 30)
        process.send_signal(signal.SIGTERM)
        done = finish(process)
    finally:
        process.kill()
        process.wait()
    loaded = sum(positions(tmp_path, "iceberg").values())
    assert (done["rows"], done["waiting_rows"]) == (loaded, 0)
    total = sum(end_offsets(gateway, "trips").values())
    assert_prefix_of_the_store(store, tmp_path, "iceberg", level=loaded == total)
