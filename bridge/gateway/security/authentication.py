"""Authenticates the client of a connection: SASL PLAIN and SCRAM, message by message. No socket
here; the costly check of a password runs in a thread.

A peer whose authentication failed gets the same answer for every reason, after the same work, and a
little later. So it does not learn which names exist.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final

from kio.schema.errors import ErrorCode

from cellfeed.store.limits import (
    AUTHENTICATION_FAILED_DELAY_S,
    PEER_WARNINGS_MAX,
    PEER_WARNINGS_S,
)
from cellfeed.store.security.access import Security
from cellfeed.store.security.limited_warnings import LimitedWarnings
from cellfeed.store.security.scram import (
    PLAIN,
    AuthenticationFailed,
    ScramExchange,
    is_password,
    plain_message,
)

_failures = LimitedWarnings(
    logging.getLogger("cellfeed.gateway"),
    "failed authentications",
    PEER_WARNINGS_MAX,
    PEER_WARNINGS_S,
)
_PLAIN_VERIFIED_BY: Final = "SCRAM-SHA-512"
_NONCE_BYTES: Final = 24
_FAILED: Final = "Authentication failed: the mechanism, the user or the password is wrong"


class Authentication:
    """Of one connection. ``principal`` is None until it has succeeded. ``has_failed``: the
    connection is to be closed once the answer is out."""

    def __init__(
        self,
        mechanisms: tuple[str, ...],
        security: Callable[[], Security],
        executor: Executor,
        host: str,
    ) -> None:
        self._mechanisms = mechanisms
        self._security = security
        self._executor = executor
        self._host = host
        self._mechanism: str | None = None
        self._scram: ScramExchange | None = None
        self.principal: str | None = None
        self.has_failed = False

    def handshake(self, mechanism: str) -> dict[str, Any]:
        """SaslHandshake: which mechanism the client wants."""
        known = mechanism in self._mechanisms and self._mechanism is None and self.principal is None
        self.has_failed = not known
        if known:
            self._mechanism = mechanism
        return {
            "error_code": ErrorCode.none if known else ErrorCode.unsupported_sasl_mechanism,
            "mechanisms": self._mechanisms,
        }

    async def authenticate(self, token: bytes) -> dict[str, Any]:
        """SaslAuthenticate: the next message of the mechanism."""
        if self._mechanism is None or self.principal is not None:
            self.has_failed = True
            return _answer(ErrorCode.illegal_sasl_state, "SaslHandshake comes first, once")
        try:
            answer = await (
                self._plain(token) if self._mechanism == PLAIN else self._scram_step(token)
            )
        except AuthenticationFailed as failed:
            _failures.warn("authentication from %s failed: %s", self._host, failed)
            self.has_failed = True
            await asyncio.sleep(AUTHENTICATION_FAILED_DELAY_S)
            return _answer(ErrorCode.sasl_authentication_failed, _FAILED)
        return _answer(ErrorCode.none, None, answer)

    async def _plain(self, token: bytes) -> bytes:
        user, password = plain_message(token)
        security = self._security()
        credential = security.credential(_PLAIN_VERIFIED_BY, user)
        fits = await asyncio.get_running_loop().run_in_executor(
            self._executor, is_password, _PLAIN_VERIFIED_BY, credential, password
        )
        if not fits or not security.exists(user):
            raise AuthenticationFailed("no such user, or another password")
        self.principal = user
        return b""

    async def _scram_step(self, token: bytes) -> bytes:
        mechanism = self._mechanism or ""
        if self._scram is None:
            security = self._security()
            self._scram = ScramExchange(
                mechanism,
                lambda user: security.credential(mechanism, user),
                secrets.token_urlsafe(_NONCE_BYTES),
            )
            return self._scram.first(token)
        answer = self._scram.final(token)
        if not self._security().exists(self._scram.user):
            raise AuthenticationFailed("no such user")
        self.principal = self._scram.user
        return answer


def _answer(error: ErrorCode, message: str | None, token: bytes = b"") -> dict[str, Any]:
    # A session's lifetime of 0: it lasts as long as the connection.
    return {
        "error_code": error,
        "error_message": message,
        "auth_bytes": token,
        "session_lifetime": 0,
    }
