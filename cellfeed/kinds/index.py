"""Index workers: they build and keep every index of the datastore."""

from __future__ import annotations

from cellfeed.config.model import Config
from cellfeed.kinds.registry import Process, numbered, process_kind


def names(config: Config) -> list[str]:
    return [name for each in config.indexes for name in numbered(each.name, each.processes)]


@process_kind("index", 40, names)
def run(process: Process) -> None:
    # Start-up: a process loads the modules of its own kind alone.
    from cellfeed.assembly.datastore import opened
    from cellfeed.assembly.servers_asked import servers_asked
    from cellfeed.assembly.wakeups import woken
    from cellfeed.bridge.indexes.worker import IndexWorker

    directory, config, name, stop = process[:4]
    workers = next(each for each in config.indexes if name in numbered(each.name, each.processes))
    with (
        opened(config, directory.path) as (_, datastore, coordinator),
        servers_asked(datastore, coordinator),
        woken(config, datastore),
    ):
        process.say_ready()
        IndexWorker(datastore, coordinator, name, lease_s=workers.lease_s).run(stop)
