"""Peers that send frames no client sends, each on a connection of its own, many at a time: whole,
torn into pieces, byte by byte, behind and before other requests, gone at once, and deaf to the
answers. The frames of a batch, and the way of sending them, follow from its seed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import struct
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from tests.fuzz.gateway_frames import (
    api_versions_request,
    expects_no_more,
    mutations,
    valid_frames,
    with_length,
)

T = TypeVar("T")

LETTING_GO_S: Final = 30.0
"""How long the gateway may take until it has let go of a peer that is gone, also on a busy machine.
Counted in _LOOK_S: while this process stands still itself the time stands still, too."""

ANSWER_PATIENCE_S: Final = 2.0
"""How long a peer waits for an answer: most come at once; of the fetches and the group requests
some wait for longer than this."""

_LOOK_S: Final = 0.5
_PEERS_AT_ONCE: Final = 128
_ADDRESSES: Final = 250
"""Loopback addresses that peers come from: the ports of one would be used up, as each is kept for a
while after its connection."""

_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)


@dataclass
class Sent:
    """The result of a batch. ``failures``: peers that the gateway did not let go, with the bytes
    that they sent."""

    by_mutation: Counter[str] = field(default_factory=Counter)
    by_delivery: Counter[str] = field(default_factory=Counter)
    answered: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def frames(self) -> int:
        return self.by_mutation.total()

    def add(self, other: Sent) -> None:
        """Adds the counts of another batch."""
        self.by_mutation += other.by_mutation
        self.by_delivery += other.by_delivery
        self.answered += other.answered
        self.failures += other.failures


class _Link(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


def send_batch(port: int, seed: int, batch: int, frames: int) -> Sent:
    """Sends so many frames; returns when the gateway has let go of every peer."""
    logging.getLogger("asyncio").setLevel(
        logging.ERROR
    )  # that a peer was let go in the middle of a frame is no news
    return asyncio.run(
        _send_batch(port, random.Random(f"{seed}-{batch}"), f"seed {seed}, batch {batch}", frames)
    )


async def _send_batch(port: int, chance: random.Random, name: str, frames: int) -> Sent:
    sent, room = Sent(), asyncio.Semaphore(_PEERS_AT_ONCE)

    async def one(number: int, kind: str, data: bytes, delivery: str, own: random.Random) -> None:
        async with room:
            told = f"{name}, frame {number} ({kind}, {delivery}) {data[:200].hex()}"
            try:
                link = _Link(
                    *await _within(
                        asyncio.open_connection(
                            "127.0.0.1", port, local_addr=(f"127.0.1.{number % _ADDRESSES + 1}", 0)
                        )
                    )
                )
                try:
                    with suppress(ConnectionError):
                        if await _within(DELIVERIES[delivery](link, data, own)):
                            sent.answered[kind] += 1
                finally:
                    link.writer.transport.abort()
            except TimeoutError:
                sent.failures.append(f"{told}: the gateway still had it after {LETTING_GO_S} s")
            except OSError as error:
                sent.failures.append(f"{told}: {error}")
        sent.by_mutation[kind] += 1
        sent.by_delivery[delivery] += 1

    kinds, weights = list(DELIVERIES), [_WEIGHTS.get(each, 1) for each in DELIVERIES]
    async with asyncio.TaskGroup() as group:
        for number, (kind, data) in enumerate(mutations(chance, frames)):
            [delivery] = chance.choices(kinds, weights)
            group.create_task(one(number, kind, data, delivery, random.Random(chance.random())))
    return sent


async def _within(work: Coroutine[Any, Any, T]) -> T:
    """Its result. Raises TimeoutError after LETTING_GO_S."""
    task = asyncio.ensure_future(work)
    for _ in range(int(LETTING_GO_S / _LOOK_S)):
        await asyncio.wait([task], timeout=_LOOK_S)
        if task.done():
            return task.result()
    task.cancel()
    await asyncio.wait([task])
    raise TimeoutError


async def _whole(link: _Link, data: bytes, _chance: random.Random) -> bool:
    """The peer then ends its side, so the gateway has to let it go after any bytes."""
    link.writer.write(data)
    return await _ended(link, data)


async def _torn(link: _Link, data: bytes, chance: random.Random) -> bool:
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randint(1, 5)))
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        link.writer.write(data[start:end])
        await asyncio.sleep(chance.uniform(0, 0.02))
    return await _ended(link, data)


async def _byte_by_byte(link: _Link, data: bytes, _chance: random.Random) -> bool:
    link.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in data[:60]:
        link.writer.write(bytes([byte]))
        await asyncio.sleep(0.002)
    link.writer.write(data[60:])
    return await _ended(link, data)


async def _pipelined(link: _Link, data: bytes, chance: random.Random) -> bool:
    """Among requests that are valid: no more than the gateway reads ahead, as it sees only then
    that the peer has said all."""
    before, behind = (
        [with_length(frame) for frame in chance.choices(valid_frames(), k=chance.randint(0, 3))]
        for _ in range(2)
    )
    link.writer.write(b"".join([api_versions_request(1), *before, data, *behind]))
    return await _ended(link, data)


async def _gone_at_once(link: _Link, data: bytes, _chance: random.Random) -> bool:
    """A reset right behind the frame."""
    link.writer.write(data)
    link.writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE
    )
    return False


async def _deaf(link: _Link, data: bytes, chance: random.Random) -> bool:
    """Asks for much, and goes without having read any of it."""
    link.reader._transport.pause_reading()  # type: ignore[attr-defined]  # the stream has no public way
    link.writer.write(
        b"".join(with_length(frame) for frame in chance.choices(valid_frames(), k=20)) + data
    )
    await asyncio.sleep(chance.uniform(0.05, 0.3))
    return False


DELIVERIES: Final[
    Mapping[str, Callable[[_Link, bytes, random.Random], Coroutine[Any, Any, bool]]]
] = {
    "whole": _whole,
    "torn": _torn,
    "byte by byte": _byte_by_byte,
    "pipelined": _pipelined,
    "gone at once": _gone_at_once,
    "deaf": _deaf,
}
"""How a frame is sent; whether anything came back."""

_WEIGHTS: Final = {"whole": 12, "torn": 3, "pipelined": 3}


async def _ended(link: _Link, data: bytes) -> bool:
    """Reads until the gateway closes. A peer that goes at once is not answered: a request for an
    answer is given a moment, so that the handlers see it."""
    answered = False
    if expects_no_more(data):
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_PATIENCE_S):
                answered = bool(await link.reader.read(1 << 16))
    with suppress(OSError):  # the gateway has gone already
        link.writer.write_eof()
    while await link.reader.read(1 << 16):
        answered = True
    return answered
