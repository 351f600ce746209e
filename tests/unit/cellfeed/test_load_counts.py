"""The counts of a load and of a look at a file before it, and the size of batches."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

import pytest

from cellfeed.loading import load
from cellfeed.loading.look import look_at, was_loaded
from cellfeed.loading.report import LoadReport
from cellfeed.loading.spec import LineCell
from cellfeed.store.cells.cell import new_cell
from cellfeed.store.datastore import Datastore

ROW = UUID(int=7)


def lines(*bodies: dict[str, Any]) -> list[LineCell]:
    """A line for each, with ref keys from 1 on."""
    return [
        LineCell(number, new_cell(ROW, "BASE", number, body), number)
        for number, body in enumerate(bodies, 1)
    ]


def test_a_look_shows_the_effects_of_a_load(datastore: Datastore) -> None:
    datastore.put_cell(ROW, "BASE", 1, {"n": 1})
    datastore.put_cell(ROW, "BASE", 2, {"n": 2})
    seen = look_at(lines({"n": 1}, {"n": 0}, {"n": 3}), datastore)
    assert (seen.would.exists, seen.would.conflicts, seen.would.stored) == (1, 1, 1)
    [problem] = seen.would.problems
    assert problem.line == 2


def test_a_file_counts_as_loaded_where_its_first_cells_are_stored(
    datastore: Datastore,
) -> None:
    def loaded(*bodies: dict[str, Any]) -> bool:
        return was_loaded(cast("Any", lines(*bodies)), datastore)

    assert not loaded()
    assert not loaded({"n": 1})
    datastore.put_cell(ROW, "BASE", 1, {"n": 1})
    assert loaded({"n": 1})
    assert not loaded({"n": 2})
    assert not loaded({"n": 1}, {"n": 2})


def test_a_load_that_was_stopped_is_not_complete() -> None:
    assert LoadReport(stored=3).complete
    assert not LoadReport(stored=3, stopped_behind=3).complete
    assert not LoadReport(stored=3, unknown=1).complete


def test_a_batch_has_at_most_the_bytes_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BATCH_BYTES_MAX", 20)
    given = lines(*({"n": "x" * 10} for _ in range(5)))
    found = list(load._batches(iter(given)))
    assert [len(batch) for batch in found] == [2, 2, 1]
    assert [line for batch in found for line in batch] == given
