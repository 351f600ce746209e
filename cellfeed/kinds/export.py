"""The exporter: one process copies the log to every Kafka cluster of the configuration."""

from __future__ import annotations

from cellfeed.config.model import Config
from cellfeed.kinds.registry import Process, process_kind


def names(config: Config) -> list[str]:
    return ["export"] if config.exports else []


@process_kind("export", 50, names)
def run(process: Process) -> None:
    # Start-up: a process loads the modules of its own kind alone.
    from cellfeed.assembly.column_schemas import register_schemas
    from cellfeed.assembly.datastore import opened
    from cellfeed.assembly.servers_asked import servers_asked
    from cellfeed.assembly.wakeups import woken
    from cellfeed.bridge.export.worker import run_exporter

    directory, config, name, stop = process[:4]
    with (
        opened(config, directory.path) as (_, datastore, coordinator),
        servers_asked(datastore, coordinator),
        woken(config, datastore),
    ):
        register_schemas(config, directory.path, datastore)
        process.say_ready()
        # Of several instances over one storage each has a process of this name: the run directory
        # distinguishes them.
        run_exporter(config.exports, datastore, coordinator, directory.unique_name(name), stop)
