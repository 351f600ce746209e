"""Parquet column by column: each value exact, or its row refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cellfeed.loading.record import Record
from cellfeed.loading.records import FileFormat, read_records
from cellfeed.store.cells.canonical_json import canonical
from cellfeed.store.errors import InvalidRequest


def read(tmp_path: Path, columns: dict[str, pa.Array]) -> list[Record]:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path)
    return list(read_records(path, FileFormat.PARQUET))


def values(tmp_path: Path, column: pa.Array) -> list[Any]:
    return [record.fields and record.fields["a"] for record in read(tmp_path, {"a": column})]


@pytest.mark.parametrize(
    ("ns", "zone", "text"),
    [
        (1_000_000_001, None, "1970-01-01T00:00:01.000000001"),
        (1_000_001_000, None, "1970-01-01T00:00:01.000001"),
        (1_000_000_000, "UTC", "1970-01-01T00:00:01+00:00"),
        (123_456_789, "UTC", "1970-01-01T00:00:00.123456789+00:00"),
        (-1, None, "1969-12-31T23:59:59.999999999"),
    ],
)
def test_nanoseconds_are_kept(tmp_path: Path, ns: int, zone: str | None, text: str) -> None:
    column = pa.array([ns, None], pa.timestamp("ns", zone))
    assert values(tmp_path, column) == [text, None]


def test_a_value_that_json_lacks_fails_only_its_row(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        {
            "n": pa.array([1, 2, 3, 4]),
            "f": pa.array([1.5, float("nan"), None, float("-inf")]),
        },
    )
    assert [record.fields for record in found] == [
        {"n": 1, "f": 1.5},
        None,
        {"n": 3, "f": None},
        None,
    ]
    assert "body['f'] is nan" in str(found[1].error)
    assert [record.line for record in found] == [1, 2, 3, 4]


def test_text_that_is_not_utf_8_and_dates_beyond_9999_fail_only_their_rows(
    tmp_path: Path,
) -> None:
    raw = pa.array([b"good", b"\xff"], pa.binary())
    text = pa.Array.from_buffers(pa.string(), 2, raw.buffers())
    assert values(tmp_path, text) == ["good", None]
    far = pa.array([0, 253_402_300_800], pa.timestamp("s")).cast(pa.timestamp("ms"))
    assert values(tmp_path, far) == ["1970-01-01T00:00:00", None]


def test_bytes_and_durations_are_refused(tmp_path: Path) -> None:
    assert values(tmp_path, pa.array([b"x"])) == [None]
    assert values(tmp_path, pa.array([5], pa.duration("us"))) == [None]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([-(1 << 63), (1 << 63) - 1, None]),
        pa.array([(1 << 64) - 1], pa.uint64()),
        pa.array([0.1, 1e300, 5e-324, -0.0, 1e16]),
        pa.array([0.1], pa.float32()),
        pa.array([True, None]),
        pa.array(['ä\n"', "", None]),
        pa.array(["x", "y", "x"]).dictionary_encode(),
        pa.array([datetime(2019, 3, 23, 20, 21, 9, 5, tzinfo=UTC)]),
        pa.array([[1.5, None], []]),
        pa.array([{"x": {"y": [1]}}]),
        pa.array([None], pa.null()),
    ],
    ids=lambda column: str(column.type),
)
def test_bodies_are_the_canonical_json_of_the_values(tmp_path: Path, column: pa.Array) -> None:
    found = read(tmp_path, {"z": column, "a": pa.array(range(len(column)))})
    for record, value in zip(found, column.to_pylist(), strict=True):
        shown = value.isoformat() if isinstance(value, datetime) else value
        assert record.fields is not None
        assert record.fields["z"] == shown
        assert record.body == canonical({"z": shown, "a": record.fields["a"]})


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    with pytest.raises(InvalidRequest, match="one name"):
        list(read_records(path, FileFormat.PARQUET))
