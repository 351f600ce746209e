"""``docker/``: the containers are the topology of ``docker/production-local.yaml``, with the same
files and settings. Without a Docker engine no test can say that they run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cellfeed.config.model import Config
from cellfeed.config.servers import MariaDbServerConfig, ZooKeeperServerConfig
from cellfeed.instance.config_file import load_config
from cellfeed.kinds.known import process_names
from cellfeed.servers.configured import SERVER_KINDS, SHIPPED_SETTINGS
from cellfeed.servers.kafka_jars import KAFKA_VERSION
from cellfeed.store.engines.mysql.address import parse_mysql_url
from tests.support.cli_instance import ROOT, cellfeed

DOCKER = ROOT / "docker"
pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def local() -> Config:
    return load_config(DOCKER / "production-local.yaml")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    return read


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Container path to the file or folder mounted there."""
    return {
        words[1]: words[0] for words in (volume.split(":") for volume in service.get("volumes", []))
    }


def test_the_compose_file_has_the_production_topology(local: Config) -> None:
    assert [len(cluster.nodes) for cluster in local.datastore.clusters] == [3, 3]
    kinds = [kind for _, kind in process_names(local)]
    counts = {
        "mariadb": 6,
        "zookeeper": 1,
        "worker": 2,
        "gateway": 2,
        "triggers": 2,
        "warehouse": 1,
        "failover": 1,
    }
    assert {kind: kinds.count(kind) for kind in kinds} == counts
    assert {cluster.failover for cluster in local.datastore.clusters} == {"automatic"}
    [zookeeper] = [server for server in local.servers if isinstance(server, ZooKeeperServerConfig)]
    assert local.coordination == f"zookeeper://127.0.0.1:{zookeeper.port}/cellfeed"


def test_every_process_of_the_local_file_is_a_container_and_the_other_way_round(
    local: Config, compose: dict[str, Any]
) -> None:
    assert set(compose["services"]) - {"cluster-init", "kafka"} == {
        name for name, _ in process_names(local)
    }


def test_a_container_of_ours_runs_the_process_of_its_name_with_the_local_file(
    local: Config, compose: dict[str, Any]
) -> None:
    for name, kind in process_names(local):
        if kind not in SERVER_KINDS:
            service = compose["services"][name]
            assert service["command"] == ["run", name, "--run-dir", "/srv/cellfeed"]
            assert mounts(service)["/srv/cellfeed/config.yaml"] == "./production-local.yaml"
            assert service["depends_on"]["cluster-init"] == {
                "condition": "service_completed_successfully"
            }
    init = compose["services"]["cluster-init"]
    assert init["command"] == ["cluster", "init", "--config", "/srv/cellfeed/config.yaml"]
    mariadb = {server.name for server in local.servers if isinstance(server, MariaDbServerConfig)}
    assert set(init["depends_on"]) == mariadb
    assert (
        cellfeed("run", "--help").returncode
        == cellfeed("cluster", "init", "--help").returncode
        == 0
    )


def test_a_mariadb_container_has_the_port_the_server_id_and_the_settings_of_the_local_server(
    local: Config, compose: dict[str, Any]
) -> None:
    for server in local.servers:
        if isinstance(server, MariaDbServerConfig):
            service = compose["services"][server.name]
            assert service["command"] == [
                "--bind-address=127.0.0.1",
                f"--port={server.port}",
                f"--server-id={server.server_id}",
            ]
            assert (
                DOCKER / mounts(service)["/etc/mysql/conf.d/cellfeed.cnf"]
            ).resolve() == SHIPPED_SETTINGS / "mariadb.cnf"
            assert mounts(service)["/var/lib/mysql"] == server.name, (
                "its data outlives the container"
            )


def test_the_account_of_the_images_is_the_one_of_the_local_file(local: Config) -> None:
    accounts = {
        (address.user, address.password)
        for cluster in local.datastore.clusters
        for address in (parse_mysql_url(node.url) for node in cluster.nodes)
    }
    assert (
        set(
            re.findall(
                r"CREATE USER '(\w+)'@'%' IDENTIFIED BY '([^']+)'",
                (DOCKER / "accounts.sql").read_text(),
            )
        )
        == accounts
    )


def test_zookeeper_and_kafka_in_compose_have_the_settings_of_local_servers(
    compose: dict[str, Any],
) -> None:
    assert (
        DOCKER / mounts(compose["services"]["zookeeper"])["/conf/zoo.cfg"]
    ).resolve() == SHIPPED_SETTINGS / "zookeeper.cfg"
    kafka = compose["services"]["kafka"]
    assert (
        DOCKER / mounts(kafka)["/mnt/shared/config/server.properties"]
    ).resolve() == SHIPPED_SETTINGS / "kafka.properties"
    assert kafka["image"] == f"apache/kafka:{KAFKA_VERSION}"
    for settings in ("zookeeper.cfg", "kafka.properties"):
        addresses = re.findall(
            r"(?:Address=|://|@)([\w.]+)", (SHIPPED_SETTINGS / settings).read_text()
        )
        assert set(addresses) == {"127.0.0.1"}


def test_no_container_publishes_ports_or_has_a_network_of_its_own(
    compose: dict[str, Any],
) -> None:
    for name, service in compose["services"].items():
        assert service["network_mode"] == "host", name
        assert not {"ports", "expose", "networks"} & set(service), name


def test_every_mount_build_and_dependency_of_a_container_exists(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for source in mounts(service).values():
            assert (
                (DOCKER / source).exists()
                if source.startswith(".")
                else source in compose["volumes"]
            ), f"{name}: {source}"
        assert set(service.get("depends_on", {})) <= set(compose["services"]), name
        if build := service.get("build"):
            assert (DOCKER / build["context"] / build["dockerfile"]).is_file()
        assert ("build" in service) == (service["image"] == "cellfeed"), name


def test_every_file_that_the_image_copies_exists_and_is_in_its_build_context() -> None:
    let_in = {
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        word
        for line in re.findall(
            r"^COPY (?!--from)(.+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE
        )
        for word in line.split()[:-1]
    }
    assert copied == let_in
    assert all((ROOT / each).exists() for each in copied)


def test_the_installer_is_the_script_that_errors_about_missing_servers_name() -> None:
    script = DOCKER / "install-services"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    text = script.read_text()
    assert all(
        package in text
        for package in (
            "mariadb-server",
            "zookeeper",
            "kcat",
            "default-jre-headless",
            "kafka_jars.py",
        )
    )


def test_the_installer_fails_where_it_cannot_install_and_names_the_missing_tool(
    tmp_path: Path,
) -> None:
    for name in ("bash", "dirname", "id"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    done = subprocess.run(
        [DOCKER / "install-services"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "Missing here:" in done.stderr
    assert {"kcat", "maven", "strace"} <= set(done.stderr.split())
