"""Peers that nobody knows yet: they count from the first packet on, and keep nobody out."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.gateway import accepting
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.limits import COORDINATION_THREADS, DESCRIPTORS_RESERVED
from cellfeed.bridge.gateway.security import authentication
from cellfeed.bridge.gateway.security.listeners import Listener
from cellfeed.bridge.gateway.server import Gateway
from cellfeed.store.datastore import Datastore
from cellfeed.store.security import open_connections
from cellfeed.store.security.limited_warnings import LimitedWarnings
from tests.support.certificates import Certificates, make_certificates

API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 7, -1)
STRANGERS = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("strangers"))


@pytest.fixture(autouse=True)
def every_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    log = logging.getLogger("cellfeed.gateway")
    monkeypatch.setattr(accepting, "_refusals", LimitedWarnings(log, "refused", 100, 60))
    monkeypatch.setattr("cellfeed.store.security.accepting.TLS_SHUTDOWN_TIMEOUT_S", 0.1)


def with_gateway(
    datastore: Datastore,
    files: Certificates,
    use: Callable[[Gateway], Coroutine[Any, Any, None]],
) -> None:
    """Beside a gateway with a listener that is open, one with TLS, and one with SASL."""
    tls = {"certificate": files.certificate, "key": files.key}
    listeners = (
        Listener(name="open", port=0),
        Listener(name="tls", port=0, security="tls", **tls),  # type: ignore[arg-type]
        Listener(name="sasl", port=0, security="sasl_plaintext", mechanisms=("PLAIN",)),
    )

    async def serve() -> None:
        gateway = Gateway(
            datastore,
            StoreCoordinator(datastore.state),
            GatewayConfig(registry_port=0, listeners=listeners),
        )
        await gateway.start()
        try:
            async with asyncio.timeout(30):
                await use(gateway)
        finally:
            await gateway.stop()

    asyncio.run(serve())


async def silent(gateway: Gateway, listener: str) -> socket.socket:
    """A peer that connects and says nothing."""
    loop, peer = asyncio.get_running_loop(), socket.socket()
    peer.setblocking(False)
    await loop.sock_connect(peer, ("127.0.0.1", gateway.ports[listener]))
    return peer


async def answered(gateway: Gateway, listener: str, files: Certificates) -> bool:
    """Whether an honest client gets its answer."""
    context = ssl.create_default_context(cafile=files.ca) if listener == "tls" else None
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", gateway.ports[listener], ssl=context
    )
    try:
        writer.write(API_VERSIONS)
        [size] = struct.unpack(">i", await reader.readexactly(4))
        await reader.readexactly(size)
    except (OSError, asyncio.IncompleteReadError):
        return False
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    return True


async def is_open(peer: socket.socket) -> bool:
    try:
        return bool(await asyncio.wait_for(asyncio.get_running_loop().sock_recv(peer, 1), 0.05))
    except TimeoutError:
        return True
    except OSError:
        return False


async def counted(gateway: Gateway, number: int) -> None:
    while gateway.connections != number:  # noqa: ASYNC110 (an event would be the gateway's own)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("listener", ["tls", "sasl"])
def test_a_silent_peer_counts_before_it_is_known(
    datastore: Datastore, files: Certificates, listener: str
) -> None:
    async def use(gateway: Gateway) -> None:
        peer = await silent(gateway, listener)
        await counted(gateway, 1)
        peer.close()
        await counted(gateway, 0)

    with_gateway(datastore, files, use)


@pytest.mark.parametrize("limit", ["STRANGERS_MAX", "STRANGERS_PER_ADDRESS_MAX"])
@pytest.mark.parametrize("listener", ["tls", "sasl"])
def test_silent_peers_keep_nobody_out(
    datastore: Datastore,
    files: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    listener: str,
    limit: str,
) -> None:
    monkeypatch.setattr(open_connections, limit, STRANGERS)

    async def use(gateway: Gateway) -> None:
        peers = [await silent(gateway, listener) for _ in range(3 * STRANGERS)]
        await counted(gateway, STRANGERS)
        for each in ("open", "tls"):
            assert await answered(gateway, each, files)
        opened = [await is_open(peer) for peer in peers]
        assert not any(opened[:-STRANGERS]), "the oldest ones made room"
        assert opened[-1], "and one that has just come has its time"
        for peer in peers:
            peer.close()

    with_gateway(datastore, files, use)


def test_strangers_take_no_place_of_connections_that_are_known(
    datastore: Datastore, files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "CONNECTIONS_MAX", 2 * STRANGERS)

    async def use(gateway: Gateway) -> None:
        strangers = [await silent(gateway, "sasl") for _ in range(4 * STRANGERS)]
        await counted(gateway, STRANGERS)
        known = []
        for number in range(STRANGERS):
            known.append(await silent(gateway, "open"))
            await counted(gateway, STRANGERS + number)  # the first one has sent a stranger away
        assert all([await is_open(peer) for peer in known])
        for peer in [*known, *strangers]:
            peer.close()

    with_gateway(datastore, files, use)


def test_a_process_with_few_descriptors_takes_fewer_connections_and_logs_that(
    datastore: Datastore,
    files: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(accepting, "descriptors_max", lambda: DESCRIPTORS_RESERVED + 6)

    async def use(gateway: Gateway) -> None:
        peers = []
        for number in range(6):
            peers.append(await silent(gateway, "open"))
            await counted(gateway, number + 1)
        assert not await answered(gateway, "open", files)
        for peer in peers:
            peer.close()
        await counted(gateway, 0)
        assert await answered(gateway, "open", files)

    with_gateway(datastore, files, use)
    assert "at most 6 connections, not 4000" in caplog.text
    assert "a connection from 127.0.0.1 was refused: 6 are open" in caplog.text


def test_without_a_descriptor_a_listener_rests_and_accepts_again(
    datastore: Datastore,
    files: Certificates,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("cellfeed.store.security.accepting.ACCEPT_PAUSE_S", 0.01)

    async def use(gateway: Gateway) -> None:
        loop = asyncio.get_running_loop()
        accept, failures = loop.sock_accept, [errno.EMFILE, errno.ECONNABORTED, errno.ENFILE]

        async def sometimes(bound: socket.socket) -> Any:
            taken = await accept(bound)
            if failures:
                taken[0].close()
                raise OSError(failures.pop(0), "as the system says it")
            return taken

        monkeypatch.setattr(loop, "sock_accept", sometimes)
        answers = [await answered(gateway, "open", files) for _ in range(5)]
        assert answers.count(False) == 3
        assert answers[-1]
        assert failures == []

    with_gateway(datastore, files, use)
    assert caplog.text.count("no connection can be accepted: [Errno ") == 2


def test_a_handshake_that_fails_is_one_line_and_ends(
    datastore: Datastore, files: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(gateway: Gateway) -> None:
        peer = await silent(gateway, "tls")
        await asyncio.get_running_loop().sock_sendall(peer, b"no TLS at all\r\n" * 4)
        await counted(gateway, 0)
        peer.close()
        assert await answered(gateway, "tls", files)

    with_gateway(datastore, files, use)
    assert caplog.text.count("connection from 127.0.0.1: TLS has failed") == 1


def test_the_port_of_a_host_with_two_addresses_is_the_same_on_both(
    datastore: Datastore, files: Certificates
) -> None:
    async def use() -> None:
        acceptor = accepting.Acceptor(lambda: None)
        await acceptor.bind(Listener(host="localhost", port=0))
        bound = {each.getsockname()[1] for _, _, each in acceptor._bound}
        assert bound == {acceptor.ports["default"]}
        acceptor.stop()
        await acceptor.close()

    asyncio.run(use())


def test_guesses_of_passwords_keep_no_commit_waiting(
    datastore: Datastore, files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = threading.Event()

    def slow(*_: object) -> bool:
        enough.wait(20)
        return False

    monkeypatch.setattr(authentication, "is_password", slow)

    async def use(gateway: Gateway) -> None:
        handshake = struct.pack(">hhih", 17, 1, 1, -1) + b"\x00\x05PLAIN"
        token = b"\0alice\0guess"
        guess = struct.pack(">hhihi", 36, 0, 2, -1, len(token)) + token
        peers = [await silent(gateway, "sasl") for _ in range(2 * COORDINATION_THREADS)]
        for peer in peers:
            for frame in (handshake, guess):
                await asyncio.get_running_loop().sock_sendall(
                    peer, struct.pack(">i", len(frame)) + frame
                )
        await counted(gateway, len(peers))
        await asyncio.sleep(0.1)
        try:
            assert gateway.context is not None
            assert await asyncio.wait_for(gateway.context.in_coordination(len, "ab"), 10) == 2
            assert await asyncio.wait_for(gateway.context.in_thread(len, "ab"), 10) == 2
            assert gateway.connections == len(peers), "they were waiting all the time"
        finally:
            enough.set()
        for peer in peers:
            peer.close()

    with_gateway(datastore, files, use)
