"""Limits of the peers of workers and gateways: connections, requests, bytes."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from cellfeed.store.errors import InvalidRequest
from cellfeed.store.limits import CONNECTIONS_PER_ADDRESS_MAX, QUOTA_BYTES_MIN
from cellfeed.store.security.access import check_principal
from cellfeed.store.security.peer_limits import EVERYBODY_ELSE, PeerLimits, Quota

_Bytes = Annotated[float, Meta(ge=QUOTA_BYTES_MIN)]


class QuotaConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """Rates of one principal at one process, each per second; no limit without.
    ``put_bytes_per_s``: bytes of requests that put; ``read_bytes_per_s``: bytes of other answers
    over HTTP, and of answers to a Kafka client's fetches. ``requests_per_s``: over HTTP and
    Kafka."""

    requests_per_s: Annotated[float, Meta(ge=1)] | None = None
    put_bytes_per_s: _Bytes | None = None
    read_bytes_per_s: _Bytes | None = None


class LimitsConfig(Struct, forbid_unknown_fields=True, frozen=True):
    """Limits of each worker and each gateway. ``worker_connections`` and ``gateway_connections``:
    open ones, 2,000 and 4,000 without; ``connections_per_address``: those from one address.
    ``quotas``: by principal; ``*`` is for each principal without a quota of its own."""

    worker_connections: Annotated[int, Meta(ge=10, le=1_000_000)] | None = None
    gateway_connections: Annotated[int, Meta(ge=10, le=1_000_000)] | None = None
    connections_per_address: Annotated[int, Meta(ge=1)] = CONNECTIONS_PER_ADDRESS_MAX
    quotas: dict[str, QuotaConfig] = {}

    def check(self) -> None:
        """Raises InvalidRequest for a principal that cannot be one, and a quota without a rate."""
        for principal, quota in self.quotas.items():
            if principal != EVERYBODY_ELSE:
                check_principal(principal)
            if quota == QuotaConfig():
                raise InvalidRequest(
                    f"config: limits: the quota of {principal!r} has no rate: give requests_per_s,"
                    " put_bytes_per_s or read_bytes_per_s"
                )

    def of_workers(self) -> PeerLimits:
        """As a worker takes them."""
        return self._with(self.worker_connections)

    def of_gateways(self) -> PeerLimits:
        """As a gateway takes them."""
        return self._with(self.gateway_connections)

    def _with(self, connections: int | None) -> PeerLimits:
        quotas = {
            principal: Quota(each.requests_per_s, each.put_bytes_per_s, each.read_bytes_per_s)
            for principal, each in self.quotas.items()
        }
        return PeerLimits(connections, self.connections_per_address, quotas)
