"""A log lacks a cell where an id is missing that no restore left out: a pure rule over the cells in
order."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfeed.store.cells.cell import ERASED_JSON, RESTORED_COLUMN, StoredCell
from cellfeed.store.cells.log_gaps import GapCheck, NamedDamage, named, named_damage
from cellfeed.store.engines.contract.scan_gaps import refuse_gap
from cellfeed.store.engines.mysql import cells as mysql_cells
from cellfeed.store.engines.sqlite import cells as sqlite_cells
from cellfeed.store.errors import DataDamaged


def note(lost_from: int, lost_to: int) -> bytes:
    return json.dumps({"lost_from": lost_from, "lost_to": lost_to}).encode()


def missing(cells: Iterable[tuple[int, str, bytes]], from_id: int, below_id: int) -> list[range]:
    check = GapCheck(0, from_id)
    for cell in cells:
        check.add(*cell)
    check.end(below_id)
    return check.missing


def test_ids_that_a_restore_left_out_are_not_missing() -> None:
    assert (
        missing(
            [(0, "BASE", b"{}"), (50, RESTORED_COLUMN, note(1, 49)), (51, "BASE", b"{}")], 0, 52
        )
        == []
    )
    assert missing([(50, RESTORED_COLUMN, note(1, 49))], 20, 51) == [], (
        "the log may start among them, after a trim"
    )
    assert missing([(50, RESTORED_COLUMN, ERASED_JSON)], 20, 51) == []


@pytest.mark.parametrize(
    "body", [note(3, 49), note(1, 48), b"{}", b'{"lost_from": "x", "lost_to": 49}', b"[]"]
)
def test_a_cell_that_does_not_announce_a_gap_explains_none(body: bytes) -> None:
    assert missing([(0, "BASE", b"{}"), (50, RESTORED_COLUMN, body)], 0, 51) == [range(1, 50)]
    assert missing([(50, "BASE", note(0, 49))], 0, 51) == [range(50)]


@given(st.sets(st.integers(0, 40)), st.integers(0, 40))
def test_exactly_the_absent_ids_are_missing(lost: set[int], start: int) -> None:
    there = [number for number in range(start, 41) if number not in lost]
    found = missing([(number, "BASE", b"{}") for number in there], start, 41)
    assert {number for each in found for number in each} == {
        number for number in lost if number >= start
    }


def test_shard_and_ranges_are_named() -> None:
    assert named(3, [range(5, 10), range(20, 21)]) == "shard 3 lacks cells 5 to 9, 20 to 20"
    assert named(3, [range(n, n + 1) for n in range(0, 24, 2)]).endswith(", and 2 more ranges")


def test_the_ids_that_errors_name_are_read_from_their_text() -> None:
    with pytest.raises(DataDamaged) as lost:
        refuse_gap(7, 3, [], 9, "a cure")
    assert named_damage(f"cluster c1, node b: {lost.value}") == NamedDamage(
        7, range(3, 9), is_lost=True
    )
    for damaged in (sqlite_cells.stored_cell, mysql_cells.stored_cell):
        with pytest.raises(DataDamaged) as told:
            damaged(4, (12, bytes(16), b"BASE", 1, 1, b"", 5))
        assert named_damage(str(told.value)) == NamedDamage(4, range(12, 13), is_lost=False)
    assert named_damage("the file is damaged") is None


@pytest.mark.parametrize("column", ["BASE", RESTORED_COLUMN])
def test_a_cell_from_below_the_scan_is_damage_and_no_end_of_a_gap(column: str) -> None:
    """A search that a damaged page leads astray; the cell of a restore explains ids before it."""
    cells = [
        StoredCell(added_id, b"r" * 16, column if number == 0 else "BASE", 1, 0, b"{}")
        for number, added_id in enumerate((146, 147))
    ]
    with pytest.raises(DataDamaged, match="gives added_id 146 where 246 was asked for"):
        refuse_gap(0, 246, cells, 300, "Restore it")
