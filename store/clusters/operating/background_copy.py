"""Makes nodes copies of their master beside the supervisor's looks: one at a time, for each reads
all of the master."""

from __future__ import annotations

import logging
import threading

from cellfeed.store.clusters.model.servers import ClusterServers
from cellfeed.store.clusters.operating.clone import clone
from cellfeed.store.clusters.operating.never_replicated import NeverReplicated
from cellfeed.store.errors import CellfeedError, StorageUnavailable

_log = logging.getLogger("cellfeed.failover")


class BackgroundCopy:
    """Used by one thread; the copy has a thread of its own."""

    def __init__(self, cluster: ClusterServers) -> None:
        self._cluster = cluster
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def is_of(self, name: str) -> bool:
        """Whether a copy to this node is under way here."""
        return self._thread is not None and self._thread.is_alive() and self._thread.name == name

    def begin(
        self, name: str, why: str, listed: NeverReplicated | None = None, *, cut_off: bool = False
    ) -> None:
        """Begins a copy to the node, unless one is under way. ``why``: for the log. ``listed`` and
        ``cut_off``: as :func:`cellfeed.store.clusters.operating.clone.clone` takes them."""
        if self._thread is not None and self._thread.is_alive():
            return
        _log.warning(
            "cluster %s: %s is made a copy of the master: %s", self._cluster.name, name, why
        )
        self._thread = threading.Thread(target=self._run, args=(name, listed, cut_off), name=name)
        self._thread.start()

    def end(self) -> None:
        """Cuts off a copy that is under way, and waits for its end."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, name: str, listed: NeverReplicated | None, cut_off: bool) -> None:
        def go_on(rows: int) -> None:
            if self._stopped.is_set():
                raise StorageUnavailable(f"the copy to {name} was ended after {rows} rows")

        try:
            rows = clone(self._cluster, name, go_on, listed=listed, cut_off=cut_off)
        except CellfeedError as error:
            _log.error(
                "cluster %s: %s is no copy of the master yet: %s", self._cluster.name, name, error
            )
        except Exception:
            _log.exception(
                "cluster %s: the copy to %s failed by a defect, and is begun again",
                self._cluster.name,
                name,
            )
        else:
            _log.warning(
                "cluster %s: %s is a copy of the master, %d rows, and follows",
                self._cluster.name,
                name,
                rows,
            )
