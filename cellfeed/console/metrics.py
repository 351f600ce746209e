"""The parts of an instance that stand still, and the lag of consumer groups, as Prometheus gauges.
``docs/operate/metrics.md`` lists them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cellfeed.status.looks import Look, Looks
from cellfeed.store.http.server.metric_families import bounded

STUCK_MAX: Final = 200
"""Parts that are named one by one, the longest ones first: more of them are one fault, and a server
of metrics keeps each series."""

KNOWN_S: Final = 60.0
"""How old a look may get while the next one is under way."""


class StatusMetrics(Collector):
    """One gauge for each part that stands still, and for each consumer group. Any number of threads
    may collect."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The gauges without figures: registering them looks at nothing."""
        return [*_stuck_gauges(), *_group_gauges()]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        look, now_s = self._looks.latest(), time.time()
        seconds, parts, known = stuck_gauges = _stuck_gauges()
        group_gauges = _group_gauges()
        is_known = look.number > 0 and now_s - look.at_s <= KNOWN_S
        known.add_metric([], is_known)
        if is_known:
            parts.add_metric([], len(look.standing))
            for key, for_s in _longest(look, now_s)[:STUCK_MAX]:
                seconds.add_metric(list(key), for_s)
            _add_groups(group_gauges, look, now_s)
        return [*stuck_gauges, *group_gauges]


def _longest(look: Look, now_s: float) -> list[tuple[tuple[str, str, str], float]]:
    found: dict[tuple[str, str, str], float] = {}
    for each in look.standing:
        for_s = max(0.0, now_s - each.since_us / 1e6) if each.since_us else 0.0
        key = each.kind, each.name, str(each.cause)
        found[key] = max(for_s, found.get(key, 0.0))
    return sorted(found.items(), key=lambda each: -each[1])


def _add_groups(gauges: list[GaugeMetricFamily], look: Look, now_s: float) -> None:
    """Those that are no triggers: consumers of the gateways."""
    triggers = {each.group for each in (*look.status.triggers, *look.status.exports)}
    lags = [each for each in look.status.groups if each.group not in triggers]
    records, seconds = gauges
    for names, behind in bounded(((each.group, each.topic), each.behind) for each in lags):
        records.add_metric(names, behind)
    ages = (
        ((each.group, each.topic), max(0.0, now_s - each.committed_at_us / 1e6))
        for each in lags
        if each.behind and each.committed_at_us
    )
    for names, age_s in bounded(ages, max):
        seconds.add_metric(names, age_s)


def _stuck_gauges() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(
            "cellfeed_stuck_seconds",
            "Seconds for which a part has stood still; 0 where nobody knows.",
            labels=["kind", "name", "cause"],
        ),
        GaugeMetricFamily("cellfeed_stuck_parts", "Parts that stand still."),
        GaugeMetricFamily("cellfeed_stuck_known", "0 while the status could not be read."),
    )


def _group_gauges() -> list[GaugeMetricFamily]:
    labels = ["group", "topic"]
    return [
        GaugeMetricFamily(
            "cellfeed_group_behind_records",
            "Records of the topic that the consumer group has not had, at most.",
            labels=labels,
        ),
        GaugeMetricFamily(
            "cellfeed_group_behind_seconds",
            "Seconds since a group that is behind last saved an offset.",
            labels=labels,
        ),
    ]
