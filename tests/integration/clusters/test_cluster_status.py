"""Reports on clusters: in metrics, by ``cellfeed status`` and ``cellfeed cluster status``. A
real cluster; replication is stopped and nodes are killed."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest

from cellfeed.store.cells.cell import new_cell
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.datastore import Datastore
from tests.support.cli_instance import ROOT, cellfeed
from tests.support.mariadb_cluster import DATASTORE, SHARDS, TestCluster, configured
from tests.support.waiting import wait_until
from tests.support.worker_thread import worker_thread

pytestmark = [
    pytest.mark.integration,
    pytest.mark.xdist_group("mariadb-cluster"),
    pytest.mark.timeout(240),
]

NAMESPACE = UUID("9d5cbe1c-4a0e-4f2e-93c2-2f7f0c2f4b01")


@pytest.fixture
def datastore(cluster: TestCluster) -> Iterator[Datastore]:
    with Datastore(ClusteredEngine(DATASTORE, SHARDS, {cluster.name: cluster.openers()})) as opened:
        yield opened


@pytest.fixture
def run_dir(cluster: TestCluster, tmp_path: Path) -> Path:
    """A run directory of an instance over the cluster, none of whose processes runs."""
    return configured(cluster, tmp_path).parent


def put(datastore: Datastore, numbers: range) -> None:
    assert all(
        result.acknowledged
        for result in datastore.put_new_cells(
            [new_cell(uuid5(NAMESPACE, str(n)), "BASE", 1, {"n": n}) for n in numbers]
        )
    )


def metrics(url: str) -> dict[str, float]:
    """Each series with its labels, as text."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("cellfeed_cluster_")
    }


def replication(cluster: TestCluster, command: str) -> None:
    for name in "bc":
        cluster.servers[name].sql(f"{command} SLAVE SQL_THREAD")


def test_metrics_count_the_cells_that_no_minion_has_and_give_the_age_of_the_oldest(
    cluster: TestCluster, datastore: Datastore
) -> None:
    with worker_thread(datastore) as url:
        put(datastore, range(20))
        wait_until(
            lambda: metrics(url)['cellfeed_cluster_watermark_lag_cells{cluster="c1"}'] == 0,
            "all of it is on a minion",
        )
        assert metrics(url)['cellfeed_cluster_watermark_lag_seconds{cluster="c1"}'] == 0
        # Without its SQL thread a minion receives (so semi-synchronous commits continue) but
        # applies nothing.
        replication(cluster, "STOP")
        put(datastore, range(20, 50))
        told = metrics(url)
        assert told['cellfeed_cluster_watermark_lag_cells{cluster="c1"}'] == 30
        per_shard = [
            sum(datastore.shard_of(uuid5(NAMESPACE, str(n))) == shard for n in range(20, 50))
            for shard in range(SHARDS)
        ]
        assert told['cellfeed_cluster_watermark_lag_cells_max{cluster="c1"}'] == max(per_shard)
        first = told['cellfeed_cluster_watermark_lag_seconds{cluster="c1"}']
        assert first > 0
        wait_until(
            lambda: (
                metrics(url)['cellfeed_cluster_watermark_lag_seconds{cluster="c1"}'] > first + 1
            ),
            "the oldest grows older",
        )
        assert {name: value for name, value in told.items() if "node_role" in name and value} == {
            'cellfeed_cluster_node_role{cluster="c1",node="a",role="master"}': 1,
            'cellfeed_cluster_node_role{cluster="c1",node="b",role="minion"}': 1,
            'cellfeed_cluster_node_role{cluster="c1",node="c",role="minion"}': 1,
        }
        assert told['cellfeed_cluster_node_behind_cells{cluster="c1",node="b"}'] == 30
        replication(cluster, "START")
        wait_until(
            lambda: metrics(url)['cellfeed_cluster_watermark_lag_cells{cluster="c1"}'] == 0,
            "the minions caught up",
        )


def test_metrics_show_a_dead_node_and_leave_an_unknown_lag_out(
    cluster: TestCluster, datastore: Datastore
) -> None:
    with worker_thread(datastore) as url:
        put(datastore, range(5))
        assert metrics(url)['cellfeed_cluster_node_up{cluster="c1",node="c"}'] == 1
        cluster.servers["c"].kill()
        wait_until(
            lambda: metrics(url)['cellfeed_cluster_node_breaker_open{cluster="c1",node="c"}'] == 1,
            "the breaker of the dead minion is open",
        )
        told = metrics(url)
        assert [
            told[f'cellfeed_cluster_node_up{{cluster="c1",node="{name}"}}'] for name in "abc"
        ] == [1, 1, 0]
        assert 'cellfeed_cluster_watermark_lag_cells{cluster="c1"}' in told
        cluster.servers["a"].kill()
        wait_until(
            lambda: metrics(url)['cellfeed_cluster_node_up{cluster="c1",node="a"}'] == 0,
            "the dead master is reported",
        )
        assert 'cellfeed_cluster_watermark_lag_cells{cluster="c1"}' not in metrics(url), (
            "nobody knows what it had committed"
        )


def test_status_has_the_same_facts_as_text_and_as_json(
    cluster: TestCluster, datastore: Datastore, run_dir: Path
) -> None:
    put(datastore, range(8))
    wait_until(
        lambda: [each.lag_cells for each in _statuses(datastore)] == [0], "all of it is on a minion"
    )
    replication(cluster, "STOP")
    put(datastore, range(8, 14))
    for command in (["status"], ["cluster", "status"]):
        done = cellfeed(*command, "--json", "--run-dir", str(run_dir))
        assert done.returncode == 0, done.stderr
        [told] = json.loads(done.stdout)["clusters"]
        assert (told["master"], told["epoch"], told["lag_cells"], told["watermark"]) == (
            "a",
            0,
            6,
            8,
        )
        assert told["lag_cells_max"] > 0
        assert told["lag_s"] > 0
        assert [
            (node["name"], node["role"], node["up"], node["breaker"]) for node in told["nodes"]
        ] == [
            ("a", "master", True, "closed"),
            ("b", "minion", True, "closed"),
            ("c", "minion", True, "closed"),
        ]
        text = cellfeed(*command, "--run-dir", str(run_dir)).stdout
        assert re.search(
            r"cluster c1: master a, semi-synchronous; 3 of 3 nodes up; 6 cells not on a minion yet,"
            r" the oldest for \d+\.\d s",
            text,
        ), text
        # The servers of the tests have 64 MiB.
        advice = "innodb_buffer_pool_size is 64 MiB: a store that grows beyond it waits"
        assert [node["advice"].startswith(advice) for node in told["nodes"]] == [True] * 3
        assert " ".join(text.split()).count(advice) == 3
    replication(cluster, "START")


def test_status_of_an_instance_whose_storage_is_away_reports_that_and_fails(
    cluster: TestCluster, run_dir: Path
) -> None:
    for server in cluster.servers.values():
        server.kill()
    done = cellfeed("status", "--json", "--run-dir", str(run_dir))
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert all(
        f"127.0.0.1:{server.port}" in told["storage_away"] for server in cluster.servers.values()
    ), told["storage_away"]
    assert (told["shards"], told["processes"]) == ({}, [])
    assert "the storage is away" in cellfeed("status", "--run-dir", str(run_dir)).stdout


def test_every_metric_of_a_cluster_is_in_the_guide(datastore: Datastore) -> None:
    documented = set(
        re.findall(r"`(cellfeed_cluster_\w+)`", (ROOT / "docs" / "clusters.md").read_text())
    )
    with worker_thread(datastore) as url:
        names = set[str]()

        def all_told() -> bool:
            names.update(series.partition("{")[0] for series in metrics(url))
            return names >= documented  # the lag is not told before the master was heard

        wait_until(all_told, f"all of {documented}")
    assert names == documented


def _statuses(datastore: Datastore) -> list[Any]:
    assert isinstance(datastore.engine, ClusteredEngine)
    return list(datastore.engine.status())
