"""Lakes as outlets: the table is read, and its source says which cells it has."""

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
from cellfeed.bridge.gateway.cluster_id import cluster_id_of
from cellfeed.bridge.groups.control import EXPORTS
from cellfeed.bridge.outlets.lakes import LakeLook, LakeOutlet, LakeTable
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.cells.token import Places
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import Trimmed, Unavailable
from cellfeed.store.waits.waiting import Passed, Place, PlaceRange
from tests.support.parked import parked_cell

FROM_EXPORT = "kafka-a/trips/topic-1"
TERMS = ExportTerms("trips", "trips", "topic-1", 1, "records", [2], 1, cluster_id="kafka-a")
LOGS = ("gateway", "export")


@pytest.fixture
def datastore(tmp_path: Path) -> Iterator[Datastore]:
    """Ten cells in one shard, and an export that begins at 2."""
    with Datastore.open_embedded(tmp_path / "store", shards=1) as opened:
        opened.put_cells([(UUID(int=number), "BASE", 1, {}) for number in range(10)])
        opened.state.commit({terms_key("all"): msgspec.msgpack.encode(TERMS)})
        yield opened


@pytest.fixture
def coordinator(datastore: Datastore) -> Iterator[Coordinator]:
    with closing(StoreCoordinator(datastore.state)) as opened:
        yield opened


class Table:
    """A table whose state the test sets."""

    def __init__(self, datastore: Datastore, coordinator: Coordinator) -> None:
        self._own = f"{cluster_id_of(datastore)}/trips/topic-of-the-gateway"
        self._coordinator = coordinator
        self.state: LakeLook | None = None
        self.outlet = LakeOutlet(
            "lake", LakeTable("loaders", lambda: self.state), datastore, coordinator
        )

    def from_gateway(self, next_id: int) -> None:
        self.state = LakeLook(self._own, {0: next_id})

    def from_export(self, next_id: int, exported: int, source: str = FROM_EXPORT) -> None:
        self._coordinator.commit_offsets(f"{EXPORTS}all", {("trips", 0): CommittedOffset(exported)})
        self.state = LakeLook(source, {0: next_id})


@pytest.fixture
def table(datastore: Datastore, coordinator: Coordinator) -> Table:
    return Table(datastore, coordinator)


def test_a_lake_has_passed_the_cells_below_the_position_of_its_table(table: Table) -> None:
    assert table.outlet.positions([0]) == {}, "there is no table yet"
    assert table.outlet.passed([Places(0, 0, 0)]) is None
    table.from_gateway(5)
    assert table.outlet.positions([0]) == {0: 5}
    assert table.outlet.passed([Places(0, 3, 4)]) == Passed("lake 'lake'")
    assert table.outlet.passed([Places(0, 3, 5)]) is None


@pytest.mark.parametrize("log", LOGS)
def test_a_table_that_was_made_again_answers_for_the_cells_that_it_has_now(
    table: Table, log: str
) -> None:
    move = table.from_gateway if log == "gateway" else lambda at: table.from_export(at, 10)
    move(9)
    assert table.outlet.passed([Places(0, 8, 8)]) is not None
    move(3)
    assert table.outlet.passed([Places(0, 8, 8)]) is None
    table.state = None
    assert table.outlet.positions([0]) == {}
    assert table.outlet.passed([Places(0, 8, 8)]) is None


@pytest.mark.parametrize(
    "source",
    [
        "another-store/trips/topic-of-the-gateway",
        "kafka-a/trips/topic-2",  # the topic was made again
        "kafka-b/trips/topic-1",
        "kafka-a/other/topic-1",
        "nonsense",
        "",
    ],
)
def test_a_table_of_another_log_never_answers(table: Table, source: str) -> None:
    table.from_export(9, 9, source)
    with pytest.raises(Unavailable, match="neither this store's"):
        table.outlet.positions([0])
    with pytest.raises(Unavailable, match="neither this store's"):
        table.outlet.passed([Places(0, 3, 3)])


def test_a_lake_of_an_export_has_passed_the_cells_below_both_positions(table: Table) -> None:
    table.from_export(9, exported=4)
    assert table.outlet.positions([0]) == {0: 4}
    assert table.outlet.passed([Places(0, 4, 4)]) is None
    table.from_export(4, exported=9)
    assert table.outlet.passed([Places(0, 4, 4)]) is None
    assert table.outlet.passed([Places(0, 3, 3)]) == Passed("lake 'lake'")


def test_cells_that_the_export_parked_or_began_behind_are_named(
    table: Table, datastore: Datastore
) -> None:
    cell = parked_cell(0, 5, group=f"{EXPORTS}all", error="too large")
    datastore.state.commit(dict(ParkedCells(datastore.state).entry(cell)))
    table.from_export(9, exported=9)
    assert table.outlet.passed([Places(0, 0, 8)]) == Passed(
        "lake 'lake'", [Place(0, 5)], [PlaceRange(0, 0, 1)]
    )


@pytest.mark.parametrize("log", LOGS)
def test_a_lake_is_not_credited_with_cells_that_were_trimmed(
    table: Table, datastore: Datastore, log: str
) -> None:
    if log == "gateway":
        table.from_gateway(9)
    else:
        table.from_export(9, exported=9)
    datastore.trim(0, 4)
    with pytest.raises(Trimmed, match=r"below 4.*lake 'lake'"):
        table.outlet.passed([Places(0, 3, 3)])
    assert table.outlet.passed([Places(0, 4, 4)]) == Passed("lake 'lake'")
