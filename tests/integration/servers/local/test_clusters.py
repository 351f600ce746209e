"""Clusters of an instance's own servers: made whole, promoted, and started without one of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from uuid import uuid5

import psutil
import pytest
import yaml

from tests.support.cli_instance import ROOT, cellfeed, kill, processes
from tests.support.free_ports import free_ports
from tests.support.own_servers import (
    NAMESPACE,
    needs_mariadb,
    needs_zookeeper,
    servers_in,
    taken,
    up,
    written,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("local-servers")]


PUT_AND_READ_CELLS = 40


def three_nodes() -> dict[str, Any]:
    ports = dict(zip("abc", free_ports(3), strict=True))
    nodes = [
        {"name": f"c1-{name}", "url": f"mysql://cellfeed:secret@127.0.0.1:{port}"}
        for name, port in ports.items()
    ]
    return {
        "datastore": {
            "shards": 2,
            "clusters": [{"name": "c1", "failover": "automatic", "nodes": nodes}],
        },
        "servers": [
            {"kind": "mariadb", "name": f"c1-{name}", "port": port, "server_id": number}
            for number, (name, port) in enumerate(ports.items(), 1)
        ],
        "workers": [{"port": 0}],
        "gateways": [],
    }


def test_a_cluster_is_not_made_without_all_its_servers_and_the_reason_is_theirs(
    place: Path,
) -> None:
    needs_mariadb()
    config = three_nodes()
    with taken(config["servers"][1]["port"]):
        done = cellfeed(
            "up",
            "--detach",
            "--config",
            str(written(place, config)),
            "--run-dir",
            str(place / "run"),
            timeout_s=100,
        )
    assert done.returncode == 1
    assert "a cluster cannot be made of these servers" in done.stderr
    assert f"c1-b: port {config['servers'][1]['port']} cannot be had" in done.stderr
    assert servers_in(place) == []


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["c1-a", "c1-c"], ids=["the master", "a minion"])
def test_an_instance_starts_without_one_of_its_servers_reports_it_and_uses_it_later(
    place: Path, missing: str
) -> None:
    needs_mariadb()
    config = three_nodes()
    run_dir = up(place, config)
    instance = ["--run-dir", str(run_dir)]
    assert (
        cellfeed("put", str(uuid5(NAMESPACE, "one")), "BASE", "1", '{"n": 1}', *instance).returncode
        == 0
    )
    assert cellfeed("down", *instance).returncode == 0

    def told() -> dict[str, Any]:
        return dict(json.loads(cellfeed("status", "--json", *instance).stdout))

    with taken(next(server["port"] for server in config["servers"] if server["name"] == missing)):
        again = cellfeed(
            "up", "--detach", "--config", str(place / "cellfeed.yaml"), *instance, timeout_s=100
        )
        assert again.returncode == 0, again.stderr
        assert f"{missing} HAS NOT STARTED" in again.stdout
        assert set(processes(run_dir)) == {"c1-a", "c1-b", "c1-c", "worker", "failover"} - {missing}
        status = told()
        assert [(each["name"], each["kind"]) for each in status["missing"]] == [
            (missing, "mariadb")
        ]
        assert "cannot be had" in status["missing"][0]["reason"]
        assert roles(status, "c1")[missing][1] is False
        text = cellfeed("status", *instance).stdout
        assert re.search(rf"{missing}\s+mariadb\s+not started", text), text

        def taken_again() -> bool:
            return (
                cellfeed(
                    "put", str(uuid5(NAMESPACE, "two")), "BASE", "1", '{"n": 2}', *instance
                ).returncode
                == 0
            )

        wait_until(
            taken_again,
            "puts are taken, by a new master where the old one is missing",
            timeout_s=60,
        )
        assert '"n":1' in cellfeed(
            "get", str(uuid5(NAMESPACE, "one")), "--json", *instance
        ).stdout.replace(" ", "")
    wait_until(
        lambda: roles(told(), "c1")[missing] == ("minion", True),
        "it is started when its port is free, and follows",
        timeout_s=60,
    )
    assert told()["missing"] == []
    assert missing in processes(run_dir)
    assert cellfeed("down", *instance, timeout_s=100).returncode == 0
    assert servers_in(place) == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_production_topology_comes_up_whole_and_continues_when_a_master_is_killed(
    place: Path,
) -> None:
    needs_mariadb()
    needs_zookeeper()
    config = yaml.safe_load((ROOT / "docker" / "production-local.yaml").read_text())
    on_free_ports(config)
    run_dir = up(place, config, timeout_s=150)
    instance = ["--run-dir", str(run_dir)]
    running = processes(run_dir)
    assert len(running) == 15
    assert all(psutil.pid_exists(entry["pid"]) for entry in running.values())
    gateway = f"127.0.0.1:{running['gateway-2']['ports']['kafka']}"
    body = {"total_cents": 500, "payment": "cash"}

    def load(numbers: range) -> str:
        cells = place / "cells.ndjson"
        cells.write_text(
            "".join(
                json.dumps({"key": str(uuid5(NAMESPACE, str(n))), **body}) + "\n" for n in numbers
            )
        )
        loaded = cellfeed("load", str(cells), "--column", "BASE", "--row-key", "key", *instance)
        return "" if loaded.returncode == 0 else loaded.stdout + loaded.stderr

    def status() -> dict[str, Any]:
        told: dict[str, Any] = json.loads(cellfeed("status", "--json", *instance).stdout)
        return told

    def billed(trips: int) -> bool:
        told = status()
        behind = {group["group"]: group["behind"] for group in told["groups"]}
        return (
            sum(shard["watermark"] for shard in told["shards"].values()) == 2 * trips
            and behind.get("billing") == 0
        )

    def equal_everywhere(trips: int) -> bool:
        done = cellfeed(
            "verify",
            "--gateway",
            gateway,
            "--parquet",
            str(run_dir / "warehouse"),
            "--json",
            *instance,
        )
        return done.returncode == 0 and str(2 * trips) == rows_in_warehouse(run_dir)

    assert load(range(PUT_AND_READ_CELLS)) == ""
    wait_until(
        lambda: billed(PUT_AND_READ_CELLS),
        "every trip has a STATUS cell, and billing's offsets say so",
        timeout_s=60,
    )
    assert offsets_in_zookeeper(config, "billing") == status_watermarks(status())
    wait_until(
        lambda: equal_everywhere(PUT_AND_READ_CELLS),
        "store, gateway and warehouse hold the same",
        timeout_s=60,
    )

    kill(running["c1-a"]["pid"])
    wait_until(
        lambda: load(range(PUT_AND_READ_CELLS, 2 * PUT_AND_READ_CELLS)) == "",
        "puts to both clusters are taken again",
        timeout_s=60,
    )
    wait_until(
        lambda: billed(2 * PUT_AND_READ_CELLS),
        "billing runs on the new master",
        timeout_s=60,
    )
    promoted = master_of(status(), "c1")
    assert (promoted["master"] != "c1-a", promoted["epoch"]) == (True, 1)
    assert cellfeed("start", "c1-a", *instance).returncode == 0
    wait_until(
        lambda: roles(status(), "c1")["c1-a"] == ("minion", True),
        "the old master follows",
        timeout_s=60,
    )
    wait_until(
        lambda: equal_everywhere(2 * PUT_AND_READ_CELLS),
        "store, gateway and warehouse hold the same again",
        timeout_s=60,
    )
    assert cellfeed("down", *instance, timeout_s=100).returncode == 0
    assert servers_in(place) == []
    assert not any(psutil.pid_exists(entry["pid"]) for entry in running.values())


def status_watermarks(told: dict[str, Any]) -> dict[int, int]:
    return {
        int(shard): head["watermark"] for shard, head in told["shards"].items() if head["watermark"]
    }


def master_of(told: dict[str, Any], cluster: str) -> dict[str, Any]:
    [found] = [each for each in told["clusters"] if each["name"] == cluster]
    return dict(found)


def roles(told: dict[str, Any], cluster: str) -> dict[str, tuple[str, bool]]:
    return {node["name"]: (node["role"], node["up"]) for node in master_of(told, cluster)["nodes"]}


def offsets_in_zookeeper(config: dict[str, Any], group: str) -> dict[int, int]:
    """The group's saved offsets, where Kafka's tools look for them: read by a client that is not
    the product's."""
    from kazoo.client import KazooClient

    client = KazooClient(config["coordination"].removeprefix("zookeeper://"))
    client.start(10)
    try:
        path = f"/consumers/{group}/offsets/trips"
        offsets = {
            int(shard): int(client.get(f"{path}/{shard}")[0]) for shard in client.get_children(path)
        }
        return {shard: offset for shard, offset in offsets.items() if offset}
    finally:
        client.stop()
        client.close()


def rows_in_warehouse(run_dir: Path) -> str:
    done = cellfeed("warehouse", "status", "--json", "--run-dir", str(run_dir))
    return str(json.loads(done.stdout)["rows"]) if done.returncode == 0 else done.stderr


def on_free_ports(config: dict[str, Any]) -> None:
    """The same topology, where nothing else listens."""
    ports = dict(
        zip(
            (server["port"] for server in config["servers"]),
            free_ports(len(config["servers"])),
            strict=True,
        )
    )
    for server in config["servers"]:
        server["port"] = ports[server["port"]]
    for cluster in config["datastore"]["clusters"]:
        for node in cluster["nodes"]:
            address, port = node["url"].rsplit(":", 1)
            node["url"] = f"{address}:{ports[int(port)]}"
    # The port of ZooKeeper stands here too: left as it was, nothing would coordinate and billing
    # would wait for ever.
    for port, free in ports.items():
        config["coordination"] = config["coordination"].replace(f":{port}/", f":{free}/")
    for worker in config["workers"]:
        worker["port"] = 0
    for gateway in config["gateways"]:
        gateway["port"] = gateway["registry_port"] = 0
