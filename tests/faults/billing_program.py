"""Billing as fault runs have it: the product's own, with every call on record, and trips that are
poison.

A call is one line when it begins and one when it has ended well; ``begun|ended SHARD ADDED_ID PID
MONOTONIC_NS``, in the file ``calls`` of the billing folder; the clock is the machine's, so lines of
several processes can be compared. A BASE cell with ``poison`` acts as that says, until the folder
has a file ``antidote``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from cellfeed.bridge.triggers.program import RetryPolicy, Trigger, trigger
from cellfeed.bridge.triggers.retry import ProcessEnded, TimedOut
from cellfeed.consumers.billing.app import BASE_COLUMN, bill_trip
from cellfeed.consumers.billing.card_provider import SandboxCardProvider
from cellfeed.consumers.billing.charge_keys import GROUP, ChargeKeys
from cellfeed.store.cells.cell import Cell
from cellfeed.store.datastore import Datastore

TIMED_OUT_TRIES: Final = 1
ENDED_TRIES: Final = 5
RAISED_TRIES: Final = 5


def _raise() -> None:
    raise ValueError("poison: this trip cannot be billed")


def _hang() -> None:
    while True:
        time.sleep(3600)


def _print_without_end() -> None:
    while True:
        print("and on", "and on " * 20)


POISONS: Final[Mapping[str, Callable[[], None]]] = {
    "raise": _raise,
    "hang": _hang,
    "exit": lambda: os._exit(9),
    "print": _print_without_end,
}


def billing(settings: Mapping[str, Any]) -> list[Trigger]:
    """Settings: ``billing_dir``; ``run_s``, the time that each trip takes besides; ``timeout_s``,
    none without; ``ended_tries``."""
    directory, run_s = Path(settings["billing_dir"]), float(settings.get("run_s", 0))
    provider = SandboxCardProvider(directory / "charges.sqlite3")
    keys = ChargeKeys()
    calls = os.open(directory / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def say(what: str, cell: Cell) -> None:
        os.write(
            calls,
            f"{what} {cell.shard} {cell.added_id} {os.getpid()} {time.monotonic_ns()}\n".encode(),
        )

    usual = RetryPolicy(RAISED_TRIES, first_wait_s=0.02, longest_wait_s=0.2)

    @trigger(
        column=BASE_COLUMN,
        group=GROUP,
        retry={
            TimedOut: RetryPolicy(TIMED_OUT_TRIES),
            ProcessEnded: RetryPolicy(int(settings.get("ended_tries", ENDED_TRIES))),
            Exception: usual,
        },
        timeout_s=float(settings["timeout_s"]) if "timeout_s" in settings else None,
    )
    def bill(row_key: UUID, *, cell: Cell, store: Datastore) -> None:
        say("begun", cell)
        if (poison := cell.body.get("poison")) and not (directory / "antidote").exists():
            POISONS[poison]()
        time.sleep(run_s)
        bill_trip(row_key, cell, store, provider, keys)
        say("ended", cell)

    found: Trigger = bill.__cellfeed_trigger__  # type: ignore[attr-defined]
    return [found]
