"""The findings of the doctor about hosts, disks, files, certificates and answers."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from cellfeed.bridge.export.declaration import Export
from cellfeed.config.gateway import GatewayListenerConfig, GatewayProcessConfig
from cellfeed.config.http import RegistryConfig, TlsConfig
from cellfeed.config.model import (
    BackupsConfig,
    ClusterConfig,
    Config,
    DatastoreConfig,
    NodeConfig,
    NodeTls,
    WarehouseConfig,
    WorkerConfig,
)
from cellfeed.doctor import examination
from cellfeed.doctor.certificates import ends, examine_certificates, fits
from cellfeed.doctor.disks import (
    Mount,
    examine_disks,
    kept,
    measured_sync_s,
    mount_of,
    room,
    sync_time,
)
from cellfeed.doctor.examination import examine
from cellfeed.doctor.files import configuration, examine_files, folder_of_data, key
from cellfeed.doctor.findings import Finding, Instance, Level
from cellfeed.doctor.machine import FILES_MIN, clock, clock_is_kept, examine_machine, open_files
from cellfeed.doctor.progress import connection, examine_progress, readiness
from cellfeed.doctor.servers import ensemble
from cellfeed.run_dir import RunDir
from cellfeed.status.certificates import end_s
from cellfeed.status.instance_status import InstanceStatus
from cellfeed.store.errors import DataDamaged
from tests.support.certificates import Certificates, make_certificates

GIB = 1 << 30
NOBODY = InstanceStatus([], [])


def instance(directory: Path, config: Config | None = None) -> Instance:
    run_dir = RunDir(directory / "run")
    run_dir.make()
    run_dir.config.touch(mode=0o600)
    return Instance(run_dir, config or Config(), NOBODY)


def levels(findings: Iterator[Finding]) -> list[str]:
    return [str(each.level) for each in findings]


# --- host -----------------------------------------------------------------------------------------


def test_a_clock_that_nobody_keeps_is_a_problem_where_hosts_must_agree() -> None:
    assert clock(kept=True, alone=False).level is Level.WELL
    assert clock(kept=False, alone=True).level is Level.ADVICE
    assert clock(kept=False, alone=False).level is Level.PROBLEM
    assert clock(kept=None, alone=True).level is Level.UNKNOWN
    assert clock_is_kept() in (True, False, None)


def test_a_hard_limit_below_a_gateways_connections_is_a_problem() -> None:
    assert open_files(FILES_MIN).level is Level.WELL
    assert open_files(resource.RLIM_INFINITY).level is Level.WELL
    assert open_files(FILES_MIN - 1).level is Level.PROBLEM


def test_the_extras_of_the_configuration_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cellfeed.doctor import machine

    config = Config(
        coordination="zookeeper://127.0.0.1:2181",
        warehouses=[WarehouseConfig()],
        backups=[BackupsConfig("s3://bucket/b")],
    )
    absent = {"kazoo", "boto3"}
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name in absent else object())
    found = {each.subject: each for each in examine_machine(instance(tmp_path, config))}
    assert found["zookeeper"].remedy == "pip install 'cellfeed[zookeeper]'"
    assert (found["s3"].level, "boto3" in found["s3"].found) == (Level.PROBLEM, True)
    assert found["warehouse"].level is found["export"].level is Level.WELL
    assert found["host"].area == "clock"
    assert set(found) == {"host", "open files", "server", "zookeeper", "warehouse", "export", "s3"}


# --- disks ----------------------------------------------------------------------------------------


def test_the_nearest_mount_above_a_folder_is_its_own(tmp_path: Path) -> None:
    root, near = Mount("ext4", frozenset(), "/"), Mount("xfs", frozenset(), str(tmp_path))
    aside = Mount("tmpfs", frozenset(), f"{tmp_path}-aside")
    assert mount_of(tmp_path / "a", [near, root, aside]) is near
    again = Mount("nfs", frozenset(), str(tmp_path))
    assert mount_of(tmp_path, [root, near, again]) is again
    assert mount_of(tmp_path, []).kind == "unknown"
    assert mount_of(Path(f"{tmp_path}-beside"), [root, near]) is root


@pytest.mark.parametrize(
    ("mount", "embedded", "level"),
    [
        (Mount("ext4", frozenset({"rw"}), "/"), True, Level.WELL),
        (Mount("tmpfs", frozenset({"rw"}), "/run"), False, Level.PROBLEM),
        (Mount("nfs4", frozenset({"rw"}), "/srv"), True, Level.PROBLEM),
        (Mount("nfs4", frozenset({"rw"}), "/srv"), False, Level.WELL),
        (Mount("ext4", frozenset({"rw", "nobarrier"}), "/srv"), False, Level.PROBLEM),
    ],
)
def test_file_systems_that_lose_synced_bytes_are_problems(
    mount: Mount, embedded: bool, level: Level
) -> None:
    assert kept("store", mount, embedded=embedded).level is level


@pytest.mark.parametrize(
    ("free", "total", "level"),
    [
        (15 * GIB, 100 * GIB, Level.WELL),
        (14 * GIB, 100 * GIB, Level.ADVICE),
        (5 * GIB, 100 * GIB, Level.ADVICE),
        (4 * GIB, 100 * GIB, Level.PROBLEM),
        (100 * GIB, 10_000 * GIB, Level.WELL),
        (0, 0, Level.PROBLEM),
    ],
)
def test_a_disk_that_is_nearly_full_is_a_problem(free: int, total: int, level: Level) -> None:
    assert room("store", free, total).level is level


def test_a_sync_faster_than_any_disk_and_a_slow_one_are_advised_about(tmp_path: Path) -> None:
    assert sync_time("store", 5e-6).level is Level.ADVICE
    assert "reaches no disk" in sync_time("store", 5e-6).found
    assert sync_time("store", 0.001).level is Level.WELL
    assert sync_time("store", 0.06).level is Level.ADVICE
    assert measured_sync_s(tmp_path) > 0
    assert not list(tmp_path.iterdir())


def test_each_file_system_is_looked_at_once(tmp_path: Path) -> None:
    given = instance(tmp_path)
    given.directory.inside("store").mkdir()
    found = list(examine_disks(given))
    assert {each.area for each in found} == {"disk"}
    assert {each.subject for each in found} == {f"run directory ({given.directory.path})"}


# --- files ----------------------------------------------------------------------------------------


def test_a_configuration_with_passwords_that_others_may_read_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.touch()
    path.chmod(0o644)
    assert configuration(path, has_passwords=False).level is Level.WELL
    assert configuration(path, has_passwords=True).level is Level.PROBLEM
    path.chmod(0o640)
    assert configuration(path, has_passwords=True).level is Level.WELL


@pytest.mark.parametrize(
    "config",
    [
        Config(coordination="zookeeper://u:secret@h:2181/c"),
        Config(exports=[Export("eu", "k:9092", client={"sasl.password": "secret"})]),
        Config(
            datastore=DatastoreConfig(
                clusters=[ClusterConfig("c", [NodeConfig("a", "mysql://root:secret@h:3306")])]
            )
        ),
    ],
    ids=["zookeeper", "kafka", "node"],
)
def test_passwords_are_found_at_every_place_of_a_configuration(
    tmp_path: Path, config: Config
) -> None:
    given = instance(tmp_path, config)
    given.directory.config.chmod(0o604)
    first = next(examine_files(given))
    assert first.level is Level.PROBLEM
    assert "secret" not in f"{first}"


def test_files_that_others_may_write_or_this_account_may_not_are_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "cells").touch(mode=0o644)
    assert levels(folder_of_data("store", tmp_path)) == ["well"]
    (tmp_path / "cells").chmod(0o646)
    [found] = folder_of_data("store", tmp_path)
    assert (found.level, "cells" in found.found) == (Level.PROBLEM, True)
    (tmp_path / "cells").chmod(0o644)
    monkeypatch.setattr(os, "access", lambda path, _: path == tmp_path)
    [found] = folder_of_data("store", tmp_path)
    assert "cannot write" in found.found
    assert levels(folder_of_data("store", tmp_path / "nothing")) == []


def test_a_private_key_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "server.key"
    assert "no key there" in key("gateway", path).found
    path.touch()
    path.chmod(0o644)
    assert key("gateway", path).level is Level.PROBLEM
    path.chmod(0o640)
    assert key("gateway", path).level is Level.WELL


# --- certificates ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def listener(files: Certificates) -> GatewayListenerConfig:
    return GatewayListenerConfig(
        "out", security="tls", certificate=files.certificate, key=files.key, client_ca=files.ca
    )


def test_a_certificate_that_ends_soon_is_advised_about_and_an_ended_one_is_a_problem(
    files: Certificates,
) -> None:
    assert ends("c", 14 * 86_400).level is Level.WELL
    assert ends("c", 14 * 86_400 - 1).level is Level.ADVICE
    assert ends("c", 0).level is Level.PROBLEM


def test_every_certificate_of_the_configuration_is_looked_at(
    files: Certificates, tmp_path: Path
) -> None:
    tls = TlsConfig(files.certificate, files.key)
    node = NodeConfig("a", "mysql://h", tls=NodeTls(ca=files.ca, certificate=str(tmp_path / "no")))
    config = Config(
        datastore=DatastoreConfig(clusters=[ClusterConfig("eu", [node])]),
        gateways=[
            GatewayProcessConfig(listeners=[listener(files)], registry=RegistryConfig(tls=tls))
        ],
        workers=[WorkerConfig(tls=tls)],
    )
    found = list(examine_certificates(instance(tmp_path, config)))
    assert [(each.subject.partition(": ")[0], str(each.level)) for each in found] == [
        ("gateway, listener out", "advice"),
        ("gateway, listener out", "advice"),
        ("gateway, registry", "advice"),
        ("worker", "advice"),
        ("eu node a", "problem"),
        ("eu node a", "advice"),
    ]


def test_a_chain_ends_with_its_first_certificate_and_authorities_with_the_last(
    files: Certificates, tmp_path: Path
) -> None:
    later = make_certificates(tmp_path / "later", days=90)
    chain = tmp_path / "chain.pem"
    chain.write_text(Path(later.certificate).read_text() + Path(files.ca).read_text())
    first = end_s(Path(files.ca), is_chain=True)
    assert end_s(chain, is_chain=True) == first
    last = end_s(chain, is_chain=False)
    assert first is not None
    assert last is not None
    assert last > first
    assert end_s(Path(later.key), is_chain=True) is None


def test_files_that_make_no_listener_are_a_problem(files: Certificates) -> None:
    wrong = GatewayListenerConfig(
        "out", security="tls", certificate=files.certificate, key=files.client_key
    )
    [found] = fits("gateway", wrong)
    assert found.level is Level.PROBLEM


# --- answers --------------------------------------------------------------------------------------


class _Worker(BaseHTTPRequestHandler):
    answer: ClassVar[dict[str, object]] = {"ready": True}

    def do_GET(self) -> None:
        assert self.path == "/health/ready"
        self.send_response(200 if self.answer["ready"] else 503)
        self.end_headers()
        self.wfile.write(json.dumps(self.answer).encode())

    def log_message(self, *_: object) -> None:
        pass


def test_a_worker_says_whether_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    with HTTPServer(("127.0.0.1", 0), _Worker) as server:
        port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            assert readiness("worker", "127.0.0.1", port).level is Level.WELL
            unready = {"ready": False, "reason": "the writer is dead"}
            monkeypatch.setattr(_Worker, "answer", unready)
            found = readiness("worker", "127.0.0.1", port)
            assert (found.level, "the writer is dead" in found.found) == (Level.PROBLEM, True)
        finally:
            server.shutdown()
            thread.join()
    assert readiness("worker", "127.0.0.1", port).level is Level.PROBLEM


def test_a_port_that_takes_no_connection_is_a_problem() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert connection("gateway", "127.0.0.1", port).level is Level.WELL
    assert connection("gateway", "127.0.0.1", port).level is Level.PROBLEM


# --- all of it ------------------------------------------------------------------------------------


def test_a_zookeeper_alone_is_advised_about_and_one_that_is_away_is_a_problem() -> None:
    assert ensemble("zookeeper://u:pw@a:1,b:2,c:3/x", None).level is Level.WELL
    alone = ensemble("zookeeper://u:pw@a:1,b:2/x", None)
    assert (alone.level, "pw" in f"{alone}") == (Level.ADVICE, False)
    assert ensemble("zookeeper://a:1", "no answer").level is Level.PROBLEM


def test_an_instance_of_which_nothing_runs_is_advised_about(tmp_path: Path) -> None:
    found = list(examine_progress(instance(tmp_path)))
    assert [str(each.level) for each in found] == ["advice", "well"]
    assert found[0].remedy == "cellfeed up"


def test_a_part_that_cannot_be_looked_at_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = instance(tmp_path)

    def refused(*_: object) -> InstanceStatus:
        raise DataDamaged("the file is no database")

    def unreadable(_: Instance) -> Iterator[Finding]:
        yield Finding("first", "of it", Level.WELL, "looked at")
        raise PermissionError(13, "not yours")

    monkeypatch.setattr(examination, "read_status", refused)
    parts = dict(examination._PARTS) | {"disk": unreadable}
    monkeypatch.setattr(examination, "_PARTS", tuple(parts.items()))
    found = list(examine(given.directory, given.config))
    unknown = [each for each in found if each.level is Level.UNKNOWN]
    assert "disk" in {each.area for each in unknown}
    assert "first" in {each.area for each in found}
    [storage] = [each for each in found if each.subject == "storage datastore"]
    assert "the file is no database" in storage.found


def test_listeners_with_tls_are_looked_at_with_their_keys(
    tmp_path: Path, files: Certificates
) -> None:
    config = Config(gateways=[GatewayProcessConfig(listeners=[listener(files)])])
    given = instance(tmp_path, config)
    areas = [each.area for each in examine(given.directory, config)]
    assert areas.count("certificates") == 2
    assert any("listener out" in each.subject for each in examine_files(given))
