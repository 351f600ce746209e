"""A consumer with a fetch session (KIP-227): it asks a gateway's handler, applies the answer as
clients do, and keeps all that it has seen. Nothing goes over a socket.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis import api_01_fetch
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.fetch_request import FetchRequest, row_format
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from tests.support.fetched import fetched

VERSION = 12
MUCH = 1 << 30

Partition = tuple[str, int]
"""A topic's name and a partition."""


def fetch_request(
    positions: Iterable[tuple[Partition, int]],
    session: tuple[int, int] = (0, -1),
    forgotten: Iterable[Partition] = (),
    max_bytes: int = MUCH,
    max_wait_ms: int = 0,
    version: int = VERSION,
) -> FetchRequest:
    """A run of one partition for each: a topic may come more than once."""
    pack = row_format(version).struct.pack
    return FetchRequest(
        version,
        max_wait_ms,
        1,
        max_bytes,
        False,
        *session,
        [
            (topic, pack(partition, -1, offset, -1, -1, MUCH, 0))
            for (topic, partition), offset in positions
        ],
        [(topic, (partition,)) for topic, partition in forgotten],
    )


async def ask(
    context: GatewayContext, request: FetchRequest, connection: int, principal: str
) -> list[bytes]:
    """The frame of the answer, in pieces."""
    head = RequestHead(api_01_fetch.KEY, request.version, 7, "client", 0)
    peer = Peer("client", "127.0.0.1", request.version, "default", principal, connection, 0.0)
    answer = await api_01_fetch.handle(context, request, head, peer)
    assert isinstance(answer, list)
    return answer


def partitions_of(answer: Sequence[bytes]) -> dict[Partition, Any]:
    """By topic and partition, in the order of the answer."""
    return {
        (topic.topic, each.partition_index): each
        for topic in fetched(answer, VERSION).responses
        for each in topic.partitions
    }


def end_of(offset: int, records: bytes) -> int:
    """Where a reader from ``offset`` stands behind these batches. They have no gap."""
    at = 0
    while at < len(records):
        base, length = struct.unpack_from(">qi", records, at)
        [delta] = struct.unpack_from(">i", records, at + 23)
        assert base <= offset <= base + delta, "a batch begins behind what is asked, or is repeated"
        offset = base + delta + 1
        at += 12 + length
    return offset


class SessionClient:
    """Follows ``positions``. ``view``: error, watermark and log start of each partition, as the
    client believes them."""

    def __init__(self, context: GatewayContext, connection: int, principal: str) -> None:
        self._context = context
        self._connection = connection
        self._principal = principal
        self._session = (0, 0)
        self._named: dict[Partition, int] = {}
        self.positions: dict[Partition, int] = {}
        self.view: dict[Partition, tuple[ErrorCode, int, int]] = {}
        self.records: dict[Partition, bytes] = {}
        """Of the last answer."""
        self.refused: ErrorCode = ErrorCode.none

    async def fetch(self, max_bytes: int = MUCH, max_wait_ms: int = 0) -> None:
        """One request and its effect."""
        is_full = self._session[1] == 0
        changed = [
            (each, offset)
            for each, offset in self.positions.items()
            if is_full or self._named.get(each) != offset
        ]
        forgotten = [] if is_full else [each for each in self._named if each not in self.positions]
        request = fetch_request(changed, self._session, forgotten, max_bytes, max_wait_ms)
        answer = await ask(self._context, request, self._connection, self._principal)
        response = fetched(answer, VERSION)
        self.records = {}
        self.refused = response.error_code
        if response.error_code is not ErrorCode.none:
            self._session = (self._session[0], 0)
            return
        if is_full:
            self.view = {}
        self._named = dict(self.positions)
        self._session = (
            (response.session_id, self._session[1] + 1) if response.session_id else (0, 0)
        )
        for each, found in partitions_of(answer).items():
            assert each in self.positions, "nobody asked for it"
            self.view[each] = (found.error_code, found.high_watermark, found.log_start_offset)
            if found.records:
                self.records[each] = bytes(found.records)
        for each in forgotten:
            self.view.pop(each, None)

    def advance(self, partitions: Iterable[Partition]) -> None:
        """Takes the records given of these."""
        for each in partitions:
            if each in self.records:
                self.positions[each] = end_of(self.positions[each], self.records[each])
