"""Kept blocks in files, with real processes: a gateway that was ended, or killed, continues with
the blocks that it encoded before, and asks the store for none of them."""

from __future__ import annotations

import signal
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cellfeed.bridge.gateway.apis.api_35_describe_log_dirs import KEY as LOG_DIRS
from cellfeed.bridge.gateway.limits import BLOCK_CELLS
from cellfeed.store.cells.sharding import shard_of
from cellfeed.store.datastore import Datastore
from tests.support.drivers import ConfluentDriver
from tests.support.raw_requests import ask, encoded
from tests.support.running_gateway import GatewayProcess
from tests.support.trips_log import Received
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
FULL = 4 * BLOCK_CELLS
CELLS = FULL + 100
ROW = uuid.UUID(int=1)
SHARD = shard_of(ROW.bytes, 16)
"""All cells are in one shard."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Datastore.open_embedded(tmp_path / "store") as datastore:
        for put in datastore.put_cells(
            [(ROW, "BASE", number, {"n": number}) for number in range(CELLS)]
        ):
            put.or_raise()
    return tmp_path / "store"


@pytest.fixture
def start(store: Path, tmp_path: Path) -> Iterator[Any]:
    with ExitStack() as running:

        def started(name: str = "gateway") -> GatewayProcess:
            files = {"blocks_directory": str(tmp_path / "blocks"), "block_files_bytes_max": 1 << 30}
            gateway = GatewayProcess(
                store, tmp_path / f"{name}.log", name=name, session_timeout_s=1.0, **files
            )
            running.callback(gateway.end_by_force)
            return gateway.start()

        yield started


def read(gateway: GatewayProcess) -> list[Received]:
    return ConfluentDriver().read(gateway.bootstrap, "trips", {SHARD: 0}, CELLS)


def kept(tmp_path: Path, name: str = "gateway") -> list[Path]:
    return sorted((tmp_path / "blocks" / f"trips-{name}").rglob("*.block"))


def make_unreadable(store: Path) -> None:
    """Anybody who encodes one of the full blocks from now on fails."""
    [file] = store.rglob("node-0.sqlite3")
    with closing(sqlite3.connect(file)) as connection, connection:
        assert (
            connection.execute(
                "UPDATE cell SET body = x'ff' WHERE position - (? << 47) BETWEEN 0 AND ?",
                (SHARD, FULL - 1),
            ).rowcount
            == FULL
        )


def metrics(gateway: GatewayProcess) -> dict[str, float]:
    with urlopen(f"http://127.0.0.1:{gateway.registry_port}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for each in families
        for sample in each.samples
    }


def test_metrics_count_the_fate_of_kept_blocks_and_the_guide_lists_the_metrics(
    start: Any, tmp_path: Path
) -> None:
    gateway = start()
    read(gateway)
    blocks = FULL // BLOCK_CELLS
    wait_until(
        lambda: metrics(gateway)["cellfeed_gateway_block_files_total written"] == blocks,
        "every full block is in a file",
    )
    found = metrics(gateway)
    assert found["cellfeed_gateway_kept_block_bytes files"] == sum(
        each.stat().st_size for each in kept(tmp_path)
    )
    assert found["cellfeed_gateway_kept_block_bytes memory"] > 0
    assert found["cellfeed_gateway_blocks_encoded_total"] >= blocks
    in_memory, in_files = ask(
        gateway.port,
        LOG_DIRS,
        4,
        encoded(LOG_DIRS, 4, {"topics": [{"topic": "trips", "partitions": [SHARD]}]}),
    ).results
    assert (in_memory.log_dir, in_files.log_dir) == ("memory", "files"), (
        "no peer need know the host's paths"
    )
    assert [each.partition_size for topic in in_files.topics for each in topic.partitions] == [
        found["cellfeed_gateway_kept_block_bytes files"]
    ]
    assert (
        in_files.total_bytes - in_files.usable_bytes
        == found["cellfeed_gateway_kept_block_bytes files"]
    )
    gateway.kill()
    kept(tmp_path)[0].write_bytes(b"not a block")
    gateway.start()
    read(gateway)
    found = metrics(gateway)
    assert found["cellfeed_gateway_block_files_total read"] == blocks - 1
    assert found["cellfeed_gateway_block_files_total damaged"] == 1
    guide = (ROOT / "docs" / "operate" / "metrics.md").read_text()
    for name in (each for each in found if "block" in each):
        metric, *labels = name.split()
        assert f"| `{metric}` |" in guide
        assert all(f"`{label}`" in guide for label in labels), name


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_gateway_that_is_started_again_serves_full_blocks_without_the_store(
    start: Any, store: Path, tmp_path: Path, end: signal.Signals
) -> None:
    gateway = start()
    before = read(gateway)
    assert [each.offset for each in before] == list(range(CELLS))
    wait_until(lambda: len(kept(tmp_path)) == FULL // BLOCK_CELLS, "every full block is in a file")
    gateway.stop() if end is signal.SIGTERM else gateway.kill()
    make_unreadable(store)
    gateway.start()
    assert read(gateway) == before
    assert "comes from another history" not in (tmp_path / "gateway.log").read_text()


def test_two_gateways_with_one_directory_keep_out_of_each_others_way(
    start: Any, store: Path, tmp_path: Path
) -> None:
    names = ("gateway-1", "gateway-2")
    gateways = {name: start(name) for name in names}
    before = read(gateways["gateway-1"])
    wait_until(
        lambda: any(len(kept(tmp_path, name)) == FULL // BLOCK_CELLS for name in names),
        "the partition's leader has its files",
    )
    leader, other = sorted(names, key=lambda name: not kept(tmp_path, name))
    assert not kept(tmp_path, other), "clients read from the partition's leader"
    gateways[leader].kill()
    assert read(gateways[other]) == before
    wait_until(
        lambda: len(kept(tmp_path, other)) == FULL // BLOCK_CELLS,
        "the other one has files of its own",
    )
    gateways[other].kill()
    make_unreadable(store)
    for file in kept(tmp_path, leader):
        file.write_bytes(b"not a block")
    gateways[other].start()
    assert read(gateways[other]) == before


def marked_files(tmp_path: Path, mark: str) -> list[Path]:
    found = []
    for path in (tmp_path / "blocks").rglob("*"):
        try:
            if path.is_file() and mark.encode() in path.read_bytes():
                found.append(path)
        except FileNotFoundError:
            continue  # dropped meanwhile
    return found


@pytest.mark.parametrize("runs", [True, False], ids=["beside the gateway", "while it is down"])
def test_no_file_has_a_byte_of_an_erased_row(
    start: Any, store: Path, tmp_path: Path, runs: bool
) -> None:
    mark = "a name that stands in one body alone: 7be0c1"
    row = next(
        key
        for number in range(2, 1_000)
        if shard_of((key := uuid.UUID(int=number)).bytes, 16) == SHARD
    )
    with Datastore.open_embedded(store) as datastore:
        datastore.put_cells(
            [
                (row, "BASE", 1, {"name": mark}),
                *[
                    (ROW, "BASE", number, {"n": number})
                    for number in range(CELLS, CELLS + BLOCK_CELLS)
                ],
            ]
        )
        end = CELLS + BLOCK_CELLS + 1
        gateway = start()
        before = ConfluentDriver().read(gateway.bootstrap, "trips", {SHARD: 0}, end)
        wait_until(lambda: bool(marked_files(tmp_path, mark)), "a block with the row is in a file")
        if not runs:
            gateway.stop()
        assert datastore.erase_row(row).cells == 1
        if not runs:
            assert marked_files(tmp_path, mark), "nobody is there to drop it"
            gateway.start()
        wait_until(lambda: not marked_files(tmp_path, mark), "no file has it")
        after = ConfluentDriver().read(gateway.bootstrap, "trips", {SHARD: 0}, end)
        assert [
            place for place, (old, new) in enumerate(zip(before, after, strict=True)) if old != new
        ] == [CELLS], "all else is as before"
        gateway.stop()
        assert marked_files(tmp_path, mark) == []
