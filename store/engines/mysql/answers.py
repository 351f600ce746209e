"""Takes the answer to a statement, as PyMySQL does, for less than half of its CPU.

PyMySQL makes an object of each packet, and reads names, lengths and flags of each column, which
nobody asks for. Here a column is its character set and type, which say whether its values are text;
a row is cut in one loop. Values are the same: text and numbers as ``str``, binary values as
``bytes``, NULL as None (connections have no converters). Errors are PyMySQL's own.

The protocol: a packet is three bytes of length, a sequence number, and that many bytes. A result
has its number of columns, a packet for each, EOF, a packet for each row, and EOF with the server's
status. A value begins with its length: one byte below 251, 251 for NULL, 252, 253 and 254 for two,
three and eight bytes of length. (``COM_QUERY`` response, MariaDB's and MySQL's client protocol.)
"""

# ruff: noqa: SLF001 - it does by itself the work of PyMySQL's private methods
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pymysql import err
from pymysql.connections import TEXT_TYPES, MySQLResult
from pymysql.constants import CR, FIELD_TYPE
from pymysql.protocol import EOFPacketWrapper, MysqlPacket

_LONG_PACKET: Final = 0xFFFFFF
"""A packet of that size continues in the next one."""

_EOF, _ERROR = 0xFE, 0xFF
_EOF_BYTES_MAX: Final = 8
_BINARY_CHARSET: Final = 63


def take_answer(connection: Any) -> Sequence[tuple[Any, ...]]:
    """The rows of the next answer, none where it has none; the connection's result is set, as
    PyMySQL sets it. Raises its errors."""
    connection._result = None
    result: Any = MySQLResult(connection)
    first = connection._read_packet()
    if first.is_ok_packet():
        result._read_ok_packet(first)
    elif first.is_load_local_packet():
        result._read_load_local_packet(first)
    else:
        _take_rows(connection, result, first.read_length_encoded_integer())
    result.connection = None
    connection._result = result
    if result.server_status is not None:
        connection.server_status = result.server_status
    connection._affected_rows = result.affected_rows
    return result.rows or ()


def _take_rows(connection: Any, result: Any, columns: int) -> None:
    encodings = [_encoding_of(connection, _packet(connection)) for _ in range(columns)]
    _packet(connection)  # EOF
    rows: list[tuple[Any, ...]] = []
    while True:
        _take_read_rows(connection, encodings, rows)
        data = _packet(connection)
        if data[0] == _EOF and len(data) <= _EOF_BYTES_MAX:
            break
        rows.append(_row(data, encodings))
    end = EOFPacketWrapper(MysqlPacket(data, connection.encoding))
    result.warning_count, result.has_next = end.warning_count, end.has_next
    result.affected_rows = len(rows)
    result.rows = tuple(rows)


def _take_read_rows(
    connection: Any, encodings: Sequence[str | None], rows: list[tuple[Any, ...]]
) -> None:
    """Takes the rows that have come whole with bytes read before: a call for each head and body
    costs as much as to cut the row. All else is left to :func:`_packet`."""
    try:
        there = connection._rfile.peek()
    except OSError as error:
        connection._force_close()
        raise err.OperationalError(
            CR.CR_SERVER_LOST, f"Lost connection to MySQL server during query ({error})"
        ) from error
    at, number, end = 0, connection._next_seq_id, len(there)
    while at + 4 < end:
        behind = at + 4 + (there[at] | there[at + 1] << 8 | there[at + 2] << 16)
        if (
            behind > end
            or behind == at + 4
            or behind == at + 4 + _LONG_PACKET
            or there[at + 3] != number
            or there[at + 4] >= _EOF
        ):
            break
        rows.append(_row(there[at + 4 : behind], encodings))
        at, number = behind, (number + 1) % 256
    connection._rfile.read(at)
    connection._next_seq_id = number


def _encoding_of(connection: Any, column: bytes) -> str | None:
    """Of a column's values; None where they are binary. The packet ends with its character set (2
    bytes), length (4), type (1), flags (2), decimals (1) and two empty ones."""
    kind = column[-6]
    if kind == FIELD_TYPE.JSON:
        return str(connection.encoding)
    if kind not in TEXT_TYPES:
        return "ascii"
    return (
        None
        if int.from_bytes(column[-12:-10], "little") == _BINARY_CHARSET
        else str(connection.encoding)
    )


def _packet(connection: Any) -> bytes:
    """The next packet, never empty. Raises the server's error, or that of a lost connection."""
    read: Callable[[int], bytes] = connection._read_bytes
    head = read(4)
    if head[3] != connection._next_seq_id:
        connection._force_close()
        raise err.InternalError(
            f"packet {head[3]} of an answer where {connection._next_seq_id} is the next"
        )
    connection._next_seq_id = (head[3] + 1) % 256
    size = int.from_bytes(head[:3], "little")
    data = read(size)
    if size == _LONG_PACKET:
        data += _packet_behind(connection)
    if not data:
        connection._force_close()
        raise err.InternalError("an empty packet in an answer")
    if data[0] == _ERROR:
        MysqlPacket(data, connection.encoding).raise_for_error()
    return data


def _packet_behind(connection: Any) -> bytes:
    """The rest of a long packet: any bytes, or none."""
    head = connection._read_bytes(4)
    connection._next_seq_id = (head[3] + 1) % 256
    size = int.from_bytes(head[:3], "little")
    rest: bytes = connection._read_bytes(size)
    return rest + _packet_behind(connection) if size == _LONG_PACKET else rest


def _row(data: bytes, encodings: Sequence[str | None]) -> tuple[Any, ...]:
    row: list[str | bytes | None] = []
    at = 0
    for encoding in encodings:
        size = data[at]
        at += 1
        if size >= 251:
            if size == 251:
                row.append(None)
                continue
            width = 2 if size == 252 else 3 if size == 253 else 8
            size = int.from_bytes(data[at : at + width], "little")
            at += width
        value = data[at : at + size]
        at += size
        row.append(value if encoding is None else value.decode(encoding))
    return tuple(row)
