"""Values of CSV over several lines: whole, or an error. No part of a value becomes a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellfeed.loading import lines as lines_module
from cellfeed.loading.csv_file import csv_header, csv_records, infer_types
from cellfeed.loading.record import Record
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.limits import BODY_BYTES_MAX

INSIDE = b"\nx,y\n"
"""A line that would be a record of its own, were it not inside a value."""


def read(tmp_path: Path, content: bytes, **field_types: str) -> list[Record]:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    return list(csv_records(path, field_types))


def said(found: list[Record]) -> list[tuple[int, object]]:
    """The line of each record, with its values or with its error."""
    return [
        (each.line, str(each.error) if each.fields is None else list(each.fields.values()))
        for each in found
    ]


@pytest.mark.parametrize("value", [b"a \xff" + INSIDE + b"z", b"a" + INSIDE + b"z \xff"])
def test_a_value_that_is_not_utf8_costs_its_record_with_all_its_lines(
    tmp_path: Path, value: bytes
) -> None:
    bad, good = said(read(tmp_path, b'id,note\nu1,"' + value + b'"\nu2,ok\n'))
    assert bad[0] == 2
    assert "not CSV in UTF-8: 'utf-8' codec" in str(bad[1])
    assert good == (5, ["u2", "ok"])


@pytest.mark.parametrize(
    "record",
    [
        b'u1,"a' + INSIDE + b"y" * 99 + b'"',
        b'u1,"' + b"y" * 99 + INSIDE + b'z"',
        b'u1,"' + b"y" * 98 + b'""' + INSIDE + b'z"',
        b'u1,"' + INSIDE * 20 + b'z"',
    ],
)
def test_a_record_that_is_too_long_costs_itself_with_all_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: bytes
) -> None:
    monkeypatch.setattr(lines_module, "LINE_BYTES_MAX", 60)
    content = b"id,note\n" + record + b"\nu2,ok\n"
    bad, good = said(read(tmp_path, content))
    assert bad == (2, "not CSV in UTF-8: longer than 60 bytes")
    assert good == (content.count(b"\n"), ["u2", "ok"])


def test_a_quote_that_nothing_ends_is_one_error_up_to_the_end(tmp_path: Path) -> None:
    [bad] = said(read(tmp_path, b'id,note\nu1,"a' + INSIDE * 9))
    assert bad == (2, "not CSV in UTF-8: unexpected end of data")


def test_a_value_may_be_as_long_as_a_body(tmp_path: Path) -> None:
    value = b"x,y\n" * ((BODY_BYTES_MAX - 1_000) // 5)
    [record] = read(tmp_path, b'id,note\nu1,"' + value + b'"\n')
    assert record.fields == {"id": "u1", "note": value.decode()}


def test_unreadable_lines_inside_a_value_do_not_influence_types(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'a,b\n1,"\xff' + INSIDE + b'"\n3,4\n')
    assert infer_types(path) == {"a": "int", "b": "int"}


@pytest.mark.parametrize("header", [b"a\xff,b", b'a,"b\n\xff"'])
def test_a_header_that_is_not_utf8_is_refused(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(header + b"\n1,2\n")
    with pytest.raises(InvalidRequest, match="header is not CSV in UTF-8: 'utf-8' codec"):
        csv_header(path)


@pytest.mark.parametrize(("kind", "text"), [("int", "12_34"), ("float", "1_2.5"), ("int", "٣")])
def test_text_that_is_a_number_to_python_alone_is_of_no_named_type(
    tmp_path: Path, kind: str, text: str
) -> None:
    [(_, error)] = said(read(tmp_path, f"n\n{text}\n".encode(), n=kind))
    assert error == f"field 'n' holds {text!r}, which is not of type {kind}"


@pytest.mark.parametrize("text", ['{""a"":1,""a"":2}', '[{""x"":{""a"":1,""a"":1}}]'])
def test_a_key_that_stands_twice_in_a_value_of_json_loses_nothing_silently(
    tmp_path: Path, text: str
) -> None:
    [(_, error)] = said(read(tmp_path, f'j\n"{text}"\n'.encode(), j="json"))
    assert "which is not of type json" in str(error)
