"""Looks after the moves of a datastore, and heals those that a dead mover has left."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from cellfeed.store.clusters.model.shard_notes import Clusters
from cellfeed.store.clusters.moves.heal import heal
from cellfeed.store.clusters.moves.underway import Underway, underway
from cellfeed.store.clusters.operating.present_role import cluster_role
from cellfeed.store.engines.mysql.statements import query
from cellfeed.store.errors import CellfeedError

_log = logging.getLogger("cellfeed.moves")

LOOK_EVERY_S: Final = 1.0
"""How often clusters are looked at, in seconds: one small query to each while no shard is on its
way."""

LOOK_TIMEOUT_S: Final = 5.0
"""Longest wait for one answer, in seconds."""

HEAL_AFTER_S: Final = 3.0
"""How long a shard must have been without a cluster that serves it, in seconds: three times as long
as a move may be without one (``waiting.FENCE_MAX_S``)."""


class MoveHealer:
    """Looks after the moves of a datastore. Used by one thread."""

    def __init__(
        self,
        clusters: Clusters,
        healed: Callable[[str], None] = lambda _: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clusters = {
            name: cluster.with_timeout(LOOK_TIMEOUT_S) for name, cluster in clusters.items()
        }
        self._healed = healed
        self._clock_s = clock_s
        self._since_s: dict[tuple[int, str, str, str], float] = {}
        """Since when a shard has been without a cluster that serves it or is known to: by shard,
        source, target and stage."""

        self._nothing_to_do: set[tuple[str, int, int]] | None = None
        """The result of :meth:`_kept` at the last look at which all clusters answered and no shard
        was to be healed."""

        self._reported: dict[str, str] = {}

    def run(self, stop: threading.Event) -> None:
        """Looks until ``stop`` is set. Errors are logged and waited out."""
        while not stop.wait(LOOK_EVERY_S):
            self.look()
        self.close()

    def close(self) -> None:
        for cluster in self._clusters.values():
            cluster.close()

    def look(self) -> None:
        """One look, and the steps that are due."""
        kept, answering = self._kept()
        if kept == self._nothing_to_do or not kept:
            self._since_s.clear()
            return
        try:
            stuck = {
                (each.shard, each.source, each.target, each.stage): each
                for each in underway(answering)
                if self._concerns(each)
            }
        except CellfeedError as error:
            self._log_once("moves", str(error))
            return
        now_s = self._clock_s()
        self._since_s = {each: self._since_s.get(each, now_s) for each in stuck}
        self._nothing_to_do = kept if not stuck and len(answering) == len(self._clusters) else None
        for each, since_s in self._since_s.items():
            if now_s - since_s >= HEAL_AFTER_S:
                self._heal(answering, stuck[each])

    def _concerns(self, found: Underway) -> bool:
        """A shard that moved to a cluster this process does not know is served; it only looks
        unserved from here."""
        return found.stage in ("fenced", "switched") and found.target in self._clusters

    def _heal(self, clusters: Clusters, found: Underway) -> None:
        try:
            done = heal(clusters, found)
        except CellfeedError as error:
            self._log_once(
                f"shard {found.shard}",
                f"shard {found.shard} is {found.stage} on its way from {found.source} to"
                f" {found.target}, and could not be healed yet: {error}",
            )
            return
        self._reported.clear()
        if done is not None:
            _log.warning("a mover had died: %s", done)
            self._healed(done)

    def _kept(self) -> tuple[set[tuple[str, int, int]], Clusters]:
        """The shards that each cluster keeps after they have left it, or that are about to leave,
        and the clusters that answer."""
        kept: set[tuple[str, int, int]] = set()
        answering = {}
        for name, cluster in self._clusters.items():
            try:
                role, _ = cluster_role(cluster)
                with cluster.server(role.master).connection() as connection:
                    kept |= {
                        (name, int(shard), int(token))
                        for shard, token in query(
                            connection, f"SELECT shard, token FROM {cluster.meta}.shard_leaving"
                        )
                    }
            except CellfeedError as error:
                self._log_once(
                    name,
                    f"cluster {name} cannot be asked for shards that are on their way: {error}",
                )
            else:
                answering[name] = cluster
        return kept, answering

    def _log_once(self, about: str, text: str) -> None:
        if self._reported.get(about) != text:
            self._reported[about] = text
            _log.error("%s", text)
