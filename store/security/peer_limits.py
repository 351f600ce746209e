"""Limits of the peers of a server, as an operator declares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cellfeed.store.limits import CONNECTIONS_PER_ADDRESS_MAX

EVERYBODY_ELSE: Final = "*"
"""In the place of a principal: each one that has no quota of its own."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Rates of one principal at one process, each per second; None: no limit."""

    requests_per_s: float | None = None
    put_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None


@dataclass(frozen=True)
class PeerLimits:
    """``connections``: open at the server, its own limit without; ``connections_per_address``: from
    one address. ``quotas``: by principal, or ``*``."""

    connections: int | None = None
    connections_per_address: int = CONNECTIONS_PER_ADDRESS_MAX
    quotas: Mapping[str, Quota] = field(default_factory=dict)
