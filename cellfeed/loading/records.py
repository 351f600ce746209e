"""CSV, NDJSON and Parquet files as streams of records, each with the line it stands on. Never more
than one batch in memory.

Values:

- CSV: text, unless ``field_types`` names the field (:mod:`cellfeed.loading.field_types`). An empty
  value of a typed field is null.
- NDJSON: the values of the JSON (:mod:`cellfeed.loading.ndjson_file`).
- Parquet: as they are, or exact text (:mod:`cellfeed.loading.parquet_file`).

A line that cannot be read is a record with an error in its place: the others are loaded, and the
report names it.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from cellfeed.loading import csv_file
from cellfeed.loading.field_types import check_field_types
from cellfeed.loading.ndjson_file import ndjson_records
from cellfeed.loading.record import Record
from cellfeed.store.errors import InvalidRequest, NotFound


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


def format_of(path: Path) -> FileFormat:
    """The format that a file's name implies. Raises InvalidRequest when it implies none."""
    found = _BY_SUFFIX.get(path.suffix.lower())
    if found is None:
        raise InvalidRequest(
            f"{path}: the name does not show the format; known endings are {', '.join(_BY_SUFFIX)},"
            " or name one with --format"
        )
    return found


def read_records(
    path: Path,
    file_format: FileFormat,
    field_types: Mapping[str, str] | None = None,
    key_texts: Sequence[str] = (),
) -> Iterator[Record]:
    """The records of a file, in its order. ``key_texts``: CSV fields whose text each record has as
    well. Raises NotFound, or InvalidRequest when it is no file of this format at all."""
    field_types = check_field_types(field_types or {})
    check_file(path)
    if field_types and file_format is not FileFormat.CSV:
        raise InvalidRequest(
            f"field types are for CSV; the values of {file_format.value} have types already"
        )
    if file_format is FileFormat.CSV:
        return csv_file.csv_records(path, field_types, key_texts)
    if file_format is FileFormat.NDJSON:
        return ndjson_records(path)
    from cellfeed.loading import parquet_file  # a large library: loaded for Parquet only

    return parquet_file.parquet_records(path)


def header_of(path: Path, file_format: FileFormat) -> list[str] | None:
    """The fields that the file names before its records; None for NDJSON, which names none. Raises
    InvalidRequest, NotFound."""
    check_file(path)
    if file_format is FileFormat.CSV:
        return csv_file.csv_header(path)
    if file_format is FileFormat.NDJSON:
        return None
    from cellfeed.loading import parquet_file  # a large library: loaded for Parquet only

    return parquet_file.parquet_header(path)


def check_file(path: Path) -> None:
    """Raises NotFound."""
    if not path.is_file():
        raise NotFound(f"{path} is not a file")


def size_of(path: Path) -> int:
    """Bytes of a file: the total of a progress bar. Raises NotFound."""
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except OSError as error:
        raise NotFound(f"{path}: {error.strerror}") from None
