"""Requests as bytes to anything that speaks Kafka's protocol, and its answers by Kafka's own
schemas."""

from __future__ import annotations

import socket
import struct
from io import BytesIO
from typing import Any, Final

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from cellfeed.bridge.gateway.wire.protocol import API_VERSIONS, build, is_flexible

ANSWER_TIMEOUT_S: Final = 30.0
CORRELATION_ID: Final = 7
CLIENT_ID: Final = b"test"


def head_bytes(key: int, version: int) -> bytes:
    """The head of a request."""
    head = struct.pack(">hhih", key, version, CORRELATION_ID, len(CLIENT_ID)) + CLIENT_ID
    return head + b"\x00" if is_flexible(key, version) else head


def encoded(key: int, version: int, values: dict[str, Any]) -> bytes:
    """The body of a request of this version out of plain values; fields that it does not have are
    left out."""
    schema = load_request_schema(key, version)
    buffer = BytesIO()
    entity_writer(schema)(buffer, build(schema, values))
    return buffer.getvalue()


def ask(port: int, key: int, version: int, body: bytes) -> Any:
    """Sends one request and reads its whole answer. Fails where there is none, or where it has
    another length than its schema says."""
    answer = exchange(port, head_bytes(key, version) + body)
    assert answer is not None, (
        f"API {key}, version {version}: the connection was closed without an answer"
    )
    return decoded(key, version, answer)


def exchange(port: int, request: bytes) -> bytes | None:
    """Sends a frame on a connection of its own; the answer's frame, or None when the connection was
    closed instead."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S) as peer,
        peer.makefile("rb") as stream,
    ):
        peer.sendall(struct.pack(">i", len(request)) + request)
        try:
            length = stream.read(4)
            return stream.read(*struct.unpack(">i", length)) if len(length) == 4 else None
        except ConnectionResetError:
            return None


def decoded(key: int, version: int, answer: bytes) -> Any:
    """The entity of an answer's frame."""
    assert answer[:4] == struct.pack(">i", CORRELATION_ID), "the request's own correlation id"
    # The answer to ApiVersions always has the oldest head: its reader does not know the versions
    # yet.
    at = 5 if key != API_VERSIONS and is_flexible(key, version) else 4
    entity, size = entity_reader(load_response_schema(key, version))(answer, at)
    assert at + size == len(answer), "nothing behind its end"
    return entity
