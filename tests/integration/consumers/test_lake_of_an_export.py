"""A lake of an instance that reads a Kafka cluster with an export, where marks of transactions take
up offsets; a partition that it stopped; and the topic made again under the same name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from cellfeed.consumers.lake.loader import run_lake_loader
from cellfeed.consumers.lake.open_table import Place, find_lake_table
from cellfeed.consumers.lake.positions import Position
from cellfeed.store.errors import ProtectData
from tests.support.cli_instance import cellfeed, running
from tests.support.export_steps import WAIT_S
from tests.support.local_kafka import Kafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("kafka")]

ROW_KEY = "2f0a1c6e-3b7d-4f5a-9c8e-{:012d}"
TRANSACTIONS, CELLS = 4, 25
TOPIC = "lake-tables"


@pytest.fixture
def run_dir(kafka: Kafka, tmp_path: Path) -> Iterator[Path]:
    config = {
        "datastore": {"shards": 2},
        "workers": [{"port": 0}],
        "gateways": [],
        "exports": [{"name": "all", "bootstrap": kafka.bootstrap, "topic": TOPIC, "lease_s": 2}],
        "lakes": [
            {
                "bootstrap": kafka.bootstrap,
                "topic": TOPIC,
                "commit_age_s": 0.2,
                "client": {"client.id": "lake"},
            }
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


def positions(place: Place) -> dict[int, Position]:
    table = find_lake_table(place)
    return dict(table.look().positions) if table is not None else {}


def test_every_transaction_of_an_export_is_loaded_and_a_topic_that_was_made_again_is_refused(
    run_dir: Path, kafka: Kafka
) -> None:
    place = Place(format="iceberg", storage=run_dir / "lake")
    for number in range(TRANSACTIONS):
        put(run_dir, number * CELLS, CELLS)
        wait_until(
            lambda: sum(each.next_id for each in positions(place).values()) == (number + 1) * CELLS,  # noqa: B023
            f"the table has the rows of transaction {number + 1}",
            WAIT_S,
        )
    assert any(each.next_offset > each.next_id for each in positions(place).values()), (
        "marks of transactions took offsets"
    )
    said = cellfeed("lake", "verify", "--run-dir", str(run_dir))
    assert (said.returncode, said.stdout.splitlines()[-1]) == (0, "all equal"), said.stdout

    erased = cellfeed("erase", ROW_KEY.format(3), "--yes", "--run-dir", str(run_dir))
    assert erased.returncode == 0, erased.stderr
    wait_until(
        lambda: sum(each.next_id for each in positions(place).values()) > TRANSACTIONS * CELLS,
        "the table has the erasure",
        WAIT_S,
    )
    asked = cellfeed(
        "lake", "query", "SELECT count(*) AS n FROM latest", "--json", "--run-dir", str(run_dir)
    )
    assert json.loads(asked.stdout) == {"n": TRANSACTIONS * CELLS - 1}
    said = cellfeed("lake", "verify", "--run-dir", str(run_dir))
    assert (said.returncode, said.stdout.splitlines()[-1]) == (0, "all equal"), said.stdout

    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for shard in (0, 1):
        producer.produce(TOPIC, b"no cell", partition=shard)
    assert producer.flush(WAIT_S) == 0
    wait_until(
        lambda: (
            "partition 0 is stopped" in cellfeed("lake", "status", "--run-dir", str(run_dir)).stdout
        ),
        "status names the stopped partition",
        WAIT_S,
    )
    assert cellfeed("down", "--run-dir", str(run_dir)).returncode == 0

    before = positions(place)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([TOPIC])[TOPIC].result(WAIT_S)
    wait_until(
        lambda: TOPIC not in admin.list_topics(timeout=WAIT_S).topics, "the topic is gone", WAIT_S
    )
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(WAIT_S)
    wait_until(lambda: TOPIC in admin.list_topics(timeout=WAIT_S).topics, "it is back", WAIT_S)
    producer.produce(TOPIC, b"no cell", partition=0)
    assert producer.flush(WAIT_S) == 0
    with pytest.raises(ProtectData, match="the topic was made again"):
        run_lake_loader(kafka.bootstrap, TOPIC, "again", place, Event(), offset_is_added_id=False)
    assert positions(place) == before
