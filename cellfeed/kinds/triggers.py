"""Trigger workers of the configuration's entries."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cellfeed.config.model import Config, TriggersConfig
from cellfeed.kinds.registry import Process, numbered, process_kind
from cellfeed.run_dir import RunDir
from cellfeed.store.errors import Unavailable

UNNAMED: Final = "triggers"
"""The process of an entry under ``triggers:`` that has no name."""


def names(config: Config) -> list[str]:
    return [name for each in config.triggers for name in _names_of(each)]


@process_kind("triggers", 30, names)
def run(process: Process) -> None:
    directory, config, name, stop = process[:4]
    triggers = next(each for each in config.triggers if name in _names_of(each))
    run_triggers(directory, config, triggers, name, stop, process.say_ready)


def run_triggers(
    directory: RunDir,
    config: Config,
    triggers: TriggersConfig,
    name: str,
    stop: threading.Event,
    ready: Callable[[], None],
) -> None:
    """Runs one trigger worker until ``stop`` is set, and drains it. ``ready`` is called when its
    program is loaded, its datastore is open, and its groups are no other trigger's."""
    # Start-up: a process loads the modules of its own kind alone.
    from cellfeed.assembly.datastore import opened
    from cellfeed.assembly.servers_asked import servers_asked
    from cellfeed.assembly.wakeups import woken
    from cellfeed.bridge.triggers.loading import load_program
    from cellfeed.bridge.triggers.worker import check_groups, run_trigger_worker

    settings = triggers.settings_in(directory.path)
    program = load_program(triggers.app, settings, entry=triggers.name or "")
    with (
        opened(config, directory.path) as (_, datastore, coordinator),
        servers_asked(datastore, coordinator),
        woken(config, datastore),
    ):
        with suppress(Unavailable):  # then the worker waits, and compares before it works
            check_groups(program, datastore, coordinator)
        ready()
        run_trigger_worker(
            program,
            datastore,
            coordinator,
            name,
            stop,
            lease_s=triggers.lease_s,
            threads=triggers.threads,
        )


def _names_of(triggers: TriggersConfig) -> list[str]:
    return numbered(triggers.name or UNNAMED, triggers.processes)
