"""Trigger programs for the tests: each run is one line appended to a file, so that every run of
every process is seen."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from cellfeed.bridge.triggers.program import RetryPolicy, Trigger, trigger
from cellfeed.store.cells.cell import Cell
from cellfeed.store.errors import StorageUnavailable


def recording(settings: Mapping[str, Any]) -> list[Trigger]:
    """Records ``<shard> <added_id> <pid>``; fails for bodies with ``poison``, waits ``run_s`` in
    each cell."""
    path, run_s = Path(settings["path"]), float(settings.get("run_s", 0))

    tries: dict[UUID, int] = {}

    @trigger(
        column="BASE",
        group="recorder",
        retry=RetryPolicy(2, 0.01, 0.01),
        parked_max=int(settings.get("parked_max", 100)),
        parked_retry_s=float(settings.get("parked_retry_s", 60)),
        start=settings.get("start", "earliest"),
        pause_rows=None,  # tests put many bad cells at once, and expect all of them parked
    )
    def record(row_key: UUID, *, cell: Cell) -> None:
        tries[row_key] = tries.get(row_key, 0) + 1
        if tries[row_key] <= cell.body.get("away", 0):
            raise StorageUnavailable("the store is away, says the test")
        if cell.body.get("poison") and not (path.parent / "antidote").exists():
            raise ValueError(f"poison in {row_key}")
        time.sleep(run_s)
        line = f"{cell.shard} {cell.added_id} {os.getpid()}\n".encode()
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line)
        os.close(descriptor)

    return [record.__cellfeed_trigger__]  # type: ignore[attr-defined]
