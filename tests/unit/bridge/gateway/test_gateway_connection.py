"""One connection and its limits: a peer that stops half-way, stays silent, leaves answers unread or
claims too much is let go; a peer that waits for an answer is not."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Coroutine
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from kio.index import load_request_schema
from kio.serial._introspect import EntityTupleField, classify_field

from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.gateway import accepting, sending
from cellfeed.bridge.gateway import connection as connection_module
from cellfeed.bridge.gateway.config import GatewayConfig
from cellfeed.bridge.gateway.limits import (
    FRAME_BYTES_MAX,
    LARGE_FRAME_BYTES,
    LARGE_FRAMES_BYTES_MAX,
)
from cellfeed.bridge.gateway.server import Gateway
from cellfeed.bridge.gateway.topics.declared_topics import VirtualTopic
from cellfeed.bridge.gateway.wire import frame_check
from cellfeed.bridge.gateway.wire.frame_check import MalformedFrame, checked_frame
from cellfeed.bridge.gateway.wire.large_frames import LargeFrames, read_frame
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import ProtectData
from tests.support.gateway_samples import ALL_VERSIONS, sample

SOON_S = 0.2
"""Stands for the half minutes and minutes of the limits."""

BEGIN_WITH_AN_ARRAY = [
    (key, version)
    for key, version in ALL_VERSIONS
    for first in fields(load_request_schema(key, version))[:1]
    if isinstance(classify_field(first), EntityTupleField)
    and type(None) not in get_args(first.type)
]
"""Versions whose request begins with an array that has to be there."""

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def with_gateway(
    datastore: Datastore,
    use: Callable[[Gateway], Coroutine[Any, Any, None]],
    topics: tuple[VirtualTopic, ...] = (),
) -> None:
    """Runs ``use`` beside a gateway in the same event loop; all of it has to end within half a
    minute."""

    async def serve() -> None:
        gateway = Gateway(
            datastore,
            StoreCoordinator(datastore.state),
            GatewayConfig(port=0, registry_port=0, topics=topics),
        )
        await gateway.start()
        try:
            async with asyncio.timeout(30):
                await use(gateway)
        finally:
            await asyncio.gather(*map(leave, _opened))
            _opened.clear()
            await gateway.stop()

    asyncio.run(serve())


_opened: list[Peer] = []
"""The connections that a test has opened, closed with it also when it fails."""


async def connect(gateway: Gateway, buffer_bytes: int | None = None) -> Peer:
    """``buffer_bytes``: how much the peer's kernel takes of answers that nobody reads; megabytes,
    without."""
    opened = socket.socket()
    opened.setblocking(False)
    if buffer_bytes is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    await asyncio.get_running_loop().sock_connect(opened, ("127.0.0.1", gateway.port))
    _opened.append(await asyncio.open_connection(sock=opened))
    return _opened[-1]


async def leave(peer: Peer) -> None:
    peer[1].close()
    await asyncio.gather(peer[1].wait_closed(), return_exceptions=True)


def api_versions(correlation_id: int) -> bytes:
    return struct.pack(">ihhih", 10, 18, 0, correlation_id, -1)


def fetch(wait_ms: int) -> bytes:
    """Version 4, of the first partition at its end: waits for a new cell."""
    topics = struct.pack(">ih5siiqi", 1, 5, b"trips", 1, 0, 0, 1 << 20)
    frame = struct.pack(">hhihiiiib", 1, 4, 5, -1, -1, wait_ms, 1, 1 << 20, 0) + topics
    return struct.pack(">i", len(frame)) + frame


async def answered(peer: Peer, correlation_id: int) -> bool:
    peer[1].write(api_versions(correlation_id))
    [size] = struct.unpack(">i", await peer[0].readexactly(4))
    return struct.unpack_from(">i", await peer[0].readexactly(size)) == (correlation_id,)


async def let_go(peer: Peer) -> None:
    """Returns when the gateway has closed the connection."""
    try:
        while await peer[0].read(1 << 16):
            pass
    except ConnectionResetError:
        pass


@pytest.mark.parametrize("half", [b"\x00", b"\x00\x00\x01\x00", api_versions(1)[:-1]])
def test_a_peer_that_stops_half_way_is_disconnected_and_the_others_are_not(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch, half: bytes
) -> None:
    monkeypatch.setattr(connection_module, "FRAME_TIMEOUT_S", SOON_S)

    async def use(gateway: Gateway) -> None:
        steady, stopped = await connect(gateway), await connect(gateway)
        stopped[1].write(half)
        await let_go(stopped)
        assert await answered(steady, 9), "between two frames there is time"
        assert gateway.connections == 1
        await asyncio.gather(leave(steady), leave(stopped))

    with_gateway(datastore, use)


def test_a_silent_peer_is_let_go_but_not_while_it_waits_for_an_answer(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "IDLE_TIMEOUT_S", SOON_S)

    async def use(gateway: Gateway) -> None:
        waiting = await connect(gateway)
        waiting[1].write(fetch(wait_ms=int(SOON_S * 4 * 1000)))
        silent = await connect(gateway)
        await let_go(silent)
        [size] = struct.unpack(">i", await waiting[0].readexactly(4))
        assert struct.unpack_from(">i", await waiting[0].readexactly(size)) == (5,), (
            "the fetch is answered after several idle times"
        )
        await let_go(waiting)
        await asyncio.gather(leave(silent), leave(waiting))

    with_gateway(datastore, use)


def test_a_peer_that_leaves_its_answers_unread_is_let_go(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SEND_TIMEOUT_S", SOON_S)
    monkeypatch.setattr(sending, "_BUFFER_BYTES", 1 << 10)

    async def use(gateway: Gateway) -> None:
        # Connections have their listener's buffers; a kernel's own take thousands of answers.
        for _, _, listener in gateway._acceptor._bound:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        deaf = await connect(gateway, buffer_bytes=4_096)
        deaf[1].transport.pause_reading()  # type: ignore[attr-defined]
        # Requests without end: the answers fill both sockets' buffers, then nobody takes them.
        with pytest.raises(ConnectionError):
            await ask_for_ever(deaf)
        await has_connections(gateway, 0)
        await leave(deaf)

    with_gateway(datastore, use)


def test_a_peer_that_goes_while_its_fetch_waits_is_noticed_at_once(datastore: Datastore) -> None:
    async def use(gateway: Gateway) -> None:
        peer = await connect(gateway)
        peer[1].write(fetch(wait_ms=60_000))
        await asyncio.sleep(0.1)
        assert gateway.connections == 1
        await leave(peer)
        await has_connections(gateway, 0)

    with_gateway(datastore, use)


def test_beyond_the_most_connections_a_new_one_is_closed_and_the_present_ones_continue(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accepting, "CONNECTIONS_MAX", 3)

    async def use(gateway: Gateway) -> None:
        inside = []
        for _ in range(3):
            inside.append(await connect(gateway))
            assert await answered(inside[-1], 1)
        refused = await connect(gateway)
        await let_go(refused)
        assert all([await answered(peer, 2) for peer in inside])
        await leave(inside.pop())
        await has_connections(gateway, 2)
        late = await connect(gateway)
        assert await answered(late, 3), "there is room again"
        await asyncio.gather(*(leave(peer) for peer in [*inside, refused, late]))

    with_gateway(datastore, use)


def test_the_end_of_the_gateway_ends_every_connection_and_every_wait(datastore: Datastore) -> None:
    async def use() -> None:
        gateway = Gateway(
            datastore, StoreCoordinator(datastore.state), GatewayConfig(port=0, registry_port=0)
        )
        await gateway.start()
        peers = [await connect(gateway) for _ in range(5)]
        for peer in peers:
            peer[1].write(fetch(wait_ms=60_000))
        await asyncio.sleep(0.1)
        assert gateway.connections == 5
        await gateway.stop()
        for peer in peers:
            await let_go(peer)
            await leave(peer)
        assert gateway.connections == 0

    asyncio.run(asyncio.wait_for(use(), 30))


def test_large_frames_wait_for_room_and_small_ones_never_do() -> None:
    async def use() -> None:
        frames = LargeFrames(bytes_max=FRAME_BYTES_MAX)
        entered: list[str] = []

        async def take(name: str, size: int, until: asyncio.Event) -> None:
            async with frames.room() as room:
                await room.grow(size)
                entered.append(name)
                await until.wait()

        first_done, others_done = asyncio.Event(), asyncio.Event()
        others_done.set()
        first = asyncio.create_task(take("first", FRAME_BYTES_MAX, first_done))
        await asyncio.sleep(0)
        given_up = asyncio.create_task(take("given up", FRAME_BYTES_MAX, others_done))
        second = asyncio.create_task(take("second", FRAME_BYTES_MAX, others_done))
        await take("small", LARGE_FRAME_BYTES, others_done)
        await asyncio.sleep(0.01)
        assert entered == ["first", "small"]
        given_up.cancel()
        await asyncio.gather(given_up, return_exceptions=True)
        first_done.set()
        await asyncio.wait_for(asyncio.gather(first, second), 10)
        assert entered == ["first", "small", "second"]
        await asyncio.wait_for(take("room again", FRAME_BYTES_MAX, others_done), 10)

    asyncio.run(use())


def test_peers_that_announce_much_and_send_little_keep_no_large_frame_waiting() -> None:
    async def use() -> None:
        frames = LargeFrames(bytes_max=FRAME_BYTES_MAX)

        async def read(data: bytes) -> bytes:
            reader = asyncio.StreamReader()
            reader.feed_data(data)
            async with frames.room() as room:
                return await read_frame(reader, FRAME_BYTES_MAX, room)

        liars = [asyncio.create_task(read(b"x" * sent)) for sent in (1, 14, LARGE_FRAME_BYTES - 1)]
        whole = bytes(range(256)) * (FRAME_BYTES_MAX // 256)
        assert await asyncio.wait_for(read(whole), 10) == whole
        half_way = asyncio.create_task(read(whole[: FRAME_BYTES_MAX // 4]))
        async with frames.room() as room:
            await asyncio.wait_for(room.grow(FRAME_BYTES_MAX // 2), 10)
        for each in (*liars, half_way):
            each.cancel()
        await asyncio.gather(*liars, half_way, return_exceptions=True)
        assert await asyncio.wait_for(read(whole), 10) == whole, (
            "who was given up gives its room back"
        )

    asyncio.run(use())


def test_one_frame_of_the_largest_size_always_finds_room() -> None:
    assert FRAME_BYTES_MAX <= LARGE_FRAMES_BYTES_MAX


def test_more_elements_than_the_limit_are_refused_wherever_they_are_nested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema, (_, body) = load_request_schema(1, 11), sample(1, 11)
    checked_frame(schema, body, 0)
    monkeypatch.setattr(frame_check, "REQUEST_ELEMENTS_MAX", 9)
    with pytest.raises(MalformedFrame, match="more than 9 array elements"):
        checked_frame(schema, body, 0)


@pytest.mark.parametrize(("key", "version"), BEGIN_WITH_AN_ARRAY)
def test_null_for_an_array_that_may_not_be_null_is_refused(key: int, version: int) -> None:
    """Kafka's schemas say which may be null; handlers rely on it."""
    schema = load_request_schema(key, version)
    null, empty = (b"\x00", b"\x01") if schema.__flexible__ else (b"\xff" * 4, b"\x00" * 4)
    with pytest.raises(MalformedFrame, match="-1 elements"):
        checked_frame(schema, null + b"\x00" * 64, 0)
    with pytest.raises(MalformedFrame, match="behind the end"):
        checked_frame(schema, empty + b"\x00" * 64, 0)


def test_a_gateway_listens_on_loopback_only(tmp_path: Path) -> None:
    with Datastore.open_embedded(tmp_path / "store") as datastore:
        for host in ("0.0.0.0", "::", "192.168.1.1", "example.com", ""):
            with pytest.raises(ProtectData, match="loopback"):
                Gateway(datastore, StoreCoordinator(datastore.state), GatewayConfig(host=host))


async def has_connections(gateway: Gateway, count: int) -> None:
    async with asyncio.timeout(10):
        while gateway.connections != count:  # noqa: ASYNC110 (the gateway has no event for it)
            await asyncio.sleep(0.001)


async def ask_for_ever(peer: Peer) -> None:
    while True:
        peer[1].write(api_versions(1) * 1_000)
        await peer[1].drain()
