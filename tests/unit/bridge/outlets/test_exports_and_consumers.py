"""Exports and consumer groups as outlets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from cellfeed.bridge.coordination.contract import CommittedOffset, Coordinator
from cellfeed.bridge.coordination.in_store import StoreCoordinator
from cellfeed.bridge.export.export_terms import ExportTerms, terms_key
from cellfeed.bridge.gateway.groups.slot_owners import why_stopped
from cellfeed.bridge.outlets.consumers import ConsumerGroup
from cellfeed.bridge.outlets.exports import ExportOutlet
from cellfeed.store.cells.token import Places
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Trimmed, Unavailable
from cellfeed.store.waits.waiting import Passed, PlaceRange

EXPORT, GROUP = "lake", "analytics"
TERMS = ExportTerms("trips", "trips", "id", 1, "records", [2], 1)


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    """Ten cells in one shard."""
    with Datastore.open_embedded(tmp_path / "store", shards=1) as opened:
        opened.put_cells([(UUID(int=number), "BASE", 1, {}) for number in range(10)])
        yield opened


@pytest.fixture
def coordinator(datastore: Datastore) -> Iterator[Coordinator]:
    with closing(StoreCoordinator(datastore.state)) as opened:
        yield opened


def test_an_export_has_skipped_the_cells_before_its_start(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    datastore.state.commit({terms_key(EXPORT): msgspec.msgpack.encode(TERMS)})
    coordinator.commit_offsets(f"export/{EXPORT}", {("trips", 0): CommittedOffset(5)})
    outlet = ExportOutlet(EXPORT, datastore, coordinator)

    assert outlet.passed([Places(0, 5, 5)]) is None
    assert outlet.passed([Places(0, 2, 4)]) == Passed(outlet.title)
    assert outlet.passed([Places(0, 0, 4)]) == Passed(outlet.title, [], [PlaceRange(0, 0, 1)])


def test_an_export_is_not_credited_with_cells_that_were_trimmed(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    coordinator.commit_offsets(f"export/{EXPORT}", {("trips", 0): CommittedOffset(9)})
    outlet = ExportOutlet(EXPORT, datastore, coordinator)
    datastore.trim(0, 4)

    with pytest.raises(Trimmed, match="below 4"):
        outlet.passed([Places(0, 3, 3)])
    assert outlet.passed([Places(0, 4, 4)]) == Passed(outlet.title)


def test_a_consumer_group_has_passed_a_place_when_it_has_in_each_of_its_topics(
    datastore: Datastore, coordinator: Coordinator
) -> None:
    outlet = ConsumerGroup(GROUP, datastore, coordinator)
    assert outlet.passed([Places(0, 0, 0)]) is None
    coordinator.commit_offsets(
        GROUP, {("trips", 0): CommittedOffset(8), ("trips.BASE", 0): CommittedOffset(3)}
    )

    assert outlet.positions([0]) == {0: 3}
    assert outlet.passed([Places(0, 3, 3)]) is None
    assert outlet.passed([Places(0, 0, 2)]) == Passed(outlet.title)


def test_offsets_of_a_replaced_zookeeper_are_not_counted_for_a_consumer_group(
    datastore: Datastore, coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator.commit_offsets(GROUP, {("trips", 0): CommittedOffset(8)})
    monkeypatch.setattr(
        "cellfeed.bridge.outlets.consumers.why_stopped", lambda *_: "consumer groups wait"
    )
    assert why_stopped(datastore.state, coordinator) is None

    with pytest.raises(Unavailable, match="consumer groups wait"):
        ConsumerGroup(GROUP, datastore, coordinator).passed([Places(0, 3, 3)])
