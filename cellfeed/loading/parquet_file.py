"""Parquet as records, column by column: numbers, text, booleans, lists and structs as they are;
times, dates and UUIDs as ISO text, decimals as text, all exactly.

A value that Python or JSON cannot hold exactly costs its row: a NaN, an infinity, bytes, text that
is not UTF-8, a date beyond the year 9999. A timestamp of nanoseconds keeps its nine digits where
the last three are not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cellfeed.loading.record import Record
from cellfeed.store.cells.canonical_json import canonical, canonical_of_decoded
from cellfeed.store.errors import CellfeedError, InvalidBody, InvalidRequest

PARQUET_BATCH_ROWS: Final = 1_000

_CANNOT: Final = (ValueError, OverflowError, TypeError, pa.ArrowException)


def parquet_header(path: Path) -> list[str]:
    """The names of the columns. Raises InvalidRequest when it is no Parquet, or two have one
    name."""
    with _opened(path) as file:
        return list(file.schema_arrow.names)


def parquet_records(path: Path) -> Iterator[Record]:
    """The records. Rows behind damaged pages cannot be separated, so one error stands for the rest
    of the file."""
    size, row = path.stat().st_size, 0
    with _opened(path) as file:
        total = max(file.metadata.num_rows, 1)
        try:
            for batch in file.iter_batches(PARQUET_BATCH_ROWS):
                yield from _of_batch(batch, row, size, total)
                row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            yield Record(
                row + 1,
                None,
                size,
                InvalidRequest(f"this row and those behind it cannot be read: {error}"),
            )


def _opened(path: Path) -> pq.ParquetFile:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InvalidRequest(f"{path} is not Parquet: {error}") from None
    names = file.schema_arrow.names
    if len(set(names)) != len(names):
        file.close()
        raise InvalidRequest(f"{path}: two columns have one name; it has {', '.join(names)}")
    return file


def _of_batch(batch: pa.RecordBatch, before: int, size: int, total: int) -> list[Record]:
    """The records of a batch that ``before`` rows precede."""
    names = batch.schema.names
    wrong: dict[int, CellfeedError] = {}
    close_look: set[int] = set()
    encode: Callable[[object], bytes] = canonical_of_decoded
    columns = []
    for name, column in zip(names, batch.columns, strict=True):
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if not _is_plain(column.type):
            encode = canonical
        elif pa.types.is_floating(column.type):
            finite = pc.is_finite(column).to_pylist()
            close_look.update(index for index, is_finite in enumerate(finite) if is_finite is False)
        columns.append(_values(name, column, wrong))
    records = []
    rows = zip(*columns, strict=True) if columns else iter([()] * batch.num_rows)
    for index, values in enumerate(rows):
        line = before + index + 1
        at = size * line // total
        if index in wrong:
            records.append(Record(line, None, at, wrong[index]))
            continue
        fields = dict(zip(names, values, strict=True))
        try:
            body = canonical(fields) if index in close_look else encode(fields)
        except CellfeedError as error:
            records.append(Record(line, None, at, error))
        else:
            records.append(Record(line, fields, at, None, body))
    return records


def _is_plain(kind: pa.DataType) -> bool:
    """Whether values of the type become JSON without a closer look at each of them (NaN aside)."""
    return bool(
        pa.types.is_null(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_temporal(kind)
        or pa.types.is_decimal(kind)
    ) and not (pa.types.is_duration(kind) or pa.types.is_interval(kind))


def _values(name: str, column: pa.Array, wrong: dict[int, CellfeedError]) -> list[Any]:
    """The values of a column as JSON has them; ``wrong`` has an error by row for each value that
    JSON cannot hold."""
    kind = column.type
    try:
        if pa.types.is_timestamp(kind):
            return _iso_times(column)
        values: list[Any] = column.to_pylist()
    except _CANNOT:
        values = [_value(name, index, value, wrong) for index, value in enumerate(column)]
    if pa.types.is_nested(kind) or not _is_plain(kind):
        return [_plain(value) for value in values]
    if pa.types.is_temporal(kind):
        return [value.isoformat() if isinstance(value, date | time) else value for value in values]
    if pa.types.is_decimal(kind):
        return [None if value is None else str(value) for value in values]
    return values


def _value(name: str, index: int, value: pa.Scalar, wrong: dict[int, CellfeedError]) -> Any:
    try:
        if isinstance(value, pa.TimestampScalar):
            return _iso_times(pa.array([value], value.type))[0]
        return value.as_py()
    except _CANNOT as error:
        wrong[index] = InvalidBody(
            f"field {name!r} holds a value of type {value.type} that JSON cannot carry exactly:"
            f" {error}"
        )
        return None


def _iso_times(column: pa.Array) -> list[str | None]:
    """Timestamps as ``datetime.isoformat`` writes them; with nine digits where microseconds do not
    hold the value."""
    kind = column.type
    if kind.unit != "ns":
        return [None if value is None else value.isoformat() for value in column.to_pylist()]
    since = column.cast(pa.int64()).to_pylist()
    moments = pa.array(
        [None if ns is None else ns // 1_000 for ns in since], pa.timestamp("us", kind.tz)
    ).to_pylist()
    return [
        None if ns is None else _iso(moment, ns % 1_000)
        for ns, moment in zip(since, moments, strict=True)
    ]


def _iso(moment: datetime, nanoseconds: int) -> str:
    if nanoseconds == 0:
        return moment.isoformat()
    text = moment.isoformat(timespec="microseconds")
    point = text.index(".") + 7
    return f"{text[:point]}{nanoseconds:03d}{text[point:]}"


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
