"""Typed records: the cell's fields as in the envelope, the body as its column's own Avro type
(:attr:`cellfeed.bridge.typed.body_schema.BodySchema.cell_text`).

    zero byte, schema id, row_key, column_name, ref_key, added_id, shard, created_at, then 0 and the
    body's Avro binary, or 1 and the body as JSON text

A body that fits no version is JSON text in its record (``envelope``). Or its cell has no record and
is noted with the reason (``park``).

A view may have another :class:`cellfeed.bridge.events.named_formats.Layout`. With milliseconds
``created_at`` is another number. With the body's type alone its schema has no branch for JSON text,
and the bytes stay: a body that fits no version is always parked there. Each layout has its own
schema ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from cellfeed.bridge.events.formats import (
    WIRE_HEAD,
    AvroFormat,
    AvroMillisFormat,
    BatchFormat,
    LeftOut,
)
from cellfeed.bridge.events.named_formats import Layout
from cellfeed.bridge.events.varints import varint
from cellfeed.bridge.typed.declaration import Policy
from cellfeed.bridge.typed.stored_columns import Version
from cellfeed.bridge.typed.typed_column import TypedColumn
from cellfeed.store.cells.cell import StoredCell

Rejected = tuple[StoredCell, str]
"""A cell whose body fits no version, and why."""

_TYPED: Final = varint(0)
_JSON: Final = varint(1)
"""The union's branches. The first is also the length of an empty text: so the envelope of an empty
body ends with it."""

NAME: Final = "typed"


class TypedFormat(BatchFormat):
    """:class:`cellfeed.bridge.events.formats.EventFormat` of one column. ``unfit``: how a body that
    fits no version is handled, as it was settled when this was made; one format never makes both
    kinds of records. ``schema_id_of``: the id of a version in the registry. ``park`` gets the cells
    of a shard that are left out, before records of the batch are shown; where it raises, none is
    shown."""

    content_type: bytes | None = None

    def __init__(
        self,
        column: TypedColumn,
        schema_id_of: Callable[[Version], int] = lambda version: version.schema_id,
        park: Callable[[int, Sequence[Rejected]], None] = lambda shard, rejected: None,
        layout: Layout = Layout(),  # noqa: B008 (it cannot change)
    ) -> None:
        self.column = column
        self.layout = layout
        self.unfit: Policy = "park" if layout.body == "record" else column.settings.unfit
        self._schema_id_of = schema_id_of
        self._park = park
        self._fields = (
            AvroMillisFormat(0, before_body=b"") if layout.created_at == "millis" else AvroFormat(0)
        )
        self._heads: list[bytes] = []

    @property
    def name(self) -> str:
        """Identifies the records: with one more version, a body that fitted none may be typed."""
        said = f"{NAME} {self.column.column} {self.unfit} {len(self.column.versions)}"
        return " ".join((said, *self.layout.said()))

    @property
    def schemas(self) -> list[tuple[Version, int]]:
        """The versions, oldest first, each with its id in the registry. Raises Unavailable."""
        return [(version, self._schema_id_of(version)) for version in self.column.versions]

    def encode_many(
        self,
        shard: int,
        cells: Sequence[StoredCell],
        keys: Sequence[bytes],
        bodies_json: Sequence[bytes],
    ) -> list[bytes]:
        """See :class:`cellfeed.bridge.events.formats.EventFormat`."""
        bodies = self.column.encode(bodies_json)
        heads = self._all_heads()
        parks, skip = self.unfit == "park", WIRE_HEAD.size
        values: list[bytes] = []
        rejected: list[Rejected] = []
        for fields, cell, body_json, (version, data, mismatch) in zip(
            self._fields.encode_many(shard, cells, keys, [b""] * len(cells)),
            cells,
            bodies_json,
            bodies,
            strict=True,
        ):
            if not mismatch:
                values.append(heads[version] + fields[skip:] + data)
            elif parks:
                rejected.append((cell, mismatch))
                values.append(LeftOut(mismatch))
            else:
                values.append(
                    b"".join(
                        (heads[version], fields[skip:-1], _JSON, varint(len(body_json)), body_json)
                    )
                )
        if rejected:
            self._park(shard, rejected)
        return values

    def is_as_json(
        self, shard: int, cell: StoredCell, key: bytes, body_json: bytes, value: bytes
    ) -> bool:
        """Whether a value is this cell's with its body as JSON."""
        if self.layout.body == "record":
            return False
        fields = self._fields.encode(shard, cell, key, b"")
        skip = WIRE_HEAD.size
        return value[:skip] == self._all_heads()[0] and value[skip:] == b"".join(
            (fields[skip:-1], _JSON, varint(len(body_json)), body_json)
        )

    def _all_heads(self) -> list[bytes]:
        if len(self._heads) < len(self.column.versions):
            self._heads = [WIRE_HEAD.pack(0, schema_id) for _, schema_id in self.schemas]
        return self._heads
