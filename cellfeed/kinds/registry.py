"""Where each kind of process registers itself, at the place where it is written.

A module of a kind imports the code of its process only inside ``run``. So the names of processes
cost a command nothing, and a worker does not load the gateway: with it, a worker starts two seconds
later and is three times as large.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from cellfeed.config.model import Config
from cellfeed.processes.health import ProcessHealth
from cellfeed.run_dir import RunDir


class Process(NamedTuple):
    """One process of an instance, as its kind runs it: until ``stop`` is set."""

    directory: RunDir
    config: Config
    name: str
    stop: threading.Event
    health: ProcessHealth
    health_port: int

    def say_ready(self, **ports: int) -> None:
        """Reports in the run directory that the process serves. ``ports``: by their purpose."""
        self.directory.say_ready(self.name, {**ports, "health": self.health_port})
        self.health.serves()

    def say_stopped(self, reasons: Sequence[str]) -> None:
        """Reports in the run directory which parts of its work it stopped; none: all of it runs."""
        self.directory.say_stopped(self.name, reasons)
        self.health.stopped_work(reasons)


class Kind(NamedTuple):
    """``position``: kinds with a lower one start before. ``names``: of the kind's processes in a
    configuration."""

    name: str
    position: int
    names: Callable[[Config], list[str]]
    run: Callable[[Process], None]


KINDS: Final[dict[str, Kind]] = {}
"""By name; :mod:`cellfeed.kinds.known` has all of them."""


def process_kind(
    name: str, position: int, names: Callable[[Config], list[str]]
) -> Callable[[Callable[[Process], None]], Callable[[Process], None]]:
    """Registers the decorated function as the main function of a kind's processes. Raises
    ValueError for a name or a position that another kind has."""

    def register(run: Callable[[Process], None]) -> Callable[[Process], None]:
        for other in KINDS.values():
            if name == other.name or position == other.position:
                raise ValueError(
                    f"process kind {name!r} at position {position} in {run.__module__}:"
                    f" {other.name!r} of {other.run.__module__} has position {other.position};"
                    " choose others"
                )
        KINDS[name] = Kind(name, position, names, run)
        return run

    return register


def numbered(name: str, processes: int) -> list[str]:
    """``name``, or ``name-1`` … where an entry asks for several processes."""
    return [name] if processes == 1 else [f"{name}-{number}" for number in range(1, processes + 1)]
