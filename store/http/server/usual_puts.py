"""Recognises the usual single put: a request in one piece, with nothing unusual in its
head. Pure functions: bytes in, the put or None out.

None says "read this as any other request". So nothing is refused here, and no rule stands twice: a
put with a wrong body, a foreign host or another history is refused where all requests are. What is
recognised is a subset of HTTP/1.1 in which two readers cannot differ about where a request ends:

- the request line of a put, byte for byte; line ends are CR LF; a field is a name, ``": "`` and a
  value of visible letters and single-line spaces;
- only fields of :data:`_FIELDS`, each once; none of them changes how a message is framed;
- ``content-length`` is exactly the number of bytes behind the head.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cellfeed.store.cells.cell import NewCell
from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.messages import HISTORY, JSON, REQUEST_NUMBER, REQUEST_NUMBER_BYTES_MAX
from cellfeed.store.http.server.asgi import is_loopback
from cellfeed.store.http.server.requests import put_from

_HEAD: Final = re.compile(
    rb"(?:[A-Za-z-]{1,40}: [\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?\r\n){1,12}\r\n"
)
"""The fields of a head and the empty line behind them."""

_NUMBER: Final = REQUEST_NUMBER.encode()
_HISTORY: Final = HISTORY.encode()
_FIELDS: Final = frozenset(
    {
        b"host",
        b"content-type",
        b"content-length",
        b"accept",
        b"accept-encoding",
        b"accept-language",
        b"user-agent",
        _NUMBER,
        _HISTORY,
    }
)
_VARIES: Final = {
    b"content-length": rb"(?P<length>[0-9]{1,8})",
    _NUMBER: rb"(?P<number>[\x21-\x7e]{1,%d})" % REQUEST_NUMBER_BYTES_MAX,
}
_JSON: Final = JSON.encode()


class UsualPut(NamedTuple):
    """A put and the request number to repeat, empty where none was sent."""

    cell: NewCell
    number: bytes


class UsualHeads:
    """Of one connection. ``request_line`` with its line end; ``history``: the worker's."""

    def __init__(self, request_line: bytes, history: bytes) -> None:
        self._request_line = request_line
        self._history = history
        self._known: re.Pattern[bytes] | None = None
        """The last head that was read, with room for another request number and length: what is
        true of one is true of the other."""

    def put(self, data: bytes) -> UsualPut | None:
        """The put that ``data`` is."""
        head = self._known.match(data) if self._known is not None else None
        if head is None:
            self._known = self._read(data)
            head = self._known.match(data) if self._known is not None else None
            if head is None:
                return None
        content = data[head.end() :]
        if head["length"] != b"%d" % len(content):
            return None
        try:
            return UsualPut(put_from(content, JSON), head["number"] or b"")
        except CellfeedError:
            return None

    def _read(self, data: bytes) -> re.Pattern[bytes] | None:
        """The pattern of the head of ``data``; None where it is not a usual one."""
        head = _HEAD.match(data, len(self._request_line))
        if head is None or not data.startswith(self._request_line):
            return None
        lines = data[len(self._request_line) : head.end() - 4].split(b"\r\n")
        fields: dict[bytes, bytes] = {}
        pattern = re.escape(self._request_line)
        for line in lines:
            written, _, value = line.partition(b": ")
            fields[name := written.lower()] = value
            pattern += re.escape(written) + b": " + _VARIES.get(name, re.escape(value)) + b"\r\n"
        if (
            len(fields) != len(lines)
            or not fields.keys() <= _FIELDS
            or b"content-length" not in fields
            or fields.get(b"content-type") != _JSON
            or b"msgpack" in fields.get(b"accept", b"")
            or not is_loopback(fields.get(b"host", b""))
            or fields.get(_HISTORY, self._history) != self._history
        ):
            return None
        if _NUMBER not in fields:
            pattern += b"(?P<number>)"
        return re.compile(pattern + b"\r\n")
