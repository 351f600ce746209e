"""A server's answer to a statement, taken apart in one loop.

PyMySQL makes an object of every packet, and an answer has one for each row, each column and each end of a list: three quarters of what a small query costs a
client. Here the packets are read as bytes; of the description of a column only the two numbers at its end are looked at, by which PyMySQL, too, tells text from
bytes. What fails is told as PyMySQL tells it, so :mod:`store.engines.mysql_errors` judges it alike.

https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response_text_resultset.html describes the packets.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from pymysql import err
from pymysql.connections import TEXT_TYPES
from pymysql.constants import CR, SERVER_STATUS

_PACKET_BYTES_MAX: Final = 0xFFFFFF
"""A longer value comes in several packets: one of this length is not the last."""

_OK: Final = 0x00
_LOCAL_FILE: Final = 0xFB
_END: Final = 0xFE
_END_BYTES_MAX: Final = 8
_ERROR: Final = b"\xff"
_NULL: Final = 0xFB
_LENGTHS: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""By the first byte of a number that is not one byte by itself: how many bytes it has."""

_BINARY: Final = 63
"""The number of the character set of what is not text."""

_STATUS: Final = struct.Struct("<HH")


class Answer:
    """What the server said to one statement. ``rows``: None where it was no query. The rest is what PyMySQL looks at before it sends the next statement."""

    __slots__ = ("_columns", "affected_rows", "has_next", "insert_id", "rows", "server_status", "warning_count")
    description = None
    unbuffered_active = False

    def __init__(
        self, rows: Sequence[tuple[Any, ...]] | None, columns: Sequence[bytes], affected_rows: int, insert_id: int, server_status: int, warning_count: int
    ) -> None:
        self.rows = rows
        self._columns = columns
        self.affected_rows = affected_rows
        self.insert_id = insert_id
        self.server_status = server_status
        self.warning_count = warning_count
        self.has_next = server_status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS

    def names(self) -> list[str]:
        """Of the columns."""
        return [_name(column) for column in self._columns]


def read_answer(connection: Any) -> Answer:
    """The next answer on a connection of PyMySQL's. Values are bytes, text or None, as the column says. Raises PyMySQL's errors: the server's as they are,
    OperationalError where the connection is lost."""
    if connection._current_timeout != connection._read_timeout:  # noqa: SLF001 - PyMySQL sets it before each answer, and keeps in mind what it is
        connection._sock.settimeout(connection._read_timeout)  # noqa: SLF001
        connection._current_timeout = connection._read_timeout  # noqa: SLF001
    packets = _Packets(connection._rfile.read, connection._next_seq_id)  # noqa: SLF001
    try:
        return _answer(packets)
    except err.MySQLError:
        if packets.is_lost:
            connection._force_close()  # noqa: SLF001
        raise
    except BaseException:
        connection._force_close()  # noqa: SLF001
        raise
    finally:
        connection._next_seq_id = packets.sequence_number  # noqa: SLF001


class _Packets:
    """Packets as they come. ``read`` gives so many bytes, or fewer at the end of the stream."""

    def __init__(self, read: Callable[[int], bytes], sequence_number: int) -> None:
        self._read = read
        self.sequence_number = sequence_number
        self.is_lost = False

    def lost(self, why: str) -> err.OperationalError:
        """The error to raise where nothing more can be read. What the operating system said is its context: a time-out is told by that."""
        self.is_lost = True
        return err.OperationalError(CR.CR_SERVER_LOST, f"Lost connection to MySQL server during query ({why})")

    def next(self) -> bytes:
        """The next one, whole, however many pieces it comes in. Raises OperationalError where it is lost, and the error that the server tells in it."""
        whole = b""
        while True:
            try:
                head = self._read(4)
                if len(head) < 4:
                    raise self.lost("the server hung up")
                size = head[0] | head[1] << 8 | head[2] << 16
                piece = self._read(size)
            except OSError as error:
                raise self.lost(str(error)) from error
            if head[3] != self.sequence_number:
                raise self.lost(f"packet {head[3]} came instead of {self.sequence_number}")  # one that is shut down says so without being asked
            if len(piece) < size:
                raise self.lost("the server hung up")
            self.sequence_number = (head[3] + 1) % 256
            whole = whole + piece if whole else piece
            if size < _PACKET_BYTES_MAX:
                break
        if whole[:1] == _ERROR:
            err.raise_mysql_exception(whole)
        return whole


def _answer(packets: _Packets) -> Answer:
    next_packet = packets.next
    packet = next_packet()
    if packet[0] == _OK:
        affected_rows, at = _number(packet, 1)
        insert_id, at = _number(packet, at)
        server_status, warning_count = _STATUS.unpack_from(packet, at)
        return Answer(None, (), affected_rows, insert_id, server_status, warning_count)
    if packet[0] == _LOCAL_FILE:
        raise packets.lost("the server asks for a file of this machine")
    count, _ = _number(packet, 0)
    columns = [next_packet() for _ in range(count)]
    are_text = [_is_text(column) for column in columns]
    next_packet()  # the end of the columns
    rows = []
    while (packet := next_packet())[0] != _END or len(packet) > _END_BYTES_MAX:
        rows.append(_row(packet, are_text))
    warning_count, server_status = _STATUS.unpack_from(packet, 1)
    return Answer(tuple(rows), columns, len(rows), 0, server_status, warning_count)


def _row(packet: bytes, are_text: Sequence[bool]) -> tuple[str | bytes | None, ...]:
    values: list[str | bytes | None] = []
    at = 0
    for is_text in are_text:
        size = packet[at]
        if size == _NULL:
            values.append(None)
            at += 1
            continue
        if size < _NULL:
            at += 1
        else:
            size, at = _number(packet, at)
        end = at + size
        values.append(packet[at:end].decode() if is_text else packet[at:end])
        at = end
    return tuple(values)


def _is_text(column: bytes) -> bool:
    """At the end of a column's description: character set (2 bytes), length (4), type (1), flags (2), decimals (1) and two that are not used. Numbers and times
    come as text; and so does text, but for what is binary."""
    return column[-6] not in TEXT_TYPES or column[-12] | column[-11] << 8 != _BINARY


def _name(column: bytes) -> str:
    """Behind the names of catalog, database, and table twice."""
    at = 0
    for _ in range(4):
        size, at = _number(column, at)
        at += size
    size, at = _number(column, at)
    return column[at : at + size].decode()


def _number(packet: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer, and where it ends."""
    size = _LENGTHS.get(packet[at])
    if size is None:
        return packet[at], at + 1
    return int.from_bytes(packet[at + 1 : at + 1 + size], "little"), at + 1 + size
