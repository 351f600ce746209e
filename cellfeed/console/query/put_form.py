"""The form that puts a cell, checked as a put is, and the cell that it would make."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID, uuid4

import msgspec

from cellfeed.bridge.typed.typed_column import TypedColumns
from cellfeed.store.cells.canonical_json import canonical_from_json
from cellfeed.store.cells.cell import check_new_column, check_ref_key
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellConflict, InvalidBody, InvalidRefKey, InvalidRowKey
from cellfeed.store.security.callers import Caller


class PutForm(msgspec.Struct):
    """The fields as they were typed. ``row_key``: a new one without."""

    row_key: str = ""
    column: str = ""
    ref_key: str = "1"
    body: str = "{}"


class CheckedPut(NamedTuple):
    """A cell that may be put. ``schema``: which version of the column's schema its body fits; empty
    where the column has none. ``exists``: the same cell is there already."""

    row_key: UUID
    column: str
    ref_key: int
    body_json: bytes
    shard: int
    schema: str
    exists: bool


def checked_put(datastore: Datastore, caller: Caller, form: PutForm) -> CheckedPut:
    """The cell of a form. Raises Forbidden without the right to put the column, and InvalidRequest
    for a wrong field. Raises InvalidBody for a body that fits no version of the column's schema,
    CellConflict where another body is there."""
    column = check_new_column(form.column.strip())
    caller.check_columns("put", [column])
    try:
        row_key = UUID(form.row_key.strip()) if form.row_key.strip() else uuid4()
    except ValueError:
        raise InvalidRowKey(
            f"row key {ascii(form.row_key)[:60]} is no UUID; leave it empty for a new row"
        ) from None
    text = form.ref_key.strip()
    if not (text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= 20):
        raise InvalidRefKey(f"ref key {ascii(text)[:40]} is no whole number")
    ref_key = check_ref_key(int(text))
    body = canonical_from_json(form.body.encode())
    exists = False
    if caller.may_column("read", column):
        found = datastore.get_cell(row_key, column, ref_key)
        if found is not None and found.body_json != body:
            raise CellConflict(
                f"row {row_key} has another body in column {column} at ref key {ref_key} already:"
                " a cell never changes; put a higher ref key"
            )
        exists = found is not None
    schema = _schema(datastore, column, body)
    return CheckedPut(row_key, column, ref_key, body, datastore.shard_of(row_key), schema, exists)


def _schema(datastore: Datastore, column: str, body: bytes) -> str:
    typed = TypedColumns(datastore.state).named(column)
    if typed is None:
        return ""
    [fits] = typed.encode([body])
    if fits.mismatch:
        raise InvalidBody(
            f"the body fits no version of the schema of column {column}: {fits.mismatch}"
        )
    return f"version {typed.versions[fits.version].number}"
