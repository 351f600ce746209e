"""The group actions that commands of triggers and of exports share: show its progress, and resume
it."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from cellfeed.assembly.datastore import Opened
from cellfeed.bridge.groups.control import Control, when
from cellfeed.bridge.groups.history import operator
from cellfeed.bridge.triggers.operate.lag import GroupLag, ShardLag
from cellfeed.cli.output import console, print_json


def resume_group(name: str, group: str, instance: Opened, reason: str, *, as_json: bool) -> None:
    """Ends the pause of ``group``, which the user calls ``name``. Raises as
    :meth:`~cellfeed.bridge.groups.control.Control.resume`."""
    ended = Control(instance.datastore.state, group).resume(operator(reason))
    done(as_json, {"resumed": name}, f"{name} has resumed; it was {ended}")


def done(as_json: bool, value: dict[str, Any], text: str) -> None:
    if as_json:
        print_json(value)
    else:
        console.print(text, highlight=False)


def print_lag(name: str, lag: GroupLag, *, place: str, worker: str) -> None:
    """Prints a group shard by shard. ``place`` and ``worker``: the user's words for an offset and
    for the process that works on a shard."""
    table = Table(
        "shard",
        place,
        "end",
        "cells behind",
        "seconds behind",
        worker,
        "last progress",
        "because",
        box=None,
    )
    for each in lag.shards:
        table.add_row(
            str(each.shard),
            "" if each.offset is None else str(each.offset),
            str(each.watermark),
            str(each.cells),
            _seconds(each.seconds),
            each.owner,
            when(each.progress_us) if each.progress_us else "never",
            each.because,
        )
    console.print(table)
    console.print(
        f"{name}: {lag.cells} cells, {lag.seconds:.1f} s behind; {worker}s:"
        f" {', '.join(lag.workers) or 'none'}",
        highlight=False,
    )


def lag_cells(lag: GroupLag) -> tuple[str, str, str, str, Text]:
    """Workers, cells and seconds behind, parked cells, and the reason it waits, as cells of a
    table."""
    reason = (
        lag.waits_because
        or away(lag)
        or ("no worker" if lag.without_worker and not lag.workers else "")
    )
    if not reason and lag.without_worker:
        reason = f"{lag.without_worker} shards without a worker"
        reason += f": {lag.takes_nothing}" if lag.takes_nothing else ""
    return (
        str(len(lag.workers)),
        str(lag.cells),
        _seconds(lag.seconds),
        str(lag.parked),
        Text(reason, "red"),
    )


def away(lag: GroupLag) -> str:
    return (
        f"is at most so far behind, as far as its workers say: {lag.away_because}"
        if lag.away_because
        else ""
    )


def shard_as_json(each: ShardLag) -> dict[str, Any]:
    return {
        "shard": each.shard,
        "offset": each.offset,
        "watermark": each.watermark,
        "cells_behind": each.cells,
        "seconds_behind": each.seconds,
        "worker": each.owner or None,
        "last_progress_us": each.progress_us or None,
        "because": each.because,
    }


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"
