"""Reads for a fetch, partition by partition: the log's batches, or why there are none."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.fetch.answer import PartitionAnswer
from cellfeed.bridge.gateway.limits import FETCH_WORK_S
from cellfeed.bridge.gateway.log.batch import Batch
from cellfeed.bridge.gateway.log.newest import Reader
from cellfeed.bridge.gateway.topics.topics import LATEST, Topic
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.errors import Trimmed, Unavailable

_log = logging.getLogger("cellfeed.gateway")


class Wanted(NamedTuple):
    topic: Topic | None
    partition: int
    offset: int
    current_leader_epoch: int
    bytes_max: int
    refused: ErrorCode
    """``none``, or why this topic is not for this client."""
    absent: ErrorCode = ErrorCode.unknown_topic_or_partition
    """The error for a topic that is not there."""


async def read(
    context: GatewayContext,
    all_wanted: Sequence[Wanted],
    seen: Mapping[int, Head],
    bytes_max: int,
    live_starts: Mapping[tuple[str, int], int],
) -> tuple[list[PartitionAnswer], int, bool]:
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
    answers: list[PartitionAnswer] = []
    left = max(bytes_max, 1)
    found_bytes, failed = 0, False
    for wanted, error in zip(all_wanted, errors, strict=True):
        if error is not ErrorCode.none or wanted.topic is None:
            answers.append(PartitionAnswer(error, -1, -1, ()))
            failed = True
            continue
        head = seen[wanted.partition]
        batches: Sequence[Batch] = ()
        if wanted.offset < head.watermark and (
            not found_bytes or (left > 0 and monotonic() < until_s)
        ):
            piece_bytes_max = max(min(wanted.bytes_max, left), 1)
            live_from = live_starts.get((wanted.topic.name, wanted.partition), 0)
            # While this one waits for the store or is encoded, the next one is begun.
            if left > piece_bytes_max and (following := next(ahead, None)) is not None:
                context.blocks.begin(*following)
            try:
                try:
                    batches = await _batches(
                        context, wanted.topic, wanted, head, live_from, piece_bytes_max, until_s
                    )
                except Trimmed:
                    await (
                        context.heads.refresh()
                    )  # it was trimmed meanwhile: below the offset that is asked for, or beyond it
                    head = context.heads[wanted.partition]
                    if wanted.offset >= head.log_start:
                        batches = await _batches(
                            context, wanted.topic, wanted, head, live_from, piece_bytes_max, until_s
                        )
            except (Unavailable, Trimmed) as away:
                # Its cluster is away: other clusters' partitions are read. Every client knows
                # this error as one to try again after.
                _log.warning("partition %d cannot be read just now: %s", wanted.partition, away)
                answers.append(PartitionAnswer(ErrorCode.not_leader_or_follower, -1, -1, ()))
                failed = True
                continue
        # As the log is now: it may have been trimmed since, and blocks kept for all readers may
        # reach beyond the watermark that was seen.
        head = context.heads[wanted.partition]
        if wanted.offset < head.log_start:
            answers.append(PartitionAnswer(ErrorCode.offset_out_of_range, -1, -1, ()))
            failed = True
            continue
        size = sum(len(batch.data) for batch in batches)
        found_bytes += size
        left -= size
        answers.append(PartitionAnswer(ErrorCode.none, head.watermark, head.log_start, batches))
    return answers, found_bytes, failed


async def live_starts(
    context: GatewayContext, all_wanted: Sequence[Wanted], peer: Peer
) -> dict[tuple[str, int], int]:
    """For the partitions of topics ``@latest`` the offset from which every cell is shown."""
    reads = context.newest.reads
    asked = [
        (Reader(peer.connection, each.topic.name, each.partition), each.offset)
        for each in all_wanted
        if each.topic is not None and each.topic.latest and _error(context, each) is ErrorCode.none
    ]
    if not all(reads.continues(reader, offset) for reader, offset in asked):
        try:
            await context.heads.refresh()  # cells put before a read begins are below its "now"
        except Unavailable as away:
            _log.warning("a read of a topic %s begins with the last known cells: %s", LATEST, away)
    return {
        (reader.topic, reader.shard): reads.live_from(
            reader, offset, context.heads[reader.shard].watermark
        )
        for reader, offset in asked
    }


def note_answered(
    context: GatewayContext,
    all_wanted: Sequence[Wanted],
    answers: Sequence[PartitionAnswer],
    peer: Peer,
) -> None:
    for wanted, answer in zip(all_wanted, answers, strict=True):
        if wanted.topic is not None and wanted.topic.latest and answer.error is ErrorCode.none:
            end = answer.batches[-1].end if answer.batches else wanted.offset
            context.newest.reads.answered(
                Reader(peer.connection, wanted.topic.name, wanted.partition), wanted.offset, end
            )


async def _batches(
    context: GatewayContext,
    topic: Topic,
    wanted: Wanted,
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


def _error(context: GatewayContext, wanted: Wanted) -> ErrorCode:
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
