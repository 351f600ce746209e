"""Sizes, waits and commits of a worker's group commit, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from cellfeed.store.commit.writer_tally import WriterTally
from cellfeed.store.http.server.metric_families import histogram


class WriterMetrics(Collector):
    """``tallies``: of each writer, by its commit group: a cluster's name, or empty."""

    def __init__(self, tallies: Callable[[], Mapping[str, WriterTally]]) -> None:
        self._tallies = tallies

    def collect(self) -> Iterator[Metric]:
        found = {(name,): tally for name, tally in self._tallies().items()}
        labels = ["cluster"]
        yield histogram(
            "cellfeed_writer_group_cells",
            "Cells of the groups that one transaction each wrote.",
            {name: each.cells for name, each in found.items()},
            labels,
        )
        yield histogram(
            "cellfeed_writer_wait_seconds",
            "How long the first put of a group waited until it was taken.",
            {name: each.waits for name, each in found.items()},
            labels,
        )
        yield histogram(
            "cellfeed_writer_commit_seconds",
            "How long the transaction of a group took.",
            {name: each.commits for name, each in found.items()},
            labels,
        )
