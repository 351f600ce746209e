"""HTTP listeners, and the identity providers whose tokens they take."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from cellfeed.store.http.server.listening import HttpListener, check_http_listener
from cellfeed.store.security.certificates import TlsFiles


class TlsConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """TLS of an HTTP listener. ``certificate`` and ``key``: PEM files, read again when they change
    and at SIGHUP. ``client_ca``: clients show a certificate of it, whose subject is the principal;
    with ``client_certificates: optional`` they may show a token instead."""

    certificate: str
    key: str
    client_ca: str | None = None
    client_certificates: Literal["required", "optional"] = "required"

    def files(self) -> TlsFiles:
        """As listeners take them."""
        needed = self.client_certificates == "required"
        return TlsFiles(self.certificate, self.key, self.client_ca, clients_need_one=needed)


class RegistryConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """Where a gateway's schema registry and metrics listen; on the gateway's ``host`` without
    ``bind``. ``authentication``: as that of a worker."""

    bind: str | None = None
    tls: TlsConfig | None = None
    authentication: bool | None = None


class AuditConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """The audit log: a file of JSON lines for each worker and gateway, and one for commands, in
    ``directory``; a relative one lies in the run directory."""

    directory: str = "audit"


class IssuerConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """An identity provider whose signed tokens (JWT) HTTP listeners take. ``issuer`` and
    ``audience`` are compared with ``iss`` and ``aud``. ``keys``: its JWKS, a file or an ``https``
    address. ``principal_claim`` names the principal, behind ``principal_prefix``. ``algorithms``:
    no others are taken. ``leeway_s``: how far clocks may differ."""

    issuer: str
    audience: str
    keys: str
    principal_claim: str = "sub"
    principal_prefix: str = ""
    algorithms: Annotated[
        list[Literal["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA"]],
        Meta(min_length=1),
    ] = msgspec.field(default_factory=lambda: ["RS256", "ES256"])
    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 10.0


class OidcConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """A console's log-in by OpenID Connect (authorization code with PKCE). ``issuer``: one of
    ``issuers``, whose keys and principal claim count; the ID token's audience is ``client_id``.
    ``redirect``: the console's address as browsers have it, with the path ``/login/answer``; the
    provider knows it. ``client_secret``: a reference; none for a public client. ``scopes``: besides
    ``openid``. ``ca``: the file of the authorities for the provider's certificate, the usual ones
    without. ``label``: its name on the page."""

    issuer: str
    client_id: str
    redirect: str
    client_secret: str | None = None
    scopes: list[str] = []
    ca: str | None = None
    label: str = ""


def http_listener(
    host: str, port: int, tls: TlsConfig | None, authentication: bool | None
) -> HttpListener:
    """As servers take it."""
    return HttpListener(host, port, None if tls is None else tls.files(), authentication)


def check_http(name: str, host: str, tls: TlsConfig | None, authentication: bool | None) -> None:
    """Raises ProtectData for HTTP beyond loopback without TLS and authentication."""
    check_http_listener(http_listener(host, 0, tls, authentication), f"config: {name}")
