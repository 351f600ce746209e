"""How long the certificates of an instance are still good."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from cellfeed.bridge.gateway.security.listeners import tls_context
from cellfeed.config.gateway import GatewayListenerConfig
from cellfeed.doctor.findings import Finding, Instance, Level
from cellfeed.status.certificates import certificate_ends
from cellfeed.store.errors import InvalidRequest

_DAY_S: Final = 86_400

EXPIRES_SOON_S: Final = 14 * _DAY_S
"""Issuers such as Let's Encrypt renew a month before the end: with two weeks left that failed."""

_RENEW: Final = "replace the files: the gateway takes them within seconds, or at SIGHUP"


def examine_certificates(instance: Instance) -> Iterator[Finding]:
    """Looks at each file, and at each gateway's listener as its clients would."""
    for gateway in instance.config.gateways:
        for listener in gateway.listeners:
            if listener.certificate is not None:
                yield from fits(f"{gateway.name}, listener {listener.name}", listener)
    for each in instance.status.certificates or certificate_ends(instance.config):
        subject = f"{each.subject}: {each.path}"
        if each.error:
            yield Finding("certificates", subject, Level.PROBLEM, each.error, _RENEW)
        else:
            yield ends(subject, each.ends_us / 1e6 - time.time())


def fits(subject: str, listener: GatewayListenerConfig) -> Iterator[Finding]:
    """A problem where the certificate, its key and the authority do not make a listener."""
    try:
        tls_context(listener.listener())
    except InvalidRequest as error:
        yield Finding("certificates", subject, Level.PROBLEM, str(error), _RENEW)


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
