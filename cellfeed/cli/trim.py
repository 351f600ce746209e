"""trim: removes old cells from the logs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from rich.table import Table
from rich.text import Text

from cellfeed.assembly.datastore import Opened
from cellfeed.bridge.groups.history import operator
from cellfeed.bridge.trimming.trim import ShardPlan, Trimming
from cellfeed.bridge.trimming.trim_history import TrimDeed, deed_line, trim_history
from cellfeed.cli.instance import DEFAULT_RUN_DIR, ConfigOption, RunDirOption, opened
from cellfeed.cli.output import JsonOption, console, print_json, progress_bar
from cellfeed.store.cells.sharding import check_shard
from cellfeed.store.errors import InvalidRequest

_AGE: Final = re.compile(r"(\d{1,9})([smhd])", re.ASCII)
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def trim(
    shard: Annotated[
        list[int] | None, typer.Option("--shard", help="This shard; may be given several times.")
    ] = None,
    all_shards: Annotated[bool, typer.Option("--all", help="Every shard.")] = False,
    below: Annotated[
        int | None,
        typer.Option(
            "--below", min=0, metavar="ID", help="Cells with a lower added_id go; with --shard."
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="AGE",
            help=(
                "Cells that were written longer ago go, as far as they may now: 90d, 36h, 15m, 30s."
            ),
        ),
    ] = None,
    although: Annotated[
        list[str] | None,
        typer.Option(
            "--although",
            metavar="GROUP",
            help="This group may miss the trimmed cells; may be given several times.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Count the cells that would go, and name the groups that need them; do nothing.",
        ),
    ] = False,
    reason: Annotated[
        str, typer.Option("--reason", help="Why; kept in the history of trims.")
    ] = "not given",
    history: Annotated[
        bool,
        typer.Option(
            "--history", help="Show the trims that were done: author, time, range, reason."
        ),
    ] = False,
    config: ConfigOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Let the logs of shards begin later: earlier cells are gone, for readers of the log and for
    reads by key, and cannot be brought back.

    Refused (exit code 3) while a reader still needs a cell that would go: a trigger, an index, an
    export, a consumer group. --although names readers that do not count. A Kafka client that comes
    below the start gets OFFSET_OUT_OF_RANGE and does as its auto.offset.reset says. A trimmed cell
    that is put again is a new cell: trim nothing that somebody may still put again. It may be
    killed, and run again to resume.
    """
    by = operator(reason)
    age_s = None if older_than is None else _seconds(older_than)
    if not history:
        _check(shard, all_shards=all_shards, below=below, older_than=older_than)
    with opened(run_dir, config) as instance:
        if history:
            _show_history(trim_history(instance.datastore.state), as_json)
            return
        trimming = Trimming(instance.datastore, instance.coordinator)
        plans = _planned(trimming, _shards(instance, shard), below, age_s)
        if dry_run:
            _print(plans, as_json)
            return
        with progress_bar() as bar:
            task = bar.add_task("trimming (cells)", total=sum(plan.cells for plan in plans))
            trimmed = trimming.run(
                plans, by, although or (), lambda cells: bar.advance(task, cells)
            )
    if as_json:
        print_json({"trimmed": trimmed, "shards": {str(plan.shard): plan.below for plan in plans}})
    else:
        starts = " ".join(f"{plan.shard}:{plan.below}" for plan in plans)
        console.print(f"{trimmed} cells trimmed; the logs begin at {starts}", highlight=False)


def _check(
    shard: Sequence[int] | None, *, all_shards: bool, below: int | None, older_than: str | None
) -> None:
    if bool(shard) == all_shards:
        raise InvalidRequest("say which shards: --shard N (once for each), or --all")
    if (below is None) == (older_than is None):
        raise InvalidRequest("name the cells that go: --below ID, or --older-than AGE")
    if below is not None and all_shards:
        raise InvalidRequest(
            "--below is an added_id of one shard, every log has its own: name the shard with"
            " --shard, or use --older-than with --all"
        )


def _shards(instance: Opened, shard: Sequence[int] | None) -> list[int]:
    shards = instance.datastore.shards
    return (
        [check_shard(number, shards) for number in dict.fromkeys(shard)]
        if shard
        else list(range(shards))
    )


def _planned(
    trimming: Trimming, shards: Sequence[int], below: int | None, age_s: float | None
) -> list[ShardPlan]:
    with progress_bar() as bar:
        task = bar.add_task("looking for the place (shards)", total=len(shards))
        return trimming.plan(
            shards, below=below, older_than_s=age_s, on_shard=lambda: bar.advance(task)
        )


def _seconds(age: str) -> float:
    if (found := _AGE.fullmatch(age)) is None:
        raise InvalidRequest(
            f"--older-than {ascii(age)[:40]} is not of the form 90d, 36h, 15m or 30s"
        )
    return int(found[1]) * _SECONDS[found[2]]


def _print(plans: Sequence[ShardPlan], as_json: bool) -> None:
    if as_json:
        for plan in plans:
            needed = [
                {"group": need.group, "location": need.location, "because": need.because}
                for need in plan.needed
            ]
            print_json(
                {
                    "shard": plan.shard,
                    "log_start": plan.log_start,
                    "below": plan.below,
                    "cells": plan.cells,
                    "needed": needed,
                }
            )
        return
    table = Table(
        "shard", "begins at", "would begin at", "cells that go", "still needed by", box=None
    )
    for plan in plans:
        needed_by = ", ".join(
            f"{need.group} ({need.because} {need.location})" for need in plan.needed
        )
        table.add_row(
            str(plan.shard),
            str(plan.log_start),
            str(plan.below),
            str(plan.cells),
            Text(needed_by, "red"),
        )
    console.print(table)
    console.print(
        f"{sum(plan.cells for plan in plans)} cells would go; nothing was done", highlight=False
    )


def _show_history(deeds: Sequence[TrimDeed], as_json: bool) -> None:
    for deed in deeds:
        if as_json:
            shards = {
                str(shard): {"from": before, "to": after}
                for shard, (before, after) in deed.shards.items()
            }
            print_json(
                {
                    "by": deed.by,
                    "because": deed.because,
                    "at_us": deed.at_us,
                    "shards": shards,
                    "although": deed.although,
                }
            )
        else:
            console.print(deed_line(deed), highlight=False)
