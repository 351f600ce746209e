"""ZooKeeper and Kafka as processes of an instance: started, killed, refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from cellfeed.servers.kafka import KafkaServer
from cellfeed.servers.kafka_jars import JarsUnavailable, kafka_class_path
from cellfeed.servers.life import start_server
from cellfeed.servers.zookeeper import ZooKeeperServer
from cellfeed.store.errors import Unavailable
from tests.integration.servers.local.test_mariadb import run_dir
from tests.support.free_ports import free_ports
from tests.support.own_servers import SETTINGS, kill_started_here, needs_zookeeper, servers_in
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("local-servers")]


def test_an_error_about_missing_kafka_jars_names_their_source(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine: `make services` installs it on Debian")
    monkeypatch.setenv("CELLFEED_CACHE", str(place / "nothing"))
    port, controller_port = free_ports(2)
    with pytest.raises(
        Unavailable, match=rf"jars are not in {place}/nothing/kafka-.*make services"
    ):
        KafkaServer(
            "kafka", place / "kafka", port, controller_port, SETTINGS / "kafka.properties"
        ).prepare()


def test_zookeeper_keeps_its_data_through_kill_9(place: Path) -> None:
    needs_zookeeper()
    from kazoo.client import KazooClient

    server, directory = (
        ZooKeeperServer("zk", place / "zk", free_ports(1)[0], SETTINGS / "zookeeper.cfg"),
        run_dir(place),
    )
    entry = start_server(server, directory)
    client = KazooClient(f"127.0.0.1:{server.port}")
    client.start(10)
    client.create("/kept", b"value")
    client.stop()
    client.close()
    kill_started_here(entry.pid)
    again = start_server(server, directory)
    client = KazooClient(f"127.0.0.1:{server.port}")
    client.start(10)
    assert client.get("/kept")[0] == b"value"
    client.stop()
    client.close()
    assert {
        each.laddr.ip.removeprefix("::ffff:")
        for each in psutil.Process(again.pid).net_connections("tcp")
        if each.status == "LISTEN" and each.laddr.port == server.port
    } == {"127.0.0.1"}
    assert directory.stop_process("zk")
    assert servers_in(place) == []


@pytest.mark.slow
def test_kafka_serves_a_client_after_a_kill_and_a_start(place: Path) -> None:
    try:
        kafka_class_path()
    except JarsUnavailable as reason:
        pytest.skip(f"no Kafka: {reason}")
    port, controller_port = free_ports(2)
    server, directory = (
        KafkaServer("kafka", place / "kafka", port, controller_port, SETTINGS / "kafka.properties"),
        run_dir(place),
    )
    entry = start_server(server, directory)
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    admin.create_topics([NewTopic("kept", 2, 1)])["kept"].result(30)
    kill_started_here(entry.pid)
    start_server(server, directory)
    wait_until(lambda: is_there(admin, "kept"), "the topic is there again")
    assert directory.stop_process("kafka")
    assert servers_in(place) == []


def is_there(admin: AdminClient, topic: str) -> bool:
    """Whether the broker has the topic; a broker that has only just begun to listen may not know
    yet, and say so with an error."""
    try:
        return topic in admin.list_topics(timeout=10).topics
    except KafkaException:
        return False
