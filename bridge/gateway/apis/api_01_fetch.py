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

import logging
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.fetch.kept_fetches import FULL_EPOCH, NO_SESSION, NO_SESSION_EPOCH
from cellfeed.bridge.gateway.fetch.partitions import (
    AskedPartition,
    Partitions,
    Run,
    Terms,
    by_topic,
)
from cellfeed.bridge.gateway.limits import FETCH_BYTES_MAX, FETCH_WAIT_MAX_S, FETCH_WORK_S
from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.bridge.gateway.log.newest import Reader
from cellfeed.bridge.gateway.topics.topics import LATEST, Topic
from cellfeed.bridge.gateway.wire.fetch_answer import write_fetch, write_partition
from cellfeed.bridge.gateway.wire.fetch_request import FIRST_WITH_TOPIC_IDS, FetchRequest
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import Trimmed, Unavailable

_log = logging.getLogger("cellfeed.gateway")
KEY: Final = 1
VERSIONS: Final = (4, 17)
_UNAUTHORIZED: Final = ErrorCode.topic_authorization_failed


class _Wanted(NamedTuple):
    topic: Topic | None
    partition: int
    offset: int
    current_leader_epoch: int
    bytes_max: int
    refused: ErrorCode
    """``none``, or why this topic is not for this client."""
    absent: ErrorCode = ErrorCode.unknown_topic_or_partition
    """What is said of a topic that is not there."""


class _Answer(NamedTuple):
    error: ErrorCode
    watermark: int
    log_start: int
    batches: Sequence[Batch]


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
    return _response(head, request, answers, runs, session_id)


async def _answers(
    context: GatewayContext, request: FetchRequest, partitions: Partitions, peer: Peer
) -> dict[AskedPartition, _Answer]:
    """Of all partitions that may have something to say, when there is enough or the time is up."""
    deadline_s = monotonic() + min(request.max_wait_ms / 1_000, FETCH_WAIT_MAX_S)
    context.heads.is_read()
    found: dict[AskedPartition, _Answer] = {}
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
        live_starts = await _live_from(context, all_wanted, peer)
        seen = {shard: context.heads[shard] for shard in shards}
        answers, found_bytes, failed = await _read(
            context, all_wanted, seen, request.max_bytes, live_starts
        )
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
    _note_answered(context, all_wanted, answers, peer)
    return found


def _with_more_to_say(
    due: Sequence[AskedPartition], answers: Sequence[_Answer]
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
) -> list[_Wanted]:
    """What is asked, with the topic and the rights as they are now."""
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
        _Wanted(
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
    if wanted.topic is None:
        return wanted.absent
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
    request: FetchRequest,
    answers: Mapping[AskedPartition, _Answer],
    runs: Sequence[Run] | None,
    session_id: int,
) -> list[bytes]:
    """``runs``: the partitions of a full fetch, which are all answered. Of a session that continues
    those are that have records, an error, or another watermark or log start than the client was
    given."""
    pieces = {
        each: _partition(each, answer, request)
        for each, answer in answers.items()
        if runs is not None or answer.batches or each.told != _ends(answer)
    }
    for each, piece in pieces.items():
        answer = answers[each]
        each.told = None if answer.error is not ErrorCode.none else _ends(answer)
        each.piece = b"".join(piece) if not answer.batches else None
    if runs is None:
        runs = by_topic(pieces)
    topics = [(topic, len(run), _joined(run, pieces)) for topic, run in runs]
    return write_fetch(head, topics, session_id=session_id)


def _ends(answer: _Answer) -> tuple[int, int]:
    return answer.watermark, answer.log_start


def _joined(
    run: Sequence[AskedPartition], pieces: Mapping[AskedPartition, Sequence[bytes]]
) -> list[bytes]:
    """Answers without records in few pieces, however many there are."""
    kept = [each.piece for each in run]
    parts: list[bytes] = []
    start = 0
    for at in [at for at, piece in enumerate(kept) if piece is None]:
        parts.append(b"".join(kept[start:at]))  # type: ignore[arg-type]
        parts += pieces[run[at]]
        start = at + 1
    parts.append(b"".join(kept[start:]))  # type: ignore[arg-type]
    return parts


def _partition(asked: AskedPartition, answer: _Answer, request: FetchRequest) -> list[bytes]:
    return write_partition(
        request.version,
        asked.partition,
        answer.error,
        answer.watermark,
        answer.log_start,
        [batch.data for batch in answer.batches],
        is_committed=request.is_committed,
    )
