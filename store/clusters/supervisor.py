"""Promotes by itself when a master is gone, and brings old masters back (off by default: ``failover: automatic``).

A master counts as gone when this process has not reached it for ``DETECT_S``, and a majority of the cluster's nodes answer, and every minion among them has
lost it too: a supervisor that is cut off alone promotes nobody. Any number of supervisors may run; a promotion holds a user lock on a majority of the nodes
and names the epoch that it replaces, so one of them promotes, once.

An old master that answers again is made read-only at once, and follows the new one when all it has is there; otherwise it is left for a person
(``cellfeed cluster rejoin``), and said so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from store.clusters.failover import Promotion, cluster_role, promote
from store.clusters.rejoin import follow_again, is_prefix
from store.clusters.roles import Role
from store.clusters.storage import ClusterServers
from store.engines.mysql_replication import is_read_only, make_read_only, minion_status
from store.errors import CellfeedError, ProtectData, StaleWriter, Unavailable

_log = logging.getLogger("cellfeed.failover")

LOOK_EVERY_S: Final = 0.25
"""How often the nodes are looked at, in seconds."""

LOOK_TIMEOUT_S: Final = 1.0
"""Longest wait for one answer of a node that is looked at."""

DETECT_S: Final = 1.5
"""How long a master must have been out of reach: longer than a restart of its connections, short enough that writes go on within five seconds."""

AGAIN_S: Final = 5.0
"""How long after a promotion that was refused, or failed, the next one is tried."""


class FailoverSupervisor:
    """One cluster's. ``promoted`` is called after each promotion. Used by one thread."""

    def __init__(self, cluster: ClusterServers, promoted: Callable[[Promotion], None] = lambda _: None, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._watched = cluster.with_timeout(LOOK_TIMEOUT_S)
        self._promoted = promoted
        self._clock_s = clock_s
        self._gone_since_s: float | None = None
        self._not_before_s = 0.0
        self._told: dict[str, str] = {}

    def run(self, stop: threading.Event) -> None:
        """Looks until ``stop`` is set. Errors are told and waited out."""
        while not stop.wait(LOOK_EVERY_S):
            try:
                self.look()
            except CellfeedError as error:
                self._tell("cluster", str(error))
        self._watched.close()

    def look(self) -> Promotion | None:
        """One look at the nodes; a promotion when it is due. Raises CellfeedError."""
        role, silent = cluster_role(self._watched)
        if role.master not in silent and not self._is_closed(role):
            self._gone_since_s = None
            self._told.pop("cluster", None)
            self._bring_back(role, silent)
            return None
        now_s = self._clock_s()
        self._gone_since_s = self._gone_since_s or now_s
        if now_s - self._gone_since_s < DETECT_S or now_s < self._not_before_s or not self._minions_agree(role, silent):
            return None
        return self._promote(role, now_s)

    def _is_closed(self, role: Role) -> bool:
        """A master that is read-only and follows nobody: a promotion was cut off half-way, and must be finished."""
        server = self._watched.server(role.master)
        return is_read_only(server) and minion_status(server) is None

    def _minions_agree(self, role: Role, silent: dict[str, str]) -> bool:
        if role.master not in silent:
            return True
        answering = [name for name in self._watched.servers if name not in silent]
        if 2 * len(answering) <= len(self._watched.servers):
            self._tell(
                "cluster", f"master {role.master} is out of reach, but only {', '.join(answering) or 'no node'} answers: no majority, nobody is promoted"
            )
            return False
        for name in answering:
            status = minion_status(self._watched.server(name))
            if status is not None and status.io_running == "Yes":
                self._tell("cluster", f"master {role.master} is out of reach from here, but {name} still hears it: nobody is promoted")
                return False
        return True

    def _promote(self, role: Role, now_s: float) -> Promotion | None:
        self._not_before_s = now_s + AGAIN_S
        _log.warning("cluster %s: master %s is gone; promoting", self._cluster.name, role.master)
        try:
            done = promote(self._cluster, epoch=role.epoch)
        except StaleWriter:
            return None  # somebody else has promoted meanwhile
        except (ProtectData, Unavailable) as error:
            _log.error("cluster %s: nobody was promoted: %s", self._cluster.name, error)
            return None
        self._gone_since_s = None
        self._promoted(done)
        return done

    def _bring_back(self, role: Role, silent: dict[str, str]) -> None:
        for name, server in self._watched.servers.items():
            if name == role.master or name in silent or minion_status(server) is not None:
                continue
            if not is_read_only(server):
                make_read_only(server)
                _log.warning("cluster %s: %s is back and was master once; it is read-only now", self._cluster.name, name)
            if is_prefix(self._watched, name, role):
                follow_again(self._cluster, name)
                self._told.pop(name, None)
                _log.warning("cluster %s: %s follows %s", self._cluster.name, name, role.master)
            else:
                self._tell(name, f"{name} holds cells that were never replicated: cellfeed cluster rejoin {self._cluster.name} {name} --put-again")

    def _tell(self, about: str, text: str) -> None:
        if self._told.get(about) != text:
            self._told[about] = text
            _log.error("cluster %s: %s", self._cluster.name, text)
