"""Consumers of all partitions of the topic ``trips``: confluent-kafka, and a client with a fetch
session, which sends the requests of Java's consumer.

Each reports how many seconds it took from its first request for offsets to the first record; then,
that it has read ``before`` records; then, when ``records`` have come, the moment of each, by key.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from io import BytesIO
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from benchmarks.put_to_consumer import ARRIVAL_TIMEOUT_S
from cellfeed.bridge.gateway.wire.protocol import build

TOPIC: Final = "trips"
_FETCH, _LIST_OFFSETS, _METADATA = (1, 12), (2, 6), (3, 9)
_WAIT_MS: Final = 500
_BYTES_MAX: Final = 1 << 20


class _Told:
    """The records that a consumer reports."""

    def __init__(self, connection: Connection, settings: dict[str, Any]) -> None:
        self._connection = connection
        self._settings = settings
        self._received: dict[str, float] = {}
        self.asked = time.monotonic()

    def has(self, key: bytes) -> bool:
        """Notes a record; True when it was the last one."""
        now = time.monotonic()
        if not self._received:
            self._connection.send(now - self.asked)
        self._received[key.decode()] = now
        if len(self._received) == self._settings["before"]:
            self._connection.send("read")
        if len(self._received) < self._settings["records"]:
            return False
        self._connection.send(self._received)
        return True


def librdkafka(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """confluent-kafka's ``poll`` with its own default settings."""
    consumer = Consumer(
        {
            "bootstrap.servers": settings["bootstrap"],
            "group.id": "gateway-partitions",
            "enable.auto.commit": False,
        }
    )
    partitions = list(
        consumer.list_topics(TOPIC, timeout=ARRIVAL_TIMEOUT_S).topics[TOPIC].partitions
    )
    told = _Told(connection, settings)
    consumer.assign([TopicPartition(TOPIC, each, OFFSET_BEGINNING) for each in partitions])
    while not stop.is_set():
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            raise RuntimeError(str(message.error()))
        if told.has(bytes(message.key() or b"")):
            break
    stop.wait()
    consumer.close()


def session(connection: Connection, stop: Event, settings: dict[str, Any]) -> None:
    """One connection, one fetch session: each request names the partitions whose position has
    changed."""
    host, _, port = settings["bootstrap"].rpartition(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        [topic] = _ask(
            sock,
            _METADATA,
            {
                "topics": [{"name": TOPIC}],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        ).topics
        told = _Told(connection, settings)
        positions = _beginnings(sock, [each.partition_index for each in topic.partitions])
        changed = dict(positions)
        session_id = epoch = 0
        while not stop.is_set():
            answer = _ask(sock, _FETCH, _fetch(session_id, epoch, changed))
            if answer.error_code:
                raise RuntimeError(answer.error_code.name)
            session_id, epoch, changed = answer.session_id, epoch + 1, {}
            for each in (each for topic in answer.responses for each in topic.partitions):
                for offset, key in _records(each.records or b""):
                    if offset < positions[each.partition_index]:
                        continue  # the batch began before
                    positions[each.partition_index] = offset + 1
                    changed[each.partition_index] = offset + 1
                    if told.has(key):
                        stop.wait()
                        return


def _fetch(session_id: int, epoch: int, changed: dict[int, int]) -> dict[str, Any]:
    partitions = [
        {
            "partition": partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": _BYTES_MAX,
        }
        for partition, offset in changed.items()
    ]
    return {
        "cluster_id": None,
        "replica_id": -1,
        "max_wait": _WAIT_MS,
        "min_bytes": 1,
        "max_bytes": 50 * _BYTES_MAX,
        "isolation_level": 0,
        "session_id": session_id,
        "session_epoch": epoch,
        "topics": [{"topic": TOPIC, "partitions": partitions}] if partitions else [],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def _beginnings(sock: socket.socket, partitions: list[int]) -> dict[int, int]:
    asked = [
        {"partition_index": each, "current_leader_epoch": -1, "timestamp": -2}
        for each in partitions
    ]
    answer = _ask(
        sock,
        _LIST_OFFSETS,
        {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": TOPIC, "partitions": asked}],
        },
    )
    return {each.partition_index: each.offset for each in answer.topics[0].partitions}


def _ask(sock: socket.socket, api: tuple[int, int], values: dict[str, Any]) -> Any:
    schema = load_request_schema(*api)
    body = BytesIO()
    entity_writer(schema)(body, build(schema, values))
    frame = struct.pack(">hhih", *api, 7, 7) + b"session\x00" + body.getvalue()
    sock.sendall(struct.pack(">i", len(frame)) + frame)
    [size] = struct.unpack(">i", _exactly(sock, 4))
    found, _ = entity_reader(load_response_schema(*api))(_exactly(sock, size), 5)
    return found


def _exactly(sock: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        more = sock.recv(size - len(found))
        if not more:
            raise ConnectionResetError("the gateway closed the connection")
        found += more
    return bytes(found)


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Offset and key of each record."""
    at = 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        [records] = struct.unpack_from(">i", data, at + 57)
        position = at + 61
        for _ in range(records):
            size, position = _varint(data, position)
            end = position + size
            _, field = _varint(data, position + 1)
            delta, field = _varint(data, field)
            key_bytes, field = _varint(data, field)
            yield base + delta, data[field : field + key_bytes]
            position = end
        at += 12 + length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at


CLIENTS: Final = {"librdkafka": librdkafka, "session": session}
