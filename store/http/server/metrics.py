"""A worker's counts, the state of its clusters, and its caller's metrics, for Prometheus. One
registry per worker, so that several can live in one process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.http.server.cluster_metrics import ClusterMetrics

METRICS_MEDIA_TYPE: Final = "text/plain; version=0.0.4"

_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class WorkerMetrics(Collector):
    """Counters of one worker. Label values come from fixed lists, so nobody outside can make new
    series.

    Plain numbers that the event loop alone changes: the client's own counters, each with a lock,
    would cost a single put more than its parsing. ``text`` reads them on another thread, each at
    some moment, as it does with counters.
    """

    def __init__(self, engine: Engine, collectors: Sequence[Collector] = ()) -> None:
        self._registry = CollectorRegistry()
        for collector in collectors:
            self._registry.register(collector)
        if isinstance(engine, ClusteredEngine):
            self._registry.register(ClusterMetrics(engine))
        self.in_flight = 0
        """Requests being answered."""
        self._requests: dict[tuple[str, int], int] = {}
        self._cells = dict.fromkeys(Outcome, 0)
        self._puts_by_seconds = [0] * (len(_SECONDS) + 1)
        self._put_seconds = 0.0
        self._registry.register(self)

    def answered(self, route: str, status: int) -> None:
        """Counts one answered request."""
        self._requests[route, status] = self._requests.get((route, status), 0) + 1

    def put(self, results: Iterable[PutResult], seconds: float) -> None:
        """Counts the cells of one put."""
        self._puts_by_seconds[bisect_left(_SECONDS, seconds)] += 1
        self._put_seconds += seconds
        for result in results:
            self._cells[result.outcome] += 1

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "cellfeed_http_requests", "Answered requests.", labels=["route", "status"]
        )
        for (route, status), count in list(self._requests.items()):
            requests.add_metric([route, str(status)], count)
        yield requests
        counts = list(accumulate(self._puts_by_seconds))
        limits = [*map(floatToGoString, _SECONDS), "+Inf"]
        yield HistogramMetricFamily(
            "cellfeed_http_put_seconds",
            "From a put's arrival to its answer.",
            buckets=list(zip(limits, counts, strict=True)),
            sum_value=self._put_seconds,
        )
        cells = CounterMetricFamily(
            "cellfeed_http_cells_put", "Cells of puts, by outcome.", labels=["outcome"]
        )
        for outcome, count in self._cells.items():
            cells.add_metric([outcome.value], count)
        yield cells
        yield GaugeMetricFamily(
            "cellfeed_http_requests_in_flight", "Requests being answered.", self.in_flight
        )

    def text(self) -> bytes:
        """The Prometheus text form. Looks at the storage nodes, so it blocks: as long as a read may
        take."""
        return generate_latest(self._registry)
