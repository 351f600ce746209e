"""Certificates for tests of TLS: an authority of their own, a server's for 127.0.0.1, a client's;
made in some hundredths of a second."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Certificates(NamedTuple):
    """PEM files."""

    ca: str
    certificate: str
    key: str
    client_certificate: str
    client_key: str


def make_certificates(
    directory: Path, *, days: int = 2, addresses: Sequence[str] = ()
) -> Certificates:
    """They are good for ``days`` days from now on, for ``addresses`` beside 127.0.0.1."""
    directory.mkdir(parents=True, exist_ok=True)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    ca = _sign(ca_name, ca_name, ca_key, ca_key, is_ca=True, days=days)
    (directory / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    files = [str(directory / "ca.pem")]
    for name, parts in (("server", ["127.0.0.1"]), ("client", ["example", "billing"])):
        key = ec.generate_private_key(ec.SECP256R1())
        kinds = (
            [NameOID.COMMON_NAME]
            if len(parts) == 1
            else [NameOID.ORGANIZATION_NAME, NameOID.COMMON_NAME]
        )
        subject = x509.Name(
            [x509.NameAttribute(kind, part) for kind, part in zip(kinds, parts, strict=True)]
        )
        (directory / f"{name}.pem").write_bytes(
            _sign(subject, ca_name, key, ca_key, days=days, addresses=addresses).public_bytes(
                serialization.Encoding.PEM
            )
        )
        encoded = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        (directory / f"{name}.key").write_bytes(encoded)
        files += [str(directory / f"{name}.pem"), str(directory / f"{name}.key")]
    return Certificates(*files)


def _sign(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    by: ec.EllipticCurvePrivateKey,
    *,
    is_ca: bool = False,
    days: int,
    addresses: Sequence[str] = (),
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False
        )
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.IPAddress(ip_address(each)) for each in ("127.0.0.1", *addresses)]
            ),
            critical=False,
        )
    )
    if is_ca:
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    return builder.sign(by, hashes.SHA256())
