"""Which addresses reach this machine alone."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine's loopback, without asking a name server."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return False  # Python says so before 3.13, and the contrary since
    return address.is_loopback
