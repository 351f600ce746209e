"""The status of an instance: its processes, logs, groups, gateways and backups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cellfeed.assembly.clusters import clusters_status
from cellfeed.assembly.datastore import Opened, opened
from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.gateway.groups.slot_owners import why_stopped
from cellfeed.bridge.triggers.operate.lag import GroupLag as TriggerLag
from cellfeed.bridge.triggers.operate.lag import LagReader
from cellfeed.bridge.typed.rejected_cells import LeftOutOfTopic
from cellfeed.config.model import Config
from cellfeed.run_dir import RunDir
from cellfeed.status.care import backups_status, check_status, index_builds, left_out_of_topics
from cellfeed.status.certificates import CertificateEnd, certificate_ends
from cellfeed.status.disks import Room, rooms
from cellfeed.status.instance_groups import (
    GatewayAmongOthers,
    GroupLag,
    group_lags,
    groups_of_program,
    living_gateways,
    summary,
)
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
    disks: list[Room] = field(default_factory=list)
    certificates: list[CertificateEnd] = field(default_factory=list)
    builds: dict[str, int] = field(default_factory=dict)
    """The groups of index versions that are being built, and when each was asked for,
    microseconds since 1970 UTC."""

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
            "disks": [msgspec.to_builtins(each) for each in self.disks],
            "certificates": [msgspec.to_builtins(each) for each in self.certificates],
            "builds": self.builds,
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
    directory: RunDir,
    instance: Opened,
    kinds: Mapping[str, str] | None = None,
    reader: LagReader | None = None,
) -> InstanceStatus:
    """:func:`read_status` of an instance that is open already. ``reader``: one that remembers, for
    calls after each other."""
    found = _of_run_dir(directory, instance.config, kinds or {})
    try:
        _learn(found, directory, instance, reader)
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
        backups=backups_status(directory, config),
        disks=rooms(directory, config),
        certificates=certificate_ends(config),
    )


def _learn(
    found: InstanceStatus, directory: RunDir, instance: Opened, reader: LagReader | None = None
) -> None:
    config, datastore, coordinator = instance
    found.clusters = clusters_status(datastore)
    found.heads = dict(sorted(datastore.heads().items()))
    if config.checks is not None:
        found.check = check_status(config.checks, datastore)
    found.erasures = datastore.unended_erasures.all()
    found.builds = index_builds(datastore)
    reader = reader or LagReader(datastore, coordinator)
    _learn_groups(found, directory, config, datastore, coordinator, reader)
    living = {gateway.name for gateway in found.gateways}
    found.left_out = left_out_of_topics(datastore, living)


def _learn_groups(
    found: InstanceStatus,
    directory: RunDir,
    config: Config,
    datastore: Datastore,
    coordinator: Coordinator,
    reader: LagReader,
) -> None:
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
