"""The cell envelope: a record's value in either format, and from it back to the cell: exactly the
written one, or an error.

Nothing is guessed and nothing half-read is returned. Avro carries its lengths and a record batch
its checksum, so the body inside is only checked to be one JSON object in UTF-8. JSON values pass
through programs that parse JSON and write it again. That changes spelling but not meaning; a digest
would differ and nobody would know why. So a JSON value is accepted only if it is byte for byte the
output of :class:`~cellfeed.bridge.events.formats.JsonFormat`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final

import msgspec

from cellfeed.bridge.events.decoded_event import DecodedEvent, checked_event, row_key_of
from cellfeed.bridge.events.formats import WIRE_HEAD, AvroFormat, EventFormat, JsonFormat
from cellfeed.bridge.events.record_headers import ADDED_ID, COLUMN_NAME, REF_KEY
from cellfeed.bridge.events.varints import read_varint, varint
from cellfeed.store.cells.canonical_json import canonical_from_json
from cellfeed.store.cells.cell import ERASED_JSON, StoredCell, check_column_name, microseconds
from cellfeed.store.errors import CellfeedError, DataDamaged
from cellfeed.store.limits import BODY_BYTES_MAX

__all__ = [
    "AvroFormat",
    "DecodedEvent",
    "EventFormat",
    "JsonFormat",
    "decode_envelope",
    "decode_record",
]


_KEY_AT: Final = WIRE_HEAD.size + 1
_KEY_END: Final = _KEY_AT + 36
_KEY_LENGTH: Final = varint(36)[0]

_columns: dict[bytes, str] = {}
_COLUMNS_KEPT_MAX: Final = 10_000
"""Column names that were found good and are kept: a bound on memory where programs make up names
without end."""

_JSON: Final = re.compile(
    rb'\{"added_id":(\d{1,19}),"body":(\{.*\}),"column_name":("(?:[^"\\]|\\.)*"),'
    rb'"created_at":"([0-9T:.-]{26})Z",'
    rb'"ref_key":(-?\d{1,19}),"row_key":"([0-9a-f-]{36})","shard":(\d{1,10})\}',
    re.DOTALL,
)
"""The body is cut out as it stands: a quote within any string is escaped, so the last
``},"column_name":"`` is the envelope's own."""

_check_json: Final = msgspec.json.Decoder(msgspec.Raw).decode
_text: Final = msgspec.json.Decoder(str).decode
_json_format: Final = JsonFormat()


def decode_envelope(value: bytes | None) -> DecodedEvent:
    """A record's value in either format, distinguished by its first byte. Raises DataDamaged when
    it is not a whole envelope.

    The schema id is not looked at: the envelope has one version under any id. Other layouts of a
    cell (typed, in milliseconds) are refused by their form.
    """
    if value is None or len(value) < 2:
        raise DataDamaged("a record without a value is not a cell")
    try:
        event = _decode_avro(value) if value[0] == 0 else _decode_json(value)
    except DataDamaged:
        raise
    except (
        ValueError,
        IndexError,
        OverflowError,
        RecursionError,
        msgspec.MsgspecError,
        CellfeedError,
    ) as error:
        raise DataDamaged(
            f"a record of {len(value)} bytes is not a cell: {type(error).__name__}: {error}"
        ) from error
    return checked_event(event)


def decode_record(
    shard: int,
    key: bytes | None,
    value: bytes | None,
    headers: Mapping[str, bytes],
    timestamp_ms: int,
) -> DecodedEvent:
    """A record of a partition, also one without a value: an erased cell, known by its key, headers
    and timestamp (so ``created_at_us`` is whole milliseconds), with ``ERASED_JSON`` for its body.
    Raises DataDamaged."""
    if value is not None:
        return decode_envelope(value)
    try:
        added_id, ref_key, column = (
            int(headers[ADDED_ID]),
            int(headers[REF_KEY]),
            headers[COLUMN_NAME],
        )
        event = DecodedEvent(
            shard,
            added_id,
            row_key_of(key or b""),
            check_column_name(column.decode()),
            ref_key,
            timestamp_ms * 1000,
            ERASED_JSON,
        )
    except (KeyError, ValueError, CellfeedError) as error:
        raise DataDamaged(
            f"a record without a value names no erased cell: {type(error).__name__}: {error}"
        ) from error
    return checked_event(event)


def _decode_avro(value: bytes) -> DecodedEvent:
    if len(value) < _KEY_END or value[_KEY_AT - 1] != _KEY_LENGTH:
        raise DataDamaged(
            f"a record of {len(value)} bytes has no row key of 36 bytes behind its head"
        )
    column, at = _read_bytes(value, _KEY_END)
    ref_key, at = read_varint(value, at)
    added_id, at = read_varint(value, at)
    shard, at = read_varint(value, at)
    created_at_us, at = read_varint(value, at)
    body_json, at = _read_bytes(value, at)
    if body_json[:1] != b"{" and len(body_json) < 2:
        raise DataDamaged(
            "a record is typed, or has milliseconds, or is damaged: read a topic whose format is"
            " avro, json or cloudevents, without created_at: millis, as the topic of all cells"
        )
    if at != len(value):
        raise DataDamaged(f"a record has {len(value) - at} bytes behind its envelope")
    if body_json[:1] != b"{" or len(body_json) > BODY_BYTES_MAX:
        raise DataDamaged(
            f"a record's body of {len(body_json)} bytes is not a JSON object, or larger than any"
        )
    _check_json(body_json)
    body_json.decode()  # the check before does not look into strings
    column_name = _columns.get(column) or _column_name(column)
    return DecodedEvent(
        shard,
        added_id,
        row_key_of(value[_KEY_AT:_KEY_END]),
        column_name,
        ref_key,
        created_at_us,
        body_json,
    )


def _decode_json(value: bytes) -> DecodedEvent:
    match = _JSON.fullmatch(value)
    if match is None:
        raise DataDamaged(
            f"a record of {len(value)} bytes is neither Avro nor JSON as cellfeed writes it"
        )
    added_id, body_json, column, created_at, ref_key, key, shard = match.groups()
    if canonical_from_json(body_json) != body_json:
        raise DataDamaged("a record's body is not canonical JSON")
    created_at_us = microseconds(datetime.fromisoformat(created_at.decode() + "+00:00"))
    event = DecodedEvent(
        int(shard),
        int(added_id),
        row_key_of(key),
        check_column_name(_text(column)),
        int(ref_key),
        created_at_us,
        body_json,
    )
    cell = StoredCell(
        event.added_id, event.row_key, event.column_name, event.ref_key, created_at_us, b""
    )
    if _json_format.encode(event.shard, cell, key, body_json) != value:
        raise DataDamaged("a record is JSON, but not as cellfeed writes it")
    return event


def _column_name(column: bytes) -> str:
    name = check_column_name(column.decode())
    if len(_columns) < _COLUMNS_KEPT_MAX:
        _columns[column] = name
    return name


def _read_bytes(buffer: bytes, position: int) -> tuple[bytes, int]:
    length, position = read_varint(buffer, position)
    end = position + length
    if length < 0 or end > len(buffer):
        raise DataDamaged(
            f"a field of {length} bytes at byte {position} goes beyond the record's {len(buffer)}"
            " bytes"
        )
    return buffer[position:end], end
