"""Results of the background check of the storage, as Prometheus gauges of the HTTP workers.
``docs/operate/metrics.md`` lists them. A scrape reads the last values that the worker's own loop
saw."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cellfeed.store.checks import BackgroundCheck


class CheckMetrics(Collector):
    """See the module."""

    def __init__(self, check: BackgroundCheck) -> None:
        self._check = check

    def collect(self) -> Iterable[GaugeMetricFamily]:
        known = self._check.known
        age_s, found = known.age_s(time.time_ns() // 1000), known.found
        return [
            GaugeMetricFamily(
                "cellfeed_check_age_seconds",
                "Seconds since the last whole check of the storage began; +Inf without one.",
                math.inf if age_s is None else age_s,
            ),
            GaugeMetricFamily(
                "cellfeed_check_findings",
                "Findings of damage by the check under way, or by the last one.",
                found.damaged if found is not None else 0,
            ),
            GaugeMetricFamily(
                "cellfeed_check_unread",
                "Places that this check could not look at.",
                found.unread if found is not None else 0,
            ),
        ]
