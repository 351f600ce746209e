"""The typed tables of a lake, on both formats: each cell once, also after a death at every step."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cellfeed.consumers.lake.open_table import LakeTables
from cellfeed.consumers.lake.typed import following, following_table
from cellfeed.consumers.lake.typed.column_kinds import LATEST, PARKED, latest_kind
from cellfeed.store.failpoints import FailpointReached, clear_failpoints, set_failpoint
from tests.support.lake_tables import FORMATS, SOURCE
from tests.support.typed_lake import V2, Lake

pytestmark = pytest.mark.parametrize("kind", FORMATS)

DAY = "2026-11-28"


@pytest.fixture
def lake(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(following, "SCHEMAS_LOOK_S", 0.0)
    return Lake(tmp_path, kind)


def fare(cents: Any, **more: Any) -> dict[str, Any]:
    return {"cents": cents, "day": DAY, **more}


def test_each_cell_of_the_column_is_a_typed_row_and_the_newest_of_each_row_key_is_latest(
    lake: Lake,
) -> None:
    lake.put(1, 0, fare(100))
    lake.put(1, 1, {"x": 1}, "OTHER")
    lake.put(2, 5, fare(200), shard=3)
    lake.put(1, 1, fare(150))
    lake.follow()
    first, second, third = lake.rows()
    assert (first["cents"], first["day"], first["ref_key"]) == (100, date(2026, 11, 28), 0)
    assert (second["cents"], second["schema_version"]) == (150, 1)
    assert (third["shard"], third["added_id"], third["cents"]) == (3, 0, 200)
    assert [row["cents"] for row in lake.rows(LATEST)] == [150, 200]
    assert lake.progress.tables["fare"].rows == 3


def test_a_late_lower_ref_key_overwrites_nothing_and_a_higher_one_replaces_the_row(
    lake: Lake,
) -> None:
    lake.put(1, 5, fare(100))
    lake.put(2, 1, fare(200))
    lake.follow()
    lake.put(1, 4, fare(90))
    lake.put(2, 2, fare(210))
    lake.put(2, 3, fare(220))
    lake.follow()
    assert [(row["ref_key"], row["cents"]) for row in lake.rows(LATEST)] == [(5, 100), (3, 220)]
    assert lake.ids() == [0, 1, 2, 3, 4]


def test_an_erased_row_leaves_latest_and_comes_back_with_no_cell_before_its_mark(
    lake: Lake,
) -> None:
    lake.put(1, 0, fare(100))
    lake.put(2, 0, fare(200))
    lake.follow()
    lake.put(1, 9, fare(190))
    lake.erase(1)
    lake.follow()
    assert [row["cents"] for row in lake.rows(LATEST)] == [200]
    lake.begin()
    lake.catch_up()
    assert [row["cents"] for row in lake.rows(LATEST)] == [200]


def test_small_files_of_latest_become_one(lake: Lake) -> None:
    for row in range(20):
        lake.put(row, 0, fare(row))
        lake.follow()
    assert [row["cents"] for row in lake.rows(LATEST)] == list(range(20))
    tables = lake.progress.tables
    assert tables["fare_latest"].commits == 20
    found = LakeTables(lake.place).find(latest_kind("FARE", ()))
    assert found is not None
    assert len(found.look().files()) <= 8


STEPS = ("lake_typed.parked", "lake_typed.added", "lake_typed.merged", "lake.append.looked")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("passes", [1, 2])
def test_a_loader_that_died_between_two_tables_leaves_each_at_its_own_place_and_all_catch_up(
    step: str, passes: int, lake: Lake
) -> None:
    for row in range(6):
        lake.put(row, 0, fare(row))
    lake.put(6, 0, fare("none"))
    lake.follow()
    for row in range(6):
        lake.put(row, 1, fare(10 + row))
    lake.put(7, 0, fare("none"))
    lake.put(8, 0, fare(8), shard=1)
    made = lake.commit()
    set_failpoint(step, "raise", passes)
    try:
        lake.typed.follow(made.starts, made.ends, lake.new_rows, SOURCE)
        died = False
    except FailpointReached:
        died = True
    finally:
        clear_failpoints()
    assert died or passes == 2
    lake.begin()
    lake.catch_up()
    fits = [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12]
    assert lake.ids() == [*fits, 0]
    assert lake.ids(PARKED) == [6, 13]
    assert [row["cents"] for row in lake.rows(LATEST)] == [10, 11, 12, 13, 14, 15, 8]


def test_cells_that_fit_no_schema_are_parked_with_the_reason_and_loaded_once_it_is_mended(
    lake: Lake,
) -> None:
    lake.put(1, 0, fare(100))
    lake.put(1, 1, fare(120, note="tip"))
    lake.put(2, 0, fare(1.5))
    lake.follow()
    assert lake.ids() == [0]
    assert lake.ids(PARKED) == [1, 2]
    assert "note is a member that the schema does not have" in lake.rows(PARKED)[0]["reason"]
    assert lake.progress.tables["fare_parked"].parked == 2
    lake.versions.append(V2)
    lake.put(3, 0, fare(300, note="new"))
    lake.follow()
    lake.catch_up()
    assert [(row["added_id"], row["note"]) for row in lake.rows() if row.get("note")] == [
        (1, "tip"),
        (3, "new"),
    ]
    assert sorted(lake.ids()) == [0, 1, 3]
    assert lake.ids(PARKED) == [2]
    assert [row["cents"] for row in lake.rows(LATEST)] == [120, 300]
    assert lake.progress.tables["fare_parked"].parked == 1


@pytest.mark.parametrize("step", ["lake_typed.mended.added", "lake_typed.mended.latest"])
def test_a_parked_cell_is_loaded_once_by_a_loader_that_died_before_it_took_it_off(
    step: str, lake: Lake
) -> None:
    lake.put(1, 0, fare(100, note="tip"))
    lake.put(2, 0, fare(1.5))
    lake.follow()
    lake.versions.append(V2)
    set_failpoint(step, "raise")
    with pytest.raises(FailpointReached):
        lake.catch_up()
    clear_failpoints()
    assert lake.ids() == [0]
    assert lake.ids(PARKED) == [0, 1], "not taken off yet"
    lake.begin()
    lake.catch_up()
    assert lake.ids() == [0]
    assert lake.ids(PARKED) == [1]
    assert lake.ids(LATEST) == [0]


def test_a_parked_cell_of_a_row_that_was_erased_meanwhile_is_not_loaded(lake: Lake) -> None:
    lake.put(1, 0, fare(100, note="secret"))
    lake.follow()
    lake.erase(1)
    lake.versions.append(V2)
    lake.follow()
    lake.catch_up()
    assert lake.ids() == lake.ids(LATEST) == lake.ids(PARKED) == []


def test_a_loader_that_was_paused_while_another_one_worked_adds_no_row_again(lake: Lake) -> None:
    lake.put(1, 0, fare(1))
    lake.follow()
    paused, rows = lake.typed, lake.new_rows
    lake.put(2, 0, fare(2))
    made = lake.commit()
    rows = lake.new_rows
    lake.begin()
    lake.catch_up()
    assert lake.ids() == [0, 1]
    paused.follow(made.starts, made.ends, rows, SOURCE)
    assert lake.ids() == lake.ids(LATEST) == [0, 1]


def test_a_column_whose_schema_comes_late_gets_all_cells_that_the_lake_has(lake: Lake) -> None:
    lake.versions.clear()
    for row in range(5):
        lake.put(row, 0, fare(row), shard=row % 2)
    lake.follow()
    lake.versions.append(V2)
    lake.begin()
    lake.catch_up()
    assert sorted(lake.ids()) == [0, 0, 1, 1, 2]
    assert len(lake.rows(LATEST)) == 5


def test_a_cell_that_was_parked_before_a_death_is_in_one_table_when_it_fits_meanwhile(
    lake: Lake,
) -> None:
    lake.put(1, 0, fare(100, note="tip"))
    lake.put(2, 0, fare(200))
    made = lake.commit()
    set_failpoint("lake_typed.parked", "raise")
    with pytest.raises(FailpointReached):
        lake.typed.follow(made.starts, made.ends, lake.new_rows, SOURCE)
    clear_failpoints()
    assert lake.ids(PARKED) == [0]
    lake.versions.append(V2)
    lake.begin()
    lake.typed.follow(made.starts, made.ends, lake.new_rows, SOURCE)
    assert (lake.ids(), lake.ids(PARKED)) == ([1], [0]), "as it was judged first"
    lake.catch_up()
    assert (sorted(lake.ids()), lake.ids(PARKED)) == ([0, 1], [])
    assert lake.ids(LATEST) == [0, 1]


def test_a_step_without_cells_of_the_column_makes_no_commit_and_is_not_forgotten(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        lake.put(n, 0, {"x": n}, "OTHER")
        lake.follow()
    assert lake.progress.tables["fare"].commits == 0
    lake.put(1, 0, fare(100))
    lake.follow()
    assert (lake.progress.tables["fare"].commits, lake.ids()) == (1, [3])
    monkeypatch.setattr(following_table, "EMPTY_CELLS_MAX", 1)
    lake.put(9, 0, {"x": 1}, "OTHER")
    lake.follow()
    assert lake.progress.tables["fare"].commits == 2, "its position is committed alone"
    lake.begin()
    lake.catch_up()
    assert lake.ids() == lake.ids(LATEST) == [3]


def test_a_table_that_lacks_a_step_takes_none_after_it(lake: Lake) -> None:
    lake.put(1, 0, fare(100))
    lake.commit()
    lake.put(2, 0, fare(200))
    lake.follow()
    assert lake.ids() == lake.ids(LATEST) == []
    lake.catch_up()
    assert lake.ids() == lake.ids(LATEST) == [0, 1]
