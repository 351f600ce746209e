"""Typed topics of a datastore on MariaDB, a master with two minions: the schemas' commands, the
cells that fit no version, a gateway; and all of it on the minion that is promoted when the master
was killed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest
import yaml
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from cellfeed.assembly.clusters import open_clusters
from cellfeed.cli import schemas_unfit as verbs
from cellfeed.instance.config_file import load_config
from cellfeed.store.cells.cell import new_cell
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.datastore import Datastore
from tests.support.cli_instance import CELLFEED, ROOT, accepts
from tests.support.drivers import DRIVERS
from tests.support.free_ports import free_ports
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster
from tests.support.schema_commands import FARE, TIP, invoke, write_schema
from tests.support.trips_log import Received
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mariadb-cluster")]

NAMESPACE = UUID("0b0f5c0e-6a3c-5d0a-9d2f-3f6b7b0a1c11")
BODIES: list[dict[str, Any]] = [
    *({"fare": number} for number in range(20)),
    *({"fare": number, "tip": 1} for number in range(3)),
    {"fare": 4.5},
]
"""Of them the first version takes twenty, the second three more, and none the last."""

TOPIC = "trips.BASE"


@pytest.fixture
def run_dir(cluster: TestCluster, tmp_path: Path) -> Path:
    """Of an instance on the cluster, whose store has the cells and whose schema is in
    ``trip.avsc``."""
    nodes = [{"name": name, "url": server.url} for name, server in cluster.servers.items()]
    schema = {"column": "BASE", "schema": "trip.avsc", "unfit": "park"}
    datastore = {
        "name": DATASTORE,
        "shards": SHARDS,
        "clusters": [{"name": cluster.name, "nodes": nodes}],
        "schemas": [schema],
    }
    port, registry_port = free_ports(2)
    gateways = [{"port": port, "registry_port": registry_port}]
    (tmp_path / "config.yaml").write_text(
        yaml.safe_dump({"datastore": datastore, "gateways": gateways})
    )
    write_schema(tmp_path, FARE)
    with Datastore(open_clusters(load_config(tmp_path / "config.yaml").datastore)) as opened:
        opened.put_new_cells(
            [
                new_cell(uuid5(NAMESPACE, str(number)), "BASE", 1, body)
                for number, body in enumerate(BODIES)
            ]
        )
    return tmp_path


@contextmanager
def gateway(run_dir: Path) -> Iterator[tuple[int, int]]:
    """The instance's gateway as a process; its ports."""
    [told] = load_config(run_dir / "config.yaml").gateways
    with (run_dir / "gateway.log").open("ab") as log:
        process = subprocess.Popen(
            [*CELLFEED, "run", "--run-dir", str(run_dir), "gateway"],
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(
            lambda: accepts(told.port),
            f"the gateway serves: {(run_dir / 'gateway.log').read_text()}",
            timeout_s=60,
        )
        yield told.port, told.registry_port
    finally:
        process.terminate()
        process.wait(60)


def read(port: int, registry_port: int, count: int) -> list[tuple[Received, dict[str, Any]]]:
    """The topic's records, each with the value that Confluent's deserialiser reads."""
    records = DRIVERS["confluent-kafka"].read(
        f"127.0.0.1:{port}", TOPIC, dict.fromkeys(range(SHARDS), 0), count
    )
    with SchemaRegistryClient({"url": f"http://127.0.0.1:{registry_port}"}) as client:
        typed = AvroDeserializer(client)
        return [
            (record, typed(record.value, SerializationContext(TOPIC, MessageField.VALUE))["body"])
            for record in sorted(records)
        ]


def test_typed_topics_on_a_cluster_and_on_the_minion_that_is_promoted(
    cluster: TestCluster, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verbs, "HEARD_S", 0.0)
    [told] = invoke(run_dir, "check", str(run_dir / "trip.avsc"), "--column", "BASE", code=1)
    assert (told["registered"], told["tried"], told["unfit"]) == (False, 24, 4)
    with gateway(run_dir) as ports:
        first = read(*ports, 20)
        assert sorted(body["fare"] for _, body in first) == list(range(20))
        wait_until(lambda: len(invoke(run_dir, "unfit")) == 4, "the four cells are parked")
    [version] = invoke(run_dir, "list")
    assert (version["version"], version["unfit"]) == (1, "park")

    cluster.servers["a"].kill()
    assert promote(cluster.admin).master in ("b", "c")
    write_schema(run_dir, FARE, TIP)
    with gateway(run_dir) as ports:
        versions = invoke(run_dir, "list")
        assert [each["version"] for each in versions] == [1, 2]
        assert versions[0] == version, "as it was registered on the old master"
        then = read(*ports, 23)
        assert [each for each in then if "tip" not in each[1]] == first, (
            "what was typed is the same, to the byte"
        )
        assert sorted(body["fare"] for _, body in then if body.get("tip") == 1) == [0, 1, 2]
    done = invoke(run_dir, "unfit", "--retry")[0]
    assert (done["fit"], done["still_unfit"]) == (3, 1)
    [left] = invoke(run_dir, "unfit")
    assert left["reason"] == "fare is a number with a fraction, not an integer"
    assert json.loads(versions[1]["schema"])["fields"][1]["name"] == "tip"
