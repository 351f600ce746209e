"""A warehouse of an instance that reads a Kafka cluster with an export, where marks of transactions
take up offsets; and the view that a person has of a partition that it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Producer

from cellfeed.consumers.warehouse.table import WarehouseTable
from tests.support.cli_instance import cellfeed, running
from tests.support.export_steps import WAIT_S
from tests.support.local_kafka import Kafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("kafka")]

ROW_KEY = "2f0a1c6e-3b7d-4f5a-9c8e-{:012d}"
TRANSACTIONS, CELLS = 4, 25


@pytest.fixture
def run_dir(kafka: Kafka, tmp_path: Path) -> Iterator[Path]:
    config = {
        "datastore": {"shards": 2},
        "workers": [{"port": 0}],
        "gateways": [],
        "exports": [{"name": "all", "bootstrap": kafka.bootstrap, "topic": "lake", "lease_s": 2}],
        "warehouses": [
            {"name": "lake", "bootstrap": kafka.bootstrap, "topic": "lake", "flush_age_s": 0.2}
        ],
    }
    with running(tmp_path, yaml.safe_dump(config)) as started:
        yield started


def put(run_dir: Path, first: int, count: int) -> None:
    file = run_dir.parent / "cells.ndjson"
    numbers = range(first, first + count)
    file.write_text(
        "".join(json.dumps({"id": ROW_KEY.format(n), "cents": n}) + "\n" for n in numbers)
    )
    loaded = cellfeed(
        "load", str(file), "--column", "BASE", "--row-key", "id", "--run-dir", str(run_dir)
    )
    assert loaded.returncode == 0, loaded.stderr


def test_every_transaction_of_an_export_is_loaded_and_a_stopped_partition_is_seen(
    run_dir: Path, kafka: Kafka
) -> None:
    folder = run_dir / "warehouse"
    for number in range(TRANSACTIONS):
        put(run_dir, number * CELLS, CELLS)
        wait_until(
            lambda: WarehouseTable(folder).row_count() == (number + 1) * CELLS,  # noqa: B023
            f"the table has the rows of transaction {number + 1}",
            WAIT_S,
        )
    table = WarehouseTable(folder)
    positions = table.positions()
    assert any(each.next_offset > each.next_id for each in positions.values()), (
        "marks of transactions took offsets"
    )
    said = cellfeed("verify", "--parquet", str(folder), "--run-dir", str(run_dir))
    assert (said.returncode, said.stdout.splitlines()[-1]) == (0, "all equal"), said.stdout
    with table.connect() as connection:
        rows = connection.execute("SELECT created_at, row_key FROM cells").fetchall()
    assert sorted(row_key for _, row_key in rows) == [
        ROW_KEY.format(n) for n in range(TRANSACTIONS * CELLS)
    ]
    assert all(created_at.utcoffset().total_seconds() == 0 for created_at, _ in rows)

    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for shard in (0, 1):
        producer.produce("lake", b"no cell", partition=shard)
    producer.flush(30)
    status = ""

    def is_said() -> bool:
        nonlocal status
        status = cellfeed("status", "--run-dir", str(run_dir)).stdout
        return all(f"lake: partition {shard} is stopped: record at" in status for shard in (0, 1))

    wait_until(is_said, "status names both partitions and what is wrong", WAIT_S)
    assert "does not decode" in status
    put(run_dir, TRANSACTIONS * CELLS, 3)
    said = cellfeed("verify", "--parquet", str(folder), "--run-dir", str(run_dir))
    assert (
        said.stdout.splitlines()[-1]
        == "equal only as far as every place has come: warehouse lacks the 3 newest"
    )
