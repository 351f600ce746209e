"""A worker's counts of the followers on other machines that it wakes."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class WakeupMetrics(Collector):
    """Plain numbers, which the event loop alone changes."""

    def __init__(self) -> None:
        self.followers = self.sent = self.merged = self.refused = 0

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "cellfeed_wakeup_followers",
            "Followers on other machines that are connected.",
            self.followers,
        )
        yield CounterMetricFamily(
            "cellfeed_wakeup_lines_sent", "Wake-ups sent to other machines.", self.sent
        )
        yield CounterMetricFamily(
            "cellfeed_wakeup_lines_merged",
            "Wake-ups that joined one still waiting for its follower.",
            self.merged,
        )
        yield CounterMetricFamily(
            "cellfeed_wakeup_followers_refused",
            "Followers refused because too many were connected.",
            self.refused,
        )
