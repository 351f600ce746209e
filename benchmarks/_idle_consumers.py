"""Consumers that wait: connections that send librdkafka's requests while nothing comes, and do
nothing else. Two thousand of the real ones are some ten thousand threads.

Each asks for every partition in one Fetch (version 11, no session, as librdkafka), waits for the
answer, half a second later, and asks again.
"""

from __future__ import annotations

import asyncio
import struct
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from benchmarks.put_to_consumer import ARRIVAL_TIMEOUT_S

_ADDRESSES: Final = 8
"""Loopback addresses that they come from, as from so many hosts."""
_WAIT_MS: Final = 500
_PARTITION_BYTES: Final = 1 << 20
_ANSWER_BYTES: Final = 50 << 20


def wait_idle(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """``consumers`` connections to ``bootstrap``. Tells when each has had its first answer, and at
    the end how many answers there were."""
    asyncio.run(
        _run(connection, stop, settings["bootstrap"], settings["consumers"], settings["topic"])
    )


async def _run(
    connection: Connection, stop: Event, bootstrap: str, consumers: int, topic: str
) -> None:
    host, _, port = bootstrap.rpartition(":")
    request = _fetch_request(topic, _ends(bootstrap, topic))
    answers = [0] * consumers
    tasks = [
        asyncio.create_task(_consume(host, int(port), request, answers, number))
        for number in range(consumers)
    ]
    while not all(answers):
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(0.05)
    connection.send("waiting")
    await asyncio.get_running_loop().run_in_executor(None, stop.wait)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _consume(host: str, port: int, request: bytes, answers: list[int], number: int) -> None:
    await asyncio.sleep(number % 500 / 1_000)  # consumers are not started at one moment
    reader, writer = await asyncio.open_connection(
        host, port, local_addr=(f"127.0.0.{2 + number % _ADDRESSES}", 0)
    )
    while True:
        writer.write(request)
        [size] = struct.unpack(">i", await reader.readexactly(4))
        await reader.readexactly(size)
        answers[number] += 1


def _ends(bootstrap: str, topic: str) -> list[int]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "gateway-idle", "enable.auto.commit": False}
    )
    try:
        partitions = sorted(
            consumer.list_topics(topic, timeout=ARRIVAL_TIMEOUT_S).topics[topic].partitions
        )
        return [
            consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=ARRIVAL_TIMEOUT_S
            )[1]
            for partition in partitions
        ]
    finally:
        consumer.close()


def _fetch_request(topic: str, ends: list[int]) -> bytes:
    """From the end of every partition on."""
    partitions = b"".join(
        struct.pack(">iiqqi", partition, -1, end, -1, _PARTITION_BYTES)
        for partition, end in enumerate(ends)
    )
    name = topic.encode()
    body = struct.pack(">iiiibii", -1, _WAIT_MS, 1, _ANSWER_BYTES, 0, 0, -1)
    body += (
        struct.pack(">ih", 1, len(name))
        + name
        + struct.pack(">i", len(ends))
        + partitions
        + struct.pack(">ih", 0, 0)
    )
    head = struct.pack(">hhih", 1, 11, 7, 4) + b"idle"
    return struct.pack(">i", len(head) + len(body)) + head + body
