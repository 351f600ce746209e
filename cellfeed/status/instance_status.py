"""The status of an instance: its processes, logs, groups, gateways and backups."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cellfeed.assembly.clusters import clusters_status
from cellfeed.assembly.datastore import Opened, opened
from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.gateway.groups.slot_owners import why_stopped
from cellfeed.bridge.gateway.nodes import all_nodes
from cellfeed.bridge.triggers.operate.lag import GroupLag as TriggerLag
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.typed.rejected_cells import LeftOutOfTopic, left_out
from cellfeed.bridge.typed.stored_columns import stored_columns
from cellfeed.config.model import ChecksConfig, Config
from cellfeed.run_dir import RunDir
from cellfeed.status.instance_groups import (
    GatewayAmongOthers,
    GroupLag,
    group_lags,
    groups_of_program,
    living_gateways,
    summary,
)
from cellfeed.store.checks import KEY, passes_of
from cellfeed.store.datastore import Datastore
from cellfeed.store.engines.contract.values import Head
from cellfeed.store.erasures import UnendedErasure
from cellfeed.store.errors import Unavailable


@dataclass
class InstanceStatus:
    """The status of an instance, as far as it can be read. ``storage_away``, ``coordination_away``:
    why the rest is not known."""

    processes: list[dict[str, Any]]
    missing: list[dict[str, Any]]
    clusters: list[dict[str, Any]] = field(default_factory=list)
    heads: dict[int, Head] = field(default_factory=dict)
    groups: list[GroupLag] = field(default_factory=list)
    triggers: list[TriggerLag] = field(default_factory=list)
    """Triggers, and the versions of indexes."""

    exports: list[TriggerLag] = field(default_factory=list)
    gateways: list[GatewayAmongOthers] = field(default_factory=list)
    consumers_wait: str | None = None
    """Why consumer groups of the gateways stand still, until somebody accepts their offsets."""

    erasures: list[UnendedErasure] = field(default_factory=list)
    backups: list[dict[str, Any]] = field(default_factory=list)
    check: dict[str, Any] | None = None
    """The check for damage that the workers run; None where the configuration has none."""

    left_out: list[LeftOutOfTopic] = field(default_factory=list)
    """Cells that typed topics leave out, by column."""

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
            "exports": [summary(lag) for lag in self.exports],
            "gateways": [vars(gateway) for gateway in self.gateways],
            "consumers_wait": self.consumers_wait,
            "erasures": [msgspec.to_builtins(each) for each in self.erasures],
            "backups": self.backups,
            "check": self.check,
            "left_out": [
                {
                    "column": each.column,
                    "cells": each.cells,
                    "or_more": each.or_more,
                    "shard": each.first.shard,
                    "added_id": each.first.added_id,
                    "reason": each.first.reason,
                    "gateways": list(each.gateways),
                }
                for each in self.left_out
            ],
            "storage_away": self.storage_away,
            "coordination_away": self.coordination_away,
        }


def read_status(
    directory: RunDir, config: Config, kinds: Mapping[str, str] | None = None
) -> InstanceStatus:
    """Reads everything once. ``kinds``: of the configured processes, by name, for those that could
    not be started."""
    found = _of_run_dir(directory, config, kinds or {})
    try:
        with opened(config, directory.path) as instance:
            _learn(found, directory, instance)
    except Unavailable as error:
        found.storage_away = str(error)
    return found


def read_opened(
    directory: RunDir, instance: Opened, kinds: Mapping[str, str] | None = None
) -> InstanceStatus:
    """:func:`read_status` of an instance that is open already."""
    found = _of_run_dir(directory, instance.config, kinds or {})
    try:
        _learn(found, directory, instance)
    except Unavailable as error:
        found.storage_away = str(error)
    return found


def _of_run_dir(directory: RunDir, config: Config, kinds: Mapping[str, str]) -> InstanceStatus:
    return InstanceStatus(
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


def _learn(found: InstanceStatus, directory: RunDir, instance: Opened) -> None:
    config, datastore, coordinator = instance
    found.clusters = clusters_status(datastore)
    found.heads = dict(sorted(datastore.heads().items()))
    if config.checks is not None:
        found.check = _check(config.checks, datastore)
    found.erasures = datastore.unended_erasures.all()
    _learn_groups(found, directory, config, datastore, coordinator)
    living = {gateway.name for gateway in found.gateways}
    found.left_out = left_out_of_topics(datastore, living)


def left_out_of_topics(datastore: Datastore, living: Collection[str]) -> list[LeftOutOfTopic]:
    """Of each column whose schema says ``unfit: park``, or said so when a gateway of ``living``
    started that leaves its cells out until it ends."""
    nodes = all_nodes(datastore.state)
    listed = []
    for name, column in stored_columns(datastore.state).items():
        gateways: tuple[str, ...] = ()
        if column.settings.unfit != "park":
            gateways = tuple(
                sorted(each for each in living if each in nodes and name in nodes[each].parks)
            )
            if not gateways:
                continue
        found = left_out(datastore.state, name, datastore.shards)
        if found is not None:
            listed.append(found._replace(gateways=gateways))
    return listed


def _learn_groups(
    found: InstanceStatus,
    directory: RunDir,
    config: Config,
    datastore: Datastore,
    coordinator: Coordinator,
) -> None:
    reader = LagReader(datastore, coordinator)
    triggers = {
        group
        for app in config.triggers
        for group in groups_of_program(app, app.settings_in(directory.path))
    }
    try:
        triggers |= set(reader.groups())
        found.triggers = [reader.read(group) for group in sorted(triggers)]
        found.exports = [reader.read(group) for group in reader.exports()]
        found.gateways = living_gateways(datastore, coordinator)
        found.consumers_wait = (
            why_stopped(datastore.state, coordinator) if found.gateways or config.gateways else None
        )
        found.groups = group_lags(coordinator, datastore, config.datastore, triggers, found.heads)
    except Unavailable as error:
        found.groups, found.coordination_away = [], str(error)


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
                        "gap": report.open_gap(name) or None,
                        "error": at.error or None,
                    }
                    for name, at in report.binlogs.items()
                },
            }
        )
    return found


def _check(checks: ChecksConfig, datastore: Datastore) -> dict[str, Any]:
    passes, now_us = passes_of(datastore.state.get(KEY)), datastore.state.now_us()
    of, under_way = passes.found, passes.under_way
    return {
        "age_s": passes.age_s(now_us),
        "every_s": checks.every_s,
        "cells": passes.last.cells if passes.last is not None else 0,
        "under_way": None
        if under_way is None
        else {
            "place": under_way.place,
            "shard": under_way.shard,
            "cells": under_way.cells,
            "age_s": max(0.0, (now_us - under_way.begun_at_us) / 1e6),
        },
        "damaged": of.damaged if of is not None else 0,
        "unread": of.unread if of is not None else 0,
        "named": of.named if of is not None else [],
    }
