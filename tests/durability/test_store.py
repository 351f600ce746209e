"""The embedded store after every power cut of a real run, and each tear of a write: every
acknowledged cell is there, and nothing else (I1, I2, I3, I4)."""

from __future__ import annotations

from typing import Final

import pytest

from cellfeed.store.cells.body_codec import decode_body
from cellfeed.store.cells.cell import StoredCell, Triple
from cellfeed.store.datastore import Datastore
from tests.durability.conftest import Cuts
from tests.durability.disk import Cut
from tests.durability.programs import CELLS, FEW_CELLS
from tests.support.rides import ride

pytestmark = [pytest.mark.integration, pytest.mark.slow]


PUT: Final = {ride(number).triple: number for number in range(CELLS)}


def test_cells_and_entries_that_were_acknowledged_survive_a_power_cut(cuts: Cuts) -> None:
    assert max(acknowledged_and_found(cut, shards=4) for cut in cuts("store")) == CELLS


def test_cells_that_were_acknowledged_survive_each_tear_of_a_write(tears: Cuts) -> None:
    found = [acknowledged_and_found(cut, shards=1) for cut in tears("few")]
    assert max(found) == FEW_CELLS - 1, "the last write comes before the last cell is acknowledged"
    assert len(found) > 300, "few writes were torn: this test shows nothing"


def acknowledged_and_found(cut: Cut, shards: int) -> int:
    """How many cells had been acknowledged; they are there, in the log and by key, and so are the
    entries."""
    words = [line.split() for line in cut.said]
    acknowledged = {
        int(number): (int(shard), int(added_id))
        for kind, number, *place in words
        if kind == "cell"
        for shard, added_id in [place]
    }
    with Datastore.open_embedded(cut.place / "run", "trips", shards) as opened:
        found: dict[int, tuple[int, int]] = {}
        for shard, head in opened.heads().items():
            cells: list[StoredCell] = opened.engine.scan(shard, 0, 1_000)
            assert [cell.added_id for cell in cells] == list(range(head.watermark)), (
                f"{cut}: the log has a hole"
            )
            found |= {PUT[_triple(cell)]: (shard, cell.added_id) for cell in cells}
            by_key = opened.engine.get([_triple(cell) for cell in cells])
            assert [each and each.cell for each in by_key] == cells, (
                f"{cut}: a cell by key is another one than in the log"
            )
            assert all(decode_body(cell.body) == _body(PUT[_triple(cell)]) for cell in cells), (
                f"{cut}: a body is another one"
            )
        assert found.items() >= acknowledged.items(), f"{cut}: acknowledged cells are lost"
        assert set(found) - set(acknowledged) <= {len(acknowledged)}, (
            f"{cut}: cells are there that were never put"
        )
        for kind, number, *_ in words:
            if kind == "entry":
                entry = opened.state.get(f"entry/{number}")
                assert entry is not None, f"{cut}: an acknowledged entry is lost"
                assert entry.value == number.encode()
    return len(acknowledged)


def _triple(cell: StoredCell) -> Triple:
    return Triple(cell.row_key, cell.column_name, cell.ref_key)


def _body(number: int) -> bytes:
    return ride(number).body_json
