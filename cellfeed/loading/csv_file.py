"""CSV as records. Python's reader, because it knows the line of every record and names the line of
a record that is not CSV; it takes a tenth of the time of a load."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from cellfeed.loading.field_types import CONVERT, NOT_OF_THE_TYPE, Inference, not_of_the_type
from cellfeed.loading.lines import LINE_BYTES_MAX, TextLines
from cellfeed.loading.record import Record
from cellfeed.store.cells.canonical_json import canonical, canonical_of_decoded
from cellfeed.store.errors import CellfeedError, InvalidRequest

_INFERENCE_ROWS: Final = 4_000
"""Rows that are looked at together: enough that a look at a column costs next to nothing."""


class _Table(NamedTuple):
    lines: TextLines
    reader: Any  # csv.reader, whose type has no name
    header: list[str]


def csv_header(path: Path) -> list[str]:
    """The names of the fields. Raises InvalidRequest where the first line names none."""
    with path.open("rb") as raw:
        return _opened(path, raw).header


def csv_records(
    path: Path, field_types: Mapping[str, str], key_texts: Sequence[str] = ()
) -> Iterator[Record]:
    """The records; of the fields ``key_texts`` each has the text as it stands as well."""
    with path.open("rb") as raw:
        lines, _, header = table = _opened(path, raw)
        if missing := (set(field_types) | set(key_texts)) - set(header):
            raise InvalidRequest(
                f"{path} has no field {min(missing)!r} to give a type to; it has"
                f" {', '.join(header)}"
            )
        places = [
            (index, CONVERT[field_types[name]])
            for index, name in enumerate(header)
            if field_types.get(name, "text") != "text"
        ]
        texts = [(name, header.index(name)) for name in key_texts]
        # A field of JSON may hold a value that only a closer look refuses.
        encode = canonical if "json" in field_types.values() else canonical_of_decoded
        for line, found in _rows(table):
            if isinstance(found, CellfeedError):
                yield Record(line, None, lines.read_bytes, found)
                continue
            kept = {name: found[index] for name, index in texts} if texts else None
            try:
                fields = _fields(header, found, places, field_types)
                yield Record(line, fields, lines.read_bytes, None, encode(fields), kept)
            except CellfeedError as error:
                yield Record(line, None, lines.read_bytes, error)


def _fields(
    header: list[str],
    values: list[Any],
    places: Sequence[tuple[int, Callable[[str], Any]]],
    field_types: Mapping[str, str],
) -> dict[str, Any]:
    """The values by name, converted in their places. Raises InvalidRequest."""
    index = 0
    try:
        for index, convert in places:
            values[index] = convert(text) if (text := values[index]) else None
    except NOT_OF_THE_TYPE:
        raise not_of_the_type(header[index], values[index], field_types[header[index]]) from None
    return dict(zip(header, values, strict=True))


def infer_types(path: Path) -> dict[str, str]:
    """The types that all values of the file agree on; fields that are not named are text. Lines
    that cannot be read say nothing."""
    with path.open("rb") as raw:
        table = _opened(path, raw)
        inference, rows = Inference(table.header), []
        for _, found in _rows(table):
            if isinstance(found, list):
                rows.append(found)
                if len(rows) == _INFERENCE_ROWS:
                    inference.add(rows)
                    rows = []
        if rows:
            inference.add(rows)
        return inference.types()


def _opened(path: Path, raw: BinaryIO) -> _Table:
    lines = TextLines(raw)
    # Python's own limit is far below that of a body. A record is bounded by its lines.
    csv.field_size_limit(LINE_BYTES_MAX + 1)
    reader = csv.reader(lines, strict=True)
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise InvalidRequest(f"{path}: the header is not CSV in UTF-8: {error}") from None
    if lines.trouble:
        raise InvalidRequest(f"{path}: the header is not CSV in UTF-8: {lines.trouble}")
    if not header or len(set(header)) != len(header) or "" in header:
        raise InvalidRequest(f"{path}: the header must name every field once, not {header!r:.200}")
    return _Table(lines, reader, header)


def _rows(table: _Table) -> Iterator[tuple[int, list[Any] | CellfeedError]]:
    """Lines with their values, or with the error there; empty lines are passed over."""
    lines, reader, header = table
    for _ in repeat(None):
        line = reader.line_num + 1
        lines.begin_record()
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, InvalidRequest(f"not CSV in UTF-8: {lines.trouble or error}")
            continue
        if lines.trouble:
            yield line, InvalidRequest(f"not CSV in UTF-8: {lines.trouble}")
        elif len(values) == len(header):
            yield line, values
        elif values:
            yield (
                line,
                InvalidRequest(f"{len(values)} values where the header names {len(header)} fields"),
            )
