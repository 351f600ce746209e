"""The subject of a client's certificate as a principal: its name as RFC 2253 writes it, which is
Kafka's form as well.

**One name, one subject.** The characters that separate attributes are escaped within a value. So a
certificate whose only attribute is ``CN="billing,O=example"`` has another principal than one with
the two attributes ``CN=billing`` and ``O=example``.
"""

from __future__ import annotations

from typing import Final

_SHORT: Final = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""RFC 2253, section 2.3. Another attribute has the name that OpenSSL gives it, or its number."""

_SPECIAL: Final = frozenset(',+"\\<>;')


def subject_principal(certificate: dict[str, object] | None) -> str | None:
    """The principal of a certificate as :meth:`ssl.SSLSocket.getpeercert` gives it, for example
    ``CN=billing,O=example``: the last part first, attributes of one part with ``+`` between them.
    None without a certificate, or where its subject is empty."""
    subject = (certificate or {}).get("subject")
    if not isinstance(subject, tuple) or not subject:
        return None
    return ",".join(
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(subject)
    )


def _escaped(value: str) -> str:
    """RFC 2253, section 2.4. Characters that cannot be printed are written as their bytes."""
    last = len(value) - 1
    return "".join(
        f"\\{each}"
        if each in _SPECIAL or (each == "#" and at == 0) or (each == " " and at in (0, last))
        else each
        if each.isprintable()
        else "".join(f"\\{byte:02X}" for byte in each.encode())
        for at, each in enumerate(value)
    )
