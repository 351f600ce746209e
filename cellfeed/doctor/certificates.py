"""How long the certificates of listeners are still good."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cryptography import x509

from cellfeed.bridge.gateway.security.listeners import tls_context
from cellfeed.config.gateway import GatewayListenerConfig
from cellfeed.doctor.findings import Finding, Instance, Level
from cellfeed.store.errors import InvalidRequest

_DAY_S: Final = 86_400

EXPIRES_SOON_S: Final = 14 * _DAY_S
"""Issuers such as Let's Encrypt renew a month before the end: with two weeks left that failed."""

_RENEW: Final = "replace the files: the gateway takes them within seconds, or at SIGHUP"


def examine_certificates(instance: Instance) -> Iterator[Finding]:
    """Looks at each listener with TLS."""
    for gateway in instance.config.gateways:
        for listener in gateway.listeners:
            if listener.certificate is not None:
                yield from certificates(f"{gateway.name}, listener {listener.name}", listener)


def certificates(subject: str, listener: GatewayListenerConfig) -> Iterator[Finding]:
    """The certificate, its chain, and the authority of clients."""
    try:
        tls_context(listener.listener())
    except InvalidRequest as error:
        yield Finding("certificates", subject, Level.PROBLEM, str(error), _RENEW)
        return
    for path in filter(None, (listener.certificate, listener.client_ca)):
        ends_s = first_end_s(Path(path))
        if ends_s is not None:
            yield ends(f"{subject}: {path}", ends_s - time.time())


def first_end_s(path: Path) -> float | None:
    """When the first certificate of a PEM file ends, seconds since 1970 UTC; None where it holds
    none."""
    found = x509.load_pem_x509_certificates(path.read_bytes())
    return min((each.not_valid_after_utc.timestamp() for each in found), default=None)


def ends(subject: str, left_s: float) -> Finding:
    """A certificate that is good for ``left_s`` more seconds."""
    if left_s <= 0:
        return Finding(
            "certificates",
            subject,
            Level.PROBLEM,
            f"expired {-left_s / _DAY_S:.1f} days ago: clients refuse to connect",
            _RENEW,
        )
    found = f"good for {left_s / _DAY_S:.1f} more days"
    if left_s < EXPIRES_SOON_S:
        return Finding("certificates", subject, Level.ADVICE, found, _RENEW)
    return Finding("certificates", subject, Level.WELL, found)
