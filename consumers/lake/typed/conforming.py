"""An array as another type of the same values: columns of earlier schemas, and UUIDs as a format
has them in files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from cellfeed.consumers.lake.typed.uuid_arrays import BYTES, uuid_bytes, uuid_texts


def conform(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Adds members of records that the array lacks, as null. Raises pyarrow's errors and ValueError
    for values that are not of the type."""
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks() if array.num_chunks != 1 else array.chunk(0)
    kind: Any = array.type
    if kind == wanted:
        return array
    if isinstance(wanted, pa.UuidType):
        return pa.ExtensionArray.from_storage(wanted, conform(array, BYTES))
    if isinstance(kind, pa.UuidType):
        return conform(array.storage, wanted)
    if wanted == BYTES and _is_text(kind):
        return uuid_bytes(array)
    if kind == BYTES and _is_text(wanted):
        return uuid_texts(array).cast(wanted)
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        return _record(array, wanted)
    if array.offset and pa.types.is_nested(kind):
        # Arrow makes no lists with nulls from a part of an array.
        array = pa.concat_arrays([array, array.slice(0, 0)])
    if pa.types.is_map(kind) and pa.types.is_map(wanted):
        return _map(array, wanted)
    if pa.types.is_nested(kind) and pa.types.is_nested(wanted):
        return _list(array, wanted)
    return array.cast(wanted)


def conform_table(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Each column as the schema has it; columns that the table lacks are null."""
    return pa.Table.from_arrays(
        [
            _conformed(table[field.name], field.type)
            if field.name in table.column_names
            else pa.nulls(table.num_rows, field.type)
            for field in wanted
        ],
        schema=wanted,
    )


def lacks(has: Any, wanted: Any) -> bool:
    """Whether a schema or record lacks a column or member of another, by name."""
    names = [field.name for field in has]
    return any(
        field.name not in names or _member_lacks(has.field(field.name).type, field.type)
        for field in wanted
    )


def _member_lacks(has: Any, wanted: Any) -> bool:
    if pa.types.is_struct(has) and pa.types.is_struct(wanted):
        return lacks(has, wanted)
    if pa.types.is_map(has) and pa.types.is_map(wanted):
        return _member_lacks(has.item_type, wanted.item_type)
    if pa.types.is_nested(has) and pa.types.is_nested(wanted):
        return _member_lacks(has.value_type, wanted.value_type)
    return False


def with_uuids_as(schema: pa.Schema, wanted: pa.DataType) -> pa.Schema:
    """The schema with another type in the place of 16 bytes."""
    return pa.schema([field.with_type(_with_uuids(field.type, wanted)) for field in schema])


def _with_uuids(kind: Any, wanted: pa.DataType) -> pa.DataType:
    if kind == BYTES:
        return wanted
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        return pa.struct([each.with_type(_with_uuids(each.type, wanted)) for each in fields])
    if pa.types.is_list(kind):
        return pa.list_(_with_uuids(kind.value_type, wanted))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _with_uuids(kind.item_type, wanted))
    return kind


def _conformed(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray | pa.Array:
    return column if column.type == wanted else conform(column, wanted)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _record(array: Any, wanted: Any) -> pa.Array:
    has = {array.type.field(place).name: place for place in range(array.type.num_fields)}
    fields = [wanted.field(place) for place in range(wanted.num_fields)]
    children = [
        # Without the parent's nulls: those are the mask.
        conform(array.field(has[field.name]), field.type)
        if field.name in has
        else pa.nulls(len(array), field.type)
        for field in fields
    ]
    return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())


def _list(array: Any, wanted: Any) -> pa.Array:
    values = conform(array.values, wanted.value_type)
    of = pa.LargeListArray if pa.types.is_large_list(wanted) else pa.ListArray
    offsets = array.offsets.cast(pa.int64() if of is pa.LargeListArray else pa.int32())
    return of.from_arrays(offsets, values, type=wanted, mask=array.is_null())


def _map(array: Any, wanted: Any) -> pa.Array:
    keys = conform(array.keys, wanted.key_type)
    items = conform(array.items, wanted.item_type)
    return pa.MapArray.from_arrays(array.offsets, keys, items, type=wanted, mask=array.is_null())
