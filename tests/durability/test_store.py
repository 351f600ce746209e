"""The embedded store after every power cut of a real run: what was acknowledged is there, and
nothing else (I1, I2, I4)."""

from __future__ import annotations

import pytest

from cellfeed.store.cells.cell import StoredCell, Triple
from cellfeed.store.datastore import Datastore
from tests.durability.conftest import Cuts
from tests.durability.programs import CELLS
from tests.support.rides import ride

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_cells_and_entries_that_were_acknowledged_survive_a_power_cut(cuts: Cuts) -> None:
    put = {ride(number).triple: number for number in range(CELLS)}
    most = 0
    for cut in cuts("store"):
        words = [line.split() for line in cut.said]
        acknowledged = {
            int(number): (int(shard), int(added_id))
            for kind, number, *place in words
            if kind == "cell"
            for shard, added_id in [place]
        }
        with Datastore.open_embedded(cut.place / "run", "trips", 4) as opened:
            found: dict[int, tuple[int, int]] = {}
            for shard, head in opened.heads().items():
                cells: list[StoredCell] = opened.engine.scan(shard, 0, 1_000)
                assert [cell.added_id for cell in cells] == list(range(head.watermark)), (
                    f"{cut}: the log has a hole"
                )
                found |= {
                    put[Triple(cell.row_key, cell.column_name, cell.ref_key)]: (
                        shard,
                        cell.added_id,
                    )
                    for cell in cells
                }
            assert found.items() >= acknowledged.items(), f"{cut}: acknowledged cells are lost"
            assert set(found) - set(acknowledged) <= {len(acknowledged)}, (
                f"{cut}: cells are there that were never put"
            )
            for kind, number, *_ in words:
                if kind == "entry":
                    entry = opened.state.get(f"entry/{number}")
                    assert entry is not None, f"{cut}: an acknowledged entry is lost"
                    assert entry.value == number.encode()
        most = max(most, len(acknowledged))
    assert most == CELLS
