"""What a worker counts, how its clusters stand, and what its caller adds, for Prometheus. One
registry per worker, so that several can live in one process."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.registry import Collector

from cellfeed.store.cells.cell import Outcome, PutResult
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.http.server.cluster_metrics import ClusterMetrics

METRICS_MEDIA_TYPE: Final = "text/plain; version=0.0.4"

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class WorkerMetrics:
    """Counters of one worker. Label values come from fixed lists, so nobody outside can make new
    series."""

    def __init__(self, engine: Engine, collectors: Sequence[Collector] = ()) -> None:
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        if isinstance(engine, ClusteredEngine):
            self._registry.register(ClusterMetrics(engine))
        self._requests = Counter(
            "cellfeed_http_requests",
            "Answered requests.",
            ["route", "status"],
            registry=self._registry,
        )
        self._put_seconds = Histogram(
            "cellfeed_http_put_seconds",
            "From a put's arrival to its answer.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        cells = Counter(
            "cellfeed_http_cells_put",
            "Cells of puts, by what they came to.",
            ["outcome"],
            registry=self._registry,
        )
        self._cells = {outcome: cells.labels(outcome.value) for outcome in Outcome}
        self.in_flight = Gauge(
            "cellfeed_http_requests_in_flight", "Requests being answered.", registry=self._registry
        )
        self._by_route: dict[tuple[str, int], Counter] = {}

    def answered(self, route: str, status: int) -> None:
        """Counts one answered request."""
        counter = self._by_route.get((route, status))
        if counter is None:
            counter = self._by_route[route, status] = self._requests.labels(route, status)
        counter.inc()

    def put(self, results: Iterable[PutResult], seconds: float) -> None:
        """Counts the cells of one put."""
        self._put_seconds.observe(seconds)
        for outcome, cells in Tally(result.outcome for result in results).items():
            self._cells[outcome].inc(cells)

    def text(self) -> bytes:
        """The Prometheus text form. Looks at the storage nodes, so it blocks: as long as a read may
        take."""
        return generate_latest(self._registry)
