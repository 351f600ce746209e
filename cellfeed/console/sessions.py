"""The console's sessions, in the memory of its process.

The cookie has a random number and its signature, and nothing about its owner. So a log-out ends a
session for every copy of its cookie, and a restarted console knows none of them.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from typing import Final

from cellfeed.store.errors import CellfeedError, Unauthenticated
from cellfeed.store.http.server.callers import Callers
from cellfeed.store.security.callers import Caller

SESSION_S: Final = 8 * 3600.0
"""A session ends after so long: a working day."""

IDLE_S: Final = 3600.0
"""A session ends so long after its last request. A page that follows changes sends some."""

SESSIONS_MAX: Final = 1_000
SESSIONS_OF_ONE_MAX: Final = 20
"""Of one principal. The next one ends the oldest of its own."""

_NUMBER_BYTES: Final = 32


class _Session:
    __slots__ = ("began_s", "caller", "seen_s")

    def __init__(self, caller: Caller, now_s: float) -> None:
        self.caller = caller
        self.began_s = self.seen_s = now_s


class Sessions:
    """Used on the event loop. ``clock_s``: seconds that never go back."""

    def __init__(self, callers: Callers, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._callers = callers
        self._clock_s = clock_s
        self._key = secrets.token_bytes(32)
        self._open: dict[str, _Session] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, caller: Caller) -> str:
        """The value of the new session's cookie. Of another principal's sessions none ends for it,
        as long as there is room."""
        self._end_old()
        mine = [
            number
            for number, each in self._open.items()
            if each.caller.principal == caller.principal
        ]
        if len(mine) >= SESSIONS_OF_ONE_MAX:
            del self._open[mine[0]]
        elif len(self._open) >= SESSIONS_MAX:
            most = Counter(each.caller.principal for each in self._open.values()).most_common(1)
            owner = most[0][0]
            del self._open[next(n for n, s in self._open.items() if s.caller.principal == owner)]
        number = secrets.token_urlsafe(_NUMBER_BYTES)
        self._open[number] = _Session(caller, self._clock_s())
        return f"{number}.{self._signature(number)}"

    def caller(self, cookie: str, *, is_request: bool = True) -> Caller:
        """The owner of a session, under the last reading of rights. ``is_request``: the session
        counts as used. Raises Unauthenticated for one that has ended, also because its token was
        revoked."""
        number = self._number(cookie)
        session = self._open.get(number)
        if session is None:
            raise Unauthenticated("the session has ended: log in again")
        now_s = self._clock_s()
        try:
            if now_s - session.began_s > SESSION_S or now_s - session.seen_s > IDLE_S:
                raise Unauthenticated("the session has ended: log in again")
            session.caller = self._callers.current(session.caller)
        except CellfeedError:
            del self._open[number]
            raise
        if is_request:
            session.seen_s = now_s
        return session.caller

    def end(self, cookie: str) -> None:
        """Ends a session; one that has ended already is well."""
        self._open.pop(self._number(cookie), None)

    def _number(self, cookie: str) -> str:
        number, _, signature = cookie.partition(".")
        fits = hmac.compare_digest(signature.encode(), self._signature(number).encode())
        return number if fits else ""

    def _signature(self, number: str) -> str:
        return hmac.new(self._key, number.encode(), sha256).hexdigest()

    def _end_old(self) -> None:
        for number in list(self._open):
            try:
                self.caller(f"{number}.{self._signature(number)}", is_request=False)
            except CellfeedError:
                continue
