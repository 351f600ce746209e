"""How records become cells."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from cellfeed.loading.csv_file import infer_types
from cellfeed.loading.field_types import check_field_types
from cellfeed.loading.record import Record
from cellfeed.loading.records import FileFormat, format_of, header_of, read_records
from cellfeed.loading.row_keys import record_name, row_key_bytes
from cellfeed.store.api import CellToPut
from cellfeed.store.cells.cell import NewCell, check_new_column, check_ref_key, check_row_key
from cellfeed.store.errors import CellfeedError, InvalidRefKey, InvalidRequest, InvalidRowKey

_NDJSON_LOOKED_AT: Final = 1_000
"""Records of NDJSON that stand for its header, which it has not."""


class LineCell(NamedTuple):
    """A cell to be put and the line it comes from; ``cell`` is None where ``error`` says why there
    is none. ``fields``: the record, where somebody looks at it."""

    line: int
    cell: CellToPut | NewCell | None
    read_bytes: int
    error: CellfeedError | None = None
    fields: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """How records become cells: the whole record is the body; exactly one of ``row_key`` and
    ``row_key_from`` says where the row key comes from.

    ``row_key``: the field that holds a UUID. ``row_key_from``: the fields whose values make one
    (:mod:`cellfeed.loading.row_keys`). ``ref_key``: a number for all cells, or the name of the
    field that holds it. ``field_types``: types of CSV fields; of the others they are inferred from
    the whole file, unless ``all_text`` is set. A row key is made from the text of an inferred
    field, so that it does not depend on other lines.
    """

    column: str
    row_key: str | None = None
    row_key_from: Sequence[str] = ()
    ref_key: int | str = 1
    file_format: FileFormat | None = None
    field_types: Mapping[str, str] = field(default_factory=dict)
    all_text: bool = False

    def check(self) -> None:
        """Raises InvalidRequest when the parts do not go together."""
        check_new_column(self.column)
        check_field_types(self.field_types)
        if (self.row_key is None) == (not self.row_key_from):
            raise InvalidRequest(
                "say where the row key comes from: either one field that holds it, or the fields"
                " that it is made from"
            )
        if isinstance(self.ref_key, int):
            check_ref_key(self.ref_key)

    def key_fields(self) -> list[str]:
        """The fields that every record needs for its key."""
        named = [self.row_key] if self.row_key is not None else list(self.row_key_from)
        return named + ([self.ref_key] if isinstance(self.ref_key, str) else [])

    def cell(self, record: Record) -> NewCell:
        """The cell of a record without an error. Raises InvalidRowKey or InvalidRefKey."""
        fields = record.fields or {}
        texts = fields if record.key_texts is None else {**fields, **record.key_texts}
        row_key = (
            row_key_bytes(record_name(texts, self.row_key_from))
            if self.row_key is None
            else check_row_key(_row_key(texts, self.row_key))
        )
        ref_key = (
            self.ref_key
            if isinstance(self.ref_key, int)
            else check_ref_key(_ref_key(texts, self.ref_key))
        )
        return NewCell(row_key, self.column, ref_key, record.body)


@dataclass(frozen=True, slots=True)
class FileCells:
    """A file and how its records become cells, with the types of its fields decided.

    ``field_types``: of a CSV file, named or inferred. ``key_texts``: fields of the key whose text
    counts.
    """

    path: Path
    spec: LoadSpec
    file_format: FileFormat
    field_types: Mapping[str, str]
    key_texts: Sequence[str]

    def __iter__(self) -> Iterator[LineCell]:
        spec = self.spec
        for record in read_records(self.path, self.file_format, self.field_types, self.key_texts):
            if record.fields is None:
                yield LineCell(record.line, None, record.read_bytes, record.error)
                continue
            try:
                cell = spec.cell(record)
            except CellfeedError as error:
                yield LineCell(record.line, None, record.read_bytes, error)
            else:
                yield LineCell(record.line, cell, record.read_bytes, None, record.fields)


def cells_of_file(path: Path, spec: LoadSpec) -> FileCells:
    """Decides the types of a file's fields, for which CSV is read as a whole. Raises InvalidRequest
    or NotFound when file or spec cannot be used at all, a missing key field among it."""
    spec.check()
    file_format = spec.file_format or format_of(path)
    if spec.field_types and file_format is not FileFormat.CSV:
        read_records(path, file_format, spec.field_types)  # says why not
    _check_key_fields(path, file_format, spec)
    if file_format is not FileFormat.CSV:
        return FileCells(path, spec, file_format, {}, ())
    inferred = {} if spec.all_text else infer_types(path)
    return FileCells(
        path,
        spec,
        file_format,
        {**inferred, **spec.field_types},
        [
            name
            for name in dict.fromkeys(spec.key_fields())
            if name in inferred and name not in spec.field_types
        ],
    )


def _check_key_fields(path: Path, file_format: FileFormat, spec: LoadSpec) -> None:
    known = header_of(path, file_format)
    of = "it has"
    if known is None:
        first = [
            record.fields
            for record in islice(read_records(path, file_format), _NDJSON_LOOKED_AT)
            if record.fields
        ]
        if not first:
            return  # every line will report its own error
        known = list(dict.fromkeys(name for fields in first for name in fields))
        of = f"its first {len(first)} records have" if len(first) > 1 else "its record has"
    for name in spec.key_fields():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            raise InvalidRequest(
                f"{path} has no field {name!r}, which the key is to come from; {of}"
                f" {', '.join(known)[:500]}{f'. Did you mean {near[0]!r}?' if near else ''}"
            )


def _row_key(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise InvalidRowKey(
            f"field {name!r}, the row key, is"
            f" {'missing' if value is None else f'{value!r:.80}, not the text of a UUID'}"
        )
    return value


def _ref_key(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if isinstance(value, str) and value.removeprefix("-").isdigit() and value.isascii():
        return int(value)
    if type(value) is int:
        return value
    raise InvalidRefKey(
        f"field {name!r}, the ref key, is"
        f" {'missing' if value is None else f'{value!r:.80}, not an integer'}"
    )
