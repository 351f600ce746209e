"""Log-in by an identity provider: OpenID Connect, authorization code with PKCE.

The browser keeps one random number, signed, in a cookie of ten minutes. State, nonce and PKCE's
verifier are derived from it by a key that never leaves the process. So a stranger's log-ins fill no
memory here, and an answer counts in the browser that asked for it alone.

The ID token is verified by the configuration's entry of its issuer, for the console's client id.
"""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import ssl
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.httpx_client import AsyncOAuth2Client

from cellfeed.config.consoles import is_safe
from cellfeed.config.http import IssuerConfig, OidcConfig
from cellfeed.store.errors import Unauthenticated, Unavailable
from cellfeed.store.http.server.callers import Callers
from cellfeed.store.secret_references import resolved
from cellfeed.store.security.callers import Caller
from cellfeed.store.security.scram import AuthenticationFailed
from cellfeed.store.security.signed_tokens import IssuedTokens, Issuer

LOGIN_S: Final = 600.0
"""How long somebody may take at the provider."""

OIDC_SESSION_S: Final = 3600.0
"""How long the provider's word counts: it does not report that an account was closed."""

_TIMEOUT_S: Final = 5.0
_METADATA_KEPT_S: Final = 600.0
_log: Final = logging.getLogger("cellfeed.console")


class Provider:
    """One identity provider. Used on the event loop. Raises InvalidRequest for a secret that leads
    nowhere."""

    def __init__(self, config: OidcConfig, issuer: IssuerConfig, callers: Callers) -> None:
        self.name = config.label or urlsplit(config.issuer).hostname or config.issuer
        self._config = config
        self._secret = None if config.client_secret is None else resolved(config.client_secret)
        self._callers = callers
        self._key = secrets.token_bytes(32)
        self._tokens = IssuedTokens(
            [
                Issuer(
                    issuer.issuer,
                    config.client_id,
                    issuer.keys,
                    issuer.principal_claim,
                    issuer.principal_prefix,
                    tuple(issuer.algorithms),
                    issuer.leeway_s,
                )
            ]
        )
        self._metadata: dict[str, str] = {}
        self._read_at_s = float("-inf")

    async def begin(self, wanted: str) -> tuple[str, str]:
        """Where to send the browser, and the value of the cookie that it keeps. ``wanted``: the
        page to show then. Raises Unavailable."""
        number = secrets.token_urlsafe(32)
        content = json.dumps([number, int(time.time() + LOGIN_S), wanted]).encode()
        text = urlsafe_b64encode(content).rstrip(b"=").decode()
        kept = f"{text}.{self._derived('kept', content.decode())}"
        async with self._client() as client:
            address, _ = client.create_authorization_url(
                (await self._endpoints())["authorization_endpoint"],
                state=self._derived("state", number),
                nonce=self._derived("nonce", number),
                code_verifier=self._derived("verifier", number),
            )
        return str(address), kept

    async def end(self, kept: str, query: str) -> tuple[Caller, str]:
        """The caller whom the provider's answer names, and the wanted page. Raises
        Unauthenticated, Unavailable."""
        number, wanted = self._kept(kept)
        given = {name: values for name, values in parse_qs(query).items() if len(values) == 1}
        state = given.get("state", [""])[0]
        if not hmac.compare_digest(state.encode(), self._derived("state", number).encode()):
            raise Unauthenticated("the answer is to another log-in: try again")
        if given.get("iss", [self._config.issuer])[0] != self._config.issuer:  # RFC 9207
            raise Unauthenticated("the answer is another provider's")
        if "code" not in given:
            because = given.get("error", ["no code"])[0]
            raise Unauthenticated(f"the provider let nobody in: {ascii(because)[:80]}")
        token = await self._redeemed(given["code"][0], number)
        try:
            principal, _ = await self._tokens.principal(token)
        except AuthenticationFailed as failed:
            _log.warning("an ID token of %s does not count: %s", self._config.issuer, failed)
            raise Unauthenticated("the provider's ID token does not count") from None
        claims = json.loads(urlsafe_b64decode(token.split(".")[1] + "=="))
        nonce = str(claims.get("nonce", ""))
        if not hmac.compare_digest(nonce.encode(), self._derived("nonce", number).encode()):
            raise Unauthenticated("the ID token is of another log-in")
        expires_at_s = time.time() + OIDC_SESSION_S
        return self._callers.issued(principal, "identity provider", expires_at_s), wanted

    async def _redeemed(self, code: str, number: str) -> str:
        endpoint = (await self._endpoints())["token_endpoint"]
        try:
            async with self._client() as client:
                answer = await client.fetch_token(
                    endpoint, code=code, code_verifier=self._derived("verifier", number)
                )
        except (AuthlibBaseError, httpx.HTTPStatusError) as error:
            _log.warning("%s refused a code: %s", self._config.issuer, error)
            raise Unauthenticated("the provider refused the code: try again") from None
        except (httpx.HTTPError, ValueError) as error:
            raise Unavailable(f"the identity provider does not answer: {error}") from None
        token = answer.get("id_token")
        if not isinstance(token, str) or token.count(".") != 2:
            raise Unauthenticated("the provider gave no ID token: the scope openid is missing")
        return token

    async def _endpoints(self) -> dict[str, str]:
        """The provider's metadata (OpenID Connect Discovery)."""
        if time.monotonic() - self._read_at_s < _METADATA_KEPT_S:
            return self._metadata
        issuer = self._config.issuer
        where = issuer.rstrip("/") + "/.well-known/openid-configuration"
        try:
            async with httpx.AsyncClient(timeout=_TIMEOUT_S, verify=self._verify()) as client:
                found: Any = (await client.get(where)).raise_for_status().json()
            endpoints = {
                name: str(found[name]) for name in ("authorization_endpoint", "token_endpoint")
            }
        except (httpx.HTTPError, ValueError, LookupError, TypeError, OSError) as error:
            raise Unavailable(f"the identity provider's metadata cannot be read: {error}") from None
        if found.get("issuer") != issuer:
            raise Unavailable(f"{where} is the metadata of another issuer")
        if unsafe := [each for each in endpoints.values() if not is_safe(each)]:
            raise Unavailable(f"the identity provider names an address without TLS: {unsafe[0]}")
        self._metadata, self._read_at_s = endpoints, time.monotonic()
        return endpoints

    def _client(self) -> AsyncOAuth2Client:
        return AsyncOAuth2Client(
            client_id=self._config.client_id,
            client_secret=self._secret,
            token_endpoint_auth_method="client_secret_basic" if self._secret else "none",
            scope=" ".join(dict.fromkeys(["openid", *self._config.scopes])),
            redirect_uri=self._config.redirect,
            code_challenge_method="S256",
            timeout=_TIMEOUT_S,
            verify=self._verify(),
        )

    def _verify(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self._config.ca)

    def _kept(self, kept: str) -> tuple[str, str]:
        text, _, signature = kept.partition(".")
        try:
            content = urlsafe_b64decode(text + "==").decode()
            fits = hmac.compare_digest(signature.encode(), self._derived("kept", content).encode())
            number, until_s, wanted = json.loads(content) if fits else ("", 0, "/")
        except ValueError:
            until_s = 0
        if until_s < time.time():
            raise Unauthenticated("the log-in was not begun in this browser, or took too long")
        return number, wanted

    def _derived(self, use: str, number: str) -> str:
        digest = hmac.new(self._key, f"{use}:{number}".encode(), sha256).digest()
        return urlsafe_b64encode(digest).rstrip(b"=").decode()
