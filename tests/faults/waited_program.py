"""The trigger of fault runs on waits: the effect of a cell is a line in a file, written before the
function returns. A line is whole or not there: it is one write to a file opened for appending."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from cellfeed.bridge.triggers.program import Trigger, trigger
from cellfeed.store.cells.cell import Cell

GROUP: Final = "waited"
LINE_BYTES: Final = 20
_RUN_S: Final = 0.001


def program(settings: Mapping[str, Any]) -> list[Trigger]:
    """Settings: ``file``, where the effects go."""
    effects = os.open(Path(settings["file"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @trigger(column="BASE", group=GROUP)
    def note(row_key: UUID, *, cell: Cell) -> None:
        del row_key
        time.sleep(_RUN_S)  # so that an answer before its end is noticed
        os.write(effects, line_of(cell.shard, cell.added_id))

    found: Trigger = note.__cellfeed_trigger__  # type: ignore[attr-defined]
    return [found]


def line_of(shard: int, added_id: int) -> bytes:
    """The effect of a cell, ``LINE_BYTES`` long."""
    return f"{shard:5d} {added_id:13d}\n".encode()
