"""Tokens that an identity provider signed (JWT, RFC 7519), verified against its keys (JWKS).

The algorithms are those of the configuration, never one that the token picks: neither ``none`` nor
an HMAC with a public key counts. A token without ``exp``, ``iss`` or ``aud`` does not count. The
``kid`` only finds a key among those of the provider; no file and no address is made of it, and keys
in a token's head are not looked at.

Keys are read again after ``KEYS_KEPT_S``, and for a ``kid`` that is not among them, at most once in
``KEYS_PAUSE_S``. While they cannot be read, those that were read last count, for ``KEYS_LAST_S`` at
most.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import urllib.request
from base64 import urlsafe_b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from cellfeed.store.errors import InvalidRequest
from cellfeed.store.repeated_warnings import RepeatedWarning
from cellfeed.store.security.access import check_principal
from cellfeed.store.security.scram import AuthenticationFailed

KEYS_KEPT_S: Final = 600.0
KEYS_PAUSE_S: Final = 10.0
KEYS_LAST_S: Final = 86_400.0
_TIMEOUT_S: Final = 5.0
_KEYS_BYTES_MAX: Final = 1 << 20
_TOKEN_BYTES_MAX: Final = 16 << 10
_SYMMETRIC: Final = "oct"

_warning = RepeatedWarning(logging.getLogger("cellfeed.security"))


@dataclass
class Issuer:
    """One identity provider; see :class:`cellfeed.config.http.IssuerConfig`. ``read``: the bytes of
    its JWKS; blocks."""

    issuer: str
    audience: str
    keys: str
    principal_claim: str = "sub"
    principal_prefix: str = ""
    algorithms: Sequence[str] = ("RS256", "ES256")
    leeway_s: float = 10.0
    read: Callable[[str], bytes] = field(default=lambda where: read_keys(where))

    def __post_init__(self) -> None:
        """Raises InvalidRequest for keys that are neither a file nor an https address."""
        scheme = urlsplit(self.keys).scheme
        if scheme and scheme != "https":
            raise InvalidRequest(
                f"issuer {self.issuer!r}: keys {self.keys!r} is neither a file nor an https address"
            )
        self._known: KeySet | None = None
        self._read_at_s = self._tried_at_s = float("-inf")
        self._lock = asyncio.Lock()

    async def key_set(self, kid: str | None) -> KeySet:
        """The keys, read again where that may find one of this id. Raises AuthenticationFailed
        where there are none."""
        is_fresh = time.monotonic() - self._read_at_s < KEYS_KEPT_S
        if is_fresh and self._known is not None and (kid is None or _has(self._known, kid)):
            return self._known  # nobody waits for keys that a stranger asks for
        async with self._lock:
            now_s = time.monotonic()
            is_old = now_s - self._read_at_s > KEYS_KEPT_S
            is_unknown = self._known is None or (kid is not None and not _has(self._known, kid))
            if (is_old or is_unknown) and now_s - self._tried_at_s > KEYS_PAUSE_S:
                self._tried_at_s = now_s
                await self._look()
            if self._known is None or time.monotonic() - self._read_at_s > KEYS_LAST_S:
                raise AuthenticationFailed(f"the keys of {self.issuer} cannot be read")
            return self._known

    async def _look(self) -> None:
        try:
            found = json.loads(await asyncio.to_thread(self.read, self.keys))
            keys = [key for key in found["keys"] if key.get("kty") != _SYMMETRIC]
            self._known = KeySet.import_key_set({"keys": keys})
            self._read_at_s = time.monotonic()
        except (OSError, ValueError, TypeError, LookupError, AttributeError, JoseError) as error:
            _warning.warn("the keys of %s cannot be read: %s", self.issuer, error)


class IssuedTokens:
    """Verifies tokens of some issuers. ``clock_s``: Unix time."""

    def __init__(self, issuers: Sequence[Issuer], clock_s: Callable[[], float] = time.time) -> None:
        self._issuers = {each.issuer: each for each in issuers}
        self._clock_s = clock_s

    async def principal(self, text: str) -> tuple[str, float]:
        """The principal, and the Unix time when the token ends. Raises AuthenticationFailed."""
        if len(text) > _TOKEN_BYTES_MAX or text.count(".") != 2:
            raise AuthenticationFailed("a token of another form")
        try:
            head, claims = _unchecked(text)
            issuer = self._issuers.get(claims.get("iss", ""))
            if issuer is None:
                raise AuthenticationFailed("a token of an unknown issuer")
            if head.get("alg") not in issuer.algorithms:
                raise AuthenticationFailed("a token signed by another algorithm")
            kid = head.get("kid")
            keys = await issuer.key_set(kid if isinstance(kid, str) else None)
            checked = jwt.decode(text, keys, algorithms=list(issuer.algorithms)).claims
            self._claims(issuer).validate(checked)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise AuthenticationFailed(f"a signed token: {type(error).__name__}") from None
        name = checked.get(issuer.principal_claim)
        if not isinstance(name, str):
            raise AuthenticationFailed(f"a signed token without {issuer.principal_claim}")
        try:
            check_principal(issuer.principal_prefix + name)
        except InvalidRequest:
            raise AuthenticationFailed("a signed token with a name that nobody can have") from None
        if issuer.principal_prefix + name == "ANONYMOUS":
            raise AuthenticationFailed("a signed token with the name of nobody")
        return issuer.principal_prefix + name, float(checked["exp"]) + issuer.leeway_s

    def _claims(self, issuer: Issuer) -> jwt.JWTClaimsRegistry:
        return jwt.JWTClaimsRegistry(
            now=lambda: int(self._clock_s()),
            leeway=int(issuer.leeway_s),
            iss={"essential": True, "value": issuer.issuer},
            aud={"essential": True, "value": issuer.audience},
            exp={"essential": True},
        )


def read_keys(where: str) -> bytes:
    """The JWKS of a file or an https address. Blocks. Raises OSError, ValueError."""
    if not urlsplit(where).scheme:
        return Path(where).read_bytes()
    with _opener.open(where, timeout=_TIMEOUT_S) as answer:
        content = bytes(answer.read(_KEYS_BYTES_MAX + 1))
    if len(content) > _KEYS_BYTES_MAX:
        raise ValueError(f"more than {_KEYS_BYTES_MAX} bytes")
    return content


class _StaysSecure(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        """Follows a redirection to https alone."""
        if urlsplit(newurl).scheme != "https":
            raise OSError("a redirection away from https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_opener: Final = urllib.request.build_opener(_StaysSecure)


def _unchecked(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Head and claims of a token that nobody has verified yet. Raises ValueError."""
    parts = [
        json.loads(urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in text.split(".")[:2]
    ]
    if not all(isinstance(part, dict) for part in parts):
        raise ValueError("no objects")
    return parts[0], parts[1]


def _has(keys: KeySet, kid: str) -> bool:
    return any(key.kid == kid for key in keys.keys)
