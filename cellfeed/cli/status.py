"""status: what runs, how far the logs are, how far the triggers and consumer groups have come, what is parked."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from bridge.coordination.contract import Offsets
from bridge.coordination.open import open_coordinator
from bridge.triggers.foothold import choices, lost_offsets
from bridge.triggers.lag import LagReader
from bridge.triggers.parked import ParkedCells
from bridge.triggers.program import load_program
from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption
from cellfeed.cli.output import JsonOption, cluster_line, console, print_json
from cellfeed.cli.triggers import lag_cells, summary
from cellfeed.config import load_config
from cellfeed.processes import open_datastore, trigger_settings
from cellfeed.run_dir import RunDir
from cellfeed.storage import clusters_status
from store.datastore import Datastore
from store.errors import CellfeedError, NotFound, Unavailable


@dataclass
class GroupLag:
    """How far a group is behind in a topic, in cells."""

    group: str
    topic: str
    behind: int
    parked: int
    stopped_because: str | None


def status(run_dir: RunDirOption = DEFAULT_RUN_DIR, as_json: JsonOption = False) -> None:
    """Show an instance: processes, logs, consumer groups and triggers with their lag."""
    directory = RunDir(run_dir)
    if not directory.config.exists():
        raise NotFound(f"{run_dir} is not the run directory of an instance")
    config = load_config(directory.config)
    processes = [{**msgspec.to_builtins(entry), "up": directory.alive(entry.name)} for entry in directory.processes()]
    with open_datastore(directory, config) as datastore, closing(open_coordinator(config.coordination, datastore.state)) as coordinator:
        heads = datastore.heads()
        clusters = clusters_status(datastore)
        reader = LagReader(datastore, coordinator)
        triggers = {group for app in config.triggers for group in _trigger_groups(app.app, trigger_settings(directory, app))}
        triggers |= set(reader.groups())
        away = None
        try:
            lags = _lags(coordinator, datastore, triggers, {s: h.watermark for s, h in heads.items()})
            trigger_lags = [reader.read(group) for group in sorted(triggers)]
        except Unavailable as error:
            lags, trigger_lags, away = [], [], str(error)
    if as_json:
        print_json(
            {
                "processes": processes,
                "clusters": clusters,
                "shards": {str(shard): head._asdict() for shard, head in heads.items()},
                "groups": [vars(lag) for lag in lags],
                "triggers": [summary(lag) for lag in trigger_lags],
                "coordination_away": away,
            }
        )
        return
    table = Table("process", "kind", "pid", "state", "ports", box=None)
    for process in processes:
        ports = ", ".join(f"{which} {port}" for which, port in process["ports"].items())
        table.add_row(process["name"], process["kind"], str(process["pid"]), "up" if process["up"] else Text("down", "red"), ports)
    console.print(table if processes else "no process runs")
    console.print()
    cells = sum(head.watermark - head.log_start for head in heads.values())
    watermarks = " ".join(f"{shard}:{head.watermark}" for shard, head in heads.items())
    console.print(f"{config.datastore.name}: {cells} cells in {len(heads)} shards; watermarks {watermarks}", highlight=False)
    for cluster in clusters:
        console.print(cluster_line(cluster), highlight=False)
    if away:
        console.print()
        console.print(f"coordination is away, so nothing is known of groups: {away}", style="red", highlight=False)
    if trigger_lags:
        console.print()
        table = Table("trigger", "workers", "cells behind", "seconds behind", "parked", "", box=None)
        for trigger in trigger_lags:
            table.add_row(trigger.group, *lag_cells(trigger))
        console.print(table)
    if consumers := [lag for lag in lags if lag.group not in triggers or lag.topic != config.datastore.name]:
        console.print()
        table = Table("group", "topic", "cells behind", "parked", "", box=None)
        for lag in consumers:
            table.add_row(lag.group, lag.topic, str(lag.behind), str(lag.parked), Text(f"stopped: {lag.stopped_because}" if lag.stopped_because else "", "red"))
        console.print(table)


def _trigger_groups(app: str, settings: dict[str, Any]) -> list[str]:
    """The groups of a program, so that one that has not run yet is listed too; none when it cannot be loaded here (its processes say why)."""
    try:
        return [trigger.group for trigger in load_program(app, settings)]
    except CellfeedError:
        return []


def _lags(coordinator: Offsets, datastore: Datastore, triggers: set[str], watermarks: dict[int, int]) -> list[GroupLag]:
    lags = []
    parked = ParkedCells(datastore.state)
    for group in sorted({*coordinator.groups(), *triggers}):
        offsets = coordinator.fetch_offsets(group)
        for topic in sorted({topic for topic, _ in offsets} or {datastore.name}):
            committed = {partition: offset.offset for (name, partition), offset in offsets.items() if name == topic}
            behind = sum(max(0, watermark - committed.get(shard, 0)) for shard, watermark in watermarks.items())
            stopped = parked.stopped_because(group)
            if group in triggers and (lost := lost_offsets(datastore.state, coordinator, group, topic)):
                stopped = f"{lost}; {choices(group)}"
            lags.append(GroupLag(group, topic, behind, parked.count(group), stopped))
    return lags
