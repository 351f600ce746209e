"""Promotes by itself when a master is gone, and brings nodes back (off by default:
``failover: automatic``).

A master counts as gone by three signs: this process has not reached it for ``DETECT_S``, a majority
of the cluster's nodes answer, and every minion among them has lost it too. So a supervisor that is
cut off alone promotes nobody. Any number of supervisors may run; a promotion holds a user lock on a
majority of the nodes and names the epoch that it replaces, so one of them promotes, once.

Every other node that answers is made a minion of the master, and kept one:

- one that follows nobody, or somebody else, is made read-only and follows when all it has is on the
  master;
- one that holds more is searched. When no acknowledged cell is among it, it is made a copy of the
  master: a master that is killed while a lease is renewed holds a transaction that no minion has.
  Cells and erasures of its own are left to a person (``cellfeed cluster rejoin --put-again``), and
  logged;
- a copy that was cut off begins again;
- a server of another cluster, or of another history, is left alone, and logged: a wrong address
  must not end the writes of another datastore;
- one that an error has stopped is started again, and the error logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from cellfeed.store.clusters.model.roles import Role
from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.background_copy import BackgroundCopy
from cellfeed.store.clusters.operating.clone import is_half_copied
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.clusters.operating.promote import promote
from cellfeed.store.clusters.operating.promotion import Promotion
from cellfeed.store.clusters.operating.rejoin import come_back, heard_epoch, start_again
from cellfeed.store.engines.mysql.read_only import is_read_only
from cellfeed.store.engines.mysql.replication import MinionStatus, minion_status
from cellfeed.store.errors import (
    CellfeedError,
    ProtectData,
    StaleWriter,
    Unavailable,
)
from cellfeed.store.progress import Watch

_log = logging.getLogger("cellfeed.failover")

LOOK_EVERY_S: Final = 0.25
"""How often the nodes are looked at, in seconds."""

LOOK_TIMEOUT_S: Final = 1.0
"""Longest wait for one answer of a node that is looked at."""

DETECT_S: Final = 1.5
"""How long a master must have been out of reach: longer than a restart of its connections, short
enough that writes resume within five seconds."""

AGAIN_S: Final = 5.0
"""How long after a promotion that was refused, or failed, the next one is tried; and how often a
node that does not rejoin is tried."""


class FailoverSupervisor:
    """One cluster's. ``promoted`` is called after each promotion. Used by one thread."""

    def __init__(
        self,
        cluster: ClusterServers,
        promoted: Callable[[Promotion], None] = lambda _: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._watched = cluster.with_timeout(LOOK_TIMEOUT_S)
        self._promoted = promoted
        self._clock_s = clock_s
        self._gone: tuple[int, float] | None = None
        """The epoch whose master is gone, and since when."""

        self._not_before_s: dict[str, float] = {}
        self._reported: dict[str, str] = {}
        self._copy = BackgroundCopy(cluster)

    def run(self, stop: threading.Event) -> None:
        """Looks until ``stop`` is set. Errors are logged and waited out."""
        watch = Watch(f"failover of {self._cluster.name}", "loop")
        while not stop.wait(LOOK_EVERY_S):
            try:
                self.look()
                watch.moved()
            except CellfeedError as error:
                watch.waits(str(error))
                self._log_once("cluster", str(error))
        watch.close()
        self.close()

    def close(self) -> None:
        """Ends a copy that is under way: the next supervisor begins it again."""
        self._copy.end()
        self._watched.close()

    def look(self) -> Promotion | None:
        """One look at the nodes; a promotion when it is due. Raises CellfeedError."""
        role, silent = cluster_role(self._watched)
        if role.master not in silent and not self._is_closed(role):
            self._gone = None
            self._reported.pop("cluster", None)
            for name in self._watched.servers:
                if name != role.master:
                    self._look_after(role, name)
            return None
        now_s = self._clock_s()
        if self._gone is None or self._gone[0] != role.epoch:
            self._gone = (
                role.epoch,
                now_s,
            )  # a master that somebody has just chosen, and not opened yet, is not gone
        if (
            now_s - self._gone[1] < DETECT_S
            or not self._is_due("promotion")
            or not self._minions_agree(role, silent)
        ):
            return None
        return self._promote(role)

    def _is_closed(self, role: Role) -> bool:
        """A master that is read-only and follows nobody: a promotion was cut off half-way, and must
        be finished."""
        server = self._watched.server(role.master)
        return is_read_only(server) and minion_status(server) is None

    def _minions_agree(self, role: Role, silent: dict[str, str]) -> bool:
        if role.master not in silent:
            return True
        answering = [name for name in self._watched.servers if name not in silent]
        if 2 * len(answering) <= len(self._watched.servers):
            self._log_once(
                "cluster",
                f"master {role.master} is out of reach, but only"
                f" {', '.join(answering) or 'no node'} answers: no majority, nobody is promoted",
            )
            return False
        for name in answering:
            status = minion_status(self._watched.server(name))
            if status is not None and status.io_running == "Yes":
                self._log_once(
                    "cluster",
                    f"master {role.master} is out of reach from here, but {name} still hears it:"
                    " nobody is promoted",
                )
                return False
        return True

    def _promote(self, role: Role) -> Promotion | None:
        self._wait("promotion")
        _log.warning("cluster %s: master %s is gone; promoting", self._cluster.name, role.master)
        try:
            done = promote(self._cluster, gone_in=role.epoch)
        except StaleWriter:
            return None  # somebody else has promoted meanwhile, or it is back
        except (ProtectData, Unavailable) as error:
            _log.error("cluster %s: nobody was promoted: %s", self._cluster.name, error)
            return None
        self._gone = None
        self._promoted(done)
        return done

    def _look_after(self, role: Role, name: str) -> None:
        """A node that is not the master: sees to it that it follows. A failure is logged, and tried
        again."""
        try:
            status = minion_status(self._watched.server(name))
            # One that follows and is not written down as minion: the process that took it in was
            # killed in between.
            if (
                status is not None
                and status.follows(self._watched.server(role.master))
                and name in role.minions
            ):
                self._keep_going(role, name, status)
            elif self._copy.is_of(name):
                return
            elif self._is_due(name):
                self._wait(name)
                self._take_in(role, name)
        except CellfeedError as error:
            self._log_once(name, f"{name}: {error}")

    def _keep_going(self, role: Role, name: str, status: MinionStatus) -> None:
        if not status.is_stopped:
            if name in self._reported:
                self._reported.pop(name)
                _log.warning("cluster %s: %s follows %s", self._cluster.name, name, role.master)
        elif self._is_due(name):
            self._wait(name)
            self._log_once(
                name,
                f"{name} had stopped following {role.master}, and is started again:"
                f" {status.error or 'without an error'}",
            )
            start_again(self._cluster, name, role.epoch)

    def _take_in(self, role: Role, name: str) -> None:
        if heard_epoch(self._watched, name) is None:
            if is_half_copied(self._watched, name):
                self._copy.begin(name, "a copy to it was cut off", cut_off=True)
            else:
                self._log_once(
                    name,
                    f"{name} holds nothing of the datastore: cellfeed cluster rejoin"
                    f" {self._cluster.name} {name} --copy",
                )
            return
        extra = come_back(self._cluster, name)
        if extra is None:
            self._reported.pop(name, None)
            _log.warning("cluster %s: %s follows %s", self._cluster.name, name, role.master)
        elif extra.nothing:
            self._copy.begin(
                name, "it holds transactions that were never replicated, without any cell", extra
            )
        else:
            self._log_once(
                name,
                f"{name} holds {extra} that were never replicated: cellfeed cluster rejoin"
                f" {self._cluster.name} {name} --put-again",
            )

    def _is_due(self, what: str) -> bool:
        return self._clock_s() >= self._not_before_s.get(what, 0.0)

    def _wait(self, what: str) -> None:
        self._not_before_s[what] = self._clock_s() + AGAIN_S

    def _log_once(self, about: str, text: str) -> None:
        if self._reported.get(about) != text:
            self._reported[about] = text
            _log.error("cluster %s: %s", self._cluster.name, text)
