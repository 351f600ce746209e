"""Copies the binlog of a cluster's master into its archive, for as long as a process runs.

Everything continues from the archive alone, so a process that was killed has nothing to remember:
transactions that it had read and not written are read again.

**Which server.** The master, as most of the cluster's nodes know it. It must report the archive's
cluster and history: the binlog of any other server is refused.

**A promotion** is found by a look at the role every ``ROLE_S``, or by the end of the stream. The
archiver reads the new master from the archive's position on. That master may lack the last
transactions of the old one, that were acknowledged to nobody. Then the archiver reads from the
beginning of the last piece on, or of the one before, and archives these transactions a second time.
A restore takes of each id the cell of the leader epoch that the id belongs to.

**A gap.** A server that has purged the next transactions cannot fill the archive any more. The
archive begins again at the server's present position, and says since when, and why. The next
increment closes the gap.

**How far.** Each second the master's clock and position are read. Once the stream has passed that
position, all that was acknowledged before that moment is archived.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import msgspec

from cellfeed.store.backups.binlogs.archive import BinlogArchive, Reached
from cellfeed.store.backups.binlogs.archives import archive_name, open_archive
from cellfeed.store.backups.binlogs.copying import Copying
from cellfeed.store.backups.binlogs.position import Position, position_of, text_of
from cellfeed.store.backups.binlogs.stream import (
    BinlogStream,
    Diverged,
    Purged,
    check_settings,
    clock_and_position,
)
from cellfeed.store.backups.due import Archived
from cellfeed.store.backups.encryption import Recipients
from cellfeed.store.backups.places.contract import Place
from cellfeed.store.backups.sealed import PLAIN
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.engines.mysql.layout import Layout
from cellfeed.store.errors import CellfeedError, StorageUnavailable
from cellfeed.store.histories import History, refuse_other_history

FLUSH_S: Final = 1.0
"""Longest that a transaction waits for the others of its piece, in seconds: a lost cluster loses at
most so much, beside the time that the place takes."""


RETRY_FIRST_S: Final = 0.5
RETRY_MAX_S: Final = 30.0

_log: Final = logging.getLogger("cellfeed.backups")


@dataclass(frozen=True)
class ArchivedCluster:
    """``history``: of the datastore; ``folder``: of backups, opened for this archive alone."""

    servers: ClusterServers
    history: History
    folder: Place
    recipients: Recipients | None = None


class BinlogArchiver:
    """See the module. ``report`` is called after each look at the clock, and after a failure."""

    def __init__(
        self,
        cluster: ArchivedCluster,
        report: Callable[[str, Archived], object],
        flush_s: float = FLUSH_S,
    ) -> None:
        self._cluster = cluster
        self._servers = cluster.servers
        self._layout = Layout(self._servers.datastore, self._servers.shards)
        self._report = report
        self._flush_s = flush_s
        self._last_report = Archived()

    def run(self, stop: threading.Event) -> None:
        """Archives until ``stop`` is set. Raises neither CellfeedError nor OSError."""
        retry_s = RETRY_FIRST_S
        while not stop.is_set():
            begun_s = time.monotonic()
            try:
                self._archive_in_turn(stop)
            except (CellfeedError, OSError) as error:
                if stop.is_set():
                    return
                if time.monotonic() - begun_s > RETRY_MAX_S:
                    retry_s = RETRY_FIRST_S
                _log.error(
                    "the binlog of cluster %s is not archived, tried again in %g s: %s",
                    self._servers.name,
                    retry_s,
                    error,
                )
                self._say(msgspec.structs.replace(self._last_report, error=str(error)))
                stop.wait(retry_s)
                retry_s = min(2 * retry_s, RETRY_MAX_S)

    def _archive_in_turn(self, stop: threading.Event) -> None:
        """Archives from one master after the other, under the archive's lock."""
        servers, history = self._servers, self._cluster.history
        name = archive_name(servers.datastore, history.history_id, servers.name)
        place = self._cluster.folder.inside(name)
        with place.locked():
            archive = open_archive(
                place,
                servers.datastore,
                servers.shards,
                servers.name,
                history,
                time.time_ns() // 1000,
                encrypted=self._cluster.recipients is not None,
            )
            while not stop.is_set():
                self._follow(archive, stop)

    def _master(self) -> MySqlServer:
        """Raises ProtectData for a server of another history."""
        role, _ = cluster_role(self._servers)
        refuse_other_history(
            f"nothing archived: the cluster {self._servers.name!r}",
            role.history_id,
            "the archive",
            self._cluster.history.history_id,
            "Restart the process that takes the backups: it begins an archive of the new history",
        )
        return self._servers.server(role.master)

    def _follow(self, archive: BinlogArchive, stop: threading.Event) -> None:
        """One master, as long as it is one. Raises StorageUnavailable."""
        master = self._master()
        check_settings(master)
        reached = archive.reached()
        numbers = archive.numbers()
        last = numbers[-1] if numbers else -1
        if last > reached.number:  # killed between the piece and its report
            piece = archive.read(last)
            reached = msgspec.structs.replace(
                reached, number=last, sha256=piece.sha256, position=piece.head.end
            )
        if not reached.position:
            reached = self._begin(archive, reached, master, "")
        begins = [position_of(reached.position)]
        for number in [None, *reversed(numbers)]:
            if number is not None:
                begins.append(position_of(archive.read(number).head.begin))
            try:
                self._copy(archive, reached, master, begins[-1], stop)
                return
            except Diverged as error:
                _log.warning("later transactions are archived from an earlier place on: %s", error)
            except Purged as error:
                self._begin(archive, reached, master, str(error))
                return
        self._begin(
            archive, reached, master, f"{master} has no transaction that the archive ends with"
        )

    def _begin(
        self, archive: BinlogArchive, reached: Reached, master: MySqlServer, gap: str
    ) -> Reached:
        """The archive begins, or begins again, at the master's present position."""
        at_us, position = clock_and_position(master)
        if gap:
            _log.error(
                "a gap in %s: transactions until now are in no archive. The next increment"
                " closes it. %s",
                archive,
                gap,
            )
        begun = msgspec.structs.replace(
            reached,
            format_version=PLAIN,
            archive_id=archive.marker.archive_id,
            position=text_of(position),
            at_us=at_us,
            since_us=at_us,
            gap=gap,
        )
        archive.say(begun)
        self._say(Archived(begun.since_us, begun.at_us, gap))
        return begun

    def _copy(
        self,
        archive: BinlogArchive,
        reached: Reached,
        master: MySqlServer,
        begin: Position,
        stop: threading.Event,
    ) -> None:
        copying = Copying(
            archive, reached, master, begin, self._cluster.recipients, self._copied_until
        )
        with closing(BinlogStream(master, self._layout, begin)) as stream:
            try:
                for passed in stream.passed():
                    copying.take(passed)
                    if stop.is_set():
                        break
                    if copying.is_due(self._flush_s):
                        copying.look()
                        if copying.is_role_due() and self._master() is not master:
                            break
            except StorageUnavailable:
                copying.flush()  # of a master that died, nobody else may have it
                raise
            copying.flush()

    def _say(self, archived: Archived) -> None:
        self._last_report = archived
        try:
            self._report(self._servers.name, archived)
        except OSError as error:  # the disk of reports is not the one of backups
            _log.error("how far the binlogs are archived cannot be reported: %s", error)

    def _copied_until(self, reached: Reached) -> None:
        self._say(Archived(reached.since_us, reached.at_us, reached.gap))
