"""An export of an instance: started by ``up``, looked at, compared and paused from the command
line; positions of groups change sides."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, Producer

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export.worker import run_exporter
from cellfeed.store.datastore import Datastore
from tests.support.cli_instance import cellfeed, processes, running
from tests.support.export_steps import WAIT_S, export_to, kafka_admin, put, wait_caught_up
from tests.support.local_kafka import Kafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("kafka")]

ROW_KEY = "2f0a1c6e-3b7d-4f5a-9c8e-{:012d}"
CELLS = 60


@pytest.fixture(scope="module")
def run_dir(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An instance with two exports: the whole log, and a view of it."""
    directory = tmp_path_factory.mktemp("export-cli")
    config: dict[str, Any] = {
        "datastore": {"shards": 4},
        "workers": [{"port": 0}],
        "gateways": [{"port": 0, "registry_port": 0, "group_initial_delay_s": 0}],
        "exports": [
            {"name": "all", "bootstrap": kafka.bootstrap, "lease_s": 2},
            {
                "name": "cards",
                "bootstrap": kafka.bootstrap,
                "topic": "trips.cards",
                "format": "cloudevents",
                "filter": [{"field": "payment", "op": "=", "value": "card"}],
                "fields": ["cents"],
                "lease_s": 2,
            },
        ],
    }
    with running(directory, yaml.safe_dump(config)) as started:
        file = directory / "cells.ndjson"
        file.write_text(
            "".join(
                json.dumps(
                    {"id": ROW_KEY.format(n), "cents": n, "payment": "card" if n % 3 else "cash"}
                )
                + "\n"
                for n in range(CELLS)
            )
        )
        loaded = cellfeed(
            "load", str(file), "--column", "BASE", "--row-key", "id", "--run-dir", str(started)
        )
        assert loaded.returncode == 0, loaded.stderr
        yield started


def asked(run_dir: Path, *words: str, code: int = 0) -> list[dict[str, Any]]:
    done = cellfeed(*words, "--json", "--run-dir", str(run_dir))
    assert done.returncode == code, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def caught_up(run_dir: Path) -> None:
    def is_so() -> bool:
        return all(
            each.get("cells_behind") == 0
            for each in asked(run_dir, "export", "list")
            if each["export"] in ("all", "cards")
        )

    wait_until(is_so, "the exports are at the end", WAIT_S)


def verified(run_dir: Path, name: str, records: int) -> dict[int, dict[str, Any]]:
    """Reports on each shard, once readers of commits see so many records: that may be a moment
    after their commit."""
    found: dict[int, dict[str, Any]] = {}

    def all_there() -> bool:
        found.update({each["shard"]: each for each in asked(run_dir, "export", "verify", name)})
        return bool(sum(each["cells"] for each in found.values()) == records)

    wait_until(all_there, f"{records} records of {name} are compared", WAIT_S)
    return found


def test_up_runs_the_exports_and_verify_finds_them_equal(run_dir: Path) -> None:
    assert [name for name, entry in processes(run_dir).items() if entry["kind"] == "export"] == [
        "export"
    ]
    caught_up(run_dir)
    whole, cards = verified(run_dir, "all", CELLS), verified(run_dir, "cards", CELLS * 2 // 3)
    assert all(
        each["equal"] and each["partition_digest"] == each["log_digest"]
        for each in (*whole.values(), *cards.values())
    )
    digests = {
        each["shard"]: each["digests"]["store"] for each in asked(run_dir, "verify")[0]["shards"]
    }
    assert digests == {shard: each["partition_digest"] for shard, each in whole.items()}, (
        "I17: the same digest everywhere"
    )
    assert asked(run_dir, "export", "parked", "all") == []
    [lag] = asked(run_dir, "export", "lag", "all")
    assert {each["because"].split()[0] for each in lag["shards"]} <= {"came", "nothing", "goes"}
    assert not asked(run_dir, "triggers", "list"), "an export is no trigger"


def test_a_group_goes_over_to_the_cluster_and_back_without_a_cell_twice_or_left_out(
    run_dir: Path, kafka: Kafka
) -> None:
    caught_up(run_dir)
    gateway = f"127.0.0.1:{processes(run_dir)['gateway']['ports']['kafka']}"
    there = take(gateway, 20)
    moved = asked(run_dir, "offsets", "translate", "movers", "--export", "all", "--to", "kafka")[0][
        "partitions"
    ]
    assert moved
    here = take(kafka.bootstrap, 20)
    asked(run_dir, "offsets", "translate", "movers", "--export", "all", "--to", "gateway")
    rest = take(gateway, CELLS - 40)
    assert sorted(there + here + rest) == sorted(ROW_KEY.format(n) for n in range(CELLS))


def test_the_status_of_a_paused_export_names_the_operator_and_the_reason(run_dir: Path) -> None:
    caught_up(run_dir)
    asked(run_dir, "export", "pause", "cards", "--reason", "the broker is moved")
    assert "the broker is moved" in asked(run_dir, "export", "lag", "cards")[0]["waits_because"]
    asked(run_dir, "export", "resume", "cards")
    assert (
        asked(run_dir, "export", "pause", "card", "--reason", "a slip", code=1)[0]["error"]
        == "not_found"
    )
    assert (
        asked(run_dir, "export", "forget", "cards", "--reason", "too early", code=1)[0]["error"]
        == "refused"
    ), "its exporter is at work"


def test_an_unfit_topic_is_refused_with_the_command_that_mends_it(
    run_dir: Path, kafka: Kafka
) -> None:
    from confluent_kafka.admin import NewTopic

    admin = kafka_admin(kafka)  # held until it has answered
    admin.create_topics([NewTopic("unfit", 2, 1, config={"cleanup.policy": "compact"})])[
        "unfit"
    ].result(WAIT_S)
    config = yaml.safe_load((run_dir / "config.yaml").read_text())
    config["exports"] = [{"name": "unfit", "bootstrap": kafka.bootstrap, "topic": "unfit"}]
    file = run_dir / "unfit.yaml"
    file.write_text(yaml.safe_dump(config))
    done = cellfeed("export", "run", "--config", str(file), "--run-dir", str(run_dir))
    assert done.returncode == 3
    said = " ".join(done.stderr.split())
    assert "has 2 partitions, the datastore 4 shards" in said
    assert "cleanup.policy is compact, needed is delete: kafka-configs.sh" in said


def test_verify_exits_with_1_and_names_the_differing_shard(kafka: Kafka, tmp_path: Path) -> None:
    config = {
        "datastore": {"shards": 2},
        "exports": [
            {"name": "twice", "bootstrap": kafka.bootstrap, "topic": "twice", "lease_s": 2}
        ],
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    export = export_to(kafka, name="twice")
    with Datastore.open_embedded(tmp_path / "store", shards=2) as store:
        put(store, 40)
        stop, coordinator = threading.Event(), StoreCoordinator(store.state)
        exporter = threading.Thread(
            target=run_exporter, args=([export], store, coordinator, "a", stop)
        )
        exporter.start()
        try:
            wait_caught_up(store, coordinator, export)
        finally:
            stop.set()
            exporter.join(WAIT_S)
        assert all(each["equal"] for each in asked(tmp_path, "export", "verify", "twice"))
        again = next(iter(store.get_cells_for_shard(1, 3, 1).cells))
    # As a careless copy of the topic does: a record a second time.
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(
        "twice",
        again.body_json,
        str(again.row_key),
        1,
        headers=[("added_id", str(again.added_id).encode())],
    )
    assert producer.flush(WAIT_S) == 0
    verdicts = {
        each["shard"]: each for each in asked(tmp_path, "export", "verify", "twice", code=1)
    }
    assert verdicts[0]["equal"]
    assert not verdicts[1]["equal"]
    assert verdicts[1]["what"]


def take(bootstrap: str, count: int) -> list[str]:
    """The row keys of the next records of the group, committed one by one."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "movers",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
        }
    )
    found: list[str] = []
    try:
        consumer.subscribe(["trips"])

        def take_one() -> bool:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                found.append((message.key() or b"").decode())
                consumer.commit(message=message, asynchronous=False)
            return len(found) == count

        wait_until(take_one, f"{count} records of {bootstrap}", WAIT_S)
    finally:
        consumer.close()
    return found
