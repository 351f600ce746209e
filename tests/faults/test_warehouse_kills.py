"""Loaders as processes against a real gateway: killed at every step, two at once on one table,
stopped by a signal (I16, I17)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.consumers.warehouse.kafka_records import end_offsets
from cellfeed.consumers.warehouse.layout import STAGING
from cellfeed.consumers.warehouse.table import WarehouseTable
from cellfeed.store.datastore import Datastore
from cellfeed.store.failpoints import FAILPOINTS
from cellfeed.verify.report import verify
from cellfeed.verify.store_place import StorePlace
from cellfeed.verify.topic_place import TopicPlace
from cellfeed.verify.warehouse_place import WarehousePlace
from tests.support.running_gateway import REPOSITORY, GatewayProcess
from tests.support.trips_log import fill

pytestmark = [pytest.mark.faults, pytest.mark.integration]

LOADER_FAILPOINTS = sorted(name for name in FAILPOINTS if name.startswith(("warehouse.",)))
PROCESS_TIMEOUT_S = 60.0


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
    gateway: str, group: str, directory: Path, ends: dict[int, int] | None, failpoints: str = ""
) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "tests.faults.warehouse_process",
        gateway,
        "trips",
        group,
        str(directory),
        json.dumps(ends),
    ]
    environment = {**os.environ, "CELLFEED_FAILPOINTS": failpoints}
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, object]:
    try:
        out, err = process.communicate(timeout=PROCESS_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert process.returncode == 0, err
    done: dict[str, object] = json.loads(out.splitlines()[-1])
    return done


def assert_equal_everywhere(store: Path, gateway: str, directory: Path, *, level: bool) -> None:
    WarehouseTable(directory).check()
    with Datastore.open_embedded(store) as datastore:
        report = verify(
            [StorePlace(datastore), TopicPlace(gateway, "trips"), WarehousePlace(directory)]
        )
    assert report.equal
    assert report.level == level
    assert report.cells("warehouse") == WarehouseTable(directory).row_count()


def test_a_loader_killed_at_every_step_in_turn_leaves_a_prefix_and_in_the_end_each_cell_once(
    store: Path, gateway: str, tmp_path: Path
) -> None:
    ends = end_offsets(gateway, "trips")
    directory = tmp_path / "table"
    positions: dict[int, int] = {}
    # A commit of each life may be its last step, so every life commits twice before it dies;
    # recovery finds the leftovers of the life before.
    for life, name in enumerate(LOADER_FAILPOINTS):
        at_pass = 1 if name.startswith(("warehouse.recover.", "warehouse.loader.assigned")) else 3
        process = start_loader(gateway, f"life-{life}", directory, ends, f"{name}=kill@{at_pass}")
        if name == "warehouse.recover.before_remove":
            (directory / STAGING / "0003-dead.parquet.staged").write_bytes(b"half a fi")
        _, err = process.communicate(timeout=PROCESS_TIMEOUT_S)
        assert process.returncode == -signal.SIGKILL, f"{name} did not kill the loader: {err}"
        held = WarehouseTable(directory)
        held.check()
        now = held.next_offsets()
        assert all(now[shard] >= position for shard, position in positions.items())
        positions = now
    assert 0 < sum(positions.values()) < sum(ends.values()), (
        "the kills came while there was work to do"
    )
    assert_equal_everywhere(store, gateway, directory, level=False)
    finish(start_loader(gateway, "last-life", directory, ends))
    assert_equal_everywhere(store, gateway, directory, level=True)
    assert not list((directory / STAGING).iterdir())


def test_two_loaders_that_both_own_every_shard_load_each_cell_once(
    store: Path, gateway: str, tmp_path: Path
) -> None:
    ends = end_offsets(gateway, "trips")
    directory = tmp_path / "table"
    # Each in a group of its own, so both are given all partitions; the pause widens the moment
    # between looking and committing.
    pause = "warehouse.commit.before_link=sleep:0.5"
    one, two = (start_loader(gateway, group, directory, ends, pause) for group in ("one", "two"))
    done = [finish(one), finish(two)]
    assert sum(int(str(each["lost_races"])) for each in done) > 0, "they never met"
    assert sum(int(str(each["rows"])) for each in done) == sum(ends.values())
    assert_equal_everywhere(store, gateway, directory, level=True)


def test_sigterm_commits_the_rows_that_were_read_and_exits_with_0(
    store: Path, gateway: str, tmp_path: Path
) -> None:
    directory = tmp_path / "table"
    process = start_loader(
        gateway, "drained", directory, None, "warehouse.loader.after_offsets=sleep:0.2@4"
    )
    try:
        while not (directory / "_commits").is_dir():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        done = finish(process)
    finally:
        process.kill()
        process.wait()
    assert done["rows"] == WarehouseTable(directory).row_count() > 0
    assert done["waiting_rows"] == 0
    assert_equal_everywhere(
        store, gateway, directory, level=done["rows"] == sum(end_offsets(gateway, "trips").values())
    )
