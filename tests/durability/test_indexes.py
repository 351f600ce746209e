"""The file of indexes after every power cut of a real run: cells that were saved as indexed are in
the index (I18)."""

from __future__ import annotations

import pytest

from cellfeed.store.datastore import Datastore
from tests.durability.conftest import Cuts
from tests.durability.programs import INDEX_ROWS

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_entries_of_cells_that_were_saved_as_indexed_survive_a_power_cut(cuts: Cuts) -> None:
    most = 0
    for cut in cuts("index"):
        told = max(
            (int(line.split()[1]) for line in cut.said if line.startswith("indexed")), default=0
        )
        with Datastore.open_embedded(cut.place / "run", "trips", 1) as opened:
            location = opened.state.get("location")
            saved = int(location.value) if location else 0
            assert saved >= told, f"{cut}: a location that was told is lost"
            if "created" not in cut.said:
                continue
            version = opened.indexes.version(opened.indexes.catalog.get("by_driver").versions[0])
            entries = {
                entry.row_key: entry
                for entry in opened.engine.indexes.walk(version.table, 0, None, 1_000)
                if entry.live
            }
            indexed = {number for number in range(INDEX_ROWS) if number.to_bytes(16) in entries}
            assert indexed >= set(range(saved)), (
                f"{cut}: entries of cells that were saved as indexed are lost"
            )
            assert indexed <= set(range(opened.heads()[0].watermark)), (
                f"{cut}: there are entries of cells that are not there"
            )
        most = max(most, told)
    assert most == INDEX_ROWS
