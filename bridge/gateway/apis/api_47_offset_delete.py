"""OffsetDelete (key 47), version 0: forgets a group's commits in some partitions, so that it has
committed nothing there (a partition without a commit is no error). GROUP_SUBSCRIBED_TO_TOPIC for
topics that a member reads; NON_EMPTY_GROUP for a group that is not one of consumers and has
members; GROUP_ID_NOT_FOUND for one that has neither members nor offsets.

Order of checks: the right to delete in the group; the group itself; then topic by topic the right
to read, whether it is there, and whether a member reads it. As a commit, it carries the fence of
the group's coordinator.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.bridge.coordination.contract import TopicPartition
from cellfeed.bridge.gateway.apis.coordinator_errors import coordinator_error
from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.groups.subscription import is_of_consumers, is_subscribed
from cellfeed.bridge.gateway.limits import GROUP_ID_BYTES_MAX
from cellfeed.bridge.gateway.wire.protocol import RequestHead
from cellfeed.store.errors import CellfeedError

KEY: Final = 47
VERSIONS: Final = (0, 0)


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> dict[str, Any]:
    del head
    if not context.may(peer, "group", request.group_id, "delete"):
        return _answer(ErrorCode.group_authorization_failed, {})
    named = await context.topics_named(topic.name for topic in request.topics)
    errors: dict[TopicPartition, ErrorCode] = {}
    for topic, found in zip(request.topics, named, strict=True):
        for each in topic.partitions:
            may = context.may(peer, "topic", topic.name, "read")
            error = (
                context.partition_error(found, each.partition_index)
                if may
                else ErrorCode.topic_authorization_failed
            )
            errors[topic.name, each.partition_index] = error
    wanted = [partition for partition, error in errors.items() if error is ErrorCode.none]
    refused = await _delete(context, request.group_id, wanted)
    if isinstance(refused, ErrorCode):
        return _answer(refused, {})
    return _answer(ErrorCode.none, {**errors, **refused})


async def _delete(
    context: GatewayContext, group_id: str, partitions: list[TopicPartition]
) -> ErrorCode | dict[TopicPartition, ErrorCode]:
    """Why nothing was deleted, or those partitions that were not."""
    if not group_id or len(group_id.encode()) > GROUP_ID_BYTES_MAX:
        return ErrorCode.invalid_group_id
    if context.cluster.refuses(group_id):
        return ErrorCode.invalid_group_id
    async with context.groups.offsets_lock(group_id):
        if error := context.cluster.group_error(group_id):
            return error
        claim = context.cluster.claim(group_id)
        group = context.groups.get(group_id)
        if group is not None and group.members and not is_of_consumers(group):
            return ErrorCode.non_empty_group
        # Members that are about to come back from an earlier coordinator may read anything.
        awaited = context.groups.is_awaited(group_id)
        read = {
            topic
            for topic, _ in partitions
            if awaited or (group is not None and is_subscribed(group, topic))
        }
        try:
            if (
                group is None
                and not awaited
                and not await context.in_coordination(context.offsets.fetch_offsets, group_id)
            ):
                return ErrorCode.group_id_not_found
            unread = [partition for partition in partitions if partition[0] not in read]
            if unread:
                await context.in_coordination(
                    context.offsets.delete_offsets, group_id, unread, claims=[claim]
                )
        except CellfeedError as failed:
            return coordinator_error(failed)
    return {
        partition: ErrorCode.group_subscribed_to_topic
        for partition in partitions
        if partition[0] in read
    }


def _answer(error: ErrorCode, errors: dict[TopicPartition, ErrorCode]) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), of_partition in errors.items():
        topics.setdefault(topic, []).append(
            {"partition_index": partition, "error_code": of_partition}
        )
    return {
        "error_code": error,
        "throttle_time": 0,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }
