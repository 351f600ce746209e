"""MariaDB as a process of an instance: made, started, killed, refused."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from uuid import uuid5

import psutil
import pymysql
import pytest

from cellfeed.instance.config_file import load_config
from cellfeed.run_dir import RunDir
from cellfeed.servers.configured import configured_server
from cellfeed.servers.life import start_server
from cellfeed.servers.mariadb import Account, MariaDbServer
from cellfeed.servers.memory import memory_bytes, pool_bytes
from cellfeed.servers.zookeeper import ZooKeeperServer
from cellfeed.store.errors import Unavailable
from tests.support.cli_instance import accepts, cellfeed, kill, processes
from tests.support.free_ports import free_ports
from tests.support.own_servers import (
    NAMESPACE,
    SETTINGS,
    needs_mariadb,
    one_node,
    servers_in,
    up,
    written,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("local-servers")]


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


def test_the_server_listens_on_loopback_only_and_asks_for_the_password_over_tcp(
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


def test_the_shipped_settings_are_in_force_and_a_changed_password_is_reported(
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


def test_a_data_directory_whose_making_was_cut_off_is_made_again(place: Path) -> None:
    needs_mariadb()
    server = server_of(place, Account("cellfeed", "secret"))
    unfinished = server.directory / "data.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "ibdata1").write_bytes(b"half")
    start_server(server, run_dir(place))
    assert run_dir(place).stop_process(server.name)
    assert not unfinished.exists()


def test_a_port_in_use_is_reported_with_its_owner(place: Path) -> None:
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
def test_a_folder_that_mariadbs_user_cannot_get_at_is_reported_by_name(place: Path) -> None:
    needs_mariadb()
    (place / "closed").mkdir(mode=0o700)
    server = server_of(place / "closed", Account("cellfeed", "secret"))
    with pytest.raises(
        Unavailable, match=rf"c1-a: {place}/closed is closed to user mysql.*chmod o\+x"
    ):
        server.prepare()


def test_without_the_server_the_package_is_named_and_no_process_left_running(
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
