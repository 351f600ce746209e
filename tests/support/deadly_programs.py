"""A trigger program with cells that end their process or hang: each call is a line when it begins
and one when it ends, so that every one is seen."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from cellfeed.bridge.triggers.program import Trigger, trigger
from cellfeed.bridge.triggers.retry import ProcessEnded, RetryPolicy, TimedOut
from cellfeed.store.cells.cell import Cell

TIMED_OUT_TRIES: Final = 2
ENDED_TRIES: Final = 2


def hang_around() -> None:
    """Never returns."""
    while True:
        time.sleep(3600)


def exit_soon() -> None:
    time.sleep(0.2)
    os._exit(9)


def raise_it(error: BaseException) -> None:
    raise error


_DEEDS: Final[Mapping[str, Callable[[], object]]] = {
    "exit": lambda: os._exit(9),
    "crash": lambda: ctypes.string_at(0),
    "kill": lambda: os.kill(os.getpid(), 9),
    "hang": hang_around,
    "slow": lambda: time.sleep(1.0),
    "nap": lambda: time.sleep(0.5),
    "exit soon": exit_soon,
    "interrupt": lambda: raise_it(KeyboardInterrupt()),
    "cancel": lambda: raise_it(asyncio.CancelledError()),
    "close": lambda: raise_it(GeneratorExit()),
    "leave": lambda: sys.exit(3),
}
"""The acts that a cell's body may ask for, under ``do``."""


def deadly(settings: Mapping[str, Any]) -> list[Trigger]:
    """Obeys a cell's body. With ``harmless`` in the folder nothing ends or hangs any more;
    ``batch`` makes batches of that many cells."""
    path = Path(settings["path"])
    size = settings.get("batch")

    def say(what: str, cell: Cell) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, f"{what} {cell.shard} {cell.added_id} {os.getpid()}\n".encode())
        os.close(descriptor)

    def run(cells: Sequence[Cell]) -> None:
        for cell in cells:
            say("begun", cell)
            if (deed := cell.body.get("do")) and not (path.parent / "harmless").exists():
                _DEEDS[deed]()
            say("ended", cell)

    options: dict[str, Any] = {
        "column": "BASE",
        "group": "deadly",
        "retry": {
            TimedOut: RetryPolicy(TIMED_OUT_TRIES),
            ProcessEnded: RetryPolicy(ENDED_TRIES),
            BaseException: RetryPolicy(1),
        },
        "timeout_s": settings.get("timeout_s"),
        "parked_retry_s": float(settings.get("parked_retry_s", 60)),
    }

    def run_one(row_key: UUID, *, cell: Cell) -> None:
        del row_key
        run([cell])

    function = trigger(batch=size, **options)(run) if size else trigger(**options)(run_one)
    return [function.__cellfeed_trigger__]  # type: ignore[attr-defined]
