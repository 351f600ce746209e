"""A Fetch request, taken to pieces as far as its partitions' rows. A consumer of 4,096 partitions
sends 135 kB, most of it as in the request before. So rows stay bytes, and only new ones are read.

A row has the same number of bytes in all of a version, unless it has tagged fields, which clients
do not send. A frame with such a row, or with anything out of order, is left to the schema library:
it finds the fault, and its result is put into rows.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from cellfeed.bridge.gateway.limits import REQUEST_ELEMENTS_MAX
from cellfeed.bridge.gateway.wire.frame_check import MalformedFrame, read_uvarint
from cellfeed.bridge.gateway.wire.protocol import RequestHead, read_request

FIRST_WITH_TOPIC_IDS: Final = 13
FIRST_FLEXIBLE: Final = 12
_FIRST_WITHOUT_REPLICA: Final = 15
_FIRST_WITH_RACK: Final = 11
_FIRST_WITH_SESSIONS: Final = 7
_NO_ID: Final = UUID(int=0)

TopicKey = str | UUID
"""A topic as it is asked for: its name, from version 13 on its id."""


class Row(NamedTuple):
    """The request for one partition."""

    partition: int
    current_leader_epoch: int
    offset: int
    bytes_max: int


class FetchRequest(NamedTuple):
    """``topics``: the rows of each, one behind the other. ``forgotten``: partitions that leave the
    session. Times in milliseconds."""

    version: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    is_committed: bool
    session_id: int
    session_epoch: int
    topics: list[tuple[TopicKey, bytes]]
    forgotten: list[tuple[TopicKey, tuple[int, ...]]]


class RowFormat(NamedTuple):
    """How one partition stands in a request."""

    struct: struct.Struct
    fields: tuple[str, ...]

    def read(self, row: bytes) -> Row:
        found = dict(zip(self.fields, self.struct.unpack(row), strict=True))
        return Row(
            found["partition"],
            found.get("current_leader_epoch", -1),
            found["fetch_offset"],
            found["partition_max_bytes"],
        )

    def rows(self, region: bytes) -> list[bytes]:
        size = self.struct.size
        return [region[start : start + size] for start in range(0, len(region), size)]


@cache
def row_format(version: int) -> RowFormat:
    """The rows of a version; the last byte of those with tagged fields says that there are none."""
    fields = [
        ("i", "partition", 0),
        ("i", "current_leader_epoch", 9),
        ("q", "fetch_offset", 0),
        ("i", "last_fetched_epoch", 12),
        ("q", "log_start_offset", 5),
        ("i", "partition_max_bytes", 0),
        ("b", "tags", FIRST_FLEXIBLE),
    ]
    there = [(code, name) for code, name, first in fields if version >= first]
    return RowFormat(
        struct.Struct(">" + "".join(code for code, _ in there)), tuple(name for _, name in there)
    )


def read_fetch(frame: bytes, head: RequestHead) -> FetchRequest:
    """Raises MalformedFrame for a frame that is no Fetch of its version."""
    try:
        return _Walk(frame, head).request()
    except (_Unusual, struct.error, MalformedFrame, UnicodeDecodeError):
        return fetch_of(read_request(frame, head), head.version)


def fetch_of(entity: Any, version: int) -> FetchRequest:
    """The same from the schema library's entity."""
    rows = row_format(version)

    def row(each: Any) -> bytes:
        return rows.struct.pack(
            *(0 if name == "tags" else getattr(each, name, -1) for name in rows.fields)
        )

    def key(topic: Any) -> TopicKey:
        if version >= FIRST_WITH_TOPIC_IDS:
            return topic.topic_id or _NO_ID
        return str(topic.topic)

    return FetchRequest(
        version,
        int(entity.max_wait.total_seconds() * 1_000),
        entity.min_bytes,
        entity.max_bytes,
        entity.isolation_level == 1,
        getattr(entity, "session_id", 0),
        getattr(entity, "session_epoch", -1),
        [(key(topic), b"".join(map(row, topic.partitions))) for topic in entity.topics],
        [
            (key(topic), tuple(topic.partitions))
            for topic in getattr(entity, "forgotten_topics_data", ())
        ],
    )


class _Unusual(Exception):
    """Nothing that clients send every day."""


class _Walk:
    """One pass over a frame."""

    def __init__(self, frame: bytes, head: RequestHead) -> None:
        self._frame = frame
        self._version = head.version
        self._at = head.body_at
        self._elements = 0
        self._flexible = head.version >= FIRST_FLEXIBLE

    def request(self) -> FetchRequest:
        version = self._version
        if version < _FIRST_WITHOUT_REPLICA:
            self._take(">i")
        max_wait_ms, min_bytes, max_bytes, isolation = self._take(">iiib")
        session_id, epoch = self._take(">ii") if version >= _FIRST_WITH_SESSIONS else (0, -1)
        rows = row_format(version)
        topics = [(self._key(), self._rows(rows)) for _ in range(self._count())]
        forgotten = (
            [(self._key(), self._numbers()) for _ in range(self._count())]
            if version >= _FIRST_WITH_SESSIONS
            else []
        )
        if version >= _FIRST_WITH_RACK:
            self._text()
        self._no_tags()
        if self._at != len(self._frame) or self._elements > REQUEST_ELEMENTS_MAX:
            raise _Unusual
        return FetchRequest(
            version,
            max_wait_ms,
            min_bytes,
            max_bytes,
            isolation == 1,
            session_id,
            epoch,
            topics,
            forgotten,
        )

    def _take(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(form, self._frame, self._at)
        self._at += struct.calcsize(form)
        return found

    def _count(self) -> int:
        if self._flexible:
            found, self._at = read_uvarint(self._frame, self._at)
            found -= 1
        else:
            [found] = self._take(">i")
        if not 0 <= found <= len(self._frame) - self._at:
            raise _Unusual
        self._elements += found
        return int(found)

    def _bytes(self, size: int) -> bytes:
        found = self._frame[self._at : self._at + size]
        if size < 0 or len(found) < size:
            raise _Unusual
        self._at += size
        return found

    def _text(self) -> str:
        if self._flexible:
            size, self._at = read_uvarint(self._frame, self._at)
            size -= 1
        else:
            [size] = self._take(">h")
        return self._bytes(size).decode()

    def _key(self) -> TopicKey:
        if self._version >= FIRST_WITH_TOPIC_IDS:
            return UUID(bytes=self._bytes(16))
        return self._text()

    def _rows(self, rows: RowFormat) -> bytes:
        size = rows.struct.size
        count = self._count()
        found = self._bytes(count * size)
        if self._flexible and found[size - 1 :: size] != bytes(count):
            raise _Unusual
        self._no_tags()
        return found

    def _numbers(self) -> tuple[int, ...]:
        found = self._take(f">{self._count()}i")
        self._no_tags()
        return found

    def _no_tags(self) -> None:
        if self._flexible and self._bytes(1) != b"\x00":
            raise _Unusual
