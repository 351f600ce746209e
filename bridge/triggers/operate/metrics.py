"""How far the triggers are, as Prometheus gauges that are looked up when somebody asks.
``docs/operate/metrics.md`` lists them.

The look is done on a thread of its own, and one answers for a few seconds: a scrape costs the store
little however often it comes. While the coordination is away, every look takes until its time-out.
Then a scrape waits for a moment and says that nothing is known. A look that failed takes the
figures with it, and one that does not end makes them unknown in time: a lag that stands still is
worse than none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.triggers.operate.lag import GroupLag, LagReader
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.server.metric_families import OTHERS, SERIES_MAX

LOOK_EVERY_S: Final = 5.0
"""How long one look answers."""

WAIT_S: Final = 2.0
"""How long a scrape waits for a look: far above any healthy one, far below a scraper's patience."""

KNOWN_S: Final = 60.0
"""How old figures may get while the next look is under way: with thousands of shards in ZooKeeper
one takes some seconds for each trigger."""

CELLS_MAX: Final = 500
"""Cells read for their age in one look; those that are known already are not read again. The shards
that have stood for longest come first."""

_log = logging.getLogger("cellfeed.triggers")

_OF_A_GROUP: Final[
    Sequence[tuple[str, str, Callable[[GroupLag], float], Callable[[Iterable[float]], float]]]
] = (
    (
        "cells_behind",
        "Cells of the log, of any column, that the trigger has not passed.",
        lambda each: each.cells,
        sum,
    ),
    ("seconds_behind", "Age of the oldest of them; 0 without one.", lambda each: each.seconds, max),
    ("parked_cells", "Cells that it could not run.", lambda each: each.parked, sum),
    ("workers", "Live workers.", lambda each: len(each.workers), sum),
    (
        "shards_without_worker",
        "Shards that no live worker has.",
        lambda each: each.without_worker,
        sum,
    ),
    (
        "stands_still",
        "1 while nothing of it runs: paused, stopped, or its offsets were lost; or while a worker"
        " pauses because many cells fail alike.",
        lambda each: bool(each.waits_because),
        max,
    ),
)


class TriggerMetrics(Collector):
    """Label values are groups of triggers, indexes and exports that have run: the ``SERIES_MAX``
    that are most behind, and one for all others. Any number of threads may collect."""

    def __init__(
        self,
        datastore: Datastore,
        coordinator: Coordinator,
        *,
        look_every_s: float = LOOK_EVERY_S,
        wait_s: float = WAIT_S,
    ) -> None:
        self._reader = LagReader(datastore, coordinator)
        self._look_every_s = look_every_s
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._looking: threading.Thread | None = None
        self._looked_at_s = float("-inf")
        self._found: list[GroupLag] = []

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The gauges without figures: registering them looks at nothing."""
        return self._gauges(None)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        with self._lock:
            looking = self._looking
            if time.monotonic() - self._looked_at_s > self._look_every_s and (
                looking is None or not looking.is_alive()
            ):
                looking = self._looking = threading.Thread(
                    target=self._look, name="trigger-metrics", daemon=True
                )
                looking.start()
        if looking is not None:
            looking.join(self._wait_s)
        with self._lock:
            known = time.monotonic() - self._looked_at_s <= KNOWN_S
            return self._gauges(self._found if known else None)

    def _look(self) -> None:
        found, away = [], ""
        try:
            for group in (*self._reader.groups(), *self._reader.exports()):
                found.append(lag := self._reader.read(group, looks_max=CELLS_MAX))
                if away := lag.away_because:
                    break
        except CellfeedError as error:
            away = str(error)
        if away:
            _log.info("how far the triggers are is not known just now: %s", away)
        with self._lock:
            self._found, self._looked_at_s = found, float("-inf") if away else time.monotonic()

    def _gauges(self, lags: Sequence[GroupLag] | None) -> Iterable[GaugeMetricFamily]:
        known = GaugeMetricFamily(
            "cellfeed_triggers_known",
            "Whether the store and the coordination could be asked; without it there are no other"
            " figures.",
        )
        known.add_metric([], lags is not None)
        gauges = [known]
        # The same groups in each metric: those that are most behind.
        ordered = sorted(lags or (), key=lambda each: (-each.seconds, -each.cells))
        named, others = ordered[:SERIES_MAX], ordered[SERIES_MAX:]
        for name, says, of_group, joined in _OF_A_GROUP:
            gauge = GaugeMetricFamily(f"cellfeed_trigger_{name}", says, labels=["group"])
            for lag in named:
                gauge.add_metric([lag.group], of_group(lag))
            if others:
                gauge.add_metric([OTHERS], joined(map(of_group, others)))
            gauges.append(gauge)
        return gauges
