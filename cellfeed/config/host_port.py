"""Addresses of processes as text, for clients."""

from __future__ import annotations


def host_port(host: str, port: int) -> str:
    """``127.0.0.1:7420``; ``[::1]:7420``, for an IPv6 address has colons of its own."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
