"""OffsetForLeaderEpoch (key 23), versions 2–4: where a leader epoch of a shard ended, from the
epochs that the store keeps.

The end of an epoch is the start of the next one, or the watermark for the current one. An epoch
that was never there is answered with the largest one below it, as KIP-320 has it; one above the
current is UNKNOWN_LEADER_EPOCH's case, with offset -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.wire.protocol import RequestHead

KEY: Final = 23
VERSIONS: Final = (2, 4)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del head
    topics = []
    named = await context.topics_named(topic.topic for topic in request.topics)
    for topic, found in zip(request.topics, named, strict=True):
        answers = []
        for each in topic.partitions:
            error = context.partition_error(found, each.partition)
            if not context.may(peer, "topic", topic.topic, "describe"):
                error = ErrorCode.topic_authorization_failed
            if error is ErrorCode.none:
                error = context.epoch_error(each.partition, each.current_leader_epoch)
            epoch, end = -1, -1
            if error is ErrorCode.none:
                epochs = await context.in_thread(context.engine.leader_epochs, each.partition)
                epoch, end = end_of_epoch(
                    epochs, each.leader_epoch, context.heads[each.partition].watermark
                )
            answers.append(
                {
                    "error_code": error,
                    "partition": each.partition,
                    "leader_epoch": epoch,
                    "end_offset": end,
                }
            )
        topics.append({"topic": topic.topic, "partitions": answers})
    return {"throttle_time": 0, "topics": topics}


def end_of_epoch(epochs: Sequence[tuple[int, int]], asked: int, watermark: int) -> tuple[int, int]:
    """``(epoch, end offset)`` for the asked epoch; ``(-1, -1)`` when there is none at or below it,
    or it is above the current."""
    if not epochs or asked > epochs[-1][0] or asked < epochs[0][0]:
        return -1, -1
    place = max(index for index, (epoch, _) in enumerate(epochs) if epoch <= asked)
    end = epochs[place + 1][1] if place + 1 < len(epochs) else watermark
    return epochs[place][0], end
