"""The Avro schema of a column's bodies: the part of Avro that a JSON body can be exactly, checked,
as a tree of types.

The top is a record, as a body is an object. A type without JSON values is refused here, when the
schema is declared, and not when a cell comes: ``bytes`` and ``fixed`` without a decimal,
``time-*``, ``duration``. How each type stands for JSON is said in
:mod:`cellfeed.bridge.typed.body_encoder`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import cellfeed.schemas
from cellfeed.bridge.events.avro_text import NOT_AVRO, checked_avro
from cellfeed.bridge.events.named_formats import Layout
from cellfeed.bridge.events.registry import envelope_name
from cellfeed.bridge.typed.avro_types import AvroType, TypeReader
from cellfeed.store.errors import InvalidRequest

SCHEMA_BYTES_MAX: Final = 256 << 10
"""Bytes of a schema file: real ones have a few kilobytes, and every gateway keeps all versions in
memory."""


CELL_SUFFIX: Final = "Cell"
"""Behind the name of the body's record: the record of the whole cell."""

_USUAL: Final = Layout()


@dataclass(frozen=True, slots=True)
class BodySchema:
    """A schema that was checked. ``text``: compact JSON of the body's schema; ``cell_text``: that
    of the record's value; ``name``: of the body's record."""

    name: str
    text: str
    cell_text: str
    root: AvroType


def body_schema(text: str) -> BodySchema:
    """Reads a schema. Raises InvalidRequest: the fault, its place, and the remedy."""
    if len(text.encode(errors="surrogatepass")) > SCHEMA_BYTES_MAX:
        raise InvalidRequest(f"the schema has more than {SCHEMA_BYTES_MAX >> 10} KiB")
    try:
        raw = checked_avro(text)
        if not isinstance(raw, dict) or raw.get("type") != "record":
            raise InvalidRequest("the schema of a body is a record: a body is a JSON object")
        reader = TypeReader()
        root = reader.read(raw, "", "body", 0)
    except NOT_AVRO as error:
        raise InvalidRequest(
            f"it is no Avro schema: {type(error).__name__}: {error!s:.300}"
        ) from None
    if root.name + CELL_SUFFIX in reader.named:
        raise InvalidRequest(
            f"the name {root.name}{CELL_SUFFIX} is that of the whole cell's record: give the type"
            " in it another name"
        )
    return BodySchema(root.name, _compact(raw), _compact(_cell_schema(raw, root.name)), root)


def cell_text(body_text: str, name: str, layout: Layout) -> str:
    """Compact JSON of the schema of the record's value in a layout; ``name`` is that of the body's
    record."""
    return _compact(_cell_schema(json.loads(body_text), name, layout))


def _compact(schema: Any) -> str:
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def _cell_schema(body: dict[str, Any], name: str, layout: Layout = _USUAL) -> dict[str, Any]:
    """The cell envelope with the body as its own type, or as JSON where it does not fit. The type
    alone is a union of one branch: programs that read Avro show it without the union.

    The type is a branch of a union: this distinguishes the record from an envelope under any id.
    Where that has a text of at least two bytes (``{}``), this has the number 0 or 1
    (:func:`cellfeed.bridge.events.envelope.decode_envelope`).
    """
    namespace, _, last = name.rpartition(".")
    cell = cellfeed.schemas.load_avro(envelope_name(layout.created_at))
    of_cell = [field for field in cell["fields"] if field["name"] != "body"]
    field = (
        {"name": "body", "type": [body], "doc": "The body."}
        if layout.body == "record"
        else {
            "name": "body",
            "type": [body, "string"],
            "doc": "The body; as canonical JSON where it fits no version of its type.",
        }
    )
    return {
        "type": "record",
        "name": last + CELL_SUFFIX,
        **({"namespace": namespace} if namespace else {}),
        "doc": cell["doc"],
        "fields": [*of_cell, field],
    }
