"""CSV, NDJSON and Parquet files as streams of records, each with the line it stands on. Never more
than one batch in memory.

What values become:

- CSV: text, always, unless ``field_types`` names the field (``int``, ``float``, ``bool``, ``json``,
  ``text``). Guessing would give one field several types, and the same file other cells after a
  change somewhere else in it. An empty value of a typed field is null.
- NDJSON: what the JSON says; one object a line, UTF-8, empty lines skipped.
- Parquet: numbers, text, booleans, lists and structs as they are; times, dates and UUIDs as ISO
  text, decimals as text, all exactly.

A line that cannot be read is a record with an error in its place: the others are loaded, and the
report names it.
"""

from __future__ import annotations

import csv
import enum
import json
import os
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple
from uuid import UUID

from cellfeed.store.cells.canonical_json import canonical_from_json, parse
from cellfeed.store.errors import CellfeedError, InvalidBody, InvalidRequest, NotFound
from cellfeed.store.limits import BODY_BYTES_MAX

LINE_BYTES_MAX: Final = 4 * BODY_BYTES_MAX
"""One NDJSON line, bytes: what the largest body may take with all its characters escaped."""

PARQUET_BATCH_ROWS: Final = 1_000

FIELD_TYPES: Final = ("text", "int", "float", "bool", "json")


class FileFormat(enum.StrEnum):
    CSV = "csv"
    NDJSON = "ndjson"
    PARQUET = "parquet"


_BY_SUFFIX: Final = {
    ".csv": FileFormat.CSV,
    ".ndjson": FileFormat.NDJSON,
    ".jsonl": FileFormat.NDJSON,
    ".parquet": FileFormat.PARQUET,
}


class Record(NamedTuple):
    """One record of a file. ``line`` counts from 1 (rows, for Parquet); ``error`` says why
    ``fields`` is None; ``read_bytes`` is how far reading is."""

    line: int
    fields: dict[str, Any] | None
    read_bytes: int
    error: CellfeedError | None = None


def format_of(path: Path) -> FileFormat:
    """The format that a file's name tells. Raises InvalidRequest when it tells none."""
    found = _BY_SUFFIX.get(path.suffix.lower())
    if found is None:
        raise InvalidRequest(
            f"{path}: the name does not tell the format; known endings are {', '.join(_BY_SUFFIX)},"
            " or name one with --format"
        )
    return found


def check_field_types(field_types: Mapping[str, str]) -> Mapping[str, str]:
    """Raises InvalidRequest for a type that does not exist."""
    for name, kind in field_types.items():
        if kind not in FIELD_TYPES:
            raise InvalidRequest(
                f"field {name!r} cannot have type {kind!r}; known are {', '.join(FIELD_TYPES)}"
            )
    return field_types


def read_records(
    path: Path, file_format: FileFormat, field_types: Mapping[str, str] | None = None
) -> Iterator[Record]:
    """The records of a file, in its order. Raises NotFound, or InvalidRequest when it is no file of
    this format at all."""
    field_types = check_field_types(field_types or {})
    if field_types and file_format is not FileFormat.CSV:
        raise InvalidRequest(
            f"field types are for CSV; the values of {file_format.value} have types already"
        )
    if not path.is_file():
        raise NotFound(f"{path} is not a file")
    if file_format is FileFormat.CSV:
        return _csv_records(path, field_types)
    if file_format is FileFormat.NDJSON:
        return _ndjson_records(path)
    return _parquet_records(path)


def _csv_records(path: Path, field_types: Mapping[str, str]) -> Iterator[Record]:
    with path.open("rb") as raw:
        reader = csv.reader(_TextLines(raw), strict=True)
        try:
            header = next(reader, [])
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{path}: the header is not CSV in UTF-8: {error}") from None
        if not header or len(set(header)) != len(header) or "" in header:
            raise InvalidRequest(
                f"{path}: the header must name every field once, not {header!r:.200}"
            )
        if missing := set(field_types) - set(header):
            raise InvalidRequest(
                f"{path} has no field {min(missing)!r} to give a type to; it has"
                f" {', '.join(header)}"
            )
        while True:
            line = reader.line_num + 1
            try:
                values = next(reader)
                if values:
                    yield Record(line, _csv_fields(header, values, field_types), raw.tell())
            except StopIteration:
                return
            except (csv.Error, UnicodeDecodeError) as error:
                yield Record(line, None, raw.tell(), InvalidRequest(f"not CSV in UTF-8: {error}"))
            except CellfeedError as error:
                yield Record(line, None, raw.tell(), error)


class _TextLines:
    """Lines of UTF-8 text. An iterator and not a generator, because it must continue behind a line
    that it could not read."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._encoding = "utf-8-sig"  # spreadsheets write a byte order mark before the first name

    def __iter__(self) -> _TextLines:
        return self

    def __next__(self) -> str:
        # readline, not iteration: so the position in the file stays known.
        line = self._raw.readline(LINE_BYTES_MAX)
        if not line:
            raise StopIteration
        if _cut_short(line):
            _skip_line(self._raw)
            raise csv.Error(f"line longer than {LINE_BYTES_MAX} bytes")
        encoding, self._encoding = self._encoding, "utf-8"
        return line.decode(encoding)


def _cut_short(line: bytes) -> bool:
    return len(line) == LINE_BYTES_MAX and not line.endswith(b"\n")


def _skip_line(raw: BinaryIO) -> None:
    while (rest := raw.readline(LINE_BYTES_MAX)) and not rest.endswith(b"\n"):
        pass


def _csv_fields(
    header: list[str], values: list[str], field_types: Mapping[str, str]
) -> dict[str, Any]:
    if len(values) != len(header):
        raise InvalidRequest(f"{len(values)} values where the header names {len(header)} fields")
    return {
        name: _typed(name, value, field_types[name]) if name in field_types else value
        for name, value in zip(header, values, strict=True)
    }


def _typed(name: str, value: str, kind: str) -> Any:
    if kind == "text":
        return value
    if value == "":
        return None
    try:
        if kind == "int":
            return int(value)
        if kind == "float":
            return float(value)
        if kind == "json":
            return json.loads(value)
        return {"true": True, "false": False}[value.lower()]
    except (ValueError, KeyError, RecursionError):
        raise InvalidRequest(
            f"field {name!r} holds {value!r:.80}, which is not"
            f" {'true or false' if kind == 'bool' else f'of type {kind}'}"
        ) from None


def _ndjson_records(path: Path) -> Iterator[Record]:
    with path.open("rb") as raw:
        line = 0
        while text := raw.readline(LINE_BYTES_MAX):
            line += 1
            if _cut_short(text):
                _skip_line(raw)
                yield Record(
                    line, None, raw.tell(), InvalidRequest(f"longer than {LINE_BYTES_MAX} bytes")
                )
            elif text.strip():
                try:
                    yield Record(line, parse(canonical_from_json(text.strip())), raw.tell())
                except InvalidBody as error:
                    yield Record(line, None, raw.tell(), error)


def _parquet_records(path: Path) -> Iterator[Record]:
    import pyarrow as pa  # a large library, for those who load Parquet only
    import pyarrow.parquet as pq

    size, row = path.stat().st_size, 0
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InvalidRequest(f"{path} is not Parquet: {error}") from None
    with file:
        total = max(file.metadata.num_rows, 1)
        try:
            for batch in file.iter_batches(PARQUET_BATCH_ROWS):
                for values in batch.to_pylist():
                    row += 1
                    yield Record(
                        row,
                        {name: _plain(value) for name, value in values.items()},
                        size * row // total,
                    )
        except (pa.ArrowException, OSError) as error:
            # Rows behind damaged pages cannot be told apart any more, so this one error stands for
            # the rest of the file.
            yield Record(
                row + 1,
                None,
                size,
                InvalidRequest(f"this row and those behind it cannot be read: {error}"),
            )


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(child) for name, child in value.items()}
    if isinstance(value, list):
        return [_plain(child) for child in value]
    return value


def size_of(path: Path) -> int:
    """Bytes of a file: what a progress bar counts to. Raises NotFound."""
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}") from None
