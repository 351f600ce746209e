"""A server's answers, taken apart as PyMySQL takes them apart: the same values, the same errors, whatever the sizes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pymysql
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymysql.connections import MySQLResult
from pymysql.constants import FIELD_TYPE

from store.engines.mysql_answers import Answer, read_answer

_PIECE_MAX = 0xFFFFFF


class Stream(pymysql.connections.Connection):  # type: ignore[type-arg]
    """A connection whose server has said these packets already, and has then hung up."""

    def __init__(self, packets: Sequence[bytes]) -> None:
        super().__init__(defer_connect=True, conv={}, charset="utf8mb4")
        pieces = [packet[start : start + _PIECE_MAX] for packet in packets for start in range(0, len(packet) + 1, _PIECE_MAX)]
        sent = b"".join(struct.pack("<I", len(piece))[:3] + bytes([(1 + number) % 256]) + piece for number, piece in enumerate(pieces))
        self._left = memoryview(sent)
        self._rfile = self
        self._current_timeout = self._read_timeout
        self._next_seq_id = 1
        self.is_cut_off = False

    def read(self, size: int) -> bytes:
        some, self._left = bytes(self._left[:size]), self._left[size:]
        return some

    def _force_close(self) -> None:
        self.is_cut_off = True


def string(value: bytes | None) -> bytes:
    """Length-encoded; as a column's value None is NULL."""
    if value is None:
        return b"\xfb"
    size = len(value)
    for first, below, count in ((b"", 251, 1), (b"\xfc", 1 << 16, 2), (b"\xfd", 1 << 24, 3)):
        if size < below:
            return first + size.to_bytes(count, "little") + value
    return b"\xfe" + size.to_bytes(8, "little") + value


def column(name: str, kind: int, character_set: int) -> bytes:
    names = b"".join(map(string, (b"def", b"trips", b"t", b"t", name.encode(), name.encode())))
    return names + struct.pack("<BHIBHBxx", 12, character_set, 1000, kind, 0, 0)


def end(status: int = 2) -> bytes:
    return b"\xfe" + struct.pack("<HH", 0, status)


KINDS = ((FIELD_TYPE.LONGLONG, 63), (FIELD_TYPE.BLOB, 63), (FIELD_TYPE.VAR_STRING, 45), (FIELD_TYPE.VAR_STRING, 63), (FIELD_TYPE.DATETIME, 63))
values = st.one_of(st.none(), st.integers(0, 400).map(lambda size: b"7" * size), st.just(b"5" * 70_000))


def rows_of(kinds: list[tuple[int, int]]) -> st.SearchStrategy[Any]:
    return st.tuples(st.just(kinds), st.lists(st.tuples(*[values] * len(kinds)), max_size=6))


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5).flatmap(rows_of))
def test_rows_are_those_that_pymysql_reads(case: tuple[list[tuple[int, int]], list[tuple[bytes | None, ...]]]) -> None:
    kinds, rows = case
    columns = [column(f"c{number}", *kind) for number, kind in enumerate(kinds)]
    packets = [bytes([len(kinds)]), *columns, end(), *(b"".join(map(string, row)) for row in rows), end(8 | 2)]
    result: Any = MySQLResult(Stream(packets))
    result.read()
    answer = read_answer(Stream(packets))
    assert (answer.rows, answer.affected_rows, bool(answer.has_next)) == (result.rows, result.affected_rows, bool(result.has_next))
    assert answer.names() == [field.name for field in result.fields]


def test_a_value_may_come_in_several_packets() -> None:
    body = bytes(range(256)) * 70_000  # more than 16 MiB
    answer = read_answer(Stream([b"\x01", column("body", FIELD_TYPE.LONG_BLOB, 63), end(), string(body), end()]))
    assert answer.rows == ((body,),)


@pytest.mark.parametrize(("affected", "encoded"), [(3, b"\x03"), (300, b"\xfc\x2c\x01"), (70_000, b"\xfd\x70\x11\x01")])
def test_what_a_write_changed_is_told(affected: int, encoded: bytes) -> None:
    answer = read_answer(Stream([b"\x00" + encoded + b"\x00" + struct.pack("<HH", 8, 1)]))
    assert (answer.rows, answer.affected_rows, answer.insert_id, answer.warning_count, bool(answer.has_next)) == (None, affected, 0, 1, True)


def _told(packets: Sequence[bytes]) -> tuple[Stream, pymysql.err.MySQLError]:
    stream = Stream(packets)
    with pytest.raises(pymysql.err.MySQLError) as raised:
        read_answer(stream)
    return stream, raised.value


def test_an_error_of_the_server_leaves_the_connection() -> None:
    refused = b"\xff" + struct.pack("<H", 1242) + b"#21000Subquery returns more than 1 row"
    for packets in ([refused], [b"\x01", column("n", FIELD_TYPE.LONG, 63), end(), string(b"1"), refused]):
        stream, error = _told(packets)
        assert error.args == (1242, "Subquery returns more than 1 row")
        assert not stream.is_cut_off


def test_a_connection_that_ends_or_says_something_else_is_lost() -> None:
    whole = [b"\x01", column("n", FIELD_TYPE.LONG, 63), end(), string(b"1")]
    another = Stream([end()])
    another._next_seq_id = 7  # type: ignore[attr-defined]
    for stream in (*(Stream(whole[:count]) for count in range(5)), Stream([b"\xfbfile"]), another):
        with pytest.raises(pymysql.err.OperationalError) as raised:
            read_answer(stream)
        assert raised.value.args[0] == 2013
        assert stream.is_cut_off


def test_a_time_out_is_told_as_one() -> None:
    class Silent(Stream):
        def read(self, size: int) -> bytes:
            raise TimeoutError("timed out")

    silent = Silent([end()])
    with pytest.raises(pymysql.err.OperationalError) as raised:
        read_answer(silent)
    assert isinstance(raised.value.__context__, TimeoutError)
    assert silent.is_cut_off


def test_an_answer_has_what_a_cursor_looks_at() -> None:
    assert (Answer(None, (), 0, 0, 2, 0).description, Answer.unbuffered_active) == (None, False)
