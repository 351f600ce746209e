"""As much of the MySQL protocol as a proxy needs: whole commands out of a stream, COM_QUERY, and
the end of the answers to one packet."""

from __future__ import annotations

import re
import struct
from typing import Final

_COM_QUERY: Final = 3
_PACKET_BYTES_MAX: Final = (1 << 24) - 1
_MORE_RESULTS: Final = 0x0008
_OK, _ERROR, _END_OF_ROWS = 0x00, 0xFF, 0xFE


class CommandReader:
    """Cuts a client's stream into whole commands. A long one travels as several packets, all but
    the last of the greatest length."""

    def __init__(self) -> None:
        self._stream = bytearray()

    def feed(self, piece: bytes) -> list[bytes]:
        """The commands that are whole now, with their heads, exactly as they came."""
        self._stream += piece
        whole = []
        while (end := self._end_of_command()) is not None:
            whole.append(bytes(self._stream[:end]))
            del self._stream[:end]
        return whole

    def _end_of_command(self) -> int | None:
        position = 0
        while position + 4 <= len(self._stream):
            length = int.from_bytes(self._stream[position : position + 3], "little")
            position += 4 + length
            if position > len(self._stream):
                return None
            if length < _PACKET_BYTES_MAX:
                return position
        return None


def is_query_with(command: bytes, text: bytes) -> bool:
    """Whether a client's command is a COM_QUERY whose statements contain ``text`` as words of its
    own (``COMMIT`` is no part of ``AUTOCOMMIT``)."""
    if len(command) < 5 or command[3] != 0 or command[4] != _COM_QUERY:
        return False
    return (
        text in command
        and re.search(rb"(?<!\w)" + re.escape(text) + rb"(?!\w)", command) is not None
    )


class AnswerEnd:
    """Recognises the last packet of the answers to one command, of however many statements. Fed
    with the server's bytes."""

    def __init__(self) -> None:
        self._stream = bytearray()
        self._in_rows = False
        self._ends_of_rows = 0

    def feed(self, piece: bytes) -> bool:
        """True when the answers are complete."""
        self._stream += piece
        while len(self._stream) >= 4:
            end = 4 + int.from_bytes(self._stream[:3], "little")
            if len(self._stream) < end:
                return False
            payload = bytes(self._stream[4:end])
            del self._stream[:end]
            if self._is_last(payload):
                return True
        return False

    def _is_last(self, payload: bytes) -> bool:
        first = payload[0]
        if first == _ERROR:
            return True
        if self._in_rows:
            if first != _END_OF_ROWS or len(payload) >= 9:
                return False
            # One behind the column definitions, one behind the rows: the second ends the result.
            self._ends_of_rows += 1
            if self._ends_of_rows < 2:
                return False
            self._in_rows, self._ends_of_rows = False, 0
            (status,) = struct.unpack_from("<H", payload, 3)
            return not status & _MORE_RESULTS
        if first == _OK:
            (status,) = struct.unpack_from(
                "<H", payload, _skip_number(payload, _skip_number(payload, 1))
            )
            return not status & _MORE_RESULTS
        self._in_rows = True
        return False


def _skip_number(payload: bytes, position: int) -> int:
    """Behind a length-encoded number."""
    return position + {0xFC: 3, 0xFD: 4, 0xFE: 9}.get(payload[position], 1)
