"""A gateway's block files after every power cut of a real run: nothing of them is synced, so any
may be gone or broken, and none is believed then."""

from __future__ import annotations

import time

import pytest

from cellfeed.bridge.gateway.log.block_files import BlockFiles
from cellfeed.bridge.gateway.log.encode import encode_range
from cellfeed.store.datastore import Datastore
from tests.durability.conftest import Cuts
from tests.durability.disk import Unsynced
from tests.durability.programs import ALL_CELLS, BLOCK_ROWS, BLOCK_STEP

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def loaded(files: BlockFiles) -> BlockFiles:
    """When its folder has been looked through."""
    deadline_s = time.monotonic() + 10
    while not files._loaded:
        assert time.monotonic() < deadline_s, "the folder of blocks was not looked through"
        time.sleep(0.001)
    return files


def test_a_block_read_after_a_power_cut_equals_the_stores_cells(cuts: Cuts) -> None:
    read, damaged = 0, 0
    for cut in cuts("blocks"):
        with Datastore.open_embedded(cut.place / "run", "trips", 1) as opened:
            end = opened.heads()[0].watermark
            files = loaded(BlockFiles(cut.place / "blocks", "gw", opened.engine, 1 << 30))
            for start in range(0, BLOCK_ROWS, BLOCK_STEP):
                block = files.read(files.key(ALL_CELLS, 0, start, start + BLOCK_STEP), 0)
                if block is not None:
                    assert end == BLOCK_ROWS
                    assert block == encode_range(
                        opened.engine, ALL_CELLS, 0, start, start + BLOCK_STEP, 0
                    ), f"{cut}: a kept block is another one"
                    read += 1
            files.close()
            damaged += files.counts.damaged
            if cut.said == ["blocks"] and cut.unsynced is Unsynced.KEPT:
                assert files.counts.read == BLOCK_ROWS // BLOCK_STEP - 1
    assert read
    assert damaged, "no cut left a broken file: this test shows nothing"
