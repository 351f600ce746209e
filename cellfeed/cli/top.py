"""top: an instance on a terminal, live: parts that stand still, and the lag of groups."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cellfeed.cli.group_control import lag_cells
from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption
from cellfeed.cli.output import JsonOption, console, print_json
from cellfeed.instance.config_file import load_config
from cellfeed.kinds.known import process_names
from cellfeed.run_dir import RunDir
from cellfeed.status.instance_status import InstanceStatus, read_status
from cellfeed.status.stuck import stuck
from cellfeed.status.stuck_part import Stuck
from cellfeed.store.errors import NotFound

_ROWS_MAX: Final = 20
"""Lines of each table: the groups most behind come first."""


def top(
    every_s: Annotated[
        float, typer.Option("--every", min=0.2, metavar="SECONDS", help="How often it looks.")
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look once; also where the output is no terminal.")
    ] = False,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
    as_json: JsonOption = False,
) -> None:
    """Watch an instance: parts that stand still, with remedies, and the lag of groups.

    Groups that are most behind come first. Ctrl-C ends it. With --json it looks once, and prints a
    line for everything that stands still; exit code 1 when something does."""
    directory = RunDir(run_dir)
    if not directory.config.exists():
        raise NotFound(f"{run_dir} is not the run directory of an instance")
    config = load_config(directory.config)
    found = read_status(directory, config, dict(process_names(config)))
    if as_json or once or not console.is_terminal:
        standing = stuck(found, time.time_ns() // 1000)
        if as_json:
            for each in standing:
                print_json(each.as_json())
        else:
            console.print(screen(found, standing, {}, every_s))
        raise typer.Exit(1 if standing else 0)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        before: dict[int, int] = {}
        looked_s, passed_s = time.monotonic(), every_s
        while True:
            standing = stuck(found, time.time_ns() // 1000)
            live.update(screen(found, standing, before, passed_s), refresh=True)
            before = {shard: head.watermark for shard, head in found.heads.items()}
            time.sleep(max(0.0, looked_s + every_s - time.monotonic()))
            found, last_s = read_status(directory, config, dict(process_names(config))), looked_s
            looked_s = time.monotonic()
            passed_s = looked_s - last_s


def screen(
    found: InstanceStatus, standing: list[Stuck], before: Mapping[int, int], passed_s: float
) -> RenderableType:
    """All of it. ``before``: the watermarks of ``passed_s`` seconds ago; none at first."""
    return Group(
        _head(found, before, passed_s), Text(), _standing(standing), Text(), _groups(found)
    )


def _head(found: InstanceStatus, before: Mapping[int, int], passed_s: float) -> Text:
    up = sum(each["up"] for each in found.processes)
    cells = sum(head.watermark - head.log_start for head in found.heads.values())
    line = f"{up} of {len(found.processes) + len(found.missing)} processes up"
    line += f"; {cells:,} cells in {len(found.heads)} shards"
    if before:
        put = sum(head.watermark - before.get(shard, 0) for shard, head in found.heads.items())
        line += f"; {put / passed_s:,.0f} cells a second"
    return Text(line)


def _standing(standing: list[Stuck]) -> RenderableType:
    if not standing:
        return Text("nothing stands still", "green")
    table = Table("stands still", "for", "because", "remedy", box=None, pad_edge=False)
    now_s = time.time()
    for each in standing[:_ROWS_MAX]:
        age = f"{now_s - each.since_us / 1e6:,.0f} s" if each.since_us else ""
        table.add_row(Text(each.where, "red"), age, Text(each.reason), Text(each.remedy))
    if len(standing) > _ROWS_MAX:
        table.add_row(Text(f"and {len(standing) - _ROWS_MAX} more", "red"))
    return table


def _groups(found: InstanceStatus) -> RenderableType:
    table = Table(
        "group", "workers", "cells behind", "seconds behind", "parked", box=None, pad_edge=False
    )
    known = [*found.triggers, *found.exports]
    for lag in sorted(known, key=lambda each: each.seconds, reverse=True)[:_ROWS_MAX]:
        table.add_row(lag.group, *lag_cells(lag)[:4])
    names = {each.group for each in known}
    consumers = [each for each in found.groups if each.group not in names]
    for group in sorted(consumers, key=lambda each: each.behind, reverse=True)[:_ROWS_MAX]:
        behind = f"at most {group.behind}" if group.at_most else str(group.behind)
        table.add_row(f"{group.group} ({group.topic})", "", behind, "", str(group.parked))
    return table if table.row_count else Text("no groups")
