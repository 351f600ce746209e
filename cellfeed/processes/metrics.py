"""The metrics that every process has, for Prometheus: memory, processor time, files, readiness.

Numbers alone: label values are the codes of :class:`cellfeed.store.progress.Reason`, a fixed list.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest

from cellfeed.processes.health import ProcessHealth

METRICS_TYPE: Final = "text/plain; version=0.0.4"


def process_metrics(health: ProcessHealth) -> bytes:
    """The Prometheus text form."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    found = health.ready()
    Gauge(
        "cellfeed_process_ready",
        "1 while the process serves and each of its parts advances.",
        registry=registry,
    ).set(found.is_ok)
    reasons = Gauge(
        "cellfeed_process_unready_reasons",
        "Reasons why it is not ready, by their code.",
        ["code"],
        registry=registry,
    )
    for code, count in Counter(each.code for each in found.reasons).items():
        reasons.labels(code).set(count)
    return generate_latest(registry)
