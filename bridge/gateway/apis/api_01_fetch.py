"""Fetch (key 1), versions 4–17.

Long poll: answers when ``min_bytes`` are there, when a partition has an error, or after
``max_wait``. Batches may begin before the asked-for offset (blocks lie on fixed boundaries; clients
skip). At the end of the log it waits. Beyond it, or before its start (trimmed cells, also while
they were being read), the partition's answer is OFFSET_OUT_OF_RANGE. A topic with zstd is
UNSUPPORTED_COMPRESSION_TYPE before version 10, as at a broker. At least one batch is sent however
small ``max_bytes`` is. The session id in the answer is always 0 ("no session"), which every client
accepts; incremental fetch sessions are left out because a full request for a few dozen partitions
costs less than keeping them. A request that continues a session (another broker's, at this address
before) is answered that there is none, and the client sends a full one. From version 13 on topics
are named by id.

After ``FETCH_WORK_S`` of reading it answers with the records so far: a view may leave out any
number of cells. A read that begins in a topic ``@latest`` is shown the newest cells up to now, then
every cell (:mod:`cellfeed.bridge.gateway.log.newest`).

The response is written by hand: record bytes never pass through the schema library.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.limits import FETCH_BYTES_MAX, FETCH_WAIT_MAX_S, FETCH_WORK_S
from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.bridge.gateway.log.newest import Reader
from cellfeed.bridge.gateway.topics.topics import LATEST, Topic
from cellfeed.bridge.gateway.wire.arrays import count, uvarint
from cellfeed.bridge.gateway.wire.protocol import RequestHead, frame_parts
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import Trimmed, Unavailable

_log = logging.getLogger("cellfeed.gateway")
KEY: Final = 1
VERSIONS: Final = (4, 17)
_FIRST_WITH_TOPIC_IDS: Final = 13
_FIRST_FLEXIBLE: Final = 12
_WHOLE: Final = (0, -1)
"""Session epochs of requests that name all that they want."""
_COMMITTED: Final = 1
_UNAUTHORIZED: Final = ErrorCode.topic_authorization_failed


class _Wanted(NamedTuple):
    topic: Topic | None
    partition: int
    offset: int
    current_leader_epoch: int
    bytes_max: int
    refused: ErrorCode
    """``none``, or why this topic is not for this client."""


class _Answer(NamedTuple):
    error: ErrorCode
    watermark: int
    log_start: int
    batches: Sequence[Batch]


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> list[bytes]:
    if getattr(request, "session_epoch", _WHOLE[0]) not in _WHOLE:
        return _response(head, request, (), (), ErrorCode.fetch_session_id_not_found)
    if head.version >= _FIRST_WITH_TOPIC_IDS:
        topics = await context.topics_identified(topic.topic_id for topic in request.topics)
        topics = [
            None if context.topic_refused(peer, topic, "describe") else topic for topic in topics
        ]
        refused = {
            topic.name: _UNAUTHORIZED
            for topic in topics
            if topic is not None and context.topic_refused(peer, topic, "read")
        }
    else:
        topics = await context.topics_named(topic.topic for topic in request.topics)
        refused = {
            topic.name: ErrorCode.unsupported_compression_type
            for topic in topics
            if topic is not None and not _can_decompress(head, topic)
        }
        refused |= {
            topic.topic: _UNAUTHORIZED
            for topic in request.topics
            if not context.may(peer, "topic", topic.topic, "read")
        }
    deadline_s = monotonic() + min(request.max_wait.total_seconds(), FETCH_WAIT_MAX_S)
    shards = {
        each.partition
        for asked in request.topics
        for each in asked.partitions
        if 0 <= each.partition < context.engine.shards
    }
    all_wanted = _wanted(request, topics, refused)
    context.heads.is_read()
    if any(
        wanted.offset > context.heads[wanted.partition].watermark
        for wanted in all_wanted
        if wanted.partition in shards
    ):
        # Another gateway may have shown more than this one has looked at yet; no client gets
        # "out of range" by a watermark of a moment ago.
        await context.heads.refresh()
    live_starts = await _live_from(context, all_wanted, peer)
    while True:
        seen = {shard: context.heads[shard] for shard in shards}
        answers, found_bytes, failed = await _read(
            context, all_wanted, seen, request.max_bytes, live_starts
        )
        remaining_s = deadline_s - monotonic()
        if not (
            found_bytes >= max(request.min_bytes, 1) or failed or remaining_s <= 0 or not shards
        ):
            await context.heads.wait_for_more(
                {shard: known.watermark for shard, known in seen.items()}, remaining_s
            )
            if monotonic() < deadline_s or any(
                context.heads[shard] is not known for shard, known in seen.items()
            ):
                continue
            # The time is up, and no head is another one than when it was read: so this is still the
            # answer.
        _note_answered(context, all_wanted, answers, peer)
        return _response(head, request, topics, answers)


def _can_decompress(head: RequestHead, topic: Topic) -> bool:
    return topic.compression is None or head.version >= topic.compression.fetch_version_min


def _wanted(
    request: Any, topics: Sequence[Topic | None], refused: Mapping[str, ErrorCode]
) -> list[_Wanted]:
    # Leader epochs came with version 9.
    return [
        _Wanted(
            topic,
            each.partition,
            each.fetch_offset,
            getattr(each, "current_leader_epoch", -1),
            each.partition_max_bytes,
            refused.get(name, ErrorCode.none),
        )
        for topic, asked in zip(topics, request.topics, strict=True)
        for name in [topic.name if topic is not None else getattr(asked, "topic", "")]
        for each in asked.partitions
    ]


async def _live_from(
    context: GatewayContext, all_wanted: Sequence[_Wanted], peer: Peer
) -> dict[tuple[str, int], int]:
    """For the partitions of topics ``@latest`` the offset from which every cell is shown."""
    reads = context.newest.reads
    asked = [
        (Reader(peer.connection, each.topic.name, each.partition), each.offset)
        for each in all_wanted
        if each.topic is not None and each.topic.latest and _error(context, each) is ErrorCode.none
    ]
    if not all(reads.goes_on(reader, offset) for reader, offset in asked):
        try:
            await context.heads.refresh()  # what was put before a read begins is below its "now"
        except Unavailable as away:
            _log.warning("a read of a topic %s begins with what is known: %s", LATEST, away)
    return {
        (reader.topic, reader.shard): reads.live_from(
            reader, offset, context.heads[reader.shard].watermark
        )
        for reader, offset in asked
    }


def _note_answered(
    context: GatewayContext, all_wanted: Sequence[_Wanted], answers: Sequence[_Answer], peer: Peer
) -> None:
    for wanted, answer in zip(all_wanted, answers, strict=True):
        if wanted.topic is not None and wanted.topic.latest and answer.error is ErrorCode.none:
            end = answer.batches[-1].end if answer.batches else wanted.offset
            context.newest.reads.answered(
                Reader(peer.connection, wanted.topic.name, wanted.partition), wanted.offset, end
            )


async def _read(
    context: GatewayContext,
    all_wanted: Sequence[_Wanted],
    seen: Mapping[int, Head],
    request_bytes_max: int,
    live_starts: Mapping[tuple[str, int], int],
) -> tuple[list[_Answer], int, bool]:
    """Reads up to the watermarks that were ``seen``, so that all partitions with new cells are read
    together. Cells that arrive meanwhile are the next fetch's: following newer and newer ends would
    read those again, partition by partition, while more arrive."""
    until_s = monotonic() + FETCH_WORK_S
    errors = [_error(context, each) for each in all_wanted]
    readable = [
        (each.topic, each.partition, each.offset, head.watermark, head.leader_epoch)
        for each, error in zip(all_wanted, errors, strict=True)
        if each.topic is not None
        and error is ErrorCode.none
        and live_starts.get((each.topic.name, each.partition), 0)
        <= each.offset
        < (head := seen[each.partition]).watermark
    ]
    context.blocks.prepare(readable)
    ahead = iter(readable)
    next(ahead, None)
    answers: list[_Answer] = []
    left = min(max(request_bytes_max, 1), FETCH_BYTES_MAX)
    found_bytes, failed = 0, False
    for wanted, error in zip(all_wanted, errors, strict=True):
        if error is not ErrorCode.none or wanted.topic is None:
            answers.append(_Answer(error, -1, -1, ()))
            failed = True
            continue
        head = seen[wanted.partition]
        batches: Sequence[Batch] = ()
        if wanted.offset < head.watermark and (
            not found_bytes or (left > 0 and monotonic() < until_s)
        ):
            bytes_max = max(min(wanted.bytes_max, left), 1)
            live_from = live_starts.get((wanted.topic.name, wanted.partition), 0)
            # While this one waits for the store or is encoded, the next one is begun.
            if left > bytes_max and (following := next(ahead, None)) is not None:
                context.blocks.begin(*following)
            try:
                try:
                    batches = await _batches(
                        context, wanted.topic, wanted, head, live_from, bytes_max, until_s
                    )
                except Trimmed:
                    await (
                        context.heads.refresh()
                    )  # it was trimmed meanwhile: below the offset that is asked for, or beyond it
                    head = context.heads[wanted.partition]
                    if wanted.offset >= head.log_start:
                        batches = await _batches(
                            context, wanted.topic, wanted, head, live_from, bytes_max, until_s
                        )
            except (Unavailable, Trimmed) as away:
                # Its cluster is away: other clusters' partitions are read. Every client knows
                # this error as one to try again after.
                _log.warning("partition %d cannot be read just now: %s", wanted.partition, away)
                answers.append(_Answer(ErrorCode.not_leader_or_follower, -1, -1, ()))
                failed = True
                continue
        # As the log is now: it may have been trimmed since, and blocks kept for all readers may
        # reach beyond the watermark that was seen.
        head = context.heads[wanted.partition]
        if wanted.offset < head.log_start:
            answers.append(_Answer(ErrorCode.offset_out_of_range, -1, -1, ()))
            failed = True
            continue
        size = sum(len(batch.data) for batch in batches)
        found_bytes += size
        left -= size
        answers.append(_Answer(ErrorCode.none, head.watermark, head.log_start, batches))
    return answers, found_bytes, failed


async def _batches(
    context: GatewayContext,
    topic: Topic,
    wanted: _Wanted,
    head: Head,
    live_from: int,
    bytes_max: int,
    until_s: float,
) -> Sequence[Batch]:
    if wanted.offset < live_from:
        return await context.newest.read(
            topic, wanted.partition, wanted.offset, live_from, head, bytes_max, until_s
        )
    return await context.blocks.read(
        topic,
        wanted.partition,
        wanted.offset,
        head.watermark,
        head.leader_epoch,
        bytes_max,
        until_s,
    )


def _error(context: GatewayContext, wanted: _Wanted) -> ErrorCode:
    if wanted.refused is not ErrorCode.none:
        return wanted.refused
    error = context.partition_error(wanted.topic, wanted.partition)
    if error is ErrorCode.none and wanted.current_leader_epoch >= 0:
        error = context.epoch_error(wanted.partition, wanted.current_leader_epoch)
    if error is ErrorCode.none:
        head = context.heads[wanted.partition]
        # Between watermark and next id are cells that are not shown yet; a consumer may have come
        # there through a gateway that knew of more minions.
        if not (
            head.log_start <= wanted.offset <= head.watermark
            or head.log_start <= wanted.offset <= head.next_added_id
        ):
            return ErrorCode.offset_out_of_range
    return error


def _response(
    head: RequestHead,
    request: Any,
    topics: Sequence[Topic | None],
    answers: Sequence[_Answer],
    error: ErrorCode = ErrorCode.none,
) -> list[bytes]:
    flexible = head.version >= _FIRST_FLEXIBLE
    parts: list[bytes] = [struct.pack(">i", 0)]
    if head.version >= 7:
        parts.append(struct.pack(">hi", error, 0))
    parts.append(count(len(topics), flexible))
    remaining = iter(answers)
    for asked, topic in zip(request.topics[: len(topics)], topics, strict=True):
        parts.append(_topic_name(asked, head.version, topic))
        parts.append(count(len(asked.partitions), flexible))
        for each in asked.partitions:
            parts += _partition(
                each.partition,
                next(remaining),
                head.version,
                request.isolation_level == _COMMITTED,
                topic,
            )
        if flexible:
            parts.append(b"\x00")
    if flexible:
        parts.append(b"\x00")
    return frame_parts(head, parts)


def _topic_name(asked: Any, version: int, topic: Topic | None) -> bytes:
    if version >= _FIRST_WITH_TOPIC_IDS:
        topic_id = topic.topic_id if topic else asked.topic_id
        return bytes(topic_id.bytes) if topic_id else b"\x00" * 16
    name: bytes = asked.topic.encode()
    return (
        uvarint(len(name) + 1) + name
        if version >= _FIRST_FLEXIBLE
        else struct.pack(">h", len(name)) + name
    )


def _partition(
    partition: int, answer: _Answer, version: int, committed: bool, topic: Topic | None
) -> list[bytes]:
    flexible = version >= _FIRST_FLEXIBLE
    error = answer.error
    if (
        topic is None
        and error is ErrorCode.unknown_topic_or_partition
        and version >= _FIRST_WITH_TOPIC_IDS
    ):
        error = ErrorCode.unknown_topic_id
    # The last stable offset is the watermark: there are no transactions in the log, so both
    # isolation levels read the same.
    out = struct.pack(">ihqq", partition, error, answer.watermark, answer.watermark)
    if version >= 5:
        out += struct.pack(">q", answer.log_start)
    # No transaction was aborted. Readers of uncommitted records get no list of them. For a topic
    # that is not there brokers say "none" to everybody.
    out += count(
        0 if committed or answer.error is ErrorCode.unknown_topic_or_partition else -1, flexible
    )
    if version >= 11:
        out += struct.pack(">i", -1)
    records = [batch.data for batch in answer.batches]
    size = sum(map(len, records))
    out += uvarint(size + 1) if flexible else struct.pack(">i", size)
    return [out, *records, b"\x00"] if flexible else [out, *records]
