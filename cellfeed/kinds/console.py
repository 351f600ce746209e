"""The console in the browser."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack

from cellfeed.config.model import Config
from cellfeed.kinds.registry import KINDS, Process, process_kind


def names(config: Config) -> list[str]:
    return [each.name for each in config.consoles]


@process_kind("console", 90, names)
def run(process: Process) -> None:
    # Start-up: a process loads the modules of its own kind alone.
    from cellfeed.assembly.audit_logs import audit_log
    from cellfeed.assembly.datastore import opened
    from cellfeed.assembly.servers_asked import servers_asked
    from cellfeed.bridge.triggers.operate.lag import LagReader
    from cellfeed.console.server import run_console
    from cellfeed.status.instance_status import read_opened

    directory, config, name, stop = process[:4]
    console = next(each for each in config.consoles if each.name == name)
    kinds = {each: kind.name for kind in KINDS.values() for each in kind.names(config)}
    with (
        opened(config, directory.path) as instance,
        servers_asked(instance.datastore, instance.coordinator),
        ExitStack() as ends,
    ):
        audit = audit_log(config, directory.path, name)
        if audit is not None:
            ends.callback(audit.close)
            if threading.current_thread() is threading.main_thread():  # others get no signals
                signal.signal(signal.SIGHUP, lambda *_: audit.reopen_soon())
        reader = LagReader(instance.datastore, instance.coordinator)
        run_console(
            instance,
            directory.path,
            lambda: read_opened(directory, instance, kinds, reader),
            console,
            directory.kept_port(name, "console", console.port),
            stop,
            lambda port: process.say_ready(console=port),
            audit,
        )
