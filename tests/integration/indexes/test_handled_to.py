"""How far an index is known to have handled each log, with nothing left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import UUID

import pytest

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.history import Operator
from cellfeed.bridge.outlets.handled_to import handled_to
from cellfeed.bridge.triggers.operate.reset import Reset
from cellfeed.bridge.triggers.parked.cell import ParkedCell
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.store.datastore import Datastore
from cellfeed.store.indexes.definition_file import parse_definition
from tests.support.kept_index import caught_up, index_worker, made_index
from tests.support.parked import parked_cell

DEFINITION = parse_definition(
    "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields: [{field:"
    " driver, type: string}]}]}"
)
GROUP = "index.by_driver.v1"


class Kept:
    """An index at the ends of two logs, kept by nobody any more."""

    def __init__(self, store: Datastore, coordinator: Coordinator) -> None:
        self.store = store
        self.coordinator = coordinator
        self.ends = {shard: head.watermark for shard, head in store.heads().items()}
        self.parked = ParkedCells(store.state)

    def handled(self) -> Mapping[int, int]:
        return handled_to(self.store, self.coordinator)(GROUP)

    def park(self) -> ParkedCell:
        cell = parked_cell(
            1, 0, group=GROUP, topic=self.store.name, row_key=str(UUID(int=1)), error="a test"
        )
        self.store.state.commit(self.parked.entry(cell))
        return cell


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with Datastore.open_embedded(tmp_path, shards=2) as store:
        with index_worker(store) as coordinator:
            version = made_index(store, DEFINITION)
            store.put_cells([(UUID(int=n), "BASE", 1, {"driver": "ann"}) for n in range(20)])
            caught_up(store, version)
        yield Kept(store, coordinator)


def test_the_handled_location_of_an_index_is_that_of_its_offsets(kept: Kept) -> None:
    assert min(kept.ends.values()) > 0
    assert kept.handled() == kept.ends


def test_a_group_that_never_began_has_handled_nothing(kept: Kept) -> None:
    assert handled_to(kept.store, kept.coordinator)("index.by_driver.v2") == {}


def test_a_shard_with_a_parked_or_skipped_cell_is_left_out(kept: Kept) -> None:
    cell = kept.park()
    assert kept.handled() == {0: kept.ends[0]}
    kept.parked.skip(GROUP, cell.cell_id, "a test")
    assert kept.handled() == {0: kept.ends[0]}


def test_a_parked_cell_that_was_run_after_all_is_handled(kept: Kept) -> None:
    kept.parked.resolved(kept.park())
    assert kept.handled() == kept.ends


def test_a_shard_that_somebody_moved_the_group_in_is_left_out(kept: Kept) -> None:
    by = Operator("somebody@here", "a test")
    Reset(kept.store, kept.coordinator, GROUP, by).run({0: kept.ends[0]})
    assert kept.handled() == {1: kept.ends[1]}
