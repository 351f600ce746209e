"""Addresses of processes as text."""

from __future__ import annotations

from cellfeed.store.errors import InvalidRequest


def parsed_host_port(text: str) -> tuple[str, int]:
    """``host:port``, with brackets around an IPv6 address. Raises InvalidRequest."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidRequest(f"{text!r} is no address: write HOST:PORT, such as 127.0.0.1:8090")
    return host, int(port)


def host_port(host: str, port: int) -> str:
    """``127.0.0.1:7420``; ``[::1]:7420``, for an IPv6 address has colons of its own."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
