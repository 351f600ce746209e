"""Answers of a MySQL server, taken as PyMySQL takes them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pymysql
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymysql.connections import Connection
from pymysql.constants import FIELD_TYPE

from cellfeed.store.engines.mysql.answers import take_answer

EOF = b"\xfe\0\0\2\0"
MORE_TO_COME = b"\xfe\0\0\x0a\0"
OK = b"\0\3\7\2\0\0\0"
ERROR = b"\xff" + (1205).to_bytes(2, "little") + b"#HY000too long"
BINARY, UTF8 = 63, 45
Column = tuple[int, int]
Value = bytes | None


def counted(value: Value) -> bytes:
    if value is None:
        return b"\xfb"
    size = len(value)
    if size < 251:
        return bytes([size]) + value
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little") + value
    if size < 1 << 24:
        return b"\xfd" + size.to_bytes(3, "little") + value
    return b"\xfe" + size.to_bytes(8, "little") + value


def described(kind: int, charset: int) -> bytes:
    names = b"".join(map(counted, (b"def", b"db", b"t", b"t", b"name", b"name")))
    return (
        names
        + b"\x0c"
        + charset.to_bytes(2, "little")
        + b"\xff\xff\0\0"
        + bytes([kind])
        + b"\0" * 5
    )


def result(
    columns: Sequence[Column], rows: Sequence[Sequence[Value]], end: bytes = EOF
) -> list[bytes]:
    return [
        bytes([len(columns)]),
        *(described(*column) for column in columns),
        EOF,
        *(b"".join(map(counted, row)) for row in rows),
        end,
    ]


def wire(packets: Sequence[bytes]) -> bytes:
    sent, number = b"", 1
    for packet in packets:
        pieces = [packet[at : at + 0xFFFFFF] for at in range(0, len(packet) + 1, 0xFFFFFF)]
        for piece in pieces:
            sent += len(piece).to_bytes(3, "little") + bytes([number % 256]) + piece
            number += 1
    return sent


def connection(sent: bytes) -> Any:
    opened: Any = Connection(defer_connect=True, charset="utf8mb4", conv={})
    opened._rfile = io.BufferedReader(io.BytesIO(sent))
    opened._current_timeout = opened._read_timeout
    opened._next_seq_id = 1
    opened.server_status = 0
    return opened


def both(sent: bytes, answers: int = 1) -> list[list[Any]]:
    """The reading of the same bytes by ours and by PyMySQL's."""
    found = []
    for take in (take_answer, lambda each: each.next_result()):
        peer, told = connection(sent), list[Any]()
        for _ in range(answers):
            try:
                take(peer)
            except pymysql.err.MySQLError as error:
                told.append((type(error), error.args[0] if error.args else None))
                break
            taken = peer._result
            told.append(
                (
                    taken.rows,
                    taken.affected_rows,
                    taken.has_next,
                    taken.warning_count,
                    taken.insert_id,
                    peer._affected_rows,
                    peer._next_seq_id,
                    peer.server_status,
                )
            )
        found.append(told)
    return found


columns = st.lists(
    st.sampled_from(
        [
            (FIELD_TYPE.STRING, BINARY),
            (FIELD_TYPE.STRING, UTF8),
            (FIELD_TYPE.VAR_STRING, UTF8),
            (FIELD_TYPE.BLOB, BINARY),
            (FIELD_TYPE.LONGLONG, BINARY),
            (FIELD_TYPE.JSON, BINARY),
            (FIELD_TYPE.NEWDECIMAL, BINARY),
        ]
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_rows_equal_the_drivers(data: st.DataObject) -> None:
    kinds = data.draw(columns)
    sizes = st.sampled_from([0, 1, 16, 250, 251, 252, 65_535, 65_536])
    rows = data.draw(
        st.lists(
            st.tuples(*(st.none() | sizes.map(lambda size: b"7" * size) for _ in kinds)), max_size=5
        )
    )
    one, other = both(wire(result(kinds, rows)))
    assert one == other
    assert len(one[0][0]) == len(rows)


@pytest.mark.parametrize(
    "packets",
    [
        [OK],
        [ERROR],
        [*result([(FIELD_TYPE.STRING, BINARY)], [[b"a"]])[:-1], ERROR],
        result([(FIELD_TYPE.STRING, BINARY)], [[b"a"]])[:-1],
        result([(FIELD_TYPE.STRING, BINARY)], [[b"a"]])[:2],
        result([(FIELD_TYPE.BLOB, BINARY)], [[b"x" * (0xFFFFFF - 4)], [b"y" * 0xFFFFFF], [b"z"]]),
        result([(FIELD_TYPE.BLOB, BINARY)], [[b"x" * (1 << 25)]]),
        result([(FIELD_TYPE.STRING, BINARY)], [[b"a"]] * 300),
        [],
    ],
)
def test_any_answer_is_accepted_or_refused_as_by_the_driver(packets: list[bytes]) -> None:
    one, other = both(wire(packets))
    assert one == other


def test_answers_follow_each_other() -> None:
    first = result([(FIELD_TYPE.STRING, UTF8)], [["é".encode()]], MORE_TO_COME)
    second = result([(FIELD_TYPE.LONGLONG, BINARY)], [[b"12"], [None]], MORE_TO_COME)
    one, other = both(wire([*first, *second, OK]), 3)
    assert one == other
    assert [told[0] for told in one] == [(("é",),), (("12",), (None,)), None]


def test_a_row_out_of_order_ends_the_connection() -> None:
    packets = result([(FIELD_TYPE.STRING, BINARY)], [[b"a"], [b"b"], [b"c"]])
    sent = bytearray(wire(packets))
    sent[len(wire(packets[:4])) + 3] += 1
    one, other = both(bytes(sent))
    assert [told[0] for told in one] == [told[0] for told in other] == [pymysql.err.InternalError]


def test_a_packet_out_of_order_ends_the_connection() -> None:
    sent = bytearray(wire(result([(FIELD_TYPE.STRING, BINARY)], [[b"a"]])))
    sent[-len(EOF) - 1] += 1
    one, other = both(bytes(sent))
    assert [told[0] for told in one] == [told[0] for told in other] == [pymysql.err.InternalError]
