"""Counts of the wake-ups that this process gets from workers on other machines, for Prometheus."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class ReceivedWakeups(Collector):
    """Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.workers = self.hints = self.passed_over = self.failures = 0

    def connected(self, change: int) -> None:
        """A connection was made (1), or has ended (-1)."""
        with self._lock:
            self.workers += change

    def failed(self) -> None:
        """A connection was not made, or was cut."""
        with self._lock:
            self.failures += 1

    def hint(self, *, is_new: bool) -> None:
        """A wake-up came; it is not new where every listener has read so far already."""
        with self._lock:
            self.hints += 1
            self.passed_over += not is_new

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "cellfeed_wakeup_workers",
            "Workers on other machines to which this process is connected.",
            self.workers,
        )
        yield CounterMetricFamily(
            "cellfeed_wakeup_hints_received",
            "Wake-ups that came from workers on other machines.",
            self.hints,
        )
        yield CounterMetricFamily(
            "cellfeed_wakeup_hints_passed_over",
            "Those that said nothing new: the logs were read so far already.",
            self.passed_over,
        )
        yield CounterMetricFamily(
            "cellfeed_wakeup_connection_failures",
            "Connections to workers that were not made, or were cut.",
            self.failures,
        )


RECEIVED: Final = ReceivedWakeups()
"""Those of this process."""
