"""The parts of an instance that stand still, as Prometheus gauges.
``docs/operate/watch.md`` lists them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cellfeed.status.looks import Looks

SERIES_MAX: Final = 200
"""Parts that are named one by one, the longest ones first: more of them are one fault, and a server
of metrics keeps each series."""

KNOWN_S: Final = 60.0
"""How old a look may get while the next one is under way."""


class StuckMetrics(Collector):
    """One gauge for each part that stands still. Any number of threads may collect."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The gauges without figures: registering them looks at nothing."""
        return _gauges()

    def collect(self) -> Iterable[GaugeMetricFamily]:
        look, now_s = self._looks.latest(), time.time()
        seconds, parts, known = gauges = _gauges()
        is_known = look.number > 0 and now_s - look.at_s <= KNOWN_S
        known.add_metric([], is_known)
        if is_known:
            parts.add_metric([], len(look.standing))
            longest: dict[tuple[str, str], float] = {}
            for each in look.standing:
                for_s = max(0.0, now_s - each.since_us / 1e6) if each.since_us else 0.0
                key = each.kind, each.name
                longest[key] = max(for_s, longest.get(key, 0.0))
            for key, for_s in sorted(longest.items(), key=lambda each: -each[1])[:SERIES_MAX]:
                seconds.add_metric(list(key), for_s)
        return gauges


def _gauges() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(
            "cellfeed_stuck_seconds",
            "Seconds for which a part has stood still; 0 where nobody knows.",
            labels=["kind", "name"],
        ),
        GaugeMetricFamily("cellfeed_stuck_parts", "Parts that stand still."),
        GaugeMetricFamily("cellfeed_stuck_known", "0 while the status could not be read."),
    )
