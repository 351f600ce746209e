"""Credentials, TLS and deadlines of connections to a real ZooKeeper."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator, Session
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.coordination.zookeeper.connection import Connection
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress, parse_zookeeper_url
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Refused, Unavailable
from tests.support import local_zookeeper
from tests.support.free_ports import free_port
from tests.support.local_zookeeper import ZooKeeper
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


def test_only_clients_with_credentials_read_or_write_znodes_and_no_output_shows_the_credentials(
    zookeeper_server: ZooKeeper, datastore: Datastore, chroot: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(1)
    url = f"zookeeper://cell:sec%2Fret@{zookeeper_server.hosts}{chroot}"
    with closing(open_coordinator(url, datastore.state)) as ours:
        ours.commit_offsets("g", {("trips", 0): CommittedOffset(1)})
        with (
            closing(
                open_coordinator(
                    f"zookeeper://cell:wrong@{zookeeper_server.hosts}{chroot}", datastore.state
                )
            ) as theirs,
            pytest.raises(Refused, match="does not allow cell to use") as refused,
        ):
            theirs.fetch_offsets("g")
        with (
            closing(
                open_coordinator(f"{zookeeper_server.url}{chroot}", datastore.state)
            ) as anybody,
            pytest.raises(Refused),
        ):
            anybody.commit_offsets("g", {("trips", 0): CommittedOffset(2)})
        assert ours.fetch_offsets("g")[("trips", 0)].offset == 1
    assert "sec/ret" not in caplog.text
    assert "wrong" not in f"{caplog.text} {refused.value}"
    assert "sec" not in repr(parse_zookeeper_url(url))


def joined(coordinator: Coordinator) -> Session:
    """Joins as soon as the connection stands, which may take longer than a call."""
    deadline_s = time.monotonic() + 20
    while True:
        try:
            return coordinator.join("g", "a", 5)
        except Unavailable:
            assert time.monotonic() < deadline_s


def test_every_call_ends_in_time_when_zookeeper_hangs_or_has_ended(
    tmp_path: Path, datastore: Datastore
) -> None:
    if reason := local_zookeeper.why_not():
        pytest.skip(reason)
    server = ZooKeeper(tmp_path / "zookeeper")
    server.start()
    try:
        with closing(
            open_coordinator(f"{server.url}?timeout_s=0.5", datastore.state)
        ) as coordinator:
            session = joined(coordinator)
            for fault in (server.pause, server.kill):
                fault()
                for _ in range(3):
                    with pytest.raises(Unavailable):
                        coordinator.renew(session)
                    with pytest.raises(Unavailable):
                        coordinator.commit_offsets("g", {("trips", 0): CommittedOffset(1)})
                    with pytest.raises(Unavailable):
                        coordinator.members("g")
    finally:
        server.resume()
        server.kill()


def test_an_unreachable_host_uses_up_at_most_its_share_of_a_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []

    def gone(_: object, *, timeout: float, **_more: object) -> None:
        waits.append(timeout)
        raise OSError("no answer")

    monkeypatch.setattr("kazoo.handlers.utils.create_tcp_connection", gone)
    with closing(
        Connection(ZooKeeperAddress("127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", timeout_s=0.1), 6.0)
    ):
        wait_until(lambda: len(waits) >= 3, "each host was tried")
    assert set(waits) == {2.0}


def refused_by_tls(url: str) -> str:
    """The output of a process of its own when TLS is refused. kazoo leaves the socket of a
    handshake that failed to the garbage collector, which would warn."""
    code = (
        f"from cellfeed.bridge.coordination.open import open_coordinator\nopen_coordinator({url!r},"
        " None).fetch_offsets('g')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "Unavailable: ZooKeeper at 127.0.0.1" in ended.stderr
    return ended.stderr


def test_with_tls_each_side_verifies_the_others_certificate(
    tmp_path: Path, datastore: Datastore
) -> None:
    if reason := local_zookeeper.why_not() or next(
        (f"no {name} here" for name in ("openssl", "keytool") if shutil.which(name) is None), None
    ):
        pytest.skip(reason)
    if not (jars := sorted(Path("/usr/share/java").glob("netty-*.jar"))):
        pytest.skip(
            "no Netty on this machine (Debian: libnetty-java), which ZooKeeper serves TLS with"
        )
    certificate, key, keys, trusted = (
        str(tmp_path / name) for name in ("certificate.pem", "key.pem", "keys.p12", "trusted.p12")
    )
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    for command in (
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            key,
            "-out",
            certificate,
            "-days",
            "2",
            *subject,
        ],
        [
            "openssl",
            "pkcs12",
            "-export",
            "-in",
            certificate,
            "-inkey",
            key,
            "-out",
            keys,
            "-passout",
            "pass:changeit",
        ],
        [
            "keytool",
            "-importcert",
            "-noprompt",
            "-alias",
            "ca",
            "-file",
            certificate,
            "-keystore",
            trusted,
            "-storetype",
            "PKCS12",
            "-storepass",
            "changeit",
        ],
    ):
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    port = free_port()
    settings = {
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.clientAuth": "need",
        "ssl.keyStore.location": keys,
        "ssl.keyStore.password": "changeit",
        "ssl.trustStore.location": trusted,
        "ssl.trustStore.password": "changeit",
    }
    server = ZooKeeper(
        tmp_path / "zookeeper",
        settings=settings,
        java_options=(f"-Xbootclasspath/a:{':'.join(map(str, jars))}",),
    )
    server.start()
    try:
        ours = f"&ca={certificate}&certificate={certificate}&key={key}"
        with closing(
            open_coordinator(
                f"zookeeper://127.0.0.1:{port}?timeout_s=20&tls=true{ours}", datastore.state
            )
        ) as verified:
            verified.commit_offsets("g", {("trips", 0): CommittedOffset(5)})
            assert verified.fetch_offsets("g")[("trips", 0)].offset == 5
        without_ca = refused_by_tls(
            f"zookeeper://127.0.0.1:{port}?timeout_s=2&tls=true&certificate={certificate}&key={key}"
        )
        assert "CERTIFICATE_VERIFY_FAILED" in without_ca
        assert "CERTIFICATE_VERIFY_FAILED" not in refused_by_tls(
            f"zookeeper://127.0.0.1:{port}?timeout_s=2&tls=true&ca={certificate}"
        )
    finally:
        server.kill()
