"""Where a gateway listens, and with which protection."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Literal

from cellfeed.bridge.gateway.security.scram import HASHES, MECHANISMS
from cellfeed.store.errors import InvalidRequest, ProtectData

Protection = Literal["plaintext", "tls", "sasl_plaintext", "sasl_tls"]
DEFAULT_NAME: Final = "default"
"""Name of the listener that a gateway has when none are configured. Listeners of the same name are
one to clients, which get the addresses of all gateways that have it."""


@dataclass(frozen=True)
class Listener:
    """``advertised``: the address that clients of this listener get, where it is not the bound one.
    ``certificate`` and ``key``: PEM files, with TLS. ``client_ca``: clients need a certificate of
    it. ``mechanisms``: with SASL; PLAIN sends the password, so without TLS it has to be asked
    for."""

    name: str = DEFAULT_NAME
    host: str = "127.0.0.1"
    port: int = 9092
    advertised: tuple[str, int] | None = None
    security: Protection = "plaintext"
    certificate: str | None = None
    key: str | None = None
    client_ca: str | None = None
    mechanisms: tuple[str, ...] = tuple(HASHES)

    @property
    def has_tls(self) -> bool:
        return self.security in ("tls", "sasl_tls")

    @property
    def has_sasl(self) -> bool:
        return self.security in ("sasl_plaintext", "sasl_tls")


def check_listener(listener: Listener) -> None:
    """Raises ProtectData for an address beyond loopback without TLS and authentication,
    InvalidRequest for settings that do not fit together."""
    name = f"listener {listener.name!r}"
    if listener.has_tls and not (listener.certificate and listener.key):
        raise InvalidRequest(
            f"{name}: security {listener.security} needs certificate and key, two PEM files"
        )
    if not listener.has_tls and (listener.certificate or listener.key or listener.client_ca):
        raise InvalidRequest(
            f"{name}: certificate, key and client_ca are for security tls or sasl_tls, not"
            f" {listener.security}"
        )
    if unknown := [each for each in listener.mechanisms if each not in MECHANISMS]:
        raise InvalidRequest(
            f"{name}: no mechanism {unknown[0]!r}; there are {', '.join(MECHANISMS)}"
        )
    if listener.has_sasl and not listener.mechanisms:
        raise InvalidRequest(
            f"{name}: security {listener.security} needs at least one of the mechanisms"
            f" {', '.join(MECHANISMS)}"
        )
    if is_loopback(listener.host):
        return
    if not (listener.security == "sasl_tls" or (listener.security == "tls" and listener.client_ca)):
        raise ProtectData(
            f"{name}: host {listener.host!r} is not loopback, and {listener.security} without TLS"
            " and authentication would show every cell to anybody: set security: sasl_tls"
            " with certificate and key, or security: tls with client_ca too"
        )


def tls_context(listener: Listener) -> ssl.SSLContext | None:
    """For a listener with TLS: 1.2 or newer; with ``client_ca`` no client without a certificate.
    Raises InvalidRequest for files that cannot be used."""
    if not listener.has_tls or listener.certificate is None or listener.key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for path in (listener.certificate, listener.key, listener.client_ca):
        if path is not None and not Path(path).is_file():
            raise InvalidRequest(f"listener {listener.name!r}: no file {path!r}")
    try:
        context.load_cert_chain(listener.certificate, listener.key, password=lambda: b"")
        if listener.client_ca is not None:
            context.load_verify_locations(listener.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise InvalidRequest(
            f"listener {listener.name!r}: certificate, key or client_ca cannot be used ({reason}):"
            " unencrypted PEM files that fit"
        ) from None
    return context


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine's loopback, without asking a name server."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
