"""Cells of a put whose triple is stored, comes twice in the call, or is of an erased row."""

from __future__ import annotations

from uuid import UUID

import pytest

from cellfeed.store.cells.cell import new_cell
from cellfeed.store.cells.put_result import Outcome, PutResult
from cellfeed.store.engines.contract import repeated_cells
from cellfeed.store.engines.contract.repeated_cells import (
    StoredTriple,
    outcomes_before,
    without_erased,
)
from cellfeed.store.errors import DataDamaged, ProtectData

ROW = UUID(int=1)
CELL = new_cell(ROW, "BASE", 1, {"n": 1})


def test_every_later_cell_of_a_triple_names_the_first() -> None:
    other = new_cell(ROW, "BASE", 2, {"n": 1})
    assert outcomes_before([CELL, other, CELL, CELL], {}) == [None, None, 0, 0]


def test_an_erased_row_is_refused_before_any_other_answer() -> None:
    stored = PutResult(Outcome.EXISTS, 3, 7)
    kept = new_cell(UUID(int=2), "BASE", 1, {"n": 1})
    answers = without_erased(
        [CELL, CELL, CELL, kept], [3, 3, 3, 3], [stored, 0, None, stored], {ROW.bytes}
    )
    refused = [each for each in answers[:3] if isinstance(each, PutResult)]
    assert len(refused) == 3
    assert {each.outcome for each in refused} == {refused[0].outcome} != {Outcome.EXISTS}
    assert answers[3] == stored


@pytest.mark.parametrize("error", [DataDamaged("rotten"), ProtectData("of a later version")])
def test_an_unreadable_stored_body_fails_only_its_own_put(
    monkeypatch: pytest.MonkeyPatch, error: DataDamaged | ProtectData
) -> None:
    def decode(body: bytes) -> bytes:
        if body == b"bad":
            raise error
        return CELL.body_json

    monkeypatch.setattr(repeated_cells, "decode_body", decode)
    well = new_cell(ROW, "BASE", 2, {"n": 1})
    stored = {CELL.triple: StoredTriple(3, 7, b"bad"), well.triple: StoredTriple(3, 8, b"good")}
    failed, exists = outcomes_before([CELL, well], stored)
    assert isinstance(failed, PutResult)
    assert (failed.outcome, type(failed.error)) == (Outcome.FAILED, type(error))
    assert exists == PutResult(Outcome.EXISTS, 3, 8)
