"""Finds the sender of a request: by its Authorization field, or by the certificate of its
connection.

``Bearer`` has a token of ours, or one that an identity provider signed. ``Basic`` has a user's
password, or a token in its place. A request
with more than one Authorization field is refused: two readers might take different ones. Failed
attempts are logged without any secret, at most some a minute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Final

from cellfeed.store.errors import CellfeedError, InvalidRequest, Unauthenticated
from cellfeed.store.http.server.asgi import Scope
from cellfeed.store.http.server.credentials import Credentials, SignedTokens
from cellfeed.store.limits import (
    PEER_WARNINGS_MAX,
    PEER_WARNINGS_S,
    SECURITY_LOOK_S,
)
from cellfeed.store.progress import Watch
from cellfeed.store.security.authority import Authority
from cellfeed.store.security.callers import TRUSTED, Caller
from cellfeed.store.security.limited_warnings import LimitedWarnings
from cellfeed.store.security.scram import AuthenticationFailed

CALLER: Final = "cellfeed.caller"
SUBJECT: Final = "cellfeed.subject"
"""Keys of a request's scope: its caller, and the subject of its connection's certificate."""

CHALLENGE: Final = b'Bearer realm="cellfeed", Basic realm="cellfeed", charset="UTF-8"'
"""The ``WWW-Authenticate`` of an answer 401."""

_failures = LimitedWarnings(
    logging.getLogger("cellfeed.security"),
    "failed authentications",
    PEER_WARNINGS_MAX,
    PEER_WARNINGS_S,
)


class Watched:
    """A caller of a stream. ``ended`` is set when it may not read or write it any more, with
    ``error``."""

    def __init__(self, caller: Caller, check: Callable[[Caller], object]) -> None:
        self.caller = caller
        self.check = check
        self.error: CellfeedError | None = None
        self.ended = asyncio.Event()


class Callers:
    """Of one server. ``required``: a request without credentials is refused; else it comes from
    this machine and may do everything. Used on the event loop."""

    def __init__(
        self,
        datastore: str,
        authority: Authority,
        *,
        required: bool,
        signed: SignedTokens | None = None,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self._authority = authority
        self._clock_s = clock_s
        self._credentials = Credentials(
            datastore, authority, required=required, signed=signed, clock_s=clock_s
        )
        self.required = required
        self._watched: set[Watched] = set()

    def close(self) -> None:
        self._credentials.close()

    def current(self, caller: Caller) -> Caller:
        """The caller under the last reading of rights. Raises Unauthenticated for credentials that
        have ended since."""
        return self._credentials.current(caller)

    async def follow(self) -> None:
        """Puts changed users, tokens and rights in force, also for streams that are open. Runs
        until it is cancelled."""
        with closing(Watch("http-rights", "loop")) as watch:
            while True:
                if await asyncio.to_thread(self._authority.look):
                    watch.moved()
                else:
                    watch.waits(self._authority.because)
                self.recheck()
                await asyncio.sleep(SECURITY_LOOK_S)

    def recheck(self) -> None:
        """Ends the streams whose callers may not read them any more."""
        for each in list(self._watched):
            try:
                each.caller = self.current(each.caller)
                each.check(each.caller)
            except CellfeedError as error:
                each.error = error
                each.ended.set()

    @contextmanager
    def watched(self, caller: Caller, check: Callable[[Caller], object]) -> Iterator[Watched]:
        """Checks now, and as long as the context lasts. Its ``ended`` is set when the check fails,
        with ``error``. Raises the error of the first check."""
        check(caller)
        watched = Watched(caller, check)
        self._watched.add(watched)
        try:
            yield watched
        finally:
            self._watched.discard(watched)

    def issued(self, principal: str, how: str, expires_at_s: float) -> Caller:
        """A caller whose credentials somebody else has checked, until ``expires_at_s``, Unix
        time."""
        return self._credentials.issued(principal, how, expires_at_s)

    def is_current(self, caller: Caller) -> bool:
        """Whether :meth:`current` would give the same one."""
        return caller is TRUSTED or (
            caller.security is self._authority.security
            and (caller.expires_at_s is None or caller.expires_at_s > self._clock_s())
        )

    def at_once(self, authorization: bytes, subject: str | None) -> Caller | None:
        """The caller, where it takes no wait to know; None also for wrong credentials."""
        try:
            return self._credentials.known(authorization, subject)
        except (AuthenticationFailed, Unauthenticated):
            return None

    async def of(self, scope: Scope) -> Caller:
        """The sender of a request. Raises Unauthenticated; InvalidRequest for one with several
        credentials."""
        given = [bytes(value) for name, value in scope["headers"] if name == b"authorization"]
        if len(given) > 1:
            raise InvalidRequest("a request has one Authorization field, not several")
        authorization = given[0] if given else b""
        try:
            known = self._credentials.known(authorization, scope.get(SUBJECT))
            return known or await self._credentials.checked(authorization)
        except AuthenticationFailed as failed:
            peer = scope.get("client")
            _failures.warn("authentication of %s failed: %s", peer[0] if peer else "?", failed)
            raise Unauthenticated(
                "the credentials do not count: they are mistyped, expired or revoked"
            ) from None


def caller_of(scope: Scope) -> Caller:
    """The caller of a request that was let in."""
    caller = scope[CALLER]
    assert isinstance(caller, Caller)  # noqa: S101 (for the type checker)
    return caller
