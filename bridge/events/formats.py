"""How a cell becomes a record's value: Avro in Confluent's wire format, or JSON. Both carry the
whole cell, so no headers are needed.

Avro: a zero byte, the schema id (4 bytes, big-endian), the Avro binary of
``schemas/avro/cell_envelope.avsc``. Written by hand for speed (an eighth of fastavro's time); a
property test holds the two byte-identical. JSON: one object with the same fields, keys sorted, no
spaces, the body spliced in as it is stored::

    {"added_id":…,"body":{…},"column_name":…,"created_at":"2026-01-31T12:00:00.000000Z",
    "ref_key":…,"row_key":…,"shard":…}

The way back is :func:`cellfeed.bridge.events.envelope.decode_envelope`.

A view may ask for ``created_at`` in milliseconds. In JSON it then has three digits of a second. In
Avro the value is that of ``schemas/avro/cell_envelope_millis.avsc``. There the body is a union of
one branch, so that no reader of the envelope takes milliseconds for microseconds: it finds a body
of no bytes, and refuses the record.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, Literal, Protocol, Self

from cellfeed.bridge.events.varints import (
    MIDDLE,
    PAIRS,
    SMALL,
    TAILS,
    VARINTS,
    varint,
    varint_of_moment,
)
from cellfeed.store.cells.cell import StoredCell, moment

CreatedAt = Literal["micros", "millis"]
"""The unit of ``created_at`` in a record's value."""

FIRST_BRANCH: Final = varint(0)
"""Of a union, before its value."""

WIRE_HEAD: Final = struct.Struct(">bI")
"""Confluent's wire format: magic byte 0, schema id."""

_UUID_LENGTH: Final = varint(36)

_COLUMNS_KEPT_MAX: Final = 10_000
"""Encoded column names that are kept: a bound on memory where programs make up column names without
end."""


class LeftOut(bytes):
    """Instead of a value: the cell has no record, for a ``reason``. It is empty, as no value of any
    format is."""

    reason: str

    def __new__(cls, reason: str) -> Self:
        made = super().__new__(cls)
        made.reason = reason
        return made


class EventFormat(Protocol):
    """How a cell becomes a record's value. ``name`` is the same only for formats that make the same
    records; ``content_type`` is a header that every record carries, where a format asks for one.
    Safe to use from several threads."""

    @property
    def name(self) -> str: ...

    @property
    def content_type(self) -> bytes | None: ...

    def encode(self, shard: int, cell: StoredCell, key: bytes, body_json: bytes) -> bytes:
        """The value of one cell; ``key`` is its row key as text, ``body_json`` its decoded body.
        :class:`LeftOut` for one that gets no record."""
        ...

    def encode_many(
        self,
        shard: int,
        cells: Sequence[StoredCell],
        keys: Sequence[bytes],
        bodies_json: Sequence[bytes],
    ) -> list[bytes]:
        """:meth:`encode` of many cells of one shard, in order, at a third of the cost."""
        ...


class BatchFormat(ABC):
    """Base of formats that encode many cells together, and one as a batch of one."""

    def encode(self, shard: int, cell: StoredCell, key: bytes, body_json: bytes) -> bytes:
        """See :class:`EventFormat`."""
        return self.encode_many(shard, (cell,), (key,), (body_json,))[0]

    @abstractmethod
    def encode_many(
        self,
        shard: int,
        cells: Sequence[StoredCell],
        keys: Sequence[bytes],
        bodies_json: Sequence[bytes],
    ) -> list[bytes]:
        """See :class:`EventFormat`."""


class AvroFormat(BatchFormat):
    """Confluent wire format; ``schema_id`` is the envelope's id in the schema registry."""

    name = "avro"
    content_type: bytes | None = None

    def __init__(self, schema_id: int) -> None:
        self._head = WIRE_HEAD.pack(0, schema_id) + _UUID_LENGTH
        self._columns: dict[str, bytes] = {}
        self._moment: Callable[[int], bytes] = varint_of_moment
        """Microseconds since 1970 as the value has them, with all that comes before the body."""

    def encode_many(
        self,
        shard: int,
        cells: Sequence[StoredCell],
        keys: Sequence[bytes],
        bodies_json: Sequence[bytes],
    ) -> list[bytes]:
        """See :class:`EventFormat`."""
        values: list[bytes] = []
        append, join = values.append, b"".join
        # Names that a loop looks up thousands of times are local, and values that neighbours share
        # are encoded once: cells that were put together have one moment, and the shard stands right
        # before it.
        head, moment_of, columns, small, middle, pairs, tails = (
            self._head,
            self._moment,
            self._columns,
            VARINTS,
            MIDDLE,
            PAIRS,
            TAILS,
        )
        shard_bytes, last_us, shard_and_moment = varint(shard), None, b""
        for (added_id, _, column_name, ref_key, created_at_us, _), key, body_json in zip(
            cells, keys, bodies_json, strict=True
        ):
            if created_at_us != last_us:
                last_us, shard_and_moment = (
                    created_at_us,
                    shard_bytes + moment_of(created_at_us),
                )
            if 0 <= added_id < SMALL:
                added = small[added_id]
            elif SMALL <= added_id < middle:
                added = pairs[added_id << 1 & 0x3FFF] + tails[added_id >> 13]
            else:
                added = varint(added_id)
            length = len(body_json)
            append(
                join(
                    (
                        head,
                        key,
                        columns.get(column_name) or self._column(column_name),
                        small[ref_key] if 0 <= ref_key < SMALL else varint(ref_key),
                        added,
                        shard_and_moment,
                        small[length] if length < SMALL else varint(length),
                        body_json,
                    )
                )
            )
        return values

    def _column(self, column_name: str) -> bytes:
        name = column_name.encode()
        encoded = varint(len(name)) + name
        if len(self._columns) < _COLUMNS_KEPT_MAX:
            self._columns[column_name] = encoded
        return encoded


class AvroMillisFormat(AvroFormat):
    """Confluent wire format with milliseconds; ``schema_id`` is that of ``cell_envelope_millis``.
    ``before_body``: the bytes between the moment and the body."""

    name = "avro millis"

    def __init__(self, schema_id: int, before_body: bytes = FIRST_BRANCH) -> None:
        super().__init__(schema_id)
        self._moment = lambda us: varint_of_moment(us // 1_000) + before_body


class JsonFormat(BatchFormat):
    """One JSON object per cell."""

    content_type: bytes | None = None

    def __init__(self, created_at: CreatedAt = "micros") -> None:
        self._columns: dict[str, bytes] = {}
        self.name = "json" if created_at == "micros" else "json millis"
        self._digits, self._unit_us = (6, 1) if created_at == "micros" else (3, 1_000)

    def encode_many(
        self,
        shard: int,
        cells: Sequence[StoredCell],
        keys: Sequence[bytes],
        bodies_json: Sequence[bytes],
    ) -> list[bytes]:
        """See :class:`EventFormat`."""
        values: list[bytes] = []
        last_second, second_text = None, b""
        digits, unit_us = self._digits, self._unit_us
        for (added_id, _, column_name, ref_key, created_at_us, _), key, body_json in zip(
            cells, keys, bodies_json, strict=True
        ):
            second, microsecond = divmod(created_at_us, 1_000_000)
            if second != last_second:
                last_second, second_text = (
                    second,
                    moment(second * 1_000_000).isoformat()[:19].encode(),
                )
            column = self._columns.get(column_name) or self._column(column_name)
            values.append(
                b'{"added_id":%d,"body":%b,"column_name":%b,"created_at":"%b.%0*dZ",'
                b'"ref_key":%d,"row_key":"%b","shard":%d}'
                % (
                    added_id,
                    body_json,
                    column,
                    second_text,
                    digits,
                    microsecond // unit_us,
                    ref_key,
                    key,
                    shard,
                )
            )
        return values

    def _column(self, column_name: str) -> bytes:
        encoded = json.dumps(column_name, ensure_ascii=False).encode()
        if len(self._columns) < _COLUMNS_KEPT_MAX:
            self._columns[column_name] = encoded
        return encoded
