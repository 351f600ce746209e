"""Quotas of a configuration, in an instance: a Kafka client that reads faster than its quota waits
and gets every cell; a service that puts faster is refused, waits, and loses nothing."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from uuid import NAMESPACE_DNS, uuid5

import pytest
from confluent_kafka import Consumer

from cellfeed.store.http.client import Client
from tests.support.cli_instance import processes, running

pytestmark = pytest.mark.integration

CONFIG = """
datastore: {shards: 2}
workers: [{port: 0}]
gateways: [{port: 0, registry_port: 0, group_initial_delay_s: 0}]
limits:
  gateway_connections: 50
  quotas:
    "*": {requests_per_s: 200, put_bytes_per_s: 2_000_000, read_bytes_per_s: 200_000}
"""
CELLS = 2_000
BODY = {"note": "n" * 200}


def figures(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_clients_over_their_quota_wait_and_lose_nothing(tmp_path: Path) -> None:
    with running(tmp_path, CONFIG) as run_dir:
        ports = {each["kind"]: each["ports"] for each in processes(run_dir).values()}
        worker = f"http://127.0.0.1:{ports['worker']['http']}"
        rows = [uuid5(NAMESPACE_DNS, str(number)) for number in range(CELLS)]
        with Client([worker], "trips", timeout_s=60) as store:
            for row in rows[:400]:  # twice as many as a second allows at once
                store.put_cell(row, "BASE", 1, BODY)
            store.put_cells([(row, "BASE", 1, BODY) for row in rows[400:]])
        refused = [
            value
            for name, value in figures(ports["worker"]["http"]).items()
            if name.startswith("cellfeed_http_requests_total") and 'status="429"' in name
        ]
        found: set[tuple[int | None, int | None]] = set()
        consumer = Consumer(
            {
                "bootstrap.servers": f"127.0.0.1:{ports['gateway']['kafka']}",
                "group.id": "slow",
                "auto.offset.reset": "earliest",
                "fetch.max.bytes": 10_000_000,
            }
        )
        consumer.subscribe(["trips"])
        try:
            while len(found) < CELLS:
                message = consumer.poll(60)
                assert message is not None, "the consumer waited for a minute"
                assert message.error() is None
                found.add((message.partition(), message.offset()))
        finally:
            consumer.close()
        gateway = figures(ports["gateway"]["registry"])
    assert sum(refused) > 0, "no put met its quota"
    assert gateway["cellfeed_gateway_throttled_requests_total"] > 0, "no fetch met its quota"
    assert gateway["cellfeed_gateway_throttled_seconds_total"] > 0
