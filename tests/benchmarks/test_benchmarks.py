"""Benchmarks are found by name, their figures stand beside their limits, and each runs: here at a
size that measures nothing."""

from __future__ import annotations

import inspect
import json
import pkgutil

import pytest

import benchmarks
from benchmarks import (
    Figure,
    at_least,
    at_most,
    backup,
    benchmark_names,
    check,
    checksum,
    client,
    cluster_shards,
    console,
    coordination,
    dictionary,
    encoding,
    export_backfill,
    export_latency,
    export_shards,
    gateway_first_read,
    gateway_idle,
    gateway_latency,
    gateway_partitions,
    gateway_read,
    gateway_vs_kafka,
    growth,
    index_build,
    index_lag,
    index_query,
    lake_load,
    load,
    mysql_first_read,
    mysql_growth,
    mysql_put,
    mysql_put_to_consumer,
    mysql_scan,
    mysql_shards,
    promotion,
    put_http,
    put_http_secure,
    put_to_consumer,
    restore,
    shard_move,
    triggers,
    wait,
    wakeups,
    workers_shards,
)
from benchmarks.__main__ import main
from tests.support import local_kafka, local_mariadb, spread_instance

SMALL = {
    "backup": lambda: backup.figures(cells=500, runs=1, with_mariadb=False),
    "check": lambda: check.figures(sizes=(500,), runs=1, stores=["embedded"]),
    "checksum": lambda: checksum.figures(count=500, runs=1, with_mariadb=False),
    "client": lambda: client.figures(count=500, runs=1, single_s=0.1),
    "cluster-shards": lambda: cluster_shards.figures(many=32, cells=10, idle_s=0.1, settle_s=0.0),
    "console": lambda: console.figures(sizes=(200,), shards=(8,), calls=1, windows=1, window_s=2.5),
    "coordination": lambda: coordination.figures(runs=1, shards=16, commits=64),
    "dictionary": lambda: dictionary.figures(runs=1, trips=1_500),
    "encoding": lambda: encoding.figures(runs=1),
    "export-backfill": lambda: export_backfill.figures(embedded_cells=1_000, with_mariadb=False),
    "export-latency": lambda: export_latency.figures(
        seconds=0.2, runs=1, warm_up_s=0.0, broker_warm_up_s=0.2, with_mariadb=False
    ),
    "gateway-first-read": lambda: gateway_first_read.figures(cells=1_000, runs=1),
    "gateway-idle": lambda: gateway_idle.figures(
        consumers=2, clients=1, seconds=0.1, cells=64, settle_s=0.0, with_kafka=False
    ),
    "gateway-latency": lambda: gateway_latency.figures(
        seconds=0.2, runs=1, warm_up_s=0.0, stores=["embedded"]
    ),
    "gateway-partitions": lambda: gateway_partitions.figures(
        seconds=1.0, shards=(2, 8), cells=20, idle_s=0.2, warm_up_s=0.0
    ),
    "gateway-read": lambda: gateway_read.figures(cells=1_000, runs=1, with_kafka=False),
    "gateway-vs-kafka": lambda: gateway_vs_kafka.figures(
        cells=1_000, runs=1, partitions=(16,), with_java=False
    ),
    "growth": lambda: growth.figures(sizes=(200, 1_200), shards=(4,), calls=5),
    "index-build": lambda: index_build.figures(count=500, runs=1, stores=["embedded"]),
    "index-lag": lambda: index_lag.figures(seconds=0.3, warm_up_s=0.0, stores=["embedded"]),
    "index-query": lambda: index_query.figures(count=500, seconds=0.1, stores=["embedded"]),
    "lake-load": lambda: lake_load.figures(cells=1_000, runs=1),
    "load": lambda: load.figures(rows=400, runs=1),
    "mysql-first-read": lambda: mysql_first_read.figures(cells=1_000),
    "mysql-growth": lambda: mysql_growth.figures(
        sizes=(200, 1_200), shards=4, pools_mib=(64,), count=5
    ),
    "mysql-put": lambda: mysql_put.figures(
        count=500, runs=1, single_s=0.1, callers=(2,), filled=500
    ),
    "mysql-put-to-consumer": lambda: mysql_put_to_consumer.figures(
        seconds=0.2, runs=1, warm_up_s=0.0
    ),
    "mysql-scan": lambda: mysql_scan.figures(count=500, runs=1),
    "mysql-shards": lambda: mysql_shards.figures(shards=8, singles=4),
    "promotion": lambda: promotion.figures(runs=1),
    "put-http": lambda: put_http.figures(count=500, runs=1, single_s=0.1),
    "put-http-secure": lambda: put_http_secure.figures(count=500, runs=1, single_s=0.1),
    "put-to-consumer": lambda: put_to_consumer.figures(seconds=0.2, runs=1, warm_up_s=0.0),
    "restore": lambda: restore.figures(cells=500, runs=1, with_mariadb=False),
    "shard-move": lambda: shard_move.figures(cells=200, runs=2),
    "triggers": lambda: triggers.figures(
        cells=200,
        runs=1,
        seconds=0.2,
        warm_up_s=0.0,
        lease_s=1.0,
        shards=8,
        members=2,
        rebalance_lease_s=2.0,
    ),
    "export-shards": lambda: export_shards.figures(
        many=32, runs=1, seconds=0.5, warm_up_s=0.0, idle_s=0.1, settle_s=0.0
    ),
    "wakeups": lambda: wakeups.figures(seconds=0.2, runs=1, warm_up_s=0.0, connected_s=0.0),
    "wait": lambda: wait.figures(waits=2, runs=1, batches=1, settle_s=0.0),
    "workers-shards": lambda: workers_shards.figures(
        many=32, runs=1, seconds=0.2, warm_up_s=0.0, idle_s=0.1, settle_s=0.0
    ),
}


def test_every_benchmark_module_is_found_and_has_a_docstring_about_its_measure() -> None:
    modules = {
        module.name.replace("_", "-")
        for module in pkgutil.iter_modules(benchmarks.__path__)
        if not module.name.startswith("_")
    }
    assert set(benchmark_names()) == modules == set(SMALL)
    assert all(len(about) > 20 for about in benchmark_names().values())


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_gives_figures_under_its_own_name_each_once(name: str) -> None:
    if name.startswith(("mysql-", "client", "promotion", "gateway-first-read", "shard-move")) and (
        reason := local_mariadb.why_not()
    ):
        pytest.skip(reason)
    if name.startswith(("export-", "gateway-vs-kafka")) and (reason := local_kafka.why_not()):
        pytest.skip(reason)
    if name == "wakeups" and (reason := spread_instance.why_not()):
        pytest.skip(reason)
    figures = list(SMALL[name]())
    names = [figure.name for figure in figures]
    assert names
    assert len(set(names)) == len(names)
    assert all(each.startswith(f"{name} ") for each in names)
    assert all(figure.unit for figure in figures)
    assert all(
        {"name", "figure", "unit", "beside", "beside_figure", "ratio"}
        <= json.loads(json.dumps(figure.as_json())).keys()
        for figure in figures
    )


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_needs_no_arguments(name: str) -> None:
    module = __import__(f"benchmarks.{name.replace('-', '_')}", fromlist=["figures"])
    assert all(
        parameter.default is not parameter.empty
        for parameter in inspect.signature(module.figures).parameters.values()
    )


def test_a_ratio_compares_with_the_peer_and_else_with_the_limit() -> None:
    assert Figure("x", 50.0, "ms", "peer", 200.0, at_most(100)).ratio == 0.25
    assert Figure("x", 50.0, "ms", limit=at_most(100)).ratio == 0.5
    assert Figure("x", 50.0, "ms").ratio is None


@pytest.mark.parametrize(
    ("limit", "within"),
    [(at_least(50), True), (at_least(51), False), (at_most(50), True), (at_most(49), False)],
)
def test_a_figure_knows_whether_it_is_within_its_limit(
    limit: benchmarks.Limit, within: bool
) -> None:
    assert Figure("x", 50.0, "ms", limit=limit).within_limit is within


def test_an_unknown_name_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["nothing-such"]) == 2
    assert "put-http" in capsys.readouterr().err


def test_the_command_prints_each_figure_with_limit_and_ratio(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = [Figure("put-http batch", 30_000.0, "cells/s", "a peer", 60_000.0, at_least(40_000))]
    monkeypatch.setattr("benchmarks.__main__.run_benchmark", lambda _name: iter(figures))
    assert main(["put_http"]) == 0
    [_, line, _] = capsys.readouterr().out.splitlines()
    assert all(
        text in line
        for text in (
            "put-http batch",
            "30,000.00",
            "cells/s",
            "≥ 40,000",
            "0.500",
            "a peer: 60,000.00",
            "BEYOND LIMIT",
        )
    )
    assert main(["put_http", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["limit"] == 40_000
