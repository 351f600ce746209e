"""status: processes, log ends, progress of triggers and consumer groups, parked cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import typer
from rich.table import Table
from rich.text import Text

from cellfeed.bridge.gateway.groups.spread import SLOTS
from cellfeed.cli.group_control import lag_cells
from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption
from cellfeed.cli.output import (
    JsonOption,
    cluster_line,
    console,
    left_out_line,
    node_advice,
    print_json,
)
from cellfeed.instance.config_file import load_config
from cellfeed.kinds.known import process_names
from cellfeed.run_dir import RunDir
from cellfeed.status.instance_status import InstanceStatus, read_status
from cellfeed.store.cells.cell import moment
from cellfeed.store.errors import NotFound

_SHARDS_PRINTED_MAX: Final = 64
"""Shards that are printed one by one; a datastore may have thousands."""

_LATE_TIMES: Final = 3
"""From how many times the schedule's interval on a recovery point is shown in red."""


def status(run_dir: RunDirOption = DEFAULT_RUN_DIR, as_json: JsonOption = False) -> None:
    """Show an instance: processes, logs, consumer groups and triggers with their lag. Exit code 1
    when its storage is away."""
    directory = RunDir(run_dir)
    if not directory.config.exists():
        raise NotFound(f"{run_dir} is not the run directory of an instance")
    config = load_config(directory.config)
    found = read_status(directory, config, dict(process_names(config)))
    if as_json:
        print_json(found.as_json())
    else:
        _print_processes(found)
        _print_storage(found, config.datastore.name)
        _print_check(found)
        _print_left_out(found)
        _print_backups(found)
        _print_gateways(found)
        _print_groups(found, config.datastore.name)
    if found.storage_away:
        raise typer.Exit(1)


def _print_processes(found: InstanceStatus) -> None:
    table = Table("process", "kind", "pid", "state", "ports", box=None)
    for process in found.processes:
        ports = ", ".join(f"{which} {port}" for which, port in process["ports"].items())
        table.add_row(
            process["name"],
            process["kind"],
            str(process["pid"]),
            "up" if process["up"] else Text("down", "red"),
            ports,
        )
    for missing in found.missing:
        table.add_row(missing["name"], missing["kind"], "", Text("not started", "red"), "")
    console.print(table if found.processes or found.missing else "no process runs")
    for process in found.processes:
        for trouble in process["troubles"]:
            console.print(
                f"{process['name']}: {trouble}; its log is {process['log']}",
                style="red",
                highlight=False,
                soft_wrap=True,
                markup=False,
            )
    for missing in found.missing:
        console.print(
            f"{missing['name']} could not be started, and is tried again: {missing['reason']}",
            style="red",
            highlight=False,
        )


def _print_storage(found: InstanceStatus, datastore: str) -> None:
    console.print()
    if found.storage_away:
        console.print(f"the storage is away: {found.storage_away}", style="red", highlight=False)
    else:
        cells = sum(head.watermark - head.log_start for head in found.heads.values())
        watermarks = _each_shard({shard: head.watermark for shard, head in found.heads.items()})
        trimmed = _each_shard(
            {shard: head.log_start for shard, head in found.heads.items() if head.log_start}
        )
        starts = f"; trimmed logs begin at {trimmed}" if trimmed else ""
        console.print(
            f"{datastore}: {cells} cells in {len(found.heads)} shards; watermarks"
            f" {watermarks}{starts}",
            highlight=False,
        )
    for cluster in found.clusters:
        console.print(cluster_line(cluster), highlight=False)
        for advice in node_advice(cluster):
            console.print(advice, highlight=False)
    for erasure in found.erasures:
        asked = moment(erasure.asked_at_us).isoformat(timespec="seconds")
        reason = f": {erasure.error}" if erasure.error else ""
        text = (
            f"the erasure of row {erasure.row_key}, asked for at {asked}, is not done yet; a worker"
            f" finishes it by itself{reason}"
        )
        console.print(text, style="red", highlight=False, soft_wrap=True, markup=False)


def _print_check(found: InstanceStatus) -> None:
    check = found.check
    if check is None:
        return
    last = (
        "no whole one yet"
        if check["age_s"] is None
        else f"the last whole one began {check['age_s']:.0f} s ago ({check['cells']} cells)"
    )
    now = check["under_way"]
    line = f"check for damage: {last}" + (f"; {now['cells']} cells of the next one" if now else "")
    is_late = (check["age_s"] or 0) > _LATE_TIMES * check["every_s"]
    console.print(line, style="red" if is_late else None, highlight=False)
    if check["damaged"] or check["unread"]:
        text = (
            f"it has {check['damaged']} findings, and {check['unread']} places were not looked at:"
            " run cellfeed check"
        )
        for each in (text, *check["named"]):
            console.print(each, style="red", highlight=False, soft_wrap=True, markup=False)


def _print_left_out(found: InstanceStatus) -> None:
    for each in found.left_out:
        console.print(
            left_out_line(each), style="red", highlight=False, soft_wrap=True, markup=False
        )


def _print_backups(found: InstanceStatus) -> None:
    for each in found.backups:
        age_s, due_s = each["age_s"], each["every_s"]
        point = (
            "no whole backup yet"
            if age_s is None
            else f"the recovery point is {age_s:.0f} s old, {each['recovery_point']}"
        )
        console.print(
            f"{each['name']}: {point}, in {each['directory']} (one every {due_s:g} s)",
            style="red" if age_s is None or age_s > _LATE_TIMES * due_s else None,
            highlight=False,
        )
        wrong = [f"the last attempt failed: {each['error']}"] if each["error"] else []
        wrong += [f"{name} is damaged: {reason}" for name, reason in each["damaged"].items()]
        for cluster, archived in each["binlogs"].items():
            binlog = f"the binlog of cluster {cluster}"
            if archived["gap"]:
                wrong.append(f"{binlog} had a gap, which the next backup closes: {archived['gap']}")
            if archived["error"]:
                wrong.append(f"{binlog} is not archived: {archived['error']}")
        for line in wrong:
            console.print(f"{each['name']}: {line}", style="red", highlight=False, soft_wrap=True)


def _each_shard(numbers: Mapping[int, int]) -> str:
    if len(numbers) > _SHARDS_PRINTED_MAX:
        return (
            f"{min(numbers.values())} to {max(numbers.values())} ({len(numbers)} shards; --json has"
            " each)"
        )
    return " ".join(f"{shard}:{number}" for shard, number in numbers.items())


def _print_gateways(found: InstanceStatus) -> None:
    if found.gateways:
        console.print()
        table = Table(
            "gateway", "node", "addresses", "schema registry", "slots of groups", box=None
        )
        for gateway in found.gateways:
            addresses = ", ".join(
                f"{listener} {address}" for listener, address in gateway.addresses.items()
            )
            table.add_row(
                gateway.name,
                str(gateway.node_id),
                addresses,
                gateway.registry,
                f"{len(gateway.slots)} of {SLOTS}",
            )
        console.print(table)
    if found.consumers_wait:
        console.print(
            found.consumers_wait, style="red", highlight=False, soft_wrap=True, markup=False
        )


def _print_groups(found: InstanceStatus, datastore: str) -> None:
    if found.coordination_away:
        console.print()
        console.print(
            f"coordination is away, so nothing is known of groups: {found.coordination_away}",
            style="red",
            highlight=False,
        )
    if found.triggers:
        console.print()
        table = Table(
            "trigger", "workers", "cells behind", "seconds behind", "parked", "", box=None
        )
        for trigger in found.triggers:
            table.add_row(trigger.group, *lag_cells(trigger))
        console.print(table)
    triggers = {trigger.group for trigger in found.triggers}
    if consumers := [
        lag for lag in found.groups if lag.group not in triggers or lag.topic != datastore
    ]:
        console.print()
        table = Table("group", "topic", "records behind", "parked", "", box=None)
        for lag in consumers:
            table.add_row(
                lag.group,
                lag.topic,
                f"at most {lag.behind}" if lag.at_most else str(lag.behind),
                str(lag.parked),
                Text(f"stopped: {lag.stopped_because}" if lag.stopped_because else "", "red"),
            )
        console.print(table)
