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
from cellfeed.store.errors import InvalidRequest

SCHEMA_BYTES_MAX: Final = 256 << 10
"""Bytes of a schema file: real ones have a few kilobytes, and every gateway keeps all versions in
memory."""

DECIMAL_DIGITS_MAX: Final = 1_000
"""Precision of a decimal: beyond any amount of money; Python reads at most 4,300 digits as a
number."""

TYPES_DEPTH_MAX: Final = 64
"""Types within types, written out: no body is nested deeper."""

CELL_SUFFIX: Final = "Cell"
"""Behind the name of the body's record: the record of the whole cell."""

_USUAL: Final = Layout()

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "string"})

_LOGICAL: Final = {
    "uuid": ("string",),
    "decimal": ("bytes", "fixed"),
    "date": ("int",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
}
"""Logical types and the types they may stand on."""


@dataclass(eq=False, slots=True)
class AvroType:
    """One type. ``kind`` is Avro's word for it; ``name`` the full name of a record, enum or fixed;
    ``items`` the type of an array's or map's values."""

    kind: str
    logical: str = ""
    name: str = ""
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    size: int = 0
    precision: int = 0
    scale: int = 0
    items: AvroType | None = None
    branches: tuple[AvroType, ...] = ()
    fields: tuple[AvroField, ...] = ()

    def __str__(self) -> str:
        if self.kind == "union":
            return f"[{', '.join(map(str, self.branches))}]"
        if self.logical == "decimal":
            return f"decimal({self.precision}, {self.scale})"
        return self.logical or (f"{self.kind} {self.name}" if self.name else self.kind)


@dataclass(eq=False, slots=True)
class AvroField:
    """A field of a record. ``may_be_missing``: its default is null, which stands for a member that
    is not there."""

    name: str
    type: AvroType
    has_default: bool
    may_be_missing: bool


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
        reader = _Reader()
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


class _Reader:
    def __init__(self) -> None:
        self.named: dict[str, AvroType] = {}

    def read(self, raw: Any, namespace: str, path: str, depth: int) -> AvroType:
        if depth > TYPES_DEPTH_MAX:
            raise InvalidRequest(
                f"{path}: types are nested deeper than {TYPES_DEPTH_MAX} levels, and no body is"
            )
        if isinstance(raw, list):
            return self._union(raw, namespace, path, depth)
        if isinstance(raw, str):
            return self._by_name(raw, namespace, path)
        kind = raw["type"]
        if not isinstance(kind, str):
            return self.read(kind, namespace, path, depth + 1)
        if kind in ("record", "enum", "fixed"):
            return self._named(raw, kind, namespace, path, depth)
        if kind in ("array", "map"):
            inner = raw["items" if kind == "array" else "values"]
            return AvroType(kind, items=self.read(inner, namespace, f"{path}[]", depth + 1))
        if kind in PRIMITIVES or kind == "bytes":
            return self._logical(AvroType(kind), raw, path)
        return self._by_name(kind, namespace, path)

    def _by_name(self, name: str, namespace: str, path: str) -> AvroType:
        if name in PRIMITIVES or name == "bytes":
            return self._logical(AvroType(name), {}, path)
        found = self.named.get(
            name if "." in name or not namespace else f"{namespace}.{name}"
        ) or self.named.get(name)
        if found is None:
            raise InvalidRequest(
                f"{path}: the type {name!r} is not known here; it must be defined before it is used"
            )
        return found

    def _named(
        self, raw: dict[str, Any], kind: str, namespace: str, path: str, depth: int
    ) -> AvroType:
        own = raw.get("namespace", namespace)
        name = raw["name"] if "." in raw["name"] or not own else f"{own}.{raw['name']}"
        if name in self.named:
            raise InvalidRequest(f"{path}: the type {name} is defined twice")
        made = self.named[name] = AvroType(kind, name=name)
        if kind == "enum":
            made.symbols, made.default_symbol = tuple(raw["symbols"]), raw.get("default")
        elif kind == "fixed":
            made.size = raw["size"]
            self._logical(made, raw, path)
        else:
            inside = name.rpartition(".")[0]
            made.fields = tuple(
                self._field(field, inside, f"{path}.{field['name']}", depth)
                for field in raw["fields"]
            )
        return made

    def _field(self, raw: dict[str, Any], namespace: str, path: str, depth: int) -> AvroField:
        if raw.get("aliases"):
            raise InvalidRequest(
                f"{path}: aliases are for readers; a member of a body has one name"
            )
        read = self.read(raw["type"], namespace, path, depth + 1)
        return AvroField(
            raw["name"], read, "default" in raw, "default" in raw and raw["default"] is None
        )

    def _union(self, raw: list[Any], namespace: str, path: str, depth: int) -> AvroType:
        branches = tuple(self.read(branch, namespace, path, depth + 1) for branch in raw)
        kinds = [(branch.kind, branch.name) for branch in branches]
        if (
            not kinds
            or len(set(kinds)) != len(kinds)
            or any(branch.kind == "union" for branch in branches)
        ):
            raise InvalidRequest(
                f"{path}: a union has different types, at least one, and no union among them"
            )
        return AvroType("union", branches=branches)

    def _logical(self, made: AvroType, raw: dict[str, Any], path: str) -> AvroType:
        logical = raw.get("logicalType", "")
        if logical and made.kind not in _LOGICAL.get(logical, ()):
            known = ", ".join(f"{name} on {' or '.join(kinds)}" for name, kinds in _LOGICAL.items())
            raise InvalidRequest(
                f"{path}: logical type {logical!r} on {made.kind} is not known here; known are"
                f" {known}"
            )
        if made.kind in ("bytes", "fixed") and logical != "decimal":
            raise InvalidRequest(
                f"{path}: JSON has no bytes; write {made.kind} with logical type decimal, or string"
            )
        made.logical = logical
        if logical == "decimal":
            made.precision, made.scale = raw.get("precision", 0), raw.get("scale", 0)
            digits_max = (
                DECIMAL_DIGITS_MAX
                if made.kind == "bytes"
                else len(str((1 << (8 * made.size - 1)) - 1)) - 1
            )
            if not (
                isinstance(made.precision, int)
                and isinstance(made.scale, int)
                and 0 < made.precision <= digits_max
                and 0 <= made.scale <= made.precision
            ):
                raise InvalidRequest(
                    f"{path}: a decimal has a precision of 1 to {digits_max} digits and a scale"
                    " from 0 to its precision"
                )
        return made
