"""Families of metrics from plain numbers, and the rule that bounds their series.

A metric of something that users name (groups, topics) has a series for each of the ``SERIES_MAX``
largest. The others are one series more, ``(others)``: a server of metrics keeps every series that
it ever saw, and ten thousand groups must not cost it more than a hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from cellfeed.store.tallies import Tally

SERIES_MAX: Final = 100
"""Series of one metric that have names from users."""

OTHERS: Final = "(others)"
"""The name of the series of all others; no group, topic or column can have it."""


def histogram(
    name: str, says: str, tallies: Mapping[tuple[str, ...], Tally], labels: Sequence[str] = ()
) -> HistogramMetricFamily:
    """A histogram of each tally, by the values of ``labels``."""
    family = HistogramMetricFamily(name, says, labels=labels)
    for values, tally in list(tallies.items()):
        limits = [*map(floatToGoString, tally.limits), "+Inf"]
        family.add_metric(
            values, list(zip(limits, tally.counts(), strict=True)), sum_value=tally.total
        )
    return family


def bounded(
    found: Iterable[tuple[Sequence[str], float]],
    joined: Callable[[Iterable[float]], float] = sum,
    series_max: int = SERIES_MAX,
) -> list[tuple[list[str], float]]:
    """The largest of these series, and one of all others, whose value is ``joined`` of theirs: the
    sum, or ``max`` for a time."""
    ordered = sorted(found, key=lambda each: -each[1])
    kept = [(list(values), value) for values, value in ordered[:series_max]]
    if others := ordered[series_max:]:
        kept.append(([OTHERS] * len(others[0][0]), joined(value for _, value in others)))
    return kept


def gauge(
    name: str,
    says: str,
    found: Iterable[tuple[Sequence[str], float]],
    labels: Sequence[str],
) -> GaugeMetricFamily:
    """A gauge with these series."""
    family = GaugeMetricFamily(name, says, labels=labels)
    for values, value in found:
        family.add_metric(list(values), value)
    return family
