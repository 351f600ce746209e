"""A loader's figures for Prometheus, and the port that answers it."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Self

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from cellfeed.consumers.lake.progress import LakeProgress
from cellfeed.store.server_end import end_serving

_OF_TABLES: Final = {
    "rows": "Rows this loader has committed to a typed table.",
    "files": "Data files this loader has committed to a typed table.",
    "bytes": "Bytes of these files.",
    "commits": "Commits of this loader to a typed table.",
    "parked": "Cells that wait there for a mended schema.",
}


class LakeMetrics:
    """A context. ``port``: on loopback, 0 for a free one; None answers nobody."""

    def __init__(self, port: int | None) -> None:
        registry = CollectorRegistry()
        self._rows = Counter(
            "cellfeed_lake_rows", "Cells this loader has committed.", registry=registry
        )
        self._files = Counter(
            "cellfeed_lake_files", "Data files this loader has committed.", registry=registry
        )
        self._bytes = Counter("cellfeed_lake_bytes", "Bytes of these files.", registry=registry)
        self._commits = Counter(
            "cellfeed_lake_commits", "Commits of this loader.", registry=registry
        )
        self._overtaken = Counter(
            "cellfeed_lake_overtaken",
            "Additions given up, for another loader was faster.",
            registry=registry,
        )
        self._lag = Gauge(
            "cellfeed_lake_lag_cells",
            "Records between the table and the ends of this loader's partitions.",
            registry=registry,
        )
        self._stopped = Gauge(
            "cellfeed_lake_stopped_partitions",
            "Partitions that are not read further.",
            registry=registry,
        )
        self._trouble = Gauge(
            "cellfeed_lake_commits_fail",
            "1 while the catalog or the log's cluster does not answer.",
            registry=registry,
        )
        self._tables = {
            name: Gauge(f"cellfeed_lake_table_{name}", text, ["table"], registry=registry)
            for name, text in _OF_TABLES.items()
        }
        self._waiting_columns = Gauge(
            "cellfeed_lake_columns_in_trouble",
            "Columns whose typed tables do not follow.",
            registry=registry,
        )
        self._shown = LakeProgress()
        self._server = start_http_server(port, "127.0.0.1", registry) if port is not None else None
        self.ports = {"metrics": self._server[0].server_port} if self._server is not None else {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._server is not None:
            server, thread = self._server
            end_serving(server)
            thread.join()

    def show(self, now: LakeProgress) -> None:
        """Takes the figures of a report."""
        before = self._shown
        self._rows.inc(now.rows - before.rows)
        self._files.inc(now.files - before.files)
        self._bytes.inc(now.bytes - before.bytes)
        self._commits.inc(now.commits - before.commits)
        self._overtaken.inc(now.overtaken - before.overtaken)
        self._lag.set(now.lag)
        self._stopped.set(len(now.stopped))
        self._trouble.set(bool(now.trouble))
        self._waiting_columns.set(len(now.table_troubles))
        for table, figures in now.tables.items():
            for name, gauge in self._tables.items():
                gauge.labels(table).set(getattr(figures, name))
        self._shown = LakeProgress(
            rows=now.rows,
            files=now.files,
            bytes=now.bytes,
            commits=now.commits,
            overtaken=now.overtaken,
        )
