"""Background work of processes, each kind in a supervised thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

from cellfeed.assembly.clusters import cluster_servers
from cellfeed.config.model import Config
from cellfeed.store.background import SupervisedThread
from cellfeed.store.clusters.moves.healer import MoveHealer
from cellfeed.store.datastore import Datastore
from cellfeed.store.erasures import ErasureJob
from cellfeed.store.indexes.left_notes import LeftNotes


@contextmanager
def moves_healed(config: Config, stop: threading.Event) -> Iterator[None]:
    """Ends moves of shards whose mover has died, until ``stop`` is set."""
    clusters = {each.name: cluster_servers(config, each.name) for each in config.datastore.clusters}
    with ExitStack() as stack:
        for cluster in clusters.values():
            stack.callback(cluster.close)
        if len(clusters) > 1:
            stack.enter_context(beside("move-healer", MoveHealer(clusters).run, stop))
        yield


def erasures_ended(datastore: Datastore, stop: threading.Event) -> AbstractContextManager[None]:
    """Ends erasures that were broken off, until ``stop`` is set."""
    return beside(
        "erasures", ErasureJob(datastore.unended_erasures, datastore.end_erasure).run, stop
    )


def trims_settled(datastore: Datastore, stop: threading.Event) -> AbstractContextManager[None]:
    """Settles the notes of trims that were broken off, until ``stop`` is set."""
    return beside("trims", LeftNotes(datastore.engine, datastore.indexes).run, stop)


@contextmanager
def beside(
    name: str, run: Callable[[threading.Event], None], stop: threading.Event
) -> Iterator[None]:
    """Runs a thread until ``stop`` is set, by somebody or by the end of the context."""
    thread = SupervisedThread(name, partial(run, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
