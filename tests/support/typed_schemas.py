"""Strategies of Avro schemas with bodies that fit them, and a reader of Avro binary that gives the
JSON back: by the specification, without the product."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from datetime import date, datetime, timedelta
from itertools import count
from typing import Any, NamedTuple

from hypothesis import strategies as st

FIELD_NAMES = st.sampled_from(["a", "b", "c", "fare_cents", "kind", "nested", "list"])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
MOMENTS = st.datetimes()
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (moments with and without a zone are counted from it)
MISSING = object()


class Drawn(NamedTuple):
    """A schema, and values that fit it."""

    schema: Any
    values: st.SearchStrategy[Any]


def leaves(names: Iterator[int]) -> st.SearchStrategy[Drawn]:
    longs = st.integers(-(1 << 63), (1 << 63) - 1)
    floats = st.floats(allow_nan=False, allow_infinity=False)
    plain = [
        Drawn("null", st.none()),
        Drawn("boolean", st.booleans()),
        Drawn("int", st.integers(-(1 << 31), (1 << 31) - 1)),
        Drawn("long", longs),
        Drawn("float", st.floats(allow_nan=False, allow_infinity=False, width=32)),
        Drawn("double", floats | st.integers(-(1 << 53), 1 << 53)),
        Drawn("string", TEXTS),
        Drawn({"type": "string", "logicalType": "uuid"}, st.uuids().map(str)),
        Drawn({"type": "int", "logicalType": "date"}, st.dates().map(date.isoformat)),
        Drawn(
            {"type": "long", "logicalType": "timestamp-micros"},
            MOMENTS.map(lambda at: at.isoformat() + "Z"),
        ),
        Drawn(
            {"type": "long", "logicalType": "timestamp-millis"},
            MOMENTS.map(lambda at: at.isoformat(timespec="milliseconds") + "Z"),
        ),
        Drawn(
            {"type": "long", "logicalType": "local-timestamp-micros"},
            MOMENTS.map(datetime.isoformat),
        ),
        Drawn(
            {"type": "long", "logicalType": "local-timestamp-millis"},
            MOMENTS.map(lambda at: at.isoformat(timespec="milliseconds")),
        ),
        Drawn(
            {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, decimals(9, 2)
        ),
        Drawn({"type": "bytes", "logicalType": "decimal", "precision": 5}, decimals(5, 0)),
    ]
    fixed = st.builds(
        lambda n: Drawn(
            {
                "type": "fixed",
                "name": f"F{n}",
                "size": 4,
                "logicalType": "decimal",
                "precision": 9,
                "scale": 4,
            },
            decimals(9, 4),
        ),
        st.builds(lambda: next(names)),
    )
    enum = st.builds(
        lambda n: Drawn(
            {"type": "enum", "name": f"E{n}", "symbols": ["ONE", "TWO"]},
            st.sampled_from(["ONE", "TWO"]),
        ),
        st.builds(lambda: next(names)),
    )
    return st.sampled_from(plain) | fixed | enum


def decimals(precision: int, scale: int) -> st.SearchStrategy[str]:
    def text(unscaled: int) -> str:
        digits = str(abs(unscaled)).rjust(scale + 1, "0")
        whole, part = (digits[:-scale], digits[-scale:]) if scale else (digits, "")
        return f"{'-' if unscaled < 0 else ''}{whole}{'.' if scale else ''}{part}"

    return st.integers(-(10**precision) + 1, 10**precision - 1).map(text)


@st.composite
def records(draw: st.DrawFn, names: Iterator[int] | None = None, depth: int = 2) -> Drawn:
    """A record and bodies that fit it; members whose field may be missing are there or not."""
    names = names or count()
    fields, required, optional = [], {}, {}
    name = f"R{next(names)}"
    for field in draw(st.lists(FIELD_NAMES, max_size=4, unique=True)):
        drawn = draw(types(names, depth))
        kind = (
            draw(st.sampled_from(["plain", "missing", "null", "default"]))
            if drawn.schema != "null" and not isinstance(drawn.schema, list)
            else "plain"
        )
        if kind == "missing":
            fields.append({"name": field, "type": ["null", drawn.schema], "default": None})
            optional[field] = drawn.values
        elif kind == "null":
            fields.append({"name": field, "type": ["null", drawn.schema]})
            required[field] = st.none() | drawn.values
        else:
            fields.append({"name": field, "type": drawn.schema})
            required[field] = drawn.values
    return Drawn(
        {"type": "record", "name": name, "fields": fields},
        st.fixed_dictionaries(required, optional=optional),
    )


@st.composite
def types(draw: st.DrawFn, names: Iterator[int], depth: int) -> Drawn:
    kind = (
        draw(st.sampled_from(["leaf", "leaf", "leaf", "array", "map", "record", "union"]))
        if depth
        else "leaf"
    )
    if kind == "record":
        return draw(records(names, depth - 1))
    if kind == "union":
        branches = draw(st.lists(leaves(names), min_size=1, max_size=3, unique_by=unnamed_kind))
        return Drawn(
            [branch.schema for branch in branches],
            st.one_of(*(branch.values for branch in branches)),
        )
    if kind in ("array", "map"):
        inner = draw(types(names, depth - 1))
        values = (
            st.lists(inner.values, max_size=3)
            if kind == "array"
            else st.dictionaries(TEXTS, inner.values, max_size=3)
        )
        return Drawn({"type": kind, "items" if kind == "array" else "values": inner.schema}, values)
    return draw(leaves(names))


def unnamed_kind(drawn: Drawn) -> str:
    """The kind that two branches of a union may not have in common."""
    return str(
        drawn.schema
        if isinstance(drawn.schema, str)
        else drawn.schema.get("name", drawn.schema["type"])
    )


class AvroReader:
    """Reads Avro binary by a schema and gives the JSON value that it stands for."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        self._named: dict[str, Any] = {}

    def read(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return self.read(schema[self._long()])
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.read(kind)
        if "name" in schema:
            self._named[schema["name"]] = schema
        return getattr(self, f"_{kind}")(schema)

    def _record(self, schema: Mapping[str, Any]) -> Any:
        found = {}
        for field in schema["fields"]:
            value = self.read(field["type"])
            if value is not None or field.get("default", MISSING) is not None:
                found[field["name"]] = value
        return found

    def _null(self, _: Any) -> Any:
        return None

    def _boolean(self, _: Any) -> Any:
        return {0: False, 1: True}[self._take(1)[0]]

    def _int(self, schema: Mapping[str, Any]) -> Any:
        value = self._long()
        return (
            (date(1970, 1, 1) + timedelta(days=value)).isoformat()
            if schema.get("logicalType") == "date"
            else value
        )

    def _long(self, schema: Mapping[str, Any] | None = None) -> Any:
        value = shift = 0
        while True:
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        value = (value >> 1) ^ -(value & 1)
        logical = (schema or {}).get("logicalType", "")
        if not logical:
            return value
        is_millis = logical.endswith("millis")
        at = EPOCH + timedelta(microseconds=value * (1000 if is_millis else 1))
        return at.isoformat(timespec="milliseconds" if is_millis else "auto") + (
            "" if logical.startswith("local") else "Z"
        )

    def _float(self, _: Any) -> Any:
        return struct.unpack("<f", self._take(4))[0]

    def _double(self, _: Any) -> Any:
        return struct.unpack("<d", self._take(8))[0]

    def _string(self, _: Any = None) -> Any:
        return self._take(self._long()).decode()

    def _bytes(self, schema: Mapping[str, Any]) -> Any:
        return self._decimal(self._take(self._long()), schema)

    def _fixed(self, schema: Mapping[str, Any]) -> Any:
        return self._decimal(self._take(schema["size"]), schema)

    def _enum(self, schema: Mapping[str, Any]) -> Any:
        return schema["symbols"][self._long()]

    def _array(self, schema: Mapping[str, Any]) -> Any:
        return [self.read(schema["items"]) for size in self._blocks() for _ in range(size)]

    def _map(self, schema: Mapping[str, Any]) -> Any:
        return {
            self._string(): self.read(schema["values"])
            for size in self._blocks()
            for _ in range(size)
        }

    def _blocks(self) -> Iterator[int]:
        while size := self._long():
            assert size > 0
            yield size

    def _decimal(self, data: bytes, schema: Mapping[str, Any]) -> str:
        unscaled, scale = int.from_bytes(data, "big", signed=True), schema.get("scale", 0)
        whole, part = divmod(abs(unscaled), 10**scale)
        return f"{'-' if unscaled < 0 else ''}{whole}" + (f".{part:0{scale}d}" if scale else "")

    def _take(self, size: int) -> bytes:
        taken = self._data[self.at : self.at + size]
        assert len(taken) == size, "the data is cut"
        self.at += size
        return taken


def same(one: Any, other: Any) -> bool:
    """Whether two decoded JSON values are the same; 2 and 2.0 are one number, true is none, and
    -0.0 is not 0."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return one == other and (one != 0 or str(float(one)) == str(float(other)))
    return type(one) is type(other) and bool(one == other)
