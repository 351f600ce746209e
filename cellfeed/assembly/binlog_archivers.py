"""The archivers of binlogs that a process of backups runs, one for each cluster, and the joint
report of them and the schedule."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from cellfeed.assembly.clusters import cluster_servers
from cellfeed.config.model import BackupsConfig, Config
from cellfeed.run_dir import RunDir
from cellfeed.store.backups.binlogs.archiver import ArchivedCluster, BinlogArchiver
from cellfeed.store.backups.due import Archived, Report
from cellfeed.store.backups.places.open import place_at
from cellfeed.store.histories import History


class RecoveryReport:
    """One report out of the schedule's and the archivers', each of which has a part."""

    def __init__(self, say: Callable[[Report], object]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._report = Report()

    def backups(self, report: Report) -> None:
        """Records the schedule's report."""
        with self._lock:
            self._report = msgspec.structs.replace(report, binlogs=self._report.binlogs)
            self._say(self._report)

    def binlog(self, cluster: str, archived: Archived) -> None:
        """Records the report of a cluster's archiver."""
        with self._lock:
            self._report = msgspec.structs.replace(
                self._report, binlogs={**self._report.binlogs, cluster: archived}
            )
            self._say(self._report)


@contextmanager
def binlog_archivers(
    config: Config,
    backups: BackupsConfig,
    directory: RunDir,
    history: History,
    report: RecoveryReport,
) -> Iterator[list[tuple[str, BinlogArchiver]]]:
    """By cluster; none where the configuration asks for none. Each has the folder opened for
    itself: a place has one lock."""
    with ExitStack() as opened:
        archivers = []
        for cluster in config.datastore.clusters if backups.binlogs else ():
            servers = cluster_servers(config, cluster.name)
            opened.callback(servers.close)
            report.binlog(cluster.name, Archived())
            archived = ArchivedCluster(
                servers,
                history,
                place_at(backups.directory, directory.inside),
                backups.policy().recipients,
            )
            archivers.append((cluster.name, BinlogArchiver(archived, report.binlog)))
        yield archivers
