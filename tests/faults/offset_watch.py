"""Looks at the offsets of every group of an instance from outside, while a fault lasts and after
it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from cellfeed.assembly.datastore import open_datastore
from cellfeed.bridge.coordination.contract import Offsets
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.store.errors import Unavailable
from tests.faults.invariants import Violations, merge
from tests.faults.state_ledger import check_falls
from tests.faults.system import System

TOPIC = "trips"
_LOOK_EVERY_S = 0.1


class OffsetWatch:
    """``look`` takes a sample of each group. An unreadable state is no sample."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._samples: dict[str, list[dict[int, int]]] = {}
        self.errors: list[str] = []

    def look(self) -> None:
        for group in self._offsets.groups():
            found = {
                partition: each.offset
                for (topic, partition), each in self._offsets.fetch_offsets(group).items()
                if topic == TOPIC
            }
            self._samples.setdefault(group, []).append(found)

    def violations(self, ends: Mapping[int, int]) -> Violations:
        """I14 and I20 of every group, and of the watch itself: that it has seen offsets. ``ends``:
        of the logs, by shard."""
        self.look()
        idle = (
            []
            if any(any(samples) for samples in self._samples.values())
            else ["no group had an offset"]
        )
        return merge(
            {"no look": idle, "errors": list(self.errors)},
            *(check_falls(group, samples, ends) for group, samples in self._samples.items()),
        )


@contextmanager
def watching_offsets(system: System) -> Iterator[OffsetWatch]:
    """A watch that looks several times a second, over a connection of its own."""
    stop = threading.Event()
    with open_datastore(system.config, system.run_dir.path) as datastore:
        watch = OffsetWatch(StoreCoordinator(datastore.state))

        def run() -> None:
            while not stop.wait(_LOOK_EVERY_S):
                try:
                    watch.look()
                except Unavailable:
                    continue
                except Exception as error:
                    watch.errors.append(f"the offsets were looked at: {error!r}")

        thread = threading.Thread(target=run, name="offset-watch")
        thread.start()
        try:
            yield watch
        finally:
            stop.set()
            thread.join()
