"""The same digest in every place: store, gateway (or any Kafka topic), warehouse. Equal digests mean equal cells, in the same order (I17).

Every place is asked up to the same ends, so cells that are written meanwhile make no difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from bridge.events.envelope import decode_envelope
from consumers.warehouse.table import WarehouseTable
from store.api import CellStore
from store.digest import ShardDigest
from store.errors import Unavailable

_SCAN_CELLS: Final = 5_000
_SILENCE_MAX_S: Final = 30.0
"""How long a topic may give nothing before reading it is given up."""

OnCells = Callable[[int], None]
Digests = dict[int, ShardDigest]


def store_digests(store: CellStore, ends: Mapping[int, int], on_cells: OnCells | None = None) -> Digests:
    """Digests of the store's logs, up to ``ends`` (shard to the next added_id)."""
    digests: Digests = {}
    for shard, end in ends.items():
        digest = digests[shard] = ShardDigest()
        while digest.next_added_id < end:
            piece = store.get_cells_for_shard(shard, digest.next_added_id, min(_SCAN_CELLS, end - digest.next_added_id))
            if not piece.cells:
                raise Unavailable(f"shard {shard} ends at {digest.next_added_id}, before {end}")
            for cell in piece.cells:
                digest.add(cell.added_id, cell.row_key.bytes, cell.column_name, cell.ref_key, cell.body_json)
            if on_cells:
                on_cells(len(piece.cells))
    return digests


def topic_digests(bootstrap: str, topic: str, ends: Mapping[int, int], on_cells: OnCells | None = None) -> Digests:
    """Digests of a topic's partitions, read by assignment from the beginning with a stock client, up to ``ends``. Raises Unavailable when it falls silent."""
    digests: Digests = {shard: ShardDigest() for shard in ends}
    wanted = {shard for shard, end in ends.items() if end}
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "cellfeed-verify",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
    }
    consumer = Consumer(config)
    try:
        consumer.assign([TopicPartition(topic, shard, OFFSET_BEGINNING) for shard in wanted])
        heard_s = time.monotonic()
        while wanted:
            messages = consumer.consume(5_000, 0.2)
            if time.monotonic() - heard_s > _SILENCE_MAX_S:
                raise Unavailable(f"topic {topic} at {bootstrap} gave nothing for {_SILENCE_MAX_S:.0f} s; partitions {sorted(wanted)} are not at their ends")
            for message in messages:
                error = message.error()
                if error is not None:
                    if error.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):  # noqa: SLF001 - the client's public constants
                        continue
                    raise Unavailable(f"topic {topic} at {bootstrap}: {error.str()}")
                heard_s = time.monotonic()
                event = decode_envelope(message.value())
                if event.added_id < ends[event.shard]:
                    digests[event.shard].add(event.added_id, event.row_key, event.column_name, event.ref_key, event.body_json)
                if event.added_id + 1 >= ends[event.shard]:
                    wanted.discard(event.shard)
            if on_cells and messages:
                on_cells(len(messages))
    finally:
        consumer.close()
    return digests


def warehouse_digests(table: WarehouseTable, ends: Mapping[int, int]) -> Digests:
    """Digests of a warehouse table, up to ``ends``."""
    return table.digests(ends)


@dataclass(frozen=True)
class VerifyReport:
    """Digests by place, for the same ends. ``equal`` is whether every place has the same cells."""

    ends: Mapping[int, int]
    places: Mapping[str, Digests]

    @property
    def equal(self) -> bool:
        return not self.differing_shards()

    def differing_shards(self) -> list[int]:
        """Shards whose digest is not the same in every place, or that do not reach their end."""
        return [shard for shard in self.ends if len({_figures(digests, shard) for digests in self.places.values()}) != 1]

    def cells(self, place: str) -> int:
        return sum(digest.cells for digest in self.places[place].values())

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        shards = {
            str(shard): {
                place: {"cells": digests[shard].cells, "digest": digests[shard].hexdigest()} for place, digests in self.places.items() if shard in digests
            }
            for shard in self.ends
        }
        return {"equal": self.equal, "differing_shards": self.differing_shards(), "shards": shards}


def _figures(digests: Digests, shard: int) -> tuple[int, str]:
    digest = digests.get(shard)
    return (digest.cells, digest.hexdigest()) if digest else (-1, "")
