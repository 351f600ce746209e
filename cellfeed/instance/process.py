"""One process of an instance, in the foreground until SIGTERM or SIGINT.

``cellfeed run --run-dir DIR NAME`` is the entry; ``cellfeed up`` starts these, and anybody's own
supervisor may do the same.
"""

from __future__ import annotations

import logging
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Final

from cellfeed.instance.config_file import load_config
from cellfeed.kinds.known import KINDS, process_names
from cellfeed.kinds.registry import Process
from cellfeed.processes.health import ProcessHealth
from cellfeed.processes.health_listener import listen
from cellfeed.run_dir import RunDir
from cellfeed.servers.configured import configured_server
from cellfeed.servers.life import run_in_place
from cellfeed.store.background import when_changed
from cellfeed.store.descriptors import raise_descriptors_max
from cellfeed.store.errors import NotFound
from cellfeed.store.progress import set_limits

HEALTH_ADDRESS: Final = ("127.0.0.1", 0)
"""Without another request: this host's probes alone, and a free port."""


def run_process(run_dir: Path, name: str, health_address: tuple[str, int] = HEALTH_ADDRESS) -> None:
    """Runs the process of that name until a signal stops it. ``health_address``: where ``/livez``
    and ``/readyz`` listen; port 0: the one of its last run, or a free one. Raises NotFound for a
    name that the configuration does not have, StorageUnavailable for a port that cannot be had."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    raise_descriptors_max()
    directory = RunDir(run_dir)
    config = load_config(directory.config)
    stop = threading.Event()
    health = ProcessHealth(name)

    def end(*_: object) -> None:
        health.stops()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    kinds = dict(process_names(config))
    directory.make()
    when_changed(partial(directory.say_troubles, name))
    if name not in kinds:
        raise NotFound(f"the configuration has no process {name!r}; it has {', '.join(kinds)}")
    if kinds[name] in KINDS:
        set_limits(config.readiness)
        host, port = health_address
        listener = listen(health, host, port, directory.kept_port(name, "health", 0))
        health.start()
        try:
            KINDS[kinds[name]].run(Process(directory, config, name, stop, health, listener.port))
        finally:
            health.close()
            listener.close()
    else:
        run_in_place(configured_server(directory, config, name), directory)
