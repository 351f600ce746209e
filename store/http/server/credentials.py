"""Credentials of HTTP requests: the value of an Authorization field, or the subject of a client's
certificate, as a :class:`~cellfeed.store.security.callers.Caller`."""

from __future__ import annotations

import asyncio
import binascii
import hmac
import time
from base64 import b64decode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Final, Protocol

from cellfeed.store.errors import Overloaded, Unauthenticated
from cellfeed.store.limits import AUTHENTICATION_FAILED_DELAY_S, AUTHENTICATION_THREADS
from cellfeed.store.security.authority import Authority
from cellfeed.store.security.callers import TRUSTED, Caller
from cellfeed.store.security.scram import AuthenticationFailed, is_password
from cellfeed.store.security.tokens import PREFIX, token_of

_KEPT_S: Final = 60.0
_KEPT_MAX: Final = 1_000
"""How long, and how many, checked passwords and signatures are remembered."""

CHECKS_MAX: Final = 100
"""Passwords that are being checked, or wait for it, at a time: half a second of work. So guesses
never take the places of requests."""

_CREDENTIALS_BYTES_MAX: Final = 16 << 10
_CREDENTIAL: Final = "SCRAM-SHA-512"


class SignedTokens(Protocol):
    """Verifies tokens of identity providers."""

    async def principal(self, text: str) -> tuple[str, float]:
        """The principal, and the Unix time when the token ends. Raises AuthenticationFailed."""


class Credentials:
    """Of one server; see :class:`cellfeed.store.http.server.callers.Callers`. Methods raise
    AuthenticationFailed for credentials that do not count, and Unauthenticated for none."""

    def __init__(
        self,
        datastore: str,
        authority: Authority,
        *,
        required: bool,
        signed: SignedTokens | None,
        clock_s: Callable[[], float],
    ) -> None:
        self._datastore = datastore
        self._authority = authority
        self._required = required
        self._signed = signed
        self._clock_s = clock_s
        self._passwords = ThreadPoolExecutor(
            AUTHENTICATION_THREADS, thread_name_prefix="http-passwords"
        )
        self._kept: dict[bytes, tuple[float, Caller]] = {}
        self._checking = 0

    def close(self) -> None:
        self._passwords.shutdown(wait=False, cancel_futures=True)

    def current(self, caller: Caller) -> Caller:
        """The caller under the last reading of rights. Raises Unauthenticated for credentials that
        have ended since."""
        if caller is TRUSTED:
            return caller
        if caller.expires_at_s is not None and caller.expires_at_s <= self._clock_s():
            raise Unauthenticated("the credentials have expired")
        security = self._authority.security
        if caller.security is security:
            return caller
        if not caller.still(security):
            raise Unauthenticated("the credentials were revoked")
        return caller.under(security)

    def known(self, authorization: bytes, subject: str | None) -> Caller | None:
        """None where a password or a signature has to be checked first."""
        if not authorization:
            if subject is not None:
                return self._caller(subject, "certificate", lambda _: True)
            if self._required:
                raise Unauthenticated(
                    "the request has no credentials: send a token (Authorization: Bearer cft_…)"
                )
            return TRUSTED
        if len(authorization) > _CREDENTIALS_BYTES_MAX:
            raise AuthenticationFailed("more bytes than credentials have")
        scheme, _, value = authorization.partition(b" ")
        value = value.strip()
        if scheme.lower() == b"bearer" and value.startswith(PREFIX.encode()):
            return self._token(value.decode("latin-1"))
        if scheme.lower() not in (b"bearer", b"basic"):
            raise AuthenticationFailed("another scheme than Bearer and Basic")
        kept = self._kept.get(sha256(authorization).digest())
        if kept is None or kept[0] < time.monotonic():
            return None
        return self.current(kept[1])

    def _token(self, text: str) -> Caller:
        security = self._authority.security
        token = token_of(security.tokens, text, self._clock_s())
        return self._caller(
            token.principal,
            f"token {token.id}",
            lambda later: later.tokens.get(token.id) == token,
            token.expires_at_s,
        )

    async def checked(self, authorization: bytes) -> Caller:
        scheme, _, value = authorization.partition(b" ")
        value = value.strip()
        if scheme.lower() == b"basic":
            caller = await self._of_password(value)
        else:
            caller = await self._of_signed(value)
        if len(self._kept) >= _KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[sha256(authorization).digest()] = time.monotonic() + _KEPT_S, caller
        return caller

    async def _of_password(self, value: bytes) -> Caller:
        try:
            user, colon, password = b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise AuthenticationFailed("Basic credentials of another form") from None
        if not colon:
            raise AuthenticationFailed("Basic credentials without a password")
        if password.startswith(PREFIX):
            caller = self._token(password)
            if not hmac.compare_digest(user.encode(), caller.principal.encode()):
                raise AuthenticationFailed("the token is another principal's")
            return caller
        if self._checking >= CHECKS_MAX:
            raise Overloaded("many passwords are being checked: try again shortly, or use a token")
        self._checking += 1
        try:
            return await self._of_user(user, password)
        finally:
            self._checking -= 1

    async def _of_user(self, user: str, password: str) -> Caller:
        credential = self._authority.security.credential(_CREDENTIAL, user)
        fits = await asyncio.get_running_loop().run_in_executor(
            self._passwords, is_password, _CREDENTIAL, credential, password
        )
        if not fits or not self._authority.security.exists(user):
            await asyncio.sleep(AUTHENTICATION_FAILED_DELAY_S)
            raise AuthenticationFailed("no such user, or another password")
        return self._caller(
            user,
            "password",
            lambda later: later.exists(user) and later.credential(_CREDENTIAL, user) == credential,
        )

    async def _of_signed(self, value: bytes) -> Caller:
        if self._signed is None:
            raise AuthenticationFailed("a token that is none of ours")
        principal, expires_at_s = await self._signed.principal(value.decode("latin-1"))
        return self.issued(principal, "signed token", expires_at_s)

    def issued(self, principal: str, how: str, expires_at_s: float) -> Caller:
        """A caller whose credentials were checked, and count until a Unix time."""
        return self._caller(principal, how, lambda _: True, expires_at_s)

    def _caller(
        self,
        principal: str,
        how: str,
        still: Callable[..., bool],
        expires_at_s: float | None = None,
    ) -> Caller:
        security = self._authority.security
        return Caller(principal, how, self._datastore, security, still, expires_at_s)
