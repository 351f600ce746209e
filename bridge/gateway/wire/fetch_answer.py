"""The answer to Fetch, written by hand: record bytes never pass through the schema library, and go
to the socket as they were kept."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from cellfeed.bridge.events.varints import uvarint
from cellfeed.bridge.gateway.wire.arrays import count
from cellfeed.bridge.gateway.wire.fetch_request import FIRST_FLEXIBLE, TopicKey
from cellfeed.bridge.gateway.wire.protocol import RequestHead, frame_parts

_FIRST_WITH_SESSIONS: Final = 7

Piece = Sequence[bytes]
"""A partition's answer."""


def write_fetch(
    head: RequestHead,
    topics: Sequence[tuple[TopicKey, int, Iterable[bytes]]],
    error: ErrorCode = ErrorCode.none,
    session_id: int = 0,
) -> list[bytes]:
    """The whole frame in pieces. Of each topic the number of its partitions, and their answers
    (:func:`write_partition`) one behind the other."""
    flexible = head.version >= FIRST_FLEXIBLE
    parts: list[bytes] = [struct.pack(">i", 0)]
    if head.version >= _FIRST_WITH_SESSIONS:
        parts.append(struct.pack(">hi", error, session_id))
    parts.append(count(len(topics), flexible))
    for topic, partitions, pieces in topics:
        parts += [_topic_key(topic, flexible), count(partitions, flexible), *pieces]
        if flexible:
            parts.append(b"\x00")
    if flexible:
        parts.append(b"\x00")
    return frame_parts(head, parts)


def _topic_key(topic: TopicKey, flexible: bool) -> bytes:
    if isinstance(topic, UUID):
        return topic.bytes
    name = topic.encode()
    return (uvarint(len(name) + 1) if flexible else struct.pack(">h", len(name))) + name


def write_partition(
    version: int,
    partition: int,
    error: ErrorCode,
    watermark: int,
    log_start: int,
    records: Sequence[bytes],
    *,
    is_committed: bool,
) -> list[bytes]:
    """One partition's answer in pieces."""
    flexible = version >= FIRST_FLEXIBLE
    # The last stable offset is the watermark: there are no transactions in the log, so both
    # isolation levels read the same.
    out = struct.pack(">ihqq", partition, error, watermark, watermark)
    if version >= 5:
        out += struct.pack(">q", log_start)
    # No transaction was aborted. Readers of uncommitted records get no list of them. For a topic
    # that is not there brokers say "none" to everybody.
    not_there = error in (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)
    out += count(0 if is_committed or not_there else -1, flexible)
    if version >= 11:
        out += struct.pack(">i", -1)
    size = sum(map(len, records))
    out += uvarint(size + 1) if flexible else struct.pack(">i", size)
    return [out, *records, b"\x00"] if flexible else [out, *records]
