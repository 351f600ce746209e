"""A trigger that keeps the order by row key: some cells fail until a file says that the cause is
mended; each run is a line ``<row key> <ref key> <pid>``."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from cellfeed.bridge.triggers.program import Trigger, trigger
from cellfeed.bridge.triggers.retry import ProcessEnded, RetryPolicy
from cellfeed.store.cells.cell import Cell


def ordered(settings: Mapping[str, Any]) -> list[Trigger]:
    """Fails for bodies with ``bad`` as long as there is no ``antidote`` in the folder."""
    path = Path(settings["path"])

    @trigger(
        column="BASE",
        group="ordered",
        order_by_row_key=True,
        retry={ProcessEnded: RetryPolicy(10), Exception: RetryPolicy(1)},
        parked_max=1000,
        parked_retry_s=0.5,
    )
    def run(row_key: UUID, *, cell: Cell) -> None:
        if cell.body.get("bad") and not (path.parent / "antidote").exists():
            raise ValueError(f"cell {cell.ref_key} of {row_key} is bad")
        time.sleep(0.002)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{row_key} {cell.ref_key} {os.getpid()}\n".encode())
        os.close(descriptor)

    return [run.__cellfeed_trigger__]  # type: ignore[attr-defined]
