"""``docker/network``: the containers fit their configuration; where a Docker engine answers, they
run."""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from cellfeed.config.model import Config
from cellfeed.instance.config_file import load_config
from cellfeed.kinds.known import process_names
from cellfeed.store.engines.mysql.address import parse_mysql_url
from tests.support.server_source import IMAGES, choose

pytestmark = pytest.mark.integration

NETWORK: Final = Path(__file__).parents[3] / "docker" / "network"
START_TIMEOUT_S: Final = 900.0


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config(NETWORK / "cellfeed.yaml")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    read = yaml.safe_load((NETWORK / "compose.yaml").read_text())
    found: dict[str, Any] = read["services"]
    return found


def test_each_process_of_the_configuration_is_a_container_and_each_host_is_one(
    config: Config, services: dict[str, Any]
) -> None:
    names = {name for name, _ in process_names(config)}
    ours = {name for name, each in services.items() if each["image"] == "cellfeed"}
    assert ours == {*names, "cluster-init"}
    assert {services[name]["command"][1] for name in names} == names
    [cluster] = config.datastore.clusters
    hosts = {parse_mysql_url(node.url).host for node in cluster.nodes} | {"zookeeper"}
    assert hosts == set(services) - ours
    assert all(services[host]["healthcheck"] for host in hosts)
    assert services["c1-a"]["image"] == IMAGES["mariadb"]


def test_published_ports_are_those_of_listeners_with_tls(
    config: Config, services: dict[str, Any]
) -> None:
    published = {
        name: [port.split(":") for port in each["ports"]]
        for name, each in services.items()
        if "ports" in each
    }
    [worker] = config.workers
    assert worker.tls is not None
    listeners = {gateway.name: gateway.listeners[0] for gateway in config.gateways}
    assert {each.security for each in listeners.values()} == {"sasl_tls"}
    ports = {worker.name: worker.port, **{name: each.port for name, each in listeners.items()}}
    assert published == {
        name: [["127.0.0.1", str(port), str(port)]] for name, port in ports.items()
    }
    for name, each in listeners.items():
        assert each.advertised == f"localhost:{ports[name]}"


def test_containers_of_ours_write_nothing_but_their_run_directory(services: dict[str, Any]) -> None:
    for name, each in services.items():
        if each["image"] == "cellfeed":
            assert (each["read_only"], each["cap_drop"]) == (True, ["ALL"]), name
            sources = [volume.split(":")[0] for volume in each["volumes"]]
            assert all(
                (NETWORK / source).exists() for source in sources if source.endswith(".yaml")
            )


def test_the_script_makes_certificates_for_the_names_of_the_containers(
    tmp_path: Path, services: dict[str, Any]
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl on this machine: `make services` installs it on Debian")
    shutil.copy(NETWORK / "certificates", tmp_path)
    for _ in range(2):  # the second run changes nothing
        done = subprocess.run(
            [tmp_path / "certificates"], capture_output=True, text=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr
    tls = tmp_path / "tls"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls / "server.pem", tls / "server.key")
    shown = subprocess.run(
        ["openssl", "x509", "-in", tls / "server.pem", "-noout", "-ext", "subjectAltName"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    names = set(re.findall(r"DNS:([\w-]+)", shown))
    assert names >= {name for name, each in services.items() if "ports" in each} | {"localhost"}
    subprocess.run(
        ["openssl", "verify", "-CAfile", tls / "ca.pem", tls / "server.pem"],
        check=True,
        capture_output=True,
        timeout=60,
    )


def test_the_containers_become_healthy_where_an_engine_answers(tmp_path: Path) -> None:
    source = choose({})
    if source.kind == "local":
        pytest.skip(f"no containers: {source.because}")
    subprocess.run([NETWORK / "certificates"], check=True, timeout=120)
    file = str(NETWORK / "compose.yaml")
    compose = ["docker", "compose", "--file", file, "--project-name"]
    compose.append(f"cellfeed-{tmp_path.name}".lower())
    try:
        subprocess.run(
            [*compose, "up", "--build", "--detach", "--wait"], check=True, timeout=START_TIMEOUT_S
        )
        made = subprocess.run(
            [*compose, "exec", "worker", "python", "-m", "cellfeed.processes.probe"],
            check=True,
            capture_output=True,
            timeout=60,
        )
        assert b'"ok":true' in made.stdout
    finally:
        subprocess.run([*compose, "down", "--volumes"], check=True, timeout=300)
