"""Answers that nobody reads: their memory is limited, for one peer and for all together."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from typing import Any

import pytest

from cellfeed.bridge.gateway import sending
from cellfeed.bridge.gateway.limits import FETCH_BYTES_MAX, TLS_PIECE_BYTES
from cellfeed.bridge.gateway.sending import Sender
from cellfeed.bridge.gateway.server import Gateway
from cellfeed.bridge.gateway.unsent import Unsent
from cellfeed.store.datastore import Datastore
from tests.support.certificates import make_certificates
from tests.unit.bridge.gateway.test_gateway_connection import connect, with_gateway

MIB = 1 << 20
ANSWER = [b"a" * 3, bytes(4 * MIB), b"", b"end"]


def test_the_more_is_unsent_the_smaller_is_an_answer() -> None:
    unsent = Unsent(64 * MIB)
    allowed = [unsent.take(number, f"host {number}", 100 * MIB) for number in range(200)]
    assert allowed[0] == 16 * MIB
    assert allowed == sorted(allowed, reverse=True)
    assert unsent.bytes == sum(allowed) <= 64 * MIB
    assert 0 <= allowed[-1] < 16, "everything is taken"
    unsent.sent(0)
    assert unsent.take(201, "host 201", 100 * MIB) >= 4 * MIB - 16


def test_the_connections_of_one_address_have_half_of_the_room() -> None:
    unsent = Unsent(64 * MIB)
    assert sum(unsent.take(number, "one", 16 * MIB) for number in range(100)) <= 32 * MIB
    assert unsent.take(100, "one", 16 * MIB) == 0
    assert unsent.take(101, "another", 16 * MIB) == 8 * MIB


def test_no_answer_is_larger_than_the_limit() -> None:
    assert Unsent(1 << 40).take(1, "host", 1 << 30) == FETCH_BYTES_MAX
    assert Unsent(1 << 40).take(1, "host", 5) == 5


def test_a_connection_has_room_once() -> None:
    unsent = Unsent(64 * MIB)
    for _ in range(3):
        assert unsent.take(1, "host", 8 * MIB) == 8 * MIB
        unsent.found(1, "host", 3 * MIB)
        assert unsent.bytes == 3 * MIB
    unsent.found(1, "host", 0)
    unsent.sent(1)
    unsent.sent(1)
    assert unsent.bytes == 0
    assert unsent.take(2, "host", 64 * MIB) == 16 * MIB


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
def test_a_peer_that_reads_gets_every_byte(tmp_path: Any, tls: bool) -> None:
    async def use(sender: Sender, unsent: Unsent, reader: asyncio.StreamReader) -> None:
        sent = asyncio.create_task(sender.send(ANSWER))
        whole = b"".join(ANSWER)
        assert await reader.readexactly(len(whole)) == whole
        await sent
        assert unsent.bytes == 0

    run(tmp_path, use, tls=tls)


def test_a_peer_that_reads_nothing_has_one_piece_of_its_answer_encrypted(tmp_path: Any) -> None:
    async def use(sender: Sender, unsent: Unsent, reader: asyncio.StreamReader) -> None:
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        sent = asyncio.create_task(sender.send(ANSWER))
        await asyncio.sleep(0.3)
        assert not sent.done()
        assert unsent.bytes == sum(map(len, ANSWER))
        transport: Any = sender._writer.transport
        below = transport._ssl_protocol._transport.get_write_buffer_size()
        assert transport.get_write_buffer_size() + below < 4 * TLS_PIECE_BYTES
        sent.cancel()
        await asyncio.gather(sent, return_exceptions=True)
        assert unsent.bytes == sum(map(len, ANSWER)), "as long as the connection is there"

    assert run(tmp_path, use, tls=True).bytes == 0


def run(tmp_path: Any, use: Any, *, tls: bool) -> Unsent:
    """``use`` with the sender of a connection, and its peer's end."""
    unsent = Unsent()
    files = make_certificates(tmp_path)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(files.certificate, files.key)

    async def main() -> None:
        accepted: asyncio.Future[asyncio.StreamWriter] = asyncio.Future()
        server = await asyncio.start_server(
            lambda _, writer: accepted.set_result(writer),
            "127.0.0.1",
            0,
            ssl=server_side if tls else None,
        )
        opened = socket.socket()
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, server.sockets[0].getsockname())
        context = ssl.create_default_context(cafile=files.ca) if tls else None
        reader, writer = await asyncio.open_connection(
            sock=opened, ssl=context, server_hostname="127.0.0.1" if tls else None
        )
        sender = Sender(await accepted, unsent, 1, "host")
        sender.farewell_s = 0.0
        async with asyncio.timeout(20):
            await use(sender, unsent, reader)
        writer.transport.abort()
        await sender.close()
        server.close()

    asyncio.run(main())
    return unsent


def fetch(row: bytes, times: int, topics: int = 1) -> bytes:
    """Version 4."""
    asked = struct.pack(">h5si", 5, b"trips", times) + row * times
    frame = struct.pack(">hhihiiiib", 1, 4, 5, -1, -1, 0, 1, 1 << 25, 0)
    frame += struct.pack(">i", topics) + asked * topics
    return struct.pack(">i", len(frame)) + frame


@pytest.mark.parametrize("topics", [1, 2])
def test_a_partition_that_is_named_many_times_is_answered_once(
    datastore: Datastore, topics: int
) -> None:
    for number in range(20):
        datastore.put_cell(f"00000000-0000-4000-8000-{number:012}", "BASE", 1, {}).or_raise()
    shard, end = max((head.watermark, shard) for shard, head in datastore.heads().items())[::-1]
    row = struct.pack(">iqi", shard, 0, 1 << 20)

    async def use(gateway: Gateway) -> None:
        sizes = []
        for request in (fetch(row, 1), fetch(row, 50), fetch(row, 50, topics)):
            peer = await connect(gateway)
            peer[1].write(request)
            [size] = struct.unpack(">i", await peer[0].readexactly(4))
            sizes.append(len(await peer[0].readexactly(size)))
        assert end > 0
        assert sizes[0] == sizes[1]
        assert sizes[2] - sizes[0] < 20 * topics
        assert gateway.context is not None
        assert gateway.context.unsent.bytes == 0

    with_gateway(datastore, use)


def test_a_fetch_without_room_still_has_a_batch(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_COUNTED_BYTES", 1)
    datastore.put_cell("00000000-0000-4000-8000-000000000001", "BASE", 1, {}).or_raise()
    [shard] = [shard for shard, head in datastore.heads().items() if head.watermark]

    async def use(gateway: Gateway) -> None:
        assert gateway.context is not None
        full = Unsent(8)
        full.found(-1, "another", 8)
        gateway.context.unsent = full
        peer = await connect(gateway)
        peer[1].write(fetch(struct.pack(">iqi", shard, 0, 1 << 20), 1))
        [size] = struct.unpack(">i", await peer[0].readexactly(4))
        assert b"BASE" in await peer[0].readexactly(size)
        assert full.bytes == 8

    with_gateway(datastore, use)
