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

from cellfeed.instance.config_file import load_config
from cellfeed.kinds.known import KINDS, process_names
from cellfeed.kinds.registry import Process
from cellfeed.run_dir import RunDir
from cellfeed.servers.configured import configured_server
from cellfeed.servers.life import run_in_place
from cellfeed.store.background import when_changed
from cellfeed.store.descriptors import raise_descriptors_max
from cellfeed.store.errors import NotFound


def run_process(run_dir: Path, name: str) -> None:
    """Runs the process of that name until a signal stops it. Raises NotFound for a name that the
    configuration does not have."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    raise_descriptors_max()
    directory = RunDir(run_dir)
    config = load_config(directory.config)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    kinds = dict(process_names(config))
    directory.make()
    when_changed(partial(directory.say_troubles, name))
    if name not in kinds:
        raise NotFound(f"the configuration has no process {name!r}; it has {', '.join(kinds)}")
    if kinds[name] in KINDS:
        KINDS[kinds[name]].run(Process(directory, config, name, stop))
    else:
        run_in_place(configured_server(directory, config, name), directory)
