"""The test kit's storage engine whose master dies."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from cellfeed.store.cells.cell import new_cell
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.engines.sqlite.engine import SqliteEngine
from cellfeed.testing.failing_master import FailingMaster

CELL = new_cell(UUID(int=1), "BASE", 1, {})


def test_no_end_is_acknowledged_while_there_is_no_master(tmp_path: Path) -> None:
    minion = SqliteEngine(tmp_path, "trips", 2)
    engine = FailingMaster(minion)
    try:
        assert sorted(engine.acknowledged_ends()) == [0, 1]
        engine.lose(1, away_s=0.0)
        engine.put([CELL])
        assert {epoch for epoch, _ in engine.acknowledged_ends().values()} == {
            head.leader_epoch for head in engine.heads().values()
        }
        engine.lose(1, away_s=60.0)
        [result] = engine.put([CELL])
        assert result.outcome is Outcome.UNKNOWN
        assert engine.acknowledged_ends() == {}
    finally:
        engine.close()
