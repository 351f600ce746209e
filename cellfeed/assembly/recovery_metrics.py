"""How old the recovery points of an instance are, as Prometheus gauges of its HTTP workers.
``docs/operate/metrics.md`` lists them.

The processes that take the backups report it in the run directory. So a scrape reads a small file
of each, and looks neither at the store nor at the backups. The age grows while nobody refreshes it:
also when the process that should has died.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cellfeed.run_dir import RunDir


class RecoveryMetrics(Collector):
    """``names``: of the processes, from the configuration."""

    def __init__(self, directory: RunDir, names: Sequence[str]) -> None:
        self._directory = directory
        self._names = names

    def collect(self) -> Iterable[GaugeMetricFamily]:
        ages = GaugeMetricFamily(
            "cellfeed_backup_recovery_point_age_seconds",
            "Seconds since the last whole backup began; +Inf while there is none.",
            labels=["name"],
        )
        failing = GaugeMetricFamily(
            "cellfeed_backup_failing",
            "1 while the last attempt to take a backup failed.",
            labels=["name"],
        )
        now_us = time.time_ns() // 1000
        for name in self._names:
            report = self._directory.recovery(name)
            age_s = report.age_s(now_us)
            ages.add_metric([name], math.inf if age_s is None else age_s)
            failing.add_metric([name], bool(report.error))
        return [ages, failing]
