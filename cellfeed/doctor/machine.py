"""The host: its clock, the limit of open files, the packages that the configuration needs."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

from cellfeed.bridge.coordination.open import IN_STORE
from cellfeed.bridge.gateway.limits import CONNECTIONS_MAX
from cellfeed.config.model import Config
from cellfeed.doctor.findings import Finding, Instance, Level
from cellfeed.extras import EXTRAS

_TIME_ERROR: Final = 5
"""The answer of adjtimex(2) while no program keeps the kernel's clock synchronous."""

_TIMEX_BYTES: Final = 256
"""More than ``struct timex`` has on any Linux. All zeros ask, and set nothing."""

FILES_MIN: Final = CONNECTIONS_MAX + 1_000
"""Open files that one process may have at least: a gateway's connections, and as many files and
connections to servers as it has at most beside them."""


def examine_machine(instance: Instance) -> Iterator[Finding]:
    """Looks at the host of this command, which is that of the instance's processes."""
    yield clock(clock_is_kept(), alone=_stands_alone(instance.config))
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield from packages(instance.config)


def clock_is_kept() -> bool | None:
    """Whether a program such as chrony keeps the kernel's clock synchronous; None where the system
    does not say."""
    try:
        ask = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    state = ask(ctypes.create_string_buffer(_TIMEX_BYTES))
    return None if state < 0 else state != _TIME_ERROR


def clock(kept: bool | None, *, alone: bool) -> Finding:
    """``alone``: all of the instance is on this host, so that only ``created_at`` is at stake."""
    if kept is None:
        return Finding(
            "clock", "host", Level.UNKNOWN, "the system does not say whether a program keeps it"
        )
    if kept:
        return Finding("clock", "host", Level.WELL, "synchronised")
    return Finding(
        "clock",
        "host",
        Level.ADVICE if alone else Level.PROBLEM,
        "no program keeps it synchronous: cells get wrong times as it drifts"
        + ("" if alone else ", and hosts that differ disagree about leases"),
        "run chrony or systemd-timesyncd",
    )


def open_files(hard_max: int) -> Finding:
    """``hard_max``: the limit to which processes raise their own at their start."""
    if hard_max == resource.RLIM_INFINITY or hard_max >= FILES_MIN:
        return Finding("files", "open files", Level.WELL, _limit(hard_max))
    return Finding(
        "files",
        "open files",
        Level.PROBLEM,
        f"a process may have {hard_max}, a gateway needs up to {FILES_MIN}: clients beyond are"
        " turned away",
        f"raise the hard limit to {FILES_MIN} or more (LimitNOFILE= in a systemd unit, ulimit -Hn)",
    )


def packages(config: Config) -> Iterator[Finding]:
    """The extras that the configuration needs. One that is missing is found at the start of a
    process, or of the first one that is started again."""
    for extra in _extras(config):
        missing = sorted(name for name in EXTRAS[extra] if find_spec(name) is None)
        if missing:
            yield Finding(
                "packages",
                extra,
                Level.PROBLEM,
                f"the configuration needs it, and it lacks {', '.join(missing)}",
                f"pip install 'cellfeed[{extra}]'",
            )
        else:
            yield Finding("packages", extra, Level.WELL, "installed")


def _extras(config: Config) -> list[str]:
    needed = {"server"}
    if config.coordination != IN_STORE:
        needed.add("zookeeper")
    if config.exports or config.warehouses:
        needed.add("export")
    if config.warehouses:
        needed.add("warehouse")
    if any(each.directory.startswith("s3://") for each in config.backups):
        needed.add("s3")
    return sorted(needed)


def _stands_alone(config: Config) -> bool:
    return not config.datastore.clusters and config.coordination == IN_STORE


def _limit(hard_max: int) -> str:
    most = "any number" if hard_max == resource.RLIM_INFINITY else str(hard_max)
    return f"a process may have {most}; {os.cpu_count()} processors"
