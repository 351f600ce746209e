"""The value of an offset's znode: decimal text, and beside it a leader epoch and metadata."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from kazoo.protocol.states import ZnodeStat

from cellfeed.bridge.coordination.contract import CommittedOffset, TopicPartition
from cellfeed.bridge.coordination.zookeeper.paths import (
    Paths,
)
from cellfeed.store.errors import (
    DataDamaged,
)


class _Details(msgspec.Struct, frozen=True):
    leader_epoch: int
    metadata: str


def values_of(
    paths: Paths, group: str, offsets: Mapping[TopicPartition, CommittedOffset]
) -> dict[str, bytes]:
    """By path, the values to write for these offsets."""
    values: dict[str, bytes] = {}
    for (topic, partition), offset in offsets.items():
        values[paths.offset(group, topic, partition)] = str(offset.offset).encode()
        if offset.leader_epoch != -1 or offset.metadata:
            details = _Details(offset.leader_epoch, offset.metadata)
            values[paths.detail(group, topic, partition)] = msgspec.json.encode(details)
    return values


def committed_offset(
    path: str, value: bytes, stat: ZnodeStat, detail: tuple[bytes, ZnodeStat] | None
) -> CommittedOffset:
    """The offset in a znode. Details count where the same transaction wrote both. Raises
    DataDamaged for text that is no number."""
    try:
        offset = int(value.decode("ascii"))
    except ValueError:
        raise DataDamaged(
            f"ZooKeeper: {path} holds {value[:40]!r}, which is no offset; set it to a decimal"
            " number"
        ) from None
    if detail is not None and detail[1].mzxid == stat.mzxid:
        details = msgspec.json.decode(detail[0], type=_Details)
        return CommittedOffset(offset, details.leader_epoch, details.metadata, stat.mtime * 1000)
    return CommittedOffset(offset, committed_at_us=stat.mtime * 1000)
