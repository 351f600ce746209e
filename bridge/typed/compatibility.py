"""Whether readers with one schema can read records of another one (Avro's schema resolution). Also
the compatibility that a new version must have with all earlier ones.

=========  =============================================================
FULL       both of the others
BACKWARD   a reader with the new version reads the records of every earlier one
FORWARD    a reader with any earlier version reads the records of the new one
=========  =============================================================

Stricter than Avro where it would let a value become another one. No integer is read as a float that
may not hold it. Logical types and the full names of types stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cellfeed.bridge.typed.avro_types import AvroType
from cellfeed.bridge.typed.declaration import Compatibility

_PROMOTED: Final = {"int": ("long", "double"), "float": ("double",)}
"""Types that a reader may have instead of the written one."""


def breaks(
    new: AvroType, earlier: Sequence[tuple[int, AvroType]], level: Compatibility
) -> Iterator[str]:
    """How a new version breaks the rule to earlier ones, given with their numbers: field, rule and
    remedy. Nothing when it keeps it."""
    for number, old in earlier:
        if level != "FORWARD":
            for problem in cannot_read(new, old):
                yield (
                    f"{problem}: a reader with the new schema could not read records of version"
                    f" {number} (BACKWARD)"
                )
        if level != "BACKWARD":
            for problem in cannot_read(old, new):
                yield (
                    f"{problem}: a reader with version {number} could not read records of the new"
                    " schema (FORWARD)"
                )


def cannot_read(reader: AvroType, writer: AvroType) -> list[str]:
    """Why a reader with the one schema cannot read everything that the other one writes; nothing
    when it can."""
    return list(_problems(reader, writer, "body", set()))


def _problems(
    reader: AvroType, writer: AvroType, path: str, compared: set[tuple[int, int]]
) -> Iterator[str]:
    if (id(reader), id(writer)) in compared:
        return  # a type that holds itself: its problems are reported where it was met first
    compared.add((id(reader), id(writer)))
    if writer.kind == "union":
        for branch in writer.branches:
            yield from _problems(reader, branch, path, compared)
    elif reader.kind == "union":
        if not any(
            next(_problems(branch, writer, path, set(compared)), None) is None
            for branch in reader.branches
        ):
            yield f"{path}: {writer} is none of {reader}"
    elif reader.logical != writer.logical or (reader.precision, reader.scale) != (
        writer.precision,
        writer.scale,
    ):
        yield f"{path}: {reader} is not {writer}"
    elif reader.kind != writer.kind:
        if reader.kind not in _PROMOTED.get(writer.kind, ()):
            yield f"{path}: {reader} is not {writer}"
    elif reader.name != writer.name:
        yield f"{path}: the type's name is {reader.name}, not {writer.name}"
    elif reader.kind == "fixed" and reader.size != writer.size:
        yield f"{path}: fixed {reader.name} has {reader.size} bytes, not {writer.size}"
    elif reader.kind == "enum" and reader.default_symbol is None:
        for symbol in writer.symbols:
            if symbol not in reader.symbols:
                yield f"{path}: enum {reader.name} lacks the symbol {symbol} and has no default"
    elif reader.kind in ("array", "map"):
        assert reader.items is not None and writer.items is not None  # noqa: S101, PT018 (for the type checker)
        yield from _problems(reader.items, writer.items, f"{path}[]", compared)
    elif reader.kind == "record":
        written = {field.name: field for field in writer.fields}
        for field in reader.fields:
            of_writer = written.get(field.name)
            if of_writer is not None:
                yield from _problems(field.type, of_writer.type, f"{path}.{field.name}", compared)
            elif not field.has_default:
                yield (
                    f"{path}.{field.name}: the field has no default, and is not in the other schema"
                )
