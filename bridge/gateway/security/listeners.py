"""Where a gateway listens, and with which protection."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final, Literal

from cellfeed.store.errors import InvalidRequest, ProtectData
from cellfeed.store.security import certificates
from cellfeed.store.security.certificates import TlsFiles
from cellfeed.store.security.loopback import is_loopback
from cellfeed.store.security.scram import HASHES, MECHANISMS

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
    def title(self) -> str:
        """For messages."""
        return f"listener {self.name!r}"

    @property
    def tls_files(self) -> TlsFiles | None:
        """None without TLS."""
        if not self.has_tls or self.certificate is None or self.key is None:
            return None
        return TlsFiles(self.certificate, self.key, self.client_ca)

    @property
    def has_tls(self) -> bool:
        return self.security in ("tls", "sasl_tls")

    @property
    def has_sasl(self) -> bool:
        return self.security in ("sasl_plaintext", "sasl_tls")


def check_host(host: str) -> None:
    """Raises ProtectData for a gateway's ``host``, without listeners, that is beyond loopback."""
    if not is_loopback(host):
        raise ProtectData(
            f"host {host!r} is not loopback: without TLS and authentication a gateway listens on"
            " loopback only; for clients of other hosts give `listeners` with security sasl_tls,"
            " and `registry` with tls"
        )


def check_listener(listener: Listener) -> None:
    """Raises ProtectData for an address beyond loopback without TLS and authentication,
    InvalidRequest for settings that do not fit together."""
    name = listener.title
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
    """For a listener with TLS; with ``client_ca`` no client without a certificate. Raises
    InvalidRequest for files that cannot be used."""
    files = listener.tls_files
    return None if files is None else certificates.tls_context(files, listener.title)
