"""``python -m tests.faults.erase_process DIRECTORY [ROW]``: erases a row, or ends every erasure
that is on record, as a worker does."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.typed.rejected_cells import forget_row
from cellfeed.store import erasures
from cellfeed.store.datastore import Datastore
from cellfeed.store.erasures import ErasureJob
from cellfeed.store.indexes import records
from tests.support.personal_data import SHARDS


def main(directory: str, row: str = "") -> None:
    """See the module."""
    with (
        patch.object(records, "GRACE_S", 0.0),
        Datastore.open_embedded(Path(directory), shards=SHARDS) as datastore,
    ):
        datastore.when_erased(ParkedCells(datastore.state).forget_row)
        datastore.when_erased(partial(forget_row, datastore.state))
        if row:
            datastore.erase_row(UUID(row))
            return
        with patch.object(erasures, "AGAIN_AFTER_S", 0.0):
            ended = ErasureJob(datastore.unended_erasures, datastore.end_erasure).look()
        print(ended)


if __name__ == "__main__":
    main(*sys.argv[1:])
