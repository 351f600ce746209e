"""MariaDB, ZooKeeper and Kafka as processes of an instance: made, started, killed and started
again, ended; and the production topology made of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import psutil
import pymysql
import pytest
import yaml
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from cellfeed.instance.config_file import load_config
from cellfeed.run_dir import RunDir
from cellfeed.servers.configured import configured_server
from cellfeed.servers.kafka import KafkaServer
from cellfeed.servers.kafka_jars import JarsUnavailable, kafka_class_path
from cellfeed.servers.life import start_server
from cellfeed.servers.mariadb import Account, MariaDbServer
from cellfeed.servers.memory import memory_bytes, pool_bytes
from cellfeed.servers.zookeeper import JARS, ZooKeeperServer
from cellfeed.store.errors import Unavailable
from tests.support import local_mariadb
from tests.support.cli_instance import ROOT, accepts, cellfeed, ended, kill, processes
from tests.support.free_ports import free_ports
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("local-servers")]

SETTINGS = ROOT / "cellfeed" / "data"
NAMESPACE = UUID("0b7b7f46-9d0f-4a55-8a5c-63e5a8e9b001")
PUT_AND_READ_CELLS = 40


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that MariaDB's own user can get at, which pytest's are not. Servers that still run
    in it at the end are killed."""
    directory = Path(tempfile.mkdtemp(prefix="cellfeed-servers-"))
    directory.chmod(0o755)
    try:
        with ended(directory / "run"):
            yield directory
    finally:
        for process in servers_in(directory):
            process.kill()
        shutil.rmtree(directory)


def servers_in(directory: Path) -> list[psutil.Process]:
    """The live servers whose files lie in the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.name() in ("mariadbd", "java")
                and any(f"{directory}/" in word for word in process.cmdline())
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.NoSuchProcess:
            pass
    return found


def kill_started_here(pid: int) -> None:
    """``kill -9`` of a server that is a child of this process, which has to take its exit
    status."""
    process = psutil.Process(pid)
    process.kill()
    process.wait(10)


def needs_mariadb() -> None:
    if reason := local_mariadb.why_not():
        pytest.skip(reason)


def needs_zookeeper() -> None:
    if shutil.which("java") is None or not all(jar.exists() for jar in JARS):
        pytest.skip("no ZooKeeper on this machine: `make services` installs it on Debian")


def one_node(port: int, password: str = "it's a secret") -> dict[str, Any]:
    return {
        "datastore": {
            "shards": 2,
            "clusters": [
                {
                    "name": "c1",
                    "nodes": [
                        {
                            "name": "c1-a",
                            "url": (
                                f"mysql://cellfeed:{password.replace(' ', '%20')}@127.0.0.1:{port}"
                            ),
                        }
                    ],
                }
            ],
        },
        "servers": [{"kind": "mariadb", "name": "c1-a", "port": port, "server_id": 1}],
        "workers": [{"port": 0}],
        "gateways": [],
    }


def written(directory: Path, config: dict[str, Any]) -> Path:
    path = directory / "cellfeed.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def up(place: Path, config: dict[str, Any], timeout_s: float = 100) -> Path:
    run_dir = place / "run"
    done = cellfeed(
        "up",
        "--detach",
        "--config",
        str(written(place, config)),
        "--run-dir",
        str(run_dir),
        timeout_s=timeout_s,
    )
    assert done.returncode == 0, done.stderr
    return run_dir


def test_a_server_is_made_a_cluster_and_keeps_its_data_through_kill_9_and_down(place: Path) -> None:
    needs_mariadb()
    [port] = free_ports(1)
    run_dir = up(place, one_node(port))
    instance = ["--run-dir", str(run_dir)]
    assert (
        cellfeed("put", str(uuid5(NAMESPACE, "one")), "BASE", "1", '{"n": 1}', *instance).returncode
        == 0
    )
    before = processes(run_dir)
    assert list(before) == ["c1-a", "worker"]
    assert (before["c1-a"]["kind"], before["c1-a"]["ports"]) == ("mariadb", {"mysql": port})
    assert psutil.Process(before["c1-a"]["pid"]).name() == "mariadbd"

    kill(before["c1-a"]["pid"])
    wait_until(lambda: not accepts(port), "its last thread has ended")
    status = json.loads(cellfeed("start", "c1-a", "--json", *instance).stdout)
    assert status["pid"] != before["c1-a"]["pid"]
    after = processes(run_dir)
    assert after["worker"]["pid"] == before["worker"]["pid"], (
        "the kill of a server leaves the others alone"
    )
    assert psutil.pid_exists(after["worker"]["pid"])
    got = cellfeed("get", str(uuid5(NAMESPACE, "one")), "--json", *instance)
    assert '"n":1' in got.stdout.replace(" ", ""), got.stderr

    assert cellfeed("down", *instance).returncode == 0
    assert servers_in(place) == []
    again = cellfeed("up", "--detach", "--config", str(place / "cellfeed.yaml"), *instance)
    assert "c1: c1-a is master (as before)" in again.stdout, again.stderr
    assert '"n":1' in cellfeed(
        "get", str(uuid5(NAMESPACE, "one")), "--json", *instance
    ).stdout.replace(" ", "")
    assert cellfeed("down", *instance).returncode == 0
    assert servers_in(place) == []
    assert not accepts(port)


def test_nobody_comes_in_over_tcp_without_the_password_and_it_listens_on_loopback_only(
    place: Path,
) -> None:
    needs_mariadb()
    with_password = server_of(place, Account("cell'feed", "pass'\\word"))
    entry = start_server(with_password, run_dir(place))
    try:
        for user, password in (("root", ""), ("cell'feed", ""), ("", "")):
            with pytest.raises(pymysql.err.OperationalError, match="denied"):
                pymysql.connect(
                    host="127.0.0.1",
                    port=with_password.port,
                    user=user,
                    password=password,
                    connect_timeout=5,
                )
        listening = {
            each.laddr.ip
            for each in psutil.Process(entry.pid).net_connections("tcp")
            if each.status == psutil.CONN_LISTEN and each.laddr
        }
        assert listening == {"127.0.0.1"}
        owners = set(psutil.Process(entry.pid).uids())
        assert os.geteuid() != 0 or 0 not in owners, "started by root it is not root's"
        assert os.getpgid(entry.pid) == entry.pid
    finally:
        run_dir(place).stop_process(with_password.name)


def test_the_shipped_settings_are_in_force_and_another_password_than_it_was_made_with_is_told(
    place: Path,
) -> None:
    needs_mariadb()
    server = server_of(place, Account("cellfeed", "one"))
    start_server(server, run_dir(place))
    try:
        connection = pymysql.connect(
            host="127.0.0.1", port=server.port, user="cellfeed", password="one", connect_timeout=5
        )
        with connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT @@sync_binlog, @@innodb_flush_log_at_trx_commit, @@gtid_strict_mode,"
                " @@log_bin, @@collation_server, @@server_id"
            )
            assert cursor.fetchone() == (1, 1, 1, 1, "utf8mb4_bin", 7)
    finally:
        assert run_dir(place).stop_process(server.name), "ended gently"
    other = MariaDbServer(
        server.name,
        server.directory,
        server.port,
        server.server_id,
        server.settings,
        (Account("cellfeed", "another"),),
    )
    with pytest.raises(Unavailable, match="made with another account"):
        start_server(other, run_dir(place))
    assert servers_in(place) == []


def test_a_data_directory_whose_making_was_cut_off_is_made_anew(place: Path) -> None:
    needs_mariadb()
    server = server_of(place, Account("cellfeed", "secret"))
    unfinished = server.directory / "data.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "ibdata1").write_bytes(b"half")
    start_server(server, run_dir(place))
    assert run_dir(place).stop_process(server.name)
    assert not unfinished.exists()


def test_a_port_that_somebody_has_is_told_with_who_has_it(place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = ZooKeeperServer(
            "zk", place / "zk", taken.getsockname()[1], SETTINGS / "zookeeper.cfg"
        )
        with pytest.raises(
            Unavailable, match=rf"zk: port {server.port} cannot be had, process {os.getpid()}"
        ):
            start_server(server, run_dir(place))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts MariaDB as another user")
def test_a_folder_that_mariadbs_user_cannot_get_at_is_told_by_name(place: Path) -> None:
    needs_mariadb()
    (place / "closed").mkdir(mode=0o700)
    server = server_of(place / "closed", Account("cellfeed", "secret"))
    with pytest.raises(
        Unavailable, match=rf"c1-a: {place}/closed is closed to user mysql.*chmod o\+x"
    ):
        server.prepare()


def test_without_the_server_the_package_is_named_and_nothing_is_left_running(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_mariadb()
    monkeypatch.setattr("cellfeed.servers.life._SYSTEM_PROGRAMS", str(place))
    monkeypatch.setenv("PATH", str(place))
    with pytest.raises(
        Unavailable,
        match=(
            r"c1-a: there is no mariadb-install-db on this machine.*mariadb-server.*make services"
        ),
    ):
        start_server(server_of(place, Account("cellfeed", "secret")), run_dir(place))
    with pytest.raises(
        Unavailable, match=r"zk: there is no java on this machine.*default-jre-headless"
    ):
        start_server(
            ZooKeeperServer("zk", place / "zk", free_ports(1)[0], SETTINGS / "zookeeper.cfg"),
            run_dir(place),
        )
    assert servers_in(place) == []


def test_without_kafkas_jars_it_is_told_where_they_come_from(
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


def test_zookeeper_keeps_what_it_holds_through_kill_9(place: Path) -> None:
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


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Somebody else listens on the port."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        yield


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
def test_an_instance_comes_up_without_one_of_its_servers_says_so_and_takes_it_in_when_it_can(
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
def test_the_production_topology_comes_up_whole_and_goes_on_when_a_master_is_killed(
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
        lambda: billed(2 * PUT_AND_READ_CELLS), "billing goes on with the new master", timeout_s=60
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


def run_dir(place: Path) -> RunDir:
    directory = RunDir(place / "run")
    directory.make()
    return directory


def server_of(place: Path, account: Account) -> MariaDbServer:
    return MariaDbServer(
        "c1-a",
        place / "servers" / "c1-a",
        free_ports(1)[0],
        7,
        SETTINGS / "mariadb.cnf",
        (account,),
    )


def test_a_configured_server_has_the_nodes_account_and_the_shipped_settings(place: Path) -> None:
    config = load_config(written(place, one_node(3399)))
    server = configured_server(RunDir(place / "run"), config, "c1-a")
    assert isinstance(server, MariaDbServer)
    assert server.accounts == (Account("cellfeed", "it's a secret"),)
    assert (server.directory, server.settings) == (
        place / "run" / "servers" / "c1-a",
        SETTINGS / "mariadb.cnf",
    )
    share = pool_bytes(1, memory_bytes())
    assert server.options == (f"--innodb-buffer-pool-size={share}",)


def test_settings_of_ones_own_are_not_overridden(place: Path) -> None:
    config = one_node(3399)
    config["servers"][0]["settings"] = "own.cnf"
    server = configured_server(RunDir(place / "run"), load_config(written(place, config)), "c1-a")
    assert isinstance(server, MariaDbServer)
    assert server.settings == place / "run" / "own.cnf"
    assert server.options == ()
