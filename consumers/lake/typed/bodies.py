"""Bodies of one column as typed rows, exactly or not at all.

A body has the oldest version of the schema that it fits, as in the gateway's typed topics
(:mod:`cellfeed.bridge.typed.typed_column`). There are three ways, each
for the bodies that the one before leaves:

1. A whole batch by the oldest version: one call of msgspec, then whole columns in Arrow.
2. Body by body, by the version whose members and kinds it has; each version's as whole columns.
3. Body by body, by :class:`cellfeed.bridge.typed.body_encoder.BodyEncoder`. It has the last word,
   and the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from cellfeed.bridge.typed.body_encoder import BodyEncoder, decoded
from cellfeed.bridge.typed.body_schema import body_schema
from cellfeed.bridge.typed.mismatch import SchemaMismatch
from cellfeed.consumers.lake.typed.conforming import conform
from cellfeed.consumers.lake.typed.merged_schema import MergedSchema
from cellfeed.consumers.lake.typed.shapes import shape_of

_NOT_EXACT: Final = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError)


class TypedRows(NamedTuple):
    """``places``: of the bodies that fit, among those given; ``versions``: the number of each one's
    version; ``columns``: the schema's, with as many rows. ``unfit``: places and reasons of the
    others. ``is_whole``: all bodies fit, and are in their order."""

    places: list[int]
    versions: list[int]
    columns: list[pa.Array]
    unfit: list[tuple[int, str]]
    is_whole: bool = False


class _Version:
    def __init__(self, number: int, text: str) -> None:
        root = body_schema(text).root
        self.number = number
        self.shape = shape_of(root)
        self.encoder = BodyEncoder(root)
        self.decode = msgspec.json.Decoder(self.shape.decoded).decode
        self.decode_many = msgspec.json.Decoder(list[self.shape.decoded]).decode  # type: ignore[name-defined]


class ColumnBodies:
    """``versions``: texts of the body's schemas, oldest first, with numbers from 1."""

    def __init__(self, column: str, versions: Sequence[str]) -> None:
        self.column = column
        self.count = len(versions)
        known = [_Version(number, text) for number, text in enumerate(versions, 1)]
        self.schema = MergedSchema([(each.number, each.shape.arrow) for each in known])
        self._versions = [each for each in known if each.number not in self.schema.refused]

    def rows(self, bodies: Sequence[bytes]) -> TypedRows:
        """``bodies``: canonical JSON."""
        if not bodies:
            return TypedRows([], [], [pa.nulls(0, each.type) for each in self.schema.fields], [])
        whole = self._whole(bodies)
        return whole if whole is not None else self._by_version(bodies)

    def _whole(self, bodies: Sequence[bytes]) -> TypedRows | None:
        if not self._versions or not (first := self._versions[0]).shape.is_checked:
            return None
        try:
            values = first.decode_many(b"[" + b",".join(bodies) + b"]")
            columns = self._columns(first, values)
        except (msgspec.ValidationError, *_NOT_EXACT):
            return None
        places, numbers = list(range(len(bodies))), [first.number] * len(bodies)
        return TypedRows(places, numbers, columns, [], is_whole=True)

    def _by_version(self, bodies: Sequence[bytes]) -> TypedRows:
        taken: list[list[tuple[int, Any]]] = [[] for _ in self._versions]
        unfit: list[tuple[int, str]] = []
        for place, body in enumerate(bodies):
            for index, version in enumerate(self._versions):
                try:
                    value = version.decode(body)
                    if not version.shape.is_checked:
                        version.encoder.encode(decoded(body))
                    taken[index].append((place, value))
                    break
                except (msgspec.ValidationError, SchemaMismatch):
                    continue
            else:
                unfit.append((place, self._reason(body)))
        parts: list[tuple[list[int], int, list[pa.Array]]] = []
        for version, found in zip(self._versions, taken, strict=True):
            if not found:
                continue
            places = [place for place, _ in found]
            try:
                columns = self._columns(version, [value for _, value in found])
            except _NOT_EXACT:
                return self._one_by_one(bodies)
            parts.append((places, version.number, columns))
        return self._joined(parts, unfit)

    def _one_by_one(self, bodies: Sequence[bytes]) -> TypedRows:
        parts: list[tuple[list[int], int, list[pa.Array]]] = []
        unfit: list[tuple[int, str]] = []
        for place, body in enumerate(bodies):
            for version in self._versions:
                try:
                    version.encoder.encode(decoded(body))
                    columns = self._columns(version, [version.decode(body)])
                    parts.append(([place], version.number, columns))
                    break
                except (SchemaMismatch, msgspec.ValidationError, *_NOT_EXACT):
                    continue
            else:
                unfit.append((place, self._reason(body)))
        return self._joined(parts, unfit)

    def _columns(self, version: _Version, values: Sequence[Any]) -> list[pa.Array]:
        record: Any = version.shape.build(values)
        has = {record.type.field(place).name: place for place in range(record.type.num_fields)}
        return [
            conform(record.field(has[name]), field.type)
            if name in has
            else pa.nulls(len(values), field.type)
            for name, field in zip(self.schema.members, self.schema.fields, strict=True)
        ]

    def _joined(
        self, parts: list[tuple[list[int], int, list[pa.Array]]], unfit: list[tuple[int, str]]
    ) -> TypedRows:
        return TypedRows(
            [place for places, _, _ in parts for place in places],
            [number for places, number, _ in parts for _ in places],
            [
                pa.concat_arrays([columns[index] for _, _, columns in parts])
                if parts
                else pa.nulls(0, field.type)
                for index, field in enumerate(self.schema.fields)
            ],
            unfit,
        )

    def _reason(self, body: bytes) -> str:
        """Why a body fits no version that the table takes."""
        reason = f"column {self.column} has no schema"
        for version in self._versions:
            try:
                version.encoder.encode(decoded(body))
                reason = "a value is beyond the range of its column's type"
            except SchemaMismatch as mismatch:
                reason = str(mismatch)
        for number, why in self.schema.refused.items():
            reason = f"{reason}; version {number} of the schema is not taken: {why}"
        return reason
