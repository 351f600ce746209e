"""An exporter looks at the logs when one of its units can use it: while all of them are in
transactions, new cells do not make it look again and again."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from unittest.mock import patch
from uuid import UUID

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export import worker
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.worker import run_exporter
from cellfeed.bridge.groups.membership import Membership
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head
from tests.support.waiting import wait_until

LONG_S = 60.0


class FakeGroup:
    """Of units that are all in transactions until the test says that one of them waits."""

    made: FakeGroup

    def __init__(
        self,
        export: Export,
        datastore: Datastore,
        coordinator: Coordinator,
        name: str,
        heads_wanted: threading.Event,
    ) -> None:
        del datastore
        self.export = export
        self.membership = Membership(coordinator, export.group, name, export.lease_s)
        self.heads_wanted = heads_wanted
        self.told: list[int] = []
        self.heads: dict[int, Head] = {}
        FakeGroup.made = self

    def note_heads(self, changed: Mapping[int, Head], look_s: float) -> None:
        assert look_s > 0
        self.heads |= changed
        self.told.append(sum(head.watermark for head in self.heads.values()))

    def hear(self, told: Collection[bytes]) -> None: ...

    def keep_place(self, heads: Mapping[int, Head]) -> None: ...

    def report(self, *_: object) -> None: ...

    def drain(self) -> bool:
        return True

    def close(self) -> None: ...


def test_new_cells_are_looked_for_when_a_unit_waits_for_them_and_not_before(
    datastore: Datastore,
) -> None:
    stop = threading.Event()
    export = Export("trips", "127.0.0.1:1", topic="trips").check()
    with patch.object(worker, "ExportGroup", FakeGroup), patch.object(worker, "LOOK_GAP_S", LONG_S):
        thread = threading.Thread(
            target=run_exporter,
            args=([export], datastore, StoreCoordinator(datastore.state), "exporter", stop),
        )
        thread.start()
        try:
            wait_until(
                lambda: hasattr(FakeGroup, "made") and bool(FakeGroup.made.told), "the first look"
            )
            group = FakeGroup.made
            for number in range(1, 4):
                for cell in range(20):
                    datastore.put_cell(UUID(int=number), "BASE", cell, {})
                looks = len(group.told)
                assert looks == number, "nobody could have used another one"
                group.heads_wanted.set()
                wait_until(
                    lambda looks=looks: len(group.told) > looks,  # type: ignore[misc]
                    "a unit waits for new heads, and has them",
                )
                assert group.told[-1] == 20 * number
        finally:
            stop.set()
            FakeGroup.made.heads_wanted.set()
            thread.join()
