"""How often a worker's streams waited for a quota, for Prometheus. Requests that it refused have
status 429."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from cellfeed.store.security.quotas import Quotas


class QuotaMetrics(Collector):
    """Of one worker."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "cellfeed_http_throttled_pieces",
            "Pieces of requests and answers that waited for the quota of their principal.",
            self._quotas.waits,
        )
        yield CounterMetricFamily(
            "cellfeed_http_throttled_seconds", "How long they waited.", self._quotas.waited_s
        )
