"""The types of an Avro schema that a JSON body can be exactly, as a tree.

A type without JSON values is refused here, when the schema is declared, and not when a cell comes:
``bytes`` and ``fixed`` without a decimal, ``time-*``, ``duration``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cellfeed.store.errors import InvalidRequest

DECIMAL_DIGITS_MAX: Final = 1_000
"""Precision of a decimal: beyond any amount of money; Python reads at most 4,300 digits as a
number."""

TYPES_DEPTH_MAX: Final = 64
"""Types within types, written out: no body is nested deeper."""

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


class TypeReader:
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
