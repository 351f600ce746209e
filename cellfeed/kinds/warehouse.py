"""Warehouse loaders: Kafka consumers that write Parquet."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import TYPE_CHECKING, Final

from cellfeed.config.model import Config
from cellfeed.kinds.registry import Process, process_kind
from cellfeed.store.progress import Watch
from cellfeed.store.secret_references import resolved_settings

if TYPE_CHECKING:
    from cellfeed.consumers.warehouse.loader_progress import LoaderProgress

SESSION_TIMEOUT_MS: Final = 10_000
"""After how long the partitions of a loader that does not come back go to others."""


def names(config: Config) -> list[str]:
    return [each.name for each in config.warehouses]


@process_kind("warehouse", 60, names)
def run(process: Process) -> None:
    # Start-up: a process loads the modules of its own kind alone.
    from cellfeed.assembly.gateway_address import first_gateway
    from cellfeed.assembly.servers_asked import source_asked
    from cellfeed.consumers.warehouse.loader import run_warehouse_loader
    from cellfeed.consumers.warehouse.loader_progress import FlushPolicy

    directory, config, name, stop = process[:4]
    warehouse = next(each for each in config.warehouses if each.name == name)
    bootstrap = warehouse.bootstrap or first_gateway(directory, config)
    client = resolved_settings(warehouse.client)
    log = logging.getLogger("cellfeed.warehouse")
    reported: dict[int, str] = {}

    def progress(now: LoaderProgress) -> None:
        turns.moved()
        if now.stopped == reported:
            return
        for shard, reason in now.stopped.items():
            if reported.get(shard) != reason:
                log.error("partition %d is stopped: %s", shard, reason)
        reported.clear()
        reported.update(now.stopped)
        process.say_stopped(
            [f"partition {shard} is stopped: {reason}" for shard, reason in reported.items()]
        )

    process.say_ready()
    with (
        source_asked(bootstrap, client),
        closing(Watch("warehouse loader", "loop")) as turns,
    ):
        run_warehouse_loader(
            bootstrap,
            warehouse.topic or config.datastore.name,
            warehouse.group,
            directory.inside(warehouse.directory),
            stop,
            on_progress=progress,
            # Another address may be a Kafka cluster's: marks of transactions take offsets too.
            offset_is_added_id=warehouse.bootstrap is None,
            flush=FlushPolicy(rows=warehouse.flush_rows, age_s=warehouse.flush_age_s),
            consumer_config={
                **client,
                "group.instance.id": directory.unique_name(name),
                "session.timeout.ms": SESSION_TIMEOUT_MS,
            },
        )
