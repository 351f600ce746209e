"""Lake loaders: Kafka consumers that write Iceberg and Delta tables."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final

from cellfeed.config.model import Config
from cellfeed.kinds.registry import Process, process_kind
from cellfeed.store.progress import Watch
from cellfeed.store.secret_references import resolved_settings

if TYPE_CHECKING:
    from cellfeed.consumers.lake.progress import LakeProgress

SESSION_TIMEOUT_MS: Final = 10_000
"""After how long the partitions of a loader that does not come back go to others."""


def names(config: Config) -> list[str]:
    return [each.name for each in config.lakes]


@process_kind("lake", 65, names)
def run(process: Process) -> None:
    # Start-up: a process loads the modules of its own kind alone.
    from cellfeed.assembly.datastore import open_datastore
    from cellfeed.assembly.gateway_address import first_gateway
    from cellfeed.assembly.lake_waiters import LakeWaiters
    from cellfeed.assembly.lakes import lake_named, lake_place, lake_schemas, lake_topic
    from cellfeed.assembly.servers_asked import source_asked
    from cellfeed.consumers.lake.loader import run_lake_loader
    from cellfeed.consumers.lake.metrics import LakeMetrics
    from cellfeed.consumers.lake.progress import CommitPolicy

    directory, config, name, stop = process[:4]
    lake = lake_named(config, name)
    reported: list[str] = []

    def progress(now: LakeProgress) -> None:
        turns.moved()
        metrics.show(now)
        reasons = [f"partition {shard} is stopped: {why}" for shard, why in now.stopped.items()]
        reasons += [f"nothing is committed: {now.trouble}"] if now.trouble else []
        reasons += [
            f"the typed tables of column {column} wait: {why}" if column else why
            for column, why in sorted(now.table_troubles.items())
        ]
        if reasons != reported:
            reported[:] = reasons
            process.say_stopped(reasons)

    client = resolved_settings(lake.client)
    bootstrap = lake.bootstrap or first_gateway(directory, config)
    with (
        LakeMetrics(lake.metrics_port) as metrics,
        source_asked(bootstrap, client),
        closing(Watch("lake loader", "loop")) as turns,
        lake_schemas(lake, config, directory.path) as schemas,
        closing(
            LakeWaiters(
                lake.group,
                directory.unique_name(name),
                lambda: open_datastore(config, directory.path),
            )
        ) as waiters,
    ):
        process.say_ready(**metrics.ports)
        run_lake_loader(
            bootstrap,
            lake_topic(lake, config),
            lake.group,
            lake_place(lake, directory),
            stop,
            on_progress=progress,
            # Another address may be a Kafka cluster's: marks of transactions take offsets too.
            offset_is_added_id=lake.bootstrap is None,
            schemas=schemas,
            policy=CommitPolicy(age_s=lake.commit_age_s),
            client={
                **client,
                "group.instance.id": directory.unique_name(name),
                "session.timeout.ms": SESSION_TIMEOUT_MS,
            },
            waiters=waiters,
        )
