"""Recognises the usual request: whole in one piece, with nothing unusual in its head. Bytes in, the
request or None out.

None says "read this as any other request". So nothing is refused here, and no rule stands twice: a
foreign host or another history is refused where all requests are. The usual requests are a subset
of HTTP/1.1 in which two readers cannot differ about where a request ends:

- a POST to a path of letters, digits, ``_`` and ``-``; line ends are CR LF; a field is a name,
  ``": "`` and a value of visible letters and single-line spaces;
- only fields of :data:`_FIELDS`, each once; none of them changes how a message is framed;
- ``content-length`` is exactly the number of bytes behind the head.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from cellfeed.store.http.messages import HISTORY, JSON, REQUEST_NUMBER, REQUEST_NUMBER_BYTES_MAX
from cellfeed.store.http.server.asgi import is_loopback
from cellfeed.store.http.server.callers import Callers
from cellfeed.store.security.callers import TRUSTED, Caller

_HEAD: Final = re.compile(
    rb"POST (/[A-Za-z0-9/_-]{1,200}) HTTP/1\.1\r\n"
    rb"((?:[A-Za-z-]{1,40}: [\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?\r\n){1,12})\r\n"
)
"""A head: its path and its fields."""

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
        b"authorization",
        _NUMBER,
        _HISTORY,
    }
)
_VARIES: Final = {
    b"content-length": rb"(?P<length>[0-9]{1,8})",
    _NUMBER: rb"(?P<number>[\x21-\x7e]{1,%d})" % REQUEST_NUMBER_BYTES_MAX,
}
_JSON: Final = JSON.encode()


class UsualRequest(NamedTuple):
    """``number``: to be repeated in the answer, empty where none was sent."""

    path: bytes
    number: bytes
    content: bytes
    caller: Caller


class UsualHeads:
    """Of one connection, whose peer has a certificate of ``subject``. ``is_known``: whether a path
    is answered; ``history``: the worker's. A request whose sender is not known at once is no usual
    one."""

    def __init__(
        self,
        is_known: Callable[[bytes], bool],
        history: bytes,
        callers: Callers,
        subject: str | None = None,
    ) -> None:
        self._is_known = is_known
        self._history = history
        self._callers = callers
        self._subject = subject
        self._caller: Caller = TRUSTED
        self._path = b""
        self._pattern: re.Pattern[bytes] | None = None
        """The last head that was read, with room for another request number and length: the verdict
        on one holds for the other."""

    def request(self, data: bytes) -> UsualRequest | None:
        """The request that ``data`` is."""
        head = self._pattern.match(data) if self._pattern is not None else None
        if head is None or not self._callers.is_current(self._caller):
            self._pattern = self._read(data)
            head = self._pattern.match(data) if self._pattern is not None else None
            if head is None:
                return None
        content = data[head.end() :]
        if head["length"] != b"%d" % len(content):
            return None
        return UsualRequest(self._path, head["number"] or b"", content, self._caller)

    def _read(self, data: bytes) -> re.Pattern[bytes] | None:
        """The pattern of the head of ``data``; None where it is not a usual one."""
        head = _HEAD.match(data)
        if head is None or not self._is_known(head[1]):
            return None
        self._path = head[1]
        lines = head[2].split(b"\r\n")[:-1]
        fields: dict[bytes, bytes] = {}
        pattern = re.escape(data[: head.start(2)])
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
            or not (self._callers.required or is_loopback(fields.get(b"host", b"")))
            or fields.get(_HISTORY, self._history) != self._history
        ):
            return None
        caller = self._callers.at_once(fields.get(b"authorization", b""), self._subject)
        if caller is None:
            return None
        self._caller = caller
        if _NUMBER not in fields:
            pattern += b"(?P<number>)"
        return re.compile(pattern + b"\r\n")
