"""What a cell looks like as a record's value: Avro in Confluent's wire format, or JSON. Both carry all that a cell is, so no headers are needed.

Avro: a zero byte, the schema id (4 bytes, big-endian), the Avro binary of ``schemas/avro/cell_envelope.avsc``. Written by hand for speed (0.5 µs; fastavro
takes 5); a property test holds the two byte-identical. JSON: one object with the same fields, keys sorted, the body spliced in as it is stored.
"""

from __future__ import annotations

import json
import re
import struct
from datetime import datetime
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from bridge.events.varints import VARINTS, read_varint, varint, varint_of_moment
from store.cells import StoredCell, microseconds, moment
from store.errors import CellfeedError, DataDamaged
from store.json_body import canonical_from_json
from store.sharding import row_key_text

_WIRE_HEAD: Final = struct.Struct(">bI")
_UUID_LENGTH: Final = varint(36)
_SMALL: Final = len(VARINTS)


class EventFormat(Protocol):
    """How a cell becomes a record's value. ``name`` is what configuration calls it."""

    name: str

    def encode(self, shard: int, cell: StoredCell, key: bytes, body_json: bytes) -> bytes:
        """The value of one cell; ``key`` is its row key as text, ``body_json`` its decoded body."""
        ...


class AvroFormat:
    """Confluent wire format; ``schema_id`` is what the schema registry calls the envelope's schema."""

    name = "avro"

    def __init__(self, schema_id: int) -> None:
        self._head = _WIRE_HEAD.pack(0, schema_id) + _UUID_LENGTH
        self._columns: dict[str, bytes] = {}

    def encode(self, shard: int, cell: StoredCell, key: bytes, body_json: bytes) -> bytes:
        added_id, _, column_name, ref_key, created_at_us, _ = cell
        column = self._columns.get(column_name) or self._column(column_name)
        length = len(body_json)
        return b"".join(
            (
                self._head,
                key,
                column,
                VARINTS[ref_key] if 0 <= ref_key < _SMALL else varint(ref_key),
                VARINTS[added_id] if added_id < _SMALL else varint(added_id),
                VARINTS[shard] if shard < _SMALL else varint(shard),
                varint_of_moment(created_at_us),
                VARINTS[length] if length < _SMALL else varint(length),
                body_json,
            )
        )

    def _column(self, column_name: str) -> bytes:
        name = column_name.encode()
        encoded = varint(len(name)) + name
        if len(self._columns) < 10_000:  # a bound on memory where programs make up column names without end
            self._columns[column_name] = encoded
        return encoded


class JsonFormat:
    """One JSON object per cell."""

    name = "json"

    def encode(self, shard: int, cell: StoredCell, key: bytes, body_json: bytes) -> bytes:
        created_at = moment(cell.created_at_us).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return b'{"added_id":%d,"body":%b,"column_name":%b,"created_at":"%b","ref_key":%d,"row_key":"%b","shard":%d}' % (
            cell.added_id,
            body_json,
            json.dumps(cell.column_name, ensure_ascii=False).encode(),
            created_at.encode(),
            cell.ref_key,
            key,
            shard,
        )


class DecodedEvent(NamedTuple):
    """A cell as a record carries it. ``row_key`` is 16 bytes; ``body_json`` canonical JSON; ``created_at_us`` microseconds since 1970 UTC."""

    shard: int
    added_id: int
    row_key: bytes
    column_name: str
    ref_key: int
    created_at_us: int
    body_json: bytes


def decode_envelope(value: bytes | None) -> DecodedEvent:
    """A record's value in either format. Raises DataDamaged when it is not a whole envelope; it never returns half of one."""
    if value is None or len(value) < 2:
        raise DataDamaged("a record without a value is not a cell")
    try:
        return _decode_avro(value) if value[0] == 0 else _decode_json(value)
    except DataDamaged:
        raise
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, RecursionError, struct.error, CellfeedError) as error:
        raise DataDamaged(f"a record of {len(value)} bytes is not a cell: {type(error).__name__}: {error}") from error


def _decode_avro(value: bytes) -> DecodedEvent:
    key, at = _read_bytes(value, _WIRE_HEAD.size)
    column, at = _read_bytes(value, at)
    ref_key, at = read_varint(value, at)
    added_id, at = read_varint(value, at)
    shard, at = read_varint(value, at)
    created_at_us, at = read_varint(value, at)
    body_json, at = _read_bytes(value, at)
    if at != len(value):
        raise DataDamaged(f"a record has {len(value) - at} bytes behind its envelope")
    if len(key) != 36:
        raise DataDamaged(f"a record's row key has {len(key)} bytes, not the 36 of a UUID")
    moment(created_at_us)  # a moment that no calendar holds is damage
    return DecodedEvent(shard, added_id, UUID(key.decode()).bytes, column.decode(), ref_key, created_at_us, body_json)


_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def _decode_json(value: bytes) -> DecodedEvent:
    fields = json.loads(value)
    created_at = fields["created_at"]
    if not _MOMENT.fullmatch(created_at):
        raise DataDamaged(f"a record's created_at is {created_at!r:.40}")
    for name in ("shard", "added_id", "ref_key"):
        if type(fields[name]) is not int:
            raise DataDamaged(f"a record's {name} is {fields[name]!r:.40}")
    row_key, column_name = UUID(fields["row_key"]).bytes, fields["column_name"]
    # The body is cut out of the text as it stands there, so that its numbers keep their spelling: it lies between two keys whose places are known.
    tail = b',"column_name":' + json.dumps(column_name, ensure_ascii=False).encode() + b',"created_at":"'
    start, end = value.index(b'"body":') + len(b'"body":'), value.rindex(tail)
    body_json = value[start:end]
    if canonical_from_json(body_json) != body_json:
        raise DataDamaged("a record's body is not canonical JSON")
    created_at_us = microseconds(datetime.fromisoformat(created_at))
    event = DecodedEvent(fields["shard"], fields["added_id"], row_key, column_name, fields["ref_key"], created_at_us, body_json)
    cell = StoredCell(event.added_id, row_key, column_name, event.ref_key, created_at_us, b"")
    if JsonFormat().encode(event.shard, cell, row_key_text(row_key), body_json) != value:
        raise DataDamaged("a record is JSON, but not as cellfeed writes it")
    return event


def _read_bytes(buffer: bytes, position: int) -> tuple[bytes, int]:
    length, position = read_varint(buffer, position)
    end = position + length
    if length < 0 or end > len(buffer):
        raise DataDamaged(f"a field of {length} bytes at byte {position} goes beyond the record's {len(buffer)} bytes")
    return buffer[position:end], end
