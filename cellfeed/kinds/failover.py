"""The failover supervisor: it promotes a minion where the master of a cluster is gone."""

from __future__ import annotations

from contextlib import ExitStack

from cellfeed.config.model import Config
from cellfeed.kinds.registry import Process, process_kind


def names(config: Config) -> list[str]:
    return ["failover"] if _automatic(config) else []


@process_kind("failover", 80, names)
def run(process: Process) -> None:
    # Start-up: a process loads the modules of its own kind alone.
    from cellfeed.assembly.background import beside, moves_healed
    from cellfeed.assembly.clusters import cluster_servers
    from cellfeed.store.clusters.operating.auto_failover import FailoverSupervisor

    _, config, _, stop = process[:4]
    with ExitStack() as stack:
        clusters = [cluster_servers(config, cluster) for cluster in _automatic(config)]
        for cluster in clusters:
            stack.callback(cluster.close)
        stack.enter_context(moves_healed(config, stop))
        for cluster in clusters:
            stack.enter_context(
                beside(f"failover-{cluster.name}", FailoverSupervisor(cluster).run, stop)
            )
        process.say_ready()
        stop.wait()


def _automatic(config: Config) -> list[str]:
    return [each.name for each in config.datastore.clusters if each.failover == "automatic"]
