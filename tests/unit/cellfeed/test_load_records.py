"""Files as records: values exactly as the file has them, and a line that cannot be read costs
itself alone."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cellfeed.loading import lines as lines_module
from cellfeed.loading.record import Record
from cellfeed.loading.records import FileFormat, format_of, read_records
from cellfeed.store.errors import InvalidRequest, NotFound


def read(
    tmp_path: Path, content: bytes, file_format: FileFormat = FileFormat.CSV, **field_types: str
) -> list[Record]:
    path = tmp_path / "file"
    path.write_bytes(content)
    return list(read_records(path, file_format, field_types))


def fields(found: list[Record]) -> list[dict[str, Any] | None]:
    return [record.fields for record in found]


def test_csv_values_are_text_unless_a_type_is_given(tmp_path: Path) -> None:
    assert fields(read(tmp_path, b"a,b\n007,true\n,\n")) == [
        {"a": "007", "b": "true"},
        {"a": "", "b": ""},
    ]
    typed = read(
        tmp_path,
        b'a,b,c,d,e\n007,TRUE,1e3,"{""x"":[1]}",007\n,,,,\n',
        a="int",
        b="bool",
        c="float",
        d="json",
        e="text",
    )
    assert fields(typed) == [
        {"a": 7, "b": True, "c": 1000.0, "d": {"x": [1]}, "e": "007"},
        {"a": None, "b": None, "c": None, "d": None, "e": ""},
    ]


def test_csv_may_have_quotes_line_breaks_in_values_a_byte_order_mark_and_windows_line_ends(
    tmp_path: Path,
) -> None:
    found = read(tmp_path, b'\xef\xbb\xbfa,b\r\n"x,""y""","two\r\nlines"\r\n\r\n1,2\r\n')
    assert fields(found) == [{"a": 'x,"y"', "b": "two\r\nlines"}, {"a": "1", "b": "2"}]
    assert [record.line for record in found] == [2, 5]


@pytest.mark.parametrize("bad", [b"1\n", b"1,2,3\n", b"\xff,2\n", b'"x"y,2\n', b"x,2\n"])
def test_an_unreadable_csv_line_fails_only_itself(tmp_path: Path, bad: bytes) -> None:
    found = read(tmp_path, b"a,b\n1,2\n" + bad + b"3,4\n", a="int")
    assert fields(found) == [{"a": 1, "b": "2"}, None, {"a": 3, "b": "4"}]
    assert found[1].line == 3
    assert isinstance(found[1].error, InvalidRequest)


@pytest.mark.parametrize("header", [b"", b"\n", b"a,a\n", b"a,\n", b"\xff\n"])
def test_a_csv_header_that_names_no_fields_is_refused_before_anything_is_read(
    tmp_path: Path, header: bytes
) -> None:
    with pytest.raises(InvalidRequest, match="header"):
        read(tmp_path, header + b"1,2\n" if header else b"")


def test_a_type_that_does_not_exist_or_for_no_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="'a' cannot have type 'decimal'"):
        read(tmp_path, b"a\n1\n", a="decimal")
    with pytest.raises(InvalidRequest, match="no field 'b'"):
        read(tmp_path, b"a\n1\n", b="int")


@pytest.mark.parametrize("file_format", [FileFormat.CSV, FileFormat.NDJSON])
def test_a_line_without_an_end_is_not_read_into_memory(
    tmp_path: Path, file_format: FileFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "LINE_BYTES_MAX", 40)
    good = {FileFormat.CSV: b"x\n", FileFormat.NDJSON: b'{"a":"x"}\n'}[file_format]
    content = (
        (b"a\n" if file_format is FileFormat.CSV else b"") + good + b"y" * 1_000 + b"\n" + good
    )
    found = read(tmp_path, content, file_format)
    assert fields(found) == [{"a": "x"}, None, {"a": "x"}]
    assert "longer than 40 bytes" in str(found[1].error)


def test_ndjson_is_one_object_a_line_and_other_lines_are_reported(tmp_path: Path) -> None:
    lines = [
        b'{"n": 1.50, "big": 9007199254740993}',
        b"",
        b"[1]",
        b"null",
        b'{"a":1,"a":2}',
        b'{"a":NaN}',
        b'{"a":',
        b'{"a":"\xff"}',
        b'{"n": 2}',
    ]
    found = read(tmp_path, b"\n".join(lines), FileFormat.NDJSON)
    assert fields(found) == [
        {"n": 1.5, "big": 9007199254740993},
        None,
        None,
        None,
        None,
        None,
        None,
        {"n": 2},
    ]
    assert [record.line for record in found] == [1, 3, 4, 5, 6, 7, 8, 9]
    assert all(record.error is not None for record in found[1:-1])


def test_parquet_values_are_exact_and_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "trips.parquet"
    rows: list[dict[str, object]] = [
        {
            "n": 1,
            "when": datetime(2019, 3, 23, 20, 21, 9, 5, tzinfo=UTC),
            "day": date(2019, 3, 23),
            "price": Decimal("12.950"),
            "in": [{"x": Decimal("0.1")}],
        },
        {"n": None, "when": None, "day": None, "price": None, "in": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    first, second = fields(list(read_records(path, format_of(path))))
    assert first == {
        "n": 1,
        "when": "2019-03-23T20:21:09.000005+00:00",
        "day": "2019-03-23",
        "price": "12.950",
        "in": [{"x": "0.1"}],
    }
    assert second == dict.fromkeys(rows[0])
    json.dumps(first)


def test_a_parquet_file_damaged_in_the_middle_gives_its_whole_part_and_one_error(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trips.parquet"
    pq.write_table(
        pa.table({"n": list(range(50_000))}),
        path,
        row_group_size=10_000,
        compression="snappy",
        use_dictionary=False,
        write_page_checksum=True,
    )
    content = bytearray(path.read_bytes())
    middle = pq.ParquetFile(path).metadata.row_group(3).column(0).data_page_offset
    content[middle : middle + 200] = b"\xff" * 200
    path.write_bytes(content)
    found = list(read_records(path, FileFormat.PARQUET))
    whole = [record.fields for record in found if record.fields is not None]
    assert whole == [{"n": number} for number in range(len(whole))]
    assert 0 < len(whole) < 50_000
    assert [record.line for record in found if record.error is not None] == [len(whole) + 1]


def test_a_file_that_is_no_parquet_is_missing_or_has_types_already_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(InvalidRequest, match="not Parquet"):
        read(tmp_path, b"PAR1 not really", FileFormat.PARQUET)
    with pytest.raises(NotFound):
        read_records(tmp_path, FileFormat.CSV)
    with pytest.raises(InvalidRequest, match="types are for CSV"):
        read(tmp_path, b"{}", FileFormat.NDJSON, a="int")


@pytest.mark.parametrize(
    ("name", "file_format"),
    [
        ("a.csv", "csv"),
        ("a.CSV", "csv"),
        ("a.ndjson", "ndjson"),
        ("a.jsonl", "ndjson"),
        ("a.parquet", "parquet"),
    ],
)
def test_a_files_name_determines_its_format(name: str, file_format: str) -> None:
    assert format_of(Path(name)) == file_format


@pytest.mark.parametrize("file_format", [FileFormat.CSV, FileFormat.NDJSON])
def test_how_far_reading_is_only_goes_up_to_the_size(
    tmp_path: Path, file_format: FileFormat
) -> None:
    line = {FileFormat.CSV: "value\n", FileFormat.NDJSON: '{"a":"value"}\n'}[file_format].encode()
    content = (b"a\n" if file_format is FileFormat.CSV else b"") + line * 500
    at = [record.read_bytes for record in read(tmp_path, content, file_format)]
    assert at == sorted(at)
    assert (len(at), at[-1]) == (500, len(content))
