"""ListOffsets (key 2), versions 1–10.

Timestamps: -1 the latest offset (the watermark), -2 the earliest (log start), -3 the first of those
with the highest timestamp (that of the last one: created_at never goes back), -4 and -5 (local and
tiered log starts) as -2 and -1 of a log without tiers; any other, the first offset at or after that
millisecond, or -1 when there is none.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.errors import Trimmed

KEY: Final = 2
VERSIONS: Final = (1, 10)
_LATEST, _EARLIEST, _MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -1, -2, -3, -4, -5
_CALENDAR_END_MS: Final = 253_402_300_799_999
"""31 December 9999: no cell is later, and no clock of the store goes beyond it."""
_AT_ONCE: Final = 1_000
"""Partitions after which other connections have their turn: some 5 ms."""


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del head
    await context.heads.refresh(peer.asked_s)
    topics = []
    named = await context.topics_named(topic.name for topic in request.topics)
    for topic, found in zip(request.topics, named, strict=True):
        answers: list[dict[str, Any]] = []
        for each in topic.partitions:
            if len(answers) % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            error = context.partition_error(found, each.partition_index)
            if not context.may(peer, "topic", topic.name, "describe"):
                error = ErrorCode.topic_authorization_failed
            if error is ErrorCode.none:
                error = context.epoch_error(
                    each.partition_index, getattr(each, "current_leader_epoch", -1)
                )
            try:
                answers.append(
                    await _partition(context, each.partition_index, each.timestamp, error)
                )
            except Trimmed:
                # the place was found, and trimmed before its cell was read: the log starts behind
                # it now
                await context.heads.refresh()
                answers.append(
                    await _partition(context, each.partition_index, each.timestamp, error)
                )
        topics.append({"name": topic.name, "partitions": answers})
    return {"throttle_time": 0, "topics": topics}


async def _partition(
    context: GatewayContext, partition: int, timestamp_ms: int, error: ErrorCode
) -> dict[str, Any]:
    answer = {
        "partition_index": partition,
        "error_code": error,
        "timestamp": -1,
        "offset": -1,
        "leader_epoch": -1,
    }
    if error is not ErrorCode.none:
        return answer
    head = context.heads[partition]
    found = {**answer, "leader_epoch": head.leader_epoch}
    if timestamp_ms == _LATEST:
        return {**found, "offset": head.watermark}
    if timestamp_ms in (_EARLIEST, _EARLIEST_LOCAL):
        return {**found, "offset": head.log_start}
    if timestamp_ms == _LATEST_TIERED:
        return answer
    if timestamp_ms == _MAX_TIMESTAMP:
        if head.watermark == head.log_start:
            return answer
        timestamp_ms = await _timestamp_ms(context, partition, head.watermark - 1)
    if timestamp_ms < _LATEST_TIERED or timestamp_ms > _CALENDAR_END_MS:
        return {
            **answer,
            "error_code": ErrorCode.unsupported_version if timestamp_ms < 0 else ErrorCode.none,
        }
    offset = await context.in_thread(context.engine.locate, partition, timestamp_ms * 1000)
    if offset >= head.watermark:
        return answer
    return {**found, "offset": offset, "timestamp": await _timestamp_ms(context, partition, offset)}


async def _timestamp_ms(context: GatewayContext, partition: int, offset: int) -> int:
    cells = await context.in_thread(context.engine.scan, partition, offset, 1)
    return cells[0].created_at_us // 1000 if cells else -1
