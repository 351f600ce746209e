"""The care for an instance's data: backups, checks, and cells that typed topics leave out."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from cellfeed.bridge.gateway.nodes import all_nodes
from cellfeed.bridge.typed.rejected_cells import LeftOutOfTopic, left_out
from cellfeed.bridge.typed.stored_columns import stored_columns
from cellfeed.config.model import ChecksConfig, Config
from cellfeed.run_dir import RunDir
from cellfeed.store.checks import KEY, passes_of
from cellfeed.store.datastore import Datastore
from cellfeed.store.indexes.catalog import Catalog
from cellfeed.store.indexes.records import BUILDING
from cellfeed.store.indexes.version import IndexVersion


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


def index_builds(datastore: Datastore) -> dict[str, int]:
    """The groups of index versions that are being built, and when each was asked for, microseconds
    since 1970 UTC."""
    return {
        IndexVersion(each.definition, each.number, datastore.shards).group: each.created_at_us
        for record in Catalog(datastore.state, datastore.name).all()
        for each in record.versions
        if each.state == BUILDING
    }


def backups_status(directory: RunDir, config: Config) -> list[dict[str, Any]]:
    """The schedules of backups, each by the last report of its process."""
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


def check_status(checks: ChecksConfig, datastore: Datastore) -> dict[str, Any]:
    """The check for damage that the workers run."""
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
