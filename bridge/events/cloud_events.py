"""A cell as a CloudEvent 1.0 in structured JSON mode (cloudevents.io, Kafka protocol binding §3.3):
one object, ``data`` being the JSON envelope.

    {"specversion":"1.0","id":"3/17","source":"/cellfeed/trips","type":"cellfeed.cell.BASE",
    "subject":"<row key>","time":"…","datacontenttype":"application/json","data":{…}}

``source`` and ``id`` together name the cell for ever: the datastore, and shard and added_id.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from cellfeed.bridge.events.formats import BatchFormat, JsonFormat
from cellfeed.store.cells.cell import StoredCell, moment

CONTENT_TYPE: Final = b"application/cloudevents+json; charset=UTF-8"
"""The record header that the Kafka binding asks for in structured mode."""

_DATA: Final = b',"data":'


class CloudEventsFormat(BatchFormat):
    """:class:`cellfeed.bridge.events.formats.EventFormat` for one datastore's cells."""

    name = "cloudevents"
    content_type: bytes | None = CONTENT_TYPE

    def __init__(self, datastore: str) -> None:
        self._json = JsonFormat()
        self._source = json.dumps(f"/cellfeed/{quote(datastore)}")

    def encode_many(
        self,
        shard: int,
        cells: Sequence[StoredCell],
        keys: Sequence[bytes],
        bodies_json: Sequence[bytes],
    ) -> list[bytes]:
        """See :class:`cellfeed.bridge.events.formats.EventFormat`."""
        data = self._json.encode_many(shard, cells, keys, bodies_json)
        return [
            self._head(shard, cell, key) + _DATA + envelope + b"}"
            for cell, key, envelope in zip(cells, keys, data, strict=True)
        ]

    def _head(self, shard: int, cell: StoredCell, key: bytes) -> bytes:
        kind = json.dumps(f"cellfeed.cell.{cell.column_name}", ensure_ascii=False)
        time = moment(cell.created_at_us).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return (
            f'{{"specversion":"1.0","id":"{shard}/{cell.added_id}","source":{self._source},'
            f'"type":{kind},"subject":"{key.decode()}",'
            f'"time":"{time}","datacontenttype":"application/json"'
        ).encode()


def envelope_of(value: bytes) -> bytes:
    """The JSON envelope in a value that :class:`CloudEventsFormat` wrote. Raises ValueError for
    another one."""
    head, found, data = value.partition(_DATA)
    if not found or not head.startswith(b'{"specversion":"1.0"') or not data.endswith(b"}"):
        raise ValueError("it is no CloudEvent as cellfeed writes it")
    return data[:-1]
