"""A worker's counts, the state of its clusters, and its caller's metrics, for Prometheus. One
registry per worker, so that several can live in one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.clusters.serving.engine import ClusteredEngine
from cellfeed.store.engines.contract.engine import Engine
from cellfeed.store.http.server.cluster_metrics import ClusterMetrics
from cellfeed.store.http.server.metric_families import histogram
from cellfeed.store.tallies import Tally

METRICS_MEDIA_TYPE: Final = "text/plain; version=0.0.4"


class WorkerMetrics(Collector):
    """Counters of one worker. Label values come from fixed lists, so nobody outside can make new
    series.

    Plain numbers that the event loop alone changes: the client's own counters, each with a lock,
    would cost a single put more than its parsing. ``text`` reads them on another thread, each at
    some moment, as it does with counters.
    """

    def __init__(self, engine: Engine, collectors: Sequence[Collector] = ()) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        for collector in collectors:
            self._registry.register(collector)
        if isinstance(engine, ClusteredEngine):
            self._registry.register(ClusterMetrics(engine))
        self.in_flight = 0
        """Requests being answered."""
        self._requests: dict[tuple[str, int], int] = {}
        self._seconds: dict[tuple[str, ...], Tally] = {}
        self._received: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._cells = dict.fromkeys(Outcome, 0)
        self._puts = Tally()
        self._registry.register(self)

    def answered(
        self, route: str, status: int, seconds: float, received: int = 0, sent: int = 0
    ) -> None:
        """Counts one answered request. ``received``, ``sent``: bytes of the two bodies."""
        self._requests[route, status] = self._requests.get((route, status), 0) + 1
        if (tally := self._seconds.get((route,))) is None:
            tally = self._seconds[(route,)] = Tally()
        tally.add(seconds)
        self._received[route] = self._received.get(route, 0) + received
        self._sent[route] = self._sent.get(route, 0) + sent

    def put(self, results: Iterable[PutResult], seconds: float) -> None:
        """Counts the cells of one put."""
        self._puts.add(seconds)
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
        yield histogram(
            "cellfeed_http_request_seconds",
            "From a request's head to the end of its answer.",
            self._seconds,
            ["route"],
        )
        yield _bytes_by_route(
            "cellfeed_http_received_bytes", "Bytes of requests' bodies.", self._received
        )
        yield _bytes_by_route("cellfeed_http_sent_bytes", "Bytes of answers' bodies.", self._sent)
        yield histogram(
            "cellfeed_http_put_seconds", "From a put's arrival to its answer.", {(): self._puts}
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


def _bytes_by_route(name: str, says: str, found: Mapping[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, says, labels=["route"])
    for route, count in list(found.items()):
        family.add_metric([route], count)
    return family
