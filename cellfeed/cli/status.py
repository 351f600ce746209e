"""status: what runs, how far the logs are, how far the triggers and consumer groups have come, what
is parked."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import typer
from rich.table import Table
from rich.text import Text

from cellfeed.assembly.clusters import clusters_status
from cellfeed.assembly.datastore import opened
from cellfeed.bridge.coordination.contract import Coordinator, Offsets
from cellfeed.bridge.gateway.groups.slot_claims import slots_by_gateway, why_stopped
from cellfeed.bridge.gateway.groups.spread import SLOTS
from cellfeed.bridge.gateway.nodes import all_nodes
from cellfeed.bridge.triggers.offsets.kept_offsets import choices, lost_offsets
from cellfeed.bridge.triggers.operate.lag import GroupLag as TriggerLag
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.triggers.parked.cells import ParkedCells
from cellfeed.bridge.triggers.program import load_program
from cellfeed.cli.group_control import lag_cells, summary
from cellfeed.cli.instance import DEFAULT_RUN_DIR, RunDirOption
from cellfeed.cli.output import JsonOption, cluster_line, console, print_json
from cellfeed.config.model import Config, TriggersConfig
from cellfeed.instance.config_file import load_config
from cellfeed.kinds.known import process_names
from cellfeed.kinds.triggers import trigger_settings
from cellfeed.run_dir import RunDir
from cellfeed.store.cells.cell import moment
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.erasures import UnendedErasure
from cellfeed.store.errors import CellfeedError, NotFound, Unavailable

_SHARDS_PRINTED_MAX: Final = 64
"""Shards that are printed one by one; a datastore may have thousands."""

_LATE_TIMES: Final = 3
"""From how many times the schedule's interval on a recovery point is shown in red."""


@dataclass
class GroupLag:
    """How far a group is behind in a topic, in cells."""

    group: str
    topic: str
    behind: int
    parked: int
    stopped_because: str | None


@dataclass
class GatewayAmongOthers:
    """A living gateway of the datastore, on whatever host. ``addresses``: by listener, as clients
    get them; ``slots`` of groups that it coordinates."""

    name: str
    node_id: int
    addresses: dict[str, str]
    registry: str
    slots: list[int]


@dataclass
class _Told:
    """What could be learnt of an instance. ``storage_away``, ``coordination_away``: why the rest is
    not known."""

    processes: list[dict[str, Any]]
    missing: list[dict[str, Any]]
    clusters: list[dict[str, Any]] = field(default_factory=list)
    heads: dict[int, Head] = field(default_factory=dict)
    groups: list[GroupLag] = field(default_factory=list)
    triggers: list[TriggerLag] = field(default_factory=list)
    gateways: list[GatewayAmongOthers] = field(default_factory=list)
    consumers_wait: str | None = None
    """Why consumer groups of the gateways stand still, until somebody accepts their offsets."""

    erasures: list[UnendedErasure] = field(default_factory=list)
    backups: list[dict[str, Any]] = field(default_factory=list)
    storage_away: str | None = None
    coordination_away: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "processes": self.processes,
            "missing": self.missing,
            "clusters": self.clusters,
            "shards": {str(shard): head._asdict() for shard, head in self.heads.items()},
            "groups": [vars(lag) for lag in self.groups],
            "triggers": [summary(lag) for lag in self.triggers],
            "gateways": [vars(gateway) for gateway in self.gateways],
            "consumers_wait": self.consumers_wait,
            "erasures": [msgspec.to_builtins(each) for each in self.erasures],
            "backups": self.backups,
            "storage_away": self.storage_away,
            "coordination_away": self.coordination_away,
        }


def status(run_dir: RunDirOption = DEFAULT_RUN_DIR, as_json: JsonOption = False) -> None:
    """Show an instance: processes, logs, consumer groups and triggers with their lag. Exit code 1
    when its storage is away."""
    directory = RunDir(run_dir)
    if not directory.config.exists():
        raise NotFound(f"{run_dir} is not the run directory of an instance")
    config = load_config(directory.config)
    told = _told(directory, config)
    if as_json:
        print_json(told.as_json())
    else:
        _print_processes(told)
        _print_storage(told, config.datastore.name)
        _print_backups(told)
        _print_gateways(told)
        _print_groups(told, config.datastore.name)
    if told.storage_away:
        raise typer.Exit(1)


def _told(directory: RunDir, config: Config) -> _Told:
    kinds = dict(process_names(config))
    told = _Told(
        [
            {
                **msgspec.to_builtins(entry),
                "up": directory.alive(entry.name),
                "troubles": directory.troubles(entry.name),
            }
            for entry in directory.processes()
        ],
        [
            {"name": name, "kind": kinds.get(name), "reason": reason}
            for name, reason in directory.missing().items()
        ],
        backups=_backups(directory, config),
    )
    try:
        with opened(config, directory.path) as (_, datastore, coordinator):
            told.clusters = clusters_status(datastore)
            told.heads = dict(sorted(datastore.heads().items()))
            told.erasures = datastore.unended_erasures.all()
            _learn_groups(told, directory, config, datastore, coordinator)
    except Unavailable as error:
        told.storage_away = str(error)
    return told


def _learn_groups(
    told: _Told, directory: RunDir, config: Config, datastore: Datastore, coordinator: Coordinator
) -> None:
    reader = LagReader(datastore, coordinator)
    triggers = {
        group
        for app in config.triggers
        for group in _trigger_groups(app, trigger_settings(directory, app))
    }
    try:
        triggers |= set(reader.groups())
        told.triggers = [reader.read(group) for group in sorted(triggers)]
        told.gateways = _gateways(datastore, coordinator)
        told.consumers_wait = (
            why_stopped(datastore.state, coordinator)
            if told.gateways or any(kind == "gateway" for kind, _ in process_names(config))
            else None
        )
        told.groups = _lags(coordinator, datastore, triggers, told.heads)
    except Unavailable as error:
        told.groups, told.coordination_away = [], str(error)


def _print_processes(told: _Told) -> None:
    table = Table("process", "kind", "pid", "state", "ports", box=None)
    for process in told.processes:
        ports = ", ".join(f"{which} {port}" for which, port in process["ports"].items())
        table.add_row(
            process["name"],
            process["kind"],
            str(process["pid"]),
            "up" if process["up"] else Text("down", "red"),
            ports,
        )
    for missing in told.missing:
        table.add_row(missing["name"], missing["kind"], "", Text("not started", "red"), "")
    console.print(table if told.processes or told.missing else "no process runs")
    for process in told.processes:
        for trouble in process["troubles"]:
            console.print(
                f"{process['name']}: {trouble}; its log is {process['log']}",
                style="red",
                highlight=False,
                soft_wrap=True,
                markup=False,
            )
    for missing in told.missing:
        console.print(
            f"{missing['name']} could not be started, and is tried again: {missing['reason']}",
            style="red",
            highlight=False,
        )


def _print_storage(told: _Told, datastore: str) -> None:
    console.print()
    if told.storage_away:
        console.print(f"the storage is away: {told.storage_away}", style="red", highlight=False)
    else:
        cells = sum(head.watermark - head.log_start for head in told.heads.values())
        watermarks = _each_shard({shard: head.watermark for shard, head in told.heads.items()})
        trimmed = _each_shard(
            {shard: head.log_start for shard, head in told.heads.items() if head.log_start}
        )
        starts = f"; trimmed logs begin at {trimmed}" if trimmed else ""
        console.print(
            f"{datastore}: {cells} cells in {len(told.heads)} shards; watermarks"
            f" {watermarks}{starts}",
            highlight=False,
        )
    for cluster in told.clusters:
        console.print(cluster_line(cluster), highlight=False)
    for erasure in told.erasures:
        asked = moment(erasure.asked_at_us).isoformat(timespec="seconds")
        reason = f": {erasure.error}" if erasure.error else ""
        text = (
            f"the erasure of row {erasure.row_key}, asked for at {asked}, is not done yet; a worker"
            f" goes on with it by itself{reason}"
        )
        console.print(text, style="red", highlight=False, soft_wrap=True, markup=False)


def _backups(directory: RunDir, config: Config) -> list[dict[str, Any]]:
    now_us = time.time_ns() // 1000
    found = []
    for each in config.backups:
        report = directory.recovery(each.name)
        found.append(
            {
                "name": each.name,
                "directory": str(directory.inside(each.directory)),
                "recovery_point": report.backup,
                "age_s": report.age_s(now_us),
                "every_s": each.every_s,
                "error": report.error or None,
                "damaged": report.passed_over,
                "binlogs": {
                    name: {
                        "age_s": None if at.at_us is None else max(0.0, (now_us - at.at_us) / 1e6),
                        "gap": at.gap or None,
                        "error": at.error or None,
                    }
                    for name, at in report.binlogs.items()
                },
            }
        )
    return found


def _print_backups(told: _Told) -> None:
    for each in told.backups:
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


def _print_gateways(told: _Told) -> None:
    if told.gateways:
        console.print()
        table = Table(
            "gateway", "node", "addresses", "schema registry", "slots of groups", box=None
        )
        for gateway in told.gateways:
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
    if told.consumers_wait:
        console.print(
            told.consumers_wait, style="red", highlight=False, soft_wrap=True, markup=False
        )


def _print_groups(told: _Told, datastore: str) -> None:
    if told.coordination_away:
        console.print()
        console.print(
            f"coordination is away, so nothing is known of groups: {told.coordination_away}",
            style="red",
            highlight=False,
        )
    if told.triggers:
        console.print()
        table = Table(
            "trigger", "workers", "cells behind", "seconds behind", "parked", "", box=None
        )
        for trigger in told.triggers:
            table.add_row(trigger.group, *lag_cells(trigger))
        console.print(table)
    triggers = {trigger.group for trigger in told.triggers}
    if consumers := [
        lag for lag in told.groups if lag.group not in triggers or lag.topic != datastore
    ]:
        console.print()
        table = Table("group", "topic", "cells behind", "parked", "", box=None)
        for lag in consumers:
            table.add_row(
                lag.group,
                lag.topic,
                str(lag.behind),
                str(lag.parked),
                Text(f"stopped: {lag.stopped_because}" if lag.stopped_because else "", "red"),
            )
        console.print(table)


def _trigger_groups(entry: TriggersConfig, settings: dict[str, Any]) -> list[str]:
    """The groups of a program, so that one that has not run yet is listed too; none when it cannot
    be loaded here (its processes say why)."""
    try:
        program = load_program(entry.app, settings, entry=entry.name or "")
        return [trigger.group for trigger in program]
    except CellfeedError:
        return []


def _gateways(datastore: Datastore, coordinator: Coordinator) -> list[GatewayAmongOthers]:
    known = all_nodes(datastore.state)
    return [
        GatewayAmongOthers(
            name,
            known[name].node_id,
            {
                listener: f"{host}:{port}"
                for listener, (host, port) in known[name].listeners.items()
            },
            f"{known[name].registry[0]}:{known[name].registry[1]}",
            slots,
        )
        for name, slots in slots_by_gateway(coordinator).items()
        if name in known
    ]


def _lags(
    coordinator: Offsets, datastore: Datastore, triggers: set[str], heads: dict[int, Head]
) -> list[GroupLag]:
    lags = []
    parked = ParkedCells(datastore.state)
    for group in sorted({*coordinator.groups(), *triggers}):
        offsets = coordinator.fetch_offsets(group)
        for topic in sorted({topic for topic, _ in offsets} or {datastore.name}):
            committed = {
                partition: offset.offset
                for (name, partition), offset in offsets.items()
                if name == topic
            }
            behind = sum(
                max(0, head.watermark - max(committed.get(shard, 0), head.log_start))
                for shard, head in heads.items()
            )
            stopped = parked.stopped_because(group)
            if group in triggers and (
                lost := lost_offsets(datastore.state, coordinator, group, topic)
            ):
                stopped = f"{lost}; {choices(group)}"
            lags.append(GroupLag(group, topic, behind, parked.count(group), stopped))
    return lags
