"""Addresses of a running instance, in the form that its clients take."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellfeed.assembly.gateway_address import first_gateway
from cellfeed.config.gateway import GatewayProcessConfig
from cellfeed.config.host_port import host_port
from cellfeed.config.model import Config, WorkerConfig
from cellfeed.instance.addresses import gateway_address, worker_urls
from cellfeed.instance.config_file import write_config
from cellfeed.processes.reports import ProcessEntry
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import NotFound
from cellfeed.store.http.calls.workers import Worker


@pytest.fixture(params=["127.0.0.1", "localhost", "::1"])
def host(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run_dir(tmp_path: Path, host: str) -> RunDir:
    """An instance with one worker and one gateway at ``host``."""
    directory = RunDir(tmp_path)
    directory.make()
    config = Config(workers=[WorkerConfig(host=host)], gateways=[GatewayProcessConfig(host=host)])
    write_config(config, directory.config)
    directory.record(ProcessEntry("worker", "worker", 1, {"http": 7421}, "log"))
    directory.record(
        ProcessEntry("gateway", "gateway", 1, {"kafka": 9093, "registry": 8082}, "log")
    )
    return directory


def test_a_worker_is_reached_at_the_host_of_its_configuration(run_dir: RunDir, host: str) -> None:
    [url] = worker_urls(run_dir.path)
    worker = Worker(url)
    assert (worker.host, worker.port) == (host, 7421)


def test_a_gateway_is_reached_at_the_host_of_its_configuration(run_dir: RunDir, host: str) -> None:
    wanted = "[::1]:9093" if host == "::1" else f"{host}:9093"
    assert gateway_address(run_dir.path) == wanted


def test_a_warehouse_reads_from_the_first_gateway(run_dir: RunDir, host: str) -> None:
    config = Config(gateways=[GatewayProcessConfig(host=host), GatewayProcessConfig(name="other")])
    assert first_gateway(run_dir, config) == host_port(host, 9092), "it has not started yet"
    run_dir.say_ready("gateway", {"kafka": 9093})
    assert first_gateway(run_dir, config) == host_port(host, 9093)
    with pytest.raises(NotFound, match="needs a gateway"):
        first_gateway(run_dir, Config(gateways=[]))


def test_an_instance_that_does_not_run_has_no_addresses(tmp_path: Path) -> None:
    directory = RunDir(tmp_path)
    with pytest.raises(NotFound, match="no instance runs"):
        worker_urls(tmp_path)
    write_config(Config(), directory.config)
    with pytest.raises(NotFound, match="no gateway runs"):
        gateway_address(tmp_path)
