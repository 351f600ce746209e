"""The steps of an index's versions, on a state table in memory whose clock a test sets, and where
another process may write in between."""

from __future__ import annotations

import msgspec
import pytest

from cellfeed.store.errors import InvalidRequest, NotFound
from cellfeed.store.indexes.catalog import INDEXES, Catalog, restored_index
from cellfeed.store.indexes.definition import IndexDefinition
from cellfeed.store.indexes.definition_file import parse_definition
from cellfeed.store.indexes.query import REMEMBERED_S
from cellfeed.store.indexes.records import (
    BUILDING,
    CURRENT,
    DROPPING,
    GRACE_S,
    RETIRED,
    IndexRecord,
)
from tests.support.state_in_memory import StateInMemory


@pytest.fixture
def state() -> StateInMemory:
    return StateInMemory()


@pytest.fixture
def catalog(state: StateInMemory) -> Catalog:
    return Catalog(state, "trips")


def definition(field: str = "driver") -> IndexDefinition:
    return parse_definition(
        "{table: by_driver, datastore: trips, column_defs: [{column_name: BASE, fields: [{field:"
        f" {field}, type: string}}]}}]}}"
    )


def states(catalog: Catalog) -> dict[int, str]:
    return {each.number: each.state for each in catalog.get("by_driver").versions}


def test_a_version_that_was_replaced_is_kept_for_the_grace_and_no_longer(
    catalog: Catalog, state: StateInMemory
) -> None:
    catalog.create(definition())
    assert catalog.switch("by_driver", 1)
    catalog.create(definition("other"))
    assert catalog.switch("by_driver", 2)
    first, second = catalog.get("by_driver").versions
    assert (first.state, first.retired_at_us) == (RETIRED, state.at_us)
    end_us = state.at_us + int(GRACE_S * 1e6)
    assert [first.is_kept(at_us) for at_us in (state.at_us, end_us - 1, end_us)] == [
        True,
        True,
        False,
    ]
    assert second.is_kept(end_us)
    assert GRACE_S > 2 * REMEMBERED_S, "nobody asks it any more until then"


def test_a_switch_retires_older_versions_and_no_newer_one(catalog: Catalog) -> None:
    for field in "abcd":
        catalog.create(definition(field))
    assert catalog.switch("by_driver", 1)
    assert catalog.switch("by_driver", 3)
    assert states(catalog) == {1: RETIRED, 2: RETIRED, 3: CURRENT, 4: BUILDING}
    assert not catalog.switch("by_driver", 2), "it is not being built any more"
    assert states(catalog)[3] == CURRENT


def test_the_newest_unready_version_is_built(catalog: Catalog) -> None:
    catalog.create(definition("a"))
    catalog.create(definition("b"))
    building = catalog.get("by_driver").building
    assert building is not None
    assert building.number == 2


def test_a_version_that_is_being_dropped_is_neither_switched_to_nor_taken_for_a_new_one(
    catalog: Catalog,
) -> None:
    catalog.create(definition())
    catalog.begin_drop("by_driver", 1)
    assert not catalog.switch("by_driver", 1)
    assert states(catalog) == {1: DROPPING}
    assert catalog.create(definition()).number == 2
    assert catalog.create(definition()).number == 2, "the same definition makes no other version"


def test_of_two_changes_at_once_none_is_lost(catalog: Catalog, state: StateInMemory) -> None:
    state.between = lambda: Catalog(state, "trips").create(definition("a"))
    assert catalog.create(definition("b")).number == 2
    state.between = lambda: Catalog(state, "trips").throttle("by_driver", 1, 5.0)
    assert catalog.switch("by_driver", 2)
    first, second = catalog.get("by_driver").versions
    assert (first.cells_per_s, first.state, second.state) == (5.0, RETIRED, CURRENT)


def test_numbers_of_dropped_versions_are_never_used_again(catalog: Catalog) -> None:
    catalog.create(definition())
    catalog.begin_drop("by_driver")
    catalog.end_drop("by_driver", 1)
    with pytest.raises(NotFound):
        catalog.get("by_driver")
    assert catalog.create(definition()).number == 2


def test_another_datastores_definition_is_refused(state: StateInMemory) -> None:
    with pytest.raises(InvalidRequest, match="is for datastore 'trips', this one is 'rides'"):
        Catalog(state, "rides").create(definition())


def test_a_restored_index_is_built_again_as_it_was_current_under_a_number_beyond_all(
    catalog: Catalog, state: StateInMemory
) -> None:
    catalog.create(definition("a"), cells_per_s=7.0)
    catalog.switch("by_driver", 1)
    catalog.create(definition("b"))
    entry = state.entries[INDEXES + "by_driver"]
    before, value = restored_index(entry.key, entry.value, 9)
    after = msgspec.json.decode(value, type=IndexRecord)
    assert [version.number for version in before.versions] == [1, 2]
    [restored] = after.versions
    assert restored.definition == definition("a")
    assert (restored.state, restored.created_at_us, restored.cells_per_s) == (BUILDING, 9, 7.0)
    assert restored.number > before.next_number + 100, "versions of after the backup had these"
    assert after.next_number == restored.number + 1
