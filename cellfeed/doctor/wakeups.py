"""Whether followers here are woken by the workers of other hosts."""

from __future__ import annotations

from collections.abc import Iterator

from cellfeed.assembly.datastore import opened
from cellfeed.doctor.findings import Finding, Instance, Level
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError
from cellfeed.store.http.calls.access import Access
from cellfeed.store.http.calls.wire import AttemptFailed
from cellfeed.store.http.wakeup_links import try_worker
from cellfeed.store.wakeups.addresses import WorkerAddress, worker_addresses

_POLLS = "its commits are found by polling, 0.1 s later"
_REMEDY = "mend the network, `ca`, the credentials of `wakeups`, or the right of their principal"


def examine_wakeups(instance: Instance) -> Iterator[Finding]:
    """Connects to each worker of another host, once."""
    config = instance.config
    with opened(config, instance.directory.path) as (_, datastore, _coordinator):
        workers = worker_addresses(datastore.state)
        if config.wakeups is not None:
            access = config.wakeups.access()
            for worker in workers:
                yield connection(datastore, worker, access)
        elif workers:
            yield Finding(
                "wake-ups",
                "workers of other hosts",
                Level.ADVICE,
                f"{len(workers)} are advertised, and `wakeups` is not given here: {_POLLS}",
                "give `wakeups` in the configuration of this host",
            )


def connection(datastore: Datastore, worker: WorkerAddress, access: Access) -> Finding:
    """Whether a follower here can connect to the worker."""
    try:
        try_worker(datastore.name, datastore.history_id, worker, access)
    except (AttemptFailed, CellfeedError) as error:
        found = f"wakes nobody here, so {_POLLS}: {error}"
        return Finding("wake-ups", worker.url, Level.PROBLEM, found, _REMEDY)
    return Finding("wake-ups", worker.url, Level.WELL, "takes connections of followers")
