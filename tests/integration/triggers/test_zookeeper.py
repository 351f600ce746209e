"""Coordination on a real ZooKeeper beyond the contract: its layout, credentials, deadlines, and
offsets that are set by hand."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from cellfeed.assembly.datastore import open_datastore
from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator, Session
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.coordination.open import open_coordinator
from cellfeed.bridge.coordination.zookeeper.connection import Connection
from cellfeed.bridge.coordination.zookeeper.coordinator import ZooKeeperCoordinator
from cellfeed.bridge.coordination.zookeeper.url import ZooKeeperAddress, parse_zookeeper_url
from cellfeed.bridge.gateway.groups.slot_claims import why_stopped
from cellfeed.cli import offsets
from cellfeed.cli.status import status
from cellfeed.config.model import Config, DatastoreConfig, GatewayProcessConfig
from cellfeed.instance.config_file import write_config
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import (
    DataDamaged,
    InvalidLocation,
    InvalidRequest,
    NotFound,
    ProtectData,
    Refused,
    StaleWriter,
    Unavailable,
)
from cellfeed.store.histories import NO_HISTORY, History, new_history
from tests.support import local_zookeeper
from tests.support.free_ports import free_port
from tests.support.local_zookeeper import ZooKeeper
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def chroot() -> str:
    return f"/here-{uuid4()}"


@pytest.fixture
def coordinator(
    zookeeper_server: ZooKeeper, datastore: Datastore, chroot: str
) -> Iterator[ZooKeeperCoordinator]:
    with closing(
        ZooKeeperCoordinator(
            parse_zookeeper_url(f"{zookeeper_server.url}{chroot}"), datastore.state
        )
    ) as opened:
        yield opened


@pytest.fixture
def by_hand(zookeeper_server: ZooKeeper) -> Iterator[KazooClient]:
    """An ordinary client, as zkCli is."""
    client = KazooClient(zookeeper_server.hosts)
    client.start(timeout=20)
    yield client
    client.stop()
    client.close()


def test_offsets_are_decimal_text_where_kafkas_tools_look_for_them(
    coordinator: ZooKeeperCoordinator, by_hand: KazooClient, chroot: str
) -> None:
    coordinator.commit_offsets("billing", {("trips", 3): CommittedOffset(4711, 2, "by a consumer")})
    path = f"{chroot}/consumers/billing/offsets/trips/3"
    value, stat = by_hand.get(path)
    assert value == b"4711"
    [read] = coordinator.fetch_offsets("billing").values()
    assert (read.offset, read.leader_epoch, read.metadata, read.committed_at_us) == (
        4711,
        2,
        "by a consumer",
        stat.mtime * 1000,
    )


def test_an_offset_set_by_hand_counts_and_has_no_epoch_of_an_earlier_one(
    coordinator: ZooKeeperCoordinator, by_hand: KazooClient, chroot: str
) -> None:
    coordinator.commit_offsets("billing", {("trips", 3): CommittedOffset(4711, 2, "by a consumer")})
    by_hand.set(f"{chroot}/consumers/billing/offsets/trips/3", b"12\n")
    [read] = coordinator.fetch_offsets("billing").values()
    assert (read.offset, read.leader_epoch, read.metadata) == (12, -1, "")
    by_hand.create(f"{chroot}/consumers/other/offsets/trips/0", b"5", makepath=True)
    assert coordinator.fetch_offsets("other")[("trips", 0)].offset == 5
    assert coordinator.groups() == ["billing", "other"]
    by_hand.set(f"{chroot}/consumers/other/offsets/trips/0", b"five")
    with pytest.raises(DataDamaged, match="is no offset"):
        coordinator.fetch_offsets("other")


def test_an_offset_deleted_by_hand_is_written_again_by_the_next_commit(
    coordinator: ZooKeeperCoordinator, by_hand: KazooClient, chroot: str
) -> None:
    coordinator.commit_offsets(
        "g", {("trips", 3): CommittedOffset(7), ("trips", 4): CommittedOffset(8)}
    )
    before = coordinator.lineage("g")
    by_hand.delete(f"{chroot}/consumers/g", recursive=True)
    coordinator.commit_offsets("g", {("trips", 3): CommittedOffset(9)})
    assert {key: offset.offset for key, offset in coordinator.fetch_offsets("g").items()} == {
        ("trips", 3): 9
    }
    assert coordinator.lineage("g") != before, "nobody could tell that an offset was lost"


def test_what_was_claimed_before_the_group_was_wiped_is_void(
    coordinator: ZooKeeperCoordinator, by_hand: KazooClient, chroot: str
) -> None:
    old = coordinator.join("g", "a", 10)
    claim = coordinator.claim(old, "trips", [0])[0]
    by_hand.delete(f"{chroot}/cellfeed", recursive=True)
    with pytest.raises(StaleWriter):
        coordinator.commit_offsets("g", {("trips", 0): CommittedOffset(1)}, claims=[claim])
    new = coordinator.renew(old)
    assert new.epoch > old.epoch
    assert coordinator.claim(new, "trips", [0])[0].token > claim.token
    with pytest.raises(StaleWriter):
        coordinator.commit_offsets("g", {("trips", 0): CommittedOffset(1)}, claims=[claim])


def test_a_chroot_is_of_one_history_and_of_the_first_restore_of_it(
    zookeeper_server: ZooKeeper, chroot: str, tmp_path: Path
) -> None:
    """Stores of one name: staging's in production's configuration, and one backup that was restored
    twice."""
    first = new_history()
    one, other, foreign = new_history(first), new_history(first), new_history()
    url = f"{zookeeper_server.url}{chroot}"

    def joins(name: str, history: History) -> None:
        with (
            Datastore.open_embedded(tmp_path / name, "trips", 4) as store,
            closing(open_coordinator(url, store.state, lambda: history)) as coordinator,
        ):
            coordinator.join("billing", name, 10)

    def is_refused(name: str, history: History, owner: History) -> None:
        with pytest.raises(ProtectData) as refused:
            joins(name, history)
        assert owner.history_id in str(refused.value)
        assert history.history_id in str(refused.value)
        assert "chroot of its own" in str(refused.value)

    joins("first", NO_HISTORY)  # from before there were histories
    joins("first", first)  # adopts it, once
    joins("first", first)
    is_refused("foreign", foreign, first)
    joins("one", one)
    is_refused("other", other, one)
    is_refused("first", first, one)
    joins("one", one)


def test_offsets_in_the_chroot_of_another_history_are_neither_read_nor_written(
    zookeeper_server: ZooKeeper, chroot: str, datastore: Datastore, by_hand: KazooClient
) -> None:
    """Also without a claim, as the gateway and `cellfeed offsets` do; and by the store that was
    backed up, at a connection on which the chroot was its own."""
    first = new_history()
    restored, foreign = new_history(first), new_history()
    url, trips = f"{zookeeper_server.url}{chroot}", ("trips", 0)

    def uses(history: History) -> Coordinator:
        return open_coordinator(url, datastore.state, lambda: history)

    def is_refused(coordinator: Coordinator, history: History, owner: History) -> None:
        calls = (
            lambda: coordinator.fetch_offsets("g"),
            lambda: coordinator.fetch_offsets("g", [trips]),
            lambda: coordinator.groups(),
            lambda: coordinator.commit_offsets("g", {trips: CommittedOffset(1)}),
            lambda: coordinator.commit_offsets("new", {trips: CommittedOffset(1)}),
            lambda: coordinator.delete_offsets("g", [trips]),
            lambda: coordinator.delete_offsets("g"),
        )
        for call in calls:
            with pytest.raises(ProtectData, match=owner.history_id) as refused:
                call()
            assert history.history_id in str(refused.value)
        assert not by_hand.exists(f"{chroot}/consumers/new")

    with closing(uses(first)) as owner:
        owner.commit_offsets("g", {trips: CommittedOffset(7)})
        with closing(uses(foreign)) as other:
            is_refused(other, foreign, first)
        assert owner.fetch_offsets("g")[trips].offset == 7
        claim = owner.claim(owner.join("t", "a", 10), "trips", [0])[0]
        with closing(uses(restored)) as after:
            assert after.fetch_offsets("g")[trips].offset == 7
            with pytest.raises(ProtectData, match=restored.history_id):
                owner.commit_offsets("t", {trips: CommittedOffset(1)}, claims=[claim])
            is_refused(owner, first, restored)
            assert after.fetch_offsets("t") == {}
            assert after.fetch_offsets("g")[trips].offset == 7


def test_a_store_that_was_restored_twice_in_a_row_has_the_chroot_of_its_origin(
    zookeeper_server: ZooKeeper, chroot: str, datastore: Datastore
) -> None:
    first = new_history()
    between = new_history(first)  # never at work in this chroot
    last = new_history(between)
    url = f"{zookeeper_server.url}{chroot}"

    def uses(history: History) -> Coordinator:
        return open_coordinator(url, datastore.state, lambda: history)

    for history in (first, last):
        with closing(uses(history)) as opened:
            opened.commit_offsets("g", {("trips", 0): CommittedOffset(1)})
    for history in (first, between):
        with (
            closing(uses(history)) as opened,
            pytest.raises(ProtectData, match=last.history_id),
        ):
            opened.fetch_offsets("g")


def test_entries_need_a_claim(coordinator: ZooKeeperCoordinator) -> None:
    with pytest.raises(InvalidRequest, match="under a claim"):
        coordinator.commit_offsets("g", {}, entries={"x": b"1"})


def test_entries_are_in_the_state_table_when_the_commit_returns(
    coordinator: ZooKeeperCoordinator, datastore: Datastore
) -> None:
    claim = coordinator.claim(coordinator.join("g", "a", 10), "trips", [0])[0]
    coordinator.commit_offsets(
        "g", {("trips", 0): CommittedOffset(1)}, claims=[claim], entries={"x": b"1", "y": b"2"}
    )
    coordinator.commit_offsets(
        "g", {("trips", 0): CommittedOffset(2)}, claims=[claim], entries={"x": None}
    )
    assert datastore.state.get("x") is None
    entry = datastore.state.get("y")
    assert entry is not None
    assert entry.value == b"2"


def test_with_credentials_nobody_else_reads_or_writes_and_they_are_shown_nowhere(
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


def test_every_call_ends_in_time_when_zookeeper_hangs_or_is_gone(
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


def test_a_host_that_is_gone_without_a_word_takes_its_share_of_a_session_and_no_more(
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


def test_the_choice_is_by_url(datastore: Datastore) -> None:
    with closing(open_coordinator("store", datastore.state)) as opened:
        assert isinstance(opened, StoreCoordinator)
    for url in ("etcd://127.0.0.1:2379", "", "zookeeper", "127.0.0.1:2181"):
        with pytest.raises(InvalidRequest, match="zookeeper://"):
            open_coordinator(url, datastore.state)


def test_offsets_that_were_lost_are_shown_and_set_by_the_command_line(
    zookeeper_server: ZooKeeper, tmp_path: Path, chroot: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"{zookeeper_server.url}{chroot}"
    config = Config(datastore=DatastoreConfig(shards=2), coordination=url)
    write_config(config, tmp_path / "config.yaml")
    with open_datastore(config, tmp_path) as datastore:
        datastore.put_cells([(uuid4(), "BASE", 1, {"n": n}) for n in range(20)])
        ends = {str(shard): head.watermark for shard, head in datastore.heads().items()}
        # The group worked while coordination was in the store.
        StoreCoordinator(datastore.state).commit_offsets(
            "billing", {("trips", 0): CommittedOffset(1), ("trips", 1): CommittedOffset(2)}
        )

    def lines(call: Callable[[], None]) -> dict[str, Any]:
        capsys.readouterr()
        call()
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    shown = lines(lambda: offsets.show("billing", run_dir=tmp_path, as_json=True))
    assert shown["offsets"] == {"0": None, "1": None}
    assert shown["kept"] == {"0": 1, "1": 2}
    assert "another memory" in shown["lost_because"]
    assert lines(lambda: offsets.set_offsets("billing", "kept", run_dir=tmp_path, as_json=True))[
        "offsets"
    ] == {"0": 1, "1": 2}
    shown = lines(lambda: offsets.show("billing", run_dir=tmp_path, as_json=True))
    assert (shown["offsets"], shown["lost_because"]) == ({"0": 1, "1": 2}, None)
    assert lines(lambda: offsets.set_offsets("billing", "1:0", run_dir=tmp_path, as_json=True))[
        "offsets"
    ] == {"0": 1, "1": 0}
    assert (
        lines(lambda: offsets.set_offsets("billing", "latest", run_dir=tmp_path, as_json=True))[
            "offsets"
        ]
        == ends
    )
    assert lines(
        lambda: offsets.set_offsets("billing", "earliest", run_dir=tmp_path, as_json=True)
    )["offsets"] == {"0": 0, "1": 0}
    assert lines(lambda: status(tmp_path, True))["coordination_away"] is None
    for wrong in ("1", "x:1", "1:999999", "7:0", "newest"):
        with pytest.raises(InvalidLocation if wrong != "7:0" else NotFound):
            offsets.set_offsets("billing", wrong, run_dir=tmp_path, as_json=True)
    with (
        open_datastore(config, tmp_path) as datastore,
        closing(open_coordinator(url, datastore.state)) as coordinator,
    ):
        coordinator.join("billing", "a", 10)
        with pytest.raises(Refused, match="is at work"):
            offsets.set_offsets("billing", "latest", run_dir=tmp_path, as_json=True)
    write_config(
        Config(
            datastore=DatastoreConfig(shards=2),
            coordination="zookeeper://127.0.0.1:1?timeout_s=0.2",
        ),
        tmp_path / "config.yaml",
    )
    assert "cannot be reached" in lines(lambda: status(tmp_path, True))["coordination_away"]


def test_consumer_groups_that_wait_after_a_rollback_are_shown_and_go_on_by_the_command_line(
    zookeeper_server: ZooKeeper,
    by_hand: KazooClient,
    tmp_path: Path,
    chroot: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"{zookeeper_server.url}{chroot}"
    config = Config(
        datastore=DatastoreConfig(shards=2), coordination=url, gateways=[GatewayProcessConfig()]
    )
    write_config(config, tmp_path / "config.yaml")

    def lines(call: Callable[[], None]) -> dict[str, Any]:
        capsys.readouterr()
        call()
        return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]

    with (
        open_datastore(config, tmp_path) as datastore,
        closing(open_coordinator(url, datastore.state)) as coordinator,
    ):
        assert why_stopped(datastore.state, coordinator) is None
        coordinator.join("__gateways", "gateway", 10)
    assert lines(lambda: status(tmp_path, True))["consumers_wait"] is None
    with pytest.raises(Refused, match="do not wait"):
        offsets.accept(run_dir=tmp_path, as_json=True)
    by_hand.delete(f"{chroot}/cellfeed", recursive=True)
    waits = lines(lambda: status(tmp_path, True))["consumers_wait"]
    assert "it came back empty" in waits
    assert "cellfeed offsets accept" in waits
    assert lines(
        lambda: offsets.accept(reason="it was restored", run_dir=tmp_path, as_json=True)
    ) == {"accepted": waits}
    assert lines(lambda: status(tmp_path, True))["consumers_wait"] is None


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
