"""The columns of a body's schema: for each Avro type msgspec's type, Arrow's type, and the function
that makes an array of decoded values.

msgspec checks the JSON of a whole batch in C: members that are missing or unknown, and the kinds of
values. The forms of text are checked in Arrow. A union of several types, and a record that contains
itself or nothing, have no type of column: they stand as JSON text, and their values are not checked
here (:attr:`Shape.is_checked`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from operator import attrgetter
from typing import Annotated, Any, Final, Literal

import msgspec
import pyarrow as pa
from msgspec import UNSET, Meta, UnsetType

from cellfeed.bridge.typed.avro_types import AvroField, AvroType
from cellfeed.consumers.lake.typed.leaves import Build, leaf

_INT: Final = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
_DECODED: Final[dict[str, Any]] = {
    "boolean": bool,
    "int": _INT,
    "long": int,
    "float": int | float,
    "double": int | float,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """``decoded``: msgspec's type, without null; ``arrow``: the column's; ``build``: an array of
    decoded values, where None is null; ``is_checked``: whether decoding and building refuse every
    value that is not exactly of the Avro type."""

    decoded: Any
    arrow: pa.DataType
    build: Build
    is_checked: bool = True
    may_be_null: bool = False

    @property
    def decoded_with_null(self) -> Any:
        return self.decoded | None if self.may_be_null else self.decoded


def shape_of(avro: AvroType, inside: frozenset[str] = frozenset()) -> Shape:
    """``inside``: names of the records around the type."""
    if avro.kind == "union":
        branches = [each for each in avro.branches if each.kind != "null"]
        if len(branches) != 1:
            return AS_JSON
        inner = shape_of(branches[0], inside)
        if inner is AS_JSON or len(branches) == len(avro.branches):
            return inner
        return replace(inner, may_be_null=True)
    if avro.kind == "record":
        if inside and stands_as_json(avro, inside):
            return AS_JSON
        return _record(avro, inside | {avro.name})
    if avro.kind in ("array", "map"):
        assert avro.items is not None  # noqa: S101 (for the type checker)
        inner = shape_of(avro.items, inside)
        return _list(inner) if avro.kind == "array" else _map(inner)
    found = leaf(avro)
    if found is None:
        return AS_JSON
    if avro.kind == "enum":
        return Shape(Literal[avro.symbols], *found)
    return Shape(str if avro.logical else _DECODED.get(avro.kind, str), *found)


def stands_as_json(record: AvroType, inside: frozenset[str]) -> bool:
    """Whether a record within others has no type of column: files have no record without
    members, and none that contains itself."""
    return not record.fields or record.name in inside


def _record(avro: AvroType, inside: frozenset[str]) -> Shape:
    shapes = [shape_of(field.type, inside) for field in avro.fields]
    places = [f"f{place}" for place in range(len(shapes))]
    decoded = msgspec.defstruct(
        "Body",
        [
            _member(place, field, shape)
            for place, field, shape in zip(places, avro.fields, shapes, strict=True)
        ],
        forbid_unknown_fields=True,
        gc=False,
        kw_only=True,
        rename={place: field.name for place, field in zip(places, avro.fields, strict=True)},
    )
    of_fields = [
        pa.field(field.name, shape.arrow) for field, shape in zip(avro.fields, shapes, strict=True)
    ]

    def build(values: Sequence[Any]) -> pa.Array:
        mask = None
        if None in values:
            mask = pa.array([each is None for each in values], pa.bool_())
            values = [_NOTHING if each is None else each for each in values]
        arrays = []
        for place, field, shape in zip(places, avro.fields, shapes, strict=True):
            members: list[Any] = (
                [getattr(each, place, None) for each in values]
                if mask is not None
                else list(map(attrgetter(place), values))
            )
            if field.may_be_missing:
                members = [None if each is UNSET else each for each in members]
            arrays.append(shape.build(members))
        return pa.StructArray.from_arrays(arrays, fields=of_fields, mask=mask)

    return Shape(decoded, pa.struct(of_fields), build, all(each.is_checked for each in shapes))


_NOTHING: Final = object()


def _member(place: str, field: AvroField, shape: Shape) -> Any:
    if not field.may_be_missing:
        return place, shape.decoded_with_null
    if shape is AS_JSON:
        return place, shape.decoded, UNSET
    # Null is no value of such a member: it stands for one that is missing.
    return place, shape.decoded | UnsetType, UNSET


def _list(inner: Shape) -> Shape:
    kind = pa.list_(inner.arrow)

    def build(values: Sequence[Any]) -> pa.Array:
        lists = [() if each is None else each for each in values]
        ends = accumulate(map(len, lists), initial=0)
        return pa.ListArray.from_arrays(
            pa.array(ends, pa.int32()),
            inner.build(list(chain.from_iterable(lists))),
            type=kind,
            mask=pa.array([each is None for each in values], pa.bool_()),
        )

    return Shape(list[inner.decoded_with_null], kind, build, inner.is_checked)  # type: ignore[name-defined]


def _map(inner: Shape) -> Shape:
    kind = pa.map_(pa.string(), inner.arrow)

    def build(values: Sequence[Any]) -> pa.Array:
        maps: list[dict[str, Any]] = [{} if each is None else each for each in values]
        ends = accumulate(map(len, maps), initial=0)
        return pa.MapArray.from_arrays(
            pa.array(ends, pa.int32()),
            pa.array(list(chain.from_iterable(maps)), pa.string()),
            inner.build(list(chain.from_iterable(each.values() for each in maps))),
            type=kind,
            mask=pa.array([each is None for each in values], pa.bool_()),
        )

    return Shape(dict[str, inner.decoded_with_null], kind, build, inner.is_checked)  # type: ignore[name-defined]


def _texts(values: Sequence[Any]) -> pa.Array:
    plain = [None if each is None else bytes(each).decode() for each in values]
    return pa.array([None if each == "null" else each for each in plain], pa.string())


AS_JSON: Final = Shape(msgspec.Raw, pa.string(), _texts, is_checked=False)
