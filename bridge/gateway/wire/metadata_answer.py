"""The answer to Metadata. The partitions of a topic are prepared once for each version. They serve
every topic until a leader, a gateway or a leader epoch changes.

Everything that the prepared bytes depend on is in their key: the version, the gateways, the leader
of each partition and the number of changes of leader epochs. So they are never out of date.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial._introspect import EntityTupleField, classify_field

from cellfeed.bridge.gateway.wire.arrays import count, entity_with_array
from cellfeed.bridge.gateway.wire.protocol import RequestHead, frame_of

_KEY: Final = 3
_FIRST_OFFLINE: Final = 5
_FIRST_EPOCH: Final = 7
_AUTHORIZED_OF_TOPIC: Final = 8
_AUTHORIZED_OF_CLUSTER: Final = (8, 10)
_FIRST_FLEXIBLE: Final = 9
_FIRST_ERROR: Final = 13


class _Prepared(NamedTuple):
    leaders: Sequence[int]
    nodes: Sequence[int]
    epoch_changes: int
    partitions: list[bytes]


class MetadataPartitions:
    """The partitions of a topic as bytes. Used on the event loop."""

    def __init__(self) -> None:
        self._prepared: dict[int, _Prepared] = {}

    def of(
        self,
        version: int,
        leaders: Sequence[int],
        nodes: Sequence[int],
        epoch_changes: int,
        epoch_of: Callable[[int], int],
    ) -> list[bytes]:
        """A piece for each partition; each has an entry in ``leaders``. ``epoch_changes``: another
        number whenever ``epoch_of`` a partition gives another one."""
        kept = self._prepared.get(version)
        if (
            kept is None
            or kept.leaders is not leaders
            or kept.nodes != nodes
            or kept.epoch_changes != epoch_changes
        ):
            partitions = _partitions(version, leaders, nodes, epoch_of)
            kept = _Prepared(leaders, nodes, epoch_changes, partitions)
            self._prepared[version] = kept
        return kept.partitions


def _partitions(
    version: int, leaders: Sequence[int], nodes: Sequence[int], epoch_of: Callable[[int], int]
) -> list[bytes]:
    flexible = version >= _FIRST_FLEXIBLE
    listed = count(len(nodes), flexible) + struct.pack(f">{len(nodes)}i", *nodes)
    behind = listed * 2
    if version >= _FIRST_OFFLINE:
        behind += count(0, flexible)
    if flexible:
        behind += b"\x00"
    no_error = ErrorCode.none.value
    if version < _FIRST_EPOCH:
        pack = struct.Struct(">hii").pack
        return [
            pack(no_error, partition, leader) + behind for partition, leader in enumerate(leaders)
        ]
    pack = struct.Struct(">hiii").pack
    return [
        pack(no_error, partition, leader, epoch_of(partition)) + behind
        for partition, leader in enumerate(leaders)
    ]


def write_metadata(
    head: RequestHead,
    values: Mapping[str, Any],
    topics: Sequence[tuple[Mapping[str, Any], list[bytes]]],
) -> bytes:
    """The whole frame. ``topics``: the values of each, and its partitions as
    :class:`MetadataPartitions` gives them."""
    version, flexible = head.version, head.version >= _FIRST_FLEXIBLE
    schema = load_response_schema(_KEY, version)
    [topic_schema] = [
        kind.type_
        for each in schema.__dataclass_fields__.values()
        if each.name == "topics" and isinstance(kind := classify_field(each), EntityTupleField)
    ]
    behind_partitions = 4 * (version >= _AUTHORIZED_OF_TOPIC) + flexible
    low, high = _AUTHORIZED_OF_CLUSTER
    behind_topics = 4 * (low <= version <= high) + 2 * (version >= _FIRST_ERROR) + flexible
    written = [
        entity_with_array(topic_schema, {**topic, "partitions": []}, partitions, behind_partitions)
        for topic, partitions in topics
    ]
    return frame_of(
        head, entity_with_array(schema, {**values, "topics": []}, written, behind_topics)
    )
