"""A follower on another machine and a worker: the wake-ups between them, and each thing that can go
wrong with their connection. The other machine is this one, under another identity."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from cellfeed.store.datastore import Datastore
from cellfeed.store.http import wakeup_links
from cellfeed.store.http.calls.access import Access
from cellfeed.store.http.received_wakeups import RECEIVED
from cellfeed.store.http.server import wakeups as server_side
from cellfeed.store.http.server.listening import HttpListener
from cellfeed.store.http.wakeup_links import WakeupLinks
from cellfeed.store.security.certificates import TlsFiles
from cellfeed.store.security.rights import Acl
from cellfeed.store.security.tokens import create_token, revoke_token
from cellfeed.store.security.users import allow
from cellfeed.store.wakeups.addresses import PREFIX, Entry, FollowerAddress, WorkerAddress
from cellfeed.store.wakeups.datagrams import NEW_CELLS, Listener, poke_about, send_hint
from tests.support.certificates import Certificates, make_certificates
from tests.support.tcp_proxy import Direction, TcpProxy
from tests.support.waiting import wait_until
from tests.support.worker_thread import worker_thread

pytestmark = pytest.mark.integration


class Hosts:
    """A datastore, opened twice: by a worker here, and by a follower elsewhere."""

    def __init__(self, directory: Path, files: Certificates, stack: ExitStack) -> None:
        self.files, self.stack, self.directory = files, stack, directory
        self.datastore = stack.enter_context(Datastore.open_embedded(directory, shards=4))
        self.reader = stack.enter_context(Datastore.open_embedded(directory, shards=4))
        allow(self.datastore.state, Acl("follower", "datastore", "trips", "read"))
        self.token = create_token(self.datastore.state, "follower", 600.0)
        self.token_file = directory / "token"
        self.token_file.write_text(self.token)
        self.listener = Listener(self.reader.state, "elsewhere")
        stack.callback(self.listener.close)

    @contextmanager
    def worker(self, advertised: str = "127.0.0.1") -> Iterator[str]:
        tls = TlsFiles(self.files.certificate, self.files.key)
        with worker_thread(
            self.datastore,
            listener=HttpListener(authentication=True, tls=tls),
            advertised=advertised,
        ) as url:
            yield url.replace("http:", "https:")

    @contextmanager
    def worker_behind_a_proxy(self) -> Iterator[TcpProxy]:
        with TcpProxy(0) as proxy, self.worker(f"127.0.0.1:{proxy.port}") as url:
            proxy.target_port = int(url.rpartition(":")[2])
            yield proxy

    def links(self, access: Access | None = None, history: str | None = None) -> WakeupLinks:
        history = self.reader.history_id if history is None else history
        access = access or Access({"ssl_ca": self.files.ca, "token_file": self.token_file})
        return self.stack.enter_context(WakeupLinks(self.reader.state, "trips", history, access))

    def put_and_woken(self, wait_s: float = 5.0) -> bool:
        """Whether the follower is woken by one put."""
        self.listener.wait(0)
        self.datastore.put_cell(uuid4(), "BASE", 1, {})
        return self.listener.wait(wait_s)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> Hosts:
    """No datagram goes between the two: the follower's entry is that of another machine, and the
    worker's that of a third one."""
    for module in (wakeup_links, server_side):
        for name in ("LOOK_S", "PAUSE_FIRST_S", "RENEW_S"):
            monkeypatch.setattr(module, name, 0.05, raising=False)
    monkeypatch.setattr("cellfeed.store.wakeups.datagrams.here", lambda: "follower's")
    monkeypatch.setattr(server_side, "here", lambda: "worker's")
    files = make_certificates(tmp_path / "tls")
    return Hosts(tmp_path / "store", files, stack)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connected(count: int = 1) -> None:
    wait_until(lambda: RECEIVED.workers == count, f"{count} connections are made")


def failed(since: int) -> None:
    wait_until(lambda: RECEIVED.failures > since, "a connection fails")


def test_a_follower_on_another_host_is_woken_by_a_commit(hosts: Hosts) -> None:
    assert not hosts.put_and_woken(0.2)
    with hosts.worker():
        hosts.links()
        connected()
        assert hosts.put_and_woken()
        passed_over = RECEIVED.passed_over
        hosts.listener.shows = lambda _: 1_000
        assert not hosts.put_and_woken(0.3)
        assert RECEIVED.passed_over > passed_over
        hosts.datastore.trim(0, 0)  # nothing that heads say: it wakes in any case
        assert hosts.listener.wait(5)
    connected(0)


def relays(datastore: Datastore) -> list[FollowerAddress]:
    return [
        msgspec.json.decode(entry.value, type=FollowerAddress)
        for entry in datastore.state.list(f"{PREFIX}relay-")
    ]


def worker_entries(datastore: Datastore) -> list[WorkerAddress]:
    return [
        msgspec.json.decode(entry.value, type=WorkerAddress)
        for entry in datastore.state.list(f"{PREFIX}worker-")
    ]


def test_a_program_that_writes_in_process_wakes_followers_on_other_hosts(hosts: Hosts) -> None:
    """By a worker of its machine, which passes its datagrams on."""
    with hosts.worker():
        hosts.links()
        connected()
        wait_until(lambda: bool(relays(hosts.datastore)), "the worker listens to its machine")
        [relay] = relays(hosts.datastore)
        hosts.listener.wait(0)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            send_hint(sock, NEW_CELLS, (relay.host, relay.port))
            assert hosts.listener.wait(5)
            assert not hosts.listener.pokes
            send_hint(sock, poke_about("pause"), (relay.host, relay.port))
            wait_until(
                lambda: (
                    (hosts.listener.wait(0.05) or poke_about("pause") in hosts.listener.pokes)
                    and poke_about("pause") in hosts.listener.pokes
                ),
                "the subject arrives",
            )
    assert not relays(hosts.datastore)
    assert not worker_entries(hosts.datastore)


def test_a_connection_that_is_cut_is_made_again_and_looks_at_once(hosts: Hosts) -> None:
    with hosts.worker_behind_a_proxy() as proxy:
        hosts.links()
        connected()
        failures, proxied = RECEIVED.failures, proxy.connections
        hosts.listener.wait(0)
        assert proxy.down() == 1
        failed(failures)
        hosts.datastore.put_cell(uuid4(), "BASE", 1, {})
        assert not hosts.listener.wait(0.1)
        proxy.up()
        assert hosts.listener.wait(10)  # the first line of a connection has it look
        assert proxy.connections > proxied
        assert hosts.put_and_woken()


def test_a_silent_connection_is_given_up_and_no_put_waits_for_it(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half open: the peer is gone, and no packet says so."""
    monkeypatch.setattr(wakeup_links, "SILENT_S", 0.5)
    monkeypatch.setattr(server_side, "HEARTBEAT_S", 0.1)
    with hosts.worker_behind_a_proxy() as proxy:
        hosts.links()
        connected()
        failures = RECEIVED.failures
        proxy.stall()
        for _ in range(50):
            hosts.datastore.put_cell(uuid4(), "BASE", 1, {})
        failed(failures)
        assert proxy.held[Direction.TO_CLIENT] > 0
        proxy.resume()
        connected()
        assert hosts.put_and_woken()


def test_a_worker_that_starts_again_is_connected_to_by_its_new_identity(hosts: Hosts) -> None:
    hosts.links()
    seen = set()
    for _ in range(2):
        with hosts.worker():
            connected()
            assert hosts.put_and_woken()
            seen |= {each.worker for each in worker_entries(hosts.datastore)}
        connected(0)
    assert len(seen) == 2


def test_another_worker_at_the_address_is_not_taken_for_the_one_meant(
    hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    """The old one's entry stays, as that of a worker that was killed."""
    with hosts.worker() as url:
        entry = WorkerAddress(url, "of-the-dead", "worker's", 1 << 62)
        Entry(hosts.datastore.state, "worker-of-the-dead").write(entry)
        hosts.links()
        wait_until(lambda: "another worker was meant" in caplog.text, "it is refused")
        connected(1)  # to the living one
    Entry(hosts.datastore.state, "worker-of-the-dead").remove()


def test_a_worker_of_another_datastore_at_the_address_is_refused(
    hosts: Hosts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with hosts.worker():
        hosts.links(history="of-another-store")
        wait_until(lambda: "of-another-store" in caplog.text, "the worker refuses it")
        assert RECEIVED.workers == 0
        assert not hosts.put_and_woken(0.2)


def test_a_follower_without_rights_is_refused_and_one_whose_token_is_revoked_is_cut_off(
    hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = create_token(hosts.datastore.state, "stranger", 600.0)
    with hosts.worker():
        files = Access({"ssl_ca": hosts.files.ca, "token": stranger})
        with WakeupLinks(hosts.reader.state, "trips", "", files):
            wait_until(lambda: "stranger" in caplog.text, "it is refused")
            assert RECEIVED.workers == 0
        hosts.links()
        connected()
        revoke_token(hosts.datastore.state, hosts.token.split("_")[1])
        connected(0)
        hosts.token_file.write_text(create_token(hosts.datastore.state, "follower", 600.0))
        connected()
        assert hosts.put_and_woken()


def test_a_certificate_of_another_authority_is_refused_until_the_file_is_replaced(
    hosts: Hosts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = make_certificates(tmp_path / "other")
    trusted = tmp_path / "trusted.pem"
    shutil.copy(other.ca, trusted)
    with hosts.worker():
        hosts.links(Access({"ssl_ca": trusted, "token_file": hosts.token_file}))
        wait_until(lambda: "certificate verify failed" in caplog.text, "it is refused")
        shutil.copy(hosts.files.ca, trusted)
        connected()
        assert hosts.put_and_woken()


def test_plain_http_beyond_loopback_is_never_connected_to(
    hosts: Hosts, caplog: pytest.LogCaptureFixture
) -> None:
    entry = WorkerAddress("http://192.0.2.1:7420", "w", "worker's", 1 << 62)
    Entry(hosts.datastore.state, "worker-w").write(entry)
    hosts.links(Access({}))
    wait_until(lambda: "over https only" in caplog.text, "it is refused")


def test_a_slow_reader_costs_one_bounded_line_and_no_put(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[server_side.WakeupRoute] = []

    class Recorded(server_side.WakeupRoute):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr("cellfeed.store.http.server.app.WakeupRoute", Recorded)
    with hosts.worker_behind_a_proxy() as proxy:
        hosts.links()
        connected()
        [route] = made
        proxy.stall()
        for _ in range(300):
            hosts.datastore.put_cells([(uuid4(), "BASE", 1, {}) for _ in range(4)])
        [follower] = route._followers
        assert len(follower.waiting.heads) <= 4
        assert route.metrics.sent + route.metrics.merged > 0
        proxy.resume()
        assert hosts.listener.wait(5)


def test_a_hundred_followers_are_woken_and_one_too_many_is_refused(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_side, "FOLLOWERS_MAX", 100)
    with hosts.worker():
        for _ in range(100):
            hosts.links()
        connected(100)
        hints = RECEIVED.hints
        assert hosts.put_and_woken(20)
        wait_until(lambda: RECEIVED.hints >= hints + 100, "all of them are woken")
        hosts.links()
        wait_until(lambda: "100 followers are woken" in caplog.text, "one more is refused")
        assert RECEIVED.workers == 100
