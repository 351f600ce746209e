"""Fetch (key 1), versions 4–17.

Long poll: answers when ``min_bytes`` are there, when a partition has an error, or after
``max_wait``. Batches may begin before the asked-for offset (blocks lie on fixed boundaries; clients
skip). At the end of the log it waits. Beyond it, or before its start (trimmed cells, also while
they were being read), the partition's answer is OFFSET_OUT_OF_RANGE. A topic with zstd is
UNSUPPORTED_COMPRESSION_TYPE before version 10, as at a broker. At least one batch is sent however
small ``max_bytes`` is. From version 13 on topics are named by id.

Fetch sessions (KIP-227) are kept for a connection
(:mod:`cellfeed.bridge.gateway.fetch.kept_fetches`). A fetch looks at the partitions that may have
something to say, not at all of them (:mod:`cellfeed.bridge.gateway.fetch.partitions`); a full fetch
that repeats the one before it as well. Of those the longest unserved come first.

After ``FETCH_WORK_S`` of reading it answers with the records so far: a view may leave out any
number of cells. A read that begins in a topic ``@latest`` is shown the newest cells up to now, then
every cell (:mod:`cellfeed.bridge.gateway.log.newest`).
"""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis import fetch_reads
from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.fetch.answer import PartitionAnswer, response_of
from cellfeed.bridge.gateway.fetch.kept_fetches import FULL_EPOCH, NO_SESSION, NO_SESSION_EPOCH
from cellfeed.bridge.gateway.fetch.partitions import (
    AskedPartition,
    Partitions,
    Run,
    Terms,
)
from cellfeed.bridge.gateway.limits import FETCH_WAIT_MAX_S
from cellfeed.bridge.gateway.topics.topics import Topic
from cellfeed.bridge.gateway.wire.fetch_answer import write_fetch
from cellfeed.bridge.gateway.wire.fetch_request import FIRST_WITH_TOPIC_IDS, FetchRequest
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 1
VERSIONS: Final = (4, 17)
_UNAUTHORIZED: Final = ErrorCode.topic_authorization_failed


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: FetchRequest, head: RequestHead, peer: Peer
) -> list[bytes]:
    kept_fetches, connection = context.kept_fetches, peer.connection
    runs: list[Run] | None = None
    session_id = NO_SESSION
    partitions: Partitions
    if request.session_epoch == NO_SESSION_EPOCH:
        partitions = repeated = kept_fetches.repeated(connection)
        runs = repeated.follow(request)
        is_kept = kept_fetches.keep(connection)
    elif request.session_epoch == FULL_EPOCH:
        partitions = session = kept_fetches.open(connection, request)
        runs = session.runs()
        is_kept = kept_fetches.keep(connection)
        session_id = session.session_id if is_kept else NO_SESSION
    else:
        continued = kept_fetches.continued(connection, request)
        if isinstance(continued, ErrorCode):
            return write_fetch(head, (), continued)
        partitions, is_kept, session_id = continued, True, continued.session_id
        if not len(partitions):
            kept_fetches.left(connection)
            session_id = NO_SESSION
    try:
        answers = await _answers(context, request, partitions, peer)
    finally:
        if not is_kept:
            partitions.close()
    context.tallies.failed(KEY, (each.error for each in answers.values()))
    return response_of(head, request, answers, runs, session_id)


async def _answers(
    context: GatewayContext, request: FetchRequest, partitions: Partitions, peer: Peer
) -> dict[AskedPartition, PartitionAnswer]:
    """Of all partitions that may have something to say, when there is enough or the time is up."""
    deadline_s = monotonic() + min(request.max_wait_ms / 1_000, FETCH_WAIT_MAX_S)
    context.heads.is_read()
    found: dict[AskedPartition, PartitionAnswer] = {}
    while True:
        due = partitions.take_due(Terms(context.security, request.version))
        all_wanted = await _wanted(context, request.version, due, peer)
        shards = {each.partition for each in due if 0 <= each.partition < context.engine.shards}
        if any(
            wanted.offset > context.heads[wanted.partition].watermark
            for wanted in all_wanted
            if wanted.partition in shards
        ):
            # Another gateway may have shown more than this one has looked at yet; no client gets
            # "out of range" by a watermark of a moment ago.
            await context.heads.refresh()
        live_starts = await fetch_reads.live_starts(context, all_wanted, peer)
        seen = {shard: context.heads[shard] for shard in shards}
        asked_bytes = context.quotas.read_bytes_max(peer.principal, request.max_bytes)
        bytes_max = context.unsent.take(peer.connection, peer.host, asked_bytes)
        answers, found_bytes, failed = await fetch_reads.read(
            context, all_wanted, seen, bytes_max, live_starts
        )
        context.unsent.found(peer.connection, peer.host, found_bytes)
        found.update(zip(due, answers, strict=True))
        partitions.put_back(_with_more_to_say(due, answers))
        remaining_s = deadline_s - monotonic()
        if (
            found_bytes >= max(request.min_bytes, 1)
            or failed
            or remaining_s <= 0
            or not len(partitions)
            or partitions.is_closed
        ):
            break
        await partitions.wait(remaining_s)
        if monotonic() >= deadline_s and not partitions.has_changed(
            Terms(context.security, request.version)
        ):
            # The time is up, and no head is another one than when it was read: so this is still the
            # answer.
            break
    fetch_reads.note_answered(context, all_wanted, answers, peer)
    return found


def _with_more_to_say(
    due: Sequence[AskedPartition], answers: Sequence[PartitionAnswer]
) -> list[AskedPartition]:
    """Those that were given records last: they have their next turn behind the others."""
    more: list[AskedPartition] = []
    served: list[AskedPartition] = []
    for each, answer in zip(due, answers, strict=True):
        if answer.batches:
            served.append(each)
        elif answer.error is not ErrorCode.none or each.asked.offset < answer.watermark:
            more.append(each)
    return more + served


async def _wanted(
    context: GatewayContext, version: int, due: Sequence[AskedPartition], peer: Peer
) -> list[fetch_reads.Wanted]:
    """The asked partitions, with the topic and the rights as they are now."""
    keys = list(dict.fromkeys(each.topic for each in due))
    if version >= FIRST_WITH_TOPIC_IDS:
        topics = await context.topics_identified(key for key in keys if isinstance(key, UUID))
        topics = [
            None if context.topic_refused(peer, topic, "describe") else topic for topic in topics
        ]
        refused = {
            key: _UNAUTHORIZED
            for key, topic in zip(keys, topics, strict=True)
            if topic is not None and context.topic_refused(peer, topic, "read")
        }
    else:
        topics = await context.topics_named(str(key) for key in keys)
        refused = {
            key: ErrorCode.unsupported_compression_type
            for key, topic in zip(keys, topics, strict=True)
            if topic is not None and not _can_decompress(version, topic)
        }
        refused |= {
            key: _UNAUTHORIZED for key in keys if not context.may(peer, "topic", str(key), "read")
        }
    named = dict(zip(keys, topics, strict=True))
    by_id = version >= FIRST_WITH_TOPIC_IDS
    absent = ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
    return [
        fetch_reads.Wanted(
            named[each.topic],
            each.partition,
            each.asked.offset,
            each.asked.current_leader_epoch,
            each.asked.bytes_max,
            refused.get(each.topic, ErrorCode.none),
            absent,
        )
        for each in due
    ]


def _can_decompress(version: int, topic: Topic) -> bool:
    return topic.compression is None or version >= topic.compression.fetch_version_min
