"""A gateway's counters, for Prometheus: at ``/metrics`` of its schema registry's port.
``docs/operate/metrics.md`` lists it.

All of it is looked up in the gateway's own memory, in its event loop: a scrape asks neither the
store nor the coordination, and is answered while both are away. Label values come from fixed lists,
so nobody outside can make new series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from cellfeed.bridge.gateway.apis.registry import api_names
from cellfeed.bridge.gateway.groups.group_table import GroupTable
from cellfeed.bridge.gateway.log.block_files import BlockFiles
from cellfeed.bridge.gateway.log.blocks import Blocks
from cellfeed.bridge.gateway.request_tallies import RequestTallies
from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.received_wakeups import RECEIVED
from cellfeed.store.http.server.asgi import App, Receive, Scope, Send, refuse_foreign_host
from cellfeed.store.security.quotas import Quotas

_PATH: Final = "/metrics"
_MEDIA_TYPE: Final = b"text/plain; version=0.0.4"


class GatewayMetrics(Collector):
    """``files``: None where no blocks are kept in files; there are no figures of them then."""

    def __init__(
        self,
        connections: Callable[[], int],
        groups: GroupTable,
        blocks: Blocks,
        files: BlockFiles | None,
        quotas: Quotas,
    ) -> None:
        self._connections = connections
        self._groups = groups
        self._blocks = blocks
        self._files = files
        self._quotas = quotas
        self.requests = RequestTallies()

    def collect(self) -> Iterable[Metric]:
        yield from RECEIVED.collect()
        yield from self.requests.families(api_names())
        groups = self._groups.all()
        yield GaugeMetricFamily(
            "cellfeed_gateway_connections",
            "Open connections of Kafka clients.",
            self._connections(),
        )
        yield GaugeMetricFamily(
            "cellfeed_gateway_groups",
            "Consumer groups with members that this gateway coordinates.",
            len(groups),
        )
        yield GaugeMetricFamily(
            "cellfeed_gateway_group_members",
            "Their members.",
            sum(len(group.members) for group in groups),
        )
        kept = GaugeMetricFamily(
            "cellfeed_gateway_kept_block_bytes", "Encoded blocks that are kept.", labels=["place"]
        )
        kept.add_metric(["memory"], self._blocks.kept.bytes)
        if self._files is not None:
            kept.add_metric(["files"], self._files.kept_bytes)
        yield kept
        yield CounterMetricFamily(
            "cellfeed_gateway_blocks_encoded",
            "Pieces of the log that were encoded.",
            self._blocks.encoded,
        )
        yield CounterMetricFamily(
            "cellfeed_gateway_blocks_from_memory",
            "Blocks that were sent as they were kept in memory.",
            self._blocks.kept.hits,
        )
        yield CounterMetricFamily(
            "cellfeed_gateway_throttled_requests",
            "Requests that waited for the quota of their principal.",
            self._quotas.waits,
        )
        yield CounterMetricFamily(
            "cellfeed_gateway_throttled_seconds",
            "How long they waited.",
            self._quotas.waited_s,
        )
        if self._files is not None:
            files = CounterMetricFamily(
                "cellfeed_gateway_block_files",
                "Blocks in files, by event.",
                labels=["event"],
            )
            for event, count in asdict(self._files.counts).items():
                files.add_metric([event], count)
            yield files


def with_metrics(app: App, metrics: GatewayMetrics) -> App:
    """The app, which answers ``GET /metrics`` as well. Refuses other Host names there as the
    registry does everywhere."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(metrics)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] != "http"
            or scope["path"] != _PATH
            or scope["method"] not in ("GET", "HEAD")
        ):
            await app(scope, receive, send)
            return
        try:
            refuse_foreign_host(scope)
            status, body = 200, generate_latest(registry)
        except CellfeedError as error:
            status, body = error.http_status, f"{error}\n".encode()
        headers = [(b"content-type", _MEDIA_TYPE), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
        )

    return answer
