"""Room on an instance's file systems, and the sizes of an embedded store's write-ahead logs, as
Prometheus gauges of its HTTP workers. ``docs/operate/metrics.md`` lists them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from cellfeed.config.model import Config
from cellfeed.run_dir import RunDir
from cellfeed.status.disks import rooms
from cellfeed.store.http.server.metric_families import gauge


class DiskMetrics(Collector):
    """Asks the file system at each scrape. Label values are names of the configuration and of the
    store's own files."""

    def __init__(self, directory: RunDir, config: Config) -> None:
        self._directory = directory
        self._config = config

    def collect(self) -> Iterable[Metric]:
        found = rooms(self._directory, self._config)
        yield gauge(
            "cellfeed_disk_free_bytes",
            "Bytes that are left to this account, of each file system that the instance writes.",
            [([each.subject], each.free) for each in found],
            ["place"],
        )
        yield gauge(
            "cellfeed_disk_size_bytes",
            "All bytes of these file systems.",
            [([each.subject], each.total) for each in found],
            ["place"],
        )
        if not self._config.datastore.clusters:
            yield gauge(
                "cellfeed_store_wal_bytes",
                "The write-ahead logs of the embedded store's files.",
                self._wals(),
                ["file"],
            )

    def _wals(self) -> list[tuple[list[str], float]]:
        store: Path = self._directory.inside(self._config.datastore.directory)
        found: list[tuple[list[str], float]] = []
        for path in sorted((store / self._config.datastore.name).glob("*-wal")):
            with suppress(FileNotFoundError):  # the last connection has closed its file
                found.append(([path.name.removesuffix("-wal")], path.stat().st_size))
        return found
