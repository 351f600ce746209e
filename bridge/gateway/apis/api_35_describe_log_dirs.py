"""DescribeLogDirs (key 35), versions 1–4: how many bytes of each partition this gateway keeps
encoded, in memory and in files. Clients ask each broker.

A broker reports the size of its copy of the log. A gateway has no copy: the log is the store's, and
the store reports its size there. So the two "directories" are ``memory`` and, where blocks are kept
there too, ``files``: no path of the host, which no peer need know. Their totals are the budgets,
and the usable bytes are the rest of a budget. Blocks beyond a budget go when room is needed. Topics
with the same records share their blocks, and each of them is listed with all of it. A partition
that this gateway leads is listed even when nothing of it is kept; one that another leads, when
something of it is.

Tools that only list (kafka-ui among them) need this request. A cluster that does not know it looks
down to them, or they show none of its topics' sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from cellfeed.bridge.gateway.apis.registry import api
from cellfeed.bridge.gateway.context import GatewayContext, Peer
from cellfeed.bridge.gateway.log.block_files import BlockFiles
from cellfeed.bridge.gateway.topics.topics import Topic
from cellfeed.bridge.gateway.wire.protocol import RequestHead, write_response

KEY: Final = 35
VERSIONS: Final = (1, 4)
MEMORY, FILES = "memory", "files"


class _Wanted(NamedTuple):
    topic: Topic
    partitions: frozenset[int] | None
    """None: all of them."""


@api(KEY, VERSIONS)
async def handle(
    context: GatewayContext, request: Any, head: RequestHead, peer: Peer
) -> list[bytes]:
    if request.topics is None:
        wanted = [_Wanted(topic, None) for topic in context.topics.all()]
    else:
        topics = await context.topics_named(asked.topic for asked in request.topics)
        wanted = [
            _Wanted(topic, frozenset(asked.partitions))
            for topic, asked in zip(topics, request.topics, strict=True)
            if topic is not None
        ]
    visible = [each for each in wanted if context.may(peer, "topic", each.topic.name, "describe")]
    in_memory, memory_total, memory_kept = (
        context.blocks.kept.by_partition(),
        context.blocks.kept.bytes_max,
        context.blocks.kept.bytes,
    )
    led = frozenset(
        partition
        for partition in range(context.engine.shards)
        if context.cluster.gateways.leaders[partition] == context.cluster.node_id
    )

    def answer() -> list[bytes]:
        # Beside the event loop: a datastore has thousands of partitions, and each of its topics has
        # all of them.
        results = [
            _directory(
                MEMORY,
                visible,
                {topic.content: in_memory.get(topic.content, {}) for topic, _ in visible},
                led,
                memory_total,
                memory_kept,
            )
        ]
        if (files := context.blocks.files) is not None:
            results.append(
                _directory(
                    FILES,
                    visible,
                    _in_files(files, visible),
                    frozenset(),
                    files.bytes_max,
                    files.kept_bytes,
                )
            )
        return [
            write_response(
                head, {"throttle_time": 0, "error_code": ErrorCode.none, "results": results}
            )
        ]

    return await context.in_thread(answer)


def _in_files(files: BlockFiles, wanted: list[_Wanted]) -> dict[str, Mapping[int, int]]:
    kept = files.kept_by_partition()
    return {topic.content: kept.get(files.origin.contents_of(topic), {}) for topic, _ in wanted}


def _directory(
    name: str,
    wanted: list[_Wanted],
    kept: Mapping[str, Mapping[int, int]],
    always: frozenset[int],
    total: int,
    used: int,
) -> dict[str, Any]:
    """``kept``: bytes by a topic's content, and by partition. ``always``: partitions that are
    listed even with nothing."""
    topics = []
    for topic, asked in wanted:
        sizes = kept[topic.content]
        described = always | sizes.keys()
        partitions = [
            {
                "partition_index": partition,
                "partition_size": sizes.get(partition, 0),
                "offset_lag": 0,
                "is_future_key": False,
            }
            for partition in sorted(described if asked is None else described & asked)
        ]
        if partitions:
            topics.append({"name": topic.name, "partitions": partitions})
    return {
        "error_code": ErrorCode.none,
        "log_dir": name,
        "topics": topics,
        "total_bytes": total,
        "usable_bytes": max(total - used, 0),
    }
