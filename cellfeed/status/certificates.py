"""The certificates that an instance's configuration names, and when each ends."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from cellfeed.config.model import Config


class CertificateEnd(msgspec.Struct, frozen=True):
    """One PEM file. ``subject``: whose. ``ends_us``: when the first certificate in it expires,
    microseconds since 1970 UTC. ``error``: why it cannot be read."""

    subject: str
    path: str
    ends_us: int
    error: str = ""


class CertificateFile(NamedTuple):
    """``is_chain``: one that we show, with its issuers; otherwise authorities that peers' may be
    of."""

    subject: str
    path: str
    is_chain: bool


def certificate_files(config: Config) -> list[CertificateFile]:
    """Of listeners, and of connections to nodes."""
    named = [
        (f"{gateway.name}, listener {each.name}", each.certificate, each.client_ca)
        for gateway in config.gateways
        for each in gateway.listeners
    ]
    listeners = [(f"{each.name}, registry", each.registry.tls) for each in config.gateways]
    listeners += [(each.name, each.tls) for each in config.workers]
    listeners += [(each.name, each.tls) for each in config.consoles]
    named += [
        (subject, tls.certificate, tls.client_ca) for subject, tls in listeners if tls is not None
    ]
    named += [
        (f"{cluster.name} node {node.name}", node.tls.certificate, node.tls.ca)
        for cluster in config.datastore.clusters
        for node in cluster.nodes
        if node.tls is not None
    ]
    return [
        CertificateFile(subject, path, is_chain)
        for subject, chain, authorities in named
        for path, is_chain in ((chain, True), (authorities, False))
        if path is not None
    ]


def certificate_ends(config: Config) -> list[CertificateEnd]:
    """Each file, as it stands now."""
    return [_end(*file) for file in certificate_files(config)]


def _end(subject: str, path: str, is_chain: bool) -> CertificateEnd:
    try:
        ends_s = end_s(Path(path), is_chain=is_chain)
    except (OSError, ValueError) as error:
        return CertificateEnd(subject, path, 0, str(error))
    if ends_s is None:
        return CertificateEnd(subject, path, 0, "it holds no certificate")
    return CertificateEnd(subject, path, int(ends_s * 1e6))


def end_s(path: Path, *, is_chain: bool) -> float | None:
    """When a PEM file is of no use any more, seconds since 1970 UTC; None where it holds no
    certificate. A chain is as good as its first certificate that ends, authorities as the last one.
    Raises OSError, ValueError."""
    # Start-up: most instances have no listener with TLS, and the library takes a while to load.
    from cryptography import x509

    content = path.read_bytes()
    if b"-----BEGIN CERTIFICATE" not in content:
        return None
    found = x509.load_pem_x509_certificates(content)
    ends = [each.not_valid_after_utc.timestamp() for each in found]
    return min(ends) if is_chain else max(ends)
