"""Checks of a console's entry that its types cannot express."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from cellfeed.config.http import OidcConfig, check_http, http_listener
from cellfeed.config.model import Config, ConsoleConfig
from cellfeed.store.errors import InvalidRequest
from cellfeed.store.secret_references import has_reference
from cellfeed.store.security.loopback import is_loopback

ANSWER_PATH: Final = "/login/answer"
"""Where an identity provider sends browsers back."""


def check_console(config: Config, console: ConsoleConfig) -> None:
    """Raises ProtectData for a console beyond loopback without TLS and a log-in; InvalidRequest for
    an identity provider that cannot be used."""
    check_http(console.name, console.host, console.tls, console.authentication)
    oidc, where = console.oidc, f"config: {console.name}: oidc"
    if oidc is None:
        return
    listener = http_listener(console.host, 0, console.tls, console.authentication)
    if not listener.needs_credentials:
        raise InvalidRequest(
            f"{where}: the console asks for no log-in on loopback: set authentication: true"
        )
    if oidc.issuer not in {each.issuer for each in config.issuers}:
        raise InvalidRequest(
            f"{where}: issuer {oidc.issuer!r} is none of `issuers`, which says where its keys are"
        )
    _check_addresses(oidc, where)
    if oidc.client_secret is not None and not has_reference(oidc.client_secret):
        raise InvalidRequest(
            f"{where}: client_secret stands elsewhere: give ${{env:NAME}} or ${{file:/path}}"
        )


def is_safe(address: str) -> bool:
    """Whether an address has TLS, or is one of this machine."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def _check_addresses(oidc: OidcConfig, where: str) -> None:
    for name, address in (("issuer", oidc.issuer), ("redirect", oidc.redirect)):
        if not is_safe(address):
            raise InvalidRequest(f"{where}: {name} {address!r} is no https address")
    if urlsplit(oidc.redirect).path != ANSWER_PATH:
        raise InvalidRequest(f"{where}: redirect {oidc.redirect!r} does not end with {ANSWER_PATH}")
