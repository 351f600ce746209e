"""Secrets of an instance: MySQL's password, ZooKeeper's, and those of Kafka clients, planted in
files and in the environment. Nothing that the instance writes or says, and no list of processes,
shows one."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cellfeed.run_dir import RunDir
from tests.support import local_mysql
from tests.support.certificates import make_certificates
from tests.support.cli_instance import cellfeed
from tests.support.free_ports import free_port
from tests.support.local_mysql import MySql

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("mysql-managed")]

OF_MYSQL, OF_ZOOKEEPER = "planted-in-mysql", "planted-in-zookeeper"
OF_EXPORT, OF_LOADER = "planted-in-export", "planted-in-loader"
PLANTED = (OF_MYSQL, OF_ZOOKEEPER, OF_EXPORT, OF_LOADER)
SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u"}


@pytest.fixture
def server(tmp_path: Path) -> MySql:
    if reason := local_mysql.why_not():
        pytest.skip(reason)
    certificates = make_certificates(tmp_path / "certificates")
    options = (
        *local_mysql.WITHOUT_TLS,
        f"--ssl-ca={certificates.ca}",
        f"--ssl-cert={certificates.certificate}",
        f"--ssl-key={certificates.key}",
    )
    return local_mysql.new_mysql(tmp_path / "mysql", options, user="cellfeed")


def configuration(tmp_path: Path, server: MySql, zookeeper: str) -> Path:
    """References in every place that takes a secret; the Kafka clusters are away."""
    for name, secret in (("mysql", OF_MYSQL), ("loader", OF_LOADER)):
        (tmp_path / f"{name}.secret").write_text(secret + "\n")
    away = f"127.0.0.1:{free_port()}"
    config = {
        "datastore": {
            "shards": 2,
            "clusters": [
                {
                    "name": "c1",
                    "managed": True,
                    "nodes": [
                        {
                            "name": "endpoint",
                            "url": f"mysql://cellfeed:${{file:{tmp_path}/mysql.secret}}"
                            f"@127.0.0.1:{server.port}",
                            "tls": {"ca": str(tmp_path / "certificates/ca.pem")},
                        }
                    ],
                }
            ],
        },
        "coordination": zookeeper.replace("://", "://u:${env:PLANTED_ZOOKEEPER}@"),
        "workers": [{"port": 0}],
        "gateways": [{"port": 0}],
        "exports": [
            {
                "name": "out",
                "bootstrap": away,
                "client": {**SASL, "sasl.password": "${env:PLANTED_EXPORT}"},
            }
        ],
        "warehouses": [
            {
                "bootstrap": away,
                "client": {**SASL, "sasl.password": f"${{file:{tmp_path}/loader.secret}}"},
            }
        ],
    }
    path = tmp_path / "cellfeed.yaml"
    path.write_text(json.dumps(config))
    return path


def written_in(directory: Path) -> dict[str, str]:
    found = {}
    for path in directory.rglob("*"):
        if path.is_file():
            with suppress(FileNotFoundError):  # it was removed meanwhile
                found[str(path)] = path.read_bytes().decode(errors="replace")
    return found


def arguments_of_processes() -> list[str]:
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.NoSuchProcess):  # it has ended
            found.append(" ".join(each.cmdline()))
    return found


def test_nothing_of_an_instance_shows_a_planted_secret(
    tmp_path: Path, server: MySql, zookeeper_server: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_ZOOKEEPER", OF_ZOOKEEPER)
    monkeypatch.setenv("PLANTED_EXPORT", OF_EXPORT)
    url = f"{zookeeper_server.url}/planted"  # type: ignore[attr-defined]
    config = configuration(tmp_path, server, url)
    run_dir = tmp_path / "run"
    said: list[str] = []

    def run(*words: str) -> int:
        done = cellfeed(*words)
        said.append(done.stdout + done.stderr)
        return done.returncode

    try:
        server.start()
        server.sql(f"ALTER USER 'cellfeed'@'%' IDENTIFIED BY '{OF_MYSQL}' REQUIRE SSL")
        assert run("cluster", "init", "--config", str(config)) == 0, said
        assert run("up", "--detach", "--config", str(config), "--run-dir", str(run_dir)) == 0, said
        for words in (("status",), ("status", "--json"), ("config", "show"), ("export", "list")):
            run(*words, "--run-dir", str(run_dir))
        kinds = {entry.kind for entry in RunDir(run_dir).processes()}
        assert kinds >= {"worker", "gateway", "export", "warehouse"}
        listed = arguments_of_processes()
        running = written_in(run_dir)
        # Errors: the password is wrong now, and a reference leads nowhere.
        server.sql("ALTER USER 'cellfeed'@'%' IDENTIFIED BY 'another'")
        assert run("cluster", "status", "--config", str(config)) != 0
        monkeypatch.delenv("PLANTED_EXPORT")
        assert run("config", "check", str(config)) == 2
        assert "the environment variable 'PLANTED_EXPORT' is not set" in said[-1]
    finally:
        monkeypatch.setenv("PLANTED_EXPORT", OF_EXPORT)
        run("down", "--run-dir", str(run_dir))
        server.kill()
    ended = {f"{path}, ended": text for path, text in written_in(run_dir).items()}
    texts = (
        running
        | ended
        | {
            "ps": "\n".join(listed),
            "output of commands": "\n".join(said),
            "the log of MySQL": (server.directory / "server.log").read_text(),
        }
    )
    assert any(path.endswith("processes.json") for path in texts)
    assert str(run_dir) in texts["ps"], "the instance's processes were listed"
    assert [(at, each) for at, text in texts.items() for each in PLANTED if each in text] == []
