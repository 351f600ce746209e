"""A datastore for client tests: its cells, and the records that a Kafka client must therefore
receive."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cellfeed.bridge.events.envelope import AvroFormat, JsonFormat
from cellfeed.bridge.events.registry import envelope_schema_id
from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.sharding import row_key_text
from cellfeed.store.datastore import Datastore

SHARDS = 16
TRIPS = 4_000
FORMATS = {"*": "avro", "trips.BASE": "json"}
"""The configuration of the client tests' gateways."""

_NAMES = uuid.UUID("3e0c3b5e-97a4-5d0a-9d2f-3f6b7b0a1c11")


class Received(NamedTuple):
    """A record as a client gave it."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def fill(directory: Path) -> None:
    """4,000 trips: BASE for each, NOTES for one in 40, and RARE for the last 16 only; so that topic
    ``trips.RARE`` is one long hole with an end."""
    with Datastore.open_embedded(directory) as datastore:
        for start in range(0, TRIPS, 1_000):
            cells = []
            for number in range(start, start + 1_000):
                row_key = uuid.uuid5(_NAMES, str(number))
                cells.append(
                    (
                        row_key,
                        "BASE",
                        0,
                        {
                            "number": number,
                            "fare": number / 4,
                            "zone": "Théâtre",
                            "note": "x" * (number % 300),
                        },
                    )
                )
                if number % 40 == 0:
                    cells.append((row_key, "NOTES", 0, {"missing": ["zone"]}))
                if number >= TRIPS - 16:
                    cells.append((row_key, "RARE", 7, {}))
            datastore.put_cells(cells)


def expected_records(
    directory: Path, formats: Mapping[str, str] = FORMATS
) -> dict[str, list[Received]]:
    """Topic to all its records, by partition and offset: the records that every client must read,
    to the byte."""
    topics: dict[str, list[Received]] = {"trips": []}
    avro, json = AvroFormat(envelope_schema_id()), JsonFormat()
    with Datastore.open_embedded(directory) as datastore:
        for shard in range(datastore.shards):
            for cell in datastore.engine.scan(shard, 0, 1 << 20):
                key, body_json = row_key_text(cell.row_key), decode_body(cell.body)
                for topic in ("trips", f"trips.{cell.column_name}"):
                    encode = (json if formats.get(topic, formats["*"]) == "json" else avro).encode
                    record = Received(
                        shard,
                        cell.added_id,
                        cell.created_at_us // 1000,
                        key,
                        encode(shard, cell, key, body_json),
                    )
                    topics.setdefault(topic, []).append(record)
    return topics
