"""The index worker: keeps every version of every index that the catalog names, each by a trigger
worker of its own, and switches to versions that are complete.

Any number of these run at once and share the shards of every index. A worker looks at the catalog
again and again. So it begins a new index within ``LOOK_S``, and leaves a dropped one alone. Killed
at any time: the trigger runtime continues from the saved locations, here or elsewhere.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.indexes.groups import Throttle, index_positions, index_trigger
from cellfeed.bridge.indexes.rejected_values import RejectedValueCounter
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.worker import LEASE_S, run_trigger_worker
from cellfeed.store.background import SupervisedThread
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.index_values import IndexTable
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.store.errors import CellfeedError
from cellfeed.store.gc_tuning import collect_seldom
from cellfeed.store.indexes.catalog import Catalog
from cellfeed.store.indexes.keeper import IndexKeeper
from cellfeed.store.indexes.records import BUILDING, VersionRecord
from cellfeed.store.indexes.version import IndexVersion
from cellfeed.store.progress import Watch

_log = logging.getLogger("cellfeed.indexes")

LOOK_S: Final = 0.25
"""How often the catalog is looked at, in seconds."""

BUILDING_LOOK_S: Final = 0.1
"""The same while a version is being built: a complete one answers queries at once."""

LOOK_PART: Final = 0.1
"""The part of the time that goes into looks, at most: of a version that is being built each asks
how far all shards are."""

THREADS: Final = 8
"""Shards of one version that a worker brings on at the same time."""


@dataclass
class _Kept:
    """A version that this worker keeps."""

    record: VersionRecord
    stop: threading.Event
    thread: SupervisedThread
    completed: bool = False


class IndexWorker:
    """See the module. ``name`` is unique among the workers alive. ``only``: this index alone, for
    an operator's build by hand."""

    def __init__(
        self,
        datastore: Datastore,
        coordinator: Coordinator,
        name: str,
        *,
        lease_s: float = LEASE_S,
        only: str | None = None,
    ) -> None:
        self._datastore = datastore
        self._coordinator = coordinator
        self._name = name
        self._lease_s = lease_s
        self._only = only
        self._catalog = Catalog(datastore.state, datastore.name)
        self._kept: dict[str, _Kept] = {}

    def run(self, stop: threading.Event) -> None:
        """Blocks until ``stop`` is set; then drains."""
        collect_seldom()
        watch = Watch(f"index worker {self._name}", "loop")
        try:
            while not stop.is_set():
                begun_s = time.monotonic()
                try:
                    self.look()
                    watch.moved()
                except CellfeedError as error:
                    watch.waits(str(error))
                    _log.warning("the catalog of indexes cannot be read just now: %s", error)
                pause_s = BUILDING_LOOK_S if self.is_building else LOOK_S
                stop.wait(max(pause_s, (time.monotonic() - begun_s) / LOOK_PART))
        finally:
            watch.close()
            self.close()

    @property
    def is_building(self) -> bool:
        """Whether a version that it keeps was not complete at the last look."""
        return any(kept.record.state == BUILDING for kept in self._kept.values())

    def look(self) -> None:
        """Begins versions that the catalog wants kept, ends others, and switches to complete
        ones."""
        now_us = self._catalog.now_us()
        wanted: dict[str, VersionRecord] = {}
        for record in self._catalog.all():
            if self._only in (None, record.name):
                for version in record.versions:
                    if version.is_kept(now_us):
                        wanted[f"{record.name}-v{version.number}"] = version
        for key, kept in list(self._kept.items()):
            other = key not in wanted or wanted[key].cells_per_s != kept.record.cells_per_s
            if other or not kept.thread.is_alive():
                self._end(key)
        for key, version in wanted.items():
            if key not in self._kept:
                self._begin(key, version)
                continue
            kept = self._kept[key]
            kept.record = version
            if version.state == BUILDING and self._is_complete(version):
                if not kept.completed:
                    # Long for many entries, so it is asked again whether the version is behind.
                    self._datastore.engine.indexes.complete(self._table(version))
                    kept.completed = True
                    if not self._is_complete(version):
                        continue
                switch(self._catalog, version)

    def _is_complete(self, version: VersionRecord) -> bool:
        return is_complete(self._datastore, self._coordinator, version)

    def _table(self, version: VersionRecord) -> IndexTable:
        return self._datastore.indexes.version(version).table

    def close(self) -> None:
        """Gives all shards back."""
        for kept in self._kept.values():
            kept.stop.set()
        for key in list(self._kept):
            self._end(key)

    def _end(self, key: str) -> None:
        kept = self._kept.pop(key)
        kept.stop.set()
        kept.thread.join()

    def _begin(self, key: str, record: VersionRecord) -> None:
        stop = threading.Event()
        thread = SupervisedThread(
            f"index-{key}", partial(self._keep, f"{self._name}-{key}", record, stop)
        )
        self._kept[key] = _Kept(record, stop, thread)
        thread.start()

    def _keep(self, worker: str, record: VersionRecord, stop: threading.Event) -> None:
        try:
            version = IndexVersion(record.definition, record.number, self._datastore.shards)
            store = self._datastore.engine.indexes
            store.create(version.table)
            if record.state != BUILDING:
                store.complete(version.table)  # a worker of an older program switched without it
            rejected = RejectedValueCounter(self._datastore.state, version.group, worker)
            keeper = IndexKeeper(
                version,
                store,
                self._datastore.engine.row_cells,
                rejected.count,
                new=record.state == BUILDING,
            )
            # Files are waited for by nobody: there, eight threads with large batches take twice the
            # CPU of one, for changes of threads at every row.
            backlog_turn = (
                threading.Lock() if isinstance(self._datastore.engine, SqliteEngine) else None
            )
            trigger = index_trigger(version, keeper, Throttle(record.cells_per_s), backlog_turn)
            try:
                run_trigger_worker(
                    [trigger],
                    self._datastore,
                    self._coordinator,
                    worker,
                    stop,
                    lease_s=self._lease_s,
                    threads=THREADS,
                )
            finally:
                with suppress(CellfeedError):
                    rejected.save()
        except CellfeedError as error:
            _log.warning(
                "index %s v%d is begun again in a moment: %s",
                record.definition.table,
                record.number,
                error,
            )


def is_complete(datastore: Datastore, coordinator: Coordinator, record: VersionRecord) -> bool:
    """Whether a version has all that was in the logs when this was asked, and nothing of it is
    parked."""
    version = IndexVersion(record.definition, record.number, datastore.shards)
    heads = datastore.heads()
    reached = index_positions(coordinator, datastore.name)(version.group)
    return all(
        reached.get(shard, 0) >= head.watermark for shard, head in heads.items()
    ) and not ParkedCells(datastore.state).count(version.group)


def switch(catalog: Catalog, record: VersionRecord) -> None:
    """Has queries answered from a version that is complete."""
    if catalog.switch(record.definition.table, record.number):
        _log.info(
            "index %s: version %d is complete and answers from now on",
            record.definition.table,
            record.number,
        )
