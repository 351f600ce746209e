"""One trigger worker of ``cellfeed triggers run``:
``python -m cellfeed.instance.trigger_process NAME``, with a :class:`Specification` in its first
line of input.

In its input and not among its arguments, which everybody on the host can read: settings may be
secrets. The process that started the worker holds the input open. The worker drains at SIGTERM, and
when its input ends, so it does not outlive a ``triggers run`` that was killed. Exit codes are those
of the command line.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import msgspec

from cellfeed.config.model import TriggersConfig
from cellfeed.instance.config_file import load_config
from cellfeed.kinds.triggers import run_triggers
from cellfeed.run_dir import RunDir
from cellfeed.store.background import SupervisedThread
from cellfeed.store.errors import CellfeedError


class Specification(msgspec.Struct, frozen=True):
    """The settings of a worker, as JSON in one line. ``ready_fd``: where it writes a byte when it
    has begun."""

    config: str
    run_dir: str
    triggers: TriggersConfig
    name: str
    ready_fd: int


def main() -> None:
    specification = msgspec.json.decode(_first_line(), type=Specification)
    logging.basicConfig(
        level=logging.INFO,
        format=(
            f"%(asctime)s %(levelname)s {specification.name.replace('%', '%%')} %(name)s:"
            " %(message)s"
        ),
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    SupervisedThread("parent", partial(_end_with_parent, stop)).start()

    def ready() -> None:
        with suppress(OSError):  # its parent has ended: the worker is about to learn so
            os.write(specification.ready_fd, b"!")
            os.close(specification.ready_fd)

    try:
        directory, config = (
            RunDir(Path(specification.run_dir)),
            load_config(Path(specification.config)),
        )
        run_triggers(directory, config, specification.triggers, specification.name, stop, ready)
    except CellfeedError as error:
        sys.stderr.write(f"cellfeed: {error}\n")
        sys.exit(error.exit_code)


def _first_line() -> bytes:
    line = b""
    while not line.endswith(b"\n") and (piece := os.read(0, 65_536)):
        line += piece
    return line


def _end_with_parent(stop: threading.Event) -> None:
    with suppress(OSError):
        while os.read(0, 1024):
            pass
    stop.set()


if __name__ == "__main__":
    main()
