"""A trigger worker: one process's share of the triggers of a program.

Each trigger has a group of its own, and the worker a share in each (``trigger_group.py``). They
have the threads, the wake-ups and each look at the heads of the log in common. A worker whose name
another process has taken ends.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from contextlib import suppress
from functools import partial
from typing import Final

from cellfeed.bridge.coordination.contract import Coordinator
from cellfeed.bridge.groups.definition import check_definition, refuse_consumers
from cellfeed.bridge.groups.followed_heads import FollowedHeads
from cellfeed.bridge.groups.join_and_drain import drain, join
from cellfeed.bridge.groups.membership import LeaseKeeper
from cellfeed.bridge.groups.work_threads import WorkThreads
from cellfeed.bridge.triggers.operate.earlier_names import check_earlier, follow_earlier
from cellfeed.bridge.triggers.process_death.deadlines import TIME_OUT_DRAIN_S, Deadlines
from cellfeed.bridge.triggers.program import Trigger
from cellfeed.bridge.triggers.trigger_group import TriggerGroup
from cellfeed.store.datastore import Datastore
from cellfeed.store.errors import CellfeedError, GroupTaken, StaleWriter, Unavailable
from cellfeed.store.progress import Watch
from cellfeed.store.wakeups.datagrams import Listener

_log = logging.getLogger("cellfeed.triggers")
LEASE_S: Final = 10.0
"""How long a silent worker keeps its shards: the delay of its shards after a kill -9."""

POLL_INTERVAL_S: Final = 0.1
"""How often the heads are looked at when no wake-up comes."""

SWEEP_WAIT_S: Final = 0.05
"""How long a worker waits for a sweep before it looks for other work, and finds it still under
way."""

THREADS: Final = 8
"""Shards that one worker runs at the same time."""

DRAIN_S: Final = 30.0
"""How long a worker that is asked to stop waits for the cells that it is running."""


def run_trigger_worker(
    triggers: Sequence[Trigger],
    datastore: Datastore,
    coordinator: Coordinator,
    name: str,
    stop: threading.Event,
    *,
    lease_s: float = LEASE_S,
    threads: int = THREADS,
    drain_s: float = DRAIN_S,
    exit_process: Callable[[int], None] = os._exit,
) -> None:
    """Runs the triggers until ``stop`` is set, then drains: blocks. ``name`` must be unique among
    the workers alive; a restarted worker may keep its name.

    Errors of the store or the coordinator are waited out; a trigger function's errors park its
    cell. StaleWriter is raised when another process has taken the name, GroupTaken when the group
    has another trigger. Anything else is a defect and is raised. A function that ran into its
    trigger's time-out ends the process, see ``deadlines.py``: by ``exit_process``, which does not
    return.
    """
    groups = []
    deadlines = Deadlines(exit_process=exit_process)
    for trigger in triggers:
        if (
            group := join(
                stop,
                partial(_joined, trigger, datastore, coordinator, name, lease_s, deadlines),
                _log,
            )
        ) is None:
            return
        groups.append(group)
    followed = FollowedHeads(datastore.engine)
    listener = Listener(datastore.state, f"triggers-{name}", datastore.awaited)
    listener.shows = followed.watermark
    coordinator.when_saved(datastore.awaited.wake)
    keeper = LeaseKeeper([group.membership for group in groups], lease_s)
    pool, sweeper = WorkThreads(threads), WorkThreads(1)
    watch = Watch(f"triggers {name}", "loop")
    try:
        while not stop.is_set() and deadlines.overdue_because is None:
            try:
                changed = followed.look()
                for group in groups:  # all of them, before anything that can fail
                    group.hear_heads(changed)
                busy = followed.awaits_minions
                for group in groups:
                    group.hear(listener.pokes)
                    try:
                        group.keep_place()
                    except (StaleWriter, GroupTaken):
                        raise
                    except CellfeedError as error:
                        group.look_failed(error)
                        _log.warning(
                            "%s keeps the shards that it has: %s",
                            group.membership.session.group,
                            error,
                        )
                    busy |= group.start_work(pool, sweeper, followed.heads)
                    with suppress(Unavailable):  # a hint, repeated in a second
                        group.report(followed.heads)
                listener.pokes.clear()
                watch.moved()
                if sweeping := [group.sweeping for group in groups if group.sweeping is not None]:
                    # Cells that come meanwhile are for the next sweep: one look at the heads is
                    # enough for all of them.
                    futures.wait(sweeping, SWEEP_WAIT_S, futures.FIRST_COMPLETED)
                    listener.wait(0)
                else:
                    listener.wait(0.01 if busy else POLL_INTERVAL_S)
            except (StaleWriter, GroupTaken):
                raise
            except CellfeedError as error:
                watch.waits(str(error))
                _log.warning("the store or the coordinator cannot be reached just now: %s", error)
                stop.wait(POLL_INTERVAL_S)
        if deadlines.overdue_because is None:
            _drain(groups, drain_s)
        if deadlines.overdue_because is not None:
            _drain(groups, TIME_OUT_DRAIN_S)
            deadlines.end_process()
    finally:
        deadlines.close()
        pool.close()
        sweeper.close()
        watch.close()
        keeper.close()
        listener.close()


def check_groups(
    triggers: Sequence[Trigger], datastore: Datastore, coordinator: Coordinator
) -> None:
    """Whether each trigger may have its group. Raises GroupTaken, and Unavailable where that cannot
    be decided: a worker looks again before it claims a shard."""
    for trigger in triggers:
        check_earlier(datastore.state, trigger)
        if trigger.definition is not None:
            refuse_consumers(datastore.state, coordinator, trigger.group)
            check_definition(datastore.state, trigger.group, trigger.definition)


def _joined(
    trigger: Trigger,
    datastore: Datastore,
    coordinator: Coordinator,
    name: str,
    lease_s: float,
    deadlines: Deadlines,
) -> TriggerGroup:
    check_groups([trigger], datastore, coordinator)
    follow_earlier(trigger, datastore, coordinator, lease_s)
    return TriggerGroup(trigger, datastore, coordinator, name, lease_s, deadlines)


def _drain(groups: Sequence[TriggerGroup], drain_s: float) -> None:
    if not drain(groups, drain_s, _log):
        _log.warning(
            "stopped with cells still running after %.0f s: they run again elsewhere", drain_s
        )
