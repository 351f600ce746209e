"""An exporter: one process's share of the exports of a configuration. Any number of processes
divide the units of each export between them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.export.declaration import Export
from cellfeed.bridge.export.export_group import ExportGroup
from cellfeed.bridge.export.limits import DRAIN_S, LOOK_GAP_S, POLL_INTERVAL_S
from cellfeed.bridge.groups.followed_heads import FollowedHeads
from cellfeed.bridge.groups.join_and_drain import drain, join
from cellfeed.bridge.groups.membership import LeaseKeeper
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, StaleWriter, Unavailable
from cellfeed.store.gc_tuning import collect_seldom
from cellfeed.store.progress import Watch
from cellfeed.store.wakeups.datagrams import Listener

_log: Final = logging.getLogger("cellfeed.export")


def run_exporter(
    exports: Sequence[Export],
    datastore: Datastore,
    coordinator: Coordinator,
    name: str,
    stop: threading.Event,
    *,
    drain_s: float = DRAIN_S,
    on_look: Callable[[Sequence[ExportGroup]], None] = lambda _: None,
) -> None:
    """Exports until ``stop`` is set, then ends after the transactions under way: blocks. ``name``
    must be unique among the exporters alive. ``on_look`` is called at each look at the logs, a few
    times a second at least.

    Errors of the store, the coordination and the cluster are waited out and reported. StaleWriter
    is raised when another process has taken the name; anything else is a defect and is raised.
    """
    collect_seldom()
    groups: list[ExportGroup] = []
    heads_wanted = threading.Event()
    for export in exports:
        if (
            group := join(
                stop, partial(ExportGroup, export, datastore, coordinator, name, heads_wanted), _log
            )
        ) is None:
            return
        groups.append(group)
    followed = FollowedHeads(datastore.engine)
    listener = Listener(datastore.state, f"export-{name}", datastore.awaited)
    listener.shows = followed.watermark
    coordinator.when_saved(datastore.awaited.wake)
    keeper = LeaseKeeper(
        [group.membership for group in groups], min(export.lease_s for export in exports)
    )
    watch = Watch(f"export {name}", "loop")
    try:
        while not stop.is_set():
            try:
                heads_wanted.clear()
                began_s = time.monotonic()
                changed = followed.look()
                look_s = time.monotonic() - began_s
                for group in groups:  # all of them, before anything that can fail
                    group.note_heads(changed, look_s)
                for group in groups:
                    group.hear(listener.pokes)
                    try:
                        group.keep_place(followed.heads)
                    except StaleWriter:
                        raise
                    except CellfeedError as error:
                        group.look_failed(error)
                        _log.warning(
                            "%s keeps the units that it has: %s", group.export.group, error
                        )
                    with suppress(Unavailable):  # a hint, repeated in a second
                        group.report(followed.heads)
                listener.pokes.clear()
                watch.moved()
                on_look(groups)
                listener.wait(0.01 if followed.awaits_minions else POLL_INTERVAL_S)
                heads_wanted.wait(LOOK_GAP_S)
            except StaleWriter:
                raise
            except CellfeedError as error:
                watch.waits(str(error))
                _log.warning("the store or the coordinator cannot be reached just now: %s", error)
                stop.wait(POLL_INTERVAL_S)
        if not drain(groups, drain_s, _log):
            _log.warning(
                "stopped with transactions still open after %.0f s: the next owner of their units"
                " aborts them",
                drain_s,
            )
    finally:
        watch.close()
        keeper.close()
        listener.close()
        for group in groups:
            group.close()
